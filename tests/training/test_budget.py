"""Training with a time budget, on a fake clock that advances only when work is done."""

import random
from itertools import pairwise

import pytest
from witness import digest, logged, state_of, stop_at

from nmt import checkpoint
from nmt.recipe.options import Recipe
from nmt.recipe.training_options import TrainConfig
from nmt.run import Run
from nmt.training import budget as budget_module
from nmt.training.budget import Budget, foreseen
from nmt.training.engine import Engine
from nmt.training.launch import launch
from nmt.training.state import TrainState
from nmt.training.validate import Validator

COMPILE, UPDATE, MEASURE, SAVE = 5.0, 0.5, 2.0, 0.5  # cost of each in seconds of the fake clock

BUDGET = 32


class Clock:
    now = 1e6

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """Fake clock that advances by the cost of the work of a run; the first update of a process compiles."""
    clock = Clock()

    def add_cost(owner, name, seconds):
        call = getattr(owner, name)

        def call_at_cost(*args, **kwargs):
            clock.now += seconds(*args) if callable(seconds) else seconds
            return call(*args, **kwargs)

        monkeypatch.setattr(owner, name, call_at_cost)

    def update_cost(engine, *_):
        first, engine.is_warm = not hasattr(engine, "is_warm"), True
        return COMPILE if first else UPDATE

    add_cost(Engine, "backward", update_cost)
    add_cost(Validator, "measure", MEASURE)
    add_cost(checkpoint, "save", SAVE)
    return clock


def timed_recipe(recipe_of, name="run", optim=None, train=None, valid=None):
    return recipe_of(
        name,
        optim={"schedule": "linear", "warmup": 5, **(optim or {})},
        train={"updates": 10**6, "time_budget": f"{BUDGET}s", "log_every": 1, "save_every": 12, **(train or {})},
        batch={"max_tokens": 60, "per_update": 1},
        valid={"every": 20, "translate": False, "metric": "loss", **(valid or {})},
    )


def last_state(recipe):
    return state_of(recipe, Run(recipe.run_folder).updates()[-1])


@pytest.mark.parametrize(
    ("train", "valid_seconds", "n_update", "n_valid"),
    [
        ({"time_budget": "", "updates": 10**6}, 2.0, 10**6, 50_000),
        ({"updates": 30}, 2.0, 30, 2),
        ({"average": "none"}, 0.0, 64, 4),  # half a second each
        ({"average": "none"}, 2.0, 50, 3),  # the last validation, and a tenth of a second an update for the others
        ({"average": "last", "ema": 0.9}, 2.0, 43, 3),
        ({}, 30.0, 3, 1),  # no time is left, but for a twentieth
        ({"updates": 30, "every": "auto"}, 0.1, 30, 10),  # a tenth of the updates
        ({"updates": 5, "every": "auto"}, 0.01, 5, 5),
    ],
)
def test_updates_that_fit_into_a_budget_are_predicted(recipe_of, train, valid_seconds, n_update, n_valid):
    every = {"every": train["every"]} if "every" in train else {}
    recipe = timed_recipe(recipe_of, train={name: train[name] for name in train.keys() - {"every"}}, valid=every)
    assert foreseen(recipe, update_seconds=UPDATE, valid_seconds=valid_seconds) == (n_update, n_valid)


@pytest.mark.parametrize(
    ("schedule", "late", "every"), [("linear", False, 20), ("wsd", True, 20), ("auto", False, "auto")]
)
def test_run_takes_its_time_budget_and_ends_annealed(recipe_of, clock, make_async, schedule, late, every):
    if late:
        make_async()
    recipe = timed_recipe(recipe_of, optim={"schedule": schedule}, valid={"every": every})
    start = clock.now
    assert launch(recipe, clock=clock) == "time"
    # The budget includes compiling, all validations and checkpoints, and the choice of the final model.
    assert BUDGET - 2 * UPDATE <= clock.now - start <= BUDGET + 2 * UPDATE
    factors = [rate / recipe.optim.lr for rate in logged(recipe, "train", "learning_rate").values()]
    assert factors[4] == pytest.approx(1.0)
    assert 0 <= factors[-1] < 0.2 and factors[-1] == min(factors)
    assert all(a >= b - 0.1 for a, b in pairwise(factors[5:]))
    assert last_state(recipe)["history"][-1]["update"] == len(factors)


