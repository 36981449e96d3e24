"""Padding, BOS and EOS framing, sentences end to end, batches by length, and reading ahead."""

import threading

import numpy as np
import pytest
import torch

from nmt.data.arrays import Ragged
from nmt.data.batches import STEP, end_to_end, length_batches, make_batch, pad, read_ahead
from nmt.data.subwords import BOS, EOS, PAD


def test_pad_frames_every_sentence_with_bos_and_eos():
    ids = Ragged.of([[7, 8], [], [9]])
    framed = [[BOS, 7, 8, EOS], [BOS, EOS, PAD, PAD], [BOS, 9, EOS, PAD]]
    assert pad(ids, before=(BOS,), after=(EOS,)).tolist() == framed
    assert pad(ids, after=(EOS,)).dtype == torch.int64


@pytest.mark.parametrize("longest", [1, 2, 7, 40])
def test_end_to_end_batches_have_padding_only_after_the_last_sentence(longest):
    rng = np.random.default_rng(longest)
    for n in (1, 2, 15, 16, 17, 100):
        src, trg = (Ragged.of([rng.integers(4, 90, rng.integers(0, longest)) for _ in range(n)]) for _ in range(2))
        padded = make_batch(src, trg)
        packed = end_to_end(padded)
        assert packed.n_gold == padded.n_gold and packed.src_start.shape == packed.trg_start.shape
        for row, matrix, start in (
            (packed.src_seq, padded.src_seq, packed.src_start),
            (packed.trg_seq, padded.trg_seq, packed.trg_start),
            (packed.gold, padded.gold, packed.trg_start),
        ):
            ids, n_place = [[i for i in padded_ids if i != PAD] for padded_ids in matrix.tolist()], row.size(1)
            assert row.size(0) == 1 and n_place % STEP == 0 and n_place - STEP < sum(map(len, ids))
            assert start.dtype == torch.int32 and start[0] == 0 and start[-1] == n_place
            sentences = [part.tolist() for part in row[0].split(start.diff().tolist())]
            assert sentences[:n] == ids and {i for padding in sentences[n:] for i in padding} <= {PAD}
            assert max(map(len, sentences)) == max(map(len, ids))


def test_length_batches_hold_every_sentence_once_longest_first_within_budget():
    length = np.random.default_rng(0).integers(1, 50, 200)
    batches = length_batches(length, 100)
    assert sorted(np.concatenate(batches)) == list(range(200))
    assert all(len(rows) * length[rows].max() <= 100 for rows in batches)
    longest = [length[rows].max() for rows in batches]
    assert longest == sorted(longest, reverse=True)


def test_read_ahead_keeps_the_order_and_raises_an_error_at_its_item():
    seen = []
    with pytest.raises(ZeroDivisionError):
        for value in read_ahead(lambda n: 6 // n, [3, 2, 0, 1]):
            seen.append(value)
    assert seen == [2, 3]


def test_read_ahead_thread_ends_when_the_iterator_is_closed():
    n_thread = threading.active_count()
    reader = read_ahead(lambda n: n, iter(int, 1))  # endless
    assert next(reader) == 0
    reader.close()
    assert threading.active_count() == n_thread
