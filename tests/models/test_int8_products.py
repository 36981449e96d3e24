"""Matrices in whole numbers: sums that are exact whichever neighbours they are of, and what they stand for."""

import pytest
import torch
import torch.nn.functional as F

from nmt.models import int8_products
from nmt.models.int8_products import ByKernel, Steps, exact_pair, in_bytes


def whole_numbers(way, weight):
    """The matrix as that way of multiplying has it, and the scales of its rows."""
    if way is ByKernel:
        return in_bytes(weight, int8_products._FOUR, int8_products._AS_FOURS)
    return in_bytes(weight, exact_pair(), int8_products._AS_PAIRS)


@pytest.mark.parametrize("size", [(1, 64, 8), (3, 70, 33), (40, 256, 1024), (300, 1024, 256), (7, 31, 5)])
def test_the_largest_sums_are_exact_whichever_neighbours_they_are_of(way, size):
    n, d, e = size
    generator = torch.Generator().manual_seed(3)
    weight, bias = torch.randn(e, d, generator=generator), torch.randn(e, generator=generator)
    whole, scale = whole_numbers(way, weight)
    states = torch.randint(way.most + 1, (n, d), generator=generator).float()
    for row in range(min(n, e)):  # the most and the least that a sum can be
        states[row] = way.most * (whole[row] > 0) if row % 2 else way.most * (whole[row] < 0)
    exact = 0.3 * ((states.double() - 5) @ whole.double().t()) * scale.double() + bias.double()
    found = way(weight, bias, Steps(0.3, 5))(states)
    assert (found.double() - exact).abs().max() < 1e-5 * exact.abs().max()
    plus = torch.randn(n, e, generator=generator)
    assert torch.allclose(way(weight, bias, Steps(0.3, 5))(states, plus), found + plus, atol=1e-4)


def test_a_product_reads_what_another_has_made_for_it(way):
    generator = torch.Generator().manual_seed(3)
    first, second = torch.randn(100, 70, generator=generator) / 60, torch.randn(40, 100, generator=generator)
    x = torch.randn(300, 70, generator=generator)
    step, middle = 4 / (way.most // 2), (way.most + 1) // 2
    affine = (torch.full((70,), 1 / step), torch.full((70,), float(middle)))
    relu = way(first, torch.full((100,), 0.2), Steps(step, middle, affine), relu=True)
    found = way(second, torch.zeros(40), Steps(1 / way.most))(relu(x))
    exact = F.relu(F.linear(x, first, torch.full((100,), 0.2))).clamp(max=1.0) @ second.t()
    assert (found - exact).norm() < 0.03 * exact.norm()


def test_a_row_that_is_not_finite_is_no_number(way):
    product = way(torch.randn(20, 30), torch.zeros(20), Steps(0.1, 3))
    x = torch.rand(9, 30) * 20
    exact = product(x)
    x[4, 7], x[6, 29] = torch.nan, torch.inf
    found, others = product(x), [0, 1, 2, 3, 5, 7, 8]
    assert found[[4, 6]].isnan().all() and torch.equal(found[others], exact[others])


def sums_of(whole, shape):
    """What neighbours of one sign come to: the most and the least."""
    together = F.pad(whole.int(), (0, -whole.size(1) % torch.Size(shape).numel())).view(len(whole), -1, *shape)
    return together.clamp(min=0).sum((2, -1)).max(), together.clamp(max=0).sum((2, -1)).min()


@pytest.mark.parametrize(
    ("most", "shape", "of_states"),
    [(int8_products._PAIRS[1], (1, 2), 255), (int8_products._FOUR, (2, 2, 2), 127)],
)
def test_where_sums_have_16_bits_no_neighbours_leave_them(most, shape, of_states):
    weight = torch.randn(50, 81, generator=torch.Generator().manual_seed(3))
    weight[0], weight[1], weight[2, ::2] = 1.0, -1.0, 0.0
    narrow, scale = in_bytes(weight, most, shape)
    largest, least = sums_of(narrow, shape)
    assert of_states * largest < 2**15 and of_states * least >= -(2**15)
    assert ((narrow * scale.unsqueeze(1) - weight).abs() <= 0.501 * scale.unsqueeze(1)).all()
    wide, usual = in_bytes(weight, int8_products._PAIRS[0], (1, 2))
    assert torch.equal(usual, weight.abs().amax(1) / 127) and wide.abs().amax() == 127
    assert usual.sum() < scale.sum() < 1.5 * usual.sum()
