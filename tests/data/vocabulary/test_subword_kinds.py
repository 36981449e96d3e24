"""Kinds of subwords, and user-defined symbols."""

from collections import Counter

import numpy as np
import pytest

from nmt.data import subword_kinds
from nmt.data.letters import BYTE_LETTERS
from nmt.data.subwords import N_SPECIAL, Subwords
from nmt.errors import RecipeError
from nmt.recipe.data_options import SubwordsConfig
from nmt.recipe.reader import read_recipe
from tests.learnt import learnt_subwords

LINES = ["the cat sat on the mat", "the dog sat, too", "cats and dogs and more cats"] * 5


def trained(lines=LINES, **options):
    return learnt_subwords(lines, lines, SubwordsConfig(**{"vocab_size": 300, **options})).src


def split(codec, line):
    return codec.pieces(codec.encode([line])[0])


def test_frequent_words_are_whole_and_others_are_spelled_in_bytes():
    codec = trained(kind="word", vocab_size=256 + N_SPECIAL + 6)
    assert codec.size == 256 + N_SPECIAL + 6
    assert split(codec, "the mat, and dög") == ["▁the", "▁", "m", "a", "t", ",", "▁and", "▁", "d", "<C3>", "<B6>", "g"]
    frequency = Counter(word for line in LINES for word in f" {line}".replace(",", "").replace(" ", " ▁").split())
    kept = {piece for piece in codec.pieces(range(N_SPECIAL, codec.size)) if len(piece) > 1 and piece[0] == "▁"}
    assert min(frequency[word] for word in kept) >= max(n for word, n in frequency.items() if word not in kept)


def test_unigram_scores_are_probabilities_and_the_likeliest_segmentation_wins():
    codec = trained(kind="unigram", vocab_size=280)
    assert codec.size == 280
    assert np.exp(codec.scores).sum() == pytest.approx(1.0, abs=1e-3)
    assert set(codec.vocab) >= set(BYTE_LETTERS)
    score_of = dict(zip(codec.vocab, codec.scores, strict=True))

    def best_score(letters):
        if not letters:
            return 0.0
        return max(
            score_of[letters[:n]] + best_score(letters[n:])
            for n in range(1, len(letters) + 1)
            if letters[:n] in score_of
        )

    for word in (" the", " cats", " dog", " satdog"):
        pieces = [codec.vocab[i - N_SPECIAL] for i in codec.encode([word[1:]])[0]]
        assert sum(score_of[piece] for piece in pieces) == pytest.approx(best_score(word), abs=1e-5)


def test_nfkc_unifies_compatible_characters():
    codec = trained(normalize="nfkc")
    text = "ﬁve　Ｃａｔs\u00a0½"
    assert codec.decode(codec.encode([text])[0]) == "five Cats 1⁄2"
    assert codec.encode([text]) == codec.encode(["five Cats 1⁄2"])


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char"])
def test_symbol_is_one_piece_unless_it_is_part_of_a_word(kind):
    codec = trained(kind=kind, symbols=("<url>", "<url2>"))
    for line in ("see <url>.", "<url>", "(<url>) <url2>", "日本<url>語", "<url><url2>"):
        assert [piece for piece in split(codec, line) if "url" in piece] == [
            piece
            for piece in line.replace("<url2>", "|<url2>|").replace("<url>", "|<url>|").split("|")
            if "url" in piece
        ]
    for line in ("a<url>", "<url>s", "7<url>", "<URL>", "< url>", "é<url>"):
        assert "<url>" not in split(codec, line)
    assert codec.vocab[-2:] == ["<url>", "<url2>"] and codec.size <= 300


def test_no_learnt_piece_contains_a_symbol():
    lines = ["x<url>x y<url>y <url>"] * 200
    for kind in ("bpe", "unigram", "word", "char"):
        codec = trained(lines, kind=kind, symbols=("<url>",))
        assert not [piece for piece in codec.table.vocab if "url" in piece]


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ("[<url>, <url>]", "<url> occurs twice"),
        ("[x]", "two or more printable"),
        ("['a b']", "two or more printable"),
        ("[</s>]", "name of a control symbol"),
        (f"[<{'x' * 70}>]", "64 bytes at most"),
        ("['ﬁx']", "changed by subwords.normalize: nfkc"),
    ],
)
def test_invalid_symbols_are_refused(symbols, message):
    with pytest.raises(RecipeError, match=message):
        read_recipe(None, [("name", "x"), ("subwords.symbols", symbols), ("subwords.normalize", "nfkc")])
    with pytest.raises(RecipeError, match=r"subwords\.vocab_size: 265 has no room for symbols"):
        read_recipe(None, [("name", "x"), ("subwords.symbols", "[<a>, <b>]"), ("subwords.vocab_size", "265")])


def test_new_kind_needs_only_a_name_in_the_recipe_and_a_class(monkeypatch, tmp_path):
    class Syllables(subword_kinds.Word):
        stored = "syllables"

        def learn(self, words, n_piece):
            pieces = Counter(word[:3] for word in words if word.isascii())
            return subword_kinds.PieceTable(vocab=[*BYTE_LETTERS, *(piece for piece in pieces if len(piece) > 1)])

    class Config(SubwordsConfig):
        kind: str = "syllables"

    monkeypatch.setitem(subword_kinds.KINDS, "syllables", Syllables())
    subwords = learnt_subwords(LINES, LINES, Config())
    subwords.save(tmp_path / "subwords.json")
    codec = Subwords.load(tmp_path / "subwords.json").src
    assert codec.kind == "syllables" and codec.decode(codec.encode(LINES)[0]) == LINES[0]
