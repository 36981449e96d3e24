"""Checks of nmt-train that train nothing and write nothing.

--check: measured cost of a recipe on this machine. Builds the model, trains it on the largest batch and for a few
updates, and discards it. Locks nothing, so it can be used while the run itself goes on.
--selftest: overfit a handful of pairs without regularisation, then translate them. Shows that the model can learn, and
that the search finds what it learnt.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from copy import copy
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nmt.data.batches import Batch, make_batch
from nmt.data.corpus import Corpus, Prepared
from nmt.data.plan import Position, Rows
from nmt.data.subwords import EOS, PAD
from nmt.decoding.beam import BeamSettings, search
from nmt.errors import RunError, suppress_out_of_memory
from nmt.recipe.draft import exports_note
from nmt.recipe.model_options import PRESETS, preset_for
from nmt.recipe.options import Recipe
from nmt.recipe.training_options import OptimConfig, RegularizeConfig
from nmt.run import Run
from nmt.training.budget import foreseen, n_measured_at_end
from nmt.training.engine import Engine, duration, size
from nmt.training.feed import Feed
from nmt.training.initial import check_origin, copy_from_origin, options_warning
from nmt.training.launch import refuse_other_run
from nmt.training.materials import Trial, open_data, require_extras
from nmt.training.memory import Work, footprint, memory_left, peak
from nmt.training.parallel import Ranks
from nmt.training.precision import use_device
from nmt.training.resolve import bytes_needed, checkpoint_bytes, resolve, target_tokens
from nmt.training.validate import Validation

_BY_HEART = 100  # parameters per target token. Multi30k has 20 with the preset small and 120 with base
N_TIMED = 20  # updates
_N_TRANSLATED = 64  # validation sentences of a sample that represents all


class Findings:
    """Measurements of a recipe on this machine, from a few updates. Times in seconds, sizes in bytes."""

    def __init__(self, recipe: Recipe, data: Prepared, trial: Trial) -> None:
        device, engine = trial.device, trial.engine
        feed = Feed(recipe, data, Ranks())
        resident = footprint(device).get("rss_mb", 0.0) * 2**20
        held = torch.cuda.memory_reserved(device) if device.type == "cuda" else resident
        self.room = None if (left := memory_left(device)) is None else left + held  # for this process; None: unknown
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        batches = [rows for update in feed.plan.updates(0) for rows in update]

        def longest(rows: Rows) -> int:
            return int(max(side.max() for side in feed.plan.lengths(rows)))

        # The batch with the most tokens of the first epoch, and the one with the longest pair: the widest attention.
        for rows in (max(batches, key=lambda rows: len(rows) * longest(rows)), max(batches, key=longest)):
            trial.seconds([Work(feed.batch(rows))])
        n_token, begin = 0, time.perf_counter()
        for portion in islice(feed.begin(Position()), N_TIMED):
            trial.seconds(portion.work)
            n_token += sum(item.batch.n_gold for item in portion.work)
        self.seconds = (time.perf_counter() - begin) / N_TIMED  # of an update
        self.tokens = n_token / N_TIMED  # target tokens in an update
        self.n_failed = engine.memory.n_failed  # how often memory ran out in an update
        self.valid_fits, set_seconds = _measure_validation(Validation(recipe, data, engine.precision), engine)
        self.peak = peak(device)  # None: unknown
        self.valid_seconds = sum(set_seconds)
        self.n_update, self.n_valid = foreseen(recipe, update_seconds=self.seconds, valid_seconds=self.valid_seconds)
        choice_seconds = (n_measured_at_end(recipe.train) - 1) * set_seconds[0]
        self.measuring = self.n_valid * self.valid_seconds + choice_seconds
        self.n_update_in_epoch, self.padding = feed.plan.totals(0)
        self.n_param = sum(p.numel() for p in engine.model.parameters())
        self.n_pair, self.n_token = data.train.n_pair, target_tokens(data)
        self.checkpoint = checkpoint_bytes(engine.model, recipe)
        self.disk = 0 if Run(recipe.run_folder).updates() else bytes_needed(recipe, self.checkpoint)
        self.disk_left = shutil.disk_usage(_existing(recipe.run_folder)).free
        self.device, self.precision = device.type, engine.precision
        self.compile = f"{'yes' if engine.recipe.train.compiled else 'no'} ({trial.compile_why})"


def likely_troubles(recipe: Recipe, findings: Findings) -> Iterator[str]:
    """Yield a message for each likely problem of a recipe."""
    model, optim, batch, train = recipe.model, recipe.optim, recipe.batch, recipe.train
    updates, epoch = findings.n_update, findings.n_update_in_epoch
    in_time = " that train.time_budget has time for" if updates < train.updates else ""
    valid_share = findings.measuring / (findings.measuring + findings.seconds * updates)
    preset, _ = preset_for(findings.n_token)
    # Weights of another run may come from a larger corpus, and recurrent models have no presets.
    is_large = not (model.is_recurrent or train.init_from) and model.d_model > PRESETS[preset]["d_model"]
    can_pack = not (model.is_recurrent or model.lexical_attn) and model.d_k == model.d_v
    if findings.padding > 0.15:
        waste, option = ("packed rows is empty", "") if batch.packed else ("batches is padding", " or batch.pool")
        yield f"{findings.padding:.0%} of the {waste}: make batch.max_tokens{option} larger"
    if is_large and findings.n_param > _BY_HEART * findings.n_token:
        yield (
            f"the model is large for the corpus and will overfit: {findings.n_param:,} parameters for "
            f"{findings.n_token:,} target tokens, {updates / epoch:,.0f} epochs of them: model.preset: auto picks "
            f"at most {preset}"
        )
    if optim.schedule == "noam" and optim.lr != type(optim)().lr:
        yield f"optim.lr: {optim.lr} has no effect with optim.schedule noam: set optim.lr_mul"
    if optim.n_warmup >= updates:
        yield f"optim.warmup, {optim.n_warmup:,}, is not below the {updates:,} updates{in_time}: the rate never falls"
    if updates < epoch:
        yield f"the run ends after {updates:,} updates{in_time}, before every pair is seen once ({epoch:,} updates)"
    if valid_share > 0.2:
        yield f"validation takes {valid_share:.0%} of the time: make valid.every larger, or valid.max_sentences smaller"
    if findings.n_failed or (findings.peak and findings.room and findings.peak > 0.9 * findings.room):
        advice = "for a Transformer set train.checkpoint_activations to true"
        advice += "; one process halves a batch that does not fit, several end" if findings.n_failed else ""
        yield f"memory is too small or nearly full: make batch.max_tokens smaller, or {advice}"
    if not findings.valid_fits:
        yield "memory ran out in the largest validation batch: make valid.max_tokens smaller"
    if findings.disk > findings.disk_left:
        yield "the disk has too little room for the checkpoints: free some, or lower train.keep_last and keep_best"
    if findings.device == "cuda" and can_pack and not (batch.packed and train.compile):
        yield (
            "a GPU trains a Transformer 1.6 to 2.8 times as fast with batch.packed and train.cuda_graphs, which need "
            "model.attn_dropout: 0 (docs/performance.md)"
        )


def check(recipe: Recipe, say: Callable[[str], None]) -> list[str]:
    """Measure a recipe and return the report, line by line. say: called with messages about the progress. Raises the
    errors that training would raise before its first update, except for another run in the folder."""
    data, ranks = open_data(recipe), Ranks(device=use_device(recipe.train))
    run = Run(recipe.run_folder)
    check_origin(recipe, run)
    require_extras(recipe, run)
    begun = run.recipe() if run.has_weights else None
    recipe = resolve(recipe, data, begun, ranks, say)
    trial = Trial(recipe, data, ranks.device)
    refusals, folder = list[str](), _existing(run.folder)
    try:
        refuse_other_run(run, recipe, data)
    except RunError as error:
        refusals.append(f"training will be refused: {error}")
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        refusals.append(f"training will be refused: {folder} is no folder that can be written to: change --train.out")
    if recipe.train.init_from and not run.has_weights:
        fates = copy_from_origin(trial.engine.model, data, recipe)
        if "options" in fates:
            refusals.append(f"train.init_from: {options_warning(fates['options'])}")
    say(f"trying the largest batch and {N_TIMED} updates ...")
    findings = Findings(recipe, data, trial)
    rows = [*table(recipe, findings), ("exports to", exports_note(recipe))]
    width = max(len(name) for name, _ in rows)
    troubles = [*refusals, *likely_troubles(recipe, findings)] or ["none was seen"]
    return [f"{name:<{width}}  {value}" for name, value in rows] + ["", "likely trouble"] + [f"  {t}" for t in troubles]


def table(recipe: Recipe, findings: Findings) -> list[tuple[str, str]]:
    """Return the measurements as rows for people."""
    train, valid, epoch, n_update = recipe.train, recipe.valid, findings.n_update_in_epoch, findings.n_update
    first = min(n_update // findings.n_valid if valid.every == "auto" else valid.every, n_update)
    end = f"after {duration(n_update * findings.seconds + findings.measuring)}"
    if n_update < train.updates:
        end = f"when the {train.time_budget} of train.time_budget are over"
    memory = "not known" if findings.peak is None else size(findings.peak)
    validation = f"{duration(findings.valid_seconds)} (estimated)" if findings.valid_seconds else "not known"
    disk = f"{size(findings.disk)} more for checkpoints of {size(findings.checkpoint)}"
    return [
        ("parameters", f"{findings.n_param:,}"),
        ("device", f"{findings.device}, {findings.precision.name} ({findings.precision.why})"),
        ("compiled", findings.compile),
        ("corpus", f"{findings.n_pair:,} pairs, {findings.n_token:,} target tokens"),
        ("memory peak", memory if findings.room is None else f"{memory} of {size(findings.room)} available"),
        ("update", f"{findings.tokens:,.0f} target tokens, {findings.seconds:.3f} s"),
        ("speed", f"{findings.tokens / findings.seconds:,.0f} target tokens/s"),
        ("padding", f"{findings.padding:.1%}"),
        ("one validation", validation),
        ("first validation", f"update {first:,}: after {duration(first * findings.seconds + findings.valid_seconds)}"),
        ("epoch", f"{epoch:,} updates: {duration(epoch * findings.seconds)}"),
        ("end", f"update {n_update:,} ({n_update / epoch:,.1f} epochs): {end}, {findings.n_valid} validations"),
        ("disk", f"{disk}; {size(findings.disk_left)} are free"),
    ]


def _measure_validation(validation: Validation, engine: Engine) -> tuple[bool, list[float]]:
    """Return whether all batches fit into memory, and an estimate of the seconds of each set; 0 if no half fits."""
    seconds = []
    with suppress_out_of_memory():
        for full in validation.sets.values():
            lengths, trg_len = np.maximum(full.corpus.src_len, full.corpus.trg_len), full.corpus.trg_len
            part = copy(full)  # with the largest batch alone, which shows the peak of memory
            part.translate, part.batches = False, [max(full.batches, key=lambda rows: len(rows) * lengths[rows].max())]
            begin = time.perf_counter()
            part.measure(engine.model)
            n_all, n_part = (sum(int(trg_len[rows].sum()) + len(rows) for rows in v.batches) for v in (full, part))
            seconds.append((time.perf_counter() - begin) * n_all / n_part)
            if full.translate:
                n_src, n_trg = (int(length.sum()) + full.corpus.n_pair for length in (full.corpus.src_len, trg_len))
                # An untrained model does not emit EOS where a trained one would, so a cap on the length replaces it.
                part.decode = full.decode.model_copy(update={"max_len_a": n_trg / n_src, "max_len_b": 1})
                step = max(1, len(full.src) // _N_TRANSLATED)
                part.src, part.trg = (lines[::step][:_N_TRANSLATED] for lines in (full.src, full.trg))
                part.translate, part.batches, begin = True, [], time.perf_counter()
                part.measure(engine.model)
                seconds[-1] += (time.perf_counter() - begin) * len(full.src) / len(part.src)
        return not validation.n_failed, seconds
    return False, [0.0] * len(validation.sets)


def _existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


# The self-test.

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
    data, ranks = open_data(recipe), Ranks(device=use_device(recipe.train))
    recipe = resolve(without_regularisation(recipe), data, None, ranks, lambda _: None)
    engine = Trial(recipe, data, ranks.device).engine
    batch = make_batch(*data.train.picked(handful(data.train, recipe.seed)))
    engine.backward([Work(batch)], batch.n_gold)
    names = [name for name, p in engine.model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    engine.model.zero_grad()
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
        "regularize": dict(RegularizeConfig()),
    }
    return recipe.with_options(**changes)


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
