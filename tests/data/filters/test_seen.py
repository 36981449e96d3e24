"""Duplicates, near duplicates, and pairs with too many translations."""

import functools
import random
from collections import Counter

import numpy as np
import pytest

from nmt.data import dedup
from nmt.data.dedup import NO_KEY, keys_for, keys_of, repeated
from nmt.recipe.data_options import FilterConfig

NEAR = keys_for([FilterConfig(drop_near_duplicates=True)])


@functools.cache
def near_key(src, trg):
    return int(keys_of([src], [trg], NEAR)["near"][0])


def drop_reasons(pairs, filters, sizes):
    keys = keys_of(*zip(*pairs, strict=True), keys_for(filters))
    reasons = [None] * len(pairs)
    for reason, numbers in repeated(keys, filters, sizes):
        for n in numbers.tolist():
            assert reasons[n] is None
            reasons[n] = reason
    return reasons


def one_by_one(pairs, filters):
    """Reference of `drop_reasons`, pair after pair in memory. filters: one for each pair."""
    exact, near, sides, reasons = set(), set(), Counter(), []
    for (src, trg), config in zip(pairs, filters, strict=True):
        if config.drop_duplicates and (src, trg) in exact:
            reasons.append("duplicate")
        elif config.drop_near_duplicates and near_key(src, trg) in near:
            reasons.append("near duplicate")
        elif config.max_translations and max(sides["src", src], sides["trg", trg]) >= config.max_translations:
            reasons.append("many translations")
        else:
            reasons.append(None)
            sides.update((("src", src), ("trg", trg)))
        exact.add((src, trg))
        near.add(near_key(src, trg))
    return reasons


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("Hello, World!", "hello world", True),
        ("in 1995", "IN 2024", True),
        ("in 1995", "in 199", True),
        ("Straße", "STRASSE", True),
        ("ｆｕｌｌ ｗｉｄｔｈ １", "full width 2", True),
        ("e\u0301tude", "étude", True),
        ("don’t", "don't", True),
        ("١٢ كتاب", "34 كتاب", True),
        ("你好，世界。", "你好 世界", True),
        ("!!!", "???", False),
        ("5 €", "5 $", False),
        ("की", "का", False),  # vowel signs are not punctuation
        ("ที่", "ที", False),
        ("a_b", "ab", True),
        ("été", "ete", False),
        ("the dog", "a dog", False),
    ],
)
def test_near_duplicates_differ_only_in_case_numbers_punctuation_spaces_or_width(first, second, expected):
    assert (near_key(first, "") == near_key(second, "")) == expected


@pytest.mark.parametrize("at_once", [1 << 20, 50])
def test_each_corpus_has_its_own_filters_but_duplicates_count_across_corpora(at_once, monkeypatch):
    monkeypatch.setattr(dedup, "_AT_ONCE", at_once)
    monkeypatch.setattr(dedup, "_READ", 37)
    for seed in range(30):
        rng = random.Random(seed)
        pairs = [tuple(rng.choice("aAbBcCdD!?") + rng.choice("12") for _ in "st") for _ in range(400)]
        filters = [
            FilterConfig(
                drop_duplicates=rng.random() < 0.4,
                drop_near_duplicates=rng.random() < 0.4,
                max_translations=rng.choice([0, 0, 1, 2, 4]),
            )
            for _ in range(rng.choice([1, 4]))
        ]
        sizes = [400] if len(filters) == 1 else [100, 120, 150, 30]
        pair_filters = [config for config, n in zip(filters, sizes, strict=True) for _ in range(n)]
        assert drop_reasons(pairs, filters, sizes) == one_by_one(pairs, pair_filters), seed


def test_pairs_without_keys_are_no_reason_to_drop_others():
    config = FilterConfig(drop_duplicates=True, max_translations=1)
    keys = np.array([(key,) * 3 for key in (NO_KEY, 7, NO_KEY, 7, 8)], keys_for([config]))
    dropped = dict(repeated(keys, [config], [5]))
    assert dropped["duplicate"].tolist() == [3] and dropped["many translations"].tolist() == []
