"""Training by the clock: a faked one, which moves when work is done and else stands still."""

import hashlib
import json
import re
from itertools import pairwise

import pytest
import torch

from nmt import checkpoint
from nmt.models.build import build_model
from nmt.run import Run
from nmt.training import trainer
from nmt.training.budget import foreseen
from nmt.training.engine import Engine
from nmt.training.launch import launch
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision
from nmt.training.reporter import Pace
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
    costs(trainer, "save", SAVE)
    return clock


def timed(recipe_of, name="run", optim=None, train=None, valid=None):
    return recipe_of(
        name,
        optim={"schedule": "linear", "warmup": 5, **(optim or {})},
        train={"updates": 10**6, "time_budget": f"{BUDGET}s", "log_every": 1, "save_every": 12, **(train or {})},
        batch={"max_tokens": 60, "per_update": 1},
        valid={"every": 20, "translate": False, "metric": "loss", **(valid or {})},
    )


def rates(recipe):
    lines = map(json.loads, Run(recipe.run_folder).log_file.read_text(encoding="utf-8").strip().split("\n"))
    return [line["learning_rate"] / recipe.optim.lr for line in lines if line["kind"] == "train"]


def state_of(recipe):
    run = Run(recipe.run_folder)
    return checkpoint.verify(run.checkpoint(run.updates()[-1]))


@pytest.mark.parametrize(
    ("train", "valid_seconds", "n_update", "n_valid"),
    [
        ({"time_budget": "", "updates": 10**6}, 2.0, 10**6, 50_000),
        ({"updates": 30}, 2.0, 30, 2),
        ({"average": "none"}, 0.0, 64, 4),  # half a second each
        (
            {"average": "none"},
            2.0,
            50,
            3,
        ),  # the last validation, and a tenth of a second for each update of the others'
        ({"average": "last", "ema": 0.9}, 2.0, 43, 3),
        ({"average": "none", "time_budget": "12s"}, 2.0, 16, 2),  # a validation after a quarter, and the last
        ({}, 30.0, 23, 2),  # after the first validation no time is left, but for a twentieth
        ({"time_budget": "15s"}, 30.0, 9, 2),  # which then comes after a quarter
    ],
)
def test_the_updates_that_fit_into_a_budget_are_foretold(recipe_of, train, valid_seconds, n_update, n_valid):
    recipe = timed(recipe_of, train=train)
    assert foreseen(recipe, update_seconds=UPDATE, valid_seconds=valid_seconds) == (n_update, n_valid)


@pytest.mark.parametrize(("schedule", "late"), [("linear", False), ("wsd", True)])
def test_the_command_takes_the_time_it_was_given_and_ends_annealed(recipe_of, clock, monkeypatch, schedule, late):
    if late:  # as on a GPU
        begin = Engine.__init__
        monkeypatch.setattr(
            Engine, "__init__", lambda self, *a, **k: (begin(self, *a, **k), setattr(self, "late", 1))[0]
        )
    recipe = timed(recipe_of, optim={"schedule": schedule})
    start = clock.now
    assert launch(recipe, clock=clock) == "time"
    # Compiling, all validations and checkpoints, the last one of both, and the choice of the final model are in it.
    assert BUDGET - 2 * UPDATE <= clock.now - start <= BUDGET + 2 * UPDATE
    found = rates(recipe)
    assert found[4] == pytest.approx(1.0)
    assert 0 <= found[-1] < 0.2 and found[-1] == min(found)
    assert all(a >= b - 0.1 for a, b in pairwise(found[5:]))
    assert state_of(recipe)["history"][-1]["update"] == len(found)


def test_time_is_left_for_the_last_validation_even_if_none_was_due_before(recipe_of, clock):
    recipe = timed(recipe_of, valid={"every": 10**6})
    start = clock.now
    assert launch(recipe, clock=clock) == "time"
    assert clock.now - start <= BUDGET + 2 * UPDATE
    first, _ = (entry["update"] for entry in state_of(recipe)["history"])
    assert first * UPDATE + COMPILE == pytest.approx(BUDGET / 4, abs=2 * SAVE)


@pytest.mark.parametrize("schedule", ["linear", "wsd", "cosine"])
@pytest.mark.parametrize("slow", [5.0, 8.0])
def test_a_validation_that_takes_much_of_the_time_does_not_end_the_schedule(
    recipe_of, clock, monkeypatch, schedule, slow
):
    measure = Validator.measure

    def slowly(*args, **kwargs):
        clock.now += slow - MEASURE
        return measure(*args, **kwargs)

    monkeypatch.setattr(Validator, "measure", slowly)
    recipe, start = timed(recipe_of, valid={"every": 10**6}, optim={"schedule": schedule}), clock.now
    assert launch(recipe, clock=clock) == "time"
    assert clock.now - start == pytest.approx(BUDGET, abs=0.05 * BUDGET)
    found = rates(recipe)
    assert found[-1] < 0.35 and all(a >= b for a, b in pairwise(found[5:]))


