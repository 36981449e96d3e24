"""Those that stay close the gaps of those that leave."""

import torch

from nmt.models.gaps import Gaps, closing


def test_those_that_stay_take_the_places_of_others_alone():
    value = torch.arange(12.0).view(6, 2)
    gaps = Gaps.of(torch.tensor([0, 5, 2, 4]), value.device)
    left = gaps.close(value)
    assert left.tolist() == [[0, 1], [10, 11], [4, 5], [8, 9]] and gaps.target.tolist() == [1, 3]
    assert left.data_ptr() == value.data_ptr() and left.is_contiguous()
    assert Gaps.of(torch.tensor([0, 0, 1]), value.device).close(left).tolist() == [[0, 1], [0, 1], [10, 11]]


def test_all_that_stay_are_chosen_and_as_few_as_can_be_are_moved():
    generator = torch.Generator().manual_seed(1)
    for n_entry in range(1, 20):
        for share in (0.0, 0.2, 0.5, 0.9, 1.0):
            done = torch.rand(n_entry, generator=generator) < share
            n_left = int((~done).sum())
            for n in {n_left, (n_left + n_entry) // 2, n_entry}:
                which = closing(done, n)
                assert len(which) == n and len(set(which.tolist())) == n
                assert sorted(which[~done[which]].tolist()) == (~done).nonzero().flatten().tolist()
                assert int((which != torch.arange(n)).sum()) == int((~done[n:]).sum())
            assert closing(done).tolist() == closing(done, n_left).tolist()


def test_what_is_there_under_two_names_is_moved_once():
    value = torch.arange(5.0)
    gaps = Gaps.of(torch.tensor([1, 2, 4]), value.device)
    left = gaps.close_all({"k": value, "v": value, "other": value.clone()})
    assert all(one.tolist() == [1, 2, 4] for one in left.values())
    assert left["k"].data_ptr() == value.data_ptr() != left["other"].data_ptr()
