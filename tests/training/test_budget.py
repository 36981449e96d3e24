"""Training by the clock: a faked one, which moves when work is done and else stands still."""

import random
from itertools import pairwise

import pytest
from witness import digest, logged, state_of, stop_at

from nmt import checkpoint
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training import budget as due
from nmt.training.budget import Budget, foreseen
from nmt.training.engine import Engine
from nmt.training.launch import launch
from nmt.training.state import TrainState
from nmt.training.validate import Validator

COMPILE, UPDATE, MEASURE, SAVE = 5.0, 0.5, 2.0, 0.5  # what each takes by the faked clock, in seconds

BUDGET = 32


class Clock:
    now = 1e6

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by as much as the work of a run takes; the first update of a process compiles."""
    clock = Clock()

    def costs(owner, name, seconds):
        call = getattr(owner, name)

        def slowly(*args, **kwargs):
            clock.now += seconds(*args) if callable(seconds) else seconds
            return call(*args, **kwargs)

        monkeypatch.setattr(owner, name, slowly)

    def of_update(engine, *_):
        first, engine.is_warm = not hasattr(engine, "is_warm"), True
        return COMPILE if first else UPDATE

    costs(Engine, "backward", of_update)
    costs(Validator, "measure", MEASURE)
    costs(checkpoint, "save", SAVE)
    return clock


def timed(recipe_of, name="run", optim=None, train=None, valid=None):
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
    ],
)
def test_the_updates_that_fit_into_a_budget_are_foretold(recipe_of, train, valid_seconds, n_update, n_valid):
    recipe = timed(recipe_of, train=train)
    assert foreseen(recipe, update_seconds=UPDATE, valid_seconds=valid_seconds) == (n_update, n_valid)


@pytest.mark.parametrize(
    ("schedule", "late", "every"), [("linear", False, 20), ("wsd", True, 20), ("auto", False, "auto")]
)
def test_the_command_takes_the_time_it_was_given_and_ends_annealed(
    recipe_of, clock, late_engines, schedule, late, every
):
    if late:
        late_engines()
    recipe = timed(recipe_of, optim={"schedule": schedule}, valid={"every": every})
    start = clock.now
    assert launch(recipe, clock=clock) == "time"
    # Compiling, all validations and checkpoints, the last one of both, and the choice of the final model are in it.
    assert BUDGET - 2 * UPDATE <= clock.now - start <= BUDGET + 2 * UPDATE
    found = [rate / recipe.optim.lr for rate in logged(recipe, "train", "learning_rate").values()]
    assert found[4] == pytest.approx(1.0)
    assert 0 <= found[-1] < 0.2 and found[-1] == min(found)
    assert all(a >= b - 0.1 for a, b in pairwise(found[5:]))
    assert last_state(recipe)["history"][-1]["update"] == len(found)


def test_time_is_left_for_the_last_validation_even_if_none_was_due_before(recipe_of, clock):
    recipe = timed(recipe_of, valid={"every": 10**6})
    start = clock.now
    assert launch(recipe, clock=clock) == "time"
    assert clock.now - start <= BUDGET + 2 * UPDATE
    first, _ = (entry["update"] for entry in last_state(recipe)["history"])
    assert first * UPDATE + COMPILE == pytest.approx(BUDGET / 4, abs=2 * SAVE)


def test_the_time_of_earlier_parts_counts(recipe_of, clock):
    recipe = timed(recipe_of)
    begin, spent, outcome = clock.now, 0.0, ""
    for n in (8, 7, 10**6):
        outcome = launch(recipe, stop_at(n), clock=clock)
        spent, clock.now = spent + clock.now - begin, clock.now + 1e5  # the computer was off
        begin = clock.now
    assert outcome == "time"
    # What the last checkpoint of a part took is in no checkpoint, so that it cannot be counted.
    assert BUDGET - 2 * UPDATE <= spent <= BUDGET + 2 * SAVE + 2 * UPDATE
    assert last_state(recipe)["wall_seconds"] < BUDGET


def test_a_run_that_is_given_another_time_plans_anew(recipe_of, clock):
    start, reached = clock.now, []
    for n in (1, 2, 3, 2):
        recipe = timed(recipe_of, optim={"schedule": "constant"}, train={"time_budget": f"{n * BUDGET}s"})
        assert launch(recipe, clock=clock) == "time"
        reached.append(last_state(recipe)["update"])
        assert clock.now - start == pytest.approx((n if len(reached) < 4 else 3) * BUDGET, rel=0.07)
    assert reached[0] < reached[1] < reached[2] == reached[3]


def test_only_the_schedule_depends_on_the_clock(recipe_of, clock):
    options = {"optim": {"schedule": "inverse_sqrt"}, "valid": {"every": 9}}
    by_clock = timed(recipe_of, "clock", **options)
    launch(by_clock, clock=clock)
    n = last_state(by_clock)["update"]
    by_updates = timed(recipe_of, "updates", train={"updates": n, "time_budget": ""}, **options)
    assert launch(by_updates) == "done"
    assert n > 20 and digest(by_clock, n) == digest(by_updates, n)


# Runs by the clock without a model: only what is due when, and how long it takes, on a machine that is not even.

FORCED = 0.15  # of a validation, which is never cut short


class Machine:
    """A clock, and work that takes time on it: validations grow, and other work makes all slower now and then."""

    def __init__(self, seed, update, measure, first=1.0):
        """first: how much longer the first validation is, of a model that does not know where to stop."""
        self.draw, self.now, self.update, self.measure, self.first = random.Random(seed), 0.0, update, measure, first
        self.growth, self.n_measured = self.draw.uniform(0.97, 1.08), 0

    def __call__(self):
        return self.now

    def works(self, seconds):
        self.now += seconds * self.draw.choice([1.0, 1.0, 1.1, 1.6])

    def validates(self, in_time):
        seconds = self.measure * (self.growth**self.n_measured if self.n_measured else self.first)
        self.n_measured += 1
        self.works(FORCED * seconds)
        for _ in range(12):
            if not in_time():
                break
            self.works((1 - FORCED) * seconds / 20)


def trained(recipe, machine, *, setup, saving):
    """Trains as `Trainer` does until its time is over. Returns the state, and the share after each update."""
    state, budget = TrainState(), Budget(recipe.train, machine)
    time_share, shares = budget.resume(state), []
    machine.now += setup
    while not due.stop_reason(state, recipe, time_share):
        machine.works(machine.update)
        state.update, time_share = state.update + 1, budget.count_time(state)
        if state.update == 1:
            budget.began(state, time_share)
        shares.append(time_share)
        if is_validated := due.validation_is_due(state, recipe, time_share):
            begin = machine.now
            machine.validates(lambda: budget.has_time(state))
            state.validated_share = time_share
            budget.measured(state, machine.now - begin, time_share)
            time_share = budget.count_time(state)
            state.history.append({"update": state.update, "loss": 1.0})
        if is_validated or state.update % recipe.train.save_every == 0 or time_share >= 1:
            begin = machine.now
            machine.works(saving)
            budget.saved(state, machine.now - begin, time_share)
    if budget.has_time(state, state.measure_seconds):  # the average
        machine.validates(lambda: budget.has_time(state))
    machine.works(saving)  # the model that translates
    return state, shares


def recipe_for(seconds, every):
    train = {"updates": 10**6, "time_budget": f"{seconds}s", "save_every": 40}
    sections = {"train": train, "valid": {"every": every, "metric": "loss"}}
    return Recipe.model_validate({"name": "clock", "optim": {"schedule": "constant", "warmup": 5}, **sections})


@pytest.mark.parametrize("every", ["auto", 15])
@pytest.mark.parametrize(("measure", "saving"), [(2.0, 0.5), (6.0, 2.0), (12.0, 2.0)])
@pytest.mark.parametrize("share", [0.65, 0.75, 0.9])
def test_a_run_whose_set_up_took_most_of_its_time_is_validated_once_and_ends_on_time(every, measure, saving, share):
    uncut = FORCED * measure + 2 * saving if share > 0.8 else 0.0
    for seed in range(20):
        machine = Machine(seed, update=0.4, measure=measure)
        state, shares = trained(recipe_for(60, every), machine, setup=share * 60, saving=saving)
        assert shares == sorted(shares)
        assert len(state.history) == 1 and state.history[-1]["update"] == state.update
        assert machine.now <= 1.05 * 60 + uncut, seed


@pytest.mark.parametrize("every", ["auto", 15, 60, 10**6])
@pytest.mark.parametrize("measured", [0.002, 0.02, 0.05, 0.1])  # of the time, a validation
def test_the_share_never_falls_and_a_run_ends_within_a_twentieth_of_its_time(every, measured):
    for seed, first in enumerate((1.0, 1.0, 1.0, 0.3, 3.0)):
        machine = Machine(seed, update=2.0, measure=measured * 1200, first=first)
        state, shares = trained(recipe_for(1200, every), machine, setup=10.0, saving=0.4)
        assert shares == sorted(shares)
        assert all(share < 1 for share in shares[:-1]) and shares[-1] > 0.97
        unused = 2.4 * max(0.0, first - 1) * measured  # that was kept for validations as slow as the first
        unused += 0.03  # where the last came to be so slow that the time for the average was too short
        assert 0.95 - unused <= machine.now / 1200 <= 1.05, (seed, first)
        assert state.history[-1]["update"] == state.update
        # Where validations are short there are ten.
        assert every != "auto" or measured > 0.01 or 9 <= len(state.history) <= 11
