"""Products in 8 bits by the kernel are exact sums, of any sizes, on any number of threads and in any company."""

import pytest
import torch

from nmt.kernels.int8_products import GROUP, MOST, PANEL, BytesLaidOut, bytes_in_kernels

pytestmark = pytest.mark.skipif(not bytes_in_kernels(), reason="no kernel multiplies 8 bits on this processor")

SIZES = [(1, 1, 1), (3, 70, 33), (5, 31, 16), (97, 256, 40), (200, 64, 300), (20, 100, 40), (9, 1030, 17)]


@pytest.fixture(autouse=True)
def same_threads():
    n_thread = torch.get_num_threads()
    yield
    torch.set_num_threads(n_thread)


def fours(whole):
    """Sums of what one sign has in the fours of neighbours that have 16 bits together: the most, and the least."""
    padded = torch.nn.functional.pad(whole.int(), (0, -whole.size(1) % GROUP))
    # of each eight the first two of both halves, and the others
    parts = padded.view(len(whole), -1, 2, 2, 2).transpose(2, 3).flatten(3)
    return parts.clamp(min=0).sum(3).max(), parts.clamp(max=0).sum(3).min()


def matrix(n_out, n_in, seed=1):
    """Whole numbers of all sizes, of which no four is too large; scales and biases."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(-127, 128, (n_out, n_in), generator=generator).to(torch.int8)
    whole[:, 2::4], whole[:, 3::4] = whole[:, 2::4] // 64, whole[:, 3::4] // 64
    whole[:, 4::8], whole[:, 5::8] = whole[:, 4::8] // 64, whole[:, 5::8] // 64
    most, least = fours(whole)
    assert most <= 258 and least >= -258
    return whole, torch.rand(n_out, generator=generator) + 0.5, torch.randn(n_out, generator=generator)


def states(n, d, seed=2):
    return torch.randint(MOST + 1, (n, d), generator=torch.Generator().manual_seed(seed)).float()


@pytest.mark.parametrize("n_thread", [1, 2, 3])
@pytest.mark.parametrize("size", SIZES)
def test_sums_are_exact(size, n_thread):
    torch.set_num_threads(n_thread)
    n, d, e = size
    whole, scale, bias = matrix(e, d)
    x = states(n, d)
    for row in range(min(n, e) // 2):  # the most and the least that sums can be
        x[row] = MOST * (whole[row] > 0) if row % 2 else MOST * (whole[row] < 0)
    sums = x.double() @ whole.double().t()
    exact = sums * scale.double() + bias.double()
    found = BytesLaidOut(whole, scale, bias).times(x)
    assert found.shape == (n, e) and torch.allclose(found.double(), exact, rtol=1e-6, atol=1e-5)
    plain = BytesLaidOut(whole, torch.ones(e), torch.zeros(e))
    assert torch.equal(plain.times(x).double(), sums)
    plus = torch.randn(n, e)
    assert torch.equal(plain.times(x, plus), plain.times(x) + plus)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("places", [(0, 1, 4, 5), (2, 3, 6, 7)])
def test_the_largest_fours_have_16_bits(places, sign):
    whole = torch.zeros(PANEL, GROUP, dtype=torch.int8)
    whole[:, list(places)] = torch.tensor([127, 1, 127, 3], dtype=torch.int8) * sign
    found = BytesLaidOut(whole, torch.ones(PANEL), torch.zeros(PANEL)).times(torch.full((5, GROUP), float(MOST)))
    assert (found == 258 * MOST * sign).all()


def test_states_are_rounded_and_cut_off_at_both_ends():
    whole, scale, bias = matrix(40, 70)
    x = torch.randn(50, 70, generator=torch.Generator().manual_seed(3)) * 60
    gain, shift = torch.rand(70) + 0.5, torch.rand(70) * 60
    as_states = torch.addcmul(shift, x, gain).round().clamp(0, MOST)
    assert (as_states == 0).any() and (as_states == MOST).any()
    exact = BytesLaidOut(whole, scale, bias).times(as_states)
    found = BytesLaidOut(whole, scale, bias, (gain, shift)).times(x)
    assert torch.allclose(found, exact, atol=1e-3)
    assert torch.equal(BytesLaidOut(whole, scale, bias).times(x), BytesLaidOut(whole, scale, bias).times(x.round()))
    assert torch.equal(
        BytesLaidOut(whole, scale, bias).times(x), BytesLaidOut(whole, scale, bias).times(x.clamp(0, MOST))
    )


@pytest.mark.parametrize("n_thread", [1, 2])
@pytest.mark.parametrize("size", [(3, 24, 40), (100, 70, 33), (30, 45, 100), (7, 256, 1024), (200, 64, 100)])
def test_what_is_made_for_another_product_is_read_by_it(size, n_thread):
    torch.set_num_threads(n_thread)
    n, d, e = size
    whole, scale, bias = matrix(e, d)
    to_states, after = BytesLaidOut(whole, scale / 200, 30 * bias), BytesLaidOut(*matrix(20, e, 5))
    x = states(n, d)
    between = to_states.states(x)
    # The same numbers, but for those that lie in the middle of two, where one sum and one product may be rounded once.
    exact = (torch.nn.functional.linear(x, whole.float()) * (scale / 200) + 30 * bias).round().clamp(0, MOST)
    assert between.dtype == torch.uint8 and between.size(1) % PANEL == 0 and not between[:, e:].any()
    assert (between[:, :e] != exact).float().mean() < 0.001 and (between[:, :e] > MOST / 3).any()
    assert torch.equal(after.times(between), after.times(between[:, :e].float()))


def test_a_row_is_the_same_in_any_company_and_a_part_of_a_tensor_is_read():
    laid = BytesLaidOut(*matrix(300, 70), (torch.rand(70) + 0.5, torch.rand(70) * 60))
    x = torch.randn(250, 70) * 40
    whole = laid.times(x)
    for some in ([3], [7, 3], [199, 0, 3, 4, 5], list(range(0, 250, 2))):
        assert torch.equal(laid.times(x[some]), whole[some])
    assert torch.equal(laid.times(x[::3]), whole[::3])
    assert torch.equal(laid.times(torch.cat([x, x], 1)[:, 70:]), whole)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [(0, 0), (120, 69)])
@pytest.mark.parametrize("n_thread", [1, 2])
def test_a_row_that_is_not_finite_is_no_number_and_no_other_is_touched(odd, place, n_thread):
    torch.set_num_threads(n_thread)
    for n_out in (33, 300):  # shared out by rows, and by columns
        laid = BytesLaidOut(*matrix(n_out, 70))
        x = states(130, 70)
        exact = laid.times(x)
        x[place] = odd
        found = laid.times(x)
        others = [row for row in range(130) if row != place[0]]
        assert found[place[0]].isnan().all() and torch.equal(found[others], exact[others])
