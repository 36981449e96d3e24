import math
import random
import re

import pytest
from fake_model import CopyModel, HashModel
from small_search import subwords_of

from nmt.data.subwords import EOS, Subwords
from nmt.decoding.evidence import words_of
from nmt.decoding.long_lines import Limits, Split, joined, limits_of, split
from nmt.decoding.request import Request, Terms
from nmt.decoding.translator import Translator, join_scored
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
    """translator_of(limits, option=value, ...): its output is nonsense that depends on the whole input."""
    hashed = HashModel(subwords.trg.n_vocab, seed=2, sharpness=3.0).eval()
    options = {"max_len_a": 0.5, "max_len_b": 3}
    return lambda limits, **more: Translator(hashed, subwords, DecodeConfig(**options | more), limits=limits)


def random_lines(n: int) -> list[str]:
    rng = random.Random(3)
    letters = [*TEXT, ". A", "! ", " ", "\u00a0", "\u200b", "。", "e\u0301", "🙂🙂", "</s>"]
    return ["".join(rng.choices(letters, k=rng.randint(1, 150))) for _ in range(n)]


def test_pieces_fit_the_limit_and_rejoin_to_the_line(subwords):
    codec, n_split = subwords.src, 0
    for line in random_lines(150):
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


def test_split_every_splits_lines_of_several_sentences(subwords):
    every = Limits(every=True)
    ids = [9]
    assert split("May. A ship", ids, subwords.src, every) == Split(["May.", "A ship"], ["", " ", ""])
    assert split(" May a ship ", ids, subwords.src, every) is None
    assert split("May. A ship", ids, subwords.src, Limits()) is None


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 3, "n_best": 3}, {"samples": 4, "n_best": 4}])
def test_split_line_translates_like_its_pieces(translator_of, options):
    splitting, unsplit = translator_of(SHORT, **options), translator_of(Limits(), **options)
    n_split = 0
    for line, found in zip(lines := random_lines(12), splitting.translate(lines), strict=True):
        if found.split is None:
            assert found == next(unsplit.translate([line]))
            continue
        n_split += 1
        parts = list(unsplit.translate(found.split.pieces))
        assert [part.texts for part in found.parts] == [part.texts for part in parts]
        text = "".join(joined(found.split, [part.text for part in parts]))
        assert found.text == text.replace("\r", " ").replace("\n", " ")
        non_blank = [part for part in parts if part.hypotheses]
        assert found.hypotheses[0].score == pytest.approx(math.fsum(part.hypotheses[0].score for part in non_blank))
        assert len(found.texts) == len(found.hypotheses) == max(len(part.texts) for part in parts)
        best = found.hypotheses[0]
        assert best.normalised == pytest.approx(best.score / ((5 + len(best.ids) + 1) / 6))
        assert best.finished == all(part.hypotheses[0].finished for part in non_blank)
    assert n_split > 3


def test_splitting_loses_no_text_and_keeps_white_space(subwords, model):
    lines = ["the old ship left. In May, the ship!\tA b c a b c   \u00a0", "  " + "a b. " * 20]
    lines += ["naïve" * 60, "日本。" * 30]
    found = list(Translator(model, subwords, DecodeConfig(), limits=SHORT).translate(lines))
    assert [translation.text for translation in found] == lines
    assert all(translation.split is not None and "\n" not in translation.text for translation in found)


@pytest.mark.parametrize("limits", [Limits(), SHORT])
def test_lines_of_a_text_are_translated_separately(subwords, model, limits):
    lines = ["the old ship left. In May it left. The ship left.", "", "in May"]
    translator = Translator(model, subwords, DecodeConfig(), limits=limits)
    separate = [translation.text for translation in translator.translate(lines)]
    assert [translation.text for translation in translator.translate(["\n".join(lines)])] == ["\n".join(separate)]


def test_split_line_concatenates_tokens_and_scores_of_its_pieces(subwords, model):
    translator = Translator(model, subwords, DecodeConfig(), limits=SHORT)
    (found,) = translator.translate(["the old ship left. In May,  the ship!\tA b c a b c"])
    assert found.split is not None and len(found.parts) == 3
    assert translator.forced([found]) == [join_scored(translator.forced(found.parts))]
    assert translator.forced([found])[0].log_prob == pytest.approx(found.hypotheses[0].score)
    assert [*found.hypotheses[0].ids, EOS] == [i for part in found.parts for i in [*part.hypotheses[0].ids, EOS]]


def test_word_of_a_line_may_span_several_pieces():
    line = Split(["你好。", "再见。", "the ship left.", "In May"], ["", "", "", "", " "])
    parts = joined(line, line.pieces)
    assert "".join(parts) == "你好。再见。the ship left.In May " and parts[1::2] == line.pieces
    words = words_of([part.encode() for part in parts])[1::2]
    assert words == [[0], [0], [0, 1, 2], [2, 3]]  # 你好。再见。the / ship / left.In / May
    assert "|".join(joined(line, ["Hello.", "Bye.", "Le navire.", "En mai"])) == "|Hello.| |Bye.| |Le navire.||En mai| "


