import random

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
from nmt.recipe.decode_options import DecodeConfig

WORDS = ["the", "old", "ship", "left", "in", "May", "für", "Übung", "und", "日本", "naïve", "🙂", "a", "b", "c"]


@pytest.fixture(scope="module")
def subwords() -> Subwords:
    return subwords_of(" ".join(WORDS))


@pytest.fixture(scope="module")
def model(subwords):
    return CopyModel(subwords.trg.n_vocab, seed=1).eval()


def some_lines(n: int) -> list[str]:
    draw = random.Random(5)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(n)]


def texts(translator: Translator, lines: list[str]) -> list[str]:
    return [one.text for one in translator.translate(lines)]


def test_control_symbols_and_odd_characters_are_ordinary_text(subwords, model):
    lines = ["a </s> b", "<s>", "<pad> <unk> @@ ▁ ￨", "x\ry", "a\u2028b\u0085c\x0bd", "tab\there", "nul\x00nul", "🙂"]
    wanted = [unified(line) for line in lines]
    assert texts(Translator(model, subwords, DecodeConfig()), lines) == wanted


def test_a_blank_line_is_answered_blank_without_the_model(subwords):
    class Untouchable(CopyModel):
        def start(self, src_seq):
            raise AssertionError("the model was asked about a blank line")

    lines = ["", " ", "\t \r", "\u3000", "\u200b", "\ufeff", "\u00a0\u2003"]
    found = list(Translator(Untouchable(8), subwords, DecodeConfig()).translate(lines))
    assert [one.text for one in found] == [""] * len(lines)
    assert [one.score for one in found] == [0.0] * len(lines)


def test_all_dresses_of_a_line_are_translated_alike_and_keep_the_white_space_at_their_ends(subwords, model):
    lines = ["  the old ship ", "\u00a0the  old\u3000ship", "\ufeffthe old sh\u00adip\u200b", "the old\tship\u3000"]
    found = texts(Translator(model, subwords, DecodeConfig(beam=2)), lines)
    assert found == ["  the old ship ", "\u00a0the old ship", "the old ship", "the old ship\u3000"]


def test_a_given_pair_too_long_is_cut_and_named(subwords, model, monkeypatch):
    monkeypatch.setattr(translator_module, "MAX_SRC_LEN", 12)
    lines = ["a b", "a b c " * 50, "c"]
    found = list(Translator(model, subwords, DecodeConfig()).score(lines, ["a"] * 3))
    assert [one.warning is None for one in found] == [True, False, True]
    assert "first 12 subwords" in found[1].warning
    found = list(Translator(model, subwords, DecodeConfig()).score(["a"] * 3, lines))
    assert [len(one.token_log_probs) for one in found][1] == 13


def test_a_text_that_is_found_in_several_subwords_comes_once(subwords):
    some = [i for i, raw in enumerate(subwords.trg.raw(range(subwords.trg.n_text))) if raw and raw in b" the ship"]

    class Spells(CopyModel):
        def step(self, last, state):
            logits = super().step(last, state).clone()
            logits[:, [*some, EOS]] += 40.0
            return logits

    translator = Translator(Spells(subwords.trg.n_vocab, seed=1).eval(), subwords, DecodeConfig(beam=12, n_best=12))
    for asked in (Request("the", prefix="the ship"), Request("the", required=("ship",))):
        (found,) = translator.translate([asked])
        assert 2 < len(set(found.texts)) == len(found.texts) == len(found.hypotheses) < 12
        assert found.hypotheses == sorted(found.hypotheses, key=lambda one: -one.normalised)


def test_a_prefix_of_a_line_in_pieces_may_begin_with_a_space(subwords, model):
    translator = Translator(model, subwords, DecodeConfig(), limits=Limits(every=True))
    for space in ("", "  "):
        line = f"{space}the old ship. In May."
        (found,) = translator.translate([Request(line, prefix=" the")])
        assert found.split and found.text.startswith(f"{space} the") and found.unmet == []
        (found,) = translator.translate([Request(line, prefix="the old")])
        assert found.text.startswith(f"{space}the old") and found.unmet == []


def test_a_line_feed_in_a_translation_does_not_become_a_line(subwords):
    line_feed = subwords.trg.encode(["\n"])[0][-1]

    class SaysLineFeed(CopyModel):
        def step(self, last, state):
            logits = super().step(last, state)
            if state.n_step <= 2:
                logits[:, line_feed] += 99.0
            return logits

    (text,) = texts(Translator(SaysLineFeed(subwords.trg.n_vocab), subwords, DecodeConfig()), ["a b c"])
    assert "\n" not in text


def test_too_little_memory_halves_the_batch_and_changes_nothing(subwords):
    class SmallMemory(CopyModel):
        def start(self, src_seq):
            if src_seq.size(0) > 3:
                raise torch.OutOfMemoryError("no memory")
            return super().start(src_seq)

    lines = some_lines(40)
    assert texts(Translator(SmallMemory(subwords.trg.n_vocab), subwords, DecodeConfig()), lines) == lines
