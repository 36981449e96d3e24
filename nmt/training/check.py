"""nmt-train --check: what a recipe will cost on this machine, measured, before anything is begun.

Builds the model, trains it for a moment on the largest batch and on the first updates, and forgets it. Writes nothing
and locks nothing, so it can be used while the run itself goes on.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path

import numpy as np
import torch

from nmt.checkpoint import read_json
from nmt.data.corpus import Corpus, Prepared
from nmt.data.manifest import REPORT
from nmt.data.plan import Position, Rows
from nmt.data.subwords import large_vocabulary
from nmt.decoding.translator import Translator
from nmt.device import choose_device, is_ampere
from nmt.errors import OutOfMemory, RunError, is_out_of_memory
from nmt.models.prepacked import half_is_faster
from nmt.recipe.exports import exports_note
from nmt.recipe.model_options import PRESETS, preset_for
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training.budget import foreseen, learning_rate_factor, n_measured_at_end, share_of_run
from nmt.training.engine import Engine, duration, size
from nmt.training.feed import Feed
from nmt.training.initial import OTHERWISE, check_origin, options_told, take_origin
from nmt.training.launch import refuse_other
from nmt.training.materials import Trial, make_trial, open_data, require_extras
from nmt.training.memory import Work, forget_peak, memory_left, peak
from nmt.training.parallel import Ranks, refuse_many
from nmt.training.resolve import bytes_needed, bytes_there, checkpoint_bytes, resolve
from nmt.training.validate import Validation, Validator, is_finished

# Parameters to a target token. Multi30k has 20 with the preset small and 120 with base, which learns it by heart.
_BY_HEART = 100
_MANY_EPOCHS = 500  # the recipes of Multi30k have less than ten
_POST_NORM_RATE = 1.5e-3  # peak rate up to which six layers with post-norm are known to train
_HOUR = 3600.0
_SHARED = 0.3  # of a processor that other work takes: a machine is seldom without a little


@dataclass(frozen=True)
class Findings:
    """Measurements of a recipe on this machine. Times in seconds, sizes in bytes; None: not known.

    n_update: that the run comes to. n_token: target tokens of the corpus, EOS counted. n_dropped: pairs that preparing
    the data dropped. peak: memory that training held at its worst, and room: what it might have held. n_failed: times
    that memory ran out in an update, and valid_fits: whether it held a validation. seconds: of one update, and tokens:
    target tokens in one. valid_seconds: of one validation of all sets, n_valid of them. choice_seconds: of choosing the
    final model. has_bf16: whether the device multiplies that faster than fp32. others: processors that other work kept
    busy meanwhile.
    """

    n_param: int
    n_pair: int
    n_dropped: int
    n_token: int
    n_vocab: int
    longest_side: int
    n_update: int
    n_update_in_epoch: int
    padding: float
    largest: tuple[int, int]
    peak: int | None
    room: int | None
    n_failed: int
    valid_fits: bool
    seconds: float
    tokens: float
    valid_seconds: float
    n_valid: int
    choice_seconds: float
    checkpoint: int
    disk: int
    disk_left: int
    device: str
    precision: str
    why_precision: str
    gpu_idle: bool
    has_bf16: bool
    others: float | None

    @property
    def speed(self) -> float:
        """Target tokens a second."""
        return self.tokens / self.seconds

    @property
    def measuring(self) -> float:
        """Seconds that the run spends on validation sets."""
        return self.n_valid * self.valid_seconds + self.choice_seconds


def peak_rate(recipe: Recipe) -> float:
    """The largest learning rate that the schedule comes to."""
    optim = recipe.optim
    update = max(1, optim.n_warmup)
    share = share_of_run(update, n_update=recipe.train.updates)
    factor = learning_rate_factor(update, optim, share=share, d_model=recipe.model.d_model)
    return factor if optim.schedule == "noam" else factor * optim.lr


def likely_troubles(recipe: Recipe, found: Findings) -> list[str]:
    """Everything that a careful colleague would ask about."""
    return [
        *_of_data(recipe, found),
        *_of_learning(recipe, found),
        *_of_time(recipe, found),
        *_of_machine(recipe, found),
    ]


def _of_data(recipe: Recipe, found: Findings) -> Iterator[str]:
    if large := large_vocabulary(found.n_vocab, found.n_token):
        yield large
    n_read = found.n_pair + found.n_dropped
    if found.n_dropped > 0.1 * n_read:
        yield (
            f"{found.n_dropped:,} of {n_read:,} training pairs ({found.n_dropped / n_read:.0%}) were dropped when the "
            "data was prepared: report.json in its folder says why"
        )
    max_tokens = recipe.batch.max_tokens
    if max_tokens != "auto" and found.longest_side > max_tokens:
        yield (
            f"the longest pair has {found.longest_side:,} subwords, more than batch.max_tokens, {max_tokens:,}: it is "
            "a batch alone and needs more memory than that promises; make one larger or data.max_len smaller"
        )
    if found.padding > 0.15 and recipe.batch.packed:
        yield (
            f"{found.padding:.0%} of the packed rows is empty: make batch.max_tokens larger, so that more pairs fit "
            "into one; if one side is much longer than the other that will not help, but batch.packed: false may"
        )
    elif found.padding > 0.15:
        yield f"{found.padding:.0%} of the batches is padding: make batch.pool or batch.max_tokens larger"


def _of_learning(recipe: Recipe, found: Findings) -> Iterator[str]:
    updates, optim, model = found.n_update, recipe.optim, recipe.model
    epochs = updates / found.n_update_in_epoch
    preset, _ = preset_for(found.n_token)
    # What another run has learnt of a larger corpus is another matter, and recurrent models have no presets.
    is_new = not (model.is_recurrent or recipe.train.init_from)
    if is_new and found.n_param > _BY_HEART * found.n_token and model.d_model > PRESETS[preset]["d_model"]:
        yield (
            f"the model is large for the corpus, and will learn it by heart: {found.n_param:,} parameters for "
            f"{found.n_token:,} target tokens, {epochs:,.0f} epochs of them: model.preset: auto would take {preset}"
        )
    if epochs > _MANY_EPOCHS and not recipe.valid.patience:
        yield (
            f"every pair is seen {epochs:,.0f} times: make train.updates or train.time_budget smaller, or let "
            "valid.patience end the run when the model gets no better"
        )
    why = " that train.time_budget has time for" if updates < recipe.train.updates else ""
    if optim.n_warmup >= updates:
        yield (
            f"optim.warmup, {optim.n_warmup:,} updates, is no shorter than the run, {updates:,}{why}: the rate never "
            "falls"
        )
    n_layer, rate = 0 if model.is_recurrent else max(model.n_enc_layer, model.n_dec_layer), peak_rate(recipe)
    if model.norm == "post" and optim.name != "muon" and n_layer >= 6 and rate > _POST_NORM_RATE * 6 / n_layer:
        yield (
            f"{n_layer} layers with model.norm: post at a peak learning rate of {rate:.1e} often diverge: lower it, "
            "warm up for longer, or take model.norm: pre"
        )
    if updates < found.n_update_in_epoch:
        yield (
            f"the run ends, after {updates:,} updates{why}, before every pair was seen once "
            f"({found.n_update_in_epoch:,})"
        )


def _of_time(recipe: Recipe, found: Findings) -> Iterator[str]:
    valid, training = found.measuring, found.seconds * found.n_update
    if valid > 0.2 * (valid + training):
        yield (
            f"validation takes {valid / (valid + training):.0%} of the time: make valid.every larger, or set "
            "valid.max_sentences or valid.beam lower"
        )
    every = recipe.valid.every
    if every != "auto" and every > found.n_update and not recipe.train.budget_seconds:  # which has one in the middle
        yield "the model is measured once, at the end: make valid.every smaller to see it learn"
    lost = recipe.train.save_every * found.seconds
    if lost > _HOUR:
        yield f"a killed run loses up to {lost / _HOUR:.1f} h of work: make train.save_every smaller"


def _of_machine(recipe: Recipe, found: Findings) -> Iterator[str]:
    if found.n_failed:
        yield (
            f"memory ran out {found.n_failed} times and batches were halved: make batch.max_tokens smaller; several "
            "processes cannot halve them, since each waits for the others' gradients of whole batches"
        )
    if not found.valid_fits:
        yield "memory ran out in the largest validation batch: make valid.max_tokens smaller"
    if found.peak is not None and found.room is not None and found.peak > 0.9 * found.room:
        yield "memory is nearly full: make batch.max_tokens smaller, or set train.checkpoint_activations to true"
    if found.disk > found.disk_left:
        yield "the disk has too little room for the checkpoints: free some, or lower train.keep_last and keep_best"
    if found.gpu_idle:
        yield "there is a GPU, and train.device is cpu"
    model = recipe.model
    packs = not (model.is_recurrent or model.lexical_attn) and model.d_k == model.d_v
    if found.device == "cuda" and found.has_bf16 and packs and not (recipe.batch.packed and recipe.train.compile):
        yield (
            "a GPU trains a Transformer 1.6 to 2.8 times as fast, the more the smaller it is, with batch.packed, "
            "train.compile and train.cuda_graphs set to true, which want model.attn_dropout: 0 (docs/performance.md)"
        )
    if recipe.train.precision == "fp16" and found.has_bf16:
        yield "train.precision is fp16, but this GPU has bf16, which is as fast and overflows a good deal later"
    if recipe.train.precision == "bf16" and not found.has_bf16:
        machine = "GPU" if found.device == "cuda" else "processor"
        yield f"train.precision is bf16, which this {machine} multiplies no faster than fp32: take auto"
    if found.device == "cpu" and found.others is not None and found.others > _SHARED:
        yield f"other work kept {found.others:.1f} processors busy meanwhile: without it, training is faster"
    if recipe.train.compile and found.device == "cpu":
        yield "train.compile takes minutes on a CPU and gains little there"


N_TIMED = 20  # updates
_N_TRANSLATED = 64  # validation sentences that stand for all
_BUSY = (1, 2, 3, 6, 7, 8)  # columns of /proc/stat: user, nice, system, interrupts, and what other machines took


def check(recipe: Recipe, say: Callable[[str], None]) -> list[str]:
    """Measure a recipe; returns the report, line by line. say: told meanwhile what is being done.

    Raises what training would raise before its first update, but for a folder that is another run's: what other options
    would cost may be asked while a run goes on.
    """
    refuse_many("--check")
    data, device = open_data(recipe), choose_device(recipe.train.device, "--train.device")
    if recipe.train.threads:
        torch.set_num_threads(recipe.train.threads)
    run = Run(recipe.run_folder)
    check_origin(recipe, run)
    require_extras(recipe, logs=not is_finished(run, recipe))
    begun = run.recipe() if run.begun else None
    recipe = resolve(recipe, data, begun, Ranks(), lambda known: make_trial(known, data, device), say)
    trial = make_trial(recipe, data, device)
    before = [*_refusal(run, recipe, data), *([] if run.begun else _of_origin(recipe, data, trial))]
    say(f"trying the largest batch and {N_TIMED} updates ...")
    found = measure(recipe, data, trial)
    rows = [*table(recipe, found), ("exports to", exports_note(recipe))]
    width = max(len(name) for name, _ in rows)
    troubles = before + likely_troubles(recipe, found) or ["none was seen"]
    return [f"{name:<{width}}  {value}" for name, value in rows] + ["", "likely trouble"] + [f"  {t}" for t in troubles]


def _refusal(run: Run, recipe: Recipe, data: Prepared) -> Iterator[str]:
    """Yield the reasons why training would refuse the run folder."""
    try:
        refuse_other(run, recipe, data)
    except RunError as error:
        yield f"training will be refused: {error}"
    there = _existing(run.folder)
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        is_wrong = "cannot be written to" if there.is_dir() else "is a file, and no folder"
        yield f"training will be refused: {there} {is_wrong}. Name another run folder with --train.out."


def _of_origin(recipe: Recipe, data: Prepared, trial: Trial) -> Iterator[str]:
    """Take the first weights of a new run from where train.init_from says, and tell what may be wrong with them."""
    if recipe.train.init_from and (others := take_origin(trial.engine.model, data, recipe).others):
        yield f"train.init_from: {OTHERWISE}: {'; '.join(options_told(others))}"


def measure(recipe: Recipe, data: Prepared, trial: Trial) -> Findings:
    """Train for a moment and count."""
    device, engine, corpus = trial.device, trial.engine, data.train
    feed = Feed(recipe, data, Ranks())
    room = memory_left(device)
    forget_peak(device)
    largest = _largest(feed)
    for work in largest:
        trial.seconds([work])
    n_token, begin, own, busy = 0, time.perf_counter(), time.process_time(), _busy_seconds()
    for portion in islice(feed.begin(Position()), N_TIMED):
        trial.seconds(portion.work)
        n_token += sum(item.batch.n_gold for item in portion.work)
    seconds, own, busy_now = time.perf_counter() - begin, time.process_time() - own, _busy_seconds()
    others = None if busy is None or busy_now is None else max(0.0, busy_now - busy - own) / seconds
    validation = Validation(recipe, data, engine.precision)
    n_failed = engine.memory.n_failed
    valid_fits, of_sets = _measure_validation(validation, engine, n_token / seconds)
    n_update, n_valid = foreseen(recipe, update_seconds=seconds / N_TIMED, valid_seconds=sum(of_sets))
    there = bytes_there(Run(recipe.run_folder))
    one_checkpoint = checkpoint_bytes(engine.model, recipe)
    on_gpu = device.type == "cuda"
    has_bf16 = is_ampere(device) if on_gpu else half_is_faster()
    return Findings(
        n_param=sum(p.numel() for p in engine.model.parameters()),
        n_pair=corpus.n_pair,
        n_dropped=read_json(data.folder / REPORT)["read"] - corpus.n_pair,
        n_token=int(corpus.trg_len.sum()) + corpus.n_pair,
        n_vocab=data.subwords.trg.size,
        longest_side=trial.longest_side,
        n_update_in_epoch=feed.plan.n_update(0),
        padding=feed.plan.padding_share(0),
        largest=(
            largest[0].batch.src_seq.size(0),
            max(largest[0].batch.src_seq.size(1), largest[0].batch.gold.size(1)),
        ),
        peak=peak(device),
        room=room,
        n_failed=n_failed,
        valid_fits=valid_fits,
        seconds=seconds / N_TIMED,
        tokens=n_token / N_TIMED,
        valid_seconds=sum(of_sets),
        n_update=n_update,
        n_valid=n_valid,
        choice_seconds=(n_measured_at_end(recipe.train) - 1) * of_sets[0],  # beside the last
        checkpoint=one_checkpoint,
        disk=bytes_needed(one_checkpoint, there, keep_last=recipe.train.keep_last, keep_best=recipe.train.keep_best),
        disk_left=shutil.disk_usage(_existing(recipe.run_folder)).free,
        device=device.type,
        precision=engine.precision.name,
        why_precision=engine.precision.why,
        gpu_idle=device.type == "cpu" and torch.cuda.is_available(),
        has_bf16=has_bf16,
        others=others,
    )


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
        ("device", f"{found.device}, {found.precision} ({found.why_precision})"),
        ("corpus", f"{found.n_pair:,} pairs, {found.n_token:,} target tokens"),
        ("largest batch", f"{rows:,} sentences x {columns:,} subwords"),
        ("memory peak", held if found.room is None else f"{held}; {size(found.room)} were free before"),
        ("update", f"{found.tokens:,.0f} target tokens, {found.seconds:.3f} s"),
        ("speed", f"{found.speed:,.0f} target tokens/s"),
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


def _largest(feed: Feed) -> list[Work]:
    """The batch of most tokens in the first epoch, and the one with the longest pair, whose attention is widest."""
    plan = feed.plan
    batches = [rows for update in plan.updates(0) for rows in update]

    def longest(rows: Rows) -> int:
        return int(max(side.max() for side in plan.lengths(rows)))

    picked = max(batches, key=lambda rows: len(rows) * longest(rows)), max(batches, key=longest)
    return [Work(feed.batch(rows)) for rows in picked]


def _measure_validation(validation: Validation, engine: Engine, speed: float) -> tuple[bool, list[float]]:
    """Return whether memory holds all batches whole, and seconds of each set: 0 where not even halves fit.

    speed: of training, in target tokens a second.
    """
    try:
        _measure_largest(validation, engine)
        of_sets = [seconds_of(validator, engine, speed) for validator in validation.sets.values()]
    except (RuntimeError, MemoryError, OutOfMemory) as error:
        if not isinstance(error, OutOfMemory) and not is_out_of_memory(error):
            raise
        return False, [0.0] * len(validation.sets)
    return not validation.too_large, of_sets


def _measure_largest(validation: Validation, engine: Engine) -> None:
    """Measure the loss of the largest validation batch, so that the peak knows what a validation needs."""
    sizes = [(len(rows) * _longest(v.corpus, rows), v, rows) for v in validation.sets.values() for rows in v.batches]
    _, validator, rows = max(sizes, key=itemgetter(0))
    alone = copy(validator)
    alone.batches, alone.translate = [rows], False
    alone.measure(engine.model)


def _longest(corpus: Corpus, rows: Rows) -> int:
    """Subwords of the longest side of some pairs, with EOS."""
    return 1 + int(max(corpus.src_len[rows].max(), corpus.trg_len[rows].max()))


def seconds_of(validator: Validator, engine: Engine, speed: float) -> float:
    """Estimate the seconds of a set: a forward pass is a third of training; some lines are translated.

    speed: of training, in target tokens a second.
    """
    corpus, rows = validator.corpus, np.concatenate(validator.batches)
    forced = (int(corpus.trg_len[rows].sum()) + len(rows)) / (3 * speed)
    if not validator.translate:
        return forced
    n_src, n_trg = (int(length.sum()) + corpus.n_pair for length in (corpus.src_len, corpus.trg_len))
    # A model that has learnt nothing does not stop where a trained one would: the cap stands for its EOS.
    decode = validator.decode.model_copy(update={"max_len_a": n_trg / n_src, "max_len_b": 1})
    some = validator.src[:: max(1, len(validator.src) // _N_TRANSLATED)][:_N_TRANSLATED]
    begin = time.perf_counter()
    with engine.precision.measuring():
        n_done = sum(1 for _ in Translator(engine.model, validator.subwords, decode).translate(some))
    return forced + (time.perf_counter() - begin) * len(validator.src) / n_done


def _busy_seconds() -> float | None:
    """Return how long all work has kept our processors busy since the machine started; None where it does not tell."""
    try:
        ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        rows = [line.split() for line in Path("/proc/stat").read_text(encoding="ascii").split("\n")]
        ticks = sum(int(row[column]) for row in rows if row and row[0] in ours for column in _BUSY)
    except (OSError, ValueError, IndexError, AttributeError):  # no such file, another form of it, no affinity
        return None
    return ticks / os.sysconf("SC_CLK_TCK")


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
