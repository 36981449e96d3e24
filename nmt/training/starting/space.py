"""How much disk the checkpoints of a run will take, known before the first update."""

import contextlib
import os
import shutil
from pathlib import Path

from torch import nn

from nmt import checkpoint
from nmt.errors import MachineError
from nmt.recipe.options import Recipe
from nmt.run import Run, unwritable
from nmt.training.log.units import size
from nmt.training.optim import build_optimizers

# Numbers that an optimizer remembers for each number of a parameter; Adam's kin have two moments. What is free of a
# schedule has one, and two more points beside the one that is saved as the weights.
_MOMENTS = {"Muon": 1, "AdamWScheduleFree": 3}
_HEADER = 200  # bytes about a tensor in a safetensors file, at most about


def checkpoint_bytes(model: nn.Module, recipe: Recipe) -> int:
    """Bytes of one checkpoint: weights, what the optimizers remember, and the moving average if there is one."""
    weights = sum(tensor.nbytes + _HEADER for tensor in checkpoint.weights_of(model).values())
    moments = sum(
        _MOMENTS.get(type(optimizer).__name__, 2) * (param.nbytes + _HEADER)
        for optimizer, _ in build_optimizers(model, recipe.optim).parts
        for group in optimizer.param_groups
        for param in group["params"]
    )
    return int(weights * (2 if recipe.train.ema else 1) + moments)


def bytes_needed(one: int, there: int, *, keep_last: int, keep_best: int) -> int:
    """Free bytes that a run needs whose checkpoints take `one` byte count each, `there` being taken by them already.

    The newest and the best are kept, and one more is being written before an old one may go. The model that is chosen
    at the end is smaller than a checkpoint, and written when none is.
    """
    return max(0, (keep_last + keep_best + 1) * one - there)


def bytes_there(run: Run) -> int:
    """Bytes that the checkpoints of a run take already, which may come and go meanwhile."""
    found = 0
    for update in run.updates():  # what was set aside as damaged is nobody's to delete
        for folder, _, names in os.walk(run.checkpoint(update)):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    found += os.stat(os.path.join(folder, name)).st_size
    return found


def check_space(run: Run, recipe: Recipe, model: nn.Module) -> None:
    """Raise MachineError if the checkpoints will not fit on the disk, and RunError if they may not be written there."""
    one, keep = checkpoint_bytes(model, recipe), recipe.train
    needed = bytes_needed(one, bytes_there(run), keep_last=keep.keep_last, keep_best=keep.keep_best)
    free = shutil.disk_usage(run.folder).free
    if free < needed:
        raise MachineError(
            f"{run.folder}: {size(free)} are free on that disk, and the checkpoints of this run need {size(needed)} "
            f"more: {keep.keep_last} newest (train.keep_last), {keep.keep_best} best (train.keep_best) and the one "
            f"being written, of {size(one)} each. Free some space, keep fewer, or name another disk with --train.out."
        )
    _check_writable(run.checkpoints)


def _check_writable(folder: Path) -> None:
    probe = folder / ".probe.tmp"
    try:
        folder.mkdir(exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise unwritable(folder, "checkpoints cannot be written there", error) from None
