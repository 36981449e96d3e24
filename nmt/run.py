"""The run folder: what lies in it, who may write to it, and the model that translation takes from it.

RUN/  recipe.yaml  subwords.json  log.jsonl  lock
      checkpoints/update-00012000/   what training resumes from
      model/                         the model that translation uses, chosen when training ends
"""

import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nmt import checkpoint
from nmt.data.subwords import PAD, Subwords
from nmt.errors import RunError
from nmt.models.base import TranslationModel
from nmt.models.build import build_model
from nmt.recipe.options import Recipe
from nmt.recipe.reader import load_resolved

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


class Run:
    """A run folder. Nothing is read before it is asked for."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.recipe_file = self.folder / "recipe.yaml"
        self.subwords_file = self.folder / "subwords.json"
        self.data_file = self.folder / "data.json"
        self.log_file = self.folder / "log.jsonl"
        self.checkpoints = self.folder / "checkpoints"
        self.model_folder = self.folder / "model"

    @property
    def exists(self) -> bool:
        """Whether a run was started here."""
        return self.recipe_file.is_file()

    def recipe(self) -> Recipe:
        """The resolved recipe of the run."""
        self._must_exist()
        return load_resolved(self.recipe_file)

    def subwords(self) -> Subwords:
        """The vocabulary of the run."""
        self._must_exist()
        return Subwords.load(self.subwords_file)

    def updates(self) -> list[int]:
        """Updates of the checkpoints in the folder, oldest first. None of them is verified yet."""
        if not self.checkpoints.is_dir():
            return []
        found = (checkpoint.update_of(path) for path in self.checkpoints.iterdir() if path.is_dir())
        return sorted(update for update in found if update is not None)

    def checkpoint(self, update: int) -> Path:
        """Folder of the checkpoint at an update."""
        return self.checkpoints / checkpoint.name_of(update)

    def newest_whole(self) -> tuple[Path, dict[str, Any]] | tuple[None, list[str]]:
        """The newest checkpoint that verifies, with its state; or None with what is wrong with each.

        The complaints about newer, damaged ones are in state["skipped"].
        """
        skipped: list[str] = []
        for update in reversed(self.updates()):
            folder = self.checkpoint(update)
            try:
                return folder, {**checkpoint.verify(folder), "skipped": skipped}
            except RunError as error:
                skipped.append(str(error))
        return None, skipped

    def tidy(self) -> None:
        """Remove what killed processes left half-written. Only for who holds the lock."""
        for parent in (self.checkpoints, self.folder):
            if parent.is_dir():
                for path in parent.iterdir():
                    if path.name.startswith(".") and path.name.endswith(".tmp"):
                        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def load_model(self, device: torch.device, name: str | None = None) -> tuple[TranslationModel, str]:
        """The model in eval mode with verified weights, and where they are from.

        name: a checkpoint's folder name; by default the model chosen at the end of training, and before that the
        best checkpoint so far, or the newest if none was scored.
        """
        recipe, subwords = self.recipe(), self.subwords()
        folder = self._weights_folder(name)
        checkpoint.verify(folder)
        model = build_model(recipe.model, subwords.src.n_vocab, subwords.trg.n_vocab, PAD)
        checkpoint.load_weights(model, checkpoint.load_tensors(folder, checkpoint.MODEL), str(folder))
        return model.to(device).eval(), folder.name

    def _weights_folder(self, name: str | None) -> Path:
        if name is not None:
            candidates = {path.name: path for path in [self.model_folder, *map(self.checkpoint, self.updates())]}
            if name not in candidates:
                raise RunError(f"{self.folder}: no checkpoint {name!r}; there are: {', '.join(candidates) or 'none'}.")
            return candidates[name]
        if self.model_folder.is_dir():
            return self.model_folder
        folder, state = self.newest_whole()
        if folder is None:
            wrong = "; ".join(state) or "nothing was saved yet"
            raise RunError(f"{self.folder}: no checkpoint to translate with ({wrong}). Train first: nmt-train RECIPE.")
        assert isinstance(state, dict)
        best = state.get("best_update")
        return self.checkpoint(best) if best in self.updates() else folder

    def _must_exist(self) -> None:
        if not self.exists:
            raise RunError(
                f"{self.folder} is not a run folder: there is no {self.recipe_file.name} in it. Name the folder that "
                "nmt-train wrote, runs/NAME."
            )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for one training process; it is let go when the process dies, however it dies.

        Raises RunError naming the process that has it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "lock"
        file = path.open("a+", encoding="utf-8", newline="\n")
        try:
            try:
                _lock_file(file.fileno())
            except OSError:
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise RunError(
                    f"{self.folder} is in use by {holder}. Wait for it, or train into another folder."
                ) from None
            file.seek(0)
            file.truncate()
            started = time.strftime("%Y-%m-%d %H:%M:%S")
            file.write(f"process {os.getpid()} on {socket.gethostname()} since {started}\n")
            file.flush()
            yield
        finally:
            file.close()


def _lock_file(handle: int) -> None:
    """Lock an open file or raise OSError. The system frees the lock when the process ends."""
    if sys.platform == "win32":
        os.lseek(handle, 1 << 30, os.SEEK_SET)  # far from the text, which others want to read
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
