"""Words drawn again until a text is as long as it was planned: no text longer, few shorter, and each word as before."""

import numpy as np
import pytest

from nmt.data.arrays.chance import mixed
from nmt.data.resampling.steer import AS_STORED, Lengths, steer

N_WAY = 16
N_TEXT = 400


def texts(seed=0):
    """Words of texts; of each the ids it has as it is stored, and in each of its ways."""
    rng = np.random.default_rng(seed)
    text = np.repeat(np.arange(N_TEXT), rng.integers(1, 30, N_TEXT))
    stored = rng.integers(1, 3, len(text))
    ways = stored[:, None] + rng.poisson(0.4, (len(text), N_WAY))
    return text, stored, ways


def steered(wanted, *, seed=0):
    """The ids of each word, and the way of each."""
    text, stored, ways = texts()
    chance = np.random.default_rng(seed).integers(0, 2**64, len(text), dtype=np.uint64)

    def draw(words, chance):
        found = (chance % np.uint64(N_WAY)).astype(np.int64)
        return found, ways[words, found]

    def longer(words, n_id, most, chance):
        order = np.argsort(mixed(chance[:, None] + np.arange(N_WAY, dtype=np.uint64)), axis=1)
        of_way = np.take_along_axis(ways[words], order, 1)
        at = ((of_way > n_id[:, None]) & (of_way <= most[:, None])).argmax(1)
        return order[np.arange(len(words)), at], of_way[np.arange(len(words)), at]

    way, n_id = draw(np.arange(len(text)), chance)
    steer(way, Lengths(text, n_id, stored, wanted), chance, draw, longer)
    of_way = np.where(way == AS_STORED, stored, ways[np.arange(len(text)), way])
    assert (n_id == of_way).all()
    return n_id, way


def usual():
    text, _, ways = texts()
    return np.bincount(text, ways.mean(1)).round().astype(np.int64)


def sums(n_id):
    return np.bincount(texts()[0], n_id).astype(np.int64)


def test_no_text_is_longer_than_wanted_and_hardly_any_is_shorter():
    n_id, _ = steered(usual())
    assert (sums(n_id) <= usual()).all()
    assert np.mean(sums(n_id) == usual()) > 0.99


@pytest.mark.parametrize("more", [0, 1])
def test_a_text_that_may_not_grow_stays_as_it_is_stored(more):
    stored = texts()[1]
    n_id, way = steered(sums(stored) + more)
    assert (sums(n_id) <= sums(stored) + more).all()
    if not more:
        assert (n_id == stored).all()
    assert AS_STORED in way


def test_a_text_that_shall_be_longer_than_it_can_is_as_long_as_chance_finds():
    n_id, way = steered(np.full(N_TEXT, 10_000))
    assert sums(n_id).sum() > 1.2 * usual().sum()
    assert AS_STORED not in way


def test_words_grow_as_often_as_they_would_by_chance_alone():
    _, stored, ways = texts()
    n_seed = 60
    grown = sum(steered(usual(), seed=seed)[0] - stored for seed in range(n_seed)) / n_seed
    likely = (ways - stored[:, None]).mean(1)
    assert grown.mean() == pytest.approx(likely.mean(), rel=0.03)
    assert np.corrcoef(grown, likely)[0, 1] > 0.85


def test_words_at_the_end_of_a_text_are_drawn_again_as_often_as_those_at_its_beginning():
    text = texts()[0]
    starts = np.searchsorted(text, text)
    place = (np.arange(len(text)) - starts) / np.bincount(text)[text]
    changed = np.zeros(len(text))
    for seed in range(60):
        chance = np.random.default_rng(seed).integers(0, 2**64, len(text), dtype=np.uint64)
        changed += steered(usual(), seed=seed)[1] != (chance % np.uint64(N_WAY)).astype(np.int64)
    long = np.bincount(text)[text] > 10
    first, last = changed[long & (place < 0.3)].mean(), changed[long & (place > 0.7)].mean()
    assert first == pytest.approx(last, rel=0.15)
