import math
import random
import re

import pytest
import torch
from fake_model import CopyModel, HashModel
from small_search import subwords_of

from nmt.data.subwords import EOS, Subwords
from nmt.decoding.long_lines import Limits, Split, first_words, joined, limits_of, split
from nmt.decoding.request import Request, Terms
from nmt.decoding.translator import Translator
from nmt.recipe.decode_options import LEAST_SRC_LEN, DecodeConfig

TEXT = "the old ship left. In May, the ship!  für Übung?\tund 日本。naïve 🙂 a b c"
SHORT = Limits(line=20, piece=20)


@pytest.fixture(scope="module")
def subwords() -> Subwords:
    return subwords_of(TEXT, n=290)


@pytest.fixture(scope="module")
def model(subwords):
    return CopyModel(subwords.trg.n_vocab, seed=1).eval()


@pytest.fixture(scope="module")
def translator_of(subwords):
    """translator_of(limits, option=value, ...): a model whose answers are nonsense that depends on all it reads."""
    hashed = HashModel(subwords.trg.n_vocab, seed=2, sharpness=3.0).eval()
    options = {"max_len_a": 0.5, "max_len_b": 3}
    return lambda limits, **more: Translator(hashed, subwords, DecodeConfig(**options | more), limits=limits)


def some_lines(n: int) -> list[str]:
    draw = random.Random(3)
    letters = [*TEXT, ". A", "! ", " ", "\u00a0", "\u200b", "。", "e\u0301", "🙂🙂", "</s>"]
    return ["".join(draw.choices(letters, k=draw.randint(1, 150))) for _ in range(n)]


def test_a_split_line_is_its_pieces_and_white_space_and_each_piece_is_within_the_limit(subwords):
    codec, n_split = subwords.src, 0
    for line in some_lines(150):
        ids = codec.encode([line])[0]
        found = split(line, ids, codec, SHORT)
        assert (found is None) == (len(ids) <= 20)
        if found is not None:
            n_split += 1
            parts = [part for pair in zip(found.spaces, [*found.pieces, ""], strict=True) for part in pair]
            assert "".join(parts) == line
            assert not "".join(found.spaces).strip()
            assert max(map(len, codec.encode(found.pieces))) <= 20
    assert n_split > 50


def test_every_line_of_several_sentences_is_split_when_asked(subwords):
    every = Limits(every=True)
    ids = [9]
    assert split("May. A ship", ids, subwords.src, every) == Split(["May.", "A ship"], ["", " ", ""])
    assert split(" May a ship ", ids, subwords.src, every) is None
    assert split("May. A ship", ids, subwords.src, Limits()) is None


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 3, "n_best": 3}, {"samples": 4, "n_best": 4}])
def test_the_translation_of_a_split_line_is_that_of_its_pieces(translator_of, options):
    cut, whole = translator_of(SHORT, **options), translator_of(Limits(), **options)
    n_split = 0
    for line, found in zip(lines := some_lines(12), cut.translate(lines), strict=True):
        if found.split is None:
            assert found == next(whole.translate([line]))
            continue
        n_split += 1
        alone = list(whole.translate(found.split.pieces))
        assert [one.texts for one in found.parts] == [one.texts for one in alone]
        assert found.text == joined(found.split, [one.text for one in alone])[0].replace("\r", " ").replace("\n", " ")
        there = [one for one in alone if one.hypotheses]
        assert found.hypotheses[0].score == pytest.approx(math.fsum(one.hypotheses[0].score for one in there))
        assert len(found.texts) == len(found.hypotheses) == max(len(one.texts) for one in alone)
        best = found.hypotheses[0]
        assert best.normalised == pytest.approx(best.score / ((5 + len(best.ids) + 1) / 6))
        assert best.finished == all(one.hypotheses[0].finished for one in there)
    assert n_split > 3


