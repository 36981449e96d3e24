"""Presets, defaults, and options that contradict each other."""

import pytest
from pydantic import ValidationError

from nmt.recipe.fields import option_named
from nmt.recipe.model_options import PRESETS, ModelConfig
from nmt.recipe.options import Recipe


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_sets_sizes_and_explicit_options_win(preset):
    model = ModelConfig(preset=preset)
    assert {name: getattr(model, name) for name in PRESETS[preset]} == PRESETS[preset]
    assert ModelConfig(preset=preset, d_inner=96).d_inner == 96
    assert ModelConfig(preset=preset, d_inner=96).d_model == model.d_model


def test_defaults_equal_base_and_an_untied_projection_is_not_scaled():
    assert ModelConfig(preset="base").model_dump(exclude={"preset"}) == ModelConfig().model_dump(exclude={"preset"})
    assert ModelConfig(trg_emb_prj_weight_sharing=False).scale_emb_or_prj == "none"
    assert ModelConfig().scale_emb_or_prj == "prj"


def test_one_tag_needs_no_list():
    recipe = Recipe.model_validate(
        {"name": "x", "decode": {"tags": "news"}, "data": {"train": [{**FILES, "tags": "bt"}]}}
    )
    assert (recipe.decode.tags, recipe.data.train[0].tags) == (["news"], ["bt"])


FILES = {"src": "a", "trg": "b"}
LSTM = {"architecture": "attention"}
SENTENCEPIECE = {"kind": "sentencepiece", "vocab_from": "a.model"}
PACKED = {"batch": {"packed": True}, "model": {"attn_dropout": 0.0}}
NO_SCALE = {"scale_emb_or_prj": "none"}


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("data.max_ratio", {"data": {"max_ratio": 0.9}}),
        ("model.emb_src_trg_weight_sharing", {"subwords": {"joint": False}}),
        ("model.scale_emb_or_prj", {"model": {"trg_emb_prj_weight_sharing": False, "scale_emb_or_prj": "emb"}}),
        ("model.prj_transform", {"model": {"trg_emb_prj_weight_sharing": False, "prj_transform": True, **NO_SCALE}}),
        ("model.n_head", {"model": {"n_head": 7}}),
        ("model.n_head", {"model": {"n_head": 7, "d_k": 8}}),
        ("model.n_kv_head", {"model": {"n_kv_head": 3}}),
        ("model.enc_n_kv_head", {"model": {"n_kv_head": 2, "enc_n_kv_head": 3}}),
        ("model.position", {"model": {"position": "rotary", "d_k": 7}}),
        ("model.position", {"model": {"position": "sinusoid", "d_model": 33, "n_head": 3}}),
        ("model.rotary_enc_attn", {"model": {"rotary_enc_attn": True}}),
        ("model.enc_conv", {"model": {"enc_conv": 4}}),
        ("model.enc_conv", {"model": {"enc_conv": 2, "preset": "auto"}}),
        ("data.valid", {"data": {"valid": [FILES, FILES]}}),
        ("data.valid", {"data": {"valid": [FILES, {**FILES, "name": "Valid"}]}}),
        ("batch.per_update", {"batch": {"per_update": 2, "tokens_per_update": 25_000}}),
        ("optim.warmup", {"optim": {"schedule": "linear", "warmup": 11}, "train": {"updates": 10}}),
        ("optim.schedule", {"optim": {"name": "muon", "schedule": "noam"}}),
        ("optim.warmup", {"optim": {"schedule": "wsd", "warmup": 11}, "train": {"updates": 10, "time_budget": "1h"}}),
        ("optim.decay_share", {"optim": {"schedule": "wsd", "warmup": 9}, "train": {"updates": 10}}),
        ("train.average", {"train": {"average": "best", "keep_best": 1}}),
        ("train.average", {"train": {"average": "last", "keep_last": 1}}),
        ("train.cuda_graphs", {"train": {"cuda_graphs": True}}),
        ("train.parallel", {"train": {"parallel": "fsdp", "compile": True}}),
        (
            "train.parallel",
            {"train": {"parallel": "fsdp"}, "model": {"architecture": "attention", "input_feeding": True}},
        ),
        ("train.parallel", {"train": {"parallel": "fsdp", "cuda_graphs": True}, **PACKED}),
        ("batch.packed", {"batch": {"packed": True}}),
        ("batch.packed", {"batch": {"packed": True, "max_tokens": 256}, "model": {"attn_dropout": 0.0}}),
        ("batch.packed", {"batch": {"packed": True}, "model": {"attn_dropout": 0.0, "lexical_attn": True}}),
        ("batch.packed", {"batch": {"packed": True}, "model": {"attn_dropout": 0.0, "d_k": 8}}),
        ("batch.packed", {"batch": {"packed": True}, "model": {"attn_dropout": 0.0, "d_k": 20, "d_v": 20}}),
        ("batch.packed", {"batch": {"packed": True}, "model": {"attn_dropout": 0.0, "d_k": 264, "d_v": 264}}),
        ("batch.bpe_dropout", {"subwords": {"kind": "unigram"}, "batch": {"bpe_dropout": 0.1}}),
        ("batch.bpe_dropout", {"subwords": {"kind": "word"}, "batch": {"bpe_dropout": 0.1}}),
        ("batch.bpe_dropout", {"subwords": SENTENCEPIECE, "batch": {"bpe_dropout": 0.1}}),
        ("batch.unigram_alpha", {"batch": {"unigram_alpha": 0.2}}),
        ("regularize.r_drop", {"regularize": {"r_drop": 5.0, "simcut": 3.0}}),
        ("regularize.r_drop", {"regularize": {"r_drop": 5.0}, "model": {"dropout": 0.0}}),
        ("valid.metric", {"valid": {"translate": False}}),
        ("valid.metric", {"data": {"valid": [{**FILES, "measure": "loss"}, {**FILES, "name": "more"}]}}),
        ("decode.n_best", {"decode": {"beam": 2, "n_best": 3}}),
        ("model.cell", {"model": {"cell": "lstm"}}),
        ("model.n_head", {"model": {"architecture": "attention", "n_head": 8}}),
        ("model.preset", {"model": {"architecture": "seq2seq", "preset": "auto"}}),
        ("model.preset", {"model": {"architecture": "seq2seq", "preset": "tiny"}}),
        ("model.attn_score", {"model": {"architecture": "peeky", "attn_score": "dot"}}),
        ("model.d_model", {"model": {"architecture": "peeky", "d_model": 7, "enc_direction": "both"}}),
        ("model.forget_bias", {"model": {"architecture": "peeky", "cell": "gru", "forget_bias": 1.0}}),
        ("batch.packed", {"model": {**LSTM, "dropout": 0.0}, "batch": {"packed": True, "max_tokens": 512}}),
        ("train.compile", {"model": LSTM, "train": {"compile": True}}),
        ("train.checkpoint_activations", {"model": LSTM, "train": {"checkpoint_activations": True}}),
    ],
)
def test_contradicting_options_are_refused_by_name(name, sections):
    with pytest.raises(ValidationError) as caught:
        Recipe.model_validate({"name": "x", **sections})
    (message,) = str(caught.value.errors()[0]["ctx"]["error"]).split("\n")
    assert message.startswith(f"{name}: ")
    assert option_named(name), "the reader finds the line by it"


