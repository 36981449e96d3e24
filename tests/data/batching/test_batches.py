"""Padding, frames of BOS and EOS, and reading ahead."""

import threading

import numpy as np
import pytest
import torch

from nmt.data.arrays import Ragged
from nmt.data.batches import STEP, end_to_end, length_batches, make_batch, pad, read_ahead
from nmt.data.subwords import BOS, EOS, PAD


def test_padding_frames_every_sentence():
    ids = Ragged.of([[7, 8], [], [9]])
    framed = [[BOS, 7, 8, EOS], [BOS, EOS, PAD, PAD], [BOS, 9, EOS, PAD]]
    assert pad(ids, before=(BOS,), after=(EOS,)).tolist() == framed
    assert pad(ids, after=(EOS,)).dtype == torch.int64


@pytest.mark.parametrize("longest", [1, 2, 7, 40])
def test_sentences_end_to_end_have_no_padding_but_after_them(longest):
    draw = np.random.default_rng(longest)
    for n in (1, 2, 15, 16, 17, 100):
        src, trg = (Ragged.of([draw.integers(4, 90, draw.integers(0, longest)) for _ in range(n)]) for _ in range(2))
        padded = make_batch(src, trg)
        found = end_to_end(padded)
        assert found.n_gold == padded.n_gold and found.src_start.shape == found.trg_start.shape
        for row, matrix, start in (
            (found.src_seq, padded.src_seq, found.src_start),
            (found.trg_seq, padded.trg_seq, found.trg_start),
            (found.gold, padded.gold, found.trg_start),
        ):
            ids, n_place = [[one for one in line if one != PAD] for line in matrix.tolist()], row.size(1)
            assert row.size(0) == 1 and n_place % STEP == 0 and n_place - STEP < sum(map(len, ids))
            assert start.dtype == torch.int32 and start[0] == 0 and start[-1] == n_place
            sentences = [one.tolist() for one in row[0].split(start.diff().tolist())]
            assert sentences[:n] == ids and {one for line in sentences[n:] for one in line} <= {PAD}
            assert max(map(len, sentences)) == max(map(len, ids))


def test_length_batches_hold_every_sentence_once_longest_first_within_budget():
    length = np.random.default_rng(0).integers(1, 50, 200)
    found = length_batches(length, 100)
    assert sorted(np.concatenate(found)) == list(range(200))
    assert all(len(rows) * length[rows].max() <= 100 for rows in found)
    longest = [length[rows].max() for rows in found]
    assert longest == sorted(longest, reverse=True)


def test_reading_ahead_keeps_the_order_and_an_error_is_raised_where_its_item_is_due():
    seen = []
    with pytest.raises(ZeroDivisionError):
        for value in read_ahead(lambda n: 6 // n, [3, 2, 0, 1]):
            seen.append(value)
    assert seen == [2, 3]


def test_reading_ahead_stops_when_nobody_listens():
    before = threading.active_count()
    reader = read_ahead(lambda n: n, iter(int, 1))  # without end
    assert next(reader) == 0
    reader.close()
    assert threading.active_count() == before
