"""nmt-train --check: what a recipe will cost on this machine, measured, before anything is begun.

Builds the model, trains it for a moment on the largest batch and on the first updates, and forgets it. Writes nothing
and locks nothing, so it can be used while the run itself goes on.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from copy import copy
from itertools import islice
from operator import itemgetter
from pathlib import Path

import numpy as np
import torch

from nmt.checkpoint import read_json
from nmt.data.batching.mixture import Rows
from nmt.data.batching.plan import Position
from nmt.data.stored.corpus import Corpus, Prepared
from nmt.data.stored.manifest import REPORT
from nmt.decoding.translator import Translator
from nmt.device import choose_device
from nmt.errors import OutOfMemory, RunError, is_out_of_memory
from nmt.models.prepacked import half_is_faster
from nmt.recipe.exports import exports_note
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training.budget import foreseen, n_measured_at_end
from nmt.training.checking.troubles import Findings, likely_troubles
from nmt.training.device_memory import forget_peak, memory_left, peak
from nmt.training.engine import Engine
from nmt.training.feed import Feed
from nmt.training.finish import is_finished
from nmt.training.log.units import duration, size
from nmt.training.out_of_memory import Work
from nmt.training.parallel import Ranks, refuse_many
from nmt.training.starting.claim import refuse_other
from nmt.training.starting.initial import OTHERWISE, check_origin, options_told, take_origin
from nmt.training.starting.materials import make_trial, open_data, require_extras
from nmt.training.starting.resolve import resolve
from nmt.training.starting.space import bytes_needed, bytes_there, checkpoint_bytes
from nmt.training.starting.trial import Trial
from nmt.training.validate import Validation, Validator

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
    """Why training would not touch the run folder, if it would not."""
    try:
        refuse_other(run, recipe, data)
    except RunError as error:
        yield f"training will be refused: {error}"
    here = run.folder.absolute()
    there = next(place for place in (here, *here.parents) if place.exists())
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
    has_bf16 = torch.cuda.get_device_capability(device) >= (8, 0) if on_gpu else half_is_faster()
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
    """What was measured, for people."""
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
    """Whether memory holds all batches whole, and the seconds of each set, 0 where it does not hold even their halves.

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
    """How long a set takes, from a forward pass being a third of training, and from some translations.

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
