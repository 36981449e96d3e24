"""What training says: log.jsonl for machines, one progress line for people, TensorBoard if asked for.

Every line of log.jsonl is one JSON object with `kind` and `update`:
    start   versions, device, precision, parameters, fingerprint of the data
    train   loss, learning rate, gradient norm, target tokens a second, epoch: means since the line before
    memory  memory ran out: how many times so far, and the cost from which on batches are halved
    valid   loss, perplexity, accuracy, bleu, chrf with signatures, examples
    final   the candidates for the final model with their scores, and the one chosen
"""

import json
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nmt.errors import MachineError


class Record:
    """The log of a run. Silent when `quiet`: ranks other than the first."""

    def __init__(self, path: Path, *, n_update: int, quiet: bool = False, tensorboard: bool = False) -> None:
        self.path = path
        self.quiet = quiet
        self.bar = tqdm(total=n_update, unit="upd", dynamic_ncols=True, disable=quiet, file=sys.stderr, mininterval=1)
        self.events = _events(path.parent) if tensorboard and not quiet else None

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
        """Append one line to log.jsonl; numbers go to TensorBoard too."""
        if self.quiet:
            return
        line = json.dumps({"kind": kind, "update": update, **fields}, ensure_ascii=False)
        with self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(line + "\n")
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
            tqdm.write(text, file=sys.stderr)

    def close(self) -> None:
        self.bar.close()
        if self.events is not None:
            self.events.close()


def _events(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MachineError(
            "train.tensorboard: the tensorboard package is not installed. Install the extra: "
            "pip install nmt[tensorboard]."
        ) from None
    return SummaryWriter(str(folder / "tensorboard"))
