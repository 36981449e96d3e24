"""Helper processes that are given one task after the other, seen from both ends.

They are started anew rather than forked: a fork of a process with threads, such as torch's, may hang. Tasks come over
stdin, answers go over stdout, both as mappings of arrays, texts and numbers; what a library prints goes to stderr. A
helper ends when its stdin does.

`data/worker_pool.py` decides which helper is given what.
"""

import contextlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from nmt import errors
from nmt.errors import NmtError

# Numbers, texts and arrays as bytes and back.


_MARK = b"nmt\n"
_HEAD = struct.Struct("<4sQQ")  # the mark, and the lengths of the header and of what comes after it


def write_packed(file: BinaryIO, content: Mapping[str, Any]) -> None:
    """Write a mapping of arrays, bytes, and what JSON can say."""
    import numpy as np  # here, since the commands ask for their rank before anything slow is imported

    plain: dict[str, Any] = {}
    described, parts = [], []
    for name, value in content.items():
        if isinstance(value, bytes | np.ndarray):
            array = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.ascontiguousarray(value)
            kind = "bytes" if isinstance(value, bytes) else array.dtype.str
            described.append([name, kind, list(array.shape)])
            parts.append(array)
        else:
            plain[name] = value
    header = json.dumps([plain, described]).encode("utf-8")
    file.write(_HEAD.pack(_MARK, len(header), sum(array.nbytes for array in parts)) + header)
    for array in parts:
        file.write(array.data if array.nbytes else b"")


def read_packed(read: Callable[[int], bytes]) -> dict[str, Any] | None:
    """The next mapping that was written. read: gives so many bytes; none at the end, where the answer is None.

    Raises ValueError where something else stands.
    """
    import numpy as np

    head = read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    mark, n_header, n_byte = _HEAD.unpack(head)
    if mark != _MARK:  # or the lengths might be any number, and so much memory is asked for
        raise ValueError(f"{mark!r} is the beginning of nothing that was packed")
    plain, described = json.loads(read(n_header))
    content: dict[str, Any] = plain
    body, start = memoryview(read(n_byte)), 0
    for name, kind, shape in described:
        dtype = np.dtype(np.uint8 if kind == "bytes" else kind)
        stop = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        part = body[start:stop]
        content[name] = bytes(part) if kind == "bytes" else np.frombuffer(part, dtype).reshape(shape)
        start = stop
    return content


Content = Mapping[str, Any]
Answering = Callable[[dict[str, Any]], Content]  # from a task to its answer

_BEGIN = b"-- answers of nmt begin --\n"  # a line; what was printed before is no answer


def sleep_while_waiting() -> None:
    """Have threads of OpenMP sleep, not spin, while they wait for each other. Call it before torch is imported.

    What the environment says stays. Spinning is faster only where nothing else runs, and there by little in a search.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


class HelperLost(Exception):
    """A helper that does not answer any more; the text says how it ended."""


class Helper:
    """A process that answers, seen from here."""

    def __init__(self, module: str, env: Mapping[str, str] | None = None) -> None:
        """module: what it runs, which calls `serve`. env: beside that of this process. Raises OSError."""
        package = str(Path(__file__).parents[1])
        paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],  # -P: not from a folder called nmt where the user stands
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(env or {}), "PYTHONPATH": paths},
            # A group of its own: Ctrl-C at a terminal is for this process, which then decides.
            process_group=None if sys.platform == "win32" else 0,
        )
        self._tasks, self._answers = cast(BinaryIO, self.process.stdin), cast(BinaryIO, self.process.stdout)
        self._has_begun = False

    def ask(self, task: Content) -> dict[str, Any]:
        """The answer to a task. Raises the NmtError that it is, and HelperLost if there is none."""
        try:
            while not self._has_begun and (line := self._answers.readline()):
                self._has_begun = line.endswith(_BEGIN)
                print(line.removesuffix(_BEGIN).decode("utf-8", "replace"), end="", file=sys.stderr)
            write_packed(self._tasks, task)
            self._tasks.flush()
            answer = read_packed(self._answers.read)
        except (OSError, ValueError, MemoryError) as error:
            why = str(error) or type(error).__name__
            raise HelperLost(self._end(f"gave an answer that cannot be read ({why})")) from None
        if answer is None:
            raise HelperLost(self._end("closed its stdout"))
        if "error" in answer:
            refusal: NmtError = getattr(errors, answer["kind"])(answer["error"])
            refusal.exit_code = answer["exit_code"]
            raise refusal
        return answer

    def kill(self) -> None:
        """End the process. Whoever waits for an answer is told that it is lost."""
        self.process.kill()

    def close(self) -> None:
        """Forget a process that was killed, when nobody talks to it any more."""
        for pipe in (self._tasks, self._answers):
            with contextlib.suppress(OSError):  # what it was not told before
                pipe.close()
        self.process.wait()

    def _end(self, otherwise: str) -> str:
        """Describe how the process ended. otherwise: what it did if it is still there."""
        try:
            code = self.process.wait(1)
        except subprocess.TimeoutExpired:
            return otherwise
        if code == -9:
            return "was killed (signal 9: by somebody, or by the system for want of memory)"
        return f"died of signal {-code}" if code < 0 else f"ended with exit code {code}"


def serve(make: Callable[[dict[str, Any]], Answering]) -> int:
    """The life of a helper, until its stdin ends; returns its exit code. Any NmtError is an answer.

    make: gives what answers, from the first task, whose own answer is empty.
    """
    tasks, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answering: Answering | None = None
    try:
        answers.write(_BEGIN)
        answers.flush()
        while (task := read_packed(tasks.read)) is not None:
            try:
                if answering is None:
                    answering, answer = make(task), dict[str, Any]()
                else:
                    answer = dict(answering(task))
            except NmtError as error:
                kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
                answer = {"error": str(error), "kind": kind, "exit_code": error.exit_code}
            write_packed(answers, answer)
            answers.flush()
            if answering is None:  # it cannot begin
                return int(answer["exit_code"])
    except BrokenPipeError:  # nobody is there any more to tell anything to; Python would try again in its end
        os._exit(1)
    return 0


# The rank that torchrun gives a process by its environment.


ADDRESS = ("MASTER_ADDR", "MASTER_PORT")


class Place(NamedTuple):
    """A process among those that torchrun started; local_rank: among those of its machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


def place_of(environment: Mapping[str, str] = os.environ, *, needed: tuple[str, ...] = ()) -> Place:
    """The place that the environment tells of; that of a process alone where it tells of none.

    needed: what there must be beside it where there are several. Raises NmtError for what torchrun would not leave.
    """
    if (n := environment.get("WORLD_SIZE", "1")) == "1":
        return Place()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")  # as `Place` has them
    told = {"LOCAL_RANK": "0", **environment}
    wrong = [name for name in names if not told.get(name, "").isdecimal()]
    if not wrong and not int(told["RANK"]) < int(n):
        wrong = ["RANK"]
    if wrong := [*wrong, *(name for name in needed if name not in environment)]:
        is_wrong = f"is {environment[wrong[0]]!r}" if wrong[0] in environment else "is missing"
        raise NmtError(
            f"WORLD_SIZE is {n!r} in the environment, as where torchrun starts several processes, but {wrong[0]} "
            f"{is_wrong}. Start them by torchrun, or unset WORLD_SIZE."
        )
    return Place(*(int(told[name]) for name in names))
