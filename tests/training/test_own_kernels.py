"""A run trains with our own kernels where they can be compiled, and reports when it loses them."""

import pytest
import torch
from torch import Tensor
from witness import CPU, engine_of, state_of, stop_at

from nmt.data.plan import Position
from nmt.data.subwords import PAD
from nmt.training.feed import Feed
from nmt.training.launch import launch
from nmt.training.parallel import Ranks
from nmt.training.precision import choose_precision

compiler = pytest.importorskip("nmt.kernels.compiler")
switch = pytest.importorskip("nmt.kernels.switch")

pytestmark = pytest.mark.skipif(bool(switch.why_not()), reason=f"no kernels here: {switch.why_not()}")


@pytest.fixture
def remove_compiler(monkeypatch):
    """remove_compiler(): make the C compiler unavailable."""

    def remove():
        monkeypatch.setenv("CC", "no-such-compiler")
        compiler._library.cache_clear()

    yield remove
    compiler._library.cache_clear()


@pytest.mark.parametrize("chosen", ["auto", "torch"])
def test_no_padding_is_read_where_kernels_compute_attention(recipe_of, chosen):
    recipe, inputs = recipe_of(train={"kernels": chosen}, batch={"max_tokens": 120, "per_update": 1}), list[Tensor]()
    precision = choose_precision(recipe.train, CPU)
    precision.apply()
    data, engine = engine_of(recipe, precision)
    engine.objective.register_forward_pre_hook(lambda _, args: inputs.extend(args[:3]))
    (work,) = next(Feed(recipe, data, Ranks()).begin(Position())).work
    engine.backward([work], work.batch.n_gold)
    switch.use(False)
    for seq, padded in zip(inputs, (work.batch.src_seq, work.batch.trg_seq, work.batch.gold), strict=True):
        if chosen == "auto":
            assert seq.shape[0] == 1 and torch.equal(seq[seq != PAD], padded[padded != PAD])
        else:
            assert seq is padded


def test_run_that_lost_its_compiler_resumes_and_reports_it(recipe_of, remove_compiler, capsys):
    recipe = recipe_of(train={"updates": 14})
    assert launch(recipe, stop_at(7)) == "stopped" and state_of(recipe, 8)["arithmetic"]["kernels"]
    remove_compiler()
    capsys.readouterr()
    assert launch(recipe) == "done" and not state_of(recipe, 14)["arithmetic"]["kernels"]
    assert "as the run began, but without kernels: there is no C compiler" in capsys.readouterr().err
