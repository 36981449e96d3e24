"""Logging: log.jsonl for machines, one progress line for people, TensorBoard and Weights & Biases. Every line of
log.jsonl is a JSON object with `kind` and `update`; docs/reference.md explains every field."""

import contextlib
import json
import secrets
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from nmt import checkpoint
from nmt.errors import MachineError
from nmt.files import write_durably
from nmt.progress import Bar
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training.run_page import RunPage


class TensorBoard:
    """Scalars and sample translations, as events in a folder. since: the update that training goes on from; what an
    earlier process wrote after it counts no more."""

    name = "TensorBoard"

    def __init__(self, folder: Path, since: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.events: Any = SummaryWriter(str(folder), purge_step=since + 1 if since else 0)

    def write(self, kind: str, update: int, fields: Mapping[str, Any]) -> None:
        """Write one line's events; they are in the file when this returns, for a kill may come at any time."""
        for name, value in _numbers(kind, fields):
            self.events.add_scalar(name, value, update)
        if examples := fields.get("examples"):
            self.events.add_text(f"{kind}/examples", "\n\n".join(map(as_text, examples)), update)
        self.events.flush()

    def close(self) -> None:
        self.events.close()


class WeightsAndBiases:
    """Scalars and sample translations, sent to Weights & Biases. The project is the recipe's name, the run is the run
    folder. Where a resumed run repeats updates that were sent already, Weights & Biases keeps the first values; they
    are equal."""

    name = "Weights & Biases"

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        import wandb

        identity = folder / "wandb" / "run-id"  # drawn once, then read
        if not (identity.is_file() and identity.read_text(encoding="ascii").strip()):
            identity.parent.mkdir(exist_ok=True)
            identity.write_text(secrets.token_hex(8) + "\n", encoding="ascii", newline="\n")
        self.wandb: Any = wandb
        self.run: Any = wandb.init(
            project=recipe.name,
            name=folder.name,
            id=identity.read_text(encoding="ascii").strip(),
            resume="allow",
            dir=str(folder),
            config=recipe.model_dump(mode="json"),
            settings=wandb.Settings(console="off", quiet=True),  # standard error is ours
        )

    def write(self, kind: str, update: int, fields: Mapping[str, Any]) -> None:
        """Send one line. It is sent by a process of Weights & Biases, so nothing waits for the network."""
        shown: dict[str, Any] = dict(_numbers(kind, fields))
        if examples := fields.get("examples"):
            rows = [list(example.values()) for example in examples]
            shown[f"{kind}/examples"] = self.wandb.Table(columns=list(examples[0]), data=rows)
        self.run.log(shown, step=update)

    def close(self) -> None:
        self.run.finish()


def _numbers(path: str, value: Any) -> Iterator[tuple[str, float]]:
    """Every number inside a value, with its path: valid/sets/web/bleu."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _numbers(f"{path}/{name}", part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def as_text(example: dict[str, str]) -> str:
    """Format a sample translation, indented: code in Markdown, so that nothing in it is taken for markup."""
    return "\n".join(f"    {what:9}  {text}" for what, text in example.items())


class Record:
    """The log of a run: log.jsonl, the progress line, and what else the recipe names. Silent when `quiet`: ranks other
    than the first."""

    def __init__(self, path: Path, *, total: float, quiet: bool = False) -> None:
        """total: of the bar, updates or seconds."""
        self.path, self.total, self.quiet = path, total, quiet
        look = "{percentage:3.0f}%|{bar:16}| {desc}"
        options: dict[str, Any] = {"dynamic_ncols": True, "mininterval": 1, "miniters": 0, "delay": 0}
        self.bar = Bar(total=total, disable=quiet, file=sys.stderr, bar_format=look, **options)
        self.sinks: list[RunPage | TensorBoard | WeightsAndBiases] = []

    def add_sinks(self, recipe: Recipe, since: int) -> None:
        """Send all lines from here on to what else the recipe names, of a run that goes on from update `since`."""
        folder = self.path.parent
        if not self.quiet:
            self.sinks.append(RunPage(Run(folder)))
        if recipe.train.tensorboard and not self.quiet:
            with self._left_out_if_it_fails(TensorBoard):
                self.sinks.append(TensorBoard(folder / "tensorboard", since))
        if recipe.train.wandb and not self.quiet:
            self.say("waiting for Weights & Biases ...")  # for minutes, if its server cannot be reached
            with self._left_out_if_it_fails(WeightsAndBiases):
                self.sinks.append(WeightsAndBiases(recipe, folder))

    @contextlib.contextmanager
    def _left_out_if_it_fails(self, sink: Any) -> Iterator[None]:
        """Training can do without a sink: its first failure is told, and it is not asked again."""
        try:
            yield
        except Exception as error:
            self.sinks = [one for one in self.sinks if one is not sink]
            reason = str(error).split("\n")[0]
            self.say(f"warning: {sink.name} failed and is left out from here on: {type(error).__name__}: {reason}")

    def begin(self) -> None:
        """Begin the log of a new run: what an attempt wrote that was killed before its first checkpoint goes."""
        if not self.quiet:
            self.path.unlink(missing_ok=True)

    def resume(self, update: int, validated: Collection[int]) -> None:
        """Continue the log of a resumed run: what its checkpoint does not know of is taken back. validated: the updates
        whose validation the checkpoint knows."""
        if not self.quiet and self.path.exists():
            lines = self.path.read_bytes().split(b"\n")
            kept = b"".join(line + b"\n" for line in lines if _is_known(line, update, validated))
            write_durably(self.path, kept)

    def write(self, kind: str, update: int, **fields: Any) -> None:
        """Append one line to log.jsonl, and tell the sinks. It is in the file when this returns. Raises MachineError
        where it cannot be written."""
        if self.quiet:
            return
        try:
            with self.path.open("a", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
                file.write(json.dumps({"kind": kind, "update": update, **fields}, ensure_ascii=False) + "\n")
        except OSError as error:
            saved = Run(self.path.parent).updates()
            begins = f"goes on from {checkpoint.name_of(saved[-1])}" if saved else "begins anew: nothing was saved yet"
            raise MachineError(
                f"{self.path}: the log cannot be written: {error.strerror}. Free some space or mend the disk: the same "
                f"command then {begins}."
            ) from error
        for sink in self.sinks:
            with self._left_out_if_it_fails(sink):
                sink.write(kind, update, fields)

    def progress(self, done: float, text: str) -> None:
        """Move the bar, and write something beside it."""
        self.bar.n = min(done, self.total)
        self.bar.set_description_str(text, refresh=False)
        with contextlib.suppress(OSError):  # nobody can hear it: the terminal is gone, the disk behind it full
            self.bar.update(0)

    def row(self, text: str) -> None:
        """A line for people that tells all that the bar would."""
        self.say(text)
        self.bar.postpone()

    def say(self, text: str) -> None:
        """A line for people, above the progress line."""
        if not self.quiet:
            with contextlib.suppress(OSError):
                Bar.write(text, file=sys.stderr)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.bar.close()
        for sink in self.sinks:
            with self._left_out_if_it_fails(sink):
                sink.close()


def _is_known(line: bytes, update: int, validated: Collection[int]) -> bool:
    """Return whether a line of the log was written before a checkpoint."""
    try:
        entry = json.loads(line)
        kind, at = entry["kind"], entry["update"]
        is_before = at <= update and kind != "final"  # the model is chosen after the last checkpoint
        return is_before and (kind != "valid" or at in validated)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False  # the line that a kill cut short
