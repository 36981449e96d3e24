"""Attention pictures: axes, labels and file formats. A picture that fails leaves no partial file."""

import re

import pytest
import torch

from nmt.data.subwords import EOS
from nmt.errors import MachineError, NmtError
from nmt.evaluation.attention_page import KINDS, Sentence, axis_of, check_path, draw
from nmt.extras import EXTRAS
from tests.evaluation.made_sentence import PAIRS, make_sentence, make_subwords


def cross_only_sentence() -> Sentence:
    """A sentence with only its cross-attention."""
    sentence = make_sentence(*PAIRS[0])
    return sentence._replace(weights={"cross": sentence.weights["cross"]})


def test_each_kind_of_attention_has_its_own_queries_and_keys():
    sentence = make_sentence(*PAIRS[0])
    src, trg = sentence.src.pieces, sentence.trg.pieces
    assert src[-1] == trg[-1] == "</s>"
    cross, encoder, decoder = (sentence.grid(kind, "all", "all") for kind in ("cross", "encoder", "decoder"))
    assert (cross.queries, cross.keys) == (trg, src)
    assert (encoder.queries, encoder.keys) == (src, src)
    assert (decoder.queries, decoder.keys) == (trg, ["<s>", *trg[:-1]])  # the token read when each was written
    for kind in ("cross", "encoder", "decoder"):
        weights = sentence.weights[kind]
        assert torch.equal(sentence.grid(kind, [2], [3]).rows[0][0].weights, weights[1, 2])
        assert torch.allclose(sentence.grid(kind, [2], "mean").rows[0][0].weights, weights[1].mean(0))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the old ship", ["the", "old", "ship", "</s>"]),
        ("xyz left,  May", ["xyz", "left,", "May", "</s>"]),
        (" naïve — ü", ["naïve", "—", "ü", "</s>"]),
        ("日本 語。", ["日", "本", "語", "。", "</s>"]),  # no white space in words of this script
        ("한국어 x", ["한국어", "x", "</s>"]),
        ("הכלב a", ["הכלב", "a", "</s>"]),
        ("a\u202eb", ["a<E2><80><AE>b", "</s>"]),  # a character that reverses the text is shown, without its effect
        ("", ["▁", "</s>"]),
    ],
)
def test_pieces_are_joined_to_words(text, words):
    codec = make_subwords().src
    axis = axis_of([*codec.encode([text])[0], EOS], codec)
    assert axis.texts == words
    assert len(axis.words) == len(axis.pieces) and axis.words == sorted(axis.words)
    assert set(axis.words) == set(range(len(words)))


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF-"), ("png", b"\x89PNG")])
def test_the_suffix_chooses_the_format_and_the_bytes_are_reproducible(tmp_path, suffix, start):
    """No file contains its date."""
    for name in ("a", "b"):
        draw([make_sentence(*PAIRS[0])], tmp_path / f"{name}.{suffix}", kind="encoder", layers="all", heads=[1, 2])
    content = (tmp_path / f"a.{suffix}").read_bytes()
    assert content.startswith(start) and content == (tmp_path / f"b.{suffix}").read_bytes()
    assert not re.search(rb"CreationDate|dc:date|20\d\d-\d\d-\d\d", content)


def test_a_picture_names_its_attention_and_differs_between_sentences(tmp_path):
    sentence, other, pictures = make_sentence(*PAIRS[0]), make_sentence(*PAIRS[0], seed=1), set()
    for kind, label in KINDS.items():
        for name, layers, heads in (("a", [1], "mean"), ("b", [1], [2]), ("c", [1], [1, 2])):
            draw([sentence], tmp_path / f"{name}.svg", kind=kind, layers=layers, heads=heads)
        # Text is drawn as outlines, with the text in a comment.
        single, head, several = ((tmp_path / f"{name}.svg").read_text(encoding="utf-8") for name in "abc")
        assert f"<!-- {label}, layer 1, mean of " in single and f"<!-- {label}, layer 1, head 2 -->" in head
        assert f"<!-- {label} -->" in several and "<!-- layer 1, head 1 -->" in several
        draw([other], tmp_path / "d.svg", kind=kind, layers=[1], heads="mean")
        for text in (single, (tmp_path / "d.svg").read_text(encoding="utf-8")):
            pictures.add(tuple(re.findall(r';base64,([^"]+)"', text)))  # cells and colour bar
    assert len(pictures) == 2 * len(KINDS)


@pytest.mark.parametrize("name", ["a.gif", "a"])
def test_a_file_name_that_cannot_be_written_is_refused(tmp_path, name):
    with pytest.raises(NmtError):
        draw([cross_only_sentence()], tmp_path / name)


@pytest.mark.parametrize("name", ["a.png", "a.html"])
def test_a_picture_that_fails_keeps_the_old_file(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"old")
    for wrong in ({"layers": [9]}, {"heads": [5]}):
        with pytest.raises(NmtError):
            draw([cross_only_sentence()], path, **wrong)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_without_matplotlib_pages_work_and_pictures_name_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(EXTRAS, "plots", {"nowhere.at.all": "matplotlib>=3.8"})
    check_path(tmp_path / "a.html")
    with pytest.raises(MachineError, match=r"a\.svg: .*pip install 'matplotlib>=3\.8'; a page, \.html, needs none\.$"):
        check_path(tmp_path / "a.svg")
