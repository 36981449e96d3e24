"""An update is one gradient: cut into batches however uneven, padded however much, it is that of one big batch."""

import json

import pytest
import torch
from witness import plan_of

from nmt import checkpoint
from nmt.data.prepare import prepare
from nmt.run import Run
from nmt.training import launch as room
from nmt.training.launch import launch

BETA = 0.9


@pytest.fixture
def double(monkeypatch):
    """double(True) trains in fp64, which no recipe can ask for."""
    make = room.new_model
    return lambda on: on and monkeypatch.setattr(room, "new_model", lambda *args: make(*args).double())


@pytest.fixture
def trained(recipe_of, tmp_path):
    """trained(run name, tokens in a batch) -> the run after four updates, each of all pairs there are, and the gold
    tokens in each batch of one.

    Some pairs read a long source for a target of one word, so some batches have hardly any gold tokens.
    """
    words = ["rot", "blau", "grün", "Haus", "Hund", "Ball"]
    pairs = [(words[n % 6] + " " + words[n % 5], words[n % 4] + " x" * (n % 3)) for n in range(30)]
    pairs += [(" ".join(words[(n + i) % 6] for i in range(14)), words[n]) for n in range(4)]
    pairs += [(words[n], " ".join(words[(n + i) % 6] for i in range(17))) for n in range(2)]
    for side, name in enumerate(("src", "trg")):
        text = "".join(pair[side] + "\n" for pair in pairs)
        (tmp_path / name).write_text(text, encoding="utf-8", newline="\n")
    data = {"train": [{name: str(tmp_path / name) for name in ("src", "trg")}], "out": str(tmp_path / "prepared")}

    def train(run, max_tokens):
        recipe = recipe_of(
            run,
            data={**data, "max_ratio": 1e4},
            subwords={"vocab_size": 300},
            model={"dropout": 0.0},
            batch={"max_tokens": max_tokens, "per_update": 10_000},
            optim={"clip": 0.0, "eps": 1e-6, "betas": [BETA, 0.98]},
            train={"updates": 4, "log_every": 1, "save_every": 1, "keep_last": 4},
            valid={"every": 1000, "translate": False, "metric": "loss"},
        )
        assert recipe.train.label_smoothing > 0
        if not recipe.data_folder.exists():
            prepare(recipe, recipe.data_folder)
        launch(recipe)
        plan = plan_of(recipe)
        (update,) = plan.updates(0)
        return Run(recipe.run_folder), [plan.n_gold([rows]) for rows in update]

    return train


def gradient(run):
    """The gradient of the first update, all parameters in one: Adam's first moment is its (1 - beta)-fold."""
    moments = checkpoint.load_tensors(run.checkpoint(1), checkpoint.OPTIMIZER)
    parts = [moments[key].flatten() for key in sorted(moments) if key.endswith("|exp_avg")]
    return torch.cat(parts).double() / (1 - BETA)


def losses(run):
    lines = [json.loads(line) for line in run.log_file.read_bytes().split(b"\n") if line]
    return torch.tensor([line["loss"] for line in lines if line["kind"] == "train"], dtype=torch.float64)


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-13), (torch.float32, 1e-6)])
def test_many_uneven_batches_give_the_gradient_and_the_weights_of_one(trained, double, dtype, bound):
    double(dtype == torch.float64)
    (one, whole), (many, cut) = trained("one", 100_000), trained("many", 20)
    assert len(whole) == 1 and sum(cut) == sum(whole)
    assert len(cut) > 8 and max(cut) >= 9 * min(cut)
    wanted = gradient(one)
    assert wanted.norm() > 0.1
    assert (gradient(many) - wanted).norm() < bound * wanted.norm()
    assert (losses(many) / losses(one) - 1).abs().max() < 1e-6 and len(losses(one)) == 4  # summed in fp32 either way
    ends = [checkpoint.load_tensors(run.checkpoint(4), checkpoint.MODEL) for run in (one, many)]
    for name, weight in ends[0].items():
        assert weight.dtype == dtype
        assert (ends[1][name] - weight).abs().max() < 100 * bound
