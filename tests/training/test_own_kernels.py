"""A run trains with kernels of our own where they can be had, keeps to what it began with, and says so."""

import json

import pytest
import torch
from torch import Tensor
from witness import StopAt

from nmt import checkpoint
from nmt.data.corpus import Prepared
from nmt.data.plan import Position
from nmt.data.subwords import PAD
from nmt.run import Run
from nmt.training.engine import Engine
from nmt.training.feed import Feed
from nmt.training.launch import launch
from nmt.training.materials import new_model
from nmt.training.parallel import Ranks
from nmt.training.precision import choose_precision

compiler = pytest.importorskip("nmt.kernels.compiler")
products = pytest.importorskip("nmt.kernels.products")
switch = pytest.importorskip("nmt.kernels.switch")

pytestmark = pytest.mark.skipif(bool(switch.why_not()), reason=f"no kernels here: {switch.why_not()}")
CPU = torch.device("cpu")


@pytest.fixture
def without_compiler(monkeypatch):
    """Call it, and from then on nothing can be compiled."""

    def take_away():
        monkeypatch.setenv("CC", "no-such-compiler")
        compiler._library.cache_clear()

    yield take_away
    compiler._library.cache_clear()


@pytest.mark.parametrize("chosen", ["auto", "torch"])
def test_no_padding_is_read_where_they_make_attention(recipe_of, chosen):
    recipe = recipe_of(train={"kernels": chosen}, batch={"max_tokens": 120, "per_update": 1})
    data, found = Prepared.open(recipe.data_folder), list[Tensor]()
    precision = choose_precision(recipe.train, CPU)
    precision.apply()
    engine = Engine(new_model(recipe, data, CPU).train(), recipe, precision=precision, ranks=Ranks())
    engine.objective.register_forward_pre_hook(lambda _, args: found.extend(args[:3]))
    (work,) = next(Feed(recipe, data, Ranks()).begin(Position())).work
    engine.backward([work], work.batch.n_gold)
    switch.use(False)
    for seq, padded in zip(found, (work.batch.src_seq, work.batch.trg_seq, work.batch.gold), strict=True):
        if chosen == "auto":
            assert seq.shape[0] == 1 and torch.equal(seq[seq != PAD], padded[padded != PAD])
        else:
            assert seq is padded


def remembered(run, update):
    arithmetic = json.loads((run.checkpoint(update) / checkpoint.STATE).read_bytes())["arithmetic"]
    assert set(arithmetic) == {"name", "device", "kernels"}
    return arithmetic["kernels"]


def test_a_run_that_lost_its_compiler_goes_on_and_says_so(recipe_of, without_compiler, capsys):
    recipe = recipe_of(train={"updates": 14})
    run = Run(recipe.run_folder)
    assert launch(recipe, StopAt(7)) == "stopped" and remembered(run, 8)
    without_compiler()
    capsys.readouterr()
    assert launch(recipe) == "done" and not remembered(run, 14)
    assert "as the run began, but without kernels: there is no C compiler" in capsys.readouterr().err
