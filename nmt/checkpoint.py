"""A checkpoint: a folder of safetensors and JSON that is there whole or not at all.

    update-00012000/  model.safetensors  optimizer.safetensors  ema.safetensors  state.json  manifest.json

It is written beside its place, every file and the folder are synced, and one rename commits it. The manifest has
the size and SHA-256 of every file; loading checks them. Nothing is pickled. `run.py` knows where checkpoints lie.
Beside them lie, for a moment or after a kill, .NAME.new.tmp (being written), .NAME.old.tmp (replaced)
and .NAME.gone.tmp (being deleted).
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nmt.errors import MachineError, RunError, TrainingError
from nmt.files import parse_json, put_in_place, sha256_of, sync_file, sync_folder

FORMAT = 1
MODEL, OPTIMIZER, EMA = "model.safetensors", "optimizer.safetensors", "ema.safetensors"
STATE, MANIFEST = "state.json", "manifest.json"
_NAME = re.compile(r"^update-(\d{8,})$")
_HIDDEN = re.compile(r"^\.(.+)\.(new|old|gone)\.tmp$")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MAX_JSON, _MAX_MANIFEST = 64 << 20, 1 << 20


class NewerFormat(RunError):
    """The checkpoint is not damaged: a newer version of this program wrote it."""


def name_of(update: int) -> str:
    """Name of the folder of the checkpoint at an update."""
    return f"update-{update:08d}"


def update_of(folder: Path) -> int | None:
    """The update of a checkpoint's folder; None if it is not one."""
    match = _NAME.match(folder.name)
    return int(match[1]) if match else None


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, each shared one once, and the buffers that belong to the state: name -> tensor."""
    kept = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    return {name: tensor.detach() for name, tensor in model.state_dict().items() if name in kept}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Copy weights into a model built from the same recipe. Shared matrices stay shared.

    Raises RunError naming what is missing, left over or of another shape.
    """
    wanted = weights_of(model)
    wrong = [f"{name} is missing" for name in wanted.keys() - weights.keys()]
    wrong += [f"{name} is not in the model" for name in weights.keys() - wanted.keys()]
    for name in wanted.keys() & weights.keys():
        found, expected = tuple(weights[name].shape), tuple(wanted[name].shape)
        if found != expected:
            wrong.append(f"{name} is {found}, the model wants {expected}")
    if wrong:
        shown = "; ".join(sorted(wrong)[:5])
        raise RunError(f"{where}: the weights do not fit the recipe's model: {shown}. Was recipe.yaml edited?")
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(weights[name])


