"""The disk that a run will need is known before its first update, and a run that has not got it does not begin."""

import shutil
from collections import namedtuple

import pytest
import torch

from nmt import checkpoint
from nmt.data.corpus import Prepared
from nmt.errors import MachineError
from nmt.run import Run
from nmt.training.claim import claim
from nmt.training.engine import size
from nmt.training.launch import launch
from nmt.training.materials import new_model
from nmt.training.resolve import bytes_needed, check_space, checkpoint_bytes
from tests.disk import full_disk

VARIANTS = {
    "adam": {},
    "muon": {"optim": {"name": "muon"}},
    "schedule-free": {"optim": {"name": "schedulefree", "schedule": "constant"}},
    "adamw and a moving average": {"optim": {"name": "adamw"}, "train": {"ema": 0.9}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_size_of_a_checkpoint_is_known_before_it_is_written(recipe_of, variant):
    options = VARIANTS[variant]
    recipe = recipe_of(**{**options, "train": {**options.get("train", {}), "updates": 1}})
    model = new_model(recipe, Prepared.open(recipe.data_folder), torch.device("cpu"))
    launch(recipe)
    files = list(Run(recipe.run_folder).checkpoint(1).glob("*.safetensors"))
    assert checkpoint_bytes(model, recipe) == pytest.approx(sum(file.stat().st_size for file in files), rel=0.07)


@pytest.mark.parametrize("one, there, keep_last, keep_best, needed", [
    (100, 0, 3, 1, 500),  # kept: three newest and the best; and one being written
    (100, 400, 3, 1, 100),  # going on, when all that are kept are there
    (100, 900, 3, 1, 0),
    (100, 0, 1, 1, 300),
])  # fmt: skip
def test_what_must_be_free(one, there, keep_last, keep_best, needed):
    assert bytes_needed(one, there, keep_last=keep_last, keep_best=keep_best) == needed


def test_a_run_that_will_not_fit_is_refused_with_the_numbers(recipe_of, monkeypatch):
    recipe = recipe_of()
    run = Run(recipe.run_folder)
    run.folder.mkdir()
    model = new_model(recipe, Prepared.open(recipe.data_folder), torch.device("cpu"))
    one = checkpoint_bytes(model, recipe)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 5 * one))
    check_space(run, recipe, model)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 5 * one - 1))
    with pytest.raises(MachineError, match=rf"need {size(5 * one)} more: 3 newest .* 1 best .* {size(one)}"):
        check_space(run, recipe, model)
    checkpoint.save(run.checkpoint(5), {checkpoint.MODEL: {"w": torch.zeros(1000)}}, {"update": 5})
    check_space(run, recipe, model)  # what is there is space that is not needed
    run.set_aside(run.checkpoint(5))
    with pytest.raises(MachineError, match="more"):  # but what was set aside stays
        check_space(run, recipe, model)


def test_on_a_full_disk_a_run_does_not_begin_and_says_which_file_found_no_room(recipe_of):
    run = Run(recipe_of().run_folder)
    with full_disk(), pytest.raises(MachineError, match=rf"^{run.folder}/lock: .*large\. Free some space"):
        launch(recipe_of())
    assert {path.name for path in run.folder.iterdir()} == {"lock"}
    with run.lock(), full_disk(), pytest.raises(OSError, match="large") as caught:
        claim(run, recipe_of(), Prepared.open(recipe_of().data_folder))
    assert caught.value.filename == str(run.subwords_file)
    assert launch(recipe_of(train={"updates": 2})) == "done"
