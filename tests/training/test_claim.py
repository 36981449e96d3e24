"""Claims on run folders, and starts from what a killed or damaged run left."""

import errno
import shutil
from collections import namedtuple

import pytest
import torch

from nmt import checkpoint
from nmt.data.corpus import Prepared
from nmt.errors import MachineError, RunError
from nmt.files import is_run
from nmt.run import Run
from nmt.training import launch as launch_module
from nmt.training.engine import size
from nmt.training.launch import claim, find_start, launch
from nmt.training.materials import new_model
from nmt.training.optim import freeze
from nmt.training.resolve import check_space, checkpoint_bytes
from tests.disk import full_disk


@pytest.fixture
def claimed(recipe_of):
    """Recipe, its data, and a run folder that is claimed for it and has three checkpoints."""
    recipe = recipe_of()
    data, run = Prepared.open(recipe.data_folder), Run(recipe.run_folder)
    run.folder.mkdir()
    claim(run, recipe, data)
    for update in (1, 2, 3):
        state = {"update": update, "n": update}
        checkpoint.save(run.checkpoint(update), {checkpoint.MODEL: {}, checkpoint.OPTIMIZER: {}}, state)
    return recipe, data, run


class Killed(BaseException):
    pass


@pytest.mark.parametrize("n_write", [0, 1, 2])
def test_run_killed_while_claiming_its_folder_begins_again(recipe_of, monkeypatch, n_write):
    recipe = recipe_of()
    data, run = Prepared.open(recipe.data_folder), Run(recipe.run_folder)
    run.folder.mkdir()
    n_left = [n_write]

    def write(path, content):
        if not n_left[0]:
            raise Killed
        n_left[0] -= 1
        path.write_bytes(content)

    with monkeypatch.context() as patch:
        patch.setattr(launch_module, "write_durably", write)
        patch.setattr("nmt.recipe.reader.write_durably", write)
        with pytest.raises(Killed):
            claim(run, recipe, data)
    assert not is_run(run.folder)
    claim(run, recipe, data)
    assert is_run(run.folder) and run.subwords().sha256 == data.subwords.sha256


@pytest.mark.parametrize("name, text", [
    ("thesis.tex", "x"), ("data.json", '{"mine": 1}\n'), ("data.json", "[[1]]\n"), ("subwords.json", "{}"),
])  # fmt: skip
def test_foreign_files_are_left_alone(recipe_of, name, text):
    recipe = recipe_of()
    run = Run(recipe.run_folder)
    run.folder.mkdir()
    (run.folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match="is no run of nmt-train"):
        claim(run, recipe, Prepared.open(recipe.data_folder))
    assert (run.folder / name).read_text(encoding="utf-8") == text


def test_option_that_would_alter_the_run_is_refused_with_advice(claimed, recipe_of):
    _, data, run = claimed
    with pytest.raises(
        RunError, match=r"train\.ema was 0\.0, now 0\.5\. To resume it, .* one from its weights \(--train\.init_from\)"
    ):
        claim(run, recipe_of(train={"ema": 0.5, "updates": 60}), data)


def test_damaged_checkpoints_are_set_aside_and_reported(claimed):
    (recipe, _, run), said = claimed, []
    assert find_start(run, recipe, said.append)["n"] == 3 and not said
    (run.checkpoint(3) / checkpoint.MODEL).unlink()
    (run.checkpoint(2) / checkpoint.OPTIMIZER).write_bytes(b"")
    assert find_start(run, recipe, said.append)["n"] == 1
    assert run.updates() == [1]
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        "damaged-update-00000002", "damaged-update-00000003", "update-00000001",
    ]  # fmt: skip
    assert [text.startswith("skipped a damaged checkpoint: ") for text in said] == [True, True]
    assert str(run.checkpoint(3)) in said[0]


def test_no_checkpoint_is_moved_when_all_are_damaged(claimed):
    recipe, _, run = claimed
    for update in run.updates():
        (run.checkpoint(update) / checkpoint.STATE).write_text("{}\n", encoding="utf-8")
    with pytest.raises(RunError, match="no checkpoint is intact"):
        find_start(run, recipe, print)
    assert run.updates() == [1, 2, 3]


