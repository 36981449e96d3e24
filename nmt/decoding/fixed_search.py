"""The beam search of `beam.py` in tensors that keep their shapes and places: a step that a GPU can record and replay.

A step asks the device for nothing: what it finds is noted, sent to the host when sentences leave, and read there at the
end. Sentences leave when as many are done that a smaller shape does; until then they are searched on, impossible, and
so are empty sentences that fill a shape up.
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
from nmt.decoding.beam import (
    BeamSettings,
    Hypothesis,
    end_of_step,
    first_notes,
    first_table,
    not_finite,
    score_type,
    topk_tokens,
    traced,
)
from nmt.decoding.candidates import Characters
from nmt.device import send
from nmt.errors import MachineError
from nmt.models.base import DecoderState, SearchModel
from nmt.models.layers import Gaps, closing

# Work that a GPU records once and replays.

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
            self._memory[name] = memory = torch.empty(n_number, dtype=dtype, device=self.device)
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


# Decoder states whose tensors keep their shapes and places, so that a GPU can record a step and replay it.


class FixedState(DecoderState):
    """A state with room for n_step tokens of n_row hypotheses a sentence, made of one that has read nothing yet.

    Another state in the same places is the end of this one.
    """

    n_step: Tensor  # (1,)
    ancestry: Tensor
    _slots: Tensor  # (K,) those of the token that is being read

    def __init__(self, state: DecoderState, places: Buffers, *, n_row: int, n_step: int) -> None:
        super().__init__(places.put_all("", state.per_sentence), {}, state.n_sentence)
        self._places, self._n_row, self._n_slot = places, n_row, n_step * n_row
        rows = {name: tensor.repeat_interleave(n_row, 0) for name, tensor in state.per_row.items()}
        self.per_row = places.put_all("", rows)
        self.n_step = places.alike("n_step", (1,), torch.int64).zero_()
        shape = (state.n_sentence * n_row, self._n_slot)
        self.ancestry = places.alike("ancestry", shape, torch.bool).zero_()
        # The caches of a state before: a replayed step finds them without asking `update_cache` for any.
        for name in places.caches:
            self._open(name)

    def open_slots(self, visible: Tensor) -> Tensor:
        row = torch.arange(self._n_row, device=visible.device)
        self._slots = self.n_step * self._n_row + row
        own = (row.unsqueeze(1) == row) & visible.view(-1, self._n_row, 1)
        self.ancestry.index_copy_(1, self._slots, own.flatten(0, 1))
        return self.ancestry.view(self.n_sentence, 1, self._n_row, -1)

    def update_cache(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        new = {f"slf_k.{layer}": k, f"slf_v.{layer}": v}
        for name, its in new.items():
            if name not in self.kv_cache:
                self._places.caches[name] = its.size(1), its.size(3), its.dtype
                self._open(name)
        keys, values = (self.kv_cache[name] for name in new)
        ops.store(keys, values, k, v, self._slots, self.n_step)
        return keys, values

    def _open(self, name: str) -> None:
        """Make a cache: zeros, since what is hidden is multiplied by zero, which not everything survives."""
        n_head, width, dtype = self._places.caches[name]
        shape = (self.n_sentence, n_head, self._n_slot, width)
        self.kv_cache[name] = self._places.alike(name, shape, dtype).zero_()

    def reorder(self, rows: Tensor) -> None:
        moved = {name: tensor.index_select(0, rows) for name, tensor in self.per_row.items()}
        self.per_row = self._places.put_all("", moved)
        self.ancestry = self._places.put("ancestry", self.ancestry.index_select(0, rows))

    def keep(self, gaps: Gaps) -> None:
        """As of any state; but here the rows leave with their sentences, since it is known how many each has."""

        def of_rows(value: Tensor) -> Tensor:
            return gaps.close(value.view(-1, self._n_row, *value.shape[1:])).flatten(0, 1)

        self.per_sentence, self.kv_cache = gaps.close_all(self.per_sentence), gaps.close_all(self.kv_cache)
        self.per_row = {name: of_rows(tensor) for name, tensor in self.per_row.items()}
        self.ancestry = of_rows(self.ancestry)
        self.n_sentence = gaps.n

    def widen(self, n_step: int) -> None:
        """Make room for so many tokens in all."""
        self._n_slot = n_step * self._n_row
        for name, cache in self.kv_cache.items():
            self.kv_cache[name] = self._places.widen(name, cache, 2, self._n_slot)
        self.ancestry = self._places.widen("ancestry", self.ancestry, 1, self._n_slot)


# The hypotheses of a search in fixed shapes, in places that stay, and the end of a step.


class Table:
    """All of a search but the state of its model, in places that stay; at first of one that has just begun.

    last: (R,) the newest token of each hypothesis; place: (1,) steps that were made. of: see `first_table`; notes: see
    `first_notes`.
    """

    def __init__(
        self,
        how: BeamSettings,
        places: Buffers,
        max_len: Tensor,
        room: int,
        score_type: torch.dtype,
        characters: Characters | None = None,
    ) -> None:
        """max_len: (B,) on the device, 0 where there is no sentence. characters: always those of one vocabulary."""
        self._how, self._places, self.room = how, places, room
        self._characters = characters and Characters(
            places.once("characters", lambda: characters.after.to(places.device))
        )
        n_sentence = len(max_len)
        score = torch.full((n_sentence, how.beam), -torch.inf, dtype=score_type, device=max_len.device)
        score[:, 0] = 0.0  # the others begin as copies of the first, and must not be found twice
        self.last = places.put("search.last", max_len.new_full((n_sentence * how.beam,), BOS))
        self.place = places.put("search.place", max_len.new_zeros(1))
        self.of = places.put_all("search.", first_table(how, max_len, score))
        self.notes = places.put_all("search.", first_notes(n_sentence, room, how.beam, score))

    def go_on(self, logits: Tensor) -> Tensor:
        """The end of a step: logits (R, V), which may be changed. Returns which rows the hypotheses continue, (R,)."""
        how, of, places, n_column = self._how, self.of, self._places, logits.size(-1)
        state, text, divisors = of["state"].flatten(), self._characters, self.divisors()
        allowed = partial(places.once, f"allowed.{how.n_real}.{n_column}", partial(self._allowed, n_column))
        rows = ops.end_of_step(logits, allowed, state, of, self.notes, self.last, self.place, divisors, eos=EOS)
        if rows is not None:  # by kernels of a GPU
            self.place += 1
            if text is not None:
                of["state"].copy_(text.follow(state[rows], self.last).view_as(of["state"]))
            return rows
        never = places.once(f"never.{how.n_real}", lambda: self.last.new_tensor(how.impossible(n_column, text)))
        topk = topk_tokens(logits, min(how.beam + 1, n_column), never, text, state)
        divisor, next_divisor = (divisors.index_select(0, self.place + more) for more in (1, 2))
        noted, changes = end_of_step(of, topk, how, self.place, divisor, next_divisor, text, logits)
        for name, what in noted.items():
            self.notes[name].index_copy_(1, self.place, what.unsqueeze(1))
        self.place += 1
        for name, value in changes.items():
            of[name].copy_(value)
        self.last.copy_(noted["token"].flatten())
        first = torch.arange(0, len(self.last), how.beam, device=logits.device)
        return (first.unsqueeze(1) + noted["parent"]).flatten()

    def _allowed(self, n_column: int) -> Tensor:
        """(S, V) uint8, 1 for the columns that may be chosen in each state."""
        never, text = torch.tensor(self._how.impossible(n_column), device=self.last.device), self._characters
        after = never.new_zeros(1, n_column) if text is None else text.after
        allowed = torch.zeros(len(after), n_column, dtype=torch.uint8, device=never.device)
        allowed[:, : after.size(1)] = after >= 0
        return allowed.index_fill_(1, never, 0)

    def keep(self, gaps: Gaps) -> None:
        """Let sentences leave."""
        self.of, self.notes = gaps.close_all(self.of), gaps.close_all(self.notes)
        self.last = gaps.close(self.last.view(-1, self._how.beam)).flatten()

    def widen(self, room: int) -> None:
        """Make room for so many steps."""
        self.room = room
        self.notes = {name: self._places.widen(f"search.{name}", note, 1, room) for name, note in self.notes.items()}

    def divisors(self) -> Tensor:
        """(T + 2,) what scores of hypotheses of each length are divided by."""
        how, n = self._how, self.room + 2
        return self._places.once(
            f"divisors.{how.length_penalty}.{how.alpha}.{n}",
            lambda: how.divisor(torch.arange(n, device=self._places.device)),
        )


# Steps that there is room for at first; then twice as many, and so on. All of the room is read at every step.
FIRST_ROOM = 32
# Leaving takes as long as some small steps, so it waits until the shape of those that stay is that share of the present
# one; and fewer rows than these are no fewer tiles of a product.
_SMALLER = 0.75
_FEWEST_ROWS = 128


def bucket(n: int) -> int:
    """The size that n is filled up to: 8, 16, … 64, 80, 96, 112, 128, 160, …: four between two powers of two."""
    step = max(8, 1 << max(0, (n - 1).bit_length() - 3))
    return -(-n // step) * step


class FixedSearch:
    """`beam.search` without rules, for one model. Several threads may share it, and take turns."""

    def __init__(self, model: SearchModel) -> None:
        self.model = model
        self._lock = threading.Lock()
        self._places: Buffers | None = None
        self._recorder = Recorder(model.device)

    @torch.inference_mode()
    def __call__(
        self, src_seq: Tensor, how: BeamSettings, max_len: Tensor, characters: Characters | None = None
    ) -> list[list[Hypothesis]]:
        """The n_best translations of each sentence, best first; all arguments are those of `beam.search`."""
        device = self.model.device
        if not len(src_seq):
            return []
        # Streams and events are those of the present device.
        with self._lock, torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            try:
                self._places = self._places or Buffers(device)
                return self._search(self._places, src_seq, how, max_len, characters)
            except BaseException:  # such as too little memory: what is held here is not in the way of another try
                self._places = None
                self._recorder.keep_while(None)
                raise

    def _search(
        self, places: Buffers, src_seq: Tensor, how: BeamSettings, max_len: Tensor, characters: Characters | None
    ) -> list[list[Hypothesis]]:
        model, (n_sentence, n_src) = self.model, src_seq.shape
        sentence, n_src_fixed = np.arange(bucket(n_sentence)), bucket(n_src)  # from n_sentence on there is none
        n_more = len(sentence) - n_sentence
        src_seq = F.pad(src_seq, (0, n_src_fixed - n_src, 0, n_more), value=PAD)
        src_seq[n_sentence:, 0] = EOS
        # Two steps more than the longest translation has may be made before the host hears that it is done.
        model.grow_tables(int(max_len.max()) + 3)
        state = FixedState(model.start(src_seq), places, n_row=how.beam, n_step=FIRST_ROOM)
        longest = F.pad(max_len.to(places.device), (0, n_more))
        table = Table(how, places, longest, FIRST_ROOM, score_type(model), characters)
        weights = tuple((one.data_ptr(), one.numel()) for one in (*model.parameters(), *model.buffers()))
        sent: list[tuple[NDArray[np.int64], dict[str, Tensor]]] = []  # of which sentences, and what was noted

        def advance() -> None:
            """A step, from places to places: on a GPU, what is recorded."""
            state.reorder(table.go_on(model.step(table.last, state)))

        def send_away(which: NDArray[np.int64]) -> None:
            """Begin to copy to the host what was noted of the sentences in these places, if there are any there."""
            which = which[sentence[which] < n_sentence]
            rows = send(torch.from_numpy(which), places.device)
            notes = {name: note[rows, :n_step].to("cpu", non_blocking=True) for name, note in table.notes.items()}
            sent.append((sentence[which], notes))

        on_gpu, n_step = places.device.type == "cuda", 0
        told: tuple[Tensor, Any] | None = None  # what is done after a step, and the event after which the host has it
        while True:
            if n_step == table.room:
                table.widen(2 * n_step)
                state.widen(2 * n_step)
            self._recorder.keep_while((places.moves, weights))
            self._recorder.run((how, len(sentence), n_src_fixed, table.room), advance)
            n_step += 1
            # The host reads one step late what is done, so that by then the device has more to do.
            copy = table.of["done"].to("cpu", non_blocking=True, copy=True)
            before, told = told, (copy, torch.cuda.current_stream().record_event() if on_gpu else None)
            if before is None:
                continue
            done, arrived = before
            if on_gpu:
                arrived.synchronize()
            if not (n_left := int((~done).sum())):
                break
            n = max(bucket(n_left), bucket(-(-_FEWEST_ROWS // how.beam)))
            if n > _SMALLER * len(sentence):
                continue
            # Those that are done leave, and n go on, of which some may be done, too. More may be by now: they are heard
            # of later.
            send_away(np.flatnonzero(done.numpy()))
            stay = closing(done, n)
            sentence = np.where(done[stay].numpy(), n_sentence, sentence[stay.numpy()])
            gaps, told = Gaps.of(stay, places.device), None
            table.keep(gaps)
            state.keep(gaps)
        send_away(np.arange(len(sentence)))
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        found: list[list[Hypothesis]] = [[] for _ in range(n_sentence)]
        for sentences, notes in sent:
            its = {name: note.numpy() for name, note in notes.items()}
            divisors = how.divisor(torch.arange(1, its["token"].shape[1] + 1)).numpy()
            for number, one in zip(sentences, traced(**its, divisors=divisors, n=how.n_best), strict=True):
                found[number] = one
        if not all(found):
            raise not_finite()
        return found
