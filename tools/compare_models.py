"""The road from seq2seq to the Transformer on toy tasks: python tools/compare_models.py OUT [--tasks …] [--models …]

Prepares, trains and translates with the commands, one model after the other, each by its recipe; prints a table of
parameters, seconds of training (validations and checkpoints not counted), epochs, the epochs after which 99 % of the
validation lines are right, lines of the test that are right to the last character, and, where there is attention, in
how many of the book's dates its arg-max falls on the right field of the source for the year, the month and the day. A
heat map of one line each is in OUT. What is in OUT already is not made again.

Tasks: dates-book and addition, the corpora of the book, from NMT_DATA; dates, the harder one of make_dates.py.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import make_dates
import torch

import nmt
from nmt.api import Model
from nmt.data.corpus import Corpus, Prepared
from nmt.decoding.translation import Translation
from nmt.recipe.reader import read_recipe

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
N_CHECKPOINT = 10  # of a run, by which the epochs to 99 % are told

# Name in the table: recipe, and what is changed in it.
MODELS = {
    "seq2seq": ("seq2seq", []),
    "peeky": ("peeky", []),
    "attention, dot": ("attention", ["--model.attn_score", "dot"]),
    "attention, general": ("attention", ["--model.attn_score", "general"]),
    "attention, additive": ("attention", ["--model.attn_score", "additive"]),
    "Transformer": ("transformer", []),
}


class Task(NamedTuple):
    """What is changed in the recipes of the book's dates: for all, by model how many times its updates are made, and by
    recipe what else."""

    changes: list[str]
    longer: Mapping[str, float] = MappingProxyType({})
    also: Mapping[str, list[str]] = MappingProxyType({})


def _corpus(name: str, trg: str = "tgt", ending: str = ".gz") -> list[str]:
    return [
        part
        for split in ("train", "valid", "test")
        for part in (f"--data.{split}", f"{{src: {name}{split}.src{ending}, trg: {name}{split}.{trg}{ending}}}")
    ]


TASKS = {
    "dates-book": Task([]),
    "dates": Task(
        [],  # its files, which depend on the seed
        {"attention, dot": 2.1, "attention, general": 2.1, "attention, additive": 1.7},
        {"attention": ["--train.label_smoothing", "0.05"]},
    ),
    "addition": Task(
        _corpus("addition."),
        {name: {"seq2seq": 4, "peeky": 4, "Transformer": 7}.get(name, 10) for name in MODELS},
    ),
}


# -- a run -------------------------------------------------------------------------------------------------------------


class Made(NamedTuple):
    """What became of one model on one task."""

    name: str
    n_param: int
    seconds: float
    epochs: float
    epochs_to_99: float | None
    n_right: int
    n_line: int
    pointing: str


def make(out: Path, task: str, name: str, seed: int) -> Made:
    """Prepare, train and translate, or take what is there, and count."""
    recipe_name, changes = MODELS[name]
    recipe = RECIPES / f"dates-book.{recipe_name}.yaml"
    made = out / "corpora" / f"dates.{seed}"
    data = out / "prepared" / (f"{task}.{seed}" if task == "dates" else task)
    run = out / f"{task}.{name.replace(', ', '-').lower()}.{seed}"
    updates = int(read_recipe(recipe).train.updates * TASKS[task].longer.get(name, 1))
    every = str(-(-updates // N_CHECKPOINT))
    files = _corpus(f"{made.resolve()}/", "trg", "") if task == "dates" else []
    common = [*files, *TASKS[task].changes, *TASKS[task].also.get(recipe_name, []), *changes, "--data.out", str(data)]
    if task == "dates":
        make_dates.write(made, seed)
    if not data.is_dir():
        _command("preprocess", recipe, *common, "--seed", seed)
    _command(
        "train", recipe, *common, "--train.out", run, "--seed", seed, "--train.updates", updates, "--train.save_every",
        every, "--train.keep_last", N_CHECKPOINT + 1, "--valid.every", updates,
    )  # fmt: skip
    log = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").split("\n") if line]
    start = next(line for line in log if line["kind"] == "start")
    seconds = [line for line in log if line["kind"] == "train"][-1]["seconds"]
    prepared = Prepared.open(data)
    assert prepared.test is not None
    sources, wanted = prepared.test.texts()
    model = nmt.load(run)
    found = model.translate(sources)
    pointing = _pointing(model, sources, found) if task == "dates-book" and model.model.attends else ""
    if model.model.attends:
        _command(
            "translate", run, "--input", _first(out, sources), "--output", out / "one.out", "--overwrite",
            "--attention", f"{run}.svg",
        )  # fmt: skip
    return Made(
        name,
        start["parameters"],
        seconds,
        updates / start["updates_per_epoch"],
        _epochs_to(0.99, run, prepared.valid, start["updates_per_epoch"]),
        sum(one.text == text for one, text in zip(found, wanted, strict=True)),
        len(wanted),
        pointing,
    )


def _command(name: str, *parts: object) -> None:
    ended = subprocess.run([sys.executable, "-m", f"nmt.cli.{name}", *map(str, parts)], capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"compare_models: nmt-{name} {' '.join(map(str, parts))}: {ended.stderr[-2000:]}")


def _first(out: Path, sources: Sequence[str]) -> Path:
    path = out / "one.txt"
    path.write_text(sources[0] + "\n", encoding="utf-8")
    return path


def _epochs_to(share: float, run: Path, valid: Corpus, updates_per_epoch: int) -> float | None:
    """Epochs until so many of the validation lines are right, told by the checkpoints."""
    sources, wanted = valid.texts()
    for checkpoint in sorted((run / "checkpoints").iterdir()):
        found = nmt.load(run, checkpoint=checkpoint.name).translate(sources)
        if sum(one.text == text for one, text in zip(found, wanted, strict=True)) >= share * len(wanted):
            return int(checkpoint.name.rpartition("-")[2]) / updates_per_epoch
    return None


# -- where attention points --------------------------------------------------------------------------------------------


def fields(source: str) -> dict[str, tuple[int, int]]:
    """Where in a date of the book its year, month and day stand: first character, and the one after the last.

    Three ways are in the corpus: 9/27/94; September 27, 1994; Tuesday, September 27, 1994.
    """
    found = re.fullmatch(r"(?P<month>\d+)/(?P<day>\d+)/(?P<year>\d+)", source) or re.fullmatch(
        r"(?:\w+, )?(?P<month>\w+) (?P<day>\d+), (?P<year>\d+)", source
    )
    assert found, source
    return {name: found.span(name) for name in ("year", "month", "day")}


def _pointing(model: Model, sources: Sequence[str], found: Sequence[Translation]) -> str:
    """Lines in which the arg-max of attention, over heads and layers and the characters of a field of the target, falls
    on that field of the source: of the year, the month, the day, and of all three."""
    n_right = dict.fromkeys(("year", "month", "day"), 0)
    n_all = n_read = 0
    places = {"year": (0, 4), "month": (5, 7), "day": (8, 10)}
    translator = model.translator(model.decode())
    for source, one in zip(sources, found, strict=True):
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", one.text):
            continue
        n_read += 1
        attns = translator.attention(one)
        assert attns.cross is not None
        weights = attns.cross.mean((0, 1))  # (T, S), a space first and EOS last on both sides
        assert weights.size(1) == len(source) + 2
        right = []
        for name, (begin, end) in fields(source).items():
            first, last = places[name]
            place = int(weights[first + 1 : last + 1].mean(0).argmax()) - 1
            right.append(begin <= place < end)
            n_right[name] += right[-1]
        n_all += all(right)
    told = ", ".join(f"{name} {n:,}" for name, n in n_right.items())
    return f"{told}; all three {n_all:,} of {n_read:,}"


def main() -> None:
    """Make what the command line names, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="Folder for prepared data, runs and pictures.")
    for flag, names in (("--tasks", list(TASKS)), ("--models", list(MODELS))):
        about = f"some of: {shlex.join(names)} (default: all)"
        parser.add_argument(flag, nargs="+", choices=names, default=names, metavar="NAME", help=about)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    args = parser.parse_args()
    torch.set_num_threads(min(2, torch.get_num_threads()))
    args.out.mkdir(parents=True, exist_ok=True)
    print("| task | model | parameters | seconds | epochs | to 99 % | right | attention points at |")
    print("|---|---|---:|---:|---:|---:|---:|---|")
    for task in args.tasks:
        for name in args.models:
            for seed in args.seeds:
                one = make(args.out, task, name, seed)
                to_99 = "" if one.epochs_to_99 is None else f"{one.epochs_to_99:.2f}"
                print(
                    f"| {task} | {name} | {one.n_param:,} | {one.seconds:.1f} | {one.epochs:.2f} | {to_99} | "
                    f"{one.n_right:,} of {one.n_line:,} | {one.pointing} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
