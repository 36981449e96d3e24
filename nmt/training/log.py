"""Logging: log.jsonl for programs, a progress line for people, TensorBoard, and Weights & Biases. Every line of
log.jsonl is a JSON object with `kind` and `update`; docs/reference.md explains every field."""

import contextlib
import json
import secrets
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from nmt.errors import MachineError
from nmt.files import write_durably
from nmt.progress import Bar
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training.run_page import RunPage

_WANDB_ID = "wandb/run-id"  # file in a run folder: drawn once, then read


class TensorBoard:
    """Scalars and sample translations, as events in a folder. since: the update that training continues from; later
    events of an earlier process are discarded."""

    name = "TensorBoard"

    def __init__(self, folder: Path, since: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.events: Any = SummaryWriter(str(folder), purge_step=since + 1 if since else 0)

    def write(self, kind: str, update: int, fields: Mapping[str, Any]) -> None:
        """Write the events of one line. They are flushed before this returns, since a kill may come at any time."""
        for path, value in _numbers(kind, fields):
            self.events.add_scalar(path, value, update)
        if examples := fields.get("examples"):
            self.events.add_text(f"{kind}/examples", "\n\n".join(map(as_text, examples)), update)
        self.events.flush()

    def close(self) -> None:
        self.events.close()


class WeightsAndBiases:
    """Scalars and sample translations, sent to Weights & Biases. The project has the name of the recipe, the run that
    of the run folder. If a resumed run repeats updates, Weights & Biases keeps the first values; they are equal."""

    name = "Weights & Biases"

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        import wandb

        id_path = folder / _WANDB_ID
        if not (id_path.is_file() and id_path.read_text(encoding="ascii").strip()):
            id_path.parent.mkdir(exist_ok=True)
            id_path.write_text(secrets.token_hex(8) + "\n", encoding="ascii", newline="\n")
        self.wandb: Any = wandb
        self.run: Any = wandb.init(
            project=recipe.name,
            name=folder.name,
            id=id_path.read_text(encoding="ascii").strip(),
            resume="allow",
            dir=str(folder),
            config=recipe.model_dump(mode="json"),
            settings=wandb.Settings(console="off", quiet=True),  # standard error is ours
        )

    def write(self, kind: str, update: int, fields: Mapping[str, Any]) -> None:
        """Send one line. A process of Weights & Biases sends it, so training does not wait for the network."""
        values: dict[str, Any] = dict(_numbers(kind, fields))
        if examples := fields.get("examples"):
            rows = [list(example.values()) for example in examples]
            values[f"{kind}/examples"] = self.wandb.Table(columns=list(examples[0]), data=rows)
        self.run.log(values, step=update)

    def close(self) -> None:
        self.run.finish()


def _numbers(path: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield every number inside a value, with its path: valid/sets/web/bleu."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(f"{path}/{key}", item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def as_text(example: dict[str, str]) -> str:
    """Format a sample translation, indented as code in Markdown, so that no character of it is read as markup."""
    return "\n".join(f"    {label:9}  {text}" for label, text in example.items())


class Record:
    """Log of a run: log.jsonl, the progress line, and other sinks of the recipe. quiet: on all ranks but the first."""

    def __init__(self, path: Path, *, total: float, quiet: bool = False) -> None:
        """total: end of the bar, in updates or seconds."""
        self.path, self.total, self.quiet = path, total, quiet
        bar_format = "{percentage:3.0f}%|{bar:16}| {desc}"
        options: dict[str, Any] = {"dynamic_ncols": True, "mininterval": 1, "miniters": 0, "delay": 0}
        self.bar = Bar(total=total, disable=quiet, file=sys.stderr, bar_format=bar_format, **options)
        self.sinks: list[RunPage | TensorBoard | WeightsAndBiases] = []

    def add_sinks(self, recipe: Recipe, since: int) -> None:
        """Send all later lines to the sinks of the recipe, too. since: the update that the run continues from."""
        folder = self.path.parent
        if not self.quiet:
            self.sinks.append(RunPage(Run(folder)))
        if recipe.train.tensorboard and not self.quiet:
            with self._drop_on_error(TensorBoard):
                self.sinks.append(TensorBoard(folder / "tensorboard", since))
        if recipe.train.wandb and not self.quiet:
            self.say("waiting for Weights & Biases ...")  # for minutes, if its server cannot be reached
            with self._drop_on_error(WeightsAndBiases):
                self.sinks.append(WeightsAndBiases(recipe, folder))

    @contextlib.contextmanager
    def _drop_on_error(self, sink: Any) -> Iterator[None]:
        """Context manager: remove a sink that fails, with a warning. Training can do without it."""
        try:
            yield
        except Exception as error:
            self.sinks = [other for other in self.sinks if other is not sink]
            reason = str(error).split("\n")[0]
            self.say(f"warning: {sink.name} failed and is disabled from here on: {type(error).__name__}: {reason}")

    def begin(self) -> None:
        """Begin the log of a new run: delete that of an attempt which was killed before its first checkpoint."""
        if not self.quiet:
            self.path.unlink(missing_ok=True)
            (self.path.parent / _WANDB_ID).unlink(missing_ok=True)

    def resume(self, update: int, validated: Collection[int]) -> None:
        """Delete the lines written after the checkpoint of a resumed run. validated: its updates with a validation."""
        if not self.quiet and self.path.exists():
            lines = self.path.read_bytes().split(b"\n")
            kept = b"".join(line + b"\n" for line in lines if _is_known(line, update, validated))
            write_durably(self.path, kept)

    def write(self, kind: str, update: int, **fields: Any) -> None:
        """Append a line to log.jsonl at once, and send it to the sinks. Raises MachineError if it cannot be written."""
        if self.quiet:
            return
        try:
            with self.path.open("a", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
                file.write(json.dumps({"kind": kind, "update": update, **fields}, ensure_ascii=False) + "\n")
        except OSError as error:
            raise MachineError(
                f"{self.path}: the log cannot be written: {error.strerror}. Free some space or repair the disk. The "
                "same command then resumes from the last checkpoint, or starts anew if there is none."
            ) from error
        for sink in self.sinks:
            with self._drop_on_error(sink):
                sink.write(kind, update, fields)

    def progress(self, done: float, text: str) -> None:
        """Move the bar, and write a text beside it."""
        self.bar.n = min(done, self.total)
        self.bar.set_description_str(text, refresh=False)
        with contextlib.suppress(OSError):  # the terminal is gone, or the disk of a redirected stderr is full
            self.bar.update(0)

    def row(self, text: str) -> None:
        """Print a line for people, after the time of day. It replaces the next line of the bar."""
        self.say(f"{time.strftime('%H:%M:%S')} {text}")
        self.bar.postpone()

    def say(self, text: str) -> None:
        """Print a line for people, above the progress line."""
        if not self.quiet:
            with contextlib.suppress(OSError):
                Bar.write(text, file=sys.stderr)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.bar.close()
        for sink in self.sinks:
            with self._drop_on_error(sink):
                sink.close()


def _is_known(line: bytes, update: int, validated: Collection[int]) -> bool:
    """Return whether a line of the log was written before the checkpoint of `update`."""
    try:
        entry = json.loads(line)
        kind, entry_update = entry["kind"], entry["update"]
        is_before = entry_update <= update and kind != "final"  # the model is chosen after the last checkpoint
        return is_before and (kind != "valid" or entry_update in validated)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False  # a line that a kill cut short
