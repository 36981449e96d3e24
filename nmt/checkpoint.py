"""A checkpoint: a folder of safetensors and JSON files, written atomically.

    update-00012000/  model.safetensors  optimizer.safetensors  ema.safetensors  state.json  manifest.json

It is written under a temporary name, every file and the folder are synced, and one rename commits it. The manifest has
the size and SHA-256 of every file; loading checks them. Nothing is pickled. `run.py` knows where checkpoints are.
Temporary folders in the same place, which a killed process may leave, are .NAME.new.tmp (being written), .NAME.old.tmp
(replaced) and .NAME.gone.tmp (being deleted).
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nmt.errors import MachineError, NmtError, RunError
from nmt.files import parse_json, put_in_place, sha256_of, sync_folder

FORMAT = 1
MODEL, OPTIMIZER, EMA = "model.safetensors", "optimizer.safetensors", "ema.safetensors"
STATE, MANIFEST = "state.json", "manifest.json"
_MAX_JSON = 64 << 20  # bytes


class NewerFormat(NmtError):
    """Raised for a checkpoint that a newer version of this program wrote. It is not damaged, so it is no RunError."""


def name_of(update: int) -> str:
    """Folder name of the checkpoint at an update."""
    return f"update-{update:08d}"


def update_of(folder: Path) -> int | None:
    """Update number of a checkpoint folder; None if it is no checkpoint."""
    match = re.fullmatch(r"update-(\d{8,})", folder.name)
    return int(match[1]) if match else None


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name. A shared parameter occurs once."""
    names = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    return {name: tensor.detach() for name, tensor in model.state_dict().items() if name in names}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Copy weights into a model built from the same recipe. Shared matrices stay shared. where: source of the weights,
    for the message. Raises RunError naming weights that are missing, unknown or of another shape."""
    targets = weights_of(model)
    problems = [f"{name} is missing" for name in targets.keys() - weights.keys()]
    problems += [f"{name} is not in the model" for name in weights.keys() - targets.keys()]
    for name in targets.keys() & weights.keys():
        found, expected = tuple(weights[name].shape), tuple(targets[name].shape)
        if found != expected:
            problems.append(f"{name} is {found}, the model expects {expected}")
    if problems:
        shown = "; ".join(sorted(problems)[:5])
        raise RunError(f"{where}: the weights do not fit the recipe's model: {shown}. Was recipe.yaml edited?")
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(weights[name])


def save(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    """Write a checkpoint and commit it.

    tensors: file name -> name -> tensor. state: content of state.json. An existing checkpoint of this name is replaced.
    Raises MachineError for weights that are not finite, and when the disk is full or fails. In both cases an existing
    checkpoint is untouched.
    """
    for file in (MODEL, EMA):
        for name, tensor in tensors.get(file, {}).items():
            if not bool(torch.isfinite(tensor).all()):
                raise MachineError(
                    f"{folder}: not written, because {name} holds numbers that are not finite. Earlier checkpoints "
                    "are untouched. Start a new run with a lower learning rate, a longer optim.warmup, optim.clip, or "
                    "in fp32."
                )
    temporary = folder.with_name(f".{folder.name}.new.tmp")
    try:
        if not folder.parent.exists():
            folder.parent.mkdir()  # without parents: a removed run folder must not come back in part
            sync_folder(folder.parent.parent)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for file, tensor_of in tensors.items():
            save_file({name: tensor.contiguous() for name, tensor in tensor_of.items()}, temporary / file)
        write_json(temporary / STATE, {"format": FORMAT, **state})
        files = {}
        for path in sorted(temporary.iterdir()):
            shutil.copymode(temporary / STATE, path)  # safetensors lets only the owner read its files
            files[path.name] = {"size": path.stat().st_size, "sha256": sha256_of(path)}
        write_json(temporary / MANIFEST, {"format": FORMAT, "files": files})
        put_in_place(temporary, folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise MachineError(
            f"{folder}: the checkpoint could not be written: {error}. Earlier checkpoints are untouched. Free some "
            "space or repair the disk, and give the same command again."
        ) from error


def recover(parent: Path) -> None:
    """Finish or undo what a killed process left in a folder of checkpoints. The caller must hold the lock."""
    for path in parent.iterdir():
        if match := re.fullmatch(r"\.(.+)\.(new|old|gone)\.tmp", path.name):
            name, kind = match.groups()
            if kind == "old" and not (parent / name).exists():
                os.replace(path, parent / name)
            else:
                shutil.rmtree(path, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that `read_json` reads. It is not synced to the disk."""
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Context manager: raise RunError for a missing or damaged file. A PermissionError is no damage, and stays."""
    try:
        yield
    except PermissionError:
        raise
    except OSError as error:
        raise RunError(f"{path}: missing, or cannot be read: {error.strerror or error}.") from None
    except (ValueError, SafetensorError) as error:
        raise RunError(f"{path}: damaged, or not written by nmt-train: {error}.") from None


def read_json(path: Path) -> Any:
    """Read a JSON file that this program wrote. Raises RunError if it is missing, damaged, or too large to be one."""
    with _reading(path):
        if path.stat().st_size > _MAX_JSON:
            raise RunError(f"{path}: {path.stat().st_size:,} bytes are too many: nmt did not write this file.")
        return parse_json(path.read_bytes())


def verify(folder: Path, needed: Iterable[str] = ()) -> dict[str, Any]:
    """Check every file of a checkpoint against its manifest and return its state.

    Raises RunError naming the first file that is missing, truncated or changed, and NewerFormat if a newer
    nmt wrote the checkpoint. needed: files that the manifest must list, besides the model and the state.
    """
    manifest = read_json(folder / MANIFEST)
    version, files = (manifest.get("format"), manifest.get("files")) if isinstance(manifest, dict) else (None, None)
    if isinstance(version, int) and version > FORMAT:
        raise NewerFormat(
            f"{folder}: written in format {version} by a newer nmt; this one reads format {FORMAT}. Upgrade nmt."
        )
    if version != FORMAT or not isinstance(files, dict):
        raise RunError(f"{folder / MANIFEST}: damaged: no list of files in format {FORMAT}.")
    for name in (MODEL, STATE, *needed):
        if name not in files:
            raise RunError(f"{folder / name}: missing, and not in the manifest.")
    for name, expected in files.items():
        path = folder / name
        if name not in (MODEL, OPTIMIZER, EMA, STATE) or path.is_symlink() or not path.is_file():
            raise RunError(f"{path}: missing, or not a regular file of a checkpoint, though the manifest lists it.")
        with _reading(path):
            found = {"size": path.stat().st_size, "sha256": sha256_of(path)}
        if found != expected:
            raise RunError(f"{path}: its size or SHA-256 differs from the manifest: truncated, damaged or replaced.")
    state: dict[str, Any] = read_json(folder / STATE)
    if not isinstance(state, dict) or not isinstance(state.get("update"), int):
        raise RunError(f"{folder / STATE}: damaged: the update number is missing.")
    if update_of(folder) not in (None, state["update"]):
        raise RunError(f"{folder}: holds the files of update {state['update']}: it was renamed or replaced.")
    return state


def load_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """Load the tensors of one file of a verified checkpoint, on the CPU."""
    with _reading(folder / name):
        return load_file(folder / name)


def average(folders: Sequence[Path], file: str = MODEL) -> dict[str, Tensor]:
    """Average the tensors of a file of checkpoints, in fp64. Those of a single checkpoint are returned bit for bit."""
    total: dict[str, Tensor] = {}
    for folder in folders:
        weights = load_tensors(folder, file)
        for name, tensor in weights.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(folders)).to(weights[name].dtype) for name, tensor in total.items()}


def remove(folder: Path) -> None:
    """Delete a checkpoint. It is renamed first, so that a partial checkpoint is never visible. Files that cannot be
    deleted, for example while another process has them open on a network disk, are left to `recover`."""
    renamed = folder.with_name(f".{folder.name}.gone.tmp")
    shutil.rmtree(renamed, ignore_errors=True)
    os.replace(folder, renamed)
    shutil.rmtree(renamed, ignore_errors=True)


def checkpoints_to_delete(score_of: Mapping[int, float | None], *, keep_last: int, keep_best: int) -> list[int]:
    """Return the checkpoints to delete. score_of: {update: score, or None if it was not validated}, higher is better.

    The newest `keep_last` and the best `keep_best` stay; of equal scores the older one wins.
    """
    newest = sorted(score_of, reverse=True)[:keep_last]
    scored = {update: score for update, score in score_of.items() if score is not None}
    best = sorted(scored, key=lambda update: (-scored[update], update))[:keep_best]
    return sorted(set(score_of) - set(newest) - set(best))
