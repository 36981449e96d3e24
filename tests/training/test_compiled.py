"""Compilation: once a run, by auto only where it pays; and gradients outlive the CUDA graphs that made them."""

import pytest
import torch
from torch._inductor.exc import InvalidCxxCompiler
from witness import FP32, engine_of, log_of, state_of, stop_at

from nmt import ops
from nmt.data.plan import Position
from nmt.errors import Unavailable, as_nmt_error
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training import materials
from nmt.training.check import _measure_validation, check
from nmt.training.feed import Feed
from nmt.training.launch import launch
from nmt.training.materials import PAYS_FROM, compile_pays, decide_compile
from nmt.training.parallel import Ranks
from nmt.training.validate import Validation


def train(engine, recipe, data, n_update):
    feed = Feed(recipe, data, Ranks())
    for update, portion in zip(range(1, n_update + 1), feed.begin(Position()), strict=False):
        engine.backward(portion.work, feed.n_gold(portion))
        yield portion
        engine.step(1.0, update)
        assert engine.settle().moved


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler reads it
def test_validation_compiles_nothing(recipe_of):
    recipe, compiled = recipe_of("plain", batch={"per_update": 1}), []
    data, engine = engine_of(recipe)

    def count(graph, _):
        compiled.append(len(compiled))
        return graph.forward

    torch.compiler.reset()
    for part in (engine.model.encoder, engine.model.decoder):
        part.compile(backend=count, dynamic=False)
    list(train(engine, recipe, data, 1))
    n_compiled, compiled[:] = len(compiled), []
    assert n_compiled >= 2
    numbers = Validation(recipe, data, FP32).first.measure(engine.model)
    assert not compiled
    assert _measure_validation(Validation(recipe, data, FP32), engine)[0] and not compiled  # as in --check
    for part in (engine.model.encoder, engine.model.decoder):
        part._compiled_call_impl = None
    assert Validation(recipe, data, FP32).first.measure(engine.model) == numbers
    torch.compiler.reset()


@pytest.mark.parametrize("per_update", [1, 3])
def test_gradients_outlive_the_replay_that_made_them(per_update, recipe_of, monkeypatch):
    """Each replay of a CUDA graph overwrites the gradients of the previous one; here hooks do the same."""
    marks = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(1))
    eager = recipe_of("usual", batch={"per_update": per_update})
    graphed = eager.with_options(train={"cuda_graphs": True})
    (data, engine), (_, graph_engine) = engine_of(eager), engine_of(graphed)
    buffers = {p: torch.zeros_like(p) for p in graph_engine.model.parameters()}
    for parameter, buffer in buffers.items():
        parameter.register_hook(lambda grad, buffer=buffer: buffer.copy_(grad).detach())
    for portion, _ in zip(train(engine, eager, data, 4), train(graph_engine, graphed, data, 4), strict=True):
        assert len(portion.work) == per_update
        for expected, found in zip(engine.model.parameters(), graph_engine.model.parameters(), strict=True):
            torch.testing.assert_close(expected.grad, found.grad, rtol=1e-6, atol=1e-9)
            # A single batch is not copied.
            assert (found.grad.data_ptr() == buffers[found].data_ptr()) == (per_update == 1)
    assert len(marks) == 4 * per_update


# Base has 63 M parameters and an H200 a peak of 989.5 TFLOP/s: 16,384 tokens are 25 ms.
ROWS = {"packed": True, "max_tokens": 16_384}


@pytest.mark.parametrize(
    ("batch", "train", "peak", "pays", "why"),
    [
        (ROWS, {}, 989.5e12, True, "41 min"),
        (ROWS, {"updates": 10_000}, 989.5e12, False, "4 min"),
        ({**ROWS, "tokens_per_update": 131_072}, {"updates": 10_000}, 989.5e12, True, "33 min"),
        (ROWS, {"time_budget": "20m"}, 989.5e12, True, "20 min"),
        (ROWS, {"updates": 10_000, "time_budget": "20m"}, 989.5e12, False, "4 min"),
        (ROWS, {}, 0.0, False, "peak performance of this GPU is not known"),
        (ROWS, {"time_budget": "20m"}, 0.0, True, "20 min"),
        (ROWS, {"time_budget": "2m"}, 0.0, False, "2 min"),
        ({}, {}, 989.5e12, False, "batch.packed"),
        (ROWS, {"checkpoint_activations": True}, 989.5e12, False, "train.checkpoint_activations"),
        (ROWS, {"parallel": "fsdp"}, 989.5e12, False, "fsdp"),
        (ROWS, {"updates": 1, "cuda_graphs": True}, 989.5e12, True, "train.cuda_graphs"),
    ],
)
def test_auto_compiles_only_runs_long_enough_to_gain(batch, train, peak, pays, why):
    recipe = Recipe.model_validate({"name": "long", "model": {"attn_dropout": 0.0}, "batch": batch, "train": train})
    is_compiled, reason = compile_pays(recipe, "cuda", 63_000_000, peak)
    assert is_compiled == pays and why in reason
    assert 5 * 60 < PAYS_FROM < 10 * 60 and compile_pays(recipe, "cpu", 63_000_000, peak)[0] is False


def test_missing_compiler_is_no_internal_error():
    error = as_nmt_error(InvalidCxxCompiler())
    assert isinstance(error, Unavailable) and "No working C++ compiler" in str(error)


def test_resumed_run_keeps_its_compile_decision(recipe_of, monkeypatch, capsys):
    assert launch(recipe_of(train={"updates": 6}), stop_at(3)) == "stopped"
    monkeypatch.setattr(materials, "compile_pays", lambda *_: (True, "now it is long enough"))
    monkeypatch.setattr(ops, "can_compile", lambda _: True)
    longer = recipe_of(train={"updates": 9})
    assert launch(longer) == "done" and state_of(longer, 9)["arithmetic"]["compiled"] is False
    monkeypatch.undo()
    (start,) = log_of(longer, "start")
    assert start["compile_why"] == "on a CPU it is slower"
    assert Run(longer.run_folder).recipe().train.compile == "auto"
    assert any(line.startswith("compiled") and "no (on a CPU" in line for line in check(recipe_of(), print))


@pytest.mark.parametrize("can", [True, False])
def test_compiled_run_resumes_compiled_where_there_is_a_compiler(can, recipe_of, monkeypatch):
    monkeypatch.setattr(ops, "can_compile", lambda _: can)
    recipe, (_, engine) = recipe_of(), engine_of(recipe_of())
    resolved, reason = decide_compile(recipe, engine.model, FP32, Ranks(), True)
    assert resolved.train.compiled == can and ("as the run began" if can else "C compiler") in reason
    parts = (engine.model.encoder, engine.model.decoder)
    assert all((part._compiled_call_impl is not None) == can for part in parts)
