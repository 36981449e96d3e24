"""What training says: log.jsonl for machines, one progress line for people, TensorBoard if asked for.

Every line of log.jsonl is one JSON object with `kind` and `update`:
    init    the run that the first weights are from, and which were loaded, grown, skipped, unused
    start   versions, device, precision, parameters, fingerprint of the data
    train   loss, learning rate, gradient norm, target tokens a second, epoch: means since the line before
    valid   loss, perplexity, accuracy, bleu, chrf with signatures, examples
    final   the candidates for the final model with their scores, and the one chosen
"""

import contextlib
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from nmt.errors import MachineError
from nmt.files import write_durably


class Record:
    """The log of a run. Silent when `quiet`: ranks other than the first."""

    def __init__(self, path: Path, *, n_update: int, quiet: bool = False, tensorboard: bool = False) -> None:
        self.path = path
        self.quiet = quiet
        # Kept open: should the run folder be moved away and another run begin there, its log is not ours to write to.
        self._file: TextIO | None = None
        self.talk = _Talk(sys.stderr)
        self.bar = tqdm(total=n_update, unit="upd", dynamic_ncols=True, disable=quiet, file=self.talk, mininterval=1)
        self.events = _events(path.parent) if tensorboard and not quiet else None

    def begin(self) -> None:
        """Begin the log of a new run: what an attempt wrote that was killed before its first checkpoint goes."""
        if not self.quiet and self.path.exists():
            self._replace(b"")

    def go_on(self, update: int, validated: Collection[int]) -> None:
        """Continue the log of a resumed run: what its checkpoint does not know of is taken back.

        validated: the updates whose validation the checkpoint knows.
        """
        self.bar.reset()
        self.bar.initial = self.bar.n = self.bar.last_print_n = update
        if self.quiet or not self.path.exists():
            return
        there = self.path.read_bytes()
        kept = [line for line in there.split(b"\n") if _is_known(line, update, validated)]
        if (known := b"".join(line + b"\n" for line in kept)) != there:
            self._replace(known)

    def _replace(self, content: bytes) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        write_durably(self.path, content)

    def write(self, kind: str, update: int, **fields: Any) -> None:
        """Append one line to log.jsonl; numbers go to TensorBoard too."""
        if self.quiet:
            return
        line = json.dumps({"kind": kind, "update": update, **fields}, ensure_ascii=False)
        if self._file is None:
            self._file = self.path.open("a", encoding="utf-8", newline="\n")
        self._file.write(line + "\n")
        self._file.flush()
        if self.events is not None:
            for name, value in fields.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    self.events.add_scalar(f"{kind}/{name}", value, update)

    def progress(self, update: int, **shown: str) -> None:
        """Move the progress line."""
        self.bar.n = update
        if shown:
            self.bar.set_postfix(shown, refresh=False)
        self.bar.update(0)

    def say(self, text: str) -> None:
        """A line for people, above the progress line."""
        if not self.quiet:
            tqdm.write(text, file=self.talk)

    def close(self) -> None:
        self.bar.close()
        if self._file is not None:
            with contextlib.suppress(OSError):  # what cannot be written was complained about by `write`
                self._file.close()
        if self.events is not None:
            self.events.close()


def _is_known(line: bytes, update: int, validated: Collection[int]) -> bool:
    """Whether a line of the log is of the past of a checkpoint."""
    try:
        entry = json.loads(line)
        kind, at = entry["kind"], entry["update"]
        if at > update or kind == "final":  # the model is chosen after the last checkpoint
            return False
        return kind != "valid" or at in validated
    except (ValueError, KeyError, TypeError, RecursionError):
        return False  # the line that a kill cut short


class _Talk:
    """Standard error, for a run that goes on when nobody can hear it: the terminal is gone, the disk behind it full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def _events(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MachineError(
            "train.tensorboard: the tensorboard package is not installed. Install the extra: "
            "pip install nmt[tensorboard]."
        ) from None
    return SummaryWriter(str(folder / "tensorboard"))
