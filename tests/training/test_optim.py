"""Optimizers: their parameters, the order of an update, and Muon's arithmetic."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from nmt.models.build import build_model
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.reader import write_recipe
from nmt.recipe.training_options import OptimConfig
from nmt.training.optim import OPTIMIZERS, Muon, Optimizers, groups_of


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(7, 4)
        self.w = nn.Linear(4, 6)
        self.trg_word_prj = nn.Linear(4, 7, bias=False)
        self.trg_word_prj.weight = self.emb.weight


def no_scaler():
    return torch.amp.GradScaler("cpu", enabled=False)


def with_gradients(model, seed=0):
    torch.manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn_like(p)


@pytest.mark.parametrize(("exact", "tolerance"), [(True, 2e-5), (False, 2e-2)])
def test_muon_without_blocks_equals_muon_of_torch(monkeypatch, exact, tolerance):
    """Up to rounding if torch is kept from iterating in bf16, and up to the precision of bf16 if it is not.

    tolerance: share of the distance that ten updates moved.
    """
    if exact:
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    for shape in ((8, 8), (6, 24), (24, 6)):
        torch.manual_seed(0)
        start = torch.randn(shape)
        ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
        options = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
        muon, torch_muon = (
            Muon([ours], **options),
            torch.optim.Muon([theirs], adjust_lr_fn="match_rms_adamw", **options),
        )
        for _ in range(10):
            ours.grad = torch.randn(shape)
            theirs.grad = ours.grad.clone()
            muon.step()
            torch_muon.step()
        distance = float((ours.detach() - start).norm())
        assert distance > 0.1 and float((ours - theirs).detach().norm()) < tolerance * distance


def test_muon_in_bf16_moves_as_in_fp32_up_to_rounding():
    steps = []
    for in_bf16 in (False, True):
        torch.manual_seed(0)
        model = Small()
        before = model.w.weight.detach().clone()
        optimizers = Optimizers(model, OptimConfig(name="muon"), in_bf16=in_bf16)
        with_gradients(model)
        optimizers.apply_update(no_scaler(), loss=torch.tensor(1.0), clip=0.0)
        steps.append(model.w.weight.detach() - before)
    exact, rounded = steps
    assert 0 < float((exact - rounded).norm()) < 2e-2 * float(exact.norm())


@pytest.mark.parametrize("block", [(2, 6), (8, 3), (4, 2)])
def test_muon_updates_each_block_of_a_matrix_by_itself(block):
    torch.manual_seed(0)
    whole = nn.Parameter(torch.zeros(8, 6))
    whole.grad = torch.randn(8, 6)
    Muon([{"params": [whole], "block": block}], lr=0.1).step()
    for row in range(0, 8, block[0]):
        for column in range(0, 6, block[1]):
            place = (slice(row, row + block[0]), slice(column, column + block[1]))
            part = nn.Parameter(torch.zeros(block))
            part.grad = whole.grad[place].clone()
            Muon([part], lr=0.1).step()
            torch.testing.assert_close(whole.detach()[place], part.detach(), rtol=0, atol=1e-6)


def test_attention_heads_are_blocks_for_muon():
    config = ModelConfig(d_model=12, n_head=3, n_kv_head=1, d_k=4, d_v=6, d_inner=8, n_enc_layer=1, n_dec_layer=1)
    model = build_model(config, 9, 9)
    muon = Optimizers(model, OptimConfig(name="muon")).parts[0]
    block_of = {id(p): group["block"] for group in muon.param_groups for p in group["params"]}
    attention, ffn = model.decoder.layer_stack[0].enc_attn, model.decoder.layer_stack[0].pos_ffn
    blocks = [block_of[id(getattr(attention, name).weight)] for name in ("w_qs", "w_ks", "w_vs", "fc")]
    assert blocks == [(4, 12), (4, 12), (6, 12), (12, 6)]
    assert block_of[id(ffn.w_1.weight)] is None and block_of[id(ffn.w_2.weight)] is None


def test_auto_rates_are_inverse_to_the_width():
    def rates_of(name="muon", muon_lr="auto", lr="auto", **options):
        model = build_model(ModelConfig(**options), 9, 9)
        parts = Optimizers(model, OptimConfig(name=name, muon_lr=muon_lr, lr=lr)).parts
        return tuple(part.param_groups[0]["lr"] for part in parts)

    layers = {"n_head": 2, "n_enc_layer": 1, "n_dec_layer": 1}
    assert rates_of(d_model=8, **layers) == (1.15 / 8, 1.15 / 8)
    assert rates_of(d_model=32, **layers) == (1.15 / 32, 1.15 / 32)
    assert rates_of(d_model=32, lr=0.5, **layers) == (1.15 / 32, 0.5)
    assert rates_of(d_model=32, muon_lr=0.25, **layers) == (0.25, 1.15 / 32)
    assert rates_of("adamw", d_model=32, **layers) == (0.38 / 32,)
    assert rates_of(architecture="attention", d_model=32, d_emb=8, trg_emb_prj_weight_sharing=True)[0] == 1.15 / 32


@pytest.mark.parametrize("name, n_part", [("adam", 1), ("adamw", 1), ("muon", 2)])
def test_every_parameter_has_exactly_one_optimizer(name, n_part):
    model = Small()
    optimizers = Optimizers(model, OptimConfig(name=name))
    ids = [id(p) for optimizer in optimizers.parts for group in optimizer.param_groups for p in group["params"]]
    assert sorted(ids) == sorted(map(id, model.parameters()))
    assert len(optimizers.parts) == n_part
    if name == "muon":
        in_muon = [p for group in optimizers.parts[0].param_groups for p in group["params"]]
        assert [id(p) for p in in_muon] == [id(model.w.weight)]


def test_non_finite_gradient_or_loss_moves_no_weight():
    model = Small()
    before = [p.detach().clone() for p in model.parameters()]
    optimizers = Optimizers(model, OptimConfig())
    with_gradients(model)
    model.w.bias.grad[0] = float("nan")
    assert not optimizers.apply_update(no_scaler(), loss=torch.tensor(1.0), clip=0.0)[1]
    with_gradients(model)
    assert not optimizers.apply_update(no_scaler(), loss=torch.tensor(float("inf")), clip=0.0)[1]
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_clipping_uses_the_norm_over_all_parameters():
    model, norms = Small(), []
    optimizers = Optimizers(model, OptimConfig())

    def record_norm(*_):
        norms.append(float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm()))

    with_gradients(model)
    record_norm()
    optimizers.parts[0].register_step_pre_hook(record_norm)
    norm, moved = optimizers.apply_update(no_scaler(), loss=torch.tensor(1.0), clip=0.5)
    assert moved and norm == pytest.approx(norms[0], rel=1e-6) and norms[1] == pytest.approx(0.5, rel=1e-4)


def test_optimizer_can_be_added_to_the_table(monkeypatch):
    def sgd(_, factors, config):
        return [torch.optim.SGD(groups_of(factors, config.weight_decay), lr=config.lr)]

    monkeypatch.setitem(OPTIMIZERS, "sgd", sgd)
    model, config = Small(), OptimConfig(lr=0.1, rate_of={"w.bias": 0.5}).model_copy(update={"name": "sgd"})
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizers = Optimizers(model, config)
    optimizers.set_rate(0.5, absolute=False)
    with_gradients(model)
    expected = {
        name: before[name] - (0.025 if name == "w.bias" else 0.05) * p.grad for name, p in model.named_parameters()
    }
    optimizers.apply_update(no_scaler(), loss=torch.tensor(1.0), clip=0.0)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name])


# Our optimizers do without torch's compiler but equal torch's, and training does not import the compiler.


TRAINING = """
import sys
from nmt.cli.train import main
code = main([sys.argv[1]])
print(code, "torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_adam_and_adamw_equal_those_of_torch(name, kind):
    assert kind.add_param_group is torch.optim.Optimizer.add_param_group
    torch.manual_seed(0)
    options = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.3}
    ours, theirs = nn.Linear(5, 4), nn.Linear(5, 4)
    theirs.load_state_dict(ours.state_dict())
    optimizers = Optimizers(ours, OptimConfig(name=name, **options))
    optimizers.set_rate(1.0, absolute=False)
    groups = [{"params": [theirs.weight]}, {"params": [theirs.bias], "weight_decay": 0.0}]
    torch_optimizer = kind(groups, fused=True, **options)
    for update in range(4):
        for our_param, their_param in zip(ours.parameters(), theirs.parameters(), strict=True):
            our_param.grad = torch.randn_like(our_param)
            their_param.grad = our_param.grad.clone()
        for optimizer in (optimizers.parts[0], torch_optimizer):
            vars(optimizer).update(grad_scale=None, found_inf=torch.tensor(float(update == 2)))  # update 2 is skipped
            optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_training_does_not_import_the_compiler(recipe_of, tmp_path):
    """The compiler takes three times as long to import as torch."""
    recipe = recipe_of(
        optim={"name": "muon"},
        batch={"packed": True, "max_tokens": 300},
        model={"n_head": 1, "attn_dropout": 0.0, "lexical_attn": False},
        train={"updates": 4, "save_every": 2, "ema": 0.9},
        valid={"every": 2, "max_sentences": 2},
    )
    write_recipe(recipe, tmp_path / "recipe.yaml")
    command = [sys.executable, "-c", TRAINING, str(tmp_path / "recipe.yaml")]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert result.stdout == "0 False\n", result.stderr
