"""What is compiled is compiled once, and gradients outlive the CUDA graphs that made them."""

import pytest
import torch
from witness import FP32, engine_of

from nmt.data.plan import Position
from nmt.training.feed import Feed
from nmt.training.parallel import Ranks
from nmt.training.validate import Validation


def train(engine, recipe, data, n_update):
    feed = Feed(recipe, data, Ranks())
    for update, portion in zip(range(1, n_update + 1), feed.begin(Position()), strict=False):
        engine.backward(portion.work, feed.n_gold(portion))
        yield portion
        engine.step(1.0, update)
        assert engine.settle().moved


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # which the compiler looks at
def test_a_validation_compiles_nothing(recipe_of):
    recipe, seen = recipe_of("plain", batch={"per_update": 1}), []
    data, engine = engine_of(recipe)

    def count(graph, _):
        seen.append(len(seen))
        return graph.forward

    torch.compiler.reset()
    for part in (engine.model.encoder, engine.model.decoder):
        part.compile(backend=count, dynamic=False)
    list(train(engine, recipe, data, 1))
    n_compiled, seen[:] = len(seen), []
    assert n_compiled >= 2
    measured = Validation(recipe, data, FP32).first.measure(engine.model)
    assert not seen
    for part in (engine.model.encoder, engine.model.decoder):
        part._compiled_call_impl = None
    assert Validation(recipe, data, FP32).first.measure(engine.model) == measured
    torch.compiler.reset()


@pytest.mark.parametrize("per_update", [1, 3])
def test_gradients_outlive_the_replay_that_made_them(per_update, recipe_of, monkeypatch):
    """Each replay of a CUDA graph writes its gradients where the one before wrote its own, as here hooks do."""
    marks = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(1))
    usual = recipe_of("usual", batch={"per_update": per_update})
    graphs = usual.model_copy(update={"train": usual.train.model_copy(update={"cuda_graphs": True})})
    (data, plain), (_, other) = engine_of(usual), engine_of(graphs)
    places = {p: torch.zeros_like(p) for p in other.model.parameters()}
    for parameter, place in places.items():
        parameter.register_hook(lambda grad, place=place: place.copy_(grad).detach())
    for portion, _ in zip(train(plain, usual, data, 4), train(other, graphs, data, 4), strict=True):
        assert len(portion.work) == per_update
        for a, b in zip(plain.model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=1e-9)
            # Where there is one batch alone, nothing is copied.
            assert (b.grad.data_ptr() == places[b].data_ptr()) == (per_update == 1)
    assert len(marks) == 4 * per_update
