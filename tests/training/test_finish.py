"""Final model: the best on validation of last, best, average and moving average."""

import json
import statistics
from pathlib import Path

import pytest
from witness import engine_of, log_of, logged, state_of, stop_at_update, tensors

from nmt import checkpoint
from nmt.data.plan import Position
from nmt.run import USUAL_RATIOS, USUAL_SRC_LEN, Run
from nmt.training.budget import Budget
from nmt.training.feed import Feed
from nmt.training.launch import launch
from nmt.training.log import Record
from nmt.training.parallel import Ranks
from nmt.training.state import TrainState
from nmt.training.trainer import Trainer
from tests.training.conftest import make_recipe

NAN = float("nan")


class FakeValidator:
    """Fake validator: it measures the given losses one after another, and leaves out NaN."""

    def __init__(self, *losses, names=("loss",)):
        self.losses, self.names = iter(losses), names

    def measure(self, model, *_):
        loss = next(self.losses)
        return {} if loss != loss else dict.fromkeys(self.names, loss)


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """A run of three checkpoints with a moving average."""
    folder = tmp_path_factory.mktemp("finish") / "run"
    valid = {"every": 2, "metric": "loss", "translate": False}
    recipe = make_recipe(corpus, folder, train={"updates": 6, "save_every": 2, "ema": 0.5}, valid=valid)
    launch(recipe)
    return recipe


def test_scores_of_another_beam_are_not_compared_but_the_best_is_kept():
    conditions = {"pairs": {"pairs": 9}, "translations": {"beam": 4}}
    history = [
        {"update": 1, "loss": 2.0, "bleu": 30.0, "how": {"pairs": {"pairs": 9}, "translations": {"beam": 1}}},
        {"update": 2, "loss": 3.0, "bleu": 20.0, "how": conditions},
        {"update": 3, "loss": 1.0},  # of an earlier version, without conditions
    ]
    state = TrainState(3, history=history, conditions=conditions)
    assert state.scores("bleu") == {2: 20.0} and state.scores("loss") == {1: -2.0, 2: -3.0, 3: -1.0}
    assert TrainState(1, history=history[:1], conditions=conditions).scores_to_keep("bleu") == {1: 30.0}
    assert TrainState(3, history=history[2:], conditions=conditions).scores_to_keep("bleu") == {3: -1.0}
    assert "conditions" not in state.to_json("bleu")


@pytest.mark.parametrize(
    ("history", "measured", "chosen"),
    [
        ((3.0, 2.0, 2.5), (9.0, 9.0), "best"),
        ((3.0, 2.0, 1.5), (9.0, 9.0), "last"),
        ((3.0, 2.0, 2.5), (1.9, 9.0), "average of last 3"),
        ((3.0, 2.0, 2.5), (1.9, 1.8), "moving average"),
        ((3.0, 2.0, 2.5), (2.0, 2.0), "best"),  # the first of equals
        ((3.0, 2.0, NAN), (NAN, NAN), "best"),
        ((NAN, NAN, NAN), (NAN, 7.0), "moving average"),
    ],
)
def test_best_candidate_becomes_the_final_model_and_is_logged(trained, capsys, history, measured, chosen):
    run = Run(trained.run_folder)
    entries = [{"update": update, "loss": loss, "how": {}} for update, loss in zip((2, 4, 6), history, strict=True)]
    # NaN is in no history, and the last weights are then measured again.
    validator = FakeValidator(*([NAN] if history[2] != history[2] else []), *measured)
    state = TrainState(6, Position(), history=[entry for entry in entries if entry["loss"] == entry["loss"]])
    record = Record(run.log_file, total=6)
    capsys.readouterr()
    with run.lock():
        data, engine = engine_of(trained)
        trainer = Trainer(engine, Feed(trained, data, Ranks()), run, record, lambda: False, Budget(trained.train))
        trainer.state, trainer.validation.first = state, validator
        assert trainer.choose_final() == chosen
    assert f"final model: {chosen}, the best loss on the validation set" in capsys.readouterr().err
    *_, line = log_of(trained, "final")
    assert line["chosen"] == chosen and chosen in line["candidates"]
    averaged = {"last": [6], "best": [4], "average of last 3": [2, 4, 6]}.get(chosen)
    expected = checkpoint.average([*map(run.checkpoint, averaged)]) if averaged else tensors(trained, 6, checkpoint.EMA)
    final = tensors(trained, None)
    assert final.keys() == expected.keys() and all((final[name] == tensor).all() for name, tensor in expected.items())


def test_run_records_the_usual_length_and_ratio_of_its_lines(uninterrupted):
    run = Run(uninterrupted.run_folder)
    sides = (uninterrupted.data.train[0].src, uninterrupted.data.train[0].trg)
    sources, targets = (Path(side).read_text(encoding="utf-8").split("\n")[:-1] for side in sides)
    lengths = sorted(map(len, run.subwords().src.encode(sources)))
    assert sum(length > run.usual_src_len() for length in lengths) <= len(lengths) / 100
    assert sum(length >= run.usual_src_len() for length in lengths) >= len(lengths) / 100
    median = statistics.median(len(trg) / len(src) for src, trg in zip(sources, targets, strict=True))
    assert run.numbers(USUAL_RATIOS) == {"en": pytest.approx(median, rel=0.02)}


def test_run_without_a_recorded_length_and_ratio_resumes(recipe_of):
    run, recipe = Run(recipe_of().run_folder), recipe_of(train={"updates": 3, "log_every": 1})
    assert launch(recipe, stop_at_update(recipe, 2)) == "stopped"
    known = json.loads(run.data_file.read_bytes())
    del known[USUAL_SRC_LEN], known[USUAL_RATIOS]
    run.data_file.write_bytes(json.dumps(known).encode() + b"\n")
    assert run.usual_src_len() is None and run.numbers(USUAL_RATIOS) == {}
    assert launch(recipe) == "done"


def test_finished_run_chooses_again_when_the_recipe_averages_otherwise(recipe_of, capsys):
    sections = {"valid": {"every": 4, "translate": False, "metric": "loss"}}
    averaged, plain = (recipe_of(**sections, train={"updates": 8, "average": name}) for name in ("last", "none"))

    def candidates():
        return {name.split()[0] for name in state_of(plain)["candidates"]}

    assert launch(averaged) == "done" and candidates() == {"last", "average"}
    assert launch(plain) == "done" and candidates() == {"last"}
    capsys.readouterr()
    assert launch(plain) == "done" and "nothing to do" in capsys.readouterr().err


def test_updates_before_a_validation_that_ends_training_are_logged(recipe_of):
    recipe = recipe_of(
        optim={"lr": 1e-12},
        train={"updates": 100, "log_every": 10},
        valid={"every": 7, "patience": 2, "metric": "accuracy", "translate": False},
    )
    assert launch(recipe) == "patience"
    assert list(logged(recipe, "train", "loss")) == [10, 20, 21]
