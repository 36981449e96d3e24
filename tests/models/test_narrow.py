"""Logits of some target ids only: they are those of all, and one more stands well for the rest."""

import pytest
import torch

from nmt.decoding.scoring.ensemble import Ensemble
from nmt.models.build import build_model
from nmt.models.gaps import Gaps
from nmt.models.narrow import Narrow, Normals, narrow_logits
from nmt.recipe.model_options import ModelConfig

N_VOCAB, BOS = 24, 1
GROUP = torch.tensor([0, 1, 1] * 8)
KINDS = {
    "transformer": {"d_model": 16, "d_inner": 24, "n_enc_layer": 1, "n_dec_layer": 2, "n_head": 2},
    "scaled": {"d_model": 16, "n_enc_layer": 1, "n_dec_layer": 1, "n_head": 2, "scale_emb_or_prj": "prj"},
    "attention": {"architecture": "attention", "d_model": 16},
    "seq2seq": {"architecture": "seq2seq", "d_model": 16, "trg_emb_prj_weight_sharing": False},
}


def made(kind, seed=1):
    torch.manual_seed(seed)
    return build_model(ModelConfig(**KINDS[kind]), N_VOCAB, N_VOCAB).double().eval()


def narrow_to(columns):
    listed = torch.stack([(GROUP[columns] == group).sum(1) for group in (0, 1)], 1)
    return Narrow(columns, (torch.bincount(GROUP) - listed).log(), lambda weight: Normals.of(weight, GROUP))


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_narrow_logits_are_those_of_the_whole_vocabulary_also_when_beams_move_and_sentences_leave(kind):
    model = made(kind)
    src_seq = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0], [4, 2, 0, 0]])
    columns = torch.tensor([[2, 9, 11, 5], [2, 3, 4, 5], [2, 20, 21, 7]])
    whole, some = model.start(src_seq), model.start(src_seq)
    model.narrow(some, narrow_to(columns))
    last = torch.full((3,), BOS)
    for step, (rows, stay) in enumerate([([0, 0, 1, 1, 2, 2], None), ([1, 0, 3, 3, 4, 5], [0, 2]), (None, None)]):
        every, found = model.step(last, whole), model.step(last, some)
        wanted = every.gather(1, columns.repeat_interleave(len(last) // len(columns), 0))
        torch.testing.assert_close(found[:, :-1], wanted, rtol=0, atol=1e-10)
        assert torch.equal(some.columns, columns) and whole.columns is None
        if rows is None:
            break
        rows = torch.tensor(rows)
        if stay is not None:
            stay = torch.tensor(stay)
            columns, rows = columns[stay], rows.view(3, 2)[stay].flatten()
            for state in (whole, some):
                state.keep(Gaps.of(stay, stay.device))
        whole.reorder(rows)
        some.reorder(rows)
        last = torch.arange(len(rows)) + 5 + step


@torch.no_grad()
def test_an_ensemble_averages_what_its_models_think_of_the_listed_ids_and_of_the_others():
    models = [made("transformer", 1), made("transformer", 2)]
    both, columns = Ensemble(models), torch.tensor([[2, 9, 11, 5]])
    src_seq, last = torch.tensor([[5, 6, 2]]), torch.tensor([BOS])
    state = both.start(src_seq)
    both.narrow(state, narrow_to(columns))
    assert torch.equal(state.columns, columns)
    found = both.step(last, state)
    each = []
    for model in models:
        its = model.start(src_seq)
        model.narrow(its, narrow_to(columns))
        each.append(model.step(last, its).softmax(-1))
    torch.testing.assert_close(found.exp(), (each[0] + each[1]) / 2, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.exp().sum(), torch.tensor(1.0, dtype=torch.float64))


def test_all_others_are_estimated_by_the_moments_of_their_groups():
    """Rows that are normal, of two groups with means and covariances of their own: a few percent off the true sum."""
    torch.manual_seed(3)
    n, d = 40_000, 8
    group = (torch.arange(n) % 4 > 0).long()
    mix = torch.randn(2, d, d, dtype=torch.float64) / d**0.5
    weight = torch.randn(n, d, dtype=torch.float64)
    weight = torch.where(group.bool().unsqueeze(1), weight @ mix[0] - 0.5, weight @ mix[1] + 0.3)
    hidden = 0.5 * torch.randn(1, 5, d, dtype=torch.float64)
    columns = torch.tensor([[7, 11, 400]])
    listed = torch.stack([(group[columns] == one).sum(1) for one in (0, 1)], 1)
    log_other = (torch.bincount(group) - listed).log()
    found = narrow_logits(hidden, weight[columns], log_other, Normals.of(weight, group))
    logits = hidden @ weight.T
    torch.testing.assert_close(found[:, :, :-1], logits[:, :, columns[0]], rtol=0, atol=1e-12)
    others = torch.ones(n, dtype=torch.bool)
    others[columns[0]] = False
    torch.testing.assert_close(found[:, :, -1], logits[:, :, others].logsumexp(-1), rtol=0, atol=0.05)
    one_group = Normals.of(weight, torch.zeros_like(group))
    off = one_group.log_mean_exp(hidden)[0, :, 0] + torch.tensor(float(n)).log() - logits[0].logsumexp(-1)
    assert off.abs().max() > 0.05  # so two groups are needed


def test_in_bf16_the_estimate_is_made_in_fp32():
    weight, hidden = torch.randn(64, 8).bfloat16(), torch.randn(2, 3, 8).bfloat16()
    columns = torch.tensor([[1, 2], [3, 4]])
    normals = Normals.of(weight, torch.zeros(64, dtype=torch.long))
    found = narrow_logits(hidden, weight[columns], torch.full((2, 1), 62.0).log(), normals)
    assert found.dtype == torch.float32 and found.shape == (2, 3, 3)
