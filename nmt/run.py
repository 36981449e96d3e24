"""The run folder: its files, its lock, and the weights that translation loads from it.

RUN/  recipe.yaml  subwords.json  data.json  log.jsonl  lock
      report.html  README.md         report of the run, and model card
      checkpoints/update-00012000/   checkpoints for resuming
      checkpoints/damaged-update-…/  damaged checkpoints, renamed
      model/                         the final model, chosen when training ends
"""

import os
import shlex
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from nmt import checkpoint
from nmt.data.subwords import PAD, Subwords
from nmt.errors import MachineError, RunError, is_machine_error
from nmt.files import RECIPE, check_is_run, is_run, lock_file, sha256_of
from nmt.models.base import TranslationModel
from nmt.models.build import SkipInit, build_model
from nmt.recipe.options import Recipe
from nmt.recipe.places import RUN_DATA, SUBWORDS
from nmt.recipe.reader import read_recipe

# Keys of data.json besides the fingerprints: an upper bound on the subwords of most source lines in training; target
# characters per source character, by target language; shares of source lines by writing style, see `data/text.py`; and
# the version of nmt that last trained the run.
USUAL_SRC_LEN, USUAL_RATIOS, SRC_STYLE, VERSION = "usual_src_len", "usual_ratios", "src_style", "nmt"


def required_files(recipe: Recipe) -> tuple[str, ...]:
    """The files that a checkpoint must have for a run of this recipe to resume from it."""
    return (checkpoint.OPTIMIZER, checkpoint.EMA) if recipe.train.ema else (checkpoint.OPTIMIZER,)


