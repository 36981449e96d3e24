"""Page and model card of runs, from the files in their folders: log, recipe and data. Nothing is measured again.

RUN/report.html shows the progress of training; RUN/README.md is a model card of the final model.
"""

import json
import os
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from nmt import checkpoint
from nmt.errors import RunError
from nmt.evaluation.metrics import METRICS
from nmt.files import CARD, SEEDS, filled, parse_json, script_page, write_durably
from nmt.languages import UNTOLD, language_of
from nmt.recipe.draft import exports_note
from nmt.recipe.options import Recipe
from nmt.recipe.places import DATA_AT
from nmt.run import Run

PAGE = "report.html"
_MOST_EXAMPLES = 40  # validations whose example translations are shown
_MOST_POINTS = 1500  # of a curve
CURVES = ("loss", "learning_rate", "gradient_norm", "tokens_per_second")
_VALID_CURVES = ("loss", "accuracy", *METRICS)
# Marks a card that may be overwritten. An edited card is without it.
_MADE = "<!-- Written by nmt-train. To keep your changes, remove this line. -->\n"

Entry = dict[str, Any]


class RunPage:
    """Sink of the log that keeps the page of a run up to date and writes its card."""

    name = PAGE

    def __init__(self, run: Run) -> None:
        self._run = run

    def write(self, kind: str, update: int, fields: Mapping[str, Any]) -> None:
        """Write the page after a validation and at the end; at the end also the card, unless its owner edited it."""
        path = self._run.folder / CARD
        if kind == "final" and (not path.exists() or _MADE in path.read_text(encoding="utf-8", errors="replace")):
            write_durably(path, card(self._run).encode())
        if kind in ("valid", "final"):
            write_durably(self._run.folder / PAGE, page([self._run]).encode())

    def close(self) -> None:
        """No file is open between two lines."""


def entries_of(run: Run) -> defaultdict[str, list[Entry]]:
    """Return the lines of the log of a run, by kind, in order; [] for a kind without lines."""
    entries = defaultdict[str, list[Entry]](list)
    for line in run.log_file.read_bytes().split(b"\n") if run.log_file.exists() else ():
        with suppress(ValueError, TypeError, KeyError):  # a line that a kill cut short, or that has no kind
            entry = parse_json(line)
            entries[entry["kind"]].append(entry)
    return entries


