"""Where the lines of a run's log go: log.jsonl, and TensorBoard and Weights & Biases where the recipe asks for them.

All stand behind the interface `Sink`. The log is a duty: if it cannot be written, training stops. The others are a
courtesy: one that fails is complained about once and not asked again.
"""

import contextlib
import io
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

from nmt import checkpoint
from nmt.errors import MachineError
from nmt.evaluation.attention.drawing import painter
from nmt.evaluation.attention.panels import Alignment, panels
from nmt.files import write_durably
from nmt.recipe.options import Recipe
from nmt.run import Run

Fields = Mapping[str, Any]


class Sink(Protocol):
    """What takes the lines of the log. fields: numbers, texts and structures of them, and the odd Alignment."""

    def write(self, kind: str, update: int, fields: Fields) -> None:
        """Take one line."""

    def close(self) -> None:
        """There will be no more."""


class JsonLines:
    """log.jsonl: one JSON object a line. Pictures are left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Kept open: should the run folder be moved away and another run begin there, its log is not ours to write to.
        self._file: TextIO | None = None

    def write(self, kind: str, update: int, fields: Fields) -> None:
        """Append one line; it is in the file when this returns. Raises MachineError where it cannot be written."""
        told = {name: value for name, value in fields.items() if not isinstance(value, Alignment)}
        line = json.dumps({"kind": kind, "update": update, **told}, ensure_ascii=False)
        try:
            if self._file is None:
                self._file = self.path.open("a", encoding="utf-8", newline="\n")
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            saved = Run(self.path.parent).updates()
            begins = (
                f"goes on from {checkpoint.name_of(saved[-1])}" if saved else "begins anew, for nothing was saved yet"
            )
            raise MachineError(
                f"{self.path}: the log cannot be written: {error.strerror}. Free some space or mend the disk: the same "
                f"command then {begins}."
            ) from error

    def replace(self, content: bytes) -> None:
        """Put other lines in place of all those so far."""
        self.close()
        write_durably(self.path, content)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # what cannot be written was complained about by `write`
                self._file.close()
        self._file = None


class TensorBoard:
    """Scalars, sample translations and pictures of attention, as events in a folder.

    since: the update that training goes on from; what an earlier process wrote after it counts no more.
    """

    def __init__(self, folder: Path, since: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._excepthook = threading.excepthook
        threading.excepthook = self._leave_out
        self.events: Any = SummaryWriter(str(folder), purge_step=since + 1 if since else 0)

    def write(self, kind: str, update: int, fields: Fields) -> None:
        """Write one line's events; they are in the file when this returns, for a kill may come at any time."""
        for name, value in _numbers(kind, fields):
            self.events.add_scalar(name, value, update)
        for name, value in fields.items():
            if isinstance(value, Alignment):
                self.events.add_image(f"{kind}/{name}", _pixels(value), update, dataformats="HWC")
            elif name == "examples":
                self.events.add_text(f"{kind}/{name}", _markdown(value), update)
        self.events.flush()

    def close(self) -> None:
        """Close the file."""
        self.events.close()
        threading.excepthook = self._excepthook

    def _leave_out(self, args: threading.ExceptHookArgs) -> None:
        """Print what ended a thread, but not of the writer's own: its error is raised here, too, and told in a line."""
        if not type(args.thread).__module__.startswith("tensorboard."):
            self._excepthook(args)


class WeightsAndBiases:
    """Scalars, sample translations and pictures of attention, sent to Weights & Biases.

    The project is the recipe's name, the run is the run folder.

    Where a resumed run repeats updates that were sent already, Weights & Biases keeps the first values; they are equal.
    say: told when there is a wait for its server, which takes minutes if it cannot be reached.
    """

    def __init__(self, recipe: Recipe, folder: Path, say: Callable[[str], None]) -> None:
        import wandb

        self.wandb: Any = wandb
        self.say = say
        say("waiting for Weights & Biases ...")
        self.run: Any = wandb.init(
            project=recipe.name,
            name=folder.name,
            id=_identity(folder / "wandb" / "run-id"),
            resume="allow",
            dir=str(folder),
            config=recipe.model_dump(mode="json"),
            settings=wandb.Settings(console="off", quiet=True),  # standard error is ours
        )

    def write(self, kind: str, update: int, fields: Fields) -> None:
        """Send one line. It is sent by a process of Weights & Biases, so nothing waits for the network."""
        told: dict[str, Any] = dict(_numbers(kind, fields))
        for name, value in fields.items():
            if isinstance(value, Alignment):
                told[f"{kind}/{name}"] = self.wandb.Image(_pixels(value))
            elif name == "examples" and value:
                rows = [list(example.values()) for example in value]
                told[f"{kind}/{name}"] = self.wandb.Table(columns=list(value[0]), data=rows)
        self.run.log(told, step=update)

    def close(self) -> None:
        """Send what is left."""
        self.say("waiting for Weights & Biases to take what is left ...")
        self.run.finish()


class Courtesy:
    """A sink that training can do without: its first failure is told, and it is not asked again."""

    def __init__(self, name: str, make: Callable[[], Sink], complain: Callable[[str], None]) -> None:
        self.name, self.complain = name, complain
        self.sink: Sink | None = None
        self._try(lambda: setattr(self, "sink", make()))

    def write(self, kind: str, update: int, fields: Fields) -> None:
        """Take one line if there was no failure yet."""
        if (sink := self.sink) is not None:
            self._try(lambda: sink.write(kind, update, fields))

    def close(self) -> None:
        """Close it if there was no failure."""
        if (sink := self.sink) is not None:
            self._try(sink.close)

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:
            self.sink = None
            reason = str(error).split("\n")[0]
            self.complain(f"warning: {self.name} failed and is left out from here on: {type(error).__name__}: {reason}")


def sinks_of(recipe: Recipe, folder: Path, since: int, complain: Callable[[str], None]) -> list[Sink]:
    """The sinks that a recipe asks for beside the log of a run that goes on from update `since`."""
    wanted: list[tuple[str, bool, Callable[[], Sink]]] = [
        ("TensorBoard", recipe.train.tensorboard, lambda: TensorBoard(folder / "tensorboard", since)),
        ("Weights & Biases", recipe.train.wandb, lambda: WeightsAndBiases(recipe, folder, complain)),
    ]
    return [Courtesy(name, make, complain) for name, is_wanted, make in wanted if is_wanted]


def _numbers(path: str, value: Any) -> Iterator[tuple[str, float]]:
    """Every number inside a value, with its path: valid/sets/web/bleu."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _numbers(f"{path}/{name}", part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def _pixels(alignment: Alignment) -> Any:
    """(height, width, 3) numbers from 0 to 1: the mean attention of the last layer."""
    picture = painter()
    from matplotlib.image import imread  # here, since it takes half a second and few runs draw

    return imread(io.BytesIO(picture([(alignment, panels(alignment, "last", "mean"))])))[:, :, :3]


def _markdown(examples: list[dict[str, str]]) -> str:
    """Examples as a list, their text as code, so that nothing in it is taken for markup."""
    return "\n\n".join("\n".join(f"    {what:9}  {text}" for what, text in example.items()) for example in examples)


def _identity(path: Path) -> str:
    """The name under which Weights & Biases knows a run: drawn once, then read."""
    known = path.read_text(encoding="ascii").strip() if path.is_file() else ""
    if not known:
        known = secrets.token_hex(8)
        path.parent.mkdir(exist_ok=True)
        path.write_text(known + "\n", encoding="ascii", newline="\n")
    return known
