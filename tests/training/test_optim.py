"""Optimizers: which parameter goes where, the order of an update, and Muon's arithmetic."""

import pytest
import torch
from torch import nn

from nmt.models.build import build_model
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.training_options import OptimConfig
from nmt.training.muon import Muon, _iterate, orthogonalise
from nmt.training.optim import apply_update, build_optimizers


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


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 9), (2, 16, 4)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape):
    torch.manual_seed(0)
    x = torch.randn(shape)
    values = torch.linalg.svdvals(orthogonalise(x))
    assert values.min() > 0.3 and values.max() < 1.25
    # and the same singular vectors: the product with the original is nearly symmetric
    product = orthogonalise(x).mT @ x
    torch.testing.assert_close(product, product.mT, rtol=0, atol=2e-3 * float(product.abs().max()))


@pytest.mark.parametrize("shape", [(2, 8, 8), (2, 8, 16), (2, 8, 64), (2, 64, 8)])
def test_the_iteration_on_the_gram_matrix_is_the_plain_one(shape):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    plain = x if x.size(1) <= x.size(2) else x.mT
    plain = _iterate(plain)
    plain = plain if x.size(1) <= x.size(2) else plain.mT
    torch.testing.assert_close(orthogonalise(x), plain, rtol=0, atol=1e-10)


def test_muon_moves_a_matrix_by_its_rate_whatever_the_size_of_the_gradient():
    for scale in (1e-6, 1e3):
        weight = nn.Parameter(torch.zeros(8, 8))
        torch.manual_seed(0)
        weight.grad = scale * torch.randn(8, 8)
        Muon([weight], lr=0.01).step()
        assert float(weight.detach().norm()) == pytest.approx(0.01 * 0.2 * 8**0.5 * 8**0.5, rel=0.35)


@pytest.mark.parametrize(("exact", "tolerance"), [(True, 2e-5), (False, 2e-2)])
def test_muon_without_blocks_is_that_of_torch(monkeypatch, exact, tolerance):
    """Exactly, if torch is kept from iterating in bf16; and to what bf16 can tell apart if it is not.

    tolerance: of the length of the way that ten updates went.
    """
    if exact:
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    for shape in ((8, 8), (6, 24), (24, 6)):
        torch.manual_seed(0)
        start = torch.randn(shape)
        mine, other = nn.Parameter(start.clone()), nn.Parameter(start.clone())
        options = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
        muon, torchs = Muon([mine], **options), torch.optim.Muon([other], adjust_lr_fn="match_rms_adamw", **options)
        for _ in range(10):
            mine.grad = torch.randn(shape)
            other.grad = mine.grad.clone()
            muon.step()
            torchs.step()
        way = float((mine.detach() - start).norm())
        assert way > 0.1 and float((mine - other).detach().norm()) < tolerance * way


