"""Words that are cut anew in training: the text stays, chance is that of seed and pair, and batches keep their size."""

from collections import Counter

import numpy as np
import pytest

from nmt.data.arrays import Ragged
from nmt.data.letters import BYTE_OF
from nmt.data.resample import with_dropout, with_probabilities
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
HOW = {"bpe": (BPE, with_dropout, 0.0, 0.3), "unigram": (UNIGRAM, with_probabilities, 10_000.0, 0.2)}


def arrays(codec, lines=LINES):
    return [np.array(ids, dtype=np.int64) for ids in codec.encode(lines)]


def cut(resampler, ids, *how):
    return resampler(Ragged.of(ids), *how).rows()


def listed(found):
    return [ids.tolist() for ids in found]


@pytest.mark.parametrize("how", HOW)
def test_without_chance_a_word_is_cut_as_encoding_cuts_it(how):
    codec, make, none, _ = HOW[how]
    assert listed(cut(make(codec, none), arrays(codec), PAIRS, 1)) == listed(arrays(codec))


@pytest.mark.parametrize("how", HOW)
def test_the_text_stays_and_symbols_are_never_cut(how):
    codec, make, _, some = HOW[how]
    symbol = codec.encode(["<url>"])[0][-1]
    resampler = make(codec, some)
    for seed in range(5):
        found = cut(resampler, arrays(codec), PAIRS, seed)
        assert [codec.decode(ids) for ids in listed(found)] == [codec.normalised(line) for line in LINES]
        assert listed(found) != listed(arrays(codec))
        assert all((symbol in ids) == ("<url>" in line) for ids, line in zip(listed(found), LINES, strict=True))


@pytest.mark.parametrize("how", HOW)
def test_what_comes_out_depends_on_the_seed_and_the_pair_alone(how):
    codec, make, _, some = HOW[how]
    resampler, ids = make(codec, some), arrays(codec)
    whole = listed(cut(resampler, ids, PAIRS, 1))
    order = np.random.default_rng(0).permutation(PAIRS)
    other = make(codec, some)
    cut(other, ids[5:9], PAIRS[5:9], 7)  # what was asked before does not matter
    for few in np.array_split(order, 7):
        assert listed(cut(other, [ids[n] for n in few], few, 1)) == [whole[n] for n in few]
    assert listed(cut(resampler, ids, PAIRS, 2)) != whole
    assert listed(cut(resampler, ids, PAIRS + 100, 1)) != whole


@pytest.mark.parametrize("how", HOW)
def test_a_text_of_a_limited_length_is_the_same_text_and_no_longer(how):
    codec, make, _, some = HOW[how]
    resampler, ids = make(codec, some), arrays(codec)
    n_id = np.array(list(map(len, ids)))
    most = np.ceil(n_id * (1.2 if how == "bpe" else 1.05)).astype(np.int64)
    found, free = cut(resampler, ids, PAIRS, 1, most), cut(resampler, ids, PAIRS, 1)
    assert [codec.decode(one) for one in listed(found)] == [codec.normalised(line) for line in LINES]
    assert all(len(one) <= n for one, n in zip(found, most, strict=True))
    fits = [n for n, one in enumerate(free) if len(one) <= most[n]]
    assert 0 < len(fits) < len(ids) and all(listed(found)[n] == listed(free)[n] for n in fits)
    assert np.mean([len(one) for one in found]) > 0.9 * np.minimum(list(map(len, free)), most).mean()
    few = np.array([30, 2, 17])
    assert listed(cut(make(codec, some), [ids[n] for n in few], few, 1, most[few])) == [listed(found)[n] for n in few]
    assert all(len(one) <= n for one, n in zip(cut(resampler, ids, PAIRS, 1, n_id), n_id, strict=True))


def test_words_that_nothing_tells_apart_are_cut_each_by_itself():
    """Letters of which the pieces do not say that they are letters."""
    lines = ["αβγδ αβγδ"] * 20
    codec = learnt_subwords(lines, lines, SubwordsConfig(vocab_size=270)).src
    resampler, ids = with_dropout(codec, 0.5), arrays(codec, ["1αβγδ1αβγδ"] * 50)
    assert sum(resampler.begins(ids[0], np.array([len(ids[0])]))) == 1
    pieces = [codec.pieces(found.tolist()) for found in cut(resampler, ids, np.arange(50), 1)]
    between = [" ".join(some).split(" 1 ") for some in pieces]
    assert any(left != right for _, left, right in between) and any(left == right for _, left, right in between)


def chances(resampler, word, n=20_000):
    seeds = np.random.default_rng(3).integers(0, 2**64, n, dtype=np.uint64)
    found = Counter(tuple(way.tolist()) for way in resampler._cut([word] * n, seeds).rows())
    return {ids: count / n for ids, count in found.items()}


def test_a_way_is_as_likely_as_its_probability_to_the_power_of_alpha():
    word, alpha = "Ġdog", 0.4
    score_of = {**dict.fromkeys(BYTE_OF, -4.0), "do": -3.0, "og": -2.5, "dog": -7.0, "Ġd": -5.0}
    codec = Codec(PieceTable(vocab=list(score_of), scores=list(score_of.values())), SubwordsFile(kind="unigram"))

    def ways(rest):
        if not rest:
            return [()]
        cuts = (n for n in range(1, len(rest) + 1) if rest[:n] in score_of)
        return [(rest[:n], *more) for n in cuts for more in ways(rest[n:])]

    weight = {way: np.exp(alpha * sum(score_of[piece] for piece in way)) for way in ways(word)}
    found = chances(with_probabilities(codec, alpha), word)
    assert len(weight) == 6
    for way, each in weight.items():
        ids = tuple(codec.vocab.index(piece) + N_SPECIAL for piece in way)
        assert found[ids] == pytest.approx(each / sum(weight.values()), abs=0.015)
