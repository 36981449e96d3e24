"""Exceptions for everything that a user can correct. Internal errors are an `assert`.

All exit codes are in docs/reference.md. A message says what was found and where, what was expected, and what to do.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

_OF_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


class NmtError(Exception):
    """A mistake that the user can correct. `str(error)` is the whole message."""

    exit_code = 2


class RecipeError(NmtError, ValueError):  # pydantic reports a ValueError of a validator with its option
    """A recipe, or an option of it on the command line, cannot be used. The message lists all problems at once."""


class DataError(NmtError):
    """A corpus or a prepared data folder cannot be used."""


class AlarmError(DataError):
    """The corpora look wrong as a whole: swapped, misaligned, overlapping, or mostly dropped. Nothing was prepared."""

    exit_code = 3


class RunError(NmtError):
    """A run folder or a checkpoint cannot be used."""


class MachineError(NmtError):
    """The work cannot go on: disk full, memory short, a process lost, a loss that is not finite."""

    exit_code = 1


class Unavailable(MachineError):
    """Raised if this machine lacks something that the user can change: a package, a GPU, a precision."""

    exit_code = 2


class OutOfMemory(MachineError):
    """Memory ran out, and the batch cannot be made smaller here."""


def shown(value: object) -> str:
    """Format a value for a message; a long one is cut."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def described(value: object) -> str:
    """Format a value of a wrong type for a message."""
    return f"{shown(value)} of type {type(value).__name__}"


def is_machine_error(error: OSError) -> bool:
    """Return whether the disk or the system caused an error, and not the name of a file."""
    return error.errno in _OF_MACHINE


def as_nmt_error(error: Exception) -> NmtError | None:
    """Convert an error that the user can correct (files, disks, memory) into an NmtError; None for any other error."""
    if isinstance(error, NmtError):
        return error
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        kind = MachineError if is_machine_error(error) else NmtError
        return kind(f"{where}{error.strerror or error}")
    if is_out_of_memory(error):
        first, _, _ = str(error).partition("\n")
        advice = "make batch.max_tokens, valid.max_tokens or decode.max_tokens smaller"
        return MachineError(f"out of memory: {first} ({advice})")
    if type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
        cause = str(error).strip().partition("\n")[0].rstrip(".")
        return Unavailable(
            f"train.compile: torch's compiler failed: {cause}. Use auto or false, or install what it needs."
        )
    return None


@contextmanager
def convert_errors() -> Iterator[None]:
    """Context manager and decorator: raise errors as `as_nmt_error` converts them."""
    try:
        yield
    except Exception as error:
        converted = as_nmt_error(error)
        if converted is None or converted is error:
            raise
        raise converted from error


@contextmanager
def suppress_out_of_memory() -> Iterator[None]:
    """Context manager: leave the block where memory runs out. After it no exception keeps the tensors of the block."""
    try:
        yield
    except (OutOfMemory, RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out. For a CPU, torch raises a plain RuntimeError."""
    # torch's error for a GPU is recognised by its name, since importing torch takes seconds.
    if isinstance(error, OutOfMemory | MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and (
        "DefaultCPUAllocator" in str(error) or "t allocate memory" in str(error)
    )
