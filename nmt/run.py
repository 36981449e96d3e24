"""The run folder: what lies in it, who may write to it, and the model that translation takes from it.

RUN/  recipe.yaml  subwords.json  data.json  log.jsonl  lock
      report.html  README.md         what nmt-train tells of the run, and the model card
      checkpoints/update-00012000/   what training resumes from
      checkpoints/damaged-update-…/  what it could not resume from, set aside
      model/                         the model that translation uses, chosen when training ends
"""

import errno
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nmt import checkpoint
from nmt.data.subwords import PAD, Subwords
from nmt.errors import MachineError, NmtError, RunError
from nmt.files import RECIPE, check_is_run, is_run, lock_file, sha256_of
from nmt.models.base import TranslationModel
from nmt.models.build import Undrawn, build_model
from nmt.recipe.options import Recipe
from nmt.recipe.places import RUN_DATA
from nmt.recipe.reader import read_recipe

# Keys of data.json beside the fingerprints: subwords that most source lines of training have at most; characters of a
# target for one of its source, by target language; shares of source lines by how they are written, see `data/text.py`;
# and the version of nmt that trained the run last.
USUAL_SRC_LEN, USUAL_RATIOS, SRC_STYLE, VERSION = "usual_src_len", "usual_ratios", "src_style", "nmt"

# The user named a place that is not theirs; every other failure is the machine's.
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT}


def unwritable(path: Path, what: str, error: OSError) -> NmtError:
    """The error to raise where something of a run cannot be written. what: says so."""
    kind, advice = (
        (RunError, "Make it a folder that can be written to")
        if error.errno in _NOT_ALLOWED
        else (MachineError, "Free some space there")
    )
    return kind(f"{path}: {what}: {error.strerror}. {advice}, or name another run folder with --train.out.")


class Newest(NamedTuple):
    """Result of `newest_whole`: a checkpoint or None, its state, and the complaints about newer, damaged ones."""

    folder: Path | None
    state: dict[str, Any]
    damaged: dict[Path, str]


