"""Subword sampling (BPE-dropout, unigram): preserves the text and depends only on seed and pair."""

from collections import Counter

import numpy as np
import pytest

from nmt.data.arrays import Ragged
from nmt.data.letters import BYTE_LETTERS
from nmt.data.resample import Resampler, dropout_cut, unigram_cut
from nmt.data.subword_kinds import PieceTable, SubwordsFile
from nmt.data.subwords import N_SPECIAL, Codec
from nmt.recipe.data_options import SubwordsConfig
from tests.data.awkward import AWKWARD
from tests.learnt import learnt_subwords

LINES = [
    "a man sleeps on a sofa", "two men and a dog sleep", "the man's dogs, 12 <url>!", "", "sleeping dogs",
    "man'sleeping",
] * 8  # fmt: skip
LINES += [line for line in AWKWARD if len(line) < 1000]
PAIRS = np.arange(len(LINES))


def codec_of(kind):
    config = SubwordsConfig(kind=kind, vocab_size=400, symbols=("<url>",))
    return learnt_subwords(LINES, LINES, config).src


BPE, UNIGRAM = codec_of("bpe"), codec_of("unigram")


def resamplers(make_cut):
    return lambda codec, rate: Resampler(codec, make_cut(codec, rate))


with_dropout, with_probabilities = resamplers(dropout_cut), resamplers(unigram_cut)
METHODS = {"bpe": (BPE, with_dropout, 0.0, 0.3), "unigram": (UNIGRAM, with_probabilities, 10_000.0, 0.2)}


def encoded(codec, lines=LINES):
    return [np.array(ids, dtype=np.int64) for ids in codec.encode(lines)]


def sample(resampler, ids, *args):
    return resampler(Ragged.of(ids), *args).rows()


def lists(rows):
    return [ids.tolist() for ids in rows]


@pytest.mark.parametrize("kind", METHODS)
def test_sampling_switched_off_equals_plain_encoding(kind):
    codec, make_resampler, off, _ = METHODS[kind]
    assert lists(sample(make_resampler(codec, off), encoded(codec), PAIRS, 1)) == lists(encoded(codec))


def test_a_merge_that_a_file_has_twice_has_the_same_rank_in_sampling_and_plain_encoding():
    merges = [("a", "b"), ("b", "c"), ("a", "b")]
    codec = Codec(PieceTable(vocab=[*BYTE_LETTERS, "ab", "bc"], merges=merges))
    assert lists(sample(with_dropout(codec, 0.0), encoded(codec, ["abc"]), PAIRS[:1], 1)) == codec.encode(["abc"])


@pytest.mark.parametrize("kind", METHODS)
def test_sampling_preserves_text_and_never_splits_symbols(kind):
    codec, make_resampler, _, rate = METHODS[kind]
    symbol = codec.encode(["<url>"])[0][-1]
    resampler = make_resampler(codec, rate)
    for seed in range(5):
        found = sample(resampler, encoded(codec), PAIRS, seed)
        assert [codec.decode(ids) for ids in lists(found)] == [codec.normalised(line) for line in LINES]
        assert lists(found) != lists(encoded(codec))
        assert all((symbol in ids) == ("<url>" in line) for ids, line in zip(lists(found), LINES, strict=True))


@pytest.mark.parametrize("kind", METHODS)
def test_sampling_depends_only_on_seed_and_pair(kind):
    codec, make_resampler, _, rate = METHODS[kind]
    resampler, ids = make_resampler(codec, rate), encoded(codec)
    whole = lists(sample(resampler, ids, PAIRS, 1))
    order = np.random.default_rng(0).permutation(PAIRS)
    other = make_resampler(codec, rate)
    sample(other, ids[5:9], PAIRS[5:9], 7)  # earlier calls do not matter
    for subset in np.array_split(order, 7):
        assert lists(sample(other, [ids[n] for n in subset], subset, 1)) == [whole[n] for n in subset]
    assert lists(sample(resampler, ids, PAIRS, 2)) != whole
    assert lists(sample(resampler, ids, PAIRS + 100, 1)) != whole


@pytest.mark.parametrize("kind", METHODS)
def test_a_length_limit_holds_and_preserves_the_text(kind):
    codec, make, _, rate = METHODS[kind]
    resampler, ids = make(codec, rate), encoded(codec)
    lengths = np.array(list(map(len, ids)))
    limit = np.ceil(lengths * (1.2 if kind == "bpe" else 1.05)).astype(np.int64)
    found, unlimited = sample(resampler, ids, PAIRS, 1, limit), sample(resampler, ids, PAIRS, 1)
    assert [codec.decode(row) for row in lists(found)] == [codec.normalised(line) for line in LINES]
    assert all(len(row) <= n for row, n in zip(found, limit, strict=True))
    fits = [n for n, row in enumerate(unlimited) if len(row) <= limit[n]]
    assert 0 < len(fits) < len(ids) and all(lists(found)[n] == lists(unlimited)[n] for n in fits)
    assert np.mean([len(row) for row in found]) > 0.9 * np.minimum(list(map(len, unlimited)), limit).mean()
    few = np.array([30, 2, 17])
    assert lists(sample(make(codec, rate), [ids[n] for n in few], few, 1, limit[few])) == [lists(found)[n] for n in few]
    assert all(len(row) <= n for row, n in zip(sample(resampler, ids, PAIRS, 1, lengths), lengths, strict=True))


def test_words_without_visible_boundaries_are_sampled_independently():
    """The byte pieces of these letters do not show where a word begins."""
    lines = ["αβγδ αβγδ"] * 20
    codec = learnt_subwords(lines, lines, SubwordsConfig(vocab_size=270)).src
    resampler, ids = with_dropout(codec, 0.5), encoded(codec, ["1αβγδ1αβγδ"] * 50)
    assert sum(resampler.begins(ids[0], np.array([len(ids[0])]))) == 1
    pieces = [codec.pieces(found.tolist()) for found in sample(resampler, ids, np.arange(50), 1)]
    words = [" ".join(row).split(" 1 ") for row in pieces]
    assert any(left != right for _, left, right in words) and any(left == right for _, left, right in words)


def segmentation_shares(cut, word, n=20_000):
    draws = np.random.default_rng(3).integers(0, 2**64, (n, len(word)), dtype=np.uint64).tolist()
    found = Counter(tuple(cut(word, numbers)) for numbers in draws)
    return {ids: count / n for ids, count in found.items()}


def test_unigram_samples_follow_the_probability_to_the_power_of_alpha():
    word, alpha = " dog", 0.4
    score_of = {**dict.fromkeys(BYTE_LETTERS, -4.0), "do": -3.0, "og": -2.5, "dog": -7.0, " d": -5.0}
    codec = Codec(PieceTable(vocab=list(score_of), scores=list(score_of.values())), SubwordsFile(kind="unigram"))

    def segmentations(rest):
        if not rest:
            return [()]
        cuts = (n for n in range(1, len(rest) + 1) if rest[:n] in score_of)
        return [(rest[:n], *more) for n in cuts for more in segmentations(rest[n:])]

    weight = {pieces: np.exp(alpha * sum(score_of[piece] for piece in pieces)) for pieces in segmentations(word)}
    found = segmentation_shares(unigram_cut(codec, alpha), word)
    assert len(weight) == 6
    for pieces, value in weight.items():
        ids = tuple(codec.vocab.index(piece) + N_SPECIAL for piece in pieces)
        assert found[ids] == pytest.approx(value / sum(weight.values()), abs=0.015)
