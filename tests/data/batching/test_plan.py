"""The plan: every pair once an epoch, within budget, a function of (seed, epoch) alone."""

import tracemalloc
from itertools import islice

import numpy as np
import pytest

from nmt.data import plan as plan_module
from nmt.data.plan import Mixture, Plan, Position


def batches(plan, epoch):
    return [rows for update in plan.updates(epoch) for rows in update]


@pytest.mark.parametrize("longest, max_tokens", [(90, 1000), (61, 1000), (300, 45)])
def test_sides_are_padded_to_few_lengths_and_batches_still_fit(longest, max_tokens):
    sides = [np.random.default_rng(seed).integers(1, longest, 5000, dtype=np.int32) for seed in (1, 2)]
    plan = Plan(*sides, seed=1, max_tokens=max_tokens, per_update=1, pool=1000)
    most = min(max_tokens, longest)
    for n in range(1, longest + 1):
        assert plan.padded(n) == padded_length(n, most) >= n
    n_position = n_long = 0
    for rows in batches(plan, 0):
        n_src, n_trg = (plan.padded(int(side[rows].max()) + 1) for side in sides)
        assert len(rows) * max(n_src, n_trg) <= max_tokens or (len(rows) == 1 and max(n_src, n_trg) <= longest)
        n_position += len(rows) * (n_src + n_trg)
        n_long += max(n_src, n_trg) > 64
    assert n_long or longest < 64
    assert sum(map(plan.n_gold, plan.updates(0))) == sides[1].sum() + 5000  # with end marks, without padding
    assert plan.totals(0)[1] == pytest.approx(1 - sum(int(side.sum()) + 5000 for side in sides) / n_position)


def padded_length(n, most):
    """Length to which n subwords are padded: a multiple of `step`, the least power of two with n // step < 32."""
    step = 1
    while n // step >= 32:
        step *= 2
    return max(n, min(-(-n // step) * step, most))


def cutting_order(rows, src, trg, most):
    """Return pairs in the order in which they are cut into batches, and the padded length of the longer side."""
    difference = {row: padded_length(src[row], most) - padded_length(trg[row], most) for row in rows}
    longest = {row: padded_length(max(src[row], trg[row]), most) for row in rows}
    lengths = sorted(set(longest.values()))
    direction = {length: -1 if number % 2 else 1 for number, length in enumerate(lengths)}
    return sorted(rows, key=lambda row: (longest[row], direction[longest[row]] * difference[row])), longest


def reference_updates(
    src_len, trg_len, epoch, *, seed, max_tokens, per_update, pool, packed=False, tokens_per_update=0, mixture
):
    """Reference: all updates of an epoch as lists of lists. If they change, plan.VERSION must increase."""
    src, trg = src_len.astype(np.int64) + 1, trg_len.astype(np.int64) + 1
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(src) if mixture is None else mixture.rows(seed, epoch))
    all_batches = []
    if packed:
        n_visit = np.ones(len(src)) if mixture is None else np.repeat(mixture.weights, mixture.sizes)
        n_usual = max_tokens * n_visit.sum() / max(n_visit @ src, n_visit @ trg)
        most = 64 * np.ceil(1.25 * n_usual / 64)
        batch = []
        for row in order:
            candidate = [*batch, row]
            if batch and (max(src[candidate].sum(), trg[candidate].sum()) > max_tokens or len(candidate) > most):
                all_batches.append(batch)
                candidate = [row]
            batch = candidate
        all_batches.append(batch)
    else:
        for start in range(0, len(order), pool):
            rows = order[start : start + pool]
            rows, longest = cutting_order(rows.tolist(), src, trg, min(max_tokens, max(src.max(), trg.max())))
            batches = [[]]
            for row in rows:
                if batches[-1] and (len(batches[-1]) + 1) * longest[row] > max_tokens:
                    batches.append([])
                batches[-1].append(row)
            all_batches += [batches[i] for i in rng.permutation(len(batches))]
    updates = [[]]
    for batch in all_batches:
        n_gold = sum(trg[rows].sum() for rows in updates[-1])
        is_full = n_gold >= tokens_per_update if tokens_per_update else len(updates[-1]) == per_update
        if updates[-1] and is_full:
            updates.append([])
        updates[-1].append(batch)
    return updates


def as_lists(updates):
    return [[list(rows) for rows in update] for update in updates]


@pytest.mark.parametrize("mixture", [None, Mixture((400, 600), (1.5, 0.3))])
@pytest.mark.parametrize("tokens_per_update", [0, 900])
@pytest.mark.parametrize("packed", [False, True])
def test_batches_equal_those_of_the_reference(packed, tokens_per_update, mixture):
    rng = np.random.default_rng(3)
    src, trg = (rng.integers(0, 40, 1000, dtype=np.int32) for _ in range(2))  # many have the same length
    options = {"packed": packed, "tokens_per_update": tokens_per_update, "mixture": mixture}
    options |= {"seed": 7, "max_tokens": 400, "per_update": 3, "pool": 300}
    plan = Plan(src, trg, **options)
    for epoch in (4, 0):  # epochs come in any order
        expected = reference_updates(src, trg, epoch, **options)
        assert as_lists(plan.updates(epoch)) == as_lists(expected)
        # One by one from the middle, as a resumed run asks for them.
        middle = len(expected) // 2
        resumed = Plan(src, trg, **options).updates_from(Position(epoch, middle))
        positions, found = zip(*islice(resumed, len(expected) - middle), strict=True)
        assert as_lists(found) == as_lists(expected[middle:]) and next(resumed)[0] == Position(epoch + 1, 0)
        assert positions == tuple(Position(epoch, number) for number in range(middle, len(expected)))


def test_packed_batches_of_very_different_lengths_equal_those_of_the_reference():
    rng = np.random.default_rng(3)
    src = trg = np.where(rng.random(5000) < 0.01, 300, 1).astype(np.int32)
    options = {"packed": True, "seed": 7, "max_tokens": 1000, "per_update": 3, "pool": 300}
    plan = Plan(src, trg, **options)
    assert as_lists(plan.updates(1)) == as_lists(reference_updates(src, trg, 1, mixture=None, **options))
    assert plan.most_packed in {len(rows) for rows in batches(plan, 1)}  # though none is full


def test_epoch_takes_four_bytes_a_pair_and_is_cut_lazily(monkeypatch):
    n, pools_cut = 400_000, []

    def counting_cut(*arguments, cut=plan_module._cut):
        pools_cut.append(1)
        return cut(*arguments)

    monkeypatch.setattr(plan_module, "_cut", counting_cut)
    rng = np.random.default_rng(0)
    src, trg = (rng.integers(0, 40, n, dtype=np.int32) for _ in range(2))
    plan = Plan(src, trg, seed=1, max_tokens=4000, per_update=2, pool=2000)
    tracemalloc.start()
    try:
        updates = plan.updates(0)
        next(updates)
        assert len(pools_cut) == 1
        assert sum(1 for _ in updates)
        assert len(pools_cut) == n // 2000 and tracemalloc.get_traced_memory()[1] < 5 * n
    finally:
        tracemalloc.stop()
