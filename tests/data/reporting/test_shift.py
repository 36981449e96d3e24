"""Detection of misaligned lines: shifts are found, and aligned corpora raise no alarm."""

import random

import numpy as np
import pytest

from nmt.data import alignment_shift
from nmt.data.alignment_shift import FARTHEST, FEWEST, RECORD, find_shifts, records_of
from nmt.data.units import Units

N = 1200


def synthetic_corpus(n=N, seed=0):
    """Synthetic translations: lengths are loosely correlated, some lines share a number."""
    rng = random.Random(seed)
    src, trg = [], []
    for _ in range(n):
        length = rng.randrange(2, 14)
        extra = [str(rng.randrange(100, 5000))] if rng.random() < 0.3 else []
        src.append(" ".join([*(rng.choice("abcdefg") * rng.randrange(2, 7) for _ in range(length)), *extra]))
        n_trg = max(1, length + rng.randrange(-1, 2))
        trg.append(" ".join([*(rng.choice("uvwxyz") * rng.randrange(2, 7) for _ in range(n_trg)), *extra]))
    return src, trg


def shifts_of(src, trg, folder, before=0):
    path = folder / "records"
    path.write_bytes(np.zeros(before, RECORD).tobytes() + records_of(Units(src), Units(trg)).tobytes())
    return find_shifts(path, before, len(src))


def stretches_of(src, trg, folder):
    """Return (first, last, offset) of each shifted stretch; both sides are cut to the shorter length."""
    n = min(len(src), len(trg))
    return [(row["first"], row["last"], row["offset"]) for row in shifts_of(src[:n], trg[:n], folder)["stretches"]]


def assert_near(found, expected):
    """Assert that the offsets agree, and the lines to within eight."""
    assert [offset for *_, offset in found] == [offset for *_, offset in expected]
    assert all(
        abs(a - b) <= 8 for row, want in zip(found, expected, strict=True) for a, b in zip(row[:2], want, strict=False)
    )


def test_an_aligned_corpus_raises_no_alarm(tmp_path):
    found = shifts_of(*synthetic_corpus(), tmp_path)
    assert found["stretches"] == [] and found["judged"]


@pytest.mark.parametrize("n_stray", [1, FARTHEST])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("first", [150, 1000])
def test_stray_lines_shift_all_following_lines(tmp_path, n_stray, side, first):
    sides = synthetic_corpus()
    sides[side][first:first] = sides[side][:n_stray]
    first_shifted = first + 1 + (0 if side else n_stray)
    assert_near(stretches_of(*sides, tmp_path), [(first_shifted, N, n_stray if side else -n_stray)])


def test_shifts_add_up_and_end_where_lines_are_aligned_again(tmp_path):
    src, trg = synthetic_corpus(2000)
    trg.insert(300, trg[7])
    del trg[800]
    src.insert(1200, src[9])
    trg.insert(1600, trg[8])
    assert_near(stretches_of(src, trg, tmp_path), [(301, 800, 1), (1202, 1600, -1)])


def test_many_lines_without_a_near_partner_are_reported(tmp_path):
    src, trg = synthetic_corpus(2000)
    assert_near(stretches_of(src, trg[:1000] + trg[1500:] + trg[1000:1500], tmp_path), [(1001, 2000, None)])
    assert stretches_of(src, trg[:1000] + trg[500:600] + trg[1100:], tmp_path) == []


def runs(seed, n=N):
    """Lines in runs of about equal length, with nothing else in common."""
    rng, lines = random.Random(seed), []
    while len(lines) < n:
        mean = rng.randrange(5, 60)
        lines += ["x" * max(1, int(rng.gauss(mean, 1))) for _ in range(rng.randrange(3, 12))]
    return lines[:n]


@pytest.mark.parametrize("kind", ["equal", "strangers", "strangers in runs", "short"])
def test_uninformative_corpora_are_not_judged(tmp_path, kind):
    src, trg = synthetic_corpus()
    corpora = {
        "equal": (["ab"] * N, ["cd"] * N),
        "strangers": (src, random.Random(3).sample(trg, N)),
        "strangers in runs": (runs(5), runs(55)),  # by chance they match best at an offset of 9 lines
        "short": (src[: FEWEST - 1], trg[: FEWEST - 1]),
    }
    result = shifts_of(*corpora[kind], tmp_path)
    assert not result["judged"] and result["stretches"] == []


def test_chunks_and_a_start_offset_give_the_same_stretches(tmp_path, monkeypatch):
    src, trg = synthetic_corpus()
    trg.insert(600, "stray")
    whole = shifts_of(src, trg[:N], tmp_path)["stretches"]
    monkeypatch.setattr(alignment_shift, "_CHUNK", 3)
    chunked = shifts_of(src, trg[:N], tmp_path, before=70)["stretches"]
    assert chunked == whole != []
