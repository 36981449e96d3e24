"""Padding, frames of BOS and EOS, and reading ahead."""

import threading

import numpy as np
import pytest
import torch

from nmt.data.batches import read_ahead
from nmt.data.padding import length_batches, pad
from nmt.data.ragged import Ragged
from nmt.data.subwords import BOS, EOS, PAD


def test_padding_frames_every_sentence():
    ids = Ragged.of([[7, 8], [], [9]])
    assert pad(ids, before=(BOS,), after=(EOS,)).tolist() == [
        [BOS, 7, 8, EOS],
        [BOS, EOS, PAD, PAD],
        [BOS, 9, EOS, PAD],
    ]
    assert pad(ids, after=(EOS,)).dtype == torch.int64


def test_length_batches_hold_every_sentence_once_longest_first_within_budget():
    length = np.random.default_rng(0).integers(1, 50, 200)
    found = length_batches(length, 100)
    assert sorted(np.concatenate(found)) == list(range(200))
    assert all(len(rows) * length[rows].max() <= 100 for rows in found)
    longest = [length[rows].max() for rows in found]
    assert longest == sorted(longest, reverse=True)


def test_reading_ahead_keeps_the_order():
    assert list(read_ahead(lambda n: n * n, range(100))) == [n * n for n in range(100)]


def test_an_error_while_reading_ahead_is_raised_where_its_item_is_due():
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
