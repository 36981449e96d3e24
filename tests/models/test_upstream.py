"""With default options the model equals the upstream one: same names, shapes and logits."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.models.build import build_model
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.training_options import OptimConfig, RegularizeConfig
from nmt.training.budget import learning_rate_factor
from nmt.training.engine import Objective

N_VOCAB, D, D_INNER, N_LAYER, N_HEAD, D_K, D_V, N_POSITION = 13, 12, 20, 2, 3, 5, 6, 9
SRC = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0], [11, 0, 0, 0, 0]])
TRG = torch.tensor([[1, 5, 6, 7], [1, 9, 0, 0], [1, 12, 3, 0]])
SIZES = {"d_model": D, "d_inner": D_INNER, "n_enc_layer": N_LAYER, "n_dec_layer": N_LAYER, "n_head": N_HEAD}


def upstream_shapes(n_vocab: int, d: int, d_inner: int, n_layer: int, qk: int, v: int, n_position: int) -> dict:
    """The state dict's names and shapes as the upstream implementation saves them."""
    attention = {"w_qs.weight": (qk, d), "w_ks.weight": (qk, d), "w_vs.weight": (v, d), "fc.weight": (d, v)}
    feed_forward = {"w_1.weight": (d_inner, d), "w_1.bias": (d_inner,), "w_2.weight": (d, d_inner), "w_2.bias": (d,)}
    norm = {"layer_norm.weight": (d,), "layer_norm.bias": (d,)}
    shapes: dict[str, tuple[int, ...]] = {"trg_word_prj.weight": (n_vocab, d)}
    for stack, embedding, attentions in (
        ("encoder", "src_word_emb", ["slf_attn"]),
        ("decoder", "trg_word_emb", ["slf_attn", "enc_attn"]),
    ):
        shapes |= {f"{stack}.{embedding}.weight": (n_vocab, d), f"{stack}.position_enc.pos_table": (1, n_position, d)}
        shapes |= {f"{stack}.{name}": shape for name, shape in norm.items()}
        for n in range(n_layer):
            for part, kind in [*((name, attention) for name in attentions), ("pos_ffn", feed_forward)]:
                shapes |= {f"{stack}.layer_stack.{n}.{part}.{k}": shape for k, shape in (kind | norm).items()}
    return shapes


def random_state() -> dict[str, Tensor]:
    shapes = upstream_shapes(N_VOCAB, D, D_INNER, N_LAYER, N_HEAD * D_K, N_HEAD * D_V, N_POSITION)
    generator = torch.Generator().manual_seed(5)
    state = {name: torch.randn(shape, generator=generator) * 0.4 for name, shape in shapes.items()}
    for name in state:
        if name.endswith("pos_table"):
            state[name] = torch.tensor([[upstream_position(p) for p in range(N_POSITION)]])
    return state


