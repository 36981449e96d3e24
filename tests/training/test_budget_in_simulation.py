"""Runs by the clock without a model: only what is due when, and how long it takes, on a machine that is not even."""

import random

import pytest

from nmt.recipe.options import Recipe
from nmt.training import budget as due
from nmt.training.budget import Budget
from nmt.training.state import TrainState

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
        self.now += self.slowed(seconds)

    def slowed(self, seconds):
        return seconds * self.draw.choice([1.0, 1.0, 1.1, 1.6])

    def validates(self, in_time):
        seconds = self.measure * (self.growth**self.n_measured if self.n_measured else self.first)
        self.n_measured += 1
        self.works(FORCED * seconds)
        for _ in range(12):
            if not in_time():
                break
            self.works((1 - FORCED) * seconds / 20)


def part(recipe, state, machine, stop_after=10**9, *, setup=None, saving=None):
    """Trains as `Trainer` does. Returns the shares after each update, and why it ended.

    setup, saving: seconds, those of a few updates and a part of one if None.
    """
    budget = Budget(recipe.train, machine)
    passed, shares = budget.go_on(state), []
    had_ended = bool(state.history) and state.history[-1]["update"] == state.update
    if had_ended and not due.why_over(state, recipe, passed):
        due.forget_end(state, recipe)

    def validate():
        nonlocal passed
        begin = machine.now
        machine.validates(lambda: budget.has_time(state))
        state.validated_share = passed
        budget.measured(state, machine.now - begin, passed)
        passed = budget.passed(state)
        state.history.append({"update": state.update, "loss": 1.0})

    saving = saving or 0.2 * machine.update
    machine.now += setup or machine.slowed(5 * machine.update)
    while not (over := due.why_over(state, recipe, passed)) and len(shares) < stop_after:
        machine.works(machine.update)
        state.update, passed = state.update + 1, budget.passed(state)
        if state.update == 1:
            budget.began(state, passed)
        shares.append(passed)
        is_saved = due.checkpoint_is_due(state, recipe)
        if due.validation_is_due(state, recipe, passed):
            validate()
            is_saved = True
        if is_saved or due.why_over(state, recipe, passed):
            begin = machine.now
            machine.works(saving)
            budget.saved(state, machine.now - begin, passed)
    if over and shares and budget.has_time(state, state.measure_seconds):  # the average
        machine.validates(lambda: budget.has_time(state))
    machine.works(saving)  # the model that translates
    budget.passed(state)
    return shares, over


def recipe_for(seconds, every):
    return Recipe.model_validate(
        {
            "name": "clock",
            "optim": {"schedule": "constant", "warmup": 5},
            "train": {"updates": 10**6, "time_budget": f"{seconds}s", "save_every": 40},
            "valid": {"every": every, "metric": "loss"},
        }
    )


@pytest.mark.parametrize("every", ["auto", 15, 60, 10**6])
@pytest.mark.parametrize("measured", [0.002, 0.02, 0.05, 0.1])  # of the time, a validation
def test_the_share_never_falls_and_a_run_ends_within_a_twentieth_of_its_time(every, measured):
    for seed, first in enumerate((1.0, 1.0, 1.0, 0.3, 3.0)):
        machine = Machine(seed, update=2.0, measure=measured * 1200, first=first)
        state, recipe = TrainState(), recipe_for(1200, every)
        shares, over = part(recipe, state, machine)
        assert over == "time" and shares == sorted(shares)
        assert all(share < 1 for share in shares[:-1]) and shares[-1] > 0.97
        unused = 2.4 * max(0.0, first - 1) * measured  # that was kept for validations as slow as the first
        unused += 0.03  # where the last came to be so slow that the time for the average was too short
        assert 0.95 - unused <= machine.now / 1200 <= 1.05, (seed, first)
        assert state.history[-1]["update"] == state.update


@pytest.mark.parametrize("every", ["auto", 15])
@pytest.mark.parametrize(("measure", "saving"), [(2.0, 0.5), (6.0, 2.0), (12.0, 2.0)])
@pytest.mark.parametrize("share", [0.65, 0.75, 0.9])
def test_a_run_whose_set_up_took_most_of_its_time_is_validated_once_and_ends_on_time(every, measure, saving, share):
    uncut = FORCED * measure + 2 * saving if share > 0.8 else 0.0
    for seed in range(20):
        machine, state = Machine(seed, update=0.4, measure=measure), TrainState()
        shares, over = part(recipe_for(60, every), state, machine, setup=share * 60, saving=saving)
        assert over == "time" and shares == sorted(shares)
        assert len(state.history) == 1 and state.history[-1]["update"] == state.update
        assert machine.now <= 1.05 * 60 + uncut, seed


@pytest.mark.parametrize("every", ["auto", 15])
def test_a_run_that_is_given_another_time_plans_anew(every):
    for seed in range(12):
        draw = random.Random(seed)
        machine, state, spent = Machine(seed, 2.0, draw.uniform(1, 8)), TrainState(), 0.0
        for seconds in (draw.choice([200, 400, 600, 900]) for _ in range(5)):
            stopped = draw.random() < 0.3
            begin, had = machine.now, state.wall_seconds
            shares, over = part(recipe_for(seconds, every), state, machine, 20 if stopped else 10**9)
            spent += machine.now - begin
            assert shares == sorted(shares) and all(share < 1 for share in shares[:-1])
            if had >= seconds:
                assert over == "time" and not shares
            elif not stopped and seconds - had > 0.2 * seconds:
                assert shares and state.wall_seconds == pytest.approx(seconds, rel=0.07), seed
            state = TrainState.from_json(state.to_json("loss"), packed=False)


def test_a_state_of_before_that_was_more_than_over_goes_on():
    """As a run of three minutes left it whose last validation was its longest, and that is given twenty."""
    state = TrainState(112, wall_seconds=180.0, measure_seconds=5.15, planned_at=177.5, planned_share=1.0051)
    budget = Budget(recipe_for(1200, 500).train, lambda: 0.0)
    assert budget.go_on(state) == pytest.approx(180 / 1200)
    found = []
    for state.wall_seconds in (400.0, 800.0, 1100.0, 1200.0, 5000.0):
        found.append(budget.share(state))
    assert found == sorted(found) and found[-1] == 1.0 and 0.3 < found[0] < 0.4
