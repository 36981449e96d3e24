"""nmt-train: train a model until the end or a signal, or run one of the checks that train nothing.

Imports torch only after the recipe is read, so --help and errors in the recipe appear at once.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt.cli.begin import Stop, end_startup, printable, talk, write_stdout
from nmt.cli.parser import Parser, add_override_flags, overrides_of, run, whole_number
from nmt.errors import NmtError, RunError
from nmt.files import RECIPE, is_run, seed_runs
from nmt.processes import process_rank, sleep_if_busy
from nmt.recipe.options import Recipe
from nmt.recipe.places import is_prepared
from nmt.recipe.reader import differences, read_recipe

_DESCRIPTION = """\
Train the model that RECIPE describes on the data that nmt-preprocess RECIPE prepared. The same command again resumes
training where it stopped, bit for bit. Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 save and stop; a second Ctrl-C stops at
once. On several GPUs: torchrun --nproc-per-node 8 -m nmt.cli.train RECIPE."""
_EXAMPLES = (
    "nmt-train prepared/mine/recipe.yaml --time-budget 20m",
    "nmt-train recipes/dates.yaml --prepare",
    "nmt-train prepared/mine/recipe.yaml --lr 1e-3 --out runs/slower",
    "nmt-train prepared/mine/recipe.yaml --seeds 1 2 3",
    "nmt-train runs/mine                    # resume a run",
)
STOPPING = "stopping after a checkpoint is saved"
_SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")


def prepare_libraries(recipe: Recipe) -> None:
    """Set up waiting of threads and oneDNN's cache of primitives, which are matrix products compiled for one shape.

    By default the cache holds 1,024 primitives, for some twenty batch shapes, and nearly every update compiles its own
    again. A new batch shape needs up to fifty, which take some 50 kB and up to 2 ms each. A value set by the user is
    kept.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16384")
    if process_rank().world_size == 1 and (n_busy := sleep_if_busy(recipe.train.threads)):
        talk(
            f"other processes use {n_busy:.1f} cores of this machine: training on a CPU is slower, and its threads "
            "sleep while they wait (OMP_WAIT_POLICY=passive)"
        )


