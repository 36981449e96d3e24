"""When finished sentences leave a batch."""

from nmt.decoding.candidates import Leaving


def test_many_leave_at_once_and_few_when_they_have_cost_enough():
    leaving = Leaving()
    assert leaving.pays(5, 10)
    assert [leaving.pays(1, 32) for _ in range(8)] == [False, True] * 4
    assert not any(leaving.pays(0, 32) for _ in range(100))