def test_run_that_ended_by_patience_continues_after_its_last_validation(recipe_of, clock):
    updates = []
    for patience in (1, 2):
        valid = {"every": "auto", "metric": "accuracy", "patience": patience}
        recipe = timed_recipe(recipe_of, optim={"lr": 1e-12}, train={"time_budget": "200s"}, valid=valid)
        assert launch(recipe, clock=clock) == "patience"
        updates.append([entry["update"] for entry in last_state(recipe)["history"]])
    assert updates[1][:-1] == updates[0] and len(updates[0]) == 2


def test_time_is_left_for_a_last_validation_even_if_none_was_due(recipe_of, clock):
    recipe = timed_recipe(recipe_of, valid={"every": 10**6})
    start = clock.now
    assert launch(recipe, clock=clock) == "time"
    assert clock.now - start <= BUDGET + 2 * UPDATE
    first, _ = (entry["update"] for entry in last_state(recipe)["history"])
    assert first * UPDATE + COMPILE == pytest.approx(BUDGET / 4, abs=2 * SAVE)


def test_time_before_a_resume_counts(recipe_of, clock):
    recipe = timed_recipe(recipe_of)
    begin, spent, outcome = clock.now, 0.0, ""
    for n in (8, 7, 10**6):
        outcome = launch(recipe, stop_at(n), clock=clock)
        spent, clock.now = spent + clock.now - begin, clock.now + 1e5  # the computer was off
        begin = clock.now
    assert outcome == "time"
    # The time of the last save before a stop is in no checkpoint, so that it cannot be counted.
    assert BUDGET - 2 * UPDATE <= spent <= BUDGET + 2 * SAVE + 2 * UPDATE
    assert last_state(recipe)["wall_seconds"] < BUDGET


def test_budget_of_the_command_line_holds_when_the_run_resumes_without_it(recipe_of, clock, capsys):
    recipe = timed_recipe(recipe_of)
    assert launch(recipe, stop_at(8), clock=clock) == "stopped"
    train = {name: getattr(recipe.train, name) for name in recipe.train.model_fields_set - {"time_budget"}}
    resumed = recipe.model_copy(update={"train": TrainConfig(**train)})
    assert not resumed.train.time_budget and launch(resumed, clock=clock) == "time"
    assert f"train.time_budget: {BUDGET}s, as the run began" in capsys.readouterr().err
    assert Run(recipe.run_folder).recipe().train.time_budget == f"{BUDGET}s"


def test_run_with_a_changed_budget_plans_anew(recipe_of, clock):
    start, reached = clock.now, []
    for n in (1, 2, 3, 2):
        recipe = timed_recipe(recipe_of, optim={"schedule": "constant"}, train={"time_budget": f"{n * BUDGET}s"})
        assert launch(recipe, clock=clock) == "time"
        reached.append(last_state(recipe)["update"])
        assert clock.now - start == pytest.approx((n if len(reached) < 4 else 3) * BUDGET, rel=0.07)
    assert reached[0] < reached[1] < reached[2] == reached[3]


def test_only_the_schedule_depends_on_the_clock(recipe_of, clock):
    options = {"optim": {"schedule": "inverse_sqrt"}, "valid": {"every": 9}}
    by_clock = timed_recipe(recipe_of, "clock", **options)
    launch(by_clock, clock=clock)
    n = last_state(by_clock)["update"]
    by_updates = timed_recipe(recipe_of, "updates", train={"updates": n, "time_budget": ""}, **options)
    assert launch(by_updates) == "done"
    assert n > 20 and digest(by_clock, n) == digest(by_updates, n)


# Simulated runs without a model: only due dates and durations, on a machine of uneven speed.

UNCUT_SHARE = 0.15  # share of a validation that is never cut short


