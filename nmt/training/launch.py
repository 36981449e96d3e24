"""From a recipe to a trained run folder: checks and set-up before the training loop, and the final model after it."""

import json
import os
import platform
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from nmt import ops
from nmt.data.corpus import Prepared
from nmt.decoding.long_lines import usual_len
from nmt.device import processor_of
from nmt.errors import RunError
from nmt.extras import version_and_commit
from nmt.files import write_durably
from nmt.recipe.options import Recipe
from nmt.recipe.places import DATA_AT, read_run_data
from nmt.recipe.reader import differences, write_recipe
from nmt.run import SRC_STYLE, USUAL_RATIOS, USUAL_SRC_LEN, VERSION, Run, required_files
from nmt.training import parallel
from nmt.training.budget import Budget, bound_to_length
from nmt.training.engine import Engine
from nmt.training.feed import Feed
from nmt.training.initial import check_origin, first_weights
from nmt.training.log import Record
from nmt.training.materials import decide_compile, new_model, open_data, require_extras
from nmt.training.optim import freeze, rate_factors
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision, choose_precision, use_device
from nmt.training.resolve import check_space, resolve
from nmt.training.state import ENDS, refused_changes
from nmt.training.trainer import Trainer
from nmt.training.validate import finished_at


def launch(
    recipe: Recipe, wants_stop: Callable[[], bool] = lambda: False, clock: Callable[[], float] = time.monotonic
) -> str:
    """Train the model of a recipe, or resume its run. Returns 'done', 'time', 'patience' or 'stopped'. Raises DataError
    if the data is not prepared for this recipe, RunError if the run folder belongs to another run or is in use, and
    MachineError if a package is not installed."""
    budget = Budget(recipe.train, clock)  # first: the time budget includes all of the following
    data = open_data(recipe)
    run = Run(recipe.run_folder)
    check_origin(recipe, run)  # before the run folder is created
    ranks = parallel.join(use_device(recipe.train), recipe.train.timeout)

    def say(text: str) -> None:
        if ranks.is_main:
            with suppress(OSError):  # stderr is closed
                print(text, file=sys.stderr)

    with ranks.session():
        # Both checks come before the run folder is created.
        if ranks.is_main:
            require_extras(recipe, run)
        ranks.on_main(lambda: None if run.has_weights else refuse_other_run(run, recipe, data))
        with run.lock(say) if ranks.is_main else nullcontext():
            ranks.on_main(run.tidy)
            run_recipe = run.recipe() if ranks.on_main(lambda: run.has_weights) else None
            recipe = resolve(recipe, data, run_recipe, ranks, say)
            budget.seconds = recipe.train.budget_seconds  # a resumed run may keep its own
            ranks.on_main(lambda: claim(run, recipe, data))
            if (update := ranks.on_main(lambda: finished_at(run, recipe))) is not None:
                say(f"{run.folder}: already trained to update {update:,}; nothing to do.")
                return "done"
            total = budget.seconds or recipe.train.updates
            with closing(Record(run.log_file, total=total, quiet=not ranks.is_main)) as record:
                return _train(recipe, Feed(recipe, data, ranks), run, record, wants_stop, budget)


def _train(recipe: Recipe, feed: Feed, run: Run, record: Record, wants_stop: Callable[[], bool], budget: Budget) -> str:
    data, ranks = feed.data, feed.ranks
    state = ranks.on_main(lambda: find_start(run, recipe, record.say))  # the choice of rank 0 holds for all ranks
    folder = run.checkpoint(state["update"]) if state else None
    saved = state.get("arithmetic", {})
    if saved.get("device") != ranks.device.type:
        saved = {}  # a new run, or another type of device, which rounds differently anyway
    precision = _precision(recipe, saved, ranks)
    precision.apply()
    model = new_model(recipe, data, ranks.device)
    was_compiled = saved.get("compiled", False) if saved else None
    recipe, compile_why = decide_compile(recipe, model, precision, ranks, was_compiled)
    if frozen := freeze(model, recipe.train.freeze):  # first: frozen parameters take no space for moments
        record.say(frozen)
    rate_factors(model, recipe.optim.rate_of)  # raises early: the first weights take a while
    if folder is None:
        if ranks.is_main:
            check_space(run, recipe, model)
        record.begin()
        first_weights(model, data, recipe, record)
    elif recipe.train.init_from:
        record.say(f"train.init_from has no effect: this run has checkpoints, and resumes from {folder.name}")
    engine = Engine(model, recipe, precision=precision, ranks=ranks)
    trainer = Trainer(engine, feed, run, record, wants_stop, budget)
    if folder is not None:
        trainer.restore(folder, state)
    record.add_sinks(recipe, trainer.state.update)
    if folder is None:
        _introduce(trainer, compile_why)
    outcome = trainer.train()
    if outcome != "stopped" and not ranks.on_main(trainer.choose_final):
        outcome = "stopped"  # while the final model was chosen
    record.say(_farewell(outcome, run, trainer))
    return outcome


