"""The best columns of rows, as a search asks for them: those of a sort, whatever is tied, hidden or not finite."""

import pytest
import torch

from nmt.kernels import switch
from nmt.kernels.choice import choose

if why_not := switch.why_not():
    pytest.skip(f"no kernels here: {why_not}", allow_module_level=True)


@pytest.fixture(autouse=True)
def switched_on():
    switch.use(True)


@pytest.mark.parametrize("n_column", [1, 5, 16, 64, 65, 200, 1000])
@pytest.mark.parametrize("n", [1, 3, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [False, True])
def test_the_best_columns_are_those_of_a_stable_sort(n_column, n, dtype, tied):
    generator = torch.Generator().manual_seed(n_column + n)
    logits = 3 * torch.randn(7, n_column, generator=generator)
    logits = (logits.round() if tied else logits).to(dtype)
    never = torch.randperm(n_column, generator=generator)[: min(3, n_column - 1)]
    n = min(n, n_column)
    best, column, log_total = choose(logits, n, never)
    exact = logits.double()
    assert torch.allclose(log_total.double(), exact.logsumexp(1), atol=1e-5)
    exact[:, never] = -torch.inf
    ordered = exact.sort(dim=1, descending=True, stable=True)
    assert torch.equal(best.double(), ordered.values[:, :n])
    there = best > -torch.inf
    assert torch.equal(column[there], ordered.indices[:, :n][there])


def test_all_that_is_hidden_or_not_finite_is_not_chosen():
    logits = torch.zeros(3, 70)
    logits[0, 69], logits[1] = float("nan"), float("nan")
    logits[2] = -torch.inf
    best, column, log_total = choose(logits, 2, torch.tensor([0]))
    assert best[0].tolist() == [0.0, 0.0] and column[0].tolist() == [1, 2] and log_total[0].isnan()
    assert (best[1:] == -torch.inf).all() and log_total[1].isnan()
