"""Lines that were shifted on purpose are found, and what is in order raises no alarm."""

import random

import numpy as np
import pytest

from nmt.data import alignment_shift
from nmt.data.alignment_shift import FARTHEST, FEWEST, RECORD, find_shifts, records_of
from nmt.data.text import Block

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
    one, other = Block(src), Block(trg)
    records = records_of((one.lengths, other.lengths), (one.words(), other.words()))
    path.write_bytes(np.zeros(before, RECORD).tobytes() + records.tobytes())
    return find_shifts(path, before, len(src))


def shifted(src, trg, folder):
    """(first, last, offset) of each stretch; both sides cut to the length of the shorter."""
    n = min(len(src), len(trg))
    return [(one["first"], one["last"], one["offset"]) for one in aligned(src[:n], trg[:n], folder)["stretches"]]


def are_near(found, wanted):
    """The offsets agree, and the lines to within eight."""
    assert [offset for *_, offset in found] == [offset for *_, offset in wanted]
    assert all(
        abs(a - b) <= 8 for one, other in zip(found, wanted, strict=True) for a, b in zip(one[:2], other, strict=False)
    )


def test_a_clean_corpus_raises_no_alarm(tmp_path):
    found = aligned(*corpus(), tmp_path)
    assert found["stretches"] == [] and found["judged"]


@pytest.mark.parametrize("n_stray", [1, FARTHEST])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("first", [150, 1000])
def test_stray_lines_shift_all_that_follow(tmp_path, n_stray, side, first):
    sides = corpus()
    sides[side][first:first] = sides[side][:n_stray]
    begins = first + 1 + (0 if side else n_stray)
    are_near(shifted(*sides, tmp_path), [(begins, N, n_stray if side else -n_stray)])


def test_several_shifts_add_up_and_where_lines_go_together_again_is_named(tmp_path):
    src, trg = corpus(2000)
    trg.insert(300, trg[7])
    del trg[800]
    src.insert(1200, src[9])
    trg.insert(1600, trg[8])
    are_near(shifted(src, trg, tmp_path), [(301, 800, 1), (1202, 1600, -1)])


def test_lines_that_go_with_none_near_are_named_if_there_are_many(tmp_path):
    src, trg = corpus(2000)
    are_near(shifted(src, trg[:1000] + trg[1500:] + trg[1000:1500], tmp_path), [(1001, 2000, None)])
    assert shifted(src, trg[:1000] + trg[500:600] + trg[1100:], tmp_path) == []


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
    found = {
        "equal": (["ab"] * N, ["cd"] * N),
        "strangers": (src, random.Random(3).sample(trg, N)),
        "strangers in runs": (runs(5), runs(55)),  # by chance they go best 9 lines apart
        "short": (src[: FEWEST - 1], trg[: FEWEST - 1]),
    }
    result = aligned(*found[kind], tmp_path)
    assert not result["judged"] and result["stretches"] == []


def test_a_file_is_looked_at_in_chunks_and_from_its_place_among_others(tmp_path, monkeypatch):
    src, trg = corpus()
    trg.insert(600, "stray")
    whole = aligned(src, trg[:N], tmp_path)["stretches"]
    monkeypatch.setattr(alignment_shift, "_CHUNK", 3)
    apart = aligned(src, trg[:N], tmp_path, before=70)["stretches"]
    assert [{**one, "gain": 0} for one in apart] == [{**one, "gain": 0} for one in whole] != []
