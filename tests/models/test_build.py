"""Model options of the recipe: sharing, scales, biases and dropout; training and autocast with torch."""

import pytest
import torch
import torch.nn.functional as F
from promises import check_autocast_to_bf16, check_training

from nmt.errors import RecipeError
from nmt.models.build import build_model
from nmt.models.layers import Dropout
from nmt.ops import rotate
from nmt.recipe.model_options import ModelConfig

MODERN = {"norm": "pre", "norm_kind": "rms", "ffn": "swiglu", "position": "rotary", "n_kv_head": 2, "qk_norm": True}


def test_shared_embedding_of_unequal_vocabularies_is_refused(make):
    with pytest.raises(RecipeError, match=r"model\.emb_src_trg_weight_sharing"):
        make(n_src_vocab=32)
    assert make(n_src_vocab=32, emb_src_trg_weight_sharing=False).encoder.src_word_emb.num_embeddings == 32


@pytest.mark.parametrize("src_trg", [True, False])
@pytest.mark.parametrize("trg_prj", [True, False])
def test_tied_matrices_are_shared_and_their_gradients_add_up(make, batch, src_trg, trg_prj):
    options = {"emb_src_trg_weight_sharing": src_trg, "trg_emb_prj_weight_sharing": trg_prj, "scale_emb_or_prj": "none"}
    model, untied = make(**options), make(emb_src_trg_weight_sharing=False, trg_emb_prj_weight_sharing=False)
    untied.load_state_dict(model.state_dict())
    for m in (model, untied):
        m(*batch).square().sum().backward()

    def matrices(m):
        return m.encoder.src_word_emb.weight, m.decoder.trg_word_emb.weight, m.trg_word_prj.weight

    src, trg, prj = matrices(model)
    assert (src is trg) == src_trg
    assert (prj is trg) == trg_prj
    assert len({id(x) for x in matrices(untied)}) == 3
    tied = [(src, {0}), (trg, {1}), (prj, {2})]
    for matrix, members in tied:
        members |= {i for i, candidate in enumerate(matrices(model)) if candidate is matrix}
        expected = sum(matrices(untied)[i].grad for i in members)
        assert torch.allclose(matrix.grad, expected, rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_transform_before_the_projection_avoids_repetition_of_the_input_word(make, batch):
    options = {"norm": "pre", "scale_emb_or_prj": "emb", "position": "rotary", "emb_init": "normal", "d_model": 64}
    options |= {"n_enc_layer": 2, "n_dec_layer": 2, "d_inner": 64}
    repeated = {}
    for transform in (False, True):
        torch.manual_seed(5)
        model = build_model(ModelConfig(**options, prj_transform=transform), 24, 24).double().eval()  # as initialised
        logits = model(*batch)[batch[1] != 0]
        repeated[transform] = (logits.argmax(-1) == batch[1][batch[1] != 0]).double().mean()
        matrix = model.prj_transform(torch.eye(64).double())
        assert torch.allclose(matrix @ matrix.T, torch.eye(64).double(), atol=1e-5)
    assert repeated[False] > 0.8
    assert repeated[True] < 0.3
    assert "prj_transform.weight" not in make().state_dict()


@torch.no_grad()
@pytest.mark.parametrize("scale", ["emb", "prj", "none"])
def test_lexical_attention_initially_adds_the_attended_word(scale):
    options = {"d_model": 16, "n_head": 2, "d_inner": 16, "n_enc_layer": 1, "n_dec_layer": 1, "scale_emb_or_prj": scale}
    torch.manual_seed(5)
    model = build_model(ModelConfig(**options, lexical_attn=True), 24, 24).double().eval()
    plain = build_model(ModelConfig(**options), 24, 24).double().eval()
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing
    assert sorted(unexpected) == [f"lexical_attn.{name}.weight" for name in ("fc", "w_ks", "w_qs")]
    src_seq, trg_seq = torch.tensor([[7, 0, 0], [9, 9, 0]]), torch.tensor([[2, 5, 6, 8], [2, 4, 3, 3]])
    added = model.decode_hidden(src_seq, trg_seq) - plain.decode_hidden(src_seq, trg_seq)
    words = model.encoder.src_word_emb.weight[src_seq[:, :1]] * (4.0 if scale == "emb" else 1.0)
    assert torch.allclose(added, words.expand(-1, 4, -1))


@torch.no_grad()
def test_lexical_attention_follows_its_formula(make):
    model = make(lexical_attn=True, position="rotary", rotary_enc_attn=True, scale_emb_or_prj="emb", norm="pre")
    src_seq, trg_seq = torch.tensor([[7, 9, 11, 13, 4]]), torch.tensor([[2, 5, 6, 8]])
    src_mask, trg_mask, _ = model._masks(src_seq, trg_seq)
    enc_output = model.encoder(src_seq, src_mask)[0]
    x = model.decoder(trg_seq, trg_mask, enc_output, src_mask)[0]
    lexical, rotation = model.lexical_attn, model.decoder.position_enc
    q = rotate(lexical.w_qs(x), rotation(0, 4))
    k = rotate(lexical.w_ks(enc_output), rotation(0, 5))
    weights = torch.softmax(q @ k.mT / 2, dim=-1)  # square root of d_k = 4
    expected = lexical.fc(weights @ model.encoder.src_word_emb(src_seq) * 4) + x
    assert (model.decode_hidden(src_seq, trg_seq) - expected).abs().max() < 1e-12


def test_bias_options_select_the_layers_with_biases(make):
    biased = {
        n for n, _ in make(attn_bias=True, ffn_bias=False).named_parameters() if n.endswith("bias") and "norm" not in n
    }
    assert {n.split(".")[-2] for n in biased} == {"w_qs", "w_ks", "w_vs", "fc"}
    biased = {n for n, _ in make(ffn="swiglu").named_parameters() if n.endswith("bias") and "norm" not in n}
    assert {n.split(".")[-2] for n in biased} == {"w_1", "w_2", "w_3"}


def test_feed_forward_kinds_follow_their_formulas(make):
    x = torch.randn(2, 3, 16).double()
    for kind in ("relu", "gelu", "swiglu", "relu2"):
        ffn = make(ffn=kind).encoder.layer_stack[0].pos_ffn
        inner = ffn.w_1(x)
        hidden = {
            "relu": lambda h: h.clamp(min=0),
            "gelu": lambda h: h * 0.5 * (1 + torch.erf(h / 2**0.5)),
            "relu2": lambda h: h.clamp(min=0) ** 2,
            "swiglu": lambda h, ffn=ffn: h * h.sigmoid() * ffn.w_3(x),
        }[kind](inner)
        expected = F.layer_norm(ffn.w_2(hidden) + x, (16,), ffn.layer_norm.weight, ffn.layer_norm.bias, 1e-6)
        assert (ffn(x) - expected).abs().max() < 1e-12


def test_each_dropout_has_its_own_rate(make):
    model = make(dropout=0.11, emb_dropout=0.22, attn_dropout=0.33, act_dropout=0.44)
    rates = {name.split("layer_stack.0.")[-1]: m.p for name, m in model.named_modules() if isinstance(m, Dropout)}
    assert rates["encoder.dropout"] == rates["decoder.dropout"] == 0.22
    assert rates["enc_attn.attention.dropout"] == rates["slf_attn.attention.dropout"] == 0.33
    assert rates["pos_ffn.act_dropout"] == 0.44
    assert rates["pos_ffn.dropout"] == rates["slf_attn.dropout"] == rates["enc_attn.dropout"] == 0.11
    default = make(dropout=0.11)
    assert default.encoder.dropout.p == default.encoder.layer_stack[0].slf_attn.attention.dropout.p == 0.11


@pytest.mark.parametrize("options", [{}, MODERN])
def test_training_depends_only_on_the_seed_and_uses_every_parameter(make, batch, options):
    check_training(make(act_dropout=0.1, **options), batch)


@pytest.mark.parametrize("options", [{}, MODERN])
def test_autocast_to_bf16_trains_and_decodes(make, batch, options):
    check_autocast_to_bf16(make(**options).float(), batch)
