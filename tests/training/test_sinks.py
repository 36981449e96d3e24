"""What hears the log beside log.jsonl: it hears all of it, once, and can neither change nor end a run."""

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
HEARD = merged(SHORT, {"train": {"tensorboard": True, "wandb": True}})
FORCED = merged(HEARD, {"valid": {"translate": False, "metric": "loss"}})


class FakeWandb(SimpleNamespace):
    """Remembers what it is told: `begun` runs, and (step, {name: value}). With `down` there is no network."""

    def __init__(self):
        self.__spec__ = ModuleSpec("wandb", None)
        self.begun, self.told, self.n_finished, self.n_asked, self.down = [], [], 0, 0, False
        self.Table = lambda columns, data: ("table", columns, data)
        self.Settings = dict

    def init(self, **options):
        self.begun.append(options)
        return self

    def log(self, values, step):
        self.n_asked += 1
        if self.down:
            raise RuntimeError("no network\nand much more to say")
        self.told.append((step, values))

    def finish(self):
        self.n_finished += 1


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory):
    """A run that both others hear, what Weights & Biases heard of it, and the same run that nobody hears."""
    folder = tmp_path_factory.mktemp("heard")
    found = SimpleNamespace(wandb=FakeWandb())
    found.heard = make_recipe(corpus, folder / "heard", **HEARD)
    found.alone = make_recipe(corpus, folder / "alone", **SHORT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "wandb", found.wandb)
        launch(found.heard)
    launch(found.alone)
    return found


def events_of(folder):
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0}).Reload()


def numbers_of(line, path=""):
    """{path of a number in a line of the log: the number}."""
    found = {}
    for name, value in line.items():
        if isinstance(value, dict):
            found |= numbers_of(value, f"{path}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and name != "update":
            found[f"{path}{name}"] = value
    return found


def test_nobody_who_listens_changes_a_bit(runs):
    assert digest(runs.alone, 8) == digest(runs.heard, 8)

    def told(recipe):
        changing = ("tokens_per_second", "seconds", "wall_seconds", "rss_mb")
        lines = log_of(recipe, "start", "train", "valid", "final")
        return [{name: value for name, value in line.items() if name not in changing} for line in lines]

    assert told(runs.alone) == told(runs.heard)


def test_weights_and_biases_hears_every_number_of_the_log(runs):
    [begun] = runs.wandb.begun
    assert (begun["project"], begun["name"], runs.wandb.n_finished) == ("tiny", "heard", 1)
    assert begun["config"] == runs.heard.model_dump(mode="json")
    told = [(step, {k: v for k, v in values.items() if not isinstance(v, tuple)}) for step, values in runs.wandb.told]
    assert told == [(line["update"], numbers_of(line, line["kind"] + "/")) for line in log_of(runs.heard)]
    validated = [values for _, values in runs.wandb.told if "valid/loss" in values]
    assert len(validated) == 2
    for values in validated:
        kind, columns, rows = values["valid/examples"]
        assert (kind, columns, len(rows)) == ("table", ["source", "output", "reference"], 3)


def test_tensorboard_shows_every_number_and_the_examples(runs):
    events = events_of(runs.heard.run_folder / "tensorboard")
    expected = {}
    for line in log_of(runs.heard):
        for name, value in numbers_of(line, line["kind"] + "/").items():
            expected.setdefault(name, []).append((line["update"], pytest.approx(value)))
    assert {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]} == expected
    texts = events.Tensors("valid/examples/text_summary")
    assert [event.step for event in texts] == [4, 8]
    example = log_of(runs.heard, "valid")[0]["examples"][0]
    assert example["source"] in texts[0].tensor_proto.string_val[0].decode()


def test_a_resumed_run_goes_on_in_the_same_curves(recipe_of, wandb):
    recipe = recipe_of(**FORCED)
    launch(recipe, stop_at(2))
    stopped = Run(recipe.run_folder).updates()[-1]
    killed = TensorBoard(recipe.run_folder / "tensorboard", stopped)
    for update in range(stopped + 1, 7):
        killed.write("train", update, {"loss": 99.0})
    killed.close()
    launch(recipe)
    losses = events_of(recipe.run_folder / "tensorboard").Scalars("train/loss")
    assert [event.step for event in losses] == [2, 4, 6, 8] and max(event.value for event in losses) < 99.0
    one, again = wandb.begun
    assert one["id"] == again["id"] and again["resume"] == "allow"


def test_a_sink_that_fails_is_told_of_once_and_left_out(recipe_of, wandb, capsys):
    wandb.down = True
    assert launch(recipe_of(**FORCED)) == "done"
    words = "warning: Weights & Biases failed and is disabled from here on: RuntimeError: no network\n"
    assert capsys.readouterr().err.count(words) == 1 and wandb.n_asked == 1


def test_a_log_that_cannot_be_written_is_an_error_that_says_where_the_run_goes_on(tmp_path):
    with pytest.raises(MachineError, match=r"directory.*starts anew"):
        Record(tmp_path, total=9).write("train", 1, loss=1.0)
    (tmp_path / "checkpoints" / "update-00000007").mkdir(parents=True)
    log = tmp_path / "log.jsonl"
    record = Record(log, total=9)
    with full_disk(), pytest.raises(MachineError, match=rf"^{log}: .*large.*resumes from update-00000007\."):
        record.write("train", 8, loss=1.0)
    record.close()