class Run:
    """A run folder. Nothing is read before it is asked for."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.recipe_file = self.folder / RECIPE
        self.subwords_file = self.folder / "subwords.json"
        self.data_file = self.folder / RUN_DATA
        self.log_file = self.folder / "log.jsonl"
        self.checkpoints = self.folder / "checkpoints"
        self.model_folder = self.folder / "model"
        self.ctranslate2_file = self.folder / "model.bin"  # of a folder that was exported for it
        self.lock_path = self.folder / "lock"
        self._held: os.stat_result | None = None

    @property
    def exists(self) -> bool:
        """Return whether a run was started here."""
        return is_run(self.folder)

    @property
    def begun(self) -> bool:
        """Return whether anything was saved here; a run that saved nothing begins anew."""
        return self.exists and bool(self.updates() or self.model_folder.exists())

    def recipe(self) -> Recipe:
        """The resolved recipe of the run."""
        check_is_run(self.folder)
        return read_recipe(self.recipe_file)

    def usual_src_len(self) -> int | None:
        """Entry of data.json under USUAL_SRC_LEN; None for a run that was begun before there was one."""
        length = self._told_of_data().get(USUAL_SRC_LEN)
        return length if isinstance(length, int) and length > 0 else None

    def usual_ratios(self) -> dict[str, float]:
        """Entry of data.json under USUAL_RATIOS; empty for a run that was begun before there was one."""
        return {name: ratio for name, ratio in self._numbers(USUAL_RATIOS).items() if ratio > 0}

    def src_style(self) -> dict[str, float]:
        """Entry of data.json under SRC_STYLE; empty for a run that was begun before there was one."""
        return self._numbers(SRC_STYLE)

    def _numbers(self, key: str) -> dict[str, float]:
        found = self._told_of_data().get(key)
        known = found if isinstance(found, dict) else {}
        return {name: number for name, number in known.items() if isinstance(number, float)}

    def subwords(self) -> Subwords:
        """The vocabulary of the run. Raises RunError for another than that which it was trained with."""
        check_is_run(self.folder)
        found, trained = Subwords.load(self.subwords_file), self._told_of_data().get("subwords")
        if trained not in (None, found.sha256):
            raise RunError(
                f"{self.subwords_file}: its fingerprint is {found.sha256[:12]}, but the run was trained with "
                f"{trained[:12] if isinstance(trained, str) else trained}, says {self.data_file.name}: the file was "
                "changed, or is another run's. Get it back from a copy of the run or from the data it was trained on."
            )
        return found

    def _told_of_data(self) -> dict[str, Any]:
        """Return what `training/launch.py` noted of the data; nothing for a model without it, as exported ones are."""
        known = checkpoint.read_json(self.data_file) if self.data_file.exists() else {}
        return known if isinstance(known, dict) else {}

    def updates(self) -> list[int]:
        """Updates of the checkpoints in the folder, oldest first. None of them is verified yet."""
        if not self.checkpoints.is_dir():
            return []
        found = (checkpoint.update_of(path) for path in self.checkpoints.iterdir() if path.is_dir())
        return sorted(update for update in found if update is not None)

    def goes_on(self) -> bool:
        """Return whether training went on, to another end, after it had chosen a final model."""
        file = self.model_folder / checkpoint.STATE
        chosen = checkpoint.read_json(file) if file.is_file() else None
        update = chosen.get("update") if isinstance(chosen, dict) else None
        return isinstance(update, int) and update < max(self.updates(), default=0)

    def checkpoint(self, update: int) -> Path:
        """Folder of the checkpoint at an update."""
        return self.checkpoints / checkpoint.name_of(update)

    def newest_whole(self, needed: Iterable[str] = ()) -> Newest:
        """The newest checkpoint that verifies, and what is wrong with those that are newer.

        needed: files that it must have beside the model and the state. Raises NewerFormat rather than pass over what a
        newer nmt wrote.
        """
        damaged: dict[Path, str] = {}
        for update in reversed(self.updates()):
            folder = self.checkpoint(update)
            try:
                return Newest(folder, checkpoint.verify(folder, needed), damaged)
            except checkpoint.NewerFormat:
                raise
            except RunError as error:
                damaged[folder] = str(error)
        return Newest(None, {}, damaged)

    def tidy(self) -> None:
        """Undo what killed processes left half-done. Only for who holds the lock."""
        for parent in filter(Path.is_dir, (self.checkpoints, self.folder)):
            checkpoint.recover(parent)
            for path in parent.glob(".*.tmp"):
                if path.is_file():
                    path.unlink(missing_ok=True)

    def load_model(
        self, device: torch.device, name: str | None = None, subwords: Subwords | None = None
    ) -> tuple[TranslationModel, str]:
        """The model in eval mode with verified weights, and where they are from.

        name: a checkpoint's folder name; by default the model chosen at the end of training, and before that the
        best checkpoint so far, or the newest if none was scored. subwords: those of the run, if they are read already.
        """
        recipe, subwords = self.recipe(), subwords or self.subwords()
        folder = self.weights_folder(name)
        checkpoint.verify(folder)
        with Undrawn():
            model = build_model(recipe.model, subwords.src.n_vocab, subwords.trg.n_vocab, PAD)
        checkpoint.load_weights(model, checkpoint.load_tensors(folder, checkpoint.MODEL), str(folder))
        return model.to(device).eval(), folder.name

    def fingerprint(self, name: str | None = None) -> str:
        """Return what `load_model` would load, as a digest of the manifest of its weights and of the vocabulary."""
        check_is_run(self.folder)
        manifest = self.weights_folder(name) / checkpoint.MANIFEST
        if not manifest.is_file():
            checkpoint.verify(manifest.parent)  # which says what is wrong with it
        return f"{sha256_of(manifest)} {sha256_of(self.subwords_file)}"

    def weights_folder(self, name: str | None = None) -> Path:
        """Return the path of the weights that `load_model` takes; they are not verified yet."""
        if name is not None:
            candidates = {path.name: path for path in [self.model_folder, *map(self.checkpoint, self.updates())]}
            if name not in candidates:
                raise RunError(f"{self.folder}: no checkpoint {name!r}; there are: {', '.join(candidates) or 'none'}.")
            return candidates[name]
        if self.model_folder.is_dir():
            return self.model_folder
        folder, state, damaged = self.newest_whole()
        if folder is None:
            if self.ctranslate2_file.is_file():
                raise RunError(
                    f"{self.folder} is a model of CTranslate2, which only CTranslate2 reads: name the run that was "
                    "exported, or see docs/export.md."
                )
            wrong = "; ".join(damaged.values()) or "nothing was saved yet"
            train = shlex.join(["nmt-train", str(self.folder)])
            raise RunError(f"{self.folder}: no checkpoint to translate with ({wrong}). Train first: {train}")
        best = state.get("best_update")
        return self.checkpoint(best) if best in self.updates() else folder

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for one training process; it is let go when the process dies, however it dies.

        Raises RunError naming the process that has it, or saying that the folder cannot be written to.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = self.lock_path.open("a+b", buffering=0)
        except OSError as error:
            raise unwritable(self.folder, "the run folder cannot be written to", error) from None
        with file:
            try:
                lock_file(file.fileno())
            except (BlockingIOError, PermissionError):  # the latter is what Windows says
                file.seek(0)
                holder = file.read().decode("utf-8", "replace").strip() or "another process"
                raise RunError(
                    f"{self.folder} is in use by {holder}. Wait for it, or train into another folder."
                ) from None
            except OSError as error:  # some network disks have no locks
                print(f"{self.folder}: {error.strerror}: nothing keeps another process from it", file=sys.stderr)
            self._held = os.fstat(file.fileno())
            started = time.strftime("%Y-%m-%d %H:%M:%S")
            try:
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()} since {started}\n".encode())
            except OSError as error:
                raise unwritable(self.lock_path, "the lock of the run folder cannot be written", error) from None
            yield

    def must_be_held(self) -> None:
        """Raise MachineError if the folder that this process locked is no longer what has its name."""
        assert self._held is not None, "ask only while the lock is held"
        try:
            same = os.path.samestat(self._held, self.lock_path.stat())
        except OSError:
            same = False
        if not same:
            raise MachineError(
                f"{self.folder} was removed or replaced while it was in use, so nothing more is written to it. What "
                "was saved in it is where it was moved to, if it was moved."
            )