def upstream_position(p: int) -> list[float]:
    angles = [p / 10000 ** (2 * (j // 2) / D) for j in range(D)]
    return [math.cos(a) if j % 2 else math.sin(a) for j, a in enumerate(angles)]


def upstream_logits(
    state: dict[str, Tensor], src: Tensor, trg: Tensor, emb: float, prj: float, pre_norm: bool = False
) -> Tensor:
    """The upstream forward pass in evaluation mode, written out over a state dict. pre_norm: in the pre-norm layout."""

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    def with_residual(x: Tensor, name: str, sub_layer: Callable[[Tensor], Tensor]) -> Tensor:
        return (
            x + sub_layer(norm(x, f"{name}.layer_norm")) if pre_norm else norm(x + sub_layer(x), f"{name}.layer_norm")
        )

    def attend(x: Tensor, memory: Tensor | None, allowed: Tensor, name: str) -> Tensor:
        def heads(y: Tensor, w: str) -> Tensor:
            return torch.einsum("bld,hkd->bhlk", y, state[f"{name}.{w}.weight"].view(N_HEAD, -1, D))

        def sub_layer(x: Tensor) -> Tensor:
            keys, values = (heads(x if memory is None else memory, w) for w in ("w_ks", "w_vs"))
            score = torch.einsum("bhtk,bhsk->bhts", heads(x, "w_qs"), keys) / D_K**0.5
            weight = torch.where(allowed.unsqueeze(1), score, torch.tensor(-1e9)).softmax(-1)
            return torch.einsum("bhts,bhsv->bthv", weight, values).flatten(2) @ state[f"{name}.fc.weight"].T

        return with_residual(x, name, sub_layer)

    def feed_forward(x: Tensor, name: str) -> Tensor:
        w_1, b_1, w_2, b_2 = (state[f"{name}.{key}"] for key in ("w_1.weight", "w_1.bias", "w_2.weight", "w_2.bias"))
        return with_residual(x, name, lambda x: (x @ w_1.T + b_1).clamp(min=0) @ w_2.T + b_2)

    def embed(seq: Tensor, stack: str, table: str) -> Tensor:
        words = state[f"{stack}.{table}.weight"][seq] * emb + state[f"{stack}.position_enc.pos_table"][:, : seq.size(1)]
        return words if pre_norm else norm(words, f"{stack}.layer_norm")

    src_mask = (src != 0).unsqueeze(1)
    trg_mask = (trg != 0).unsqueeze(1) & torch.ones(trg.size(1), trg.size(1)).tril().bool()
    memory, x = embed(src, "encoder", "src_word_emb"), embed(trg, "decoder", "trg_word_emb")
    for n in range(N_LAYER):
        layer = f"encoder.layer_stack.{n}"
        memory = feed_forward(attend(memory, None, src_mask, f"{layer}.slf_attn"), f"{layer}.pos_ffn")
    memory = norm(memory, "encoder.layer_norm") if pre_norm else memory
    for n in range(N_LAYER):
        layer = f"decoder.layer_stack.{n}"
        x = attend(x, None, trg_mask, f"{layer}.slf_attn")
        x = feed_forward(attend(x, memory, src_mask, f"{layer}.enc_attn"), f"{layer}.pos_ffn")
    return (norm(x, "decoder.layer_norm") if pre_norm else x) @ state["trg_word_prj.weight"].T * prj


def test_default_model_has_the_names_and_shapes_of_upstream():
    with torch.device("meta"):
        model = build_model(ModelConfig(), 1000, 1000)
    found = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert found == upstream_shapes(1000, 512, 2048, 6, 512, 512, 200)


@pytest.mark.parametrize("scale", ["emb", "prj", "none"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_upstream_state_dict_loads_and_gives_upstream_logits(scale, shared, norm):
    sharing = {"trg_emb_prj_weight_sharing": shared, "emb_src_trg_weight_sharing": shared}
    options = {"d_k": D_K, "d_v": D_V, "n_position": N_POSITION, "scale_emb_or_prj": scale, "norm": norm}
    model = build_model(ModelConfig(**SIZES, **options, **sharing), N_VOCAB, N_VOCAB).eval()
    state = random_state()
    if shared:
        state["encoder.src_word_emb.weight"] = state["decoder.trg_word_emb.weight"] = state["trg_word_prj.weight"]
    model.load_state_dict(state, strict=True)
    # Section 3.4 is about a shared matrix: without one nothing is scaled.
    emb = D**0.5 if shared and scale == "emb" else 1.0
    prj = D**-0.5 if shared and scale == "prj" else 1.0
    expected = upstream_logits(state, SRC, TRG, emb, prj, norm == "pre")
    assert torch.allclose(model(SRC, TRG), expected, rtol=0, atol=1e-5)


def test_scaled_logits_equal_scaled_embeddings_that_are_smaller(make, batch):
    scaled_logits, scaled_embeddings = make(scale_emb_or_prj="prj"), make(scale_emb_or_prj="emb")
    scaled_embeddings.load_state_dict(scaled_logits.state_dict())
    with torch.no_grad():
        scaled_embeddings.trg_word_prj.weight.div_(scaled_embeddings.encoder.layer_norm.weight.numel() ** 0.5)
        assert torch.allclose(scaled_embeddings(*batch), scaled_logits(*batch), rtol=0, atol=1e-12)


def test_every_matrix_starts_xavier_uniform():
    torch.manual_seed(0)
    model = build_model(ModelConfig(**(SIZES | {"d_model": 48, "d_inner": 64})), 64, 64)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            bound = (6 / sum(parameter.shape)) ** 0.5
            assert 0.9 * bound < parameter.abs().max() <= bound, name
            assert abs(parameter.std().item() / (bound / 3**0.5) - 1) < 0.1, name


def test_position_tables_follow_the_formula_of_the_paper(make):
    table = make(d_model=D, n_head=3, n_position=50).encoder.position_enc.pos_table
    expected = torch.tensor([upstream_position(p) for p in range(50)], dtype=torch.float64)
    assert table.shape == (1, 50, D)
    assert torch.equal(table[0].float(), expected.float())


@pytest.mark.parametrize("shared", [True, False])
def test_scaled_normal_embeddings_are_as_large_as_positions(shared):
    torch.manual_seed(0)
    model = build_model(
        ModelConfig(**(SIZES | {"d_model": 64, "emb_src_trg_weight_sharing": shared, "emb_init": "normal"})), 80, 80
    )
    for embedding in (model.encoder.src_word_emb, model.decoder.trg_word_emb):
        assert embedding.weight.std().item() * 64**0.5 == pytest.approx(1.0, rel=0.05)
    assert model.trg_word_prj.weight is model.decoder.trg_word_emb.weight
    queries = model.encoder.layer_stack[0].slf_attn.w_qs.weight
    assert queries.abs().max() <= (6 / sum(queries.shape)) ** 0.5


GOLD = torch.tensor([[5, 6, 7, 2], [9, 2, 0, 0], [12, 3, 2, 0]])


def our_loss(model, smoothing: float) -> Tensor:
    loss, _ = Objective(model, smoothing, RegularizeConfig())(SRC, TRG, GOLD, None, n_gold=9)
    return loss


def test_updates_without_smoothing_equal_those_of_upstream():
    """In fp64 and without dropout: Adam, noam, and the loss summed over tokens, as in upstream."""
    options = {"d_k": D_K, "d_v": D_V, "n_position": N_POSITION, "dropout": 0.0, "scale_emb_or_prj": "none"}
    sharing = {"trg_emb_prj_weight_sharing": False, "emb_src_trg_weight_sharing": False}
    model = build_model(ModelConfig(**SIZES, **options, **sharing), N_VOCAB, N_VOCAB).double().train()
    state = {name: tensor.double() for name, tensor in random_state().items()}
    model.load_state_dict(state, strict=True)
    state = {name: tensor.clone().requires_grad_("pos_table" not in name) for name, tensor in state.items()}
    optim = OptimConfig(schedule="noam", warmup=4, lr_mul=0.5)
    ours = torch.optim.Adam(model.parameters(), lr=0.0, betas=optim.betas, eps=optim.eps)
    theirs = torch.optim.Adam([t for t in state.values() if t.requires_grad], lr=0.0, betas=(0.9, 0.98), eps=1e-9)
    first = 0.0
    for update in range(1, 31):
        rates = (
            learning_rate_factor(update, optim, share=0.0, d_model=D),
            0.5 * D**-0.5 * min(update**-0.5, update * 4**-1.5),
        )
        assert rates[0] == pytest.approx(rates[1], rel=1e-14)
        logits = upstream_logits(state, SRC, TRG, 1.0, 1.0)
        their_loss = F.cross_entropy(logits.flatten(0, 1), GOLD.flatten(), ignore_index=0, reduction="sum")
        loss, first = our_loss(model, 0.0), their_loss.item() if update == 1 else first
        assert loss.item() == pytest.approx(their_loss.item(), rel=1e-11)
        for optimizer, rate, objective in ((ours, rates[0], loss), (theirs, rates[1], their_loss)):
            optimizer.zero_grad()
            objective.backward()
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
    assert update == 30 and their_loss.item() < first  # it learns
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, state[name], rtol=0, atol=1e-9)


def test_smoothed_loss_differs_from_upstream_by_the_mass_of_padding():
    """Upstream smooths over all wrong classes, padding included; here gold gets the share of padding."""
    torch.manual_seed(1)
    model = build_model(ModelConfig(**SIZES, dropout=0.0), N_VOCAB, N_VOCAB).double().eval()
    log_p = model(SRC, TRG).log_softmax(-1)[GOLD != 0]
    gold, share = GOLD[GOLD != 0].unsqueeze(1), 0.1 / (N_VOCAB - 1)
    target = torch.full_like(log_p, share).scatter_(1, gold, 0.9)
    upstream = -(target * log_p).sum()
    difference = share * (log_p[:, 0] - log_p.gather(1, gold).squeeze(1)).sum()
    assert our_loss(model, 0.1).item() == pytest.approx((upstream + difference).item(), rel=1e-10)
