"""Decoding token by token equals the forward pass, for all options and under any reordering by search."""

import pytest
import torch
from promises import check_search_steps, option_combinations

from nmt.models import base

OPTIONS = {
    "norm": ["post", "pre"],
    "norm_kind": ["layer", "rms"],
    "ffn": ["relu", "gelu", "swiglu", "relu2"],
    "position": ["sinusoid", "learned", "rotary", "rotary over the source too"],
    "n_kv_head": [None, 1, 2],
    "enc_n_kv_head": [None, 1],
    "qk_norm": [False, True],
    "enc_conv": [0, 3],
    "attn_bias": [False, True],
    "ffn_bias": [True, False],
    "trg_emb_prj_weight_sharing": [True, False],
    "emb_src_trg_weight_sharing": [True, False],
    "scale_emb_or_prj": ["prj", "emb", "none"],
    "prj_transform": [False, True],
    "lexical_attn": [False, True],
    "d_k": [None, 6],
    "d_v": [None, 5],
    "n_position": [8, 3],
    "n_dec_layer": [2, 1],
}


COMBINATIONS = option_combinations(OPTIONS, 48)


def options_of(combination: dict) -> dict:
    """The options of the model: one kind of position needs a second option."""
    is_rotary_in_both = combination["position"] == "rotary over the source too"
    return {**combination, "position": "rotary", "rotary_enc_attn": True} if is_rotary_in_both else combination


@torch.no_grad()
@pytest.mark.parametrize("n", range(len(COMBINATIONS)))
def test_stepwise_logits_equal_teacher_forcing_under_beam_reordering(make, batch, n, monkeypatch):
    monkeypatch.setattr(base, "_N_READ", (4, 3, 1)[n % 3])  # sentences at once: all, some, or each by itself
    model = make(**options_of(COMBINATIONS[n]))
    src_seq, _ = batch
    torch.manual_seed(n)
    nothing_read = torch.empty(4 * 3, 0, dtype=torch.long)
    check_search_steps(model, src_seq, model.start(src_seq), nothing_read, 3, (3, 2, 4, 1, 2, 3))


@torch.no_grad()
def test_source_states_are_stored_once_for_all_hypotheses(make, batch):
    model = make(n_kv_head=2)
    state = model.start(batch[0])
    stored = {name: tensor.data_ptr() for name, tensor in state.per_sentence.items()}
    model.step(torch.full((4,), 7), state)
    state.reorder(torch.arange(4).repeat_interleave(5))
    written = state.kv_cache["slf_v.1"].data_ptr()
    model.step(torch.full((4 * 5,), 7), state)
    state.reorder(torch.arange(20).flip(0).view(4, 5).flip(0).flatten())
    assert {name: tensor.data_ptr() for name, tensor in state.per_sentence.items()} == stored
    assert state.per_sentence["enc_k.0"].shape == (4, 2, 7, 4)
    # Keys and values of target tokens stay in place: one slot a sentence, then five.
    assert state.kv_cache["slf_v.1"].data_ptr() == written and state.ancestry.shape == (20, 6)
    assert state.n_step == 2


@torch.no_grad()
@pytest.mark.parametrize(
    ("position", "rotary_enc_attn"), [("sinusoid", False), ("learned", False), ("rotary", False), ("rotary", True)]
)
def test_sentences_may_be_longer_than_the_position_table(make, position, rotary_enc_attn):
    model, large_model = (
        make(position=position, rotary_enc_attn=rotary_enc_attn, n_position=n_position) for n_position in (4, 64)
    )
    if position != "learned":
        names = [name for name, _ in model.named_parameters()]
        assert names == [name for name, _ in large_model.named_parameters()]
        large_model.load_state_dict(dict(model.named_parameters()), strict=False)
    src_seq, trg_seq = torch.randint(3, 24, (2, 50)), torch.randint(3, 24, (2, 30))
    saved = {name: tensor.shape for name, tensor in model.state_dict().items()}
    logits = model(src_seq, trg_seq)
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == saved
    if position != "learned":
        assert torch.equal(logits, large_model(src_seq, trg_seq))
    state = model.start(src_seq)
    for t in range(30):
        assert (model.step(trg_seq[:, t], state) - logits[:, t]).abs().max() < 1e-10


@pytest.mark.parametrize("position", ["sinusoid", "rotary"])
def test_position_table_grown_in_translation_serves_training(make, position):
    model = make(position=position, n_position=2)
    seq = torch.randint(3, 24, (2, 9))
    with torch.inference_mode():
        expected = model(seq, seq)
    logits = model(seq, seq)
    logits.sum().backward()
    assert torch.equal(logits, expected)


@torch.no_grad()
@pytest.mark.parametrize("position", ["sinusoid", "learned", "rotary"])
def test_half_precision_gives_nearly_the_same_logits(make, batch, position):
    model = make(position=position, rotary_enc_attn=position == "rotary", lexical_attn=True)
    expected = model(*batch)[:, 0].log_softmax(-1)
    model = model.to(torch.bfloat16)
    found = model.step(batch[1][:, 0], model.start(batch[0]))
    assert found.dtype == torch.bfloat16
    assert (found.double().log_softmax(-1) - expected).abs().max() < 0.1
