"""From a recipe to a trained run folder: everything that is checked and set up before the loop, and what follows it."""

import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nmt import checkpoint
from nmt.data.corpus import Prepared
from nmt.data.subwords import PAD
from nmt.errors import DataError, RunError
from nmt.models.base import TranslationModel
from nmt.models.build import build_model
from nmt.recipe.compare import differences
from nmt.recipe.options import Recipe
from nmt.recipe.reader import write_recipe
from nmt.run import Run
from nmt.training import parallel
from nmt.training.cooccurrence import MAX_PAIRS, cooccurrence_embeddings
from nmt.training.finish import choose_final, final_update
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision, choose_device, choose_precision
from nmt.training.record import Record
from nmt.training.state import refused_changes
from nmt.training.trainer import Trainer


def launch(recipe: Recipe, wants_stop: Callable[[], bool] = lambda: False) -> str:
    """Train what the recipe describes, or go on where it stopped.

    Returns 'done', 'patience' or 'stopped'. Raises DataError when the data is not prepared for this recipe, and
    RunError when the run folder is another run's or is in use.
    """
    data = open_data(recipe)
    device = choose_device(recipe.train.device)
    if recipe.train.threads:
        torch.set_num_threads(recipe.train.threads)
    ranks, device = parallel.join(device, recipe.train.timeout)
    run = Run(recipe.run_folder)
    with ranks.together(), run.lock() if ranks.is_main else nullcontext():
        with ranks.others_wait():
            if ranks.is_main:
                run.tidy()
                claim(run, recipe, data)
        return _train(recipe, data, run, device, ranks, wants_stop)


def open_data(recipe: Recipe) -> Prepared:
    """The prepared data of a recipe, after checking that it was made from this recipe's data and subwords."""
    folder = recipe.data_folder
    data = Prepared.open(folder)
    if changed := data.differences(recipe):
        raise DataError(
            f"{folder} was prepared with other settings: {'; '.join(changed)}. Run nmt-preprocess again with "
            "--overwrite, or give the recipe another data.out."
        )
    return data


def claim(run: Run, recipe: Recipe, data: Prepared) -> None:
    """Make a new run folder, or check that the one there is this recipe's."""
    fingerprint = {"train": data.train.fingerprint, "valid": data.valid.fingerprint, "subwords": data.subwords.sha256}
    if run.exists:
        changed = refused_changes(differences(run.recipe().model_dump(mode="json"), recipe.model_dump(mode="json")))
        if changed:
            shown = "; ".join(f"{name} was {old!r}, now {new!r}" for name, (old, new) in sorted(changed.items()))
            raise RunError(
                f"{run.folder} is a run with other options: {shown}. To go on with it, give the options it began "
                "with; to train anew, name another folder with --train.out, or another --name."
            )
        if checkpoint.read_json(run.data_file) != fingerprint:
            raise RunError(
                f"{run.folder} was trained on other data than {recipe.data_folder} holds now. Prepare that data again, "
                "or train into another folder with --train.out."
            )
    elif run.folder.is_dir() and any(path.name != "lock" for path in run.folder.iterdir()):
        raise RunError(f"{run.folder} has files in it but is no run of ours. Name another folder with --train.out.")
    else:
        shutil.copyfile(recipe.data_folder / run.subwords_file.name, run.subwords_file)
        run.data_file.write_text(json.dumps(fingerprint, indent=1) + "\n", encoding="utf-8", newline="\n")
    write_recipe(recipe, run.recipe_file)  # last: it marks the folder as a run


def _train(
    recipe: Recipe, data: Prepared, run: Run, device: torch.device, ranks: Ranks, wants_stop: Callable[[], bool]
) -> str:
    with ranks.others_wait():
        finished = _finished(run) if ranks.is_main else None
    if ranks.any(finished is not None):
        if finished is not None:
            print(f"{run.folder}: already trained to update {finished:,}; nothing to do.", file=sys.stderr)
        return "done"
    record = Record(
        run.log_file, n_update=recipe.train.updates, quiet=not ranks.is_main, tensorboard=recipe.train.tensorboard
    )
    try:
        folder, state = _newest(run, record, ranks)
        precision = _same_precision(recipe, state, device, ranks)
        precision.apply()
        model = new_model(recipe, data, device)
        if folder is None and recipe.model.emb_init == "cooccurrence":
            record.say(start_embeddings(model, data, recipe.seed, quiet=record.quiet))
        trainer = Trainer(
            recipe, data, model, precision=precision, ranks=ranks, run=run, record=record, wants_stop=wants_stop
        )
        if folder is not None:
            trainer.restore(folder, state)
            record.say(f"going on from {folder.name} on {device} in {precision.name}")
        else:
            _introduce(trainer, data, precision, device)
        outcome = trainer.train()
        with ranks.others_wait():
            if outcome != "stopped" and ranks.is_main:
                with trainer.engine.whole_model() as whole:
                    choose_final(recipe, run, whole, trainer.state, trainer.validator, record)
        record.say(_farewell(outcome, run, trainer))
        return outcome
    finally:
        record.close()


def _finished(run: Run) -> int | None:
    """The update that the run ended at; None if it has not ended."""
    updates = run.updates()
    return updates[-1] if updates and final_update(run) == updates[-1] else None


