"""Work that a GPU records once and replays, and what the host hears of it, without either waiting for the other."""

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from nmt.errors import MachineError

# Recordings that are kept: of some hundred kernels each, a few megabytes on the device.
_MOST = 256


class Recorder:
    """Runs work on tensors that stay in their places; on a GPU, from the second time on, as a recording of it.

    The first time kernels are compiled. Work that asks the device for a number cannot be recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._recordings: dict[Hashable, Any] = {}  # None: was run once; from the one least recently used
        self._pool: Any = None
        self._stream: Any = None
        self._valid_for: Hashable = None

    def run(self, key: Hashable, work: Callable[[], object]) -> None:
        """Do the work, or what was recorded under the same key: it reads and writes the same places."""
        if not self._on_gpu:
            work()
            return
        if key not in self._recordings:
            work()
            recording = None
        else:
            recording = self._recordings.pop(key)
            if recording is None:
                recording = self._record(work)
            recording.replay()
        self._recordings[key] = recording
        if len(self._recordings) > _MOST:
            del self._recordings[next(iter(self._recordings))]

    def keep_while(self, valid_for: Hashable) -> None:
        """Forget all recordings if this is another value than the last time, as where tensors lie may be."""
        if valid_for != self._valid_for:
            self._recordings.clear()
            self._pool, self._valid_for = None, valid_for

    def _record(self, work: Callable[[], object]) -> Any:
        # Not by torch.cuda.graph, which gives back all free memory each time: there are many recordings to make. One
        # pool for all, as each is done with what it has there before the next is replayed.
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        self._stream = self._stream or cast(Any, torch.cuda.Stream)()  # which has no type hints
        recording: Any = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            # Other threads may use the GPU meanwhile.
            recording.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException as error:
                with suppress(RuntimeError):  # which says again that the recording is void
                    recording.capture_end()
                if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
                    reason = str(error).split("\n")[0]
                    raise MachineError(
                        f"a step of the search cannot be recorded as a CUDA graph: {reason}. "
                        "Set decode.cuda_graphs to false."
                    ) from error
                raise
            recording.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return recording


class DelayedCopy:
    """A tensor of the device that the host reads one step late, so that by then the device has more to do."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._told: list[Tensor] = []
        self._events = [cast(Any, torch.cuda.Event)() for _ in range(2)] if self._on_gpu else []
        self._n = 0

    def tell(self, value: Tensor) -> Tensor | None:
        """Send it, always of one shape, and get what was sent before, until the next time; at first None."""
        now, before = self._n % 2, (self._n + 1) % 2
        if self._n < 2:
            self._told.append(torch.empty(value.shape, dtype=value.dtype, pin_memory=self._on_gpu))
        self._told[now].copy_(value, non_blocking=True)
        if self._on_gpu:
            self._events[now].record()
        self._n += 1
        if self._n == 1:
            return None
        if self._on_gpu:
            self._events[before].synchronize()
        return self._told[before]


_ALIGNED = 16  # numbers: as a kernel likes to read them


class Buffers:
    """Memory that stays where it is, by name. moves: how often something outgrew its place: recordings are void then.

    caches: shape of one slot, (heads, width), and type of all caches that any state had so far, by their names.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.moves = 0
        self.caches: dict[str, tuple[int, int, torch.dtype]] = {}
        self._memory: dict[str, Tensor] = {}

    def alike(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The place of a tensor, with whatever lies there."""
        n_number, memory = prod(shape), self._memory.get(name)
        if memory is None or len(memory) < n_number or memory.dtype != dtype:
            self.moves += 1
            memory = None
            self._memory.pop(name, None)  # it makes room for the new one, unless somebody still needs it
            room = -(-n_number // _ALIGNED) * _ALIGNED
            self._memory[name] = memory = torch.empty(room, dtype=dtype, device=self.device)
        return memory[:n_number].view(shape)

    def widen(self, name: str, value: Tensor, dim: int, n: int) -> Tensor:
        """`value`, which lies there, with n entries along `dim`; the new ones are 0."""
        shape, old = (*value.shape[:dim], n, *value.shape[dim + 1 :]), value.clone()
        wide = self.alike(name, shape, value.dtype).zero_()
        wide.narrow(dim, 0, old.size(dim)).copy_(old)
        return wide

    def put(self, name: str, value: Tensor) -> Tensor:
        """A copy of `value`, which may not share memory with the place."""
        return self.alike(name, tuple(value.shape), value.dtype).copy_(value)

    def put_all(self, prefix: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of tensors by name."""
        return {name: self.put(prefix + name, value) for name, value in values.items()}

    def once(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Return the result of the first `make`."""
        if name not in self._memory:
            self._memory[name] = make()
        return self._memory[name]