def _precision(recipe: Recipe, saved: dict[str, Any], ranks: Ranks) -> Precision:
    """The precision that the run began with, or a choice for a new run: the same on all ranks. saved: see `_train`."""
    if saved:
        precision = Precision(saved["name"], "as the run began", saved["device"], saved.get("kernels", False))
    else:
        precision = Precision(**ranks.on_main(lambda: asdict(choose_precision(recipe.train, ranks.device))))
    why_not = ops.why_no_kernels() if precision.kernels else ""
    if ranks.any(bool(why_not)):
        why = f"{precision.why}, but without kernels: {why_not or 'another rank has none'}"
        precision = replace(precision, kernels=False, why=why)
    return precision


def _introduce(trainer: Trainer, compile_why: str) -> None:
    """Write the first line of the log, and print a summary of the run."""
    record, recipe, precision, plan = trainer.record, trainer.recipe, trainer.engine.precision, trainer.feed.plan
    data, device, n_param = trainer.feed.data, trainer.model.device, sum(p.numel() for p in trainer.model.parameters())
    n_update, padding = plan.totals(0)
    record.write(
        "start",
        0,
        command=_command(),
        nmt=version_and_commit(),
        python=platform.python_version(),
        torch=torch.__version__,
        device=str(device),
        processor=processor_of(device),
        threads=torch.get_num_threads(),
        cores=os.cpu_count(),
        precision=precision.name,
        precision_why=precision.why,
        compiled=recipe.train.compiled,
        compile_why=compile_why,
        parameters=n_param,
        pairs=data.train.n_pair,
        updates_per_epoch=n_update,
        padding=round(padding, 4),
        data=data.train.fingerprint,
        seed=recipe.seed,
    )
    record.say(
        f"{recipe.name}: {recipe.data.src_lang} to {recipe.data.trg_lang}, {n_param:,} parameters, "
        f"{data.train.n_pair:,} pairs, {n_update:,} updates an epoch, {device} in {precision.name}"
    )
    if device.type == "cuda":
        record.say(f"{'' if recipe.train.compiled else 'not '}compiled: {compile_why}")


def _command() -> str:
    """The command line, printable whatever its bytes; for a call from Python, the function."""
    program, *arguments = sys.argv
    path = Path(program)
    if path.name != "nmt-train" and path.parts[-3:] != ("nmt", "cli", "train.py"):
        return "nmt.train(...)"
    return shlex.join(["nmt-train", *arguments]).encode("utf-8", "backslashreplace").decode("utf-8")


def _farewell(outcome: str, run: Run, trainer: Trainer) -> str:
    state = trainer.state
    speed = state.n_token / max(1e-9, state.seconds)
    summary = f"{state.update:,} updates, {state.n_token:,} target tokens, {state.seconds:,.0f} s, "
    summary += f"{speed:,.0f} tokens/s on average"
    if trainer.reporter.token_seconds:
        summary += f", MFU {speed * trainer.reporter.token_seconds:.1%}"
    if state.n_skipped:
        summary += f"; {state.n_skipped:,} more were skipped, because loss or gradient was not finite"
    if outcome == "stopped":
        return f"stopped and saved after {summary}. The same command resumes the run: {run.folder}"
    if trainer.budget.seconds:
        trainer.budget.count_time(state)
        summary += f"; {state.wall_seconds:,.0f} s of the {trainer.budget.seconds:,.0f} s of train.time_budget"
    return f"finished ({outcome}): {summary}. Translate with: {shlex.join(['nmt-translate', str(run.folder)])}"


# The run folder before the first update.


