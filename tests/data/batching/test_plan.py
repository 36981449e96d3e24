"""The plan: every pair once an epoch, within budget, a function of (seed, epoch) alone."""

import tracemalloc

import numpy as np
import pytest

from nmt.data import plan as plan_module
from nmt.data.plan import VERSION, Mixture, Plan, Position, same_batches


def batches(a_plan, epoch):
    return [rows for update in a_plan.updates(epoch) for rows in update]


@pytest.mark.parametrize("longest, max_tokens", [(90, 1000), (61, 1000), (300, 45)])
def test_sides_are_padded_to_few_lengths_and_batches_still_fit(longest, max_tokens):
    sides = [np.random.default_rng(seed).integers(1, longest, 5000, dtype=np.int32) for seed in (1, 2)]
    a_plan = Plan(*sides, seed=1, max_tokens=max_tokens, per_update=1, pool=1000)
    most = min(max_tokens, longest)
    for n in range(1, longest + 1):
        assert a_plan.padded(n) == widened(n, most) >= n
    n_held = n_long = 0
    for rows in batches(a_plan, 0):
        n_src, n_trg = (a_plan.padded(int(side[rows].max()) + 1) for side in sides)
        assert len(rows) * max(n_src, n_trg) <= max_tokens or (len(rows) == 1 and max(n_src, n_trg) <= longest)
        n_held += len(rows) * (n_src + n_trg)
        n_long += max(n_src, n_trg) > 64
    assert n_long or longest < 64
    assert sum(map(a_plan.n_gold, a_plan.updates(0))) == sides[1].sum() + 5000  # with end marks, without padding
    assert a_plan.padding_share(0) == pytest.approx(1 - sum(int(side.sum()) + 5000 for side in sides) / n_held)


def test_only_packed_batches_are_others_since_version_2():
    versions = (1, 2, VERSION, VERSION + 1)
    assert [same_batches(version, packed=False) for version in versions] == [False, True, True, False]
    assert [same_batches(version, packed=True) for version in versions] == [False, False, True, False]


def widened(n, most):
    """What a side of n subwords is padded to: a multiple of a step such that it is fewer than 32 of them."""
    step = 1
    while n // step >= 32:
        step *= 2
    return max(n, min(-(-n // step) * step, most))


def neighbours(rows, src, trg, most):
    """Pairs in the order in which they are cut into batches, and the length of the longer side of each."""
    more = {row: widened(src[row], most) - widened(trg[row], most) for row in rows}
    longest = {row: widened(max(src[row], trg[row]), most) for row in rows}
    found = sorted(set(longest.values()))
    turned = {length: -1 if number % 2 else 1 for number, length in enumerate(found)}
    return sorted(rows, key=lambda row: (longest[row], turned[longest[row]] * more[row])), longest


def plainly(src_len, trg_len, epoch, *, seed, max_tokens, per_update, pool, packed=False, tokens_per_update=0, mixture):
    """The updates of an epoch as lists of lists, all at once: if these change, plan.VERSION does."""
    src, trg = src_len.astype(np.int64) + 1, trg_len.astype(np.int64) + 1
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(src) if mixture is None else mixture.rows(seed, epoch))
    found = []
    if packed:
        n_visit = np.ones(len(src)) if mixture is None else np.repeat(mixture.weights, mixture.sizes)
        usual = max_tokens * n_visit.sum() / max(n_visit @ src, n_visit @ trg)
        most = 64 * np.ceil(1.25 * usual / 64)
        batch = []
        for row in order:
            more = [*batch, row]
            if batch and (max(src[more].sum(), trg[more].sum()) > max_tokens or len(more) > most):
                found.append(batch)
                more = [row]
            batch = more
        found.append(batch)
    else:
        for start in range(0, len(order), pool):
            rows = order[start : start + pool]
            rows, longest = neighbours(rows.tolist(), src, trg, min(max_tokens, max(src.max(), trg.max())))
            batches = [[]]
            for row in rows:
                if batches[-1] and (len(batches[-1]) + 1) * longest[row] > max_tokens:
                    batches.append([])
                batches[-1].append(row)
            found += [batches[i] for i in rng.permutation(len(batches))]
    updates = [[]]
    for batch in found:
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
def test_the_batches_are_those_that_a_plain_program_makes(packed, tokens_per_update, mixture):
    rng = np.random.default_rng(3)
    src, trg = (rng.integers(0, 40, 1000, dtype=np.int32) for _ in range(2))  # many are alike
    how = {"packed": packed, "tokens_per_update": tokens_per_update, "mixture": mixture}
    how |= {"seed": 7, "max_tokens": 400, "per_update": 3, "pool": 300}
    a_plan = Plan(src, trg, **how)
    for epoch in (4, 0):  # what was asked before does not matter
        wanted = plainly(src, trg, epoch, **how)
        assert as_lists(a_plan.updates(epoch)) == as_lists(wanted)
        # And one by one, from the middle, as a run that goes on asks for them.
        half, position, found = Plan(src, trg, **how), Position(epoch, len(wanted) // 2), []
        while position.epoch == epoch:
            update, position = half.at(position)
            found.append(update)
        assert as_lists(found) == as_lists(wanted[len(wanted) // 2 :]) and position == Position(epoch + 1, 0)


def test_packed_batches_of_very_unlike_pairs_are_cut_where_a_plain_program_cuts_them():
    rng = np.random.default_rng(3)
    src = trg = np.where(rng.random(5000) < 0.01, 300, 1).astype(np.int32)
    how = {"packed": True, "seed": 7, "max_tokens": 1000, "per_update": 3, "pool": 300}
    a_plan = Plan(src, trg, **how)
    assert as_lists(a_plan.updates(1)) == as_lists(plainly(src, trg, 1, mixture=None, **how))
    assert a_plan.most_packed in {len(rows) for rows in batches(a_plan, 1)}  # though they are not full


def test_an_epoch_is_four_bytes_a_pair_and_made_as_far_as_it_is_asked_for(monkeypatch):
    n, n_pool = 400_000, []

    def counted(*arguments, cut=plan_module._cut):
        n_pool.append(1)
        return cut(*arguments)

    monkeypatch.setattr(plan_module, "_cut", counted)
    rng = np.random.default_rng(0)
    src, trg = (rng.integers(0, 40, n, dtype=np.int32) for _ in range(2))
    a_plan = Plan(src, trg, seed=1, max_tokens=4000, per_update=2, pool=2000)
    tracemalloc.start()
    try:
        a_plan.at(Position())
        assert len(n_pool) == 1
        a_plan.at(Position(0, a_plan.n_update(0) - 1))
        assert len(n_pool) == n // 2000 and tracemalloc.get_traced_memory()[1] < 5 * n
    finally:
        tracemalloc.stop()