class Machine:
    """Clock and simulated work: validations grow longer, and other load slows all work now and then."""

    def __init__(self, seed, update, measure, first=1.0):
        """first: factor on the first validation, whose model does not predict the end of sentences yet."""
        self.rng, self.now, self.update, self.measure, self.first = random.Random(seed), 0.0, update, measure, first
        self.growth, self.n_measured = self.rng.uniform(0.97, 1.08), 0

    def __call__(self):
        return self.now

    def work(self, seconds):
        self.now += seconds * self.rng.choice([1.0, 1.0, 1.1, 1.6])

    def validate(self, has_time):
        seconds = self.measure * (self.growth**self.n_measured if self.n_measured else self.first)
        self.n_measured += 1
        self.work(UNCUT_SHARE * seconds)
        for _ in range(12):
            if not has_time():
                break
            self.work((1 - UNCUT_SHARE) * seconds / 20)


def simulate(recipe, machine, *, setup, saving):
    """Train as `Trainer` does until the budget is spent. Return the state, and the time share after each update."""
    state, budget = TrainState(), Budget(recipe.train, machine)
    time_share, shares = budget.resume(state), []
    machine.now += setup
    while not budget_module.stop_reason(state, recipe, time_share):
        machine.work(machine.update)
        state.update, time_share = state.update + 1, budget.count_time(state)
        if state.update == 1:
            budget.began(state, time_share)
        shares.append(time_share)
        if is_validated := budget_module.validation_is_due(state, recipe, time_share):
            begin = machine.now
            machine.validate(lambda: budget.has_time(state))
            state.validated_share = time_share
            budget.measured(state, machine.now - begin, time_share)
            time_share = budget.count_time(state)
            state.history.append({"update": state.update, "loss": 1.0})
        if is_validated or state.update % recipe.train.save_every == 0 or time_share >= 1:
            begin = machine.now
            machine.work(saving)
            budget.saved(state, machine.now - begin, time_share)
    if budget.has_time(state, state.measure_seconds):  # of the averaged model
        machine.validate(lambda: budget.has_time(state))
    machine.work(saving)  # of the final model
    return state, shares


def recipe_for(seconds, every):
    train = {"updates": 10**6, "time_budget": f"{seconds}s", "save_every": 40}
    sections = {"train": train, "valid": {"every": every, "metric": "loss"}}
    return Recipe.model_validate({"name": "clock", "optim": {"schedule": "constant", "warmup": 5}, **sections})


@pytest.mark.parametrize("every", ["auto", 15])
@pytest.mark.parametrize(("measure", "saving"), [(2.0, 0.5), (6.0, 2.0), (12.0, 2.0)])
@pytest.mark.parametrize("share", [0.65, 0.75, 0.9])
def test_run_with_slow_set_up_validates_once_and_ends_on_time(every, measure, saving, share):
    excess = UNCUT_SHARE * measure + 2 * saving if share > 0.8 else 0.0
    for seed in range(20):
        machine = Machine(seed, update=0.4, measure=measure)
        state, shares = simulate(recipe_for(60, every), machine, setup=share * 60, saving=saving)
        assert shares == sorted(shares)
        assert len(state.history) == 1 and state.history[-1]["update"] == state.update
        assert machine.now <= 1.05 * 60 + excess, seed


@pytest.mark.parametrize("every", ["auto", 15, 60, 10**6])
@pytest.mark.parametrize("measured", [0.002, 0.02, 0.05, 0.1])  # share of the budget that one validation takes
def test_time_share_never_falls_and_run_ends_within_five_percent_of_budget(every, measured):
    for seed, first in enumerate((1.0, 1.0, 1.0, 0.3, 3.0)):
        machine = Machine(seed, update=2.0, measure=measured * 1200, first=first)
        state, shares = simulate(recipe_for(1200, every), machine, setup=10.0, saving=0.4)
        assert shares == sorted(shares)
        assert all(share < 1 for share in shares[:-1]) and shares[-1] > 0.97
        unused = 2.4 * max(0.0, first - 1) * measured  # time kept for validations as slow as the first
        unused += 0.03  # a slow last validation leaves too little time for the average
        assert 0.95 - unused <= machine.now / 1200 <= 1.05, (seed, first)
        assert state.history[-1]["update"] == state.update
        # Short validations happen about ten times.
        assert every != "auto" or measured > 0.01 or 9 <= len(state.history) <= 11
