"""What is said of updates: every number against sums that are made by hand."""

from types import SimpleNamespace

import pytest
import torch

from nmt.data.batching.plan import Position
from nmt.training import meter as meter_module
from nmt.training import telling
from nmt.training.budget import Budget
from nmt.training.engine import Outcome
from nmt.training.meter import Meter
from nmt.training.state import Sums, TrainState
from nmt.training.telling import Teller


@pytest.fixture
def told(monkeypatch):
    """What a record was told: `lines` of the log, as (kind, update, fields), and what the progress line `shows`."""
    monkeypatch.setattr(telling, "footprint", lambda _device: {"rss_mb": 12.5})
    told = SimpleNamespace(lines=[], shows=[])
    told.write = lambda kind, update, **fields: told.lines.append((kind, update, fields))
    told.progress = lambda update, **shown: told.shows.append((update, shown))
    return told


def test_a_line_of_the_log_has_the_means_over_its_updates(recipe_of, told):
    recipe = recipe_of()
    teller = Teller(recipe, told, Budget(recipe.train), torch.device("cpu"))
    meter = Meter(Sums(loss=90.0, norm=6.0, n_gold=30, n_update=4, seconds=8.0))
    meter.rate = 0.0025
    for seconds in (9.0, 2.0):  # the first sets things up
        teller.pace.add(seconds)
    history = [{"update": 5, "bleu": 12.345}, {"update": 10, "bleu": 11.0}]
    state = TrainState(12, Position(3, 1), n_skipped=2, n_token=500, seconds=77.777, history=history)
    teller.updates(state, meter, 0.25)
    fields = {
        "epoch": 3,
        "loss": 3.0,  # of a token
        "learning_rate": 0.0025,
        "gradient_norm": 1.5,  # of an update
        "tokens_per_second": 3.8,
        "skipped": 2,
        "seconds": 77.78,
        "rss_mb": 12.5,
    }
    assert told.lines == [("train", 12, fields)]
    shown = {
        "epoch": "3",
        "left": "36 s",  # for updates 13 to 30
        "loss": "3.000",
        "lr": "2.50e-03",
        "tok/s": "4",
        "best": "bleu 12.35 at 5",
        "time": "25%",
    }
    assert told.shows == [(12, shown)]


def test_of_no_update_the_means_are_zero(recipe_of, told):
    recipe = recipe_of()
    Teller(recipe, told, Budget(recipe.train), torch.device("cpu")).updates(TrainState(), Meter(), 0.0)
    ((_, _, fields),) = told.lines
    assert (fields["loss"], fields["gradient_norm"], fields["tokens_per_second"]) == (0.0, 0.0, 0.0)


def test_sums_are_over_the_updates_that_moved_the_weights_and_seconds_over_all(monkeypatch):
    now = iter([100.0, 101.0, 103.0, 103.5, 200.0, 204.0])
    monkeypatch.setattr(meter_module.time, "perf_counter", lambda: next(now))
    meter = Meter(Sums(loss=1.0, norm=2.0, n_gold=3, n_update=4, seconds=5.0))

    def outcome(loss, norm, n_gold, rate, *, moved=True):
        return Outcome(loss, norm, n_gold, rate, moved=moved, stop=False, passed=0.0)

    assert meter.add(outcome(10.0, 0.5, 7, 0.1)) == 1.0
    assert meter.add(outcome(float("nan"), float("inf"), 9, 0.2, moved=False)) == 2.0
    assert meter.add(outcome(20.0, 0.25, 8, 0.3)) == 0.5
    meter.restart_clock()
    assert meter.add(outcome(30.0, 1.0, 1, 0.4)) == 4.0
    assert meter.sums == Sums(loss=61.0, norm=3.75, n_gold=19, n_update=7, seconds=12.5)
    assert meter.rate == 0.4
