import gc
import random
import weakref

import pytest
import torch
from fake_model import CopyModel
from small_search import subwords_of

from nmt.data.subwords import EOS, Subwords
from nmt.data.text import unified
from nmt.decoding import translator as translator_module
from nmt.decoding.long_lines import Limits
from nmt.decoding.request import Request
from nmt.decoding.translator import Translator
from nmt.errors import OutOfMemory
from nmt.recipe.decode_options import DecodeConfig

WORDS = ["the", "old", "ship", "left", "in", "May", "für", "Übung", "und", "日本", "naïve", "🙂", "a", "b", "c"]


@pytest.fixture(scope="module")
def subwords() -> Subwords:
    return subwords_of(" ".join(WORDS))


@pytest.fixture(scope="module")
def model(subwords):
    return CopyModel(subwords.trg.n_vocab, seed=1).eval()


def random_lines(n: int) -> list[str]:
    rng = random.Random(5)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(n)]


def texts(translator: Translator, lines: list[str]) -> list[str]:
    return [translation.text for translation in translator.translate(lines)]


def test_control_symbols_and_odd_characters_are_ordinary_text(subwords, model):
    lines = ["a </s> b", "<s>", "<pad> <unk> @@ ▁ ￨", "x\ry", "a\u2028b\u0085c\x0bd", "tab\there", "nul\x00nul", "🙂"]
    expected = [unified(line) for line in lines]
    assert texts(Translator(model, subwords, DecodeConfig()), lines) == expected


def test_blank_line_stays_blank_without_the_model(subwords):
    class Untouchable(CopyModel):
        def start(self, src_seq):
            raise AssertionError("the model was asked about a blank line")

    lines = ["", " ", "\t \r", "\u3000", "\u200b", "\ufeff", "\u00a0\u2003"]
    found = list(Translator(Untouchable(8), subwords, DecodeConfig()).translate(lines))
    assert [translation.text for translation in found] == [""] * len(lines)
    assert [translation.score for translation in found] == [0.0] * len(lines)


def test_inner_white_space_is_normalised_and_outer_white_space_kept(subwords, model):
    lines = ["  the old ship ", "\u00a0the  old\u3000ship", "\ufeffthe old sh\u00adip\u200b", "the old\tship\u3000"]
    found = texts(Translator(model, subwords, DecodeConfig(beam=2)), lines)
    assert found == ["  the old ship ", "\u00a0the old ship", "the old ship", "the old ship\u3000"]


def test_overlong_pair_is_truncated_with_a_warning(subwords, model, monkeypatch):
    monkeypatch.setattr(translator_module, "MAX_SRC_LEN", 12)
    lines = ["a b", "a b c " * 50, "c"]
    found = list(Translator(model, subwords, DecodeConfig()).score(lines, ["a"] * 3))
    assert [pair.warning is None for pair in found] == [True, False, True]
    assert "first 12 subwords" in found[1].warning
    found = list(Translator(model, subwords, DecodeConfig()).score(["a"] * 3, lines))
    assert [len(pair.token_log_probs) for pair in found][1] == 13


def test_equal_texts_of_different_subwords_are_listed_once(subwords):
    ids = [i for i, raw in enumerate(subwords.trg.raw(range(subwords.trg.n_text))) if raw and raw in b" the ship"]

    class Spells(CopyModel):
        def step(self, last, state):
            logits = super().step(last, state).clone()
            logits[:, [*ids, EOS]] += 40.0
            return logits

    translator = Translator(Spells(subwords.trg.n_vocab, seed=1).eval(), subwords, DecodeConfig(beam=12, n_best=12))
    for request in (Request("the", prefix="the ship"), Request("the", required=("ship",))):
        (found,) = translator.translate([request])
        assert 2 < len(set(found.texts)) == len(found.texts) == len(found.hypotheses) < 12
        assert found.hypotheses == sorted(found.hypotheses, key=lambda hypothesis: -hypothesis.normalised)


def test_prefix_of_a_split_line_may_begin_with_a_space(subwords, model):
    translator = Translator(model, subwords, DecodeConfig(), limits=Limits(every=True))
    for space in ("", "  "):
        line = f"{space}the old ship. In May."
        (found,) = translator.translate([Request(line, prefix=" the")])
        assert found.split and found.text.startswith(f"{space} the") and found.unmet == []
        (found,) = translator.translate([Request(line, prefix="the old")])
        assert found.text.startswith(f"{space}the old") and found.unmet == []


def test_generated_line_feed_does_not_start_a_new_line(subwords):
    line_feed = subwords.trg.encode(["\n"])[0][-1]

    class SaysLineFeed(CopyModel):
        def step(self, last, state):
            logits = super().step(last, state)
            if state.n_step <= 2:
                logits[:, line_feed] += 99.0
            return logits

    (text,) = texts(Translator(SaysLineFeed(subwords.trg.n_vocab), subwords, DecodeConfig()), ["a b c"])
    assert "\n" not in text


def test_out_of_memory_halves_the_batch_and_changes_nothing(subwords):
    class SmallMemory(CopyModel):
        def start(self, src_seq):
            if src_seq.size(0) > 3:
                raise torch.OutOfMemoryError("no memory")
            return super().start(src_seq)

    lines = random_lines(40)
    assert texts(Translator(SmallMemory(subwords.trg.n_vocab), subwords, DecodeConfig()), lines) == lines


def test_sentence_that_is_too_large_for_the_memory_is_named_and_no_tensor_is_held(subwords):
    class NoMemory(CopyModel):
        def start(self, src_seq):
            raise torch.OutOfMemoryError("no memory")

    translator = Translator(NoMemory(subwords.trg.n_vocab), subwords, DecodeConfig(beam=3))
    with pytest.raises(OutOfMemory, match=r"too small for one sentence of \d+ subwords with 3 hypotheses") as raised:
        texts(translator, ["the ship", "a b c"])
    assert raised.value.__context__ is None


def test_function_that_checks_tags_does_not_hold_the_model(subwords):
    model = CopyModel(subwords.trg.n_vocab)
    codec_of, reference = Translator(model, subwords, DecodeConfig()).codec_of, weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None and codec_of(Request("the ship")) is subwords.src