def test_muon_decays_decoupled():
    weight = nn.Parameter(torch.eye(4))
    weight.grad = torch.zeros(4, 4)
    Muon([weight], lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(weight.detach(), torch.eye(4) * 0.95)


@pytest.mark.parametrize("block", [(2, 6), (8, 3), (4, 2)])
def test_muon_turns_each_block_of_a_matrix_by_itself(block):
    torch.manual_seed(0)
    whole = nn.Parameter(torch.zeros(8, 6))
    whole.grad = torch.randn(8, 6)
    Muon([{"params": [whole], "block": block}], lr=0.1).step()
    for row in range(0, 8, block[0]):
        for column in range(0, 6, block[1]):
            here = (slice(row, row + block[0]), slice(column, column + block[1]))
            part = nn.Parameter(torch.zeros(block))
            part.grad = whole.grad[here].clone()
            Muon([part], lr=0.1).step()
            torch.testing.assert_close(whole.detach()[here], part.detach(), rtol=0, atol=1e-6)


def test_muon_moves_parameters_of_several_groups_and_shapes_as_it_moves_each_alone():
    torch.manual_seed(4)
    kinds = [([(8, 4)], (4, 4), 0.1), ([(4, 4), (4, 4), (6, 3)], None, 0.2), ([(4, 8)], (4, 4), 0.3)]
    groups, alone, pairs = [], [], []
    for shapes, block, lr in kinds:
        options = {"block": block, "lr": lr, "weight_decay": lr}
        ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
        others = [nn.Parameter(weight.detach().clone()) for weight in ours]
        groups.append({"params": ours, **options})
        alone += [Muon([{"params": [one], **options}]) for one in others]
        pairs += zip(ours, others, strict=True)
    together = Muon(groups)
    for _ in range(3):
        for one, other in pairs:
            one.grad = torch.randn(one.shape)
            other.grad = one.grad.clone()
        for muon in (together, *alone):
            muon.step()
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_muon_forgets_gradients_at_the_rate_of_the_recipe(momentum):
    model = build_model(ModelConfig(d_model=8, n_head=2, d_inner=8, n_enc_layer=1, n_dec_layer=1), 9, 9)
    config = OptimConfig(name="muon", muon_momentum=momentum)
    muon, _ = build_optimizers(model, config).parts[0]
    weight = muon.param_groups[0]["params"][0]
    for scale in (1.0, 0.0, 0.0):
        weight.grad = torch.full_like(weight, scale)
        muon.step()
    expected = torch.full_like(weight, (1 - momentum) * momentum**2)
    torch.testing.assert_close(muon.state[weight]["momentum"], expected)


def test_the_heads_of_attention_are_blocks_for_muon():
    config = ModelConfig(d_model=12, n_head=3, n_kv_head=1, d_k=4, d_v=6, d_inner=8, n_enc_layer=1, n_dec_layer=1)
    model = build_model(config, 9, 9)
    muon, _ = build_optimizers(model, OptimConfig(name="muon")).parts[0]
    block_of = {id(p): group["block"] for group in muon.param_groups for p in group["params"]}
    attention, ffn = model.decoder.layer_stack[0].enc_attn, model.decoder.layer_stack[0].pos_ffn
    found = [block_of[id(getattr(attention, name).weight)] for name in ("w_qs", "w_ks", "w_vs", "fc")]
    assert found == [(4, 12), (4, 12), (6, 12), (12, 6)]
    assert block_of[id(ffn.w_1.weight)] is None and block_of[id(ffn.w_2.weight)] is None


@pytest.mark.parametrize("name, n_part", [("adam", 1), ("adamw", 1), ("muon", 2), ("schedulefree", 1)])
def test_every_parameter_has_exactly_one_optimizer(name, n_part):
    model = Small()
    optimizers = build_optimizers(model, OptimConfig(name=name))
    mine = [id(p) for optimizer, _ in optimizers.parts for group in optimizer.param_groups for p in group["params"]]
    assert sorted(mine) == sorted(map(id, model.parameters()))
    assert len(optimizers.parts) == n_part
    if name == "muon":
        in_muon = [p for group in optimizers.parts[0][0].param_groups for p in group["params"]]
        assert [id(p) for p in in_muon] == [id(model.w.weight)]


def test_biases_and_gains_do_not_decay():
    optimizer = build_optimizers(Small(), OptimConfig(name="adamw", weight_decay=0.3)).parts[0][0]
    assert {g["weight_decay"]: min(p.dim() for p in g["params"]) for g in optimizer.param_groups} == {0.3: 2, 0.0: 1}


@pytest.mark.parametrize("name", ["adam", "adamw", "muon", "schedulefree"])
def test_state_comes_back_bit_for_bit(name):
    config = OptimConfig(name=name)

    def run(model, optimizers, updates):
        for u in updates:
            with_gradients(model, u)
            apply_update(model, optimizers, no_scaler(), loss=torch.tensor(1.0), clip=1.0)

    torch.manual_seed(3)
    model = Small()
    optimizers = build_optimizers(model, config)
    run(model, optimizers, range(3))
    other = Small()
    other.load_state_dict(model.state_dict())
    restored = build_optimizers(other, config)
    saved = {key: value.clone() for key, value in optimizers.state(model).items()}
    restored.load_state(other, saved)
    run(model, optimizers, range(3, 6))
    run(other, restored, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_gradient_or_loss_that_is_not_finite_moves_nothing():
    model = Small()
    before = [p.detach().clone() for p in model.parameters()]
    optimizers = build_optimizers(model, OptimConfig())
    with_gradients(model)
    model.w.bias.grad[0] = float("nan")
    assert not apply_update(model, optimizers, no_scaler(), loss=torch.tensor(1.0), clip=0.0)[1]
    with_gradients(model)
    assert not apply_update(model, optimizers, no_scaler(), loss=torch.tensor(float("inf")), clip=0.0)[1]
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_clipping_is_by_the_norm_over_all_parameters():
    model = Small()
    optimizers = build_optimizers(model, OptimConfig())
    with_gradients(model)
    wanted = float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm())
    seen = {}
    optimizers.parts[0][0].register_step_pre_hook(
        lambda *_: seen.update(norm=float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm()))
    )
    norm, moved = apply_update(model, optimizers, no_scaler(), loss=torch.tensor(1.0), clip=0.5)
    assert moved and norm == pytest.approx(wanted, rel=1e-6) and seen["norm"] == pytest.approx(0.5, rel=1e-4)


def test_the_scaler_unscales_before_clipping():
    model = Small()
    optimizers = build_optimizers(model, OptimConfig())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with_gradients(model)
    wanted = float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm())
    scaler.scale(torch.ones(()))  # the first use makes the scale
    for p in model.parameters():
        p.grad *= 1024.0
    norm, _ = apply_update(model, optimizers, scaler, loss=torch.tensor(1.0), clip=1.0)
    assert norm == pytest.approx(wanted, rel=1e-5)


def test_the_scale_comes_down_after_an_infinite_gradient():
    model = Small()
    optimizers = build_optimizers(model, OptimConfig())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(()))
    with_gradients(model)
    model.w.bias.grad[0] = float("inf")
    assert not apply_update(model, optimizers, scaler, loss=torch.tensor(1.0), clip=1.0)[1]
    assert scaler.get_scale() == 512.0