class Run:
    """A run folder. Files are read only on demand."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.recipe_file = self.folder / RECIPE
        self.subwords_file = self.folder / SUBWORDS
        self.data_file = self.folder / RUN_DATA
        self.log_file = self.folder / "log.jsonl"
        self.checkpoints = self.folder / "checkpoints"
        self.model_folder = self.folder / "model"
        self.lock_path = self.folder / "lock"
        self._held: os.stat_result | None = None

    @property
    def has_weights(self) -> bool:
        """Return whether the run has a checkpoint or a final model. A run without either starts anew."""
        return is_run(self.folder) and bool(self.updates() or self.model_folder.exists())

    def recipe(self) -> Recipe:
        """The resolved recipe of the run."""
        check_is_run(self.folder)
        return read_recipe(self.recipe_file)

    def usual_src_len(self) -> int | None:
        """Entry of data.json under USUAL_SRC_LEN; None in a run of an earlier version."""
        length = self.data_facts().get(USUAL_SRC_LEN)
        return length if isinstance(length, int) and length > 0 else None

    def numbers(self, key: str) -> dict[str, float]:
        """Entry of data.json under USUAL_RATIOS or SRC_STYLE; empty in a run of an earlier version."""
        entry = self.data_facts().get(key)
        numbers = entry if isinstance(entry, dict) else {}
        return {name: number for name, number in numbers.items() if isinstance(number, float)}

    def subwords(self) -> Subwords:
        """The vocabulary of the run. Raises RunError if it is not the one that the run was trained with."""
        check_is_run(self.folder)
        subwords, expected = Subwords.load(self.subwords_file), self.data_facts().get("subwords")
        if expected not in (None, subwords.sha256):
            raise RunError(
                f"{self.subwords_file}: its fingerprint is {subwords.sha256[:12]}, but {self.data_file.name} says "
                f"that the run was trained with {str(expected)[:12]}: the file was changed, or belongs to another run. "
                "Restore it from a copy of the run or from the data it was trained on."
            )
        return subwords

    def data_facts(self) -> dict[str, Any]:
        """Content of data.json, which `training/launch.py` writes; {} for a model without it, as after an export."""
        facts = checkpoint.read_json(self.data_file) if self.data_file.exists() else {}
        return facts if isinstance(facts, dict) else {}

    def updates(self) -> list[int]:
        """Updates of the checkpoints in the folder, oldest first. The checkpoints are not verified."""
        if not self.checkpoints.is_dir():
            return []
        updates = (checkpoint.update_of(path) for path in self.checkpoints.iterdir() if path.is_dir())
        return sorted(update for update in updates if update is not None)

    def has_newer_checkpoints(self) -> bool:
        """Return whether training continued, to another end, after it had chosen the final model, which is intact."""
        update: int = checkpoint.read_json(self.model_folder / checkpoint.STATE)["update"]
        return update < max(self.updates(), default=0)

    def checkpoint(self, update: int) -> Path:
        """Folder of the checkpoint at an update."""
        return self.checkpoints / checkpoint.name_of(update)

    def newest_intact(self, needed: Iterable[str] = ()) -> tuple[dict[str, Any], dict[Path, str]]:
        """The state of the newest checkpoint that verifies, {} if none does, and the errors of newer ones.

        needed: files that it must have besides the model and the state. Raises NewerFormat for a checkpoint that a
        newer nmt wrote, instead of skipping it.
        """
        damaged: dict[Path, str] = {}
        for update in reversed(self.updates()):
            folder = self.checkpoint(update)
            try:
                return checkpoint.verify(folder, needed), damaged
            except RunError as error:
                damaged[folder] = str(error)
        return {}, damaged

    def tidy(self) -> None:
        """Clean up after killed processes. The caller must hold the lock."""
        for parent in filter(Path.is_dir, (self.checkpoints, self.folder)):
            checkpoint.recover(parent)
            for path in parent.glob(".*.tmp"):
                if path.is_file():
                    path.unlink(missing_ok=True)

    def load_model(
        self, device: torch.device, name: str | None = None, subwords: Subwords | None = None
    ) -> tuple[TranslationModel, str]:
        """The model in eval mode with verified weights, and the name of their folder.

        name: a checkpoint's folder name. The default is the final model, and before the end of training the best
        checkpoint so far, or the newest if none was scored. subwords: those of the run, if they are loaded already.
        """
        recipe, subwords = self.recipe(), subwords or self.subwords()
        folder = self.weights_folder(name)
        checkpoint.verify(folder)
        with SkipInit():
            model = build_model(recipe.model, subwords.src.n_vocab, subwords.trg.n_vocab, PAD)
        checkpoint.load_weights(model, checkpoint.load_tensors(folder, checkpoint.MODEL), str(folder))
        return model.to(device).eval(), folder.name

    def fingerprint(self, name: str | None = None) -> str:
        """Digests that identify the result of `load_model`: of the weights' manifest and of the vocabulary."""
        check_is_run(self.folder)
        manifest = self.weights_folder(name) / checkpoint.MANIFEST
        return f"{sha256_of(manifest)} {sha256_of(self.subwords_file)}"

    def weights_folder(self, name: str | None = None) -> Path:
        """Return the folder of the weights that `load_model` loads. They are not verified."""
        if name is not None:
            candidates = {path.name: path for path in [self.model_folder, *map(self.checkpoint, self.updates())]}
            if name not in candidates:
                raise RunError(f"{self.folder}: no checkpoint {name!r}; there are: {', '.join(candidates) or 'none'}.")
            return candidates[name]
        if self.model_folder.is_dir():
            return self.model_folder
        state, damaged = self.newest_intact()
        if not state:
            if (self.folder / "model.bin").is_file():
                raise RunError(
                    f"{self.folder} is a CTranslate2 model, which only CTranslate2 reads: name the run that was "
                    "exported, or see docs/export.md."
                )
            reason = "; ".join(damaged.values()) or "nothing was saved yet"
            train = shlex.join(["nmt-train", str(self.folder)])
            raise RunError(f"{self.folder}: no checkpoint to load ({reason}). Train first: {train}")
        best = state.get("best_update")
        return self.checkpoint(best if best in self.updates() else state["update"])

    @contextmanager
    def lock(self, say: Callable[[str], object] = print) -> Iterator[None]:
        """Lock the folder for one training process. The lock is released when the process ends, even if it is killed.

        A disk without locks is reported by `say`, and nothing is locked. Raises RunError naming the process that holds
        the lock, or if the folder cannot be written to.
        """
        with ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(self.lock_path.open("a+b", buffering=0))
                if not lock_file(file.fileno()):
                    say(f"{self.folder}: not locked, as its disk has no locks: start no second process in it")
                started = time.strftime("%Y-%m-%d %H:%M:%S")
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()} since {started}\n".encode())
            except BlockingIOError:
                file.seek(0)
                holder = file.read().decode("utf-8", "replace").strip() or "another process"
                raise RunError(
                    f"{self.folder} is in use by {holder}. Wait for it, or train into another folder."
                ) from None
            except OSError as error:
                kind = MachineError if is_machine_error(error) else RunError
                raise kind(
                    f"{self.lock_path}: the run folder cannot be written to: {error.strerror}. Free some space there, "
                    "make it a folder that can be written to, or name another run folder with --train.out."
                ) from None
            self._held = os.fstat(file.fileno())
            yield

    def check_lock(self) -> None:
        """Raise MachineError if the folder that this process locked was removed or replaced."""
        assert self._held is not None, "call it only while the lock is held"
        try:
            is_same = os.path.samestat(self._held, self.lock_path.stat())
        except OSError:
            is_same = False
        if not is_same:
            raise MachineError(
                f"{self.folder} was removed or replaced while it was in use, so nothing more is written to it. If the "
                "folder was moved, the saved files are in its new place."
            )
