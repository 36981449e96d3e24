"""The attention that is shown is that of the translation just produced, and what the written-out softmax says."""

import math

import pytest
import torch

from nmt.data.subwords import BOS, EOS, PAD, Subwords
from nmt.decoding.translator import Translator
from nmt.models.build import build_model
from nmt.models.transformer.SubLayers import MultiHeadAttention
from nmt.recipe.data_options import SubwordsConfig
from nmt.recipe.decode_options import DecodeConfig
from nmt.recipe.model_options import ModelConfig

SIZES = {"d_model": 16, "d_inner": 16, "n_head": 4, "n_enc_layer": 2, "n_dec_layer": 3}
KINDS = {
    "MHA": {},
    "GQA": {"n_kv_head": 2, "norm": "pre"},
    "MQA": {"n_kv_head": 1, "attn_bias": True},
    "rotary": {"position": "rotary", "rotary_enc_attn": True},
    "rotary GQA": {"position": "rotary", "n_kv_head": 2, "d_k": 6, "d_v": 5, "norm": "pre", "norm_kind": "rms"},
    "normalised": {"qk_norm": True, "lexical_attn": True, "position": "learned"},
}


@pytest.fixture(scope="module")
def subwords():
    lines = ["the old ship left in May"] * 9
    return Subwords.train(lambda: lines, lambda: lines, SubwordsConfig(vocab_size=280))


def tiny_model(subwords, seed=0, **options):
    torch.manual_seed(seed)
    return build_model(ModelConfig(**{**SIZES, **options}), subwords.src.n_vocab, subwords.trg.n_vocab, PAD).double()


def turned(x, place):
    """A query or key at a place, each two neighbouring numbers turned by an angle of their own (Su et al. 2021)."""
    pairs = torch.view_as_complex(x.reshape(-1, 2))
    angle = place * 10000.0 ** (-torch.arange(len(pairs), dtype=torch.float64) * 2 / len(x))
    # The table of the model is in single precision, whatever its weights.
    turn = torch.complex(angle.cos().float().double(), angle.sin().float().double())
    return torch.view_as_real(pairs * turn).flatten()


def written_out(attention, x, memory, *, rotary, causal):
    """softmax(q · k / sqrt(d_k)) of one sentence, number by number: (H, Q, K)"""
    query = attention.layer_norm(x) if attention.pre_norm else x
    memory = query if memory is None else memory
    d, share = attention.d_k, attention.n_head // attention.n_kv_head
    found = torch.zeros(attention.n_head, len(x), len(memory), dtype=torch.float64)
    for head in range(attention.n_head):
        own, shared = slice(head * d, (head + 1) * d), slice(head // share * d, (head // share + 1) * d)
        for i, row in enumerate(query):
            q = attention.q_norm(attention.w_qs(row)[own])
            q = turned(q, i) if rotary else q
            score = []
            for j, column in enumerate(memory[: i + 1] if causal else memory):
                k = attention.k_norm(attention.w_ks(column)[shared])
                score.append(float(q @ (turned(k, j) if rotary else k)) / math.sqrt(d))
            power = [math.exp(one - max(score)) for one in score]
            found[head, i, : len(power)] = torch.tensor(power, dtype=torch.float64) / math.fsum(power)
    return found


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_the_weights_are_the_written_out_softmax_of_the_translation_just_produced(subwords, name):
    model, options = tiny_model(subwords, **KINDS[name]).eval(), KINDS[name]
    translator = Translator(model, subwords, DecodeConfig(beam=3, max_len_a=0.0, max_len_b=4))
    (found,) = translator.translate(["the old ship"])
    shown = translator.attention(found)
    entered = {}
    for place, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            module.register_forward_pre_hook(lambda _, inputs, place=place: entered.__setitem__(place, inputs))
    model(torch.tensor([[*found.src_ids, EOS]]), torch.tensor([[BOS, *found.hypotheses[0].ids]]))
    rotary = options.get("position") == "rotary"
    for kind, stack, part in (
        ("encoder", "encoder", "slf"),
        ("decoder", "decoder", "slf"),
        ("cross", "decoder", "enc"),
    ):
        weights = getattr(shown, kind)
        assert weights.dtype == torch.float64 and len(weights) == (2 if stack == "encoder" else 3)
        for layer, its in enumerate(weights):
            place = f"{stack}.layer_stack.{layer}.{part}_attn"
            x, memory, *_ = entered[place]
            wanted = written_out(
                model.get_submodule(place),
                x[0],
                None if memory is None else memory[0],
                rotary=rotary and (kind != "cross" or options.get("rotary_enc_attn", False)),
                causal=kind == "decoder",
            )
            torch.testing.assert_close(its, wanted, rtol=0, atol=1e-10)
