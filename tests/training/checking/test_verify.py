"""--verify passes what training wrote, whatever trained it."""

import pytest
import torch
from safetensors.torch import load_file

from nmt import checkpoint
from nmt.cli.train import main
from nmt.run import Run
from nmt.training.launch import launch
from nmt.training.selftest import verify_run

OPTIMIZERS = {"adam": {}, "adamw": {}, "muon": {}, "schedulefree": {"schedule": "constant"}}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_was_trained_is_whole(recipe_of, capsys, name):
    recipe = recipe_of(optim={"name": name, **OPTIMIZERS[name]}, train={"updates": 4, "save_every": 2})
    assert launch(recipe) == "done"
    capsys.readouterr()
    assert main(["--verify", str(recipe.run_folder)]) == 0
    told = [line.split("\t")[2] for line in capsys.readouterr().out.splitlines()]
    assert told == ["whole"] * 3


def test_what_is_of_no_parameter_is_seen(recipe_of):
    recipe = recipe_of(optim={"name": "adamw"}, train={"updates": 1})
    launch(recipe)
    folder = Run(recipe.run_folder).checkpoint(1)
    state = checkpoint.verify(folder)
    tensors = {file.name: load_file(file) for file in folder.glob("*.safetensors")}
    tensors[checkpoint.OPTIMIZER]["nobody|exp_avg"] = torch.zeros(())
    checkpoint.save(folder, tensors, {name: value for name, value in state.items() if name != "format"})
    found = [one.complaint for one in verify_run(Run(recipe.run_folder)) if one.complaint]
    assert len(found) == 1 and "nobody|exp_avg () fits no parameter" in found[0]
