"""Log sinks beside log.jsonl: they receive every line once, and can neither change nor end a run."""

import shutil
import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from witness import digest, log_of, stop_at

from nmt.errors import MachineError
from nmt.run import Run
from nmt.training.launch import launch
from nmt.training.log import Record, TensorBoard
from tests.disk import full_disk
from tests.training.conftest import make_recipe, merged

SHORT = {"train": {"updates": 8, "log_every": 2, "save_every": 100, "compile": False}, "valid": {"every": 4}}
WITH_SINKS = merged(SHORT, {"train": {"tensorboard": True, "wandb": True}})
LOSS_ONLY = merged(WITH_SINKS, {"valid": {"translate": False, "metric": "loss"}})


class FakeWandb(SimpleNamespace):
    """Records options of `begun` runs and `logged` (step, {name: value}); `down`: there is no network."""

    def __init__(self):
        self.__spec__ = ModuleSpec("wandb", None)
        self.begun, self.logged, self.n_finished, self.n_log_call, self.down = [], [], 0, 0, False
        self.Table = lambda columns, data: ("table", columns, data)
        self.Settings = dict

    def init(self, **options):
        self.begun.append(options)
        return self

    def log(self, values, step):
        self.n_log_call += 1
        if self.down:
            raise RuntimeError("no network\nand much more to say")
        self.logged.append((step, values))

    def finish(self):
        self.n_finished += 1


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory):
    """Run with both sinks, what Weights & Biases received of it, and the same run without sinks."""
    folder = tmp_path_factory.mktemp("heard")
    runs = SimpleNamespace(wandb=FakeWandb())
    runs.with_sinks = make_recipe(corpus, folder / "heard", **WITH_SINKS)
    runs.plain = make_recipe(corpus, folder / "alone", **SHORT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "wandb", runs.wandb)
        launch(runs.with_sinks)
    launch(runs.plain)
    return runs


def events_of(folder):
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0}).Reload()


def numbers_of(line, path=""):
    """Return {path of a number in a line of the log: the number}."""
    numbers = {}
    for name, value in line.items():
        if isinstance(value, dict):
            numbers |= numbers_of(value, f"{path}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and name != "update":
            numbers[f"{path}{name}"] = value
    return numbers


def test_sinks_change_no_bit_of_a_run(runs):
    assert digest(runs.plain, 8) == digest(runs.with_sinks, 8)

    def stable_lines(recipe):
        changing = ("tokens_per_second", "seconds", "wall_seconds", "rss_mb")
        lines = log_of(recipe, "start", "train", "valid", "final")
        return [{name: value for name, value in line.items() if name not in changing} for line in lines]

    assert stable_lines(runs.plain) == stable_lines(runs.with_sinks)


def test_weights_and_biases_receives_every_number_of_the_log(runs):
    [begun] = runs.wandb.begun
    assert (begun["project"], begun["name"], runs.wandb.n_finished) == ("tiny", "heard", 1)
    assert begun["config"] == runs.with_sinks.model_dump(mode="json")
    logged = [
        (step, {k: v for k, v in values.items() if not isinstance(v, tuple)}) for step, values in runs.wandb.logged
    ]
    assert logged == [(line["update"], numbers_of(line, line["kind"] + "/")) for line in log_of(runs.with_sinks)]
    validated = [values for _, values in runs.wandb.logged if "valid/loss" in values]
    assert len(validated) == 2
    for values in validated:
        kind, columns, rows = values["valid/examples"]
        assert (kind, columns, len(rows)) == ("table", ["source", "output", "reference"], 3)


def test_tensorboard_receives_every_number_and_the_examples(runs):
    events = events_of(runs.with_sinks.run_folder / "tensorboard")
    expected = {}
    for line in log_of(runs.with_sinks):
        for name, value in numbers_of(line, line["kind"] + "/").items():
            expected.setdefault(name, []).append((line["update"], pytest.approx(value)))
    assert {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]} == expected
    texts = events.Tensors("valid/examples/text_summary")
    assert [event.step for event in texts] == [4, 8]
    example = log_of(runs.with_sinks, "valid")[0]["examples"][0]
    assert example["source"] in texts[0].tensor_proto.string_val[0].decode()


def test_resumed_run_continues_the_same_curves(recipe_of, wandb):
    recipe = recipe_of(**LOSS_ONLY)
    launch(recipe, stop_at(2))
    stopped = Run(recipe.run_folder).updates()[-1]
    killed = TensorBoard(recipe.run_folder / "tensorboard", stopped)
    for update in range(stopped + 1, 7):
        killed.write("train", update, {"loss": 99.0})
    killed.close()
    launch(recipe)
    losses = events_of(recipe.run_folder / "tensorboard").Scalars("train/loss")
    assert [event.step for event in losses] == [2, 4, 6, 8] and max(event.value for event in losses) < 99.0
    first, second = wandb.begun
    assert first["id"] == second["id"] and second["resume"] == "allow"


def test_run_that_begins_anew_gets_a_new_curve(recipe_of, wandb):
    recipe = recipe_of(**LOSS_ONLY)
    launch(recipe, stop_at(2))
    for folder in Run(recipe.run_folder).checkpoints.iterdir():  # as if it had been killed before
        shutil.rmtree(folder)
    launch(recipe)
    first, second = wandb.begun
    assert first["id"] != second["id"]


def test_failed_sink_is_reported_once_and_left_out(recipe_of, wandb, capsys):
    wandb.down = True
    assert launch(recipe_of(**LOSS_ONLY)) == "done"
    warning = "warning: Weights & Biases failed and is disabled from here on: RuntimeError: no network\n"
    assert capsys.readouterr().err.count(warning) == 1 and wandb.n_log_call == 1


def test_error_of_an_unwritable_log_names_it(tmp_path):
    log = tmp_path / "log.jsonl"
    record = Record(log, total=9)
    with full_disk(), pytest.raises(MachineError, match=rf"^{log}: .*large.*resumes from the last checkpoint"):
        record.write("train", 8, loss=1.0)
    record.close()
