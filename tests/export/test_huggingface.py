"""Export to Hugging Face: same translations and same token ids in their library."""

import random
from functools import partial

import pytest
import torch
from tiny import LINES, make_model

from nmt.data.letters import normalised
from nmt.data.subword_kinds import PieceTable, SubwordsFile
from nmt.data.subwords import BOS, EOS, PAD, Codec
from nmt.export import huggingface as exporter
from nmt.export.huggingface import make_tokenizer
from nmt.export.parity import ROUNDED, compare
from nmt.recipe.data_options import SubwordsConfig
from tests.learnt import learnt_subwords

transformers = pytest.importorskip("transformers")

MORE = [" two  spaces ", "<s> in </s> May<pad>", "e\u0301", "\u0301 x", "\ttab", "\u202f \u00a0", "🚢, 12.5 %"]
AWKWARD = [*LINES, *MORE]


def opened(folder):
    return partial(exporter.translate_and_score, folder)


@pytest.mark.parametrize(
    ("options", "architecture"),
    [
        ({}, "Bart"),
        ({"norm": "pre"}, "Blenderbot"),
        ({"norm": "pre", "scale_emb_or_prj": "emb", "attn_bias": "true", "ffn": "gelu"}, "Blenderbot"),
        ({"scale_emb_or_prj": "none", "ffn": "relu2", "ffn_bias": "false"}, "Bart"),
        ({"position": "learned", "n_position": 7, "attn_bias": "true"}, "Bart"),
        ({"position": "learned", "n_position": 7, "norm": "pre"}, "Blenderbot"),
        ({"prj_transform": "true"}, "Bart"),
        ({"trg_emb_prj_weight_sharing": "false"}, "Bart"),
        ({"emb_src_trg_weight_sharing": "false", "norm": "pre"}, "Blenderbot"),
        ({"emb_src_trg_weight_sharing": "false", "prj_transform": "true"}, "Bart"),
    ],
    ids=str,
)
def test_an_exported_model_translates_and_scores_alike(subwords, tmp_path, options, architecture):
    model, recipe = make_model(subwords, **options)
    exporter.export(model, recipe, subwords, tmp_path / "out")
    exported = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert type(exported).__name__ == f"{architecture}ForConditionalGeneration"
    assert not getattr(exported.config, "encoder_no_repeat_ngram_size", 0)  # Blenderbot's own is 3
    found = compare(model, subwords, opened(tmp_path / "out"), AWKWARD, ROUNDED, most=40)
    assert found.n_same == len(AWKWARD)
    assert found.worst < 1e-4


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_epsilon_of_layer_normalisation_is_exported(subwords, tmp_path, norm):
    """It matters where activations are small, and ours is not the default of their library."""
    model, recipe = make_model(subwords, norm=norm)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("layer_norm.weight"):
                parameter.mul_(1e-2)
        for stack in (model.encoder, model.decoder):
            stack.position_enc.pos_table.mul_(1e-2)
    exporter.export(model, recipe, subwords, tmp_path / "out")
    assert compare(model, subwords, opened(tmp_path / "out"), LINES, ROUNDED, most=40).worst < 1e-4


def test_their_tokenizer_supports_whole_words():
    lines = ["der Hund </s> <pad> bellt laut", "die Katze schläft"] * 3
    config = SubwordsConfig(kind="word", vocab_size=290, normalize="nfkc")
    codec = learnt_subwords(lines, lines, config).src
    tokenizer = make_tokenizer(transformers, codec)
    for line in [*lines, *AWKWARD]:
        [ids] = codec.encode([line])
        assert tokenizer(line).input_ids == [*ids, EOS]
        assert tokenizer.decode([*ids, EOS], skip_special_tokens=True) == codec.normalised(line)


@pytest.mark.parametrize(("normalize", "whitespace"), [("nfc", "unified"), ("nfkc", "unified"), ("nfc", "kept")])
def test_their_tokenizer_segments_any_text_like_ours(normalize, whitespace):
    rng, lines = random.Random(1), ["हिन्दी में क्षेत्र", "می‌خواهم ก็ที่ für", "日本語 it's 12 km"] * 5
    config = SubwordsConfig(vocab_size=400, normalize=normalize, whitespace=whitespace)
    codec = learnt_subwords(lines, lines, config).src
    tokenizer = make_tokenizer(transformers, codec)
    letters = [*"aé1!'s ह\u093fक\u094dषม่ی語漢👩❤\t\xa0\u3000\u200b\u200c\u200d\ufeff\xad\u2060\u0301\xa8\u0600", "  "]
    for _ in range(1000):
        line = "".join(rng.choices(letters, k=rng.randint(1, 12)))
        (ids,) = codec.encode([line])
        assert tokenizer(line).input_ids == [*ids, EOS], ascii(line)
        assert tokenizer.decode([*ids, EOS], skip_special_tokens=True) == codec.decode(ids) == codec.normalised(line)


@pytest.mark.parametrize("normalize", ["nfc", "none"])
def test_their_tokenizer_has_our_ids_and_decodes_to_the_text(subwords, normalize):
    original = subwords.src
    # Pieces spelled like control symbols stay pieces, and control symbols stay control symbols.
    merges = [*original.merges, ("<", "s"), ("<s", ">")]
    codec = Codec(
        PieceTable(vocab=[*original.vocab, "<s", "<s>"], merges=merges), SubwordsFile(format=4, normalize=normalize)
    )
    tokenizer = make_tokenizer(transformers, codec)
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (PAD, BOS, EOS)
    for line, ids in zip(AWKWARD, codec.encode(AWKWARD), strict=True):
        assert tokenizer(line).input_ids == [*ids, EOS]
        padded = [BOS, *ids, EOS, PAD]
        assert tokenizer.decode(padded, skip_special_tokens=True) == codec.decode(ids) == normalised(line, normalize)


def test_greedy_search_and_no_repeat_are_exported(subwords, tmp_path):
    model, recipe = make_model(subwords)
    greedy = recipe.with_options(decode={"beam": 1, "alpha": 0.6, "no_repeat": 2})
    exporter.export(model, greedy, subwords, tmp_path / "out")
    assert transformers.GenerationConfig.from_pretrained(tmp_path / "out").no_repeat_ngram_size == 2
    found = compare(model, subwords, opened(tmp_path / "out"), LINES, ROUNDED, most=30)  # without no_repeat
    assert found.n_same == found.n_line


def test_generate_needs_no_further_arguments(subwords, tmp_path):
    """Control symbols and vocabulary padding never come out, though they are the likeliest tokens."""
    model, recipe = make_model(subwords, trg_emb_prj_weight_sharing="false")
    forbidden = [PAD, BOS, *range(subwords.trg.size, subwords.trg.n_vocab)]
    with torch.no_grad():
        model.trg_word_prj.weight[forbidden] = model.trg_word_prj.weight[5] * 1.5
    recipe = recipe.with_options(decode={"beam": 3, "max_len_a": 0.1})
    exporter.export(model, recipe, subwords, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    exported = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert exported.generation_config.num_beams == 3
    limit = int(0.1 * recipe.data.max_len) + recipe.decode.max_len_b
    for seed in range(3):
        torch.manual_seed(seed)
        options = {"do_sample": True, "num_beams": 1} if seed else {}
        ids = exported.generate(**tokenizer(LINES, padding=True, return_tensors="pt"), **options)
        assert ids.size(1) <= limit + 2
        for row in ids.tolist():
            tokens = row[1 : row.index(EOS)]  # where it ends, by itself or at the limit
            assert row[0] == BOS and tokens and not set(tokens) & set(forbidden)
