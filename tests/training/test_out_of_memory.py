"""When memory runs out: the update is the one that a larger machine would have made."""

from itertools import pairwise

import pytest
import torch
from witness import FP32, engine_of, left_by, log_of, state_of, stop_at

from nmt.data.corpus import Prepared
from nmt.data.plan import Position
from nmt.errors import MachineError, OutOfMemory
from nmt.run import Run
from nmt.training import launch as room
from nmt.training.engine import Objective
from nmt.training.feed import Feed
from nmt.training.launch import launch
from nmt.training.materials import new_model
from nmt.training.parallel import Ranks
from nmt.training.validate import Validation

CPU_ERROR = "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to ..."
ERRORS = [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError(CPU_ERROR), MemoryError()]


def cost_of(src_seq, gold):
    return src_seq.size(0) * max(src_seq.size(1), gold.size(1))


@pytest.fixture
def small_memory(monkeypatch):
    """small_memory(limit) -> the costs of the batches that were tried; those above the limit run out of memory.

    Half of the time they do so in their backward pass, when most of their gradient is there already.
    """
    forward = Objective.forward

    def limit_to(limit, error=ERRORS[0]):
        tried = []

        def limited(self, src_seq, trg_seq, gold, *rest, **options):
            tried.append(cost_of(src_seq, gold))
            if tried[-1] > limit and len(tried) % 2:
                raise error
            if tried[-1] > limit:

                def fail(_):
                    hook.remove()
                    raise error

                hook = self.model.embeddings[0].weight.register_hook(fail)
            return forward(self, src_seq, trg_seq, gold, *rest, **options)

        monkeypatch.setattr(Objective, "forward", limited)
        return tried

    return limit_to


def gradient(recipe, dtype, n_update=3):
    """Of some updates without a step between them, and the engine that made them."""
    data, engine = engine_of(recipe, dtype=dtype)
    feed, found = Feed(recipe, data, Ranks()), {}
    for portion, n in zip(feed.begin(Position()), range(n_update), strict=False):
        engine.backward(portion.work, feed.n_gold(portion))
        found |= {f"{n} {name}": p.grad for name, p in engine.model.named_parameters()}
        engine.optimizers.zero_grad()
    return found, engine


CASES = [(torch.float64, 1e-12, error) for error in ERRORS] + [(torch.float32, 1e-6, ERRORS[0])]


@pytest.mark.parametrize(("dtype", "tolerance", "error"), CASES, ids=["cuda", "cpu", "python", "fp32"])
def test_an_update_that_ran_out_of_memory_has_the_gradient_of_one_that_did_not(
    recipe_of, small_memory, dtype, tolerance, error
):
    recipe = recipe_of(model={"dropout": 0.0}, batch={"max_tokens": 300, "per_update": 2})
    whole, _ = gradient(recipe, dtype)
    tried = small_memory(60, error)
    pieces, engine = gradient(recipe, dtype)
    assert max(tried) > 4 * 60  # so that halves of halves were needed
    for name, expected in whole.items():
        torch.testing.assert_close(pieces[name], expected, rtol=0, atol=tolerance)
    assert engine.memory.n_failed > 0


def test_with_dropout_the_same_pieces_have_the_same_masks_and_no_two_pieces_share_theirs(recipe_of, small_memory):
    recipe = recipe_of(batch={"max_tokens": 300})
    small_memory(80)
    (one, engine), (other, _) = gradient(recipe, torch.float32), gradient(recipe, torch.float32)
    assert all(torch.equal(one[name], other[name]) for name in one)
    portion = next(Feed(recipe, Prepared.open(recipe.data_folder), Ranks()).begin(Position()))
    seeds = [piece.seed for piece in engine.memory.pieces(portion.work)]
    assert len(set(seeds)) == len(seeds) > 4


def test_one_pair_that_is_too_large_ends_the_run_with_its_lengths(recipe_of, small_memory):
    small_memory(3)
    with pytest.raises(MachineError, match=r"1 pairs, \d+ source and \d+ target subwords.*data\.max_len"):
        gradient(recipe_of(), torch.float32)


def test_a_packed_row_that_is_too_large_ends_the_run_with_what_to_do(recipe_of, small_memory):
    small_memory(3)
    train = {"updates": 2, "kernels": "torch"}
    recipe = recipe_of(batch={"packed": True, "max_tokens": 300}, model={"dropout": 0.0}, train=train)
    with pytest.raises(OutOfMemory, match=r"a packed row\. Make batch\.max_tokens smaller in a new run"):
        launch(recipe)


def test_a_run_that_runs_out_of_memory_says_so_once_and_logs_each_time(recipe_of, small_memory, capsys):
    small_memory(60)
    train = {"kernels": "torch", "updates": 12}  # with which batches cost what they are said to
    recipe = recipe_of(train=train, valid={"translate": False, "metric": "loss"})
    assert launch(recipe, stop_at(5)) == "stopped"
    assert launch(recipe) == "done"  # knowing what it knew
    told = log_of(recipe, "memory")
    assert told and told[-1]["times"] >= len(told) and told[-1]["too_large"] > 60
    sizes = [line["too_large"] for line in told]
    assert all(later < earlier for earlier, later in pairwise(sizes))
    assert capsys.readouterr().err.count("memory ran out") == 1


def limited(model, limit, error=ERRORS[0], at=("forward", "start")):
    """The model, whose batches outside of training may cost no more than a limit; and the costs that were tried."""
    tried = []

    def limit_to(call):
        def inner(src_seq, *rest, **options):
            tried.append(cost_of(src_seq, rest[0] if rest else src_seq))
            if not model.training and tried[-1] > limit:
                raise error
            return call(src_seq, *rest, **options)

        return inner

    for name in at:
        setattr(model, name, limit_to(getattr(model, name)))
    return model, tried


@pytest.mark.parametrize("error", ERRORS, ids=["cuda", "cpu", "python"])
def test_a_validation_that_ran_out_of_memory_measures_what_one_with_more_does(recipe_of, error):
    def measured(limit):
        data, engine = engine_of(recipe_of())
        validation = Validation(recipe_of(), data, FP32)
        model, tried = limited(engine.model, limit, error)
        first, again = (validation.measure(model, lambda: True, lambda: True)["valid"] for _ in range(2))
        assert first == again and model.training
        return *first, [cost for cost in tried if cost > limit], validation.too_large

    whole, beside, _, nothing = measured(10**6)
    pieces, beside_pieces, failed, too_large = measured(40)
    assert max(failed) > 2 * 40 and nothing == 0 and 40 < too_large <= 80
    assert pieces == pytest.approx(whole, rel=1e-6) and beside == beside_pieces
    assert whole.keys() == {"loss", "perplexity", "accuracy", "bleu", "chrf"}


@pytest.mark.parametrize("at", ["forward", "start"])
def test_where_memory_is_too_small_to_validate_nothing_trained_is_lost(short_of, monkeypatch, whole, at):
    hurt = short_of("hurt")
    with monkeypatch.context() as patch:
        patch.setattr(room, "new_model", lambda *args: limited(new_model(*args), 0, at=[at])[0])
        for _ in range(2):  # given again, the same command stands where it stood
            with pytest.raises(MachineError, match=r"update 4: .*valid\.beam.*are saved"):
                launch(hurt)
            assert state_of(hurt, 4)["history"] == [] and Run(hurt.run_folder).updates() == [3, 4]
    assert launch(hurt) == "done"
    assert left_by(hurt) == left_by(whole)
