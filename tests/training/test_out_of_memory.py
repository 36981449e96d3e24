"""Out of memory: updates and validations equal those of a larger machine."""

from itertools import pairwise

import pytest
import torch
from witness import FP32, engine_of, log_of, saved_by, state_of, stop_at

from nmt.data.corpus import Prepared
from nmt.data.plan import Position
from nmt.errors import MachineError, OutOfMemory
from nmt.run import Run
from nmt.training import launch as launch_module
from nmt.training.engine import Objective
from nmt.training.feed import Feed
from nmt.training.launch import launch
from nmt.training.materials import new_model
from nmt.training.parallel import Ranks
from nmt.training.validate import Validation, numbers_of

CPU_ERROR = "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to ..."
ERRORS = [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError(CPU_ERROR), MemoryError()]


def cost_of(src_seq, gold):
    return src_seq.size(0) * max(src_seq.size(1), gold.size(1))


@pytest.fixture
def small_memory(monkeypatch):
    """small_memory(limit) -> costs of the batches that were tried; batches above the limit run out of memory.

    Half of the time they do so in the backward pass, when most of the gradient exists already.
    """
    forward = Objective.forward

    def limit_to(limit, error=ERRORS[0]):
        costs = []

        def limited_forward(self, src_seq, trg_seq, gold, *rest, **options):
            costs.append(cost_of(src_seq, gold))
            if costs[-1] > limit and len(costs) % 2:
                raise error
            if costs[-1] > limit:

                def fail(_):
                    hook.remove()
                    raise error

                hook = self.model.embeddings[0].weight.register_hook(fail)
            return forward(self, src_seq, trg_seq, gold, *rest, **options)

        monkeypatch.setattr(Objective, "forward", limited_forward)
        return costs

    return limit_to


def gradients_of(recipe, dtype, n_update=3):
    """Return the gradients of some updates without a step between them, and the engine."""
    data, engine = engine_of(recipe, dtype=dtype)
    feed, gradients = Feed(recipe, data, Ranks()), {}
    for portion, n in zip(feed.begin(Position()), range(n_update), strict=False):
        engine.backward(portion.work, feed.n_gold(portion))
        gradients |= {f"{n} {name}": p.grad for name, p in engine.model.named_parameters()}
        engine.model.zero_grad()
    return gradients, engine


CASES = [(torch.float64, 1e-12, error) for error in ERRORS] + [(torch.float32, 1e-6, ERRORS[0])]


@pytest.mark.parametrize(("dtype", "tolerance", "error"), CASES, ids=["cuda", "cpu", "python", "fp32"])
def test_gradient_does_not_depend_on_running_out_of_memory(recipe_of, small_memory, dtype, tolerance, error):
    recipe = recipe_of(model={"dropout": 0.0}, batch={"max_tokens": 300, "per_update": 2})
    whole, _ = gradients_of(recipe, dtype)
    costs = small_memory(60, error)
    pieces, engine = gradients_of(recipe, dtype)
    assert max(costs) > 4 * 60  # so batches were halved twice
    for name, tensor in whole.items():
        torch.testing.assert_close(pieces[name], tensor, rtol=0, atol=tolerance)
    assert engine.memory.n_failed > 0


def test_dropout_masks_are_reproducible_and_differ_between_pieces(recipe_of, small_memory):
    recipe = recipe_of(batch={"max_tokens": 300})
    small_memory(80)
    (first, engine), (second, _) = gradients_of(recipe, torch.float32), gradients_of(recipe, torch.float32)
    assert all(torch.equal(first[name], second[name]) for name in first)
    portion = next(Feed(recipe, Prepared.open(recipe.data_folder), Ranks()).begin(Position()))
    seeds = [piece.seed for piece in engine.memory.pieces(portion.work)]
    assert len(set(seeds)) == len(seeds) > 4


def test_error_names_the_lengths_of_a_pair_too_large_for_memory(recipe_of, small_memory):
    small_memory(3)
    with pytest.raises(MachineError, match=r"1 pairs, \d+ source and \d+ target subwords.*data\.max_len"):
        gradients_of(recipe_of(), torch.float32)


