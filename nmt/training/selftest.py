"""nmt-train --selftest: overfit a handful of pairs without regularisation, then translate them. Shows that the model
can learn, and that the search finds what it learnt. Writes nothing. Also the checks of nmt-train --verify."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from nmt import checkpoint
from nmt.data.batches import Batch, make_batch
from nmt.data.corpus import Corpus, Prepared
from nmt.data.plan import Rows
from nmt.data.subwords import EOS, PAD
from nmt.decoding.beam import BeamSettings, search
from nmt.errors import NmtError, RunError
from nmt.recipe.options import Recipe
from nmt.recipe.training_options import OptimConfig, RegularizeConfig
from nmt.run import Run
from nmt.training.engine import Engine
from nmt.training.launch import required_files
from nmt.training.materials import Trial, open_data
from nmt.training.memory import Work
from nmt.training.parallel import Ranks, require_one_process
from nmt.training.precision import use_device
from nmt.training.resolve import resolve

N_PAIR = 16
MOST_UPDATES = 1000
GOAL = 0.5  # nats of loss, summed over all tokens: then each gold token is the likeliest
_WARMUP = 20
# Advice after a failure.
_NOT_LEARNT = (
    "Try train.precision: fp32 and train.kernels: torch, then model.norm: pre, fewer layers or a smaller d_model: the "
    "change that helps shows the cause"
)
_NOT_FOUND = (
    "The pairs were learnt, so look at the search: decode.length_penalty and alpha, then train.precision: fp32 and "
    "train.kernels: torch; if neither helps, the model sees something in training that it lacks in translation"
)
_SAMPLE = 5000  # pairs from which the handful is chosen


def selftest(recipe: Recipe) -> Iterator[tuple[bool, str]]:
    """Run the steps in order; yield for each whether it passed, and its result as a text."""
    require_one_process("--selftest")
    data, ranks = open_data(recipe), Ranks(device=use_device(recipe.train))
    recipe = resolve(without_regularisation(recipe), data, None, ranks, lambda _: None)
    engine = Trial(recipe, data, ranks.device).engine
    batch = make_batch(*data.train.picked(handful(data.train, recipe.seed)))
    engine.backward([Work(batch)], batch.n_gold)
    names = [name for name, p in engine.model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    engine.optimizers.zero_grad()
    if names:
        yield False, f"the gradient is missing or not finite for {', '.join(names[:5])}"
    else:
        yield True, "a finite gradient reaches every parameter"
    is_below_goal, result = _overfit(engine, batch)
    beams = sorted({1, recipe.decode.beam})
    searches = [_search(engine, batch, recipe, data, beam=beam) for beam in beams]
    # If the greedy search finds the targets, they were learnt, whatever the loss is.
    is_learnt = is_below_goal or searches[0][0]
    yield is_learnt, result if is_learnt else f"{result}. {_NOT_LEARNT}"
    for is_found, result in searches:
        yield is_found, result if is_found or not is_learnt else f"{result}. {_NOT_FOUND}"


def without_regularisation(recipe: Recipe) -> Recipe:
    """Return the recipe without regularisation, at a learning rate that suits a handful of pairs."""
    # The rate that is stable after a short warm-up falls with the width of the model, as in the noam schedule.
    is_stable = recipe.model.is_recurrent or recipe.model.norm == "pre"
    rate = (0.06 if is_stable else 0.02) * recipe.model.d_model**-0.5
    optim = {"schedule": "constant", "warmup": _WARMUP, "lr": rate, "weight_decay": 0.0, "clip": 1.0, "rate_of": {}}
    train = {"epochs": 0, "label_smoothing": 0.0, "ema": 0.0, "freeze": [], "compile": False, "cuda_graphs": False}
    changes: dict[str, dict[str, Any]] = {
        "model": {"dropout": 0.0, "emb_dropout": None, "attn_dropout": None, "act_dropout": 0.0},
        "optim": {**optim, "muon_lr": OptimConfig().muon_lr},
        "train": train,
        "batch": {"max_tokens": 4096, "bpe_dropout": 0.0, "unigram_alpha": 0.0, "packed": False},
    }
    sections = {name: getattr(recipe, name).model_copy(update=options) for name, options in changes.items()}
    return recipe.model_copy(update={**sections, "regularize": RegularizeConfig()})


def handful(corpus: Corpus, seed: int) -> Rows:
    """Return a few pairs of at most median length with distinct sources: two targets of one source cannot be learnt."""
    sample = np.random.default_rng(seed).choice(corpus.n_pair, min(_SAMPLE, corpus.n_pair), replace=False)
    lengths = np.maximum(corpus.src_len[sample], corpus.trg_len[sample])
    sample = sample[lengths <= np.median(lengths)]
    sources, _ = corpus.pairs(sample)
    row_of = {tuple(src.tolist()): row for src, row in zip(sources, sample, strict=True)}
    return np.array(list(row_of.values())[:N_PAIR], dtype=np.int64)


def _overfit(engine: Engine, batch: Batch) -> tuple[bool, str]:
    """Train until the loss is below GOAL, for at most MOST_UPDATES. Returns whether it is, and a text."""
    n_pair, losses = batch.src_seq.size(0), list[float]()
    for update in range(1, MOST_UPDATES + 1):
        engine.backward([Work(batch)], batch.n_gold)
        engine.step(min(1.0, update / _WARMUP), update)
        outcome = engine.settle()
        assert outcome is not None
        losses.append(outcome.loss)
        if losses[-1] < GOAL:
            break
    first, last = (loss / batch.n_gold for loss in (losses[0], losses[-1]))
    result = f"{n_pair} pairs in {len(losses)} updates: loss {first:.3f} -> {last:.4f} nats a token"
    return losses[-1] < GOAL, f"{result} (learnt: below {GOAL / batch.n_gold:.4f})"


def _search(engine: Engine, batch: Batch, recipe: Recipe, data: Prepared, *, beam: int) -> tuple[bool, str]:
    """Translate the sources of a batch. Returns whether all targets are found, and a text."""
    decode = recipe.decode
    targets = [[i for i in row if i not in (EOS, PAD)] for row in batch.gold.tolist()]
    settings = BeamSettings(
        length_penalty=decode.length_penalty, alpha=decode.alpha, n_real=data.subwords.trg.n_text, beam=beam
    )
    max_len = torch.tensor([2 * len(ids) + 20 for ids in targets])
    with engine.precision.measuring():
        outputs = search(engine.model.eval(), batch.src_seq.to(engine.model.device), settings, max_len)
    is_right = [hypotheses[0].ids == ids for hypotheses, ids in zip(outputs, targets, strict=True)]
    result = f"beam search (beam {beam}) finds {sum(is_right)} of {len(is_right)} targets word for word"
    if all(is_right):
        return True, result
    wrong, decode_ids = is_right.index(False), data.subwords.trg.decode
    return False, f"{result}; expected {decode_ids(targets[wrong])!r}, found {decode_ids(outputs[wrong][0].ids)!r}"


def verify_run(run: Run) -> Iterator[tuple[str, int | None, str]]:
    """Yield name, update (None if unreadable) and complaint ('' if intact) of each checkpoint and of the final model.

    Raises RunError if recipe or subwords are not those of the run.
    """
    needed = required_files(run.recipe())
    run.subwords()
    if "subwords" not in run.data_facts():
        raise RunError(f"{run.data_file}: the SHA-256 of the subwords is missing: the file was changed. Restore it.")
    models = [run.model_folder] if os.path.lexists(run.model_folder) else []
    for folder in [*map(run.checkpoint, run.updates()), *models]:
        try:
            state = checkpoint.verify(folder, () if folder == run.model_folder else needed)
            yield folder.name, state["update"], ""
        except NmtError as error:
            if os.path.lexists(folder):  # else a running training has deleted it meanwhile
                yield folder.name, checkpoint.update_of(folder), str(error)
