"""Everything the user can be told, as exceptions; what is wrong with our own code is an `assert`.

All exit codes are in docs/reference.md. A message says what was found, where, what was expected and what to do.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

_OF_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


class NmtError(Exception):
    """A mistake that the user can mend. `str(error)` is the whole message."""

    exit_code = 2


class RecipeError(NmtError):
    """The recipe, or an option of it on the command line, cannot be used; the message lists every complaint at once."""


class DataError(NmtError):
    """A corpus or a prepared data folder cannot be used."""


class AlarmError(DataError):
    """The corpora look wrong as a whole: swapped, misaligned, overlapping, or mostly dropped. Nothing was prepared."""

    exit_code = 3


class RunError(NmtError):
    """A run folder or a checkpoint cannot be used."""


class MachineError(NmtError):
    """The machine failed: disk full, memory short, a process lost."""

    exit_code = 1


class Unavailable(MachineError):
    """Raised where this machine lacks what was asked for and the user can mend it: a package, a GPU, an arithmetic."""

    exit_code = 2


class OutOfMemory(MachineError):
    """Memory ran out, and smaller batches are of no help: there are none, or they cannot be made here."""


class TrainingError(MachineError):
    """Training cannot go on: the loss or the gradient is not finite."""


def shown(found: object) -> str:
    """A value that was found, for a message: of a long one the beginning."""
    text = repr(found)
    return text if len(text) <= 60 else text[:57] + "..."


def is_of_machine(error: OSError) -> bool:
    """Return True where the disk or the system failed, and not the name of a file."""
    return error.errno in _OF_MACHINE


def as_ours(error: Exception) -> NmtError | None:
    """The error of a library as one of ours where the user can mend it: files, disks, memory; else None."""
    if isinstance(error, NmtError):
        return error
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        kind = MachineError if is_of_machine(error) else NmtError
        return kind(f"{where}{error.strerror or error}")
    if is_out_of_memory(error):
        first, _, _ = str(error).partition("\n")
        advice = "make batch.max_tokens, valid.max_tokens or decode.max_tokens smaller"
        return MachineError(f"out of memory: {first} ({advice})")
    return None


@contextmanager
def all_ours() -> Iterator[None]:
    """Raise what `as_ours` makes of an error; also as a decorator."""
    try:
        yield
    except Exception as error:
        ours = as_ours(error)
        if ours is None or ours is error:
            raise
        raise ours from error


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out. For a CPU, torch raises a plain RuntimeError."""
    # That of a GPU is known by its name: to import torch takes seconds, and who has seen none needs none.
    if isinstance(error, OutOfMemory | MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and (
        "DefaultCPUAllocator" in str(error) or "t allocate memory" in str(error)
    )
