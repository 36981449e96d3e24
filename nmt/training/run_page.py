"""The page and the card of runs, made of what lies in their folders: log, recipe and data; nothing is computed anew.

RUN/report.html shows how training goes; RUN/README.md is a model card of the chosen model.
"""

import html
import json
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nmt import checkpoint
from nmt.evaluation.metrics import METRICS
from nmt.files import CARD, SEEDS, filled_page, json_for_html, parse_json, write_durably
from nmt.languages import UNTOLD, language_of
from nmt.recipe.draft import exports_note
from nmt.recipe.places import DATA_AT
from nmt.run import Run

PAGE = "report.html"
_MOST_EXAMPLES = 40  # validations whose example translations are shown
_MOST_POINTS = 1500  # of a curve; of more, each point is the mean of several
CURVES = ("loss", "learning_rate", "gradient_norm", "tokens_per_second")
_OF_VALIDATION = ("loss", "accuracy", *METRICS)
# The first line of a card that is written anew; who edits a card takes it out.
_MADE = "<!-- Written by nmt-train. To keep your changes, remove this line. -->\n"

# Fields that are read of lines of a kind.
_NUMBERS: dict[str, tuple[str, ...]] = {
    "start": ("parameters", "pairs", "updates_per_epoch", "seed", "threads", "cores"),
    "train": ("update", "epoch", "skipped", "seconds", *CURVES),
}

Entry = dict[str, Any]


class RunPage:
    """Keeps the page of a run up to date, and writes its card: a place that lines of the log are sent to."""

    name = PAGE

    def __init__(self, run: Run) -> None:
        self._run = run

    def write(self, kind: str, update: int, fields: Mapping[str, Any]) -> None:
        """Write the page again after a validation, and at the end, with the card of the model that is chosen then."""
        if kind in ("valid", "final"):
            write_durably(self._run.folder / PAGE, page([self._run]).encode())
        if kind == "final":
            write_card(self._run)

    def close(self) -> None:
        """Nothing is open between two lines."""


def entries_of(run: Run) -> dict[str, list[Entry]]:
    """The lines of a run's log, by their kind, in their order. What is no line of ours is passed over."""
    found = dict[str, list[Entry]]()
    for line in run.log_file.read_bytes().split(b"\n") if run.log_file.exists() else ():
        try:
            entry = parse_json(line)
            if _is_ours(entry):
                found.setdefault(entry["kind"], []).append(entry)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return found


def _is_ours(entry: Any) -> bool:
    """Return whether a line has what is read of its kind. Raises KeyError, TypeError or AttributeError where not."""
    if entry["kind"] == "final":
        return entry["chosen"] in entry["candidates"] and all(map(_are_numbers, entry["candidates"].values()))
    if entry["kind"] == "valid":
        sets = [
            {key: one.get(key, 0) for key in ("loss", *METRICS)} for one in (entry, *entry.get("sets", {}).values())
        ]
        return isinstance(entry["set"], str) and _are_numbers({"update": entry["update"]}, *sets)
    return _are_numbers({key: entry[key] for key in _NUMBERS.get(entry["kind"], ("update",))})


def _are_numbers(*values: Entry) -> bool:
    return all(isinstance(one, int | float) for each in values for one in each.values())


def names_of(folders: Sequence[Path]) -> list[str]:
    """Names of runs by their folders: as much of the end of each path as tells them apart."""
    paths = [Path(os.path.abspath(folder)).parts for folder in folders]
    for n in range(1, max(map(len, paths))):
        names = ["/".join(parts[-n:]) for parts in paths]
        if len(set(names)) == len(set(paths)) and not any(name.startswith("seed-") for name in names):
            return names
    return list(map(str, folders))


def page(runs: Sequence[Run], title: str = "") -> str:
    """The text of a page that shows a run, or several in the same charts. title: the names of the runs by default."""
    names = names_of([run.folder for run in runs])
    facts = [_facts(run, name) for run, name in zip(runs, names, strict=True)]
    title = title or ", ".join(names)
    data = {"runs": facts, "higher": {name: one.higher_is_better for name, one in METRICS.items()} | {"accuracy": True}}
    return filled_page(
        Path(__file__).with_name("run_page.html"), {"title": html.escape(title), "data": json_for_html(data)}
    )


