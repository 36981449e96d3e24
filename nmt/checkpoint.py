"""A checkpoint: a folder of safetensors and JSON that is there whole or not at all.

    update-00012000/  model.safetensors  optimizer.safetensors  ema.safetensors  state.json  manifest.json

It is written beside its place, every file and the folder are synced, and one rename commits it. The manifest has
the size and SHA-256 of every file; loading checks them. Nothing is pickled. `run.py` knows where checkpoints lie.
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nmt.errors import MachineError, RunError
from nmt.files import sha256_of, sync_file, sync_folder

FORMAT = 1
MODEL, OPTIMIZER, EMA = "model.safetensors", "optimizer.safetensors", "ema.safetensors"
STATE, MANIFEST = "state.json", "manifest.json"
_NAME = re.compile(r"^update-(\d{8,})$")
_MAX_JSON = 64 << 20


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
    wrong += [
        f"{name} is {tuple(weights[name].shape)}, the model wants {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    if wrong:
        shown = "; ".join(sorted(wrong)[:5])
        raise RunError(f"{where}: the weights do not fit the recipe's model: {shown}. Was recipe.yaml edited?")
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(weights[name])


def save(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    """Write a checkpoint and commit it.

    tensors: file name -> name -> tensor. state: what goes into state.json. A whole checkpoint of that name is
    replaced. Raises MachineError, leaving nothing under the final name, when the disk is full or fails.
    """
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.new.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if beside.exists():
            shutil.rmtree(beside)
        beside.mkdir()
        for name, named in tensors.items():
            save_file({key: tensor.contiguous() for key, tensor in named.items()}, beside / name)
        _write_json(beside / STATE, {"format": FORMAT, **state})
        files = {
            path.name: {"size": path.stat().st_size, "sha256": sha256_of(path)} for path in sorted(beside.iterdir())
        }
        for name in files:
            sync_file(beside / name)
        _write_json(beside / MANIFEST, {"format": FORMAT, "files": files})
        sync_file(beside / MANIFEST)
        sync_folder(beside)
        if folder.exists():
            remove(folder)
        os.replace(beside, folder)
        sync_folder(folder.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        what = "no space left on device" if full else str(error)
        raise MachineError(
            f"{folder}: the checkpoint could not be written: {what}. Earlier checkpoints are untouched; free some "
            "space or mend the disk and give the same command again."
        ) from error


def _write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


def read_json(path: Path) -> Any:
    """A JSON file of ours. Raises RunError when it is damaged or too large to be one."""
    try:
        if path.stat().st_size > _MAX_JSON:
            raise RunError(f"{path}: {path.stat().st_size:,} bytes is no state file of ours.")
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path}: missing.") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: damaged: {error}.") from None


def verify(folder: Path) -> dict[str, Any]:
    """Check every file of a checkpoint against its manifest and return its state.

    Raises RunError naming the first file that is missing, cut, changed or strange.
    """
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise RunError(f"{folder / MANIFEST}: damaged: it lists no files.")
    if manifest.get("format", 0) > FORMAT:
        raise RunError(
            f"{folder}: written in format {manifest['format']} by a newer nmt; this one reads format {FORMAT}. "
            "Upgrade nmt."
        )
    for name, entry in manifest["files"].items():
        path = folder / name
        if Path(name).name != name or path.is_symlink():
            raise RunError(f"{folder}: {name!r} is not a plain file name; the checkpoint is not one of ours.")
        if not path.is_file():
            raise RunError(f"{path}: missing, though the manifest lists it.")
        size = path.stat().st_size
        if size != entry["size"]:
            raise RunError(f"{path}: {size:,} bytes, the manifest says {entry['size']:,}: it was cut or replaced.")
        if sha256_of(path) != entry["sha256"]:
            raise RunError(f"{path}: its SHA-256 is not that of the manifest: the file was damaged or replaced.")
    if not {MODEL, STATE} <= manifest["files"].keys():
        raise RunError(f"{folder}: the manifest lists no {MODEL} or no {STATE}.")
    state: dict[str, Any] = read_json(folder / STATE)
    return state


def load_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """The tensors of one file of a checkpoint that `verify` has passed, on the CPU."""
    try:
        tensors: dict[str, Tensor] = load_file(folder / name)
        return tensors
    except (OSError, SafetensorError) as error:
        raise RunError(f"{folder / name}: not a safetensors file: {error}.") from None


def average(folders: Iterable[Path]) -> dict[str, Tensor]:
    """The mean of the weights of some checkpoints, summed in fp64. One checkpoint is its own average, bit for bit."""
    total: dict[str, Tensor] = {}
    count = 0
    dtypes: dict[str, torch.dtype] = {}
    for folder in folders:
        count += 1
        for name, tensor in load_tensors(folder, MODEL).items():
            dtypes[name] = tensor.dtype
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    assert count
    return {name: (tensor / count).to(dtypes[name]) for name, tensor in total.items()}


def remove(folder: Path) -> None:
    """Delete a checkpoint. It loses its name first, so that no moment shows half of one."""
    doomed = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    os.replace(folder, doomed)
    shutil.rmtree(doomed)


def checkpoints_to_delete(score_of: Mapping[int, float | None], *, keep_last: int, keep_best: int) -> list[int]:
    """Which checkpoints may go. score_of: {update: score or None if it was not measured}, higher is better.

    The newest `keep_last` and the best `keep_best` stay; of equal scores the older one is the better.
    """
    newest = sorted(score_of, reverse=True)[:keep_last]
    scored = {update: score for update, score in score_of.items() if score is not None}
    best = sorted(scored, key=lambda update: (-scored[update], update))[:keep_best]
    return sorted(set(score_of) - set(newest) - set(best))