def page(runs: Sequence[Run], title: str = "") -> str:
    """Return the text of a page with one run or several in the same charts. title: the names of the runs by default.
    Raises RunError for a log with a line of another format."""
    root = os.path.commonpath([os.path.dirname(os.path.abspath(run.folder)) for run in runs])
    names = [os.path.relpath(run.folder, root) for run in runs]
    facts = list[Entry]()
    for run, name in zip(runs, names, strict=True):
        try:
            facts.append(_facts(run, name))
        except (KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{run.log_file}: a line lacks fields of its kind ({error!r}). Remove it.") from None
    title = (title or ", ".join(names)).encode("utf-8", "backslashreplace").decode("utf-8")  # as of undecodable paths
    data = {"runs": facts, "metrics": [*METRICS, "accuracy"]}
    return script_page(Path(__file__).with_name("run_page.html"), title, data)


def _facts(run: Run, name: str) -> Entry:
    """Return all data of the page about a run, as JSON values."""
    recipe, log = run.recipe(), entries_of(run)
    train, valid, final = _spread(log["train"], _MOST_POINTS), log["valid"], log["final"]
    train_curves: Entry = {key: [entry[key] for entry in train] for key in ("update", *CURVES)}
    train_curves["minutes"] = [entry["seconds"] / 60 for entry in train]
    sets = defaultdict[str, list[Entry]](list)
    for entry in valid:
        for set_name, measured in {entry["set"]: entry, **entry.get("sets", {})}.items():
            sets[set_name].append({**measured, "update": entry["update"]})
    curves = dict[str, Entry]()
    for set_name, entries in sets.items():
        updates = [entry["update"] for entry in entries]
        minutes = np.interp(updates, [0, *train_curves["update"]], [0.0, *train_curves["minutes"]]).tolist()
        scores = {key: [entry.get(key) for entry in entries] for key in _VALID_CURVES}  # the page leaves empty ones out
        curves[set_name] = {"update": updates, "minutes": minutes, **scores}
    examples = [{"update": entry["update"], "rows": entry["examples"]} for entry in valid if entry.get("examples")]
    report = _prepared_json(run, "report.json")
    dropped = {reason: entry["count"] for reason, entry in report.get("dropped", {}).items()}
    return {
        "name": name,
        "title": f"{recipe.name}: {language_of(recipe.data.src_lang).name} to {language_of(recipe.data.trg_lang).name}",
        "train": train_curves,
        "valid": curves,
        "examples": _spread(examples, _MOST_EXAMPLES),
        "final": {"chosen": final[-1]["chosen"], "candidates": final[-1]["candidates"]} if final else None,
        "data": {key: report.get(key) for key in ("read", "kept")} | {"dropped": dropped},
        "facts": list(_rows(recipe, log)),
    }


def _spread(entries: Sequence[Entry], most: int) -> Sequence[Entry]:
    """Return so many of the entries at most, evenly spread, the last one included."""
    step = -(-len(entries) // most) or 1
    return entries[::-step][::-1]


def _prepared_json(run: Run, name: str) -> Entry:
    """Return a JSON file of the prepared data of a run; {} if the folder is gone or has other data."""
    try:
        about = parse_json(run.data_file.read_bytes())
        data = Path(str(about[DATA_AT]))
        manifest, content = (parse_json((data / file).read_bytes()) for file in ("manifest.json", name))
        is_same = isinstance(content, dict) and manifest["files"]["train.arrow"]["sha256"] == about["train"]
        return content if is_same else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _rows(recipe: Recipe, log: defaultdict[str, list[Entry]]) -> Iterator[tuple[str, str]]:
    """Yield rows about the training: command, versions, machine, data, time. log: see `entries_of`."""
    if log["start"]:
        start = log["start"][0]
        yield "command", start["command"]
        yield "versions", f"nmt {start.get('nmt')}, Python {start.get('python')}, torch {start.get('torch')}"
        machine = f"{start.get('device')}, CPU threads {start['threads']} of {start['cores']} cores"
        yield "machine", f"{start.get('processor') or 'processor not known'}; {machine}"
        yield "precision", f"{start.get('precision')} ({start.get('precision_why')})"
        yield "model", f"{start['parameters']:,} parameters"
        pairs = f"{start['pairs']:,} pairs, {start['updates_per_epoch']:,} updates an epoch"
        yield "data", f"{pairs}, SHA-256 {start.get('data')}"
        yield "seed", str(start["seed"])
    if log["train"]:
        last = log["train"][-1]
        yield "updates", f"{last['update']:,}, in epoch {last['epoch']}, {last['skipped']:,} skipped"
        rest = max(0.0, last.get("wall_seconds", last["seconds"]) - last["seconds"]) / 60
        minutes = f"{last['seconds'] / 60:,.1f} min training; {rest:,.1f} min start, validation and saving until then"
        yield "time", minutes
    yield "exports", exports_note(recipe)


def write_summary(folder: Path, runs: Sequence[Run]) -> str:
    """Write seeds.json and the page of all runs. Returns a table of the scores of the final models for people."""
    states = {run.folder.name: checkpoint.read_json(run.model_folder / checkpoint.STATE) for run in runs}
    results = {
        name: {"chosen": state["chosen"], **state["candidates"][state["chosen"]]} for name, state in states.items()
    }
    # Only metrics of every run: a run that ended by its time budget may lack some.
    keys = [key for key in next(iter(results.values())) if all(key in result for result in results.values())]
    columns = {key: [result[key] for result in results.values()] for key in keys if key != "chosen"}
    mean = {metric: statistics.mean(values) for metric, values in columns.items()}
    spread = {metric: statistics.stdev(values) for metric, values in columns.items()} if len(runs) > 1 else {}
    summary = {"runs": results, "mean": mean, "standard_deviation": spread}
    write_durably(folder / SEEDS, (json.dumps(summary, indent=1) + "\n").encode())
    write_durably(folder / PAGE, page(runs, title=folder.name).encode())
    rows = [(name, result["chosen"], result) for name, result in results.items()]
    rows += [("mean", "", mean), *([("standard deviation", "", spread)] if spread else [])]
    width = max(len(chosen) for _, chosen, _ in rows)
    text = f"{'':20}{'':{width}}{''.join(f'{metric:>12}' for metric in columns)}\n"
    for name, chosen, values in rows:
        text += f"{name:20}{chosen:{width}}{''.join(f'{values[metric]:12.4f}' for metric in columns)}\n"
    return text


def card(run: Run) -> str:
    """Return the card of the final model, as Hugging Face's: a YAML head, then scores, data, training and limits."""
    recipe, log = run.recipe(), entries_of(run)
    trg_langs = dict.fromkeys(corpus.trg_lang or recipe.data.trg_lang for corpus in recipe.data.train)
    langs = [recipe.data.src_lang, *(trg_langs or [recipe.data.trg_lang])]
    valid, final = log["valid"], log["final"][-1]
    chosen = final["candidates"][final["chosen"]]
    inputs = _prepared_json(run, "manifest.json").get("inputs", [])
    measured = [name for name in METRICS if name in chosen]
    datasets = dict.fromkeys(corpus.dataset for corpus in recipe.data.train)
    codes = [language_of(code).primary for code in dict.fromkeys(langs) if not code.startswith(("x-", UNTOLD))]
    signatures = {name: entry[key] for entry in valid for name in METRICS if (key := f"{name}_signature") in entry}
    scores = [[METRICS[name].title, f"{chosen[name]:.2f}", f"`{signatures.get(name, '')}`"] for name in measured]
    files = [[file["split"], Path(file["name"]).name, f"{file['n_line']:,}", f"`{file['sha256']}`"] for file in inputs]
    init_from, beam = recipe.train.init_from, recipe.valid.beam
    parts = {
        "language": json.dumps(codes),
        "datasets": json.dumps([name for name in datasets if name and not Path(name).is_dir()], ensure_ascii=False),
        "metrics": json.dumps(measured),
        "made": _MADE,
        "name": recipe.name,
        "direction": f"{language_of(langs[0]).name} to {', '.join(language_of(code).name for code in langs[1:])}",
        "origin": f"starting from the weights of {init_from}" if init_from else "from scratch",
        "chosen": final["chosen"],
        "scores": _table(scores),
        "files": _table(files),
        "facts": "\n".join(f"- {name}: `{text}`" for name, text in _rows(recipe, log)),
        "max_len": str(recipe.data.max_len),
        "search": f"beam size {beam}" if beam > 1 else "greedy search",
        "recipe": run.recipe_file.read_text(encoding="utf-8").rstrip("\n"),
    }
    return filled(Path(__file__).with_name("run_card.md").read_text(encoding="utf-8"), parts)


def _table(rows: list[list[str]]) -> str:
    """Return rows of a table in Markdown."""
    escaped = ([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)
    return "".join(f"\n| {' | '.join(row)} |" for row in escaped)