def train(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code; raises NmtError."""
    if args.verify:
        if unused := ["prepare"] * args.prepare + [name for name, _ in overrides_of(args)]:
            raise NmtError(f"--verify checks an existing run, so --{unused[0]} has no effect: leave it out.")
        return _verify(Path(args.recipe))
    recipe = read_recipe(Path(args.recipe), overrides_of(args))
    if (args.check or args.selftest) and process_rank().world_size > 1:
        raise RunError("--check and --selftest work in one process only: start them without torchrun.")
    prepare_libraries(recipe)
    if args.prepare and not is_prepared(recipe.data_folder):
        if process_rank().world_size > 1:
            raise RunError("--prepare: no data, and several processes cannot prepare it: run nmt-preprocess first.")
        from nmt.cli.translated import translate_corpora
        from nmt.data.prepare import prepare

        end_startup()
        with Stop(_SIGNALS):  # a signal deletes unfinished files first
            prepare(recipe, recipe.data_folder, talk=talk, translations=translate_corpora(recipe))
    from nmt.training.check import check, selftest
    from nmt.training.launch import launch

    end_startup()
    if args.check:
        write_stdout("".join(f"{line}\n" for line in check(recipe, talk)))
        return 0
    if args.selftest:
        n_failed = 0
        for passed, text in selftest(recipe):
            write_stdout(f"{'pass' if passed else 'FAIL'}  {text}\n")
            n_failed += not passed
        return 1 if n_failed else 0
    with Stop(_SIGNALS, STOPPING) as stop, stop.finishing():
        if args.seeds:
            return _train_seeds(recipe, list(dict.fromkeys(args.seeds)), stop)
        return stop.exit_code if launch(recipe, stop) == "stopped" else 0


def _train_seeds(recipe: Recipe, seeds: Sequence[int], stop: Stop) -> int:
    """Train a run for each seed in a subfolder of the run folder, and write a summary. Returns the exit code."""
    from nmt.run import Run
    from nmt.training.launch import launch
    from nmt.training.resolve import sized_as
    from nmt.training.run_page import write_summary
    from nmt.training.state import refused_changes

    folder = recipe.run_folder.absolute()
    if is_run(folder):
        raise NmtError(f"{recipe.run_folder} is a run of a single seed: name another folder with --out.")
    is_main = process_rank().rank == 0
    for seed in seeds:
        run_folder = folder / f"seed-{seed}"
        if is_main:
            talk(f"seed {seed}: {run_folder}")
        changes = dict[str, object](seed=seed, train=recipe.train.model_copy(update={"out": str(run_folder)}))
        begun = [started for path in (run_folder, *seed_runs(folder)) if (started := Run(path)).has_weights]
        if recipe.model.preset == "auto" and begun:  # the preset depends on the load of the machine: reuse the first
            changes["model"] = sized_as(recipe, begun[0].recipe()).model
        if launch(recipe.model_copy(update=changes), stop) == "stopped":
            return stop.exit_code
    if is_main:
        trained = [Run(path) for path in seed_runs(folder) if (path / "model").is_dir()]
        recipes = [seed_run.recipe().model_dump(mode="json", exclude={"seed"}) for seed_run in trained]
        differing = {name for other in recipes for name in refused_changes(differences(recipes[0], other))}
        differing.discard("optim.warmup")
        if differing:
            talk(f"warning: these runs differ in more options than the seed: {', '.join(sorted(differing))}")
        write_stdout(write_summary(folder, trained))
    return 0


def _verify(path: Path) -> int:
    """Print the state of each checkpoint and of the model of a run. Returns the exit code."""
    from nmt import checkpoint
    from nmt.run import Run, required_files

    end_startup()
    nmt_run, exit_code = Run(path.parent if path.name == RECIPE else path), 0
    needed = required_files(nmt_run.recipe())
    nmt_run.subwords()  # raises RunError if they are not those of the run
    if "subwords" not in nmt_run.data_facts():
        raise RunError(f"{nmt_run.data_file}: the SHA-256 of the subwords is missing: it was changed. Restore it.")
    if not nmt_run.has_weights:
        talk(f"{nmt_run.folder}: no checkpoint was saved yet")
    for folder in (*map(nmt_run.checkpoint, nmt_run.updates()), nmt_run.model_folder):
        try:
            update = checkpoint.verify(folder, () if folder == nmt_run.model_folder else needed)["update"]
            verdict = "whole"
        except NmtError as error:
            if not os.path.lexists(folder):  # no model yet, or a running training has deleted the checkpoint
                continue
            update, verdict = checkpoint.update_of(folder), f"damaged: {printable(str(error))}"
            exit_code = NmtError.exit_code
        write_stdout(f"{folder.name}\t{'?' if update is None else update}\t{verdict}\n")
    return exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    parser = Parser("nmt-train", description=_DESCRIPTION, examples=_EXAMPLES)
    parser.add_argument("recipe", metavar="RECIPE", help="the recipe, a YAML file; or a run folder, to resume the run")
    add = parser.add_mutually_exclusive_group().add_argument
    text = "Train nothing: check the SHA-256 of all checkpoints of the run RECIPE; exit code 2 if one is damaged."
    add("--verify", action="store_true", help=text)
    text = "Train nothing: measure the memory, time and disk that the recipe needs here, and warn of likely problems."
    add("--check", action="store_true", help=f"{text} Leaves nothing behind.")
    text = "Train nothing: overfit the model to a few pairs and find them again by beam search; exit code 1 if that "
    add("--selftest", action="store_true", help=f"{text}fails. Leaves nothing behind.")
    text = "Train a run for each seed, in RUN/seed-N, and write RUN/seeds.json and one page: scores, mean and standard "
    seed = whole_number("a whole number from 0; RECIPE comes before --seeds")
    add("--seeds", type=seed, nargs="+", metavar="N", help=f"{text}deviation. A time budget applies to each run.")
    text = "If the data of the recipe is missing, run nmt-preprocess RECIPE first; its time does not count in a time "
    parser.add_argument("--prepare", action="store_true", help=f"{text}budget.")
    add_override_flags(parser)
    code = run(train, parser, argv)
    if code and os.environ.get("WORLD_SIZE", "1") != "1":
        os._exit(code)  # a normal exit would wait for ranks that have ended
    return code


if __name__ == "__main__":
    sys.exit(main())
