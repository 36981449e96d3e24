"""nmt-train --selftest: can this model learn at all, and does translation find what training taught? A handful of pairs
is learnt by heart, without anything that hinders that, and then asked for. Writes nothing."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nmt import checkpoint
from nmt.data.batches import Batch, make_batch
from nmt.data.corpus import Corpus, Prepared
from nmt.data.plan import Rows
from nmt.data.subwords import EOS, PAD
from nmt.decoding.beam import BeamSettings, search
from nmt.device import choose_device
from nmt.errors import NmtError, RunError
from nmt.models.base import TranslationModel
from nmt.models.build import build_model
from nmt.recipe.options import Recipe
from nmt.recipe.training_options import OptimConfig, RegularizeConfig
from nmt.run import Run
from nmt.training.engine import Engine
from nmt.training.launch import required_files
from nmt.training.materials import Trial, open_data
from nmt.training.memory import Work
from nmt.training.parallel import Ranks, require_one_process
from nmt.training.resolve import resolve

N_PAIR = 16
MOST_UPDATES = 1000
GOAL = 0.5  # nats of loss, all tokens together: then none of them has a likelier rival
_WARMUP = 20
# What to do about a failure.
_NOT_LEARNT = (
    "Try train.precision: fp32 and train.kernels: torch, then model.norm: pre, fewer layers or a smaller d_model: what "
    "helps names the cause"
)
_NOT_FOUND = (
    "The pairs were learnt, so look at the search: decode.length_penalty and alpha, then train.precision: fp32 and "
    "train.kernels: torch; if that changes nothing, the model sees in training what it has not in translation"
)
_SAMPLE = 5000  # pairs among which the handful is looked for


def selftest(recipe: Recipe) -> Iterator[tuple[bool, str]]:
    """Take the steps one after the other; yields whether each passed, and what it found."""
    require_one_process("--selftest")
    data, device = open_data(recipe), choose_device(recipe.train.device, "--train.device")
    if recipe.train.threads:
        torch.set_num_threads(recipe.train.threads)
    recipe = without_hindrance(recipe)
    recipe = resolve(recipe, data, None, Ranks(), device, lambda _: None)
    engine = Trial(recipe, data, device).engine
    batch = make_batch(*data.train.picked(handful(data.train, recipe.seed)))
    yield _every_part_learns(engine, batch)
    is_sure, said = _is_learnt_by_heart(engine, batch)
    beams = sorted({1, recipe.decode.beam})
    found_again = [_is_found_again(engine, batch, recipe, data, beam=beam) for beam in beams]
    # What is found again was learnt, however sure the model is of it.
    is_learnt = is_sure or found_again[0][0]
    yield is_learnt, said if is_learnt else f"{said}. {_NOT_LEARNT}"
    for found, known in found_again:
        yield found, known if found or not is_learnt else f"{known}. {_NOT_FOUND}"


def without_hindrance(recipe: Recipe) -> Recipe:
    """The recipe less all that keeps a model from learning by heart, at a rate that suits a handful of pairs."""
    # The rate that a short warm-up bears falls with the width of the model, as in the noam schedule.
    bears_more = recipe.model.is_recurrent or recipe.model.norm == "pre"
    rate = (0.06 if bears_more else 0.02) * recipe.model.d_model**-0.5
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
    """Some pairs of usual length, no two with one source: nobody could tell their targets apart."""
    some = np.random.default_rng(seed).choice(corpus.n_pair, min(_SAMPLE, corpus.n_pair), replace=False)
    longest = np.maximum(corpus.src_len[some], corpus.trg_len[some])
    some = some[longest <= np.median(longest)]
    sources, _ = corpus.pairs(some)
    different = {tuple(src.tolist()): row for src, row in zip(sources, some, strict=True)}
    return np.array(list(different.values())[:N_PAIR], dtype=np.int64)


def _every_part_learns(engine: Engine, batch: Batch) -> tuple[bool, str]:
    engine.backward([Work(batch, True, 0)], batch.n_gold)
    names = [name for name, p in engine.model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    engine.optimizers.zero_grad()
    if names:
        return False, f"no gradient, or one that is not finite, reaches {', '.join(names[:5])}"
    return True, "a finite gradient reaches every parameter"


def _is_learnt_by_heart(engine: Engine, batch: Batch) -> tuple[bool, str]:
    """Train until the loss says that all is learnt, or MOST_UPDATES. Returns whether it does, and what it came to."""
    n_pair, losses = batch.src_seq.size(0), list[float]()
    for update in range(1, MOST_UPDATES + 1):
        engine.backward([Work(batch, True, 0)], batch.n_gold)
        engine.step(min(1.0, update / _WARMUP), update)
        outcome = engine.settle()
        assert outcome is not None
        losses.append(outcome.loss)
        if losses[-1] < GOAL:
            break
    first, last = (loss / batch.n_gold for loss in (losses[0], losses[-1]))
    said = f"{n_pair} pairs in {len(losses)} updates: loss {first:.3f} -> {last:.4f} nats a token"
    return losses[-1] < GOAL, f"{said}, surely learnt under {GOAL / batch.n_gold:.4f}"


def _is_found_again(engine: Engine, batch: Batch, recipe: Recipe, data: Prepared, *, beam: int) -> tuple[bool, str]:
    decode = recipe.decode
    wanted = [[i for i in row if i not in (EOS, PAD)] for row in batch.gold.tolist()]
    settings = BeamSettings(
        length_penalty=decode.length_penalty, alpha=decode.alpha, n_real=data.subwords.trg.n_text, beam=beam
    )
    max_len = torch.tensor([2 * len(ids) + 20 for ids in wanted])
    with engine.precision.measuring():
        found = search(engine.model.eval(), batch.src_seq.to(engine.model.device), settings, max_len)
    right = [hypotheses[0].ids == ids for hypotheses, ids in zip(found, wanted, strict=True)]
    said = f"beam search (beam {beam}) finds {sum(right)} of {len(right)} targets word for word"
    if all(right):
        return True, said
    wrong, decoded = right.index(False), data.subwords.trg.decode
    return False, f"{said}; wanted {decoded(wanted[wrong])!r}, found {decoded(found[wrong][0].ids)!r}"


# Whether what a run folder holds is whole.


def verify_run(run: Run) -> Iterator[tuple[str, int | None, str]]:
    """Yield name, update and complaint, '' where it is whole, of each checkpoint, and of the model that was chosen. The
    update is None where it cannot be read. Raises RunError where recipe or subwords are not the run's, or where what
    should hold the checkpoints is no folder."""
    recipe, subwords = run.recipe(), run.subwords()
    known = checkpoint.read_json(run.data_file)
    if not isinstance(known, dict) or known.get("subwords") != subwords.sha256:
        raise RunError(f"{run.data_file}: does not say which subwords the run was trained with: it was changed.")
    if os.path.lexists(run.checkpoints) and not run.checkpoints.is_dir():
        raise RunError(f"{run.checkpoints}: is no folder, so there is no checkpoint in it: it was replaced.")
    with torch.device("meta"):  # names and shapes without memory
        model = build_model(recipe.model, subwords.src.n_vocab, subwords.trg.n_vocab, PAD)
    there = run.checkpoints.iterdir() if run.checkpoints.is_dir() else ()
    updates = sorted(update for path in there if (update := checkpoint.update_of(path)) is not None)
    for folder in [*map(run.checkpoint, updates), *([run.model_folder] if os.path.lexists(run.model_folder) else [])]:
        try:
            yield folder.name, _verified(folder, recipe, model, chosen=folder == run.model_folder), ""
        except NmtError as error:
            if os.path.lexists(folder):  # else a training under way has deleted it meanwhile
                yield folder.name, checkpoint.update_of(folder), str(error)


def _verified(folder: Path, recipe: Recipe, model: TranslationModel, *, chosen: bool) -> int:
    """The update of a checkpoint that is whole and fits the model; RunError for any other."""
    state = checkpoint.verify(folder, () if chosen else required_files(recipe))
    shapes = {name: tensor.shape for name, tensor in checkpoint.weights_of(model).items()}
    for file in (checkpoint.MODEL, checkpoint.EMA):
        if (folder / file).exists():
            weights = checkpoint.load_tensors(folder, file)
            checkpoint.load_weights(model, weights, str(folder / file))
            for name, tensor in weights.items():
                if not bool(torch.isfinite(tensor).all()):
                    raise RunError(f"{folder / file}: {name} holds numbers that are not finite.")
    if not chosen:
        for key, tensor in checkpoint.load_tensors(folder, checkpoint.OPTIMIZER).items():
            name, _, _ = key.partition("|")
            if name not in shapes or tensor.shape not in (shapes[name], torch.Size()):
                raise RunError(f"{folder / checkpoint.OPTIMIZER}: {key} {tuple(tensor.shape)} fits no parameter.")
    return int(state["update"])
