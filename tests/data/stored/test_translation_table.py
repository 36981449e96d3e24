"""Which subwords translate each other: the formula of IBM model 1, and what it finds in a language made up for it."""

import math
from collections import defaultdict

import numpy as np
import pytest

from nmt.data.stored import translation_table as room
from nmt.data.stored.translation_table import N_KEPT, UNIT, translation_table
from nmt.data.vocabulary.subwords import EOS

N_SRC, N_TRG = 40, 48


class Pairs:
    """As much of a corpus as the table looks at."""

    def __init__(self, pairs):
        self._src, self._trg = ([np.array(one, dtype=np.int64) for one in side] for side in zip(*pairs, strict=True))
        self.src_len, self.trg_len = (np.array(list(map(len, side))) for side in (self._src, self._trg))
        self.n_pair = len(pairs)

    def pairs(self, rows):
        return [self._src[row] for row in rows], [self._trg[row] for row in rows]


def some_pairs(n=200, seed=0):
    """Word s is translated by s + 5; target 44 stands in every sentence, and 45 in half of them."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        src = rng.integers(5, 35, rng.integers(1, 8))
        found.append((src.tolist(), [44, *(src + 5).tolist(), *[45] * int(rng.integers(2))]))
    return found


def plainly(pairs, joint):
    """Two passes of EM over dictionaries: {(source, target): share}."""
    share = defaultdict(lambda: 1.0)
    for passed in (1, 2):
        count = defaultdict(float)
        for src, trg in pairs:
            words = {*src, EOS}
            for target in set(trg):
                every = sum(share[word, target] for word in words)
                for word in words:
                    count[word, target] += share[word, target] / every
        if joint and passed == 2:
            for word in range(N_SRC):
                count[word, word] += 1
        of_word = defaultdict(float)
        for (word, _), its in count.items():
            of_word[word] += its
        share = {key: its / of_word[key[0]] for key, its in count.items()}
        share = defaultdict(float, share)
    return share


def shares(table):
    return {
        (src, int(trg)): int(share)
        for src in range(len(table.trg))
        for trg, share in zip(table.trg[src], table.share[src], strict=True)
        if share
    }


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("at_once", [150, 10**6])
def test_the_shares_are_those_of_two_passes_of_the_formula(joint, at_once, monkeypatch):
    monkeypatch.setattr(room, "_AT_ONCE", at_once)
    pairs = [*some_pairs(), ([7], []), ([], [9])]
    table, wanted = translation_table(Pairs(pairs), N_SRC, N_TRG, joint=joint), plainly(pairs, joint)
    found = shares(table)
    assert found == {key: pytest.approx(UNIT * its, abs=1) for key, its in wanted.items() if UNIT * its > 0.5}
    for row in table.share:
        assert (np.diff(row) <= 0).all()


def test_a_word_is_translated_by_its_translation_and_the_empty_word_by_what_is_everywhere():
    table = translation_table(Pairs(some_pairs()), N_SRC, N_TRG, joint=False)
    assert table.trg[5:35, 0].tolist() == list(range(10, 40))
    assert table.trg[EOS, 0] == 44 and table.frequent[0] == 44
    assert sorted(table.frequent) == list(range(N_TRG))


def test_what_was_never_seen_is_copied_where_both_sides_share_their_subwords():
    table = translation_table(Pairs(some_pairs()), N_SRC, N_TRG, joint=True)
    assert (table.trg[38, 0], table.share[38, 0]) == (38, UNIT)
    assert not translation_table(Pairs(some_pairs()), N_SRC, N_TRG, joint=False).share[38].any()


def test_only_the_likeliest_are_kept():
    pairs = [([6], list(range(5, 5 + 2 * N_KEPT))), *[([6], [9])] * 5]
    table = translation_table(Pairs(pairs), 8, 5 + 2 * N_KEPT, joint=False)
    assert table.trg[6, 0] == 9 and table.share[6].all() and len(set(table.trg[6].tolist())) == N_KEPT


def test_of_a_large_corpus_pairs_from_end_to_end_are_counted():
    early, late = [([6], [10])] * 500, [([7], [11])] * 500
    table = translation_table(Pairs(early + late), 8, 12, joint=False, n_meeting=100)
    assert (table.trg[6, 0], table.trg[7, 0]) == (10, 11)
    assert math.isclose(table.share[6, 0] / UNIT, 1.0, abs_tol=1e-5)