def test_no_text_is_lost_and_white_space_stands_byte_for_byte(subwords, model):
    lines = ["the old ship left. In May, the ship!\tA b c a b c   \u00a0", "  " + "a b. " * 20]
    lines += ["naïve" * 60, "日本。" * 30]
    found = list(Translator(model, subwords, DecodeConfig(), limits=SHORT).translate(lines))
    assert [one.text for one in found] == lines
    assert all(one.split is not None and "\n" not in one.text for one in found)


@pytest.mark.parametrize("limits", [Limits(), SHORT])
def test_lines_of_a_text_are_translated_apart_whatever_their_length(subwords, model, limits):
    lines = ["the old ship left. In May it left. The ship left.", "", "in May"]
    translator = Translator(model, subwords, DecodeConfig(), limits=limits)
    apart = [one.text for one in translator.translate(lines)]
    assert [one.text for one in translator.translate(["\n".join(lines)])] == ["\n".join(apart)]


def test_tokens_their_log_probabilities_and_attention_are_those_of_the_pieces_in_a_row(subwords, model):
    translator = Translator(model, subwords, DecodeConfig(), limits=SHORT)
    (found,) = translator.translate(["the old ship left. In May,  the ship!\tA b c a b c"])
    assert found.split is not None and len(found.parts) == 3
    assert translator.forced([found]) == [[piece for one in translator.forced(found.parts) for piece in one]]
    log_probs = [value for one in translator.forced([found])[0] for value in one.log_probs]
    assert sum(log_probs) == pytest.approx(found.hypotheses[0].score)
    assert [*found.hypotheses[0].ids, EOS] == [i for one in found.parts for i in [*one.hypotheses[0].ids, EOS]]
    attns = translator.attention(found)
    assert attns.cross.shape[2:] == (len(found.hypotheses[0].ids) + 1, len(found.src_ids) + 1)
    for weights, first in zip(attns, translator.attention(found.parts[0]), strict=True):
        if first is None:
            assert weights is None
            continue
        q, k = first.shape[2:]
        assert torch.equal(weights[:, :, :q, :k], first) and not weights[:, :, :q, k:].any()
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:3]))


def test_a_word_of_the_line_may_be_of_several_pieces():
    line = Split(["你好。", "再见。", "the ship left.", "In May"], ["", "", "", "", " "])
    text, places = joined(line, line.pieces)
    assert text == "你好。再见。the ship left.In May " and [text[place] for place in places] == ["你", "再", "t", "I"]
    assert first_words(text, places) == [0, 0, 0, 2]  # 你好。再见。the / ship / left.In / May
    text, places = joined(line, ["Hello.", "Bye.", "Le navire.", "En mai"])
    assert text == "Hello. Bye. Le navire.En mai " and first_words(text, places) == [0, 1, 2, 3]
    assert first_words(" a  b", [0, 1, 2, 4, 5]) == [0, 0, 1, 1, 2]


@pytest.mark.parametrize(
    ("pieces", "space", "texts", "wanted"),
    [
        (["他说。", "好"], "", ["He said.", "Good"], "He said. Good"),  # the source has no space to take over
        (["他说。", "好"], "", ["彼。", "は"], "彼。は"),
        (["他说。", "好"], "\t", ["He said.", "Good"], "He said.\tGood"),
        (["xxxx", "xx"], "", ["xxxx", "xx"], "xxxxxx"),  # cut inside a word
        (["他说。", "\u200b"], "", ["He said.", ""], "He said."),
        (["He said.", "Good"], " ", ["彼。", "は"], "彼。は"),
        (["He said!", "Good"], " ", ["他说!", "“好”"], "他说!“好”"),
        (["He said.", "Good"], " ", ["เขาพูด", "ดี"], "เขาพูดดี"),
        (["He said.", "Good"], " ", ["彼。", "Tom"], "彼。 Tom"),
        (["He said.", "Good"], " ", ["그가.", "좋다"], "그가. 좋다"),
        (["他说。", "好"], " ", ["彼。", "は"], "彼。 は"),  # a space of a script without is there for a reason
        (["He said.", "Good"], "\n", ["彼。", "は"], "彼。\nは"),
    ],
)
def test_a_space_stands_where_the_target_writes_one(pieces, space, texts, wanted):
    assert joined(Split(pieces, ["", space, ""]), texts)[0] == wanted


