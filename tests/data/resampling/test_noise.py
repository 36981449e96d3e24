"""Source noise: changes the given share of pairs, depends only on epoch and pair, and leaves other pairs alone."""

import numpy as np
import pytest

from nmt.data.arrays import Ragged
from nmt.data.resample import Noise, in_capitals, mistyped
from nmt.recipe.data_options import SubwordsConfig
from nmt.recipe.training_options import NoiseConfig
from tests.learnt import learnt_subwords

SRC = ["Ein Mann läuft schnell über die Straße.", "Wo ist der kleine Hund?", "zwei", "Привет, мир!"] * 50
TRG = ["A man runs quickly across the street.", "Where is the little dog?", "two", "こんにちは。"] * 50
SHARES = {"upper": 0.2, "title": 0.2, "lower": 0.2, "no_end": 0.2, "typo": 0.2}


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def subwords(request):
    config = SubwordsConfig(vocab_size=400, kind=request.param)
    return learnt_subwords(iter(SRC), iter(TRG), config)


def noisy(subwords, shares, rows=None, *, epoch=0, most=200, corpora=(("de", "en", 10**6),)):
    rows = np.arange(len(SRC)) if rows is None else np.array(rows)
    sides = [
        Ragged.of(codec.encode([lines[i] for i in rows]), np.dtype(np.int32))
        for codec, lines in ((subwords.src, SRC), (subwords.trg, TRG))
    ]
    noised = Noise(NoiseConfig(**shares), subwords, corpora, seed=3, most=most)(*sides, rows, epoch)
    return [
        [codec.decode(ids.tolist()) for ids in side.rows()]
        for codec, side in zip((subwords.src, subwords.trg), noised, strict=True)
    ]


@pytest.mark.parametrize(
    ("kind", "row", "src", "trg"),
    [
        ("upper", 1, "WO IST DER KLEINE HUND?", "WHERE IS THE LITTLE DOG?"),
        ("upper", 3, "ПРИВЕТ, МИР!", "こんにちは。"),  # no capitals in this script
        ("title", 1, "Wo Ist Der Kleine Hund?", TRG[1]),
        ("lower", 1, "wo ist der kleine hund?", TRG[1]),
        ("no_end", 1, "Wo ist der kleine Hund", "Where is the little dog"),
    ],
)
def test_each_kind_of_noise_changes_the_right_sides(subwords, kind, row, src, trg):
    assert noisy(subwords, {kind: 1.0}, [row]) == [[src], [trg]]
    assert in_capitals("istanbul", dotted=True) == "İSTANBUL"


def test_capitals_follow_the_languages_of_the_corpus(subwords):
    row = next(n for n, line in enumerate(SRC) if "i" in line and "i" in TRG[n])
    for corpora in ([("de", "tr", row), ("de", "en", len(SRC))], [("de", "en", row + 1), ("tr", "tr", len(SRC))]):
        (src,), (trg,) = noisy(subwords, {"upper": 1.0}, [row], corpora=corpora)
        assert (src, trg) == (SRC[row].upper(), TRG[row].upper())
    (src,), (trg,) = noisy(subwords, {"upper": 1.0}, [row], corpora=[("de", "en", row), ("de", "tr", len(SRC))])
    assert src == SRC[row].upper() and "İ" in trg


def test_about_the_given_share_of_sources_changes(subwords):
    src, trg = noisy(subwords, {"typo": 0.3})
    changed = [a != b for a, b in zip(src, SRC, strict=True)]
    assert 0.15 < np.mean(changed) < 0.4 and trg == TRG


def test_noise_depends_only_on_epoch_and_pair(subwords):
    whole = noisy(subwords, SHARES)
    for rows in (range(100, 200), [7, 3, 150]):
        assert noisy(subwords, SHARES, rows) == [[side[i] for i in rows] for side in whole]
    assert noisy(subwords, SHARES) == whole != noisy(subwords, SHARES, epoch=1)


def test_a_pair_that_would_become_too_long_stays_unchanged(subwords):
    assert noisy(subwords, {"upper": 1.0}, [1], most=len(subwords.src.encode([SRC[1]])[0])) == [[SRC[1]], [TRG[1]]]


def test_a_typo_is_small_and_spares_first_letters_and_short_words():
    for seed in range(200):
        text = mistyped("Der kleine Hund läuft", np.uint64(seed))
        assert text != "" and text.startswith("Der ") and [word[0] for word in text.split()] == ["D", "k", "H", "l"]
        assert abs(len(text) - 21) <= 1
    assert mistyped("a 12 xyz", np.uint64(5)) == "a 12 xyz"