def save(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    """Write a checkpoint and commit it.

    tensors: file name -> name -> tensor. state: what goes into state.json. What has the name is replaced in one step.
    Raises TrainingError for weights that are not finite, and MachineError when the disk is full or fails; in both cases
    what was there before is untouched.
    """
    for file in (MODEL, EMA):
        for name, tensor in tensors.get(file, {}).items():
            if not bool(torch.isfinite(tensor).all()):
                raise TrainingError(
                    f"{folder}: not written, because {name} holds numbers that are not finite. Earlier checkpoints "
                    "are untouched. Train anew with a lower optim.lr, a longer optim.warmup, optim.clip, or in fp32."
                )
    beside = _hidden(folder, "new")
    try:
        if not folder.parent.exists():
            folder.parent.mkdir()  # no parents: a run folder that was removed is not made again in part
            sync_folder(folder.parent.parent)
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        for name, named in tensors.items():
            save_file({key: tensor.contiguous() for key, tensor in named.items()}, beside / name)
        _write_json(beside / STATE, {"format": FORMAT, **state})
        files = {}
        for path in sorted(beside.iterdir()):
            shutil.copymode(beside / STATE, path)  # safetensors makes its files for the owner alone
            files[path.name] = {"size": path.stat().st_size, "sha256": sha256_of(path)}
            sync_file(path)
        _write_json(beside / MANIFEST, {"format": FORMAT, "files": files})
        sync_file(beside / MANIFEST)
        sync_folder(beside)
        put_in_place(beside, folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        what = "no space left on device" if full else str(error)
        raise MachineError(
            f"{folder}: the checkpoint could not be written: {what}. Earlier checkpoints are untouched; free some "
            "space or mend the disk and give the same command again."
        ) from error


def _hidden(folder: Path, what: str) -> Path:
    """A name beside a checkpoint under which nobody takes it for one."""
    return folder.with_name(f".{folder.name}.{what}.tmp")


def recover(parent: Path) -> None:
    """Finish or undo what a killed process left half-done in a folder of checkpoints. For who holds the lock."""
    for path in parent.iterdir():
        if match := _HIDDEN.match(path.name):
            name, what = match.groups()
            if what == "old" and not (parent / name).exists():
                os.replace(path, parent / name)
            else:
                shutil.rmtree(path, ignore_errors=True)


def _write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


def read_json(path: Path, largest: int = _MAX_JSON) -> Any:
    """A JSON file of ours. Raises RunError when it is damaged or too large to be one."""
    try:
        if path.stat().st_size > largest:
            raise RunError(f"{path}: {path.stat().st_size:,} bytes is no file of ours.")
        raw = path.read_bytes()
        if not raw.endswith(b"\n"):
            raise RunError(f"{path}: damaged: its end is missing.")
        return parse_json(raw)
    except FileNotFoundError:
        raise RunError(f"{path}: missing.") from None
    except ValueError as error:
        raise RunError(f"{path}: damaged: {error}.") from None
    except PermissionError:
        raise
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}.") from None


def verify(folder: Path, needed: Iterable[str] = ()) -> dict[str, Any]:
    """Check every file of a checkpoint against its manifest and return its state.

    Raises RunError naming the first file that is missing, cut, changed or strange; a NewerFormat if a newer nmt wrote
    it. needed: files that must be among those of the manifest, beside the model and the state.
    """
    files = _files_of(folder)
    for name, entry in files.items():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise RunError(f"{path}: missing or no plain file, though the manifest lists it.")
        size = path.stat().st_size
        if size != entry["size"]:
            raise RunError(f"{path}: {size:,} bytes, the manifest says {entry['size']:,}: it was cut or replaced.")
        try:
            digest = sha256_of(path)
        except PermissionError:  # a file that we may not read is not damaged
            raise
        except OSError as error:
            raise RunError(f"{path}: cannot be read: {error.strerror}.") from None
        if digest != entry["sha256"]:
            raise RunError(f"{path}: its SHA-256 is not that of the manifest: the file was damaged or replaced.")
    for name in {MODEL, OPTIMIZER, EMA, STATE} - files.keys():
        if (folder / name).exists():
            raise RunError(f"{folder / name}: not in the manifest: it was put here, or the manifest was changed.")
    for name in (MODEL, STATE, *needed):
        if name not in files:
            raise RunError(f"{folder / name}: missing, and missing in the manifest.")
    state = read_json(folder / STATE)
    if not isinstance(state, dict) or type(state.get("update")) is not int:
        raise RunError(f"{folder / STATE}: damaged: it names no update.")
    if update_of(folder) not in (None, state["update"]):
        raise RunError(f"{folder}: holds the files of update {state['update']}: it was renamed or replaced.")
    return state


def _files_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what the manifest of a checkpoint lists, after checking the manifest itself: {name: {size, sha256}}."""
    path = folder / MANIFEST
    if folder.is_symlink() or path.is_symlink():
        raise RunError(f"{folder}: is a link or has one for a manifest; the checkpoint is not one of ours.")
    manifest = read_json(path, _MAX_MANIFEST)
    number, files = (manifest.get("format"), manifest.get("files")) if isinstance(manifest, dict) else (None, None)
    if type(number) is int and number > FORMAT:
        raise NewerFormat(
            f"{folder}: written in format {number} by a newer nmt; this one reads format {FORMAT}. Upgrade nmt."
        )
    if type(number) is not int or number != FORMAT or not files or not isinstance(files, dict):
        raise RunError(f"{path}: damaged: no list of files in format {FORMAT}.")
    for name, entry in files.items():
        if not isinstance(entry, dict) or type(entry.get("size")) is not int or type(entry.get("sha256")) is not str:
            raise RunError(f"{path}: damaged: {name} is listed without its size and SHA-256.")
        if not _PLAIN_NAME.fullmatch(name):
            raise RunError(f"{folder}: {name!r} is not a plain file name; the checkpoint is not one of ours.")
    return dict(files)


def load_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """The tensors of one file of a checkpoint that `verify` has passed, on the CPU."""
    try:
        tensors: dict[str, Tensor] = load_file(folder / name)
        return tensors
    except (OSError, SafetensorError) as error:
        raise RunError(f"{folder / name}: not a safetensors file: {error}.") from None


def average(folders: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of one or more checkpoints, summed in fp64. One is its own average, bit for bit."""
    total: dict[str, Tensor] = {}
    for folder in folders:
        weights = load_tensors(folder, MODEL)
        for name, tensor in weights.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(folders)).to(weights[name].dtype) for name, tensor in total.items()}


def remove(folder: Path) -> None:
    """Delete a checkpoint. It loses its name first, so that no moment shows half of one.

    What cannot be deleted then, as where another process has it open on a network disk, is left to `recover`.
    """
    doomed = _hidden(folder, "gone")
    shutil.rmtree(doomed, ignore_errors=True)
    os.replace(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def checkpoints_to_delete(score_of: Mapping[int, float | None], *, keep_last: int, keep_best: int) -> list[int]:
    """Return the checkpoints to delete. score_of: {update: score or None if it was not measured}, higher is better.

    The newest `keep_last` and the best `keep_best` stay; of equal scores the older one is the better.
    """
    newest = sorted(score_of, reverse=True)[:keep_last]
    scored = {update: score for update, score in score_of.items() if score is not None}
    best = sorted(scored, key=lambda update: (-scored[update], update))[:keep_best]
    return sorted(set(score_of) - set(newest) - set(best))
