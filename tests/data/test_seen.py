"""Pairs that came before, and what it takes to know."""

import random
import subprocess
import sys
from collections import Counter

import pytest

from nmt.data.seen import Seen, Tally, hash_of, skeleton
from nmt.recipe.filter_options import FilterConfig


def reasons(pairs, n_pair=10, **options):
    seen = Seen(FilterConfig(**options), n_pair)
    return [seen.reason_to_drop(*pair) for pair in pairs]


def test_a_pair_is_a_duplicate_the_second_time_only():
    pairs = [("a", "b"), ("a", "c"), ("a", "b"), ("b", "a"), ("A", "b")]
    assert reasons(pairs, drop_duplicates=True) == [None, None, "duplicate", None, None]
    assert reasons(pairs) == [None] * 5


def test_a_near_duplicate_is_called_so_and_an_exact_one_otherwise():
    pairs = [("Nr. 1!", "No. 1!"), ("nr 2", "NO 2"), ("Nr. 1!", "No. 1!"), ("Nr. 1!", "No, 1 a")]
    both = reasons(pairs, drop_duplicates=True, drop_near_duplicates=True)
    assert both == [None, "near duplicate", "duplicate", None]
    assert reasons(pairs, drop_near_duplicates=True) == [None, "near duplicate", "near duplicate", None]


def test_so_many_translations_of_each_side_are_kept():
    pairs = [("a", "1"), ("a", "2"), ("a", "3"), ("b", "3"), ("c", "3"), ("d", "3"), ("e", "4")]
    too_many = "many translations"
    assert reasons(pairs, max_translations=2) == [None, None, too_many, None, None, too_many, None]


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("Hello, World!", "hello world", True),
        ("in 1995", "IN 2024", True),
        ("in 1995", "in 199", False),
        ("Straße", "STRASSE", True),
        ("ｆｕｌｌ ｗｉｄｔｈ １", "full width 2", True),
        ("e\u0301tude", "étude", True),
        ("don’t", "don't", True),
        ("١٢ كتاب", "34 كتاب", True),
        ("你好，世界。", "你好 世界", True),
        ("!!!", "???", False),
        ("...", "…", True),
        ("की", "का", False),  # vowel signs are not punctuation
        ("ที่", "ที", False),
        ("a_b", "ab", True),
        ("été", "ete", False),
        ("the dog", "a dog", False),
    ],
)
def test_what_makes_near_duplicates(one, other, alike):
    assert (skeleton(one) == skeleton(other)) == alike


def test_a_tally_counts_like_a_counter_however_small_it_began():
    rng = random.Random(1)
    keys = [rng.choice((1, 9, 17, 25)) << rng.choice((0, 3, 40, 58)) for _ in range(3000)]
    keys += [rng.randrange(1, 1 << 64) for _ in range(3000)]
    tally, once, counter = Tally(0), Tally(0, counts=False), Counter()
    for key in keys:
        assert tally.times(key) == tally.count(key) == counter[key]
        assert once.times(key) == once.count(key) == min(1, counter[key])
        counter[key] += 1


def test_a_pair_takes_12_bytes_and_2_sides_that_are_counted_take_30():
    assert Tally(10_000, counts=False).n_byte <= 12 * 10_000 + 100
    tally = Tally(10_000)
    assert 2 * tally.n_byte <= 30 * 10_000 + 200
    before = tally.n_byte
    for n in range(10_000):
        tally.count(hash_of(str(n)))
    assert tally.n_byte == before, "it holds what it was made for without growing"


def test_hashes_are_those_of_any_process():
    code = "from nmt.data.seen import hash_of; print(hash_of('Größe'))"
    told = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in "12"
    }
    assert told == {f"{hash_of('Größe')}\n".encode()}
