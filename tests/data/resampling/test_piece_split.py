"""Pieces that fall apart: the text stays, and how often is a matter of the rate and the seed alone."""

import numpy as np
import pytest

from nmt.data.arrays.ragged import Ragged
from nmt.data.resampling.piece_split import Splitter
from nmt.data.vocabulary.subwords import N_SPECIAL, Subwords
from nmt.recipe.subword_options import SubwordsConfig

LINES = ["a man sleeps on a sofa", "two men and a dog sleep", "the man and the dogs", "", "sleeping dogs"] * 40
CODEC = Subwords.train(lambda: LINES, lambda: LINES, SubwordsConfig(vocab_size=340), seed=1).src
IDS = [np.array(ids, dtype=np.int64) for ids in CODEC.encode(LINES)]


def split(rate, seed=0, ids=IDS):
    return Splitter(CODEC, rate)(Ragged.of(ids), np.random.default_rng(seed)).rows()


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.6, 1.0])
def test_the_text_stays_whatever_falls_apart(rate):
    found = split(rate)
    assert [CODEC.decode(ids.tolist()) for ids in found] == LINES
    assert all(len(new) >= len(old) for new, old in zip(found, IDS, strict=True))
    assert found[0].dtype == np.int64


def test_no_rate_changes_nothing_and_the_whole_leaves_bytes():
    assert all(np.array_equal(new, old) for new, old in zip(split(0.0), IDS, strict=True))
    assert [len(ids) for ids in split(1.0)] == [len(line.encode()) + 1 for line in LINES]


def test_pieces_fall_apart_as_often_as_the_rate_says_and_their_parts_again():
    """The share that is left whole is that of one draw a piece, and the parts of the others are asked too."""
    word = np.array(CODEC.encode(["dogs"])[0])
    assert len(word) == 1
    found = split(0.3, ids=[word] * 20_000)
    whole = np.mean([len(ids) == 1 for ids in found])
    assert abs(whole - 0.7) < 0.02
    assert max(map(len, found)) > 2


def test_the_seed_decides():
    assert [ids.tolist() for ids in split(0.3, 1)] == [ids.tolist() for ids in split(0.3, 1)]
    assert [ids.tolist() for ids in split(0.3, 1)] != [ids.tolist() for ids in split(0.3, 2)]


def test_every_piece_longer_than_a_byte_has_two_parts_that_make_it():
    left, right = (side.tolist() for side in CODEC.parts())
    for i, piece in enumerate(CODEC.vocab, N_SPECIAL):
        if len(piece) == 1:
            assert left[i] == right[i] == -1
        else:
            assert CODEC.vocab[left[i] - N_SPECIAL] + CODEC.vocab[right[i] - N_SPECIAL] == piece
    assert left[:N_SPECIAL] == [-1] * N_SPECIAL
    assert len(left) == CODEC.size
