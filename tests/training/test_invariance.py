"""Padding and batching change neither loss nor gradient, and the gradient is that of the loss."""

import pytest
import torch
from torch.nn.functional import pad

from nmt.models.build import build_model
from nmt.recipe.options import ModelConfig
from nmt.recipe.training_options import RegularizeConfig
from nmt.training.engine import Objective
from tests.training.test_loss import by_definition

PAD, N_VOCAB, SMOOTHING = 0, 40, 0.1
TINY = {"d_model": 16, "d_inner": 24, "n_enc_layer": 2, "n_dec_layer": 2, "n_head": 4, "dropout": 0.0}
KINDS = [
    {},
    {"norm": "pre", "norm_kind": "rms", "position": "rotary", "n_kv_head": 2, "qk_norm": True, "ffn": "swiglu"},
    {"norm": "pre", "position": "learned", "scale_emb_or_prj": "emb", "prj_transform": True, "lexical_attn": True},
    {"position": "rotary", "rotary_enc_attn": True, "n_kv_head": 1, "lexical_attn": True, "enc_conv": 3},
]


def tiny_model(dtype, **options):
    torch.manual_seed(5)
    return build_model(ModelConfig(**{**TINY, **options}), N_VOCAB, N_VOCAB, PAD).to(dtype)


def random_rows(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, N_VOCAB, (length,), generator=generator) for length in lengths]


SRC = random_rows((3, 15, 8, 4, 11, 6, 15, 3), 1)
TRG = random_rows((9, 3, 15, 5, 12, 3, 7, 14), 2)  # decoder input; rolled to the left by one, the gold tokens


def matrix(rows, n_more=0):
    """Return rows of ids as one padded matrix, padded by n_more columns beyond the longest."""
    longest = max(map(len, rows))
    return torch.stack([pad(row, (0, longest - len(row) + n_more), value=PAD) for row in rows])


def loss_of(model, indices, n_more=0):
    """Return the summed loss of some of the pairs."""
    src, trg = (matrix([rows[index] for index in indices], n_more) for rows in (SRC, TRG))
    gold = matrix([TRG[index].roll(-1) for index in indices], n_more)
    return Objective(model, SMOOTHING, RegularizeConfig())(src, trg, gold)[0]


def logits_loss_and_gradient(model, indices, n_more=0):
    """Return the logits of each of some pairs, their summed loss, and its gradient as one vector."""
    model.zero_grad()
    src, trg = (matrix([rows[index] for index in indices], n_more) for rows in (SRC, TRG))
    loss = loss_of(model, indices, n_more)
    loss.backward()
    with torch.no_grad():
        logits = model(src, trg)
    parts = [row[: len(TRG[index])].detach() for row, index in zip(logits, indices, strict=True)]
    gradient = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()])
    return parts, loss.detach(), gradient


@pytest.mark.parametrize("options", KINDS)
def test_loss_is_the_smoothed_cross_entropy_of_the_logits(options):
    model = tiny_model(torch.float64, **options)
    rows, loss, _ = logits_loss_and_gradient(model, range(len(SRC)))
    logits, gold = torch.cat(rows)[None], torch.cat([trg.roll(-1) for trg in TRG])[None]
    expected, _ = by_definition(logits, logits, gold, ce=(1, 0), kl=(0, 0), smoothing=SMOOTHING)
    assert abs(loss / expected - 1) < 1e-12


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-12), (torch.float32, 5e-6)])
def test_padding_and_batching_change_no_logit_loss_or_gradient(options, dtype, bound):
    model = tiny_model(dtype, **options).train()
    all_pairs = range(len(SRC))
    expected, loss, gradient = logits_loss_and_gradient(model, all_pairs)
    alone = [logits_loss_and_gradient(model, [pair]) for pair in all_pairs]
    separately = [row for parts, _, _ in alone for row in parts], sum(a[1] for a in alone), sum(a[2] for a in alone)
    for parts, other_loss, other_gradient in (separately, logits_loss_and_gradient(model, all_pairs, n_more=9)):
        assert all((a - b).abs().max() < bound for a, b in zip(parts, expected, strict=True))
        assert abs(other_loss / loss - 1) < bound
        assert (other_gradient - gradient).norm() < bound * gradient.norm()


@pytest.mark.parametrize("options", [{**kind, "dropout": 0.3} for kind in KINDS])
def test_gradient_of_every_parameter_equals_finite_differences(options):
    """Along a random direction in each parameter, with dropout and label smoothing."""
    model = tiny_model(torch.float64, **options, act_dropout=0.2, n_enc_layer=1, n_dec_layer=1).train()

    def evaluate():
        torch.manual_seed(8)  # the same masks each time
        return loss_of(model, [0, 1])

    evaluate().backward()
    gradient = {name: p.grad.clone() for name, p in model.named_parameters()}
    generator, step = torch.Generator().manual_seed(9), 1e-6
    for name, parameter in model.named_parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if parameter.shape == model.output_weight.shape and parameter is not model.output_weight:
            direction[PAD] = 0  # an embedding of padding is never trained
        direction /= direction.norm()
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign * step)
                values.append(evaluate())
                parameter.sub_(direction, alpha=sign * step)
        slope = float((values[0] - values[1]) / (2 * step))
        assert slope == pytest.approx(float((gradient[name] * direction).sum()), rel=1e-5, abs=1e-6), name