def test_ranks_of_a_sharded_model_have_as_many_forward_passes(recipe_of, small_memory):
    """Each pass exchanges weights, so a batch that another rank does not have to halve is not halved."""
    recipe = recipe_of(batch={"max_tokens": 300})
    _, engine = engine_of(recipe)
    portion = next(Feed(recipe, Prepared.open(recipe.data_folder), Ranks()).begin(Position()))
    engine.memory.ran_out(portion.work[0])
    costs = small_memory(10**6)
    for engine._is_sharded in (False, True):
        engine.backward(portion.work, 100)
    assert len(costs) == len(engine.memory.pieces(portion.work)) + len(portion.work) > 2 * len(portion.work)


def test_error_gives_advice_on_a_packed_row_too_large_for_memory(recipe_of, small_memory):
    small_memory(3)
    train = {"updates": 2, "kernels": "torch"}
    recipe = recipe_of(batch={"packed": True, "max_tokens": 300}, model={"dropout": 0.0}, train=train)
    with pytest.raises(OutOfMemory, match=r"a packed row\. Make batch\.max_tokens smaller in a new run"):
        launch(recipe)


def test_running_out_of_memory_is_printed_once_and_logged_each_time(recipe_of, small_memory, capsys):
    small_memory(60)
    train = {"kernels": "torch", "updates": 12}  # with it batches cost what `cost_of` says
    recipe = recipe_of(train=train, valid={"translate": False, "metric": "loss"})
    assert launch(recipe, stop_at(5)) == "stopped"
    assert launch(recipe) == "done"  # with the limit that it had learnt
    lines = log_of(recipe, "memory")
    assert lines and lines[-1]["times"] >= len(lines) and lines[-1]["too_large"] > 60
    sizes = [line["too_large"] for line in lines]
    assert all(later < earlier for earlier, later in pairwise(sizes))
    assert capsys.readouterr().err.count("memory ran out") == 1


def limited(model, limit, error=ERRORS[0], methods=("forward", "start")):
    """Return the model, its batches outside of training limited in cost, and the costs that were tried."""
    costs = []

    def limit_to(call):
        def limited_call(src_seq, *rest, **options):
            costs.append(cost_of(src_seq, rest[0] if rest else src_seq))
            if not model.training and costs[-1] > limit:
                raise error
            return call(src_seq, *rest, **options)

        return limited_call

    for name in methods:
        setattr(model, name, limit_to(getattr(model, name)))
    return model, costs


@pytest.mark.parametrize("error", ERRORS, ids=["cuda", "cpu", "python"])
def test_validation_does_not_depend_on_running_out_of_memory(recipe_of, error):
    def measured(limit):
        data, engine = engine_of(recipe_of())
        validation = Validation(recipe_of(), data, FP32)
        model, costs = limited(engine.model, limit, error)
        first, again = (validation.measure(model, lambda: False, lambda: True)["valid"] for _ in range(2))
        assert first == again and model.training
        failed_costs = [cost for cost in costs if cost > limit]
        return numbers_of(first), first["examples"], failed_costs, validation.first.memory.too_large

    whole, examples, _, no_limit = measured(10**6)
    pieces, examples_of_pieces, failed_costs, too_large = measured(40)
    assert max(failed_costs) > 2 * 40 and no_limit == 0 and 40 < too_large <= 80
    assert pieces == pytest.approx(whole, rel=1e-6) and examples == examples_of_pieces
    assert whole.keys() == {"loss", "perplexity", "accuracy", "bleu", "chrf"}


@pytest.mark.parametrize("at", ["forward", "start"])
def test_too_little_memory_to_validate_loses_no_training(short_of, monkeypatch, uninterrupted, at):
    recipe = short_of("hurt")
    with monkeypatch.context() as patch:
        patch.setattr(launch_module, "new_model", lambda *args: limited(new_model(*args), 0, methods=[at])[0])
        for _ in range(2):  # the same command fails at the same update again
            with pytest.raises(MachineError, match=r"update 4: .*valid\.beam.*are saved"):
                launch(recipe)
            assert state_of(recipe, 4)["history"] == [] and Run(recipe.run_folder).updates() == [3, 4]
    assert launch(recipe) == "done"
    assert saved_by(recipe) == saved_by(uninterrupted)
