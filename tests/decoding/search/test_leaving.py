"""When finished sentences leave a batch."""

from nmt.decoding.candidates import LeavePolicy


def test_many_leave_at_once_and_few_when_they_have_cost_enough():
    leave_policy = LeavePolicy()
    assert leave_policy.pays(5, 10)
    assert [leave_policy.pays(1, 32) for _ in range(8)] == [False, True] * 4
    assert not any(leave_policy.pays(0, 32) for _ in range(100))
