"""nmt-train --check: what a recipe will cost on this machine, measured, before anything is begun. Builds the model,
trains it for a moment on the largest batch and on the first updates, and forgets it. Writes nothing and locks nothing,
so it can be used while the run itself goes on."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from copy import copy
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from nmt.checkpoint import read_json
from nmt.data.corpus import Prepared
from nmt.data.manifest import REPORT
from nmt.data.plan import Position, Rows
from nmt.data.report import n_lost
from nmt.data.subwords import large_vocabulary
from nmt.decoding.translator import Translator
from nmt.device import choose_device
from nmt.errors import OutOfMemory, RunError, is_out_of_memory
from nmt.recipe.draft import exports_note
from nmt.recipe.model_options import PRESETS, preset_for
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training.budget import foreseen, n_measured_at_end
from nmt.training.engine import Engine, duration, size
from nmt.training.feed import Feed
from nmt.training.initial import OPTIONS_WARNING, check_origin, copy_from_origin, format_options
from nmt.training.launch import refuse_other_run
from nmt.training.materials import Trial, open_data, require_extras
from nmt.training.memory import Work, memory_left, peak
from nmt.training.parallel import Ranks, require_one_process
from nmt.training.resolve import bytes_needed, checkpoint_bytes, resolve
from nmt.training.validate import Validation, finished_at

_BY_HEART = 100  # parameters to a target token. Multi30k has 20 with the preset small and 120 with base
_MANY_EPOCHS = 500  # the recipes of Multi30k have less than ten
N_TIMED = 20  # updates
_N_TRANSLATED = 64  # validation sentences that stand for all


class Findings:
    """Measurements of a recipe on this machine, made by training for a moment. Times in seconds, sizes in bytes."""

    def __init__(self, recipe: Recipe, data: Prepared, trial: Trial) -> None:
        device, engine, corpus = trial.device, trial.engine, data.train
        feed = Feed(recipe, data, Ranks())
        self.room = memory_left(device)  # before; None: not known
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        batches = [rows for update in feed.plan.updates(0) for rows in update]

        def longest(rows: Rows) -> int:
            return int(max(side.max() for side in feed.plan.lengths(rows)))

        # The batch of most tokens in the first epoch, and the one with the longest pair, whose attention is widest.
        largest = feed.batch(max(batches, key=lambda rows: len(rows) * longest(rows)))
        for batch in (largest, feed.batch(max(batches, key=longest))):
            trial.seconds([Work(batch)])
        n_token, begin = 0, time.perf_counter()
        for portion in islice(feed.begin(Position()), N_TIMED):
            trial.seconds(portion.work)
            n_token += sum(item.batch.n_gold for item in portion.work)
        self.seconds = (time.perf_counter() - begin) / N_TIMED  # of an update
        self.tokens = n_token / N_TIMED  # target tokens in an update
        self.n_failed = engine.memory.n_failed  # times that memory ran out in an update
        self.valid_fits, of_sets = _measure_validation(Validation(recipe, data, engine.precision), engine)
        self.peak = peak(device)  # None: not known
        self.valid_seconds = sum(of_sets)
        # That the run comes to.
        self.n_update, self.n_valid = foreseen(recipe, update_seconds=self.seconds, valid_seconds=self.valid_seconds)
        beside_last = (n_measured_at_end(recipe.train) - 1) * of_sets[0]
        self.measuring = self.n_valid * self.valid_seconds + beside_last
        self.n_update_in_epoch, self.padding = feed.plan.n_update(0), feed.plan.padding_share(0)
        self.largest = largest.src_seq.size(0), max(largest.src_seq.size(1), largest.gold.size(1))
        self.longest_side = trial.longest_side
        self.n_param, self.n_vocab = sum(p.numel() for p in engine.model.parameters()), data.subwords.trg.size
        self.n_pair, self.n_token = corpus.n_pair, int(corpus.trg_len.sum()) + corpus.n_pair  # with EOS
        self.n_dropped = n_lost(read_json(data.folder / REPORT))  # when the data was prepared
        self.checkpoint = checkpoint_bytes(engine.model, recipe)
        self.disk = 0 if Run(recipe.run_folder).updates() else bytes_needed(recipe, self.checkpoint)
        self.disk_left = shutil.disk_usage(_existing(recipe.run_folder)).free
        self.device, self.precision = device.type, engine.precision
        self.compile = f"{'yes' if engine.recipe.train.compiled else 'no'} ({trial.compile_why})"
        self.gpu_idle = device.type == "cpu" and torch.cuda.is_available()


def likely_troubles(recipe: Recipe, found: Findings) -> Iterator[str]:
    """Yield everything that a careful colleague would ask about."""
    model, optim, batch, train = recipe.model, recipe.optim, recipe.batch, recipe.train
    updates, epoch, n_read = found.n_update, found.n_update_in_epoch, found.n_pair + found.n_dropped
    in_time = " that train.time_budget has time for" if updates < train.updates else ""
    measuring = found.measuring / (found.measuring + found.seconds * updates)
    preset, _ = preset_for(found.n_token)
    # What another run has learnt of a larger corpus is another matter, and recurrent models have no presets.
    is_large = not (model.is_recurrent or train.init_from) and model.d_model > PRESETS[preset]["d_model"]
    packs = not (model.is_recurrent or model.lexical_attn) and model.d_k == model.d_v
    if large := large_vocabulary(found.n_vocab, found.n_token):
        yield large
    if found.n_dropped > 0.1 * n_read:
        yield (
            f"{found.n_dropped:,} of {n_read:,} training pairs ({found.n_dropped / n_read:.0%}) were dropped when the "
            "data was prepared: report.json in its folder says why"
        )
    if batch.max_tokens != "auto" and found.longest_side > batch.max_tokens:
        yield (
            f"the longest pair has {found.longest_side:,} subwords, more than batch.max_tokens, {batch.max_tokens:,}: "
            "it is a batch alone and needs more memory than that promises; make one larger or data.max_len smaller"
        )
    if found.padding > 0.15:
        what, more = ("packed rows is empty", "") if batch.packed else ("batches is padding", " or batch.pool")
        yield f"{found.padding:.0%} of the {what}: make batch.max_tokens{more} larger"
    if is_large and found.n_param > _BY_HEART * found.n_token:
        yield (
            f"the model is large for the corpus, and will learn it by heart: {found.n_param:,} parameters for "
            f"{found.n_token:,} target tokens, {updates / epoch:,.0f} epochs of them: model.preset: auto takes at "
            f"most {preset}"
        )
    if updates / epoch > _MANY_EPOCHS and not recipe.valid.patience:
        yield (
            f"every pair is seen {updates / epoch:,.0f} times: make train.updates or train.time_budget smaller, or let "
            "valid.patience end the run when the model gets no better"
        )
    if optim.n_warmup >= updates:
        yield f"optim.warmup, {optim.n_warmup:,}, is not below the run's {updates:,}{in_time}: the rate never falls"
    if updates < epoch:
        yield f"the run ends, after {updates:,} updates{in_time}, before every pair was seen once ({epoch:,})"
    if measuring > 0.2:
        yield f"validation takes {measuring:.0%} of the time: make valid.every larger, or valid.max_sentences smaller"
    if found.n_failed:
        yield (
            f"memory ran out {found.n_failed} times and batches were halved, which several processes cannot do: make "
            "batch.max_tokens smaller"
        )
    if not found.valid_fits:
        yield "memory ran out in the largest validation batch: make valid.max_tokens smaller"
    if found.peak and found.room and found.peak > 0.9 * found.room:
        yield "memory is nearly full: make batch.max_tokens smaller, or set train.checkpoint_activations to true"
    if found.disk > found.disk_left:
        yield "the disk has too little room for the checkpoints: free some, or lower train.keep_last and keep_best"
    if found.gpu_idle:
        yield "there is a GPU, and train.device is cpu"
    if found.device == "cuda" and packs and not (batch.packed and train.compile):
        yield (
            "a GPU trains a Transformer 1.6 to 2.8 times as fast with batch.packed and train.cuda_graphs, which want "
            "model.attn_dropout: 0 (docs/performance.md)"
        )


def check(recipe: Recipe, say: Callable[[str], None]) -> list[str]:
    """Measure a recipe; returns the report, line by line. say: told meanwhile what is being done. Raises what training
    would raise before its first update, but for a folder that is another run's: what other options would cost may be
    asked while a run goes on."""
    require_one_process("--check")
    data, device = open_data(recipe), choose_device(recipe.train.device, "--train.device")
    if recipe.train.threads:
        torch.set_num_threads(recipe.train.threads)
    run = Run(recipe.run_folder)
    check_origin(recipe, run)
    require_extras(recipe, logs=finished_at(run, recipe) is None)
    begun = run.recipe() if run.has_weights else None
    recipe = resolve(recipe, data, begun, Ranks(), device, say)
    trial = Trial(recipe, data, device)
    before = list(_refusal(run, recipe, data))
    if recipe.train.init_from and not run.has_weights:
        *_, others = copy_from_origin(trial.engine.model, data, recipe)
        if others:
            before.append(f"train.init_from: {OPTIONS_WARNING}: {'; '.join(format_options(others))}")
    say(f"trying the largest batch and {N_TIMED} updates ...")
    found = Findings(recipe, data, trial)
    rows = [*table(recipe, found), ("exports to", exports_note(recipe))]
    width = max(len(name) for name, _ in rows)
    troubles = [*before, *likely_troubles(recipe, found)] or ["none was seen"]
    return [f"{name:<{width}}  {value}" for name, value in rows] + ["", "likely trouble"] + [f"  {t}" for t in troubles]


def _refusal(run: Run, recipe: Recipe, data: Prepared) -> Iterator[str]:
    """Yield the reasons why training would refuse the run folder."""
    try:
        refuse_other_run(run, recipe, data)
    except RunError as error:
        yield f"training will be refused: {error}"
    there = _existing(run.folder)
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        is_wrong = "cannot be written to" if there.is_dir() else "is a file, and no folder"
        yield f"training will be refused: {there} {is_wrong}. Name another run folder with --train.out."


def table(recipe: Recipe, found: Findings) -> list[tuple[str, str]]:
    """Return the measurements as rows for people."""
    train, valid, n_epoch = recipe.train, recipe.valid, found.n_update_in_epoch
    n_update = found.n_update
    first = min(n_update // found.n_valid if valid.every == "auto" else valid.every, n_update)
    end = f"after {duration(n_update * found.seconds + found.measuring)}"
    if n_update < train.updates:
        end = f"when the {train.time_budget} of train.time_budget are over"
    rows, columns = found.largest
    held = "not known" if found.peak is None else size(found.peak)
    return [
        ("parameters", f"{found.n_param:,}"),
        ("device", f"{found.device}, {found.precision.name} ({found.precision.why})"),
        ("compiled", found.compile),
        ("corpus", f"{found.n_pair:,} pairs, {found.n_token:,} target tokens"),
        ("largest batch", f"{rows:,} sentences x {columns:,} subwords"),
        ("memory peak", held if found.room is None else f"{held}; {size(found.room)} were free before"),
        ("update", f"{found.tokens:,.0f} target tokens, {found.seconds:.3f} s"),
        ("speed", f"{found.tokens / found.seconds:,.0f} target tokens/s"),
        ("padding", f"{found.padding:.1%}"),
        ("one validation", f"{duration(found.valid_seconds)} (estimated)" if found.valid_seconds else "not known"),
        ("first validation", f"update {first:,}: after {duration(first * found.seconds + found.valid_seconds)}"),
        ("epoch", f"{n_epoch:,} updates: {duration(n_epoch * found.seconds)}"),
        ("end", f"update {n_update:,} ({n_update / n_epoch:,.1f} epochs): {end}, {found.n_valid} validations"),
        (
            "disk",
            f"{size(found.disk)} more for checkpoints of {size(found.checkpoint)}; {size(found.disk_left)} are free",
        ),
    ]


def _measure_validation(validation: Validation, engine: Engine) -> tuple[bool, list[float]]:
    """Return whether memory holds all batches whole, and about the seconds of each set: 0 where not even halves fit."""
    seconds = []
    try:
        for one in validation.sets.values():
            lengths, trg_len = np.maximum(one.corpus.src_len, one.corpus.trg_len), one.corpus.trg_len
            part = copy(one)  # the largest batch, which shows the peak of memory, and stands for all
            part.translate, part.batches = False, [max(one.batches, key=lambda rows: len(rows) * lengths[rows].max())]
            begin = time.perf_counter()
            part.measure(engine.model)
            n_all, n_part = (sum(int(trg_len[rows].sum()) + len(rows) for rows in v.batches) for v in (one, part))
            seconds.append((time.perf_counter() - begin) * n_all / n_part)
            if one.translate:
                n_src, n_trg = (int(length.sum()) + one.corpus.n_pair for length in (one.corpus.src_len, trg_len))
                # A model that has learnt nothing does not stop where a trained one would: the cap stands for its EOS.
                decode = one.decode.model_copy(update={"max_len_a": n_trg / n_src, "max_len_b": 1})
                some = one.src[:: max(1, len(one.src) // _N_TRANSLATED)][:_N_TRANSLATED]
                begin = time.perf_counter()
                with engine.precision.measuring():
                    n_done = sum(1 for _ in Translator(engine.model, one.subwords, decode).translate(some))
                seconds[-1] += (time.perf_counter() - begin) * len(one.src) / n_done
    except (RuntimeError, MemoryError, OutOfMemory) as error:
        if not is_out_of_memory(error):
            raise
        return False, [0.0] * len(validation.sets)
    return not validation.too_large, seconds


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
