"""Ways of words are drawn once, found again, and forgotten when there are too many."""

from itertools import chain

import numpy as np
import pytest

from nmt.data.resampling.ways import N_WAY, Ways

NUMBERS = np.random.default_rng(1).integers(1, 2**63, 500, dtype=np.uint64)
NOWHERE = np.zeros(0, dtype=np.int64)


def way(number, n):
    """Ids of way n of a word: none to four."""
    return [int((number + n) % 1000)] * int((number + n) % 5)


class Asked:
    """Words asked for, and those among them that had to be drawn."""

    def __init__(self, ways, numbers):
        self.drawn = []

        def draw(places):
            self.drawn += numbers[places].tolist()
            found = [way(int(number), n) for number in numbers[places] for n in range(N_WAY)]
            return np.array(list(chain.from_iterable(found)), dtype=np.int64), np.array(list(map(len, found)))

        self.first = ways.first(numbers, draw)
        self.ways, self.numbers = ways, numbers

    def cut(self, n):
        """The ids of way n of each."""
        n_id = self.ways.n_id(self.first + n)
        ids = self.ways.gathered(self.first + n, NOWHERE, np.zeros_like(n_id), n_id)
        return [part.tolist() for part in np.split(ids, np.cumsum(n_id)[:-1])]

    def are_right(self):
        return all(self.cut(n) == [way(int(number), n) for number in self.numbers] for n in range(N_WAY))


def test_a_word_is_drawn_when_it_is_met_first_and_kept():
    ways, met = Ways(), set()
    for some in np.array_split(np.random.default_rng(2).choice(NUMBERS, 2000), 9):
        asked = Asked(ways, some)
        assert sorted(asked.drawn) == sorted(set(some.tolist()) - met)
        assert asked.are_right()
        met |= set(some.tolist())


def test_too_many_words_are_forgotten_and_drawn_again(monkeypatch):
    monkeypatch.setattr("nmt.data.resampling.ways._MOST_WORDS", 100)
    ways = Ways()
    for _ in range(2):
        for some in np.array_split(NUMBERS, 10):
            assert Asked(ways, some).are_right()
    last = Asked(ways, NUMBERS[-50:])
    assert last.are_right() and not last.drawn  # of so few words the memory still holds
    assert len(ways._ways) <= 150 * N_WAY


def test_a_number_that_is_0_is_a_word_too():
    asked = Asked(Ways(), np.array([0, 7, 0], dtype=np.uint64))
    assert asked.first[0] == asked.first[2] != asked.first[1]


@pytest.mark.parametrize("stored", [[0], [1, 2], [0, 1, 2, 3]])
def test_words_that_stay_are_taken_from_where_they_are_stored(stored):
    asked = Asked(Ways(), NUMBERS[:4])
    ids, where, n_stored = np.arange(5000, 5010), np.array([0, 3, 4, 7]), np.array([3, 1, 3, 3])
    chosen, n_id = asked.first + 1, asked.ways.n_id(asked.first + 1)
    chosen[stored], n_id[stored] = -1, n_stored[stored]
    found = np.split(asked.ways.gathered(chosen, ids, where, n_id), np.cumsum(n_id)[:-1])
    for n, (part, begin) in enumerate(zip(found, where, strict=True)):
        of_way = way(int(NUMBERS[n]), 1)
        assert part.tolist() == (ids[begin : begin + n_stored[n]].tolist() if n in stored else of_way)
