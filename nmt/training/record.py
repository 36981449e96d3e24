"""What training says: log.jsonl for machines, one progress line for people, and whatever else takes the log's lines.

Every line of log.jsonl is one JSON object with `kind` and `update`; docs/log.md explains every field:
    start   versions, device, precision, parameters, fingerprint of the data
    train   loss, learning rate, gradient norm, target tokens a second, epoch: means since the line before
    valid   loss, perplexity, accuracy, bleu, chrf with signatures, examples
    final   the candidates for the final model with their scores, and the one chosen
    time    where the time went
"""

import json
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nmt.recipe.options import Recipe
from nmt.training.sinks import JsonLines, Sink, sinks_of


class Record:
    """The log of a run. Silent when `quiet`: ranks other than the first."""

    def __init__(self, path: Path, *, n_update: int, quiet: bool = False) -> None:
        self.path = path
        self.quiet = quiet
        self.bar = tqdm(
            total=n_update,
            unit="upd",
            dynamic_ncols=True,
            disable=quiet,
            file=sys.stderr,
            mininterval=1,
            # The time left is ours to tell: tqdm knows of no validations to come.
            bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_fmt}{postfix}]",
        )
        self.sinks: list[Sink] = [JsonLines(path)]

    def tell_others(self, recipe: Recipe, since: int) -> None:
        """Send all lines from here on to what else the recipe names, of a run that goes on from update `since`."""
        if not self.quiet:
            self.sinks += sinks_of(recipe, self.path.parent, since, self.say)

    def go_on(self, update: int) -> None:
        """Continue the log of a resumed run: what was written after its checkpoint is taken back."""
        self.bar.reset()
        self.bar.initial = self.bar.n = self.bar.last_print_n = update
        if self.quiet or not self.path.exists():
            return
        kept = []
        for line in self.path.read_bytes().split(b"\n"):
            try:
                if json.loads(line)["update"] <= update:
                    kept.append(line)
            except (ValueError, KeyError, TypeError):
                continue  # the line that a kill cut short
        self.path.write_bytes(b"".join(line + b"\n" for line in kept))

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
            tqdm.write(text, file=sys.stderr)

    def close(self) -> None:
        self.bar.close()
        for sink in self.sinks:
            sink.close()