def _newest(run: Run, record: Record, ranks: Ranks) -> tuple[Path | None, dict[str, Any]]:
    """The checkpoint to go on from and its state; (None, {}) for a new run. Rank 0 chooses, lest others see another."""
    with ranks.others_wait():
        folder, state = _newest_whole(run, record) if ranks.is_main else (None, {})
    (update,) = ranks.tell(-1 if folder is None else int(state["update"]))
    if update < 0 or ranks.is_main:
        return folder, state
    folder = run.checkpoint(int(update))
    return folder, checkpoint.read_json(folder / checkpoint.STATE)


def _newest_whole(run: Run, record: Record) -> tuple[Path | None, dict[str, Any]]:
    """The newest checkpoint that verifies, and its state; (None, {}) for a new run. Damaged ones are named."""
    folder, state = run.newest_whole()
    if isinstance(state, dict):
        for complaint in state["skipped"]:
            record.say(f"passed over a damaged checkpoint: {complaint}")
        return folder, state
    if state:
        raise RunError(
            f"{run.folder}: no checkpoint is whole, so training cannot go on: {' '.join(state)} Remove "
            f"{run.checkpoints} to start again."
        )
    return None, {}


def _same_precision(recipe: Recipe, state: dict[str, Any], device: torch.device, ranks: Ranks) -> Precision:
    """The arithmetic that the run began with, or a choice for a new run: one for all ranks."""
    remembered = state.get("arithmetic", {})
    if remembered.get("device") == device.type:
        return Precision(remembered["name"], "as the run began", device.type, remembered["fast_fp32"])
    mine = choose_precision(recipe.train.precision, device)
    names = ("fp32", "bf16", "fp16")
    name, fast = ranks.tell(names.index(mine.name), mine.fast_fp32)
    return replace(mine, name=names[int(name)], fast_fp32=bool(fast))


def new_model(recipe: Recipe, data: Prepared, device: torch.device) -> TranslationModel:
    """The model of a recipe with its first weights, which follow from the seed."""
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, data.subwords.src.n_vocab, data.subwords.trg.n_vocab, PAD).to(device)
    if recipe.train.compile:
        longest = recipe.data.max_len + 1
        compile_parts(model, longest, one_shape=recipe.batch.packed, graphs=recipe.train.cuda_graphs)
    return model


def compile_parts(model: TranslationModel, longest: int, *, one_shape: bool, graphs: bool = False) -> None:
    """Compile the large parts of a model in place: no wrapper, so no parameter changes its name."""
    seq = torch.full((1, longest), PAD, device=model.device)
    with torch.no_grad():
        model.decode_hidden(seq, seq)  # tables of positions that grew later would have it compiled again
    for part in model.children():
        if not list(part.children()):
            continue  # one matrix: there is nothing to fuse
        part.compile(dynamic=not one_shape, mode="reduce-overhead" if graphs else None)


def start_embeddings(model: TranslationModel, data: Prepared, seed: int, *, quiet: bool = True) -> str:
    """Fill in first embeddings that know which subwords occur in the same training pairs. Returns a line about it."""
    begin = time.perf_counter()
    source, target = model.embeddings
    n_src, n_trg = source.num_embeddings, target.num_embeddings
    shared = source.weight is target.weight
    rows = cooccurrence_embeddings(
        data.train,
        n_trg if shared else n_src + n_trg,
        target.embedding_dim,
        trg_offset=0 if shared else n_src,
        seed=seed,
        quiet=quiet,
    )
    with torch.no_grad():
        source.weight.copy_(rows[:n_src])
        target.weight.copy_(rows[-n_trg:])
    n_pair = min(data.train.n_pair, MAX_PAIRS)
    return f"first embeddings from co-occurrence in {n_pair:,} pairs: {time.perf_counter() - begin:.1f} s"


def _introduce(trainer: Trainer, data: Prepared, precision: Precision, device: torch.device) -> None:
    model, record, recipe = trainer.model, trainer.record, trainer.recipe
    n_param = sum(p.numel() for p in model.parameters())
    padding = trainer.feed.plan.padding_share(0)
    n_update = len(trainer.feed.plan.updates(0))
    record.write(
        "start",
        0,
        python=platform.python_version(),
        torch=torch.__version__,
        device=str(device),
        threads=torch.get_num_threads(),
        cores=os.cpu_count(),
        precision=precision.name,
        precision_why=precision.why,
        parameters=n_param,
        pairs=data.train.n_pair,
        updates_per_epoch=n_update,
        padding=round(padding, 4),
        data=data.train.fingerprint,
        seed=recipe.seed,
    )
    record.say(
        f"{recipe.name}: {n_param:,} parameters, {data.train.n_pair:,} pairs, {n_update:,} updates an epoch, padding "
        f"{padding:.1%}, {recipe.train.updates:,} updates to go on {device} in {precision.name} ({precision.why})"
    )


def _farewell(outcome: str, run: Run, trainer: Trainer) -> str:
    state = trainer.state
    speed = state.n_token / max(1e-9, state.seconds)
    spent = f"{state.update:,} updates, {state.n_token:,} target tokens, {state.seconds:,.0f} s, {speed:,.0f} tokens/s"
    if outcome == "stopped":
        return f"stopped and saved at {spent}. The same command goes on from here: {_folder(run.folder)}"
    return f"finished ({outcome}): {spent}. Translate with: nmt-translate {_folder(run.folder)}"


def _folder(path: Path) -> str:
    return f'"{path}"' if " " in str(path) else str(path)
