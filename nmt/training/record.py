"""What training says: log.jsonl for machines, one progress line for people, and whatever else takes the log's lines.

Every line of log.jsonl is one JSON object with `kind` and `update`; docs/reference.md explains every field:
    init    the run that the first weights are from, and which were loaded, grown, skipped, unused
    start   versions, device, precision, parameters, fingerprint of the data
    train   loss, learning rate, gradient norm, target tokens a second, epoch: means since the line before
    memory  memory ran out: how many times so far, and the cost from which on batches are halved
    valid   loss, perplexity, accuracy, bleu, chrf with signatures, examples
    final   the candidates for the final model with their scores, and the one chosen
    time    where the time went
"""

import contextlib
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, TextIO

from nmt.progress import Bar
from nmt.recipe.options import Recipe
from nmt.training.log.sinks import JsonLines, Sink, sinks_of


class Record:
    """The log of a run. Silent when `quiet`: ranks other than the first."""

    def __init__(self, path: Path, *, n_update: int, quiet: bool = False) -> None:
        self.path = path
        self.quiet = quiet
        self.talk = _Talk(sys.stderr)
        self.bar = Bar(
            total=n_update,
            unit="upd",
            dynamic_ncols=True,
            disable=quiet,
            file=self.talk,
            mininterval=1,
            delay=0,
            # The time left is ours to tell: tqdm knows of no validations to come.
            bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_fmt}{postfix}]",
        )
        self.lines = JsonLines(path)
        self.sinks: list[Sink] = [self.lines]

    def tell_others(self, recipe: Recipe, since: int) -> None:
        """Send all lines from here on to what else the recipe names, of a run that goes on from update `since`."""
        if not self.quiet:
            self.sinks += sinks_of(recipe, self.path.parent, since, self.say)

    def begin(self) -> None:
        """Begin the log of a new run: what an attempt wrote that was killed before its first checkpoint goes."""
        if not self.quiet and self.path.exists():
            self.lines.replace(b"")

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
            self.lines.replace(known)

    def write(self, kind: str, update: int, **fields: Any) -> None:
        """Append one line to log.jsonl, and tell the others."""
        if not self.quiet:
            for sink in self.sinks:
                sink.write(kind, update, fields)

    def progress(self, update: int, **shown: str) -> None:
        """Move the progress line."""
        self.bar.n = update
        if shown:
            self.bar.set_postfix(shown, refresh=False)
        self.bar.update(0)

    def say(self, text: str) -> None:
        """A line for people, above the progress line."""
        if not self.quiet:
            Bar.write(text, file=self.talk)

    def close(self) -> None:
        self.bar.close()
        for sink in self.sinks:
            sink.close()


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