def test_checkpoint_of_a_newer_version_is_refused_and_kept(claimed):
    recipe, _, run = claimed
    for name in (checkpoint.STATE, checkpoint.MANIFEST):
        file = run.checkpoint(3) / name
        file.write_text(file.read_text(encoding="utf-8").replace('"format": 1', '"format": 2'), encoding="utf-8")
    with pytest.raises(checkpoint.NewerFormat, match="format 2 by a newer nmt; this one reads format 1"):
        find_start(run, recipe, print)
    assert run.updates() == [1, 2, 3]


def test_lock_check_fails_when_the_run_folder_was_moved(claimed):
    _, _, run = claimed
    with run.lock():
        run.check_lock()
        run.folder.rename(run.folder.with_name("away"))
        with pytest.raises(MachineError, match="was removed or replaced"):
            run.check_lock()
        shutil.copytree(run.folder.with_name("away"), run.folder)
        with pytest.raises(MachineError, match="was removed or replaced"):
            run.check_lock()


def test_file_system_without_locks_is_reported_and_used(recipe_of, monkeypatch, capsys):
    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", fail)
    recipe = recipe_of(train={"updates": 1})
    assert launch(recipe) == "done"
    assert (
        f"{recipe.run_folder}: not locked, as its disk has no locks: start no second process" in capsys.readouterr().err
    )


# The disk space that a run needs is known before its first update; a run without it does not begin.


def test_size_of_a_checkpoint_is_predicted(recipe_of):
    recipe = recipe_of(train={"updates": 1, "ema": 0.9}, model={"d_model": 64})
    model = new_model(recipe, Prepared.open(recipe.data_folder), torch.device("cpu"))
    launch(recipe)
    files = list(Run(recipe.run_folder).checkpoint(1).glob("*.safetensors"))
    assert checkpoint_bytes(model, recipe) == pytest.approx(sum(file.stat().st_size for file in files), rel=0.1)


def test_run_that_will_not_fit_on_the_disk_is_refused_with_sizes(recipe_of, monkeypatch):
    recipe = recipe_of()
    run = Run(recipe.run_folder)
    run.folder.mkdir()
    model = new_model(recipe, Prepared.open(recipe.data_folder), torch.device("cpu"))
    n_byte = checkpoint_bytes(model, recipe)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 5 * n_byte))
    check_space(run, recipe, model)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 5 * n_byte - 1))
    with pytest.raises(MachineError, match=rf"need {size(5 * n_byte)}: 3 newest .* 1 best .* {size(n_byte)}"):
        check_space(run, recipe, model)


def test_frozen_parameters_need_no_space_for_moments(recipe_of, monkeypatch):
    recipe = recipe_of(train={"updates": 1, "freeze": "encoder.*"})
    model = new_model(recipe, Prepared.open(recipe.data_folder), torch.device("cpu"))
    freeze(model, recipe.train.freeze)
    n_byte, usage = checkpoint_bytes(model, recipe), namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 5 * n_byte))
    assert launch(recipe) == "done"


def test_full_disk_error_names_the_file_and_the_run_does_not_begin(recipe_of):
    run = Run(recipe_of().run_folder)
    with full_disk(), pytest.raises(MachineError, match=rf"^{run.folder}/lock: .*large\. Free some space"):
        launch(recipe_of())
    assert {path.name for path in run.folder.iterdir()} == {"lock"}
    with run.lock(), full_disk(), pytest.raises(OSError, match="large") as caught:
        claim(run, recipe_of(), Prepared.open(recipe_of().data_folder))
    assert caught.value.filename == str(run.data_file)
    assert launch(recipe_of(train={"updates": 2})) == "done"


@pytest.mark.parametrize(("line", "told"), [("regularize:", "layer_drop: 0.2"), ("optim:", "name: schedulefree")])
def test_run_with_a_removed_option_cannot_be_resumed(recipe_of, line, told):
    recipe = recipe_of(train={"updates": 2})
    launch(recipe)
    file = Run(recipe.run_folder).recipe_file
    text = file.read_text(encoding="utf-8")
    kept = "\n".join(row for row in text.split("\n") if not row.startswith("  name: adam"))
    file.write_text(kept.replace(f"{line}\n", f"{line}\n  {told}\n"), encoding="utf-8")
    before = file.read_bytes()
    message = rf"{told}, which .* no longer has: it can translate, but not resume\. .*--train\.init_from"
    with pytest.raises(RunError, match=message):
        launch(recipe_of(train={"updates": 4}))
    assert file.read_bytes() == before
