"""Pictures of attention: what they show, of which they are, and that they are whole or not there."""

import re

import pytest
import torch

from nmt.data.subwords import EOS
from nmt.errors import MachineError, NmtError
from nmt.evaluation.attention_page import KINDS, Sentence, axis_of, check_path, draw, sentence_of
from nmt.extras import EXTRAS
from nmt.models.base import Attns
from tests.evaluation.made_sentence import PAIRS, made_sentence, made_subwords


def sentence() -> Sentence:
    """One that knows of its cross attention only."""
    one = made_sentence(*PAIRS[0])
    return one._replace(weights={"cross": one.weights["cross"]})


def test_each_kind_of_attention_has_its_own_rows_and_columns():
    one = made_sentence(*PAIRS[0])
    src, trg = one.src.pieces, one.trg.pieces
    assert src[-1] == trg[-1] == "</s>"
    cross, encoder, decoder = (one.grid(kind, "all", "all") for kind in ("cross", "encoder", "decoder"))
    assert (cross.queries, cross.keys) == (trg, src)
    assert (encoder.queries, encoder.keys) == (src, src)
    assert (decoder.queries, decoder.keys) == (trg, ["<s>", *trg[:-1]])  # what was read when it was written
    for kind in ("cross", "encoder", "decoder"):
        weights = one.weights[kind]
        assert torch.equal(one.grid(kind, [2], [3]).rows[0][0].weights, weights[1, 2])
        assert torch.allclose(one.grid(kind, [2], "mean").rows[0][0].weights, weights[1].mean(0))


def test_what_was_translated_in_pieces_was_begun_anew_for_each():
    subwords = made_subwords()
    ids = [*subwords.trg.encode(["in"])[0], EOS, *subwords.trg.encode(["May"])[0]]
    attns = made_sentence("the ship", "in").weights
    one = sentence_of(Attns(None, None, attns["cross"]), [5], ids, subwords)
    assert one.read.pieces == ["<s>", "▁in", "<s>", *one.trg.pieces[2:-1]] and list(one.weights) == ["cross"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the old ship", ["the", "old", "ship", "</s>"]),
        ("xyz left,  May", ["xyz", "left,", "May", "</s>"]),
        (" naïve — ü", ["naïve", "—", "ü", "</s>"]),
        ("日本 語。", ["日", "本", "語", "。", "</s>"]),  # no white space in words of this script
        ("한국어 x", ["한국어", "x", "</s>"]),
        ("הכלב a", ["הכלב", "a", "</s>"]),
        ("a\u202eb", ["a<E2><80><AE>b", "</s>"]),  # what turns a text round is shown and has no effect
        ("", ["▁", "</s>"]),
    ],
)
def test_words_are_joined_pieces(text, words):
    codec = made_subwords().src
    axis = axis_of([*codec.encode([text])[0], EOS], codec)
    assert axis.texts == words
    assert len(axis.words) == len(axis.pieces) and axis.words == sorted(axis.words)
    assert set(axis.words) == set(range(len(words)))


@pytest.mark.parametrize(("ending", "begins"), [("svg", b"<?xml"), ("pdf", b"%PDF-"), ("png", b"\x89PNG")])
def test_the_ending_chooses_the_kind_of_picture_and_the_same_sentence_gives_the_same_bytes(tmp_path, ending, begins):
    """Of which nothing says when it was made."""
    for name in ("a", "b"):
        draw([made_sentence(*PAIRS[0])], tmp_path / f"{name}.{ending}", kind="encoder", layers="all", heads=[1, 2])
    content = (tmp_path / f"a.{ending}").read_bytes()
    assert content.startswith(begins) and content == (tmp_path / f"b.{ending}").read_bytes()
    assert not re.search(rb"CreationDate|dc:date|20\d\d-\d\d-\d\d", content)


def test_a_picture_says_which_attention_it_shows_and_others_are_others(tmp_path):
    one, other, pictures = made_sentence(*PAIRS[0]), made_sentence(*PAIRS[0], seed=1), set()
    for kind, words in KINDS.items():
        for name, layers, heads in (("a", [1], "mean"), ("b", [1], [2]), ("c", [1], [1, 2])):
            draw([one], tmp_path / f"{name}.svg", kind=kind, layers=layers, heads=heads)
        # What is drawn as outlines stands beside them as a comment.
        single, head, several = ((tmp_path / f"{name}.svg").read_text(encoding="utf-8") for name in "abc")
        assert f"<!-- {words}, layer 1, mean of " in single and f"<!-- {words}, layer 1, head 2 -->" in head
        assert f"<!-- {words} -->" in several and "<!-- layer 1, head 1 -->" in several
        draw([other], tmp_path / "d.svg", kind=kind, layers=[1], heads="mean")
        for text in (single, (tmp_path / "d.svg").read_text(encoding="utf-8")):
            pictures.add(tuple(re.findall(r';base64,([^"]+)"', text)))  # of the cells, and of the bar of colours
    assert len(pictures) == 2 * len(KINDS)


@pytest.mark.parametrize("name", ["a.gif", "a", "missing/a.png"])
def test_a_name_that_cannot_be_drawn_to_is_refused(tmp_path, name):
    with pytest.raises(NmtError):
        draw([sentence()], tmp_path / name)


@pytest.mark.parametrize("name", ["a.png", "a.html"])
def test_a_picture_that_fails_leaves_the_old_one(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"old")
    for wrong in ({"layers": [9]}, {"heads": [5]}, {"kind": "decoder"}):
        with pytest.raises(NmtError):
            draw([sentence()], path, **wrong)
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_without_matplotlib_a_page_is_drawn_and_a_picture_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(EXTRAS, "plots", {"nowhere.at.all": "matplotlib>=3.8"})
    check_path(tmp_path / "a.html")
    with pytest.raises(MachineError, match=r"a\.svg: .*pip install 'matplotlib>=3\.8'; a page, \.html, needs none\.$"):
        check_path(tmp_path / "a.svg")