@pytest.mark.parametrize(
    ("pieces", "space", "texts", "expected"),
    [
        (["他说。", "好"], "", ["He said.", "Good"], "He said. Good"),  # the source has no space to copy
        (["他说。", "好"], "", ["彼。", "は"], "彼。は"),
        (["他说。", "好"], "\t", ["He said.", "Good"], "He said.\tGood"),
        (["xxxx", "xx"], "", ["xxxx", "xx"], "xxxxxx"),  # cut inside a word
        (["他说。", "\u200b"], "", ["He said.", ""], "He said."),
        (["He said.", "Good"], " ", ["彼。", "は"], "彼。は"),
        (["He said!", "Good"], " ", ["他说!", "“好”"], "他说!“好”"),
        (["He said.", "Good"], " ", ["เขาพูด", "ดี"], "เขาพูดดี"),
        (["He said.", "Good"], " ", ["彼。", "Tom"], "彼。 Tom"),
        (["He said.", "Good"], " ", ["그가.", "좋다"], "그가. 좋다"),
        (["他说。", "好"], " ", ["彼。", "は"], "彼。 は"),  # a space in an unspaced script is deliberate
        (["He said.", "Good"], "\n", ["彼。", "は"], "彼。\nは"),
    ],
)
def test_spaces_between_pieces_follow_the_target_script(pieces, space, texts, expected):
    assert "".join(joined(Split(pieces, ["", space, ""]), texts)) == expected


def test_piece_equal_to_a_line_that_is_split_is_translated(translator_of):
    # The brackets make one piece of two sentences, which are two pieces in a line of their own.
    line, other, n_done = "The (ship.\u2028In May. Left) a b.", "In May. Left) a b.", list[int]()
    translator = translator_of(Limits(every=True))
    both = list(translator.translate([line, other], n_done.append))
    assert both == [*translator.translate([line]), *translator.translate([other])] and sum(n_done) == 2
    assert both[0].split.pieces == ["The (ship.", other] and both[1].split.pieces == ["In May.", "Left) a b."]
    assert both[0].parts[1].hypotheses


def test_line_with_required_phrase_is_split_only_beyond_the_model_limit(translator_of):
    translator = translator_of(Limits(16, 16), max_len_a=0.1)
    for n in (60, 400):  # more letters than 16 subwords hold, fewer than 1,024 hold
        line = "ship left. " * n
        constrained, plain = translator.translate([Request(line[:1100], required=("a b",)), Request(line[:1100])])
        assert not constrained.parts and len(plain.parts) > 1 and "a b" in constrained.text


@pytest.mark.parametrize(
    ("options", "usual_src_len", "expected"),
    [
        ({}, 50, Limits(50, 256)),
        ({}, None, Limits(256, 256)),
        ({}, 3, Limits(LEAST_SRC_LEN, 256)),
        ({}, 300, Limits(256, 256)),
        ({"max_src_len": 100}, 50, Limits(100, 100)),
        ({"split": "every"}, 50, Limits(50, 256, every=True)),
    ],
)
def test_limits_come_from_options_or_from_training_lengths(options, usual_src_len, expected):
    assert limits_of(DecodeConfig(**options), max_len=256, usual_src_len=usual_src_len) == expected


def test_constraints_of_a_line_go_to_the_matching_pieces():
    request = Terms([("ship", "boat"), ("May", "June")], [("", "left")])(Request("The ship. In May.", prefix="A"))
    assert request.can_be_split
    assert request.of_piece("The ship.", 0, True) == Request("The ship.", "A", ("boat",), ("left",), (((4, 8),),))
    assert request.of_piece("In May.", 10, False) == Request("In May.", "", ("June",), ("left",), (((3, 6),),))
    assert not Terms([("ship", "boat")])(Request("The ship. In May.", required=("June",))).can_be_split


def test_term_is_required_in_each_piece_unless_a_longer_term_covers_it():
    terms = Terms([("man", "gentleman"), ("old man", "elder"), ("car", "vehicle"), ("van", "vehicle")])
    pieces = ["A man and a car.", "An old man.", "A van."]
    request = terms(Request(" ".join(pieces)))
    starts = [0, 17, 29]
    parts = [request.of_piece(piece, start, not start) for piece, start in zip(pieces, starts, strict=True)]
    assert [part.required for part in parts] == [("gentleman", "vehicle"), ("elder",), ("vehicle",)]
    assert [[part.source[a:b] for ((a, b),) in part.origins] for part in parts] == [
        ["man", "car"],
        ["old man"],
        ["van"],
    ]


def test_kept_text_of_invisible_characters_is_no_constraint(subwords, model):
    translator, terms = Translator(model, subwords, DecodeConfig()), Terms(kept=re.compile(r"[^a-z ]+"))
    for line in ("the \u200b ship", "the \u200b ship 日本"):
        (found,) = translator.translate([terms(Request(line))])
        assert found.unmet == []


def test_kept_text_is_required_in_the_piece_that_contains_it():
    line = "  The A380. {x} and {x}1. It is 380."
    request = Terms(kept=re.compile(r"\d+|\{x\}"))(Request(line))
    pieces = ["The A380.", "{x} and {x}1.", "It is 380."]
    parts = [request.of_piece(piece, line.index(piece), False) for piece in pieces]
    assert [[kept.text for kept in part.kept] for part in parts] == [["A380"], ["{x}", "{x}", "1"], ["380"]]
    assert all(kept.text == part.source[kept.start : kept.end] for part in parts for kept in part.kept)
    outputs = ["The A380.", "{x} and {x}1.", "It is 380."]
    assert [part.unmet(output) for part, output in zip(parts, outputs, strict=True)] == [[], [], []]
    assert parts[0].unmet("The 380.") == ["A380"] and parts[2].unmet("It is A380.") == ["380"]
    assert parts[1].unmet("{x} and 1.") == ["{x}"]
