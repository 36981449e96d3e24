"""The beam search of `beam.py` in tensors of fixed shapes and addresses: a GPU can record a step and replay it.

No step waits for the device. Its results stay in notes on the device, which are copied to the host when sentences are
removed. Finished sentences are removed when the others fit a smaller shape. Until then the search continues on them
with scores of -inf, and so it does on the empty sentences that pad a shape.
Shapes: B sentences of the present shape, K beam, T steps.
"""

import threading
from collections.abc import Callable, Hashable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from math import prod
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from nmt import ops
from nmt.data.subwords import BOS, EOS, PAD
from nmt.decoding import beam
from nmt.decoding.beam import BeamSettings, Hypothesis
from nmt.decoding.candidates import FORBIDDEN, Characters
from nmt.device import send
from nmt.errors import MachineError
from nmt.models.base import DecoderState, SearchModel
from nmt.models.layers import Gaps

# Each recording has some hundred kernels and takes a few megabytes on the device.
_MAX_RECORDINGS = 256


class Recorder:
    """Runs work on tensors that keep their addresses; on a GPU, from the second time on, as a recording (CUDA graph).

    The first run compiles kernels. Work that reads a number from the device cannot be recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._recordings: dict[Hashable, Any] = {}  # None: was run once; least recently used first
        self._pool: Any = None
        self._stream: Any = None
        self._version: Hashable = None

    def run(self, key: Hashable, work: Callable[[], object]) -> None:
        """Run the work, or its recording under this key, which reads and writes the same addresses."""
        if not self._on_gpu:
            work()
            return
        recording: Any = None
        if key in self._recordings:
            recording = self._recordings.pop(key) or self._record(work)
            recording.replay()
        else:
            work()
        self._recordings[key] = recording
        if len(self._recordings) > _MAX_RECORDINGS:
            del self._recordings[next(iter(self._recordings))]

    def keep_while(self, version: Hashable) -> None:
        """Delete all recordings if the version has changed, for example the addresses of tensors."""
        if version != self._version:
            self._recordings.clear()
            self._pool, self._version = None, version

    def _record(self, work: Callable[[], object]) -> Any:
        # torch.cuda.graph would release all free memory at each of many recordings. They share one memory pool, since
        # each has finished before the next is replayed.
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        self._stream = self._stream or cast(Any, torch.cuda.Stream)()  # it has no type hints
        recording: Any = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            # Other threads may use the GPU meanwhile.
            recording.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException as error:
                with suppress(RuntimeError):  # it only repeats that the recording is invalid
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


class Buffers:
    """Memory of fixed addresses, by name. n_move: how often a tensor outgrew its buffer, which invalidates recordings.

    caches: shape of one slot, (heads, width), and type of all caches that any state had so far, by their names.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.n_move = 0
        self.caches: dict[str, tuple[int, int, torch.dtype]] = {}
        self._memory: dict[str, Tensor] = {}

    def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the buffer of a tensor with its present content."""
        n_number, memory = prod(shape), self._memory.get(name)
        if memory is None or len(memory) < n_number or memory.dtype != dtype:
            self.n_move += 1
            memory = None
            self._memory.pop(name, None)  # frees the old buffer first, unless it is still referenced
            self._memory[name] = memory = torch.empty(n_number, dtype=dtype, device=self.device)
        return memory[:n_number].view(shape)

    def put(self, name: str, value: Tensor) -> Tensor:
        """Copy a tensor to its buffer, with which it may not share memory."""
        return self.empty(name, tuple(value.shape), value.dtype).copy_(value)

    def put_all(self, prefix: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy tensors to their buffers, by name."""
        return {name: self.put(prefix + name, value) for name, value in values.items()}

    def cached(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Return the result of the first `make` under this name."""
        if name not in self._memory:
            self._memory[name] = make()
        return self._memory[name]


class FixedState(DecoderState):
    """A state with room for n_step tokens of n_row hypotheses a sentence, made of one that has read nothing yet. Its
    tensors keep their shapes and addresses. A new state in the same buffers invalidates this one."""

    n_step: Tensor  # (1,)
    ancestry: Tensor
    _slots: Tensor  # (K,) of the tokens of this step

    def __init__(self, state: DecoderState, buffers: Buffers, *, n_row: int, n_step: int) -> None:
        rows = {name: tensor.repeat_interleave(n_row, 0) for name, tensor in state.per_row.items()}
        super().__init__(buffers.put_all("", state.per_sentence), buffers.put_all("", rows), state.n_sentence)
        self._buffers, self._n_row, self._n_slot = buffers, n_row, n_step * n_row
        self.n_step = buffers.empty("n_step", (1,), torch.int64).zero_()
        shape = (state.n_sentence * n_row, self._n_slot)
        self.ancestry = buffers.empty("ancestry", shape, torch.bool).zero_()
        # Make the caches of earlier states now: a replayed step does not call `update_cache`.
        for name in buffers.caches:
            self._make_cache(name)

    def open_slots(self, visible: Tensor) -> Tensor:
        row = torch.arange(self._n_row, device=visible.device)
        self._slots = self.n_step * self._n_row + row
        is_own = (row.unsqueeze(1) == row) & visible.view(-1, self._n_row, 1)
        self.ancestry.index_copy_(1, self._slots, is_own.flatten(0, 1))
        return self.ancestry.view(self.n_sentence, 1, self._n_row, -1)

    def update_cache(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        new = {f"slf_k.{layer}": k, f"slf_v.{layer}": v}
        for name, value in new.items():
            if name not in self.kv_cache:
                self._buffers.caches[name] = value.size(1), value.size(3), value.dtype
                self._make_cache(name)
        keys, values = (self.kv_cache[name] for name in new)
        ops.store(keys, values, k, v, self._slots, self.n_step)
        return keys, values

    def _make_cache(self, name: str) -> None:
        """Make a cache of zeros: masked slots are multiplied by zero, and uninitialised memory may hold NaN."""
        n_head, width, dtype = self._buffers.caches[name]
        shape = (self.n_sentence, n_head, self._n_slot, width)
        self.kv_cache[name] = self._buffers.empty(name, shape, dtype).zero_()

    def reorder(self, rows: Tensor) -> None:
        moved = {name: tensor.index_select(0, rows) for name, tensor in self.per_row.items()}
        self.per_row = self._buffers.put_all("", moved)
        self.ancestry = self._buffers.put("ancestry", self.ancestry.index_select(0, rows))

    def keep(self, gaps: Gaps) -> None:
        """Remove sentences as any state does, but with their rows, whose number is known here."""
        super().keep(gaps)

        def of_rows(value: Tensor) -> Tensor:
            return gaps.close(value.view(-1, self._n_row, *value.shape[1:])).flatten(0, 1)

        self.per_row = {name: of_rows(tensor) for name, tensor in self.per_row.items()}
        self.ancestry = of_rows(self.ancestry)

    def widen(self, n_step: int) -> None:
        """Make room for n_step tokens in all."""
        n_new, self._n_slot = n_step * self._n_row - self._n_slot, n_step * self._n_row
        for name, cache in self.kv_cache.items():
            self.kv_cache[name] = self._buffers.put(name, F.pad(cache, (0, 0, 0, n_new)))
        self.ancestry = self._buffers.put("ancestry", F.pad(self.ancestry, (0, n_new)))


class Table:
    """State of a search, without that of its model, in buffers; initially before the first step.

    last: (R,) the newest token of each hypothesis; n_step: (1,) number of finished steps; room: number of steps that
    fit. per_sentence: see `beam.initial_table`; notes: see `beam.empty_notes`.
    """

    def __init__(
        self, settings: BeamSettings, buffers: Buffers, max_len: Tensor, room: int, score_type: torch.dtype
    ) -> None:
        """max_len: (B,) on the device, 0 for padding sentences. All settings must be for one vocabulary."""
        self._settings, self._buffers, self.room = settings, buffers, room
        table = beam.initial_table(settings, max_len, settings.beam, score_type)
        notes = beam.empty_notes(len(max_len), room, settings.beam, table["score"])
        self.last = buffers.put("search.last", max_len.new_full((len(max_len) * settings.beam,), BOS))
        self.n_step = buffers.put("search.n_step", max_len.new_zeros(1))
        self.per_sentence, self.notes = buffers.put_all("search.", table), buffers.put_all("search.", notes)

    def finish_step(self, logits: Tensor) -> Tensor:
        """Choose continuations by logits (R, V), which may be changed. Returns the rows that they continue, (R,)."""
        settings, table, buffers, n_column = self._settings, self.per_sentence, self._buffers, logits.size(-1)
        state, n_length = table["state"].flatten(), self.room + 2
        divisors = buffers.cached(  # of all lengths, (T + 2,)
            f"divisors.{settings.length_penalty}.{settings.alpha}.{n_length}",
            lambda: settings.divisor(torch.arange(n_length, device=buffers.device)),
        )
        after = buffers.cached("after", lambda: settings.automaton(n_column, buffers.device).after)
        characters = Characters(after)
        allowed = partial(buffers.cached, "allowed", lambda: (after != FORBIDDEN).to(torch.uint8))
        rows = ops.end_of_step(logits, allowed, state, table, self.notes, self.last, self.n_step, divisors, EOS)
        if rows is not None:  # by kernels of a GPU
            self.n_step += 1
            if len(after) > 1:
                table["state"].copy_(characters.follow(state[rows], self.last).view_as(table["state"]))
            return rows
        never = buffers.cached("never", characters.forbidden_between)
        topk = beam.topk_tokens(logits, min(settings.beam + 1, n_column), never, characters, state)
        notes, changes = beam.end_of_step(table, topk, settings, self.n_step, characters, logits)
        for name, value in notes.items():
            self.notes[name].index_copy_(1, self.n_step, value.unsqueeze(1))
        self.n_step += 1
        for name, value in changes.items():
            table[name].copy_(value)
        self.last.copy_(notes["token"].flatten())
        first = torch.arange(0, len(self.last), settings.beam, device=logits.device)
        return (first.unsqueeze(1) + notes["parent"]).flatten()

    def keep(self, gaps: Gaps) -> None:
        """Remove sentences."""
        self.per_sentence, self.notes = gaps.close_all(self.per_sentence), gaps.close_all(self.notes)
        self.last = gaps.close(self.last.view(-1, self._settings.beam)).flatten()

    def widen(self, room: int) -> None:
        """Make room for so many steps."""
        wide = {name: F.pad(note, (0, 0, 0, room - self.room)) for name, note in self.notes.items()}
        self.room, self.notes = room, self._buffers.put_all("search.", wide)


# Number of steps that fit at first. It is doubled when they are used up; each step reads all of the room.
FIRST_ROOM = 32
# Removing sentences takes as long as a few small steps. It pays only if the new shape has at most this share of the
# present one, and below this number of rows a matrix product has no fewer tiles.
_MAX_SHRUNK_SHARE = 0.75
_FEWEST_ROWS = 128


def bucket(n: int) -> int:
    """Round n up to 8, 16, … 64, 80, 96, 112, 128, 160, …: four sizes between two powers of two."""
    step = max(8, 1 << max(0, (n - 1).bit_length() - 3))
    return -(-n // step) * step


class FixedSearch:
    """`beam.search` without rules, for one model. Threads may share it; a lock serialises their calls."""

    def __init__(self, model: SearchModel) -> None:
        self.model = model
        self._lock = threading.Lock()
        self._buffers: Buffers | None = None
        self._recorder = Recorder(model.device)

    @torch.inference_mode()
    def __call__(self, src_seq: Tensor, settings: BeamSettings, max_len: Tensor) -> list[list[Hypothesis]]:
        """Return the n_best translations of each sentence, best first; see `beam.search` for the arguments."""
        device = self.model.device
        # Streams and events are those of the present device.
        with self._lock, torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            try:
                self._buffers = self._buffers or Buffers(device)
                return self._search(self._buffers, src_seq, settings, max_len)
            except BaseException:  # for example out of memory: free the buffers for another try
                self._buffers = None
                self._recorder.keep_while(None)
                raise

    def _search(
        self, buffers: Buffers, src_seq: Tensor, settings: BeamSettings, max_len: Tensor
    ) -> list[list[Hypothesis]]:
        model, (n_sentence, n_src) = self.model, src_seq.shape
        sentence, n_src_fixed = np.arange(bucket(n_sentence)), bucket(n_src)  # n_sentence or more: padding
        n_pad = len(sentence) - n_sentence
        src_seq = F.pad(src_seq, (0, n_src_fixed - n_src, 0, n_pad), value=PAD)
        src_seq[n_sentence:, 0] = EOS
        # The host learns late that the longest translation is done: the search may make two steps more.
        model.grow_tables(int(max_len.max()) + 3)
        state = FixedState(model.start(src_seq), buffers, n_row=settings.beam, n_step=FIRST_ROOM)
        padded_max_len = F.pad(max_len.to(buffers.device), (0, n_pad))
        table = Table(settings, buffers, padded_max_len, FIRST_ROOM, beam.score_type(model))
        tensors = (*model.parameters(), *model.buffers())  # held, since another thread may replace a table
        weights = tuple((tensor.data_ptr(), tensor.numel()) for tensor in tensors)
        sent: list[tuple[NDArray[np.int64], dict[str, Tensor]]] = []  # numbers of sentences, and their notes

        def send_notes(places: NDArray[np.int64]) -> None:
            """Start to copy to the host the notes of the sentences in some places, without padding."""
            places = places[sentence[places] < n_sentence]
            rows = send(torch.from_numpy(places), buffers.device)
            notes = {name: note[rows, :n_step].to("cpu", non_blocking=True) for name, note in table.notes.items()}
            sent.append((sentence[places], notes))

        on_gpu, n_step = buffers.device.type == "cuda", 0
        pending: tuple[Tensor, Any] | None = None  # `done` after a step, and the event of its arrival at the host
        while True:
            if n_step == table.room:
                table.widen(2 * n_step)
                state.widen(2 * n_step)
            self._recorder.keep_while((buffers.n_move, weights))
            # A step, from buffers to buffers.
            key = settings, len(sentence), n_src_fixed, table.room
            self._recorder.run(key, lambda: state.reorder(table.finish_step(model.step(table.last, state))))
            n_step += 1
            # The host reads `done` of the step before, so that the device never runs out of work.
            copy = table.per_sentence["done"].to("cpu", non_blocking=True, copy=True)
            previous, pending = pending, (copy, torch.cuda.current_stream().record_event() if on_gpu else None)
            if previous is None:
                continue
            done, arrived = previous
            if on_gpu:
                arrived.synchronize()
            if not (n_left := int((~done).sum())):
                break
            n = max(bucket(n_left), bucket(-(-_FEWEST_ROWS // settings.beam)))
            if n > _MAX_SHRUNK_SHARE * len(sentence):
                continue
            # Keep n sentences, with finished ones as padding. More may be finished by now: a later step sees them.
            send_notes(np.flatnonzero(done.numpy()))
            gaps, pending = Gaps.of(done, buffers.device, n), None
            sentence = np.where(done[gaps.stay].numpy(), n_sentence, sentence[gaps.stay.numpy()])
            table.keep(gaps)
            state.keep(gaps)
        send_notes(np.arange(len(sentence)))
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        hypotheses: dict[int, list[Hypothesis]] = {}
        for numbers, notes in sent:
            divisors = settings.divisor(torch.arange(1, notes["token"].size(1) + 1)).numpy()
            n_best = beam.backtrace(notes, divisors, settings.n_best)
            hypotheses.update(zip(numbers.tolist(), n_best, strict=True))
        return [hypotheses[number] for number in range(n_sentence)]
