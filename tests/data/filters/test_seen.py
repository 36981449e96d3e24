"""Pairs that came before, and what it takes to know."""

import random
from collections import Counter

import numpy as np
import pytest

from nmt.data import dedup
from nmt.data.dedup import NO_KEY, keys_for, keys_of, repeated, skeleton
from nmt.recipe.data_options import FilterConfig


def told_by(pairs, filters, n_of):
    keys = keys_of(*zip(*pairs, strict=True), keys_for(filters))
    found = [None] * len(pairs)
    for reason, numbers in repeated(keys, filters, n_of):
        for n in numbers.tolist():
            assert found[n] is None
            found[n] = reason
    return found


def one_by_one(pairs, filters):
    """The same, pair after pair, with everything in memory. filters: of each pair."""
    exact, near, sides, found = set(), set(), Counter(), []
    for (src, trg), config in zip(pairs, filters, strict=True):
        if config.drop_duplicates and (src, trg) in exact:
            found.append("duplicate")
        elif config.drop_near_duplicates and (skeleton(src), skeleton(trg)) in near:
            found.append("near duplicate")
        elif config.max_translations and max(sides["src", src], sides["trg", trg]) >= config.max_translations:
            found.append("many translations")
        else:
            found.append(None)
            sides.update((("src", src), ("trg", trg)))
        exact.add((src, trg))
        near.add((skeleton(src), skeleton(trg)))
    return found


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


@pytest.mark.parametrize("at_once", [1 << 20, 50])
def test_each_corpus_is_judged_by_its_own_filters_and_remembered_for_all(at_once, monkeypatch):
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
        n_of = [400] if len(filters) == 1 else [100, 120, 150, 30]
        own = [one for one, n in zip(filters, n_of, strict=True) for _ in range(n)]
        assert told_by(pairs, filters, n_of) == one_by_one(pairs, own), seed


def test_pairs_that_are_not_asked_about_are_no_reason_to_drop_others():
    config = FilterConfig(drop_duplicates=True, max_translations=1)
    keys = np.array([(key,) * 3 for key in (NO_KEY, 7, NO_KEY, 7, 8)], keys_for([config]))
    found = dict(repeated(keys, [config], [5]))
    assert found["duplicate"].tolist() == [3] and found["many translations"].tolist() == []
