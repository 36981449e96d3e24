"""What is foreseen of a run follows from each option of the section train: see test_train_options.py for the others."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nmt import checkpoint
from nmt.data.stored.corpus import Prepared
from nmt.errors import MachineError
from nmt.models.build import build_model
from nmt.run import Run
from nmt.training import due
from nmt.training.budget import Budget, foreseen
from nmt.training.checking import check as check_module
from nmt.training.checking.troubles import likely_troubles
from nmt.training.meter import Pace
from nmt.training.starting import materials, space
from nmt.training.starting.claim import needed_of
from nmt.training.state import TrainState
from nmt.training.telling import FORETOLD_AFTER, Teller
from nmt.training.validate import Validation
from tests.training.checking.test_check import HEALTHY
from tests.training.test_options_arrive import FP32, Row, check, ids

TIMED = {"time_budget": "100s"}
PLAN = [
    Row("updates", 24, "share", 0.25),
    Row("updates", 24, "rate", 1 - 6 / 23),
    Row("updates", 8, "due", [8, 9, 10, 11]),
    Row("log_every", 5, "due", [5, 10]),
    Row("save_every", 5, "due", [5, 10]),
    Row("updates", 24, "left", 18 * (2.0 + 3.0 / 100 + 3.0 / 1000)),
    Row("save_every", 9, "left", 6 * (2.0 + 3.0 / 9 + 3.0 / 1000)),
    Row("updates", 24, "told", "update 24"),
    Row("updates", 1000, "told", "the end of train.time_budget, at about update 81", {"time_budget": "200s"}),
    Row("updates", 24, "foreseen", 24),
    Row("updates", 1000, "n_valid", 2, {"time_budget": "200s"}),  # one after a quarter of the time
    Row("time_budget", "200s", "told", "the end of train.time_budget, at about update 81", {"updates": 1000}),
    Row("time_budget", "200s", "foreseen", 80, {**TIMED, "updates": 1000}),
    Row("time_budget", "200s", "passed", 50 / 188, TIMED),
    Row("average", "none", "passed", 50 / 94, TIMED),
    Row("ema", 0.5, "passed", 50 / 82, TIMED),
    Row("ema", 0.5, "n_of_weights", 4),
    Row("ema", 0.5, "needed", (checkpoint.OPTIMIZER, checkpoint.EMA)),
    Row("keep_last", 5, "disk", "7.0 MB: 5 newest, 1 best"),
    Row("keep_best", 5, "disk", "9.0 MB: 3 newest, 5 best"),
    Row("tensorboard", True, "drawn", True),
    Row("wandb", True, "drawn", True),
]


@pytest.fixture
def of_plan(recipe_of, monkeypatch):
    """of_plan(option=value, ...) -> what is known of a run after six updates, 50 s, by then."""

    def seen(**options):
        recipe = recipe_of(
            optim={"schedule": "linear", "warmup": 0},
            train={"updates": 12, "log_every": 100, "save_every": 100, **options},
            valid={"every": 1000, "max_sentences": 2},
            decode={"max_len_a": 0.0, "max_len_b": 2},
        )
        budget, pace, said = Budget(recipe.train), Pace(), []
        state = TrainState(6, wall_seconds=50.0, measure_seconds=5.0)
        saving = TrainState(6, save_seconds=3.0)
        for _ in range(3):
            pace.add(2.0)
        teller = Teller(recipe, SimpleNamespace(say=said.append), budget, torch.device("cpu"))
        for _ in range(FORETOLD_AFTER):
            teller.update_took(2.0, TrainState(6, wall_seconds=50.0))
        n_update, n_valid = foreseen(recipe, update_seconds=2.5, valid_seconds=0.0)
        data = Prepared.open(recipe.data_folder)
        model = build_model(recipe.model, 320, 320)
        weights = sum(tensor.nbytes for tensor in checkpoint.weights_of(model).values())
        with monkeypatch.context() as patch:
            patch.setattr(space.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
            n_of_weights = round(space.checkpoint_bytes(model, recipe) / weights)
            patch.setattr(space, "checkpoint_bytes", lambda *_: 1_000_000)
            with pytest.raises(MachineError, match="keep fewer") as refused:
                space.check_space(Run(recipe.run_folder), recipe, model)
        return SimpleNamespace(
            share=due.share(state, recipe, 0.0, under_way=False),
            rate=due.rate_factor(state, recipe, 0.0),
            due=[update for update in range(1, 12) if due.anything_is_due(update, state, recipe, 0.0)],
            left=pace.left(saving, recipe),
            told=re.search(r" to ((the end|update).*), until", said[0])[1],
            foreseen=n_update,
            n_valid=n_valid,
            passed=budget.share(state),
            n_of_weights=n_of_weights,
            needed=needed_of(recipe),
            disk="{}: {} newest, {} best".format(
                *re.search(r"need (.*) more: (.*) newest .*, (.*) best", str(refused.value)).groups()
            ),
            drawn="attention" in Validation(recipe, data, FP32).first.measure(model)[1],
        )

    return seen


@pytest.mark.parametrize("row", PLAN, ids=ids)
def test_what_is_foreseen_follows_from_an_option(row, of_plan):
    check(row, of_plan)


# -- what nmt-train --check says ---------------------------------------------------------------------------------------

CHECK = [
    Row("updates", 1000, "end", "when the 1h of train.time_budget are over", {"time_budget": "1h"}),
    Row("updates", 1000, "has_no_time_for_more", True),
    Row("time_budget", "2h", "end", "when the 2h of train.time_budget are over", {"updates": 1000}),
    Row("time_budget", "1h", "is_measured_once", False),
    Row("init_from", "runs/OLD", "learns_by_heart", False),
    Row("precision", "bf16", "bf16_is_slow", True),
    Row("precision", "fp16", "bf16_is_better", True, {"device": "cuda"}),
    Row("compile", True, "compiles_for_long", True),
    Row("save_every", 60, "lost", "10.0 h"),
]


@pytest.fixture
def of_check(recipe_of):
    """of_check(option=value, ...) -> what is said of a run of 15 updates, of ten minutes each."""
    found = replace(HEALTHY, n_update=15, seconds=600.0, n_param=44_615_680)

    def seen(**options):
        recipe = recipe_of(
            train={"updates": 15, "save_every": 12, **options}, valid={"every": 16}, model={"d_model": 512}
        )
        (end,) = (text for name, text in check_module.table(recipe, found) if name == "end")
        said = " ".join(
            trouble for has in (False, True) for trouble in likely_troubles(recipe, replace(found, has_bf16=has))
        )
        return SimpleNamespace(
            end=end.split(": ")[1].split(",")[0],
            has_no_time_for_more="that train.time_budget has time for" in said,
            is_measured_once="the model is measured once" in said,
            learns_by_heart="will learn it by heart" in said,
            bf16_is_slow="multiplies no faster than fp32" in said,
            bf16_is_better="this GPU has bf16" in said,
            compiles_for_long="train.compile takes minutes" in said,
            lost=re.search(r"loses up to ([\d.]+ h)", said)[1],
        )

    return seen


@pytest.mark.parametrize("row", CHECK, ids=ids)
def test_a_check_says_what_follows_from_an_option(row, of_check):
    check(row, of_check)


SIZE = [Row("keep_last", 5, "n_checkpoint", 7), Row("keep_best", 5, "n_checkpoint", 9)]  # one is being written


@pytest.fixture
def of_size(recipe_of, monkeypatch):
    """of_size(option=value, ...) -> how many checkpoints a check wants room for."""
    monkeypatch.setattr(check_module, "N_TIMED", 1)

    def seen(**options):
        recipe = recipe_of(train=options, valid={"translate": False, "metric": "loss"})
        data = Prepared.open(recipe.data_folder)
        found = check_module.measure(recipe, data, materials.make_trial(recipe, data, torch.device("cpu")))
        return SimpleNamespace(n_checkpoint=found.disk / found.checkpoint)

    return seen


@pytest.mark.parametrize("row", SIZE, ids=ids)
def test_a_check_wants_room_for_as_many_checkpoints_as_are_kept(row, of_size):
    check(row, of_size)