def _facts(run: Run, name: str) -> Entry:
    """Everything that the page says of a run, in values of JSON."""
    recipe, log = run.recipe(), entries_of(run)
    train, valid, final = log.get("train", []), log.get("valid", []), log.get("final", [])
    start: Entry = next(iter(log.get("start", [])), {})
    clock = [(one["update"], one["seconds"] / 60) for one in train]
    at = np.array([(0, 0.0), *clock])
    sets = {valid[0]["set"]: valid} if valid else {}
    for further in dict.fromkeys(name for one in valid for name in one.get("sets", {})):
        its = [one for one in valid if further in one.get("sets", {})]
        sets[further] = [{"update": one["update"], **one["sets"][further]} for one in its]
    examples = [{"update": one["update"], "rows": one["examples"]} for one in valid if one.get("examples")]
    step = -(-len(examples) // _MOST_EXAMPLES) or 1
    return {
        "name": name,
        "title": f"{recipe.name}: {language_of(recipe.data.src_lang).name} to {language_of(recipe.data.trg_lang).name}",
        "metric": recipe.valid.metric,
        "train": _thinned(train, clock),
        "valid": {
            name: {
                "update": [one["update"] for one in its],
                "minutes": np.interp([one["update"] for one in its], at[:, 0], at[:, 1]).tolist(),
                **{key: [one.get(key) for one in its] for key in _OF_VALIDATION if any(key in one for one in its)},
            }
            for name, its in sets.items()
        },
        "examples": examples[::-step][::-1],  # the last among them
        "final": {"chosen": final[-1]["chosen"], "candidates": final[-1]["candidates"]} if final else None,
        "data": _of_data(run),
        "facts": list(_rows(run, start, train)),
    }


def _thinned(train: Sequence[Entry], clock: Sequence[tuple[int, float]]) -> Entry:
    """The curves of training, of at most _MOST_POINTS points: means over as many lines each."""
    step = -(-len(train) // _MOST_POINTS) or 1
    parts = [range(first, min(first + step, len(train))) for first in range(0, len(train), step)]
    curves = {key: [sum(train[i][key] for i in its) / len(its) for its in parts] for key in CURVES}
    return {"update": [clock[its[-1]][0] for its in parts], "minutes": [clock[its[-1]][1] for its in parts], **curves}


def _of_data(run: Run) -> Entry:
    """Counts, alarms and warnings of the report of the prepared data, if it is still where it was."""
    report = _prepared_json(run, "report.json")
    dropped = {reason: one["count"] for reason, one in report.get("dropped", {}).items()}
    return {key: report.get(key) for key in ("read", "kept", "alarms", "warnings")} | {"dropped": dropped}


def _prepared_json(run: Run, name: str) -> Entry:
    """A file of the prepared data of a run, if it is still the same data."""
    try:
        about = parse_json(run.data_file.read_bytes())
        made, found = (parse_json((Path(str(about[DATA_AT])) / one).read_bytes()) for one in ("manifest.json", name))
        is_same = isinstance(found, dict) and made["files"]["train.arrow"]["sha256"] == about["train"]
        return found if is_same else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _rows(run: Run, start: Entry, train: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """Rows about the training: command, versions, machine, data, time."""
    recipe = run.recipe()
    if "command" in start:
        yield "command", start["command"]
    if start:
        yield "versions", f"nmt {start.get('nmt')}, Python {start.get('python')}, torch {start.get('torch')}"
        machine = f"{start.get('device')}, CPU threads {start['threads']} of {start['cores']} cores"
        yield "machine", f"{start.get('processor') or 'processor not told'}; {machine}"
        yield "precision", f"{start.get('precision')} ({start.get('precision_why')})"
        yield "model", f"{start['parameters']:,} parameters"
        yield (
            "data",
            f"{start['pairs']:,} pairs, {start['updates_per_epoch']:,} updates an epoch, SHA-256 {start.get('data')}",
        )
        yield "seed", str(start["seed"])
    if train:
        last = train[-1]
        yield "updates", f"{last['update']:,}, in epoch {last['epoch']}, {last['skipped']:,} skipped"
        rest = max(0.0, last.get("wall_seconds", last["seconds"]) - last["seconds"]) / 60
        yield (
            "time",
            f"{last['seconds'] / 60:,.1f} min training; {rest:,.1f} min start, validation and saving until then",
        )
    yield "exports", exports_note(recipe)


# Runs that differ by their seed.


def write_summary(folder: Path, runs: Sequence[Run]) -> str:
    """Write seeds.json and the page of all runs. Returns a table of the scores of the chosen models for people."""
    found = {run.folder.name: checkpoint.read_json(run.model_folder / checkpoint.STATE) for run in runs}
    scores = {name: {"chosen": one["chosen"], **one["candidates"][one["chosen"]]} for name, one in found.items()}
    # What every run has: a run that a clock ended may have left out some.
    names = [name for name in next(iter(scores.values())) if all(name in one for one in scores.values())]
    columns = {name: [one[name] for one in scores.values()] for name in names if name != "chosen"}
    mean = {name: statistics.mean(values) for name, values in columns.items()}
    spread = {name: statistics.stdev(values) for name, values in columns.items()} if len(runs) > 1 else {}
    told = {"runs": scores, "mean": mean, "standard_deviation": spread}
    write_durably(folder / SEEDS, (json.dumps(told, indent=1) + "\n").encode())
    write_durably(folder / PAGE, page(runs, title=folder.name).encode())
    rows = [(name, one["chosen"], one) for name, one in scores.items()]
    rows += [("mean", "", mean), *([("standard deviation", "", spread)] if spread else [])]
    wide = max(len(chosen) for _, chosen, _ in rows)
    text = f"{'':20}{'':{wide}}{''.join(f'{name:>12}' for name in columns)}\n"
    for name, chosen, values in rows:
        text += f"{name:20}{chosen:{wide}}{''.join(f'{values[one]:12.4f}' for one in columns)}\n"
    return text


# The card.


def write_card(run: Run) -> None:
    """Write the model card of a run that has chosen its model, unless somebody has made the one there their own."""
    path = run.folder / CARD
    if not path.exists() or _MADE in path.read_text(encoding="utf-8", errors="replace"):
        write_durably(path, card(run).encode())


def card(run: Run) -> str:
    """A model card in the form of Hugging Face: a YAML head, then the model's scores, data, training and limits."""
    recipe, log = run.recipe(), entries_of(run)
    targets = dict.fromkeys(one.trg_lang or recipe.data.trg_lang for one in recipe.data.train)
    langs = [recipe.data.src_lang, *(targets or [recipe.data.trg_lang])]
    valid, final = log.get("valid", []), log.get("final", [])
    start: Entry = next(iter(log.get("start", [])), {})
    chosen: Entry = final[-1]["candidates"].get(final[-1]["chosen"], {}) if final else {}
    inputs = _prepared_json(run, "manifest.json").get("inputs", [])
    measured = [name for name in METRICS if name in chosen]
    datasets = dict.fromkeys(one.dataset for one in recipe.data.train)
    head = {
        "language": [language_of(code).primary for code in dict.fromkeys(langs) if not code.startswith(("x-", UNTOLD))],
        "license": "unknown",
        "library_name": "nmt",
        "pipeline_tag": "translation",
        "tags": ["translation", "nmt"],
        "datasets": [name for name in datasets if name and not Path(name).is_dir()],
        "metrics": measured,
    }
    named = f"{language_of(langs[0]).name} to {', '.join(language_of(code).name for code in langs[1:])}"
    signatures = {name: one[key] for one in valid for name in METRICS if (key := f"{name}_signature") in one}
    scores = [
        f"| {METRICS[name].title} | {chosen[name]:.2f} | `{_cell(signatures.get(name, ''))}` |" for name in measured
    ]
    files = [
        f"| {one['split']} | {_cell(Path(str(one['name'])).name)} | {one['n_line']:,} | `{one['sha256']}` |"
        for one in inputs
    ]
    facts = [f"- {name}: `{text}`" for name, text in _rows(run, start, log.get("train", []))]
    search = f"beam size {recipe.valid.beam}" if recipe.valid.beam > 1 else "greedy search"
    origin = f"on from the weights of {recipe.train.init_from}" if recipe.train.init_from else "from scratch"
    limits = [
        "It translates sentences, each by itself; longer texts are split.",
        f"In training no side of a pair had more than {recipe.data.max_len} subwords.",
        f"The scores are of the validation set, by which the model was chosen, with {search}: measure on a test set.",
        "It knows what its training data knows, mistakes and biases included.",
    ]
    recipe_text = run.recipe_file.read_text(encoding="utf-8").rstrip("\n")
    lines_of_head = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items())
    paragraphs = [
        "\n".join(["---", *lines_of_head, "---", _MADE, f"# {recipe.name}"]),
        f"A model that translates {named}, trained with nmt {origin}. `license` above is yours to fill in.",
        "    nmt-translate RUN --input IN --output OUT",
        "## Scores",
        f"On the validation set, `{final[-1]['chosen'] if final else 'not chosen yet'}`:",
        _table(["metric", "score", "signature"], scores),
        "## Data",
        _table(["set", "file", "lines", "SHA-256"], files),
        "## Training",
        "\n".join(facts),
        "## Limits",
        "\n".join(f"- {one}" for one in limits),
        "## Recipe",
        f"```yaml\n{recipe_text}\n```\n",
    ]
    return "\n\n".join(paragraphs)


def _table(titles: Sequence[str], rows: Iterable[str]) -> str:
    return "\n".join([f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