@pytest.mark.parametrize(
    "sections",
    [
        {"subwords": {"joint": False}, "model": {"emb_src_trg_weight_sharing": False}},
        {"data": {"max_ratio": 0}},
        {"data": {"max_ratio": 1}},
        {"model": {"n_head": 7, "d_k": 8, "d_v": 8}},
        {"model": {"n_kv_head": 2}},
        {"model": {"position": "rotary"}},
        {"model": {"position": "rotary", "rotary_enc_attn": True}},
        {"model": {"enc_conv": 1}},
        {"optim": {"schedule": "noam", "warmup": 11}, "train": {"updates": 10}},
        {"optim": {"schedule": "wsd", "warmup": 8}, "train": {"updates": 10}},
        {"optim": {"schedule": "wsd", "warmup": 9}, "train": {"updates": 10, "time_budget": "1h"}},
        {"train": {"average": "none", "keep_last": 1}},
        {"batch": {"packed": True, "max_tokens": 257}, "model": {"attn_dropout": 0.0}},
        {"regularize": {"r_drop": 5.0}, "model": {"dropout": 0.0, "act_dropout": 0.1}},
        {"valid": {"translate": False, "metric": "loss"}},
        {"valid": {"translate": False}, "data": {"valid": {**FILES, "measure": "translate"}}},
        {"data": {"valid": [FILES, {**FILES, "name": "more", "measure": "loss"}]}},
        {"model": {**LSTM, "enc_direction": "both", "d_model": 7 * 2, "d_emb": 3}},
        {"model": {"architecture": "seq2seq", "trg_emb_prj_weight_sharing": False, "d_model": 33}},
    ],
)
def test_unusual_but_consistent_options_are_allowed(sections):
    Recipe.model_validate({"name": "x", **sections})