def test_what_once_was_slow_and_then_is_quick_does_not_raise_the_rate_again(recipe_of, clock, monkeypatch):
    measure, measured = Validator.measure, []

    def quicker(*args, **kwargs):
        measured.append(clock.now)
        clock.now += 8.0 / len(measured) ** 2  # beside what it costs anyway
        return measure(*args, **kwargs)

    monkeypatch.setattr(Validator, "measure", quicker)
    recipe = timed(recipe_of, train={"time_budget": "80s"})
    assert launch(recipe, clock=clock) == "time"
    found = rates(recipe)
    assert len(measured) > 3 and len(found) > 40
    assert all(a >= b for a, b in pairwise(found[5:])) and found[-1] < 0.1


def test_the_time_of_earlier_parts_counts(recipe_of, clock):
    recipe = timed(recipe_of)
    begin, spent, outcome = clock.now, 0.0, ""
    for n in (8, 7, 10**6):
        questions = iter(range(10**6))
        outcome = launch(recipe, lambda n=n, q=questions: next(q) >= n, clock=clock)
        spent, clock.now = spent + clock.now - begin, clock.now + 1e5  # the computer was off
        begin = clock.now
    assert outcome == "time"
    # What the last checkpoint of a part took is in no checkpoint, so that it cannot be counted.
    assert BUDGET - 2 * UPDATE <= spent <= BUDGET + 2 * SAVE + 2 * UPDATE
    assert state_of(recipe)["wall_seconds"] < BUDGET


def test_only_the_schedule_depends_on_the_clock(recipe_of, clock):
    options = {"optim": {"schedule": "inverse_sqrt"}, "valid": {"every": 9}}
    by_clock = timed(recipe_of, "clock", **options)
    launch(by_clock, clock=clock)
    n = state_of(by_clock)["update"]
    by_updates = timed(recipe_of, "updates", train={"updates": n, "time_budget": ""}, **options)
    assert launch(by_updates) == "done"
    assert n > 20 and digest(by_clock) == digest(by_updates)


def test_the_forecast_of_a_run_by_the_clock_ends_with_the_time(recipe_of, clock, capsys):
    launch(timed(recipe_of), clock=clock)
    said = r"s an update: about [\d.]+ s to the end of train\.time_budget, at about update [\d,]+, until "
    assert re.search(said, capsys.readouterr().err)
    launch(timed(recipe_of, "updates", train={"updates": 30}), clock=lambda: 7.0)  # whose end comes first
    assert re.search(r"s an update: about [\d.]+ s to update 30, until ", capsys.readouterr().err)


def test_the_update_that_is_reached_in_a_time(recipe_of):
    recipe = recipe_of(train={"updates": 1000, "save_every": 50}, valid={"every": 100})
    pace, state = Pace(), TrainState(200)
    for _ in range(5):
        pace.add(2.0)
    assert pace.reaches(state, recipe, 100.0) == 250
    state.measure_seconds, state.save_seconds = 30.0, 10.0  # of each 100 updates: a validation and three savings
    assert pace.reaches(state, recipe, 260.0) == 300


def test_a_clock_that_stands_still_leaves_the_end_to_the_updates(recipe_of):
    recipe = timed(recipe_of, train={"updates": 12})
    assert launch(recipe, clock=lambda: 7.0) == "done"
    assert rates(recipe)[-1] == pytest.approx(0.0, abs=1e-12)


def test_the_clock_of_the_first_rank_rules(recipe_of):
    recipe = timed(recipe_of)
    passed = []
    for rank in (0, 1):
        model = build_model(recipe.model, 320, 320)
        engine = Engine(model, recipe, precision=Precision("fp32", "", "cpu"), ranks=Ranks(rank, 1))
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        engine.step(1.0, 1, passed=0.75)
        passed.append(engine.settle().passed)
    assert passed == [0.75, 0.0]  # and what the ranks say is added up


def digest(recipe):
    run = Run(recipe.run_folder)
    folder = run.checkpoint(run.updates()[-1])
    tensors = checkpoint.load_tensors(folder, checkpoint.MODEL) | checkpoint.load_tensors(folder, checkpoint.OPTIMIZER)
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for _, tensor in sorted(tensors.items()))).hexdigest()
