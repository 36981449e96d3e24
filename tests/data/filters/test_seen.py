"""Pairs that came before, and what it takes to know."""

import random
import subprocess
import sys
from collections import Counter
from functools import partial

import numpy as np
import pytest

from nmt.data import dedup as room
from nmt.data.dedup import hash_of, in_pieces, keys_of, kinds_of, repeated, skeleton
from nmt.recipe.data_options import FilterConfig


def reasons(pairs, **options):
    config = FilterConfig(**options)
    keys = keys_of(*zip(*pairs, strict=True), kinds_of([config]))
    found = [None] * len(pairs)
    for reason, numbers in repeated({kind: partial(iter, [of]) for kind, of in keys.items()}, [config], [len(pairs)]):
        for n in numbers.tolist():
            assert found[n] is None
            found[n] = reason
    return found


def one_by_one(pairs, *, drop_duplicates, drop_near_duplicates, max_translations):
    """The same, pair after pair, with everything in memory."""
    exact, near, sides, found = set(), set(), Counter(), []
    for src, trg in pairs:
        if drop_duplicates and (src, trg) in exact:
            found.append("duplicate")
        elif drop_near_duplicates and (skeleton(src), skeleton(trg)) in near:
            found.append("near duplicate")
        elif max_translations and max(sides["src", src], sides["trg", trg]) >= max_translations:
            found.append("many translations")
        else:
            found.append(None)
            sides.update((("src", src), ("trg", trg)))
        exact.add((src, trg))
        near.add((skeleton(src), skeleton(trg)))
    return found


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


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize("most", [0, 1, 3])
def test_however_the_keys_are_shared_out_and_read_pairs_are_dropped_as_one_by_one(
    exact, near, most, tmp_path, monkeypatch
):
    rng = random.Random(f"{exact} {near} {most}")
    pairs = [tuple(rng.choice("aAbBcCdDeEfF!?") + rng.choice("12") for _ in "st") for _ in range(600)]
    options = {"drop_duplicates": exact, "drop_near_duplicates": near, "max_translations": most}
    assert reasons(pairs, **options) == one_by_one(pairs, **options)
    monkeypatch.setattr(room, "_KEYS_AT_ONCE", 50)
    monkeypatch.setattr(room, "_KEYS_READ", 37)
    config, told = FilterConfig(**options), [None] * len(pairs)
    for kind, keys in keys_of(*zip(*pairs, strict=True), kinds_of([config])).items():
        keys.tofile(tmp_path / kind)
    files = {kind: in_pieces(tmp_path / kind) for kind in kinds_of([config])}
    for reason, numbers in repeated(files, [config], [len(pairs)]):
        for n in numbers.tolist():
            told[n] = reason
    assert told == one_by_one(pairs, **options)


def test_each_corpus_is_judged_by_its_own_filters_and_remembered_for_all():
    rng = random.Random(3)
    pairs = [tuple(rng.choice("aAbBcC!") + rng.choice("12") for _ in "st") for _ in range(400)]
    filters = [
        FilterConfig(max_translations=4),
        FilterConfig(drop_duplicates=True),
        FilterConfig(drop_near_duplicates=True, max_translations=2),
        FilterConfig(),
    ]
    n_of = [100, 120, 150, 30]
    own = [one for one, n in zip(filters, n_of, strict=True) for _ in range(n)]
    exact, near, sides, expected = set(), set(), Counter(), {}
    for n, ((src, trg), config) in enumerate(zip(pairs, own, strict=True)):
        most = config.max_translations
        if config.drop_duplicates and (src, trg) in exact:
            expected[n] = "duplicate"
        elif config.drop_near_duplicates and (skeleton(src), skeleton(trg)) in near:
            expected[n] = "near duplicate"
        elif most and max(sides["src", src], sides["trg", trg]) >= most:
            expected[n] = "many translations"
        else:
            sides.update((("src", src), ("trg", trg)))
        exact.add((src, trg))
        near.add((skeleton(src), skeleton(trg)))
    keys = keys_of(*zip(*pairs, strict=True), kinds_of(filters))
    found = repeated({kind: partial(iter, [of]) for kind, of in keys.items()}, filters, n_of)
    assert {n: reason for reason, numbers in found for n in numbers.tolist()} == expected
    assert len(set(expected.values())) == 3


def test_pairs_that_are_not_asked_about_are_no_reason_to_drop_others():
    config = FilterConfig(drop_duplicates=True, max_translations=1)
    keys = {kind: np.array([room.NO_KEY, 7, room.NO_KEY, 7, 8], np.uint64) for kind in kinds_of([config])}
    found = dict(repeated({kind: partial(iter, [of]) for kind, of in keys.items()}, [config], [5]))
    assert found["duplicate"].tolist() == [3] and found["many translations"].tolist() == []


def test_hashes_are_those_of_any_process():
    code = "from nmt.data.dedup import hash_of; print(hash_of('Größe'))"
    told = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in "12"
    }
    assert told == {f"{hash_of('Größe')}\n".encode()}