def claim(run: Run, recipe: Recipe, data: Prepared) -> None:
    """Create a run folder, or check that the existing one belongs to this recipe. The caller must hold the lock. A run
    without a checkpoint starts anew, so a mistake in its recipe can still be corrected."""
    refuse_other_run(run, recipe, data)
    if is_resumed := run.has_weights:
        recipe = recipe.with_options(train={"init_from": run.recipe().train.init_from})  # though the recipe may omit it
        facts = run.data_facts()
    else:
        statistics = {USUAL_SRC_LEN: usual_len(data.train.src_len), USUAL_RATIOS: data.usual_ratios()}
        facts = {**_fingerprint(data), **statistics, SRC_STYLE: data.src_style()}
    facts |= {VERSION: version_and_commit(), DATA_AT: str(data.folder.absolute())}
    # Written first: if this process is killed, the file shows that the folder is ours.
    write_durably(run.data_file, (json.dumps(facts, indent=1) + "\n").encode("utf-8"))
    if not is_resumed:
        write_durably(run.subwords_file, (recipe.data_folder / run.subwords_file.name).read_bytes())
    write_recipe(recipe, run.recipe_file)  # last: it marks the folder as a run


# Lines of a run's recipe with options that were removed since.
_REMOVED_OPTIONS = r"^  (?:layer_drop|layer_drop_from|word_dropout_from): (?!0(?:\.0)?$).*|^  name: schedulefree$"


def refuse_other_run(run: Run, recipe: Recipe, data: Prepared) -> None:
    """Raise RunError if the folder belongs to the run of another recipe, or to no run. Writes nothing."""
    if run.has_weights:
        if gone := re.findall(_REMOVED_OPTIONS, run.recipe_file.read_text("utf-8"), re.MULTILINE):
            raise RunError(
                f"{run.folder} was trained with {', '.join(map(str.strip, gone))}, which this version no longer has: "
                f"it can translate, but not resume. Start a new run from its weights: --train.init_from {run.folder} "
                "--train.out FOLDER."
            )
        run_recipe = run.recipe()
        # A run that ends by the clock is not reproducible to the bit anyway, so its length may change.
        bound = [] if run_recipe.train.time_budget else bound_to_length(recipe)
        changed = differences(run_recipe.model_dump(mode="json"), recipe.model_dump(mode="json"))
        if refused := refused_changes(changed, may_end=not bound):
            shown = "; ".join(f"{name} was {old!r}, now {new!r}" for name, (old, new) in sorted(refused.items()))
            is_length = bound and not refused.keys().isdisjoint(ENDS)
            why = f" The length of the run is fixed: it is the basis of {' and '.join(bound)}." if is_length else ""
            raise RunError(
                f"{run.folder} is a run with other options: {shown}.{why} To resume it, give its original options; "
                "for a new run, also one from its weights (--train.init_from), name another folder with --train.out."
            )
        if not (facts := run.data_facts()):
            raise RunError(f"{run.data_file}: missing or damaged. Restore it, or train into another folder.")
        if not _fingerprint(data).items() <= facts.items():
            raise RunError(
                f"{run.folder} was trained on other data than {recipe.data_folder} holds now. Prepare that data again, "
                "or train into another folder with --train.out."
            )
    elif run.folder.is_dir():
        # It may be empty, or hold a run without checkpoints, or the files of a start that was killed.
        names = {path.name for path in run.folder.iterdir() if not path.match(".*.tmp")} - {"lock"}
        if names and not {"train", "valid", "subwords"} <= read_run_data(run.folder).keys():
            raise RunError(f"{run.folder} has files but is no run of nmt-train. Name another folder with --train.out.")


def _fingerprint(data: Prepared) -> dict[str, str]:
    return {"train": data.train.fingerprint, "valid": data.valid.fingerprint, "subwords": data.subwords.sha256}


def find_start(run: Run, recipe: Recipe, say: Callable[[str], None]) -> dict[str, Any]:
    """The state of the newest intact checkpoint; {} for a new run. Damaged ones are renamed and reported by `say`. The
    caller must hold the lock. Raises RunError if all checkpoints are damaged, or if only the final model is left."""
    state, damaged = run.newest_intact(required_files(recipe))
    if not state and (damaged or run.model_folder.exists()):
        advice = f"Remove {run.checkpoints} to start again."
        if run.model_folder.exists():
            advice = f"Start a new run from its weights: --train.init_from {run.folder} --train.out FOLDER."
        raise RunError(
            f"{run.folder}: no checkpoint is intact, so training cannot resume. {' '.join([*damaged.values(), advice])}"
        )
    for folder, complaint in damaged.items():
        renamed = folder.with_name(f"damaged-{folder.name}")  # under this name it is not counted, kept or averaged
        shutil.rmtree(renamed, ignore_errors=True)
        os.replace(folder, renamed)
        say(f"skipped a damaged checkpoint: {complaint} It was renamed to {renamed}.")
    return state
