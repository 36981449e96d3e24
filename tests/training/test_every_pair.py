"""Every pair moves the weights exactly once an epoch: over all ranks, over stops inside an epoch and at its end."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from witness import pairs_of, plan_of, train_in_legs

from nmt import checkpoint
from nmt.run import Run


def count(*legs):
    return Counter(json.dumps(pair) for leg in legs for pair in leg)


@pytest.fixture
def two_epochs(recipe_of):
    """A recipe of two epochs with three batches in an update but for the last, and the updates of the first epoch."""
    watching = {"every": 10_000, "translate": False, "metric": "loss"}
    options = {"batch": {"max_tokens": 240, "per_update": 3, "pool": 70}, "valid": watching}
    plan = plan_of(recipe_of(**options))
    n_first, n_second = len(plan.updates(0)), len(plan.updates(1))
    assert len(plan.updates(0)[-1]) < 3
    return recipe_of(train={"updates": n_first + n_second}, **options), n_first


def test_one_process(two_epochs):
    recipe, n_first = two_epochs
    wanted = count(pairs_of(recipe))
    first, rest_of_first, second = train_in_legs(recipe, [3, n_first - 3, None])
    assert count(first) < wanted
    assert count(first, rest_of_first) == wanted
    assert count(second) == wanted


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the ranks are forked")
def test_two_processes_of_which_one_has_nothing_to_do_at_times(two_epochs, start):
    recipe, n_first = two_epochs
    wanted = count(pairs_of(recipe))
    group = start(recipe, legs=[3, n_first - 3, None])
    assert group.wait() == [0, 0], group.words(0) + group.words(1)
    ranks = [json.loads(Path(f"{group.said}.{rank}.seen").read_text(encoding="utf-8")) for rank in (0, 1)]
    first, rest_of_first, second = zip(*ranks, strict=True)
    assert all(first) and count(*first) < wanted
    assert count(*first, *rest_of_first) == wanted
    assert count(*second) == wanted
    state = checkpoint.verify(Run(recipe.run_folder).checkpoint(recipe.train.updates))
    assert state["n_token"] == 2 * sum(len(trg) + 1 for _, trg in pairs_of(recipe))
