"""Lines that were shifted on purpose are found, and what is in order raises no alarm."""

import random

import numpy as np
import pytest

from nmt.data import alignment_shift
from nmt.data.alignment_shift import FARTHEST, FEWEST, RECORD, find_shifts, records_of
from nmt.data.text import Anchors, Block

N = 1200


def corpus(n=N, seed=0):
    """Made-up translations: lengths go together loosely, some lines share a number or a name."""
    draw = random.Random(seed)
    src, trg = [], []
    for _ in range(n):
        length = draw.randrange(2, 14)
        extra = [str(draw.randrange(100, 5000))] if draw.random() < 0.3 else []
        src.append(" ".join([*(draw.choice("abcdefg") * draw.randrange(2, 7) for _ in range(length)), *extra]))
        n_trg = max(1, length + draw.randrange(-1, 2))
        trg.append(" ".join([*(draw.choice("uvwxyz") * draw.randrange(2, 7) for _ in range(n_trg)), *extra]))
    return src, trg


def aligned(src, trg, folder, before=0):
    path = folder / "records"
    records = records_of(Block(src), Block(trg), Anchors())
    path.write_bytes(np.zeros(before, RECORD).tobytes() + records.tobytes())
    return find_shifts(path, before, len(src))


def near(a, b):
    return abs(a - b) <= 8


def test_a_clean_corpus_raises_no_alarm(tmp_path):
    found = aligned(*corpus(), tmp_path)
    assert found.stretches == () and found.can_be_judged


@pytest.mark.parametrize("n_stray", [1, 4, FARTHEST])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("first", [150, 1000])
def test_stray_lines_shift_all_that_follow(tmp_path, n_stray, side, first):
    sides = corpus()
    stray = [sides[side][n] for n in range(n_stray)]
    sides[side][first:first] = stray
    del sides[side][N:]  # the counts agree
    (found,) = aligned(*sides, tmp_path).stretches
    assert found.offset == (n_stray if side else -n_stray)
    assert near(found.first, first + 1 + (0 if side else n_stray)) and found.last == N


def test_where_lines_go_together_again_is_named(tmp_path):
    src, trg = corpus()
    trg.insert(300, trg[7])
    del trg[800]
    (found,) = aligned(src, trg, tmp_path).stretches
    assert found.offset == 1 and near(found.first, 301) and near(found.last, 800) and found.gain > alignment_shift.PRICE


def test_several_shifts_add_up(tmp_path):
    src, trg = corpus(2000)
    trg.insert(500, trg[7])
    trg.insert(1000, trg[8])
    src.insert(1500, src[9])
    n = min(len(src), len(trg))
    found = aligned(src[:n], trg[:n], tmp_path).stretches
    assert [each.offset for each in found] == [1, 2, 1]
    assert all(near(each.first, first) for each, first in zip(found, (501, 1001, 1502), strict=True))


def test_lines_that_go_with_none_near_are_named_if_there_are_many(tmp_path):
    src, trg = corpus(2000)
    trg[1000:] = trg[1500:] + trg[1000:1500]
    (found,) = aligned(src, trg, tmp_path).stretches
    assert found.offset is None and near(found.first, 1001) and found.last == 2000
    src, trg = corpus(2000)
    trg[1000:1100] = trg[500:600]
    assert aligned(src, trg, tmp_path).stretches == ()


def runs(seed, n=N):
    """Lines of which each few are about equally long, and that tell nothing else."""
    draw, lines = random.Random(seed), []
    while len(lines) < n:
        usual = draw.randrange(5, 60)
        lines += ["x" * max(1, int(draw.gauss(usual, 1))) for _ in range(draw.randrange(3, 12))]
    return lines[:n]


@pytest.mark.parametrize("kind", ["equal", "strangers", "strangers in runs", "short"])
def test_what_tells_nothing_is_not_judged(tmp_path, kind):
    src, trg = corpus()
    if kind == "equal":
        src, trg = ["ab"] * N, ["cd"] * N
    elif kind == "strangers":
        random.Random(3).shuffle(trg)
    elif kind == "strangers in runs":
        src, trg = runs(5), runs(55)  # by chance they go best 9 lines apart
    else:
        src, trg = (side[: FEWEST - 1] for side in (src, trg))
    found = aligned(src, trg, tmp_path)
    assert not found.can_be_judged and found.stretches == ()


def test_a_file_is_looked_at_in_chunks_and_from_its_place_among_others(tmp_path, monkeypatch):
    src, trg = corpus()
    trg.insert(600, "stray")
    trg.pop()
    whole = aligned(src, trg, tmp_path)
    monkeypatch.setattr(alignment_shift, "_CHUNK", 3)
    apart = aligned(src, trg, tmp_path, before=70)
    assert [(e.first, e.last, e.offset) for e in apart.stretches] == [
        (e.first, e.last, e.offset) for e in whole.stretches
    ]