def test_a_line_whose_phrases_cannot_be_told_apart_is_read_at_once_while_the_model_can(translator_of):
    translator = translator_of(Limits(16, 16), max_len_a=0.1)
    for n in (60, 400):  # more letters than 16 subwords ever have, and fewer than 1,024
        line = "ship left. " * n
        asked, plain = translator.translate([Request(line[:1100], required=("a b",)), Request(line[:1100])])
        assert not asked.parts and len(plain.parts) > 1 and "a b" in asked.text


@pytest.mark.parametrize(
    ("options", "usual_src_len", "wanted"),
    [
        ({}, 50, Limits(50, 256)),
        ({}, None, Limits(256, 256)),
        ({}, 3, Limits(LEAST_SRC_LEN, 256)),
        ({}, 300, Limits(256, 256)),
        ({"max_src_len": 100}, 50, Limits(100, 100)),
        ({"split": "every"}, 50, Limits(50, 256, every=True)),
    ],
)
def test_the_limits_are_what_training_saw_or_what_is_asked_for(options, usual_src_len, wanted):
    assert limits_of(DecodeConfig(**options), max_len=256, usual_src_len=usual_src_len) == wanted


def test_what_is_asked_of_a_line_is_asked_of_the_pieces_it_belongs_to():
    whole = Terms([("ship", "boat"), ("May", "June")], [("", "left")])(Request("The ship. In May.", prefix="A"))
    assert whole.can_be_split
    assert whole.of_piece("The ship.", 0, True) == Request("The ship.", "A", ("boat",), ("left",), (((4, 8),),))
    assert whole.of_piece("In May.", 10, False) == Request("In May.", "", ("June",), ("left",), (((3, 6),),))
    assert not Terms([("ship", "boat")])(Request("The ship. In May.", required=("June",))).can_be_split


def test_a_term_is_asked_of_each_piece_that_has_it_outside_of_a_longer_one():
    terms = Terms([("man", "gentleman"), ("old man", "elder"), ("car", "vehicle"), ("van", "vehicle")])
    pieces = ["A man and a car.", "An old man.", "A van."]
    whole = terms(Request(" ".join(pieces)))
    starts = [0, 17, 29]
    asked = [whole.of_piece(piece, start, not start) for piece, start in zip(pieces, starts, strict=True)]
    assert [one.required for one in asked] == [("gentleman", "vehicle"), ("elder",), ("vehicle",)]
    assert [[one.source[a:b] for ((a, b),) in one.origins] for one in asked] == [["man", "car"], ["old man"], ["van"]]


def test_what_is_kept_is_asked_of_the_piece_in_which_it_stands():
    line = "  The A380. {x} and {x}1. It is 380."
    whole = Terms(kept=re.compile(r"\d+|\{x\}"))(Request(line))
    pieces = ["The A380.", "{x} and {x}1.", "It is 380."]
    found = Split(pieces, ["  ", " ", " ", ""])
    assert [line[start : start + len(piece)] for piece, start in zip(pieces, found.starts, strict=True)] == pieces
    parts = [whole.of_piece(piece, start, False) for piece, start in zip(pieces, found.starts, strict=True)]
    assert [[one.text for one in part.kept] for part in parts] == [["A380"], ["{x}", "{x}", "1"], ["380"]]
    assert all(one.text == part.source[one.start : one.end] for part in parts for one in part.kept)
    told = ["The A380.", "{x} and {x}1.", "It is 380."]
    assert [part.unmet(text) for part, text in zip(parts, told, strict=True)] == [[], [], []]
    assert parts[0].unmet("The 380.") == ["A380"] and parts[2].unmet("It is A380.") == ["380"]
    assert parts[1].unmet("{x} and 1.") == ["{x}"]
