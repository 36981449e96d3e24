"""Decoder states whose tensors keep their shapes and places, so that a GPU can record a step and replay it.

A recording is a list of kernels with the addresses that they read and write. So all that a step reads and writes lies
in `Places`; how far decoding has come is a number on the device; and there is room for many steps from the start, of
which masks hide those to come.

Shapes: B sentences, K hypotheses of each, R = B·K rows, G key/value heads.
"""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from nmt.decoding.scoring.ensemble import States
from nmt.models.base import DecoderState
from nmt.models.gaps import Gaps


class Places:
    """Memory that stays where it is, by name: what has one name lies in one place, whatever its shape at the time.

    moves: how often something was given another place, having outgrown its own: recordings from before are void.
    caches: of each cache that any state had so far, the heads, the width and the type.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.moves = 0
        self.caches: dict[str, tuple[int, int, torch.dtype]] = {}
        self._memory: dict[str, Tensor] = {}

    def room(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The place itself, with whatever lies there."""
        n_number, memory = prod(shape), self._memory.get(name)
        if memory is None or memory.numel() < n_number or memory.dtype != dtype:
            self.moves += 1
            self._memory[name] = memory = torch.empty(n_number, dtype=dtype, device=self.device)
        return memory[:n_number].view(shape)

    def put(self, name: str, value: Tensor) -> Tensor:
        """A copy of `value`, which may not share memory with the place."""
        return self.room(name, tuple(value.shape), value.dtype).copy_(value)

    def once(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """What `make` gave the first time, of one dimension."""
        return self._memory[name] if name in self._memory else self.put(name, make())

    def widen(self, name: str, value: Tensor, dim: int, n: int) -> Tensor:
        """`value`, which lies there, with n entries along `dim`; the new ones are 0."""
        old, shape = value.clone(), (*value.shape[:dim], n, *value.shape[dim + 1 :])
        wide = self.room(name, shape, value.dtype).zero_()
        wide.narrow(dim, 0, old.size(dim)).copy_(old)
        return wide


class FixedState(DecoderState):
    """A state with room for n_step tokens of n_row hypotheses a sentence, made of one that has read nothing yet.

    prefix: what the names of its places begin with. Another state that takes them is the end of this one.
    """

    n_step: Tensor  # (1,)
    ancestry: Tensor
    _slots: Tensor  # (K,) those of the token that is being read

    def __init__(self, state: DecoderState, places: Places, *, n_row: int, n_step: int, prefix: str = "") -> None:
        super().__init__({}, {}, state.n_sentence)
        self._places, self._prefix, self._n_row, self._n_slot = places, prefix, n_row, n_step * n_row
        self.per_sentence = self._put(state.per_sentence)
        self.per_row = self._put({name: tensor.repeat_interleave(n_row, 0) for name, tensor in state.per_row.items()})
        self.n_step = self._room("n_step", (1,), torch.int64).zero_()
        self.ancestry = self._room("ancestry", (state.n_sentence * n_row, self._n_slot), torch.bool).zero_()
        # The rooms of a state before: a replayed step finds them without asking `remember` for any.
        for name in [name for name in places.caches if name.startswith(prefix)]:
            self._cache(name.removeprefix(prefix), *places.caches[name])

    def look_back(self, visible: Tensor) -> Tensor:
        row = torch.arange(self._n_row, device=visible.device)
        self._slots = self.n_step * self._n_row + row
        own = (row.unsqueeze(1) == row) & visible.view(-1, self._n_row, 1)
        self.ancestry.index_copy_(1, self._slots, own.flatten(0, 1))
        return self.ancestry.view(self.n_sentence, 1, self._n_row, -1)

    def remember(self, name: str, new: Tensor) -> Tensor:
        if name not in self.seen:
            self._places.caches[self._prefix + name] = kind = (new.size(1), new.size(3), new.dtype)
            self._cache(name, *kind)
        return self.seen[name].index_copy_(2, self._slots, new)

    def reorder(self, rows: Tensor) -> None:
        self.per_row = self._put({name: tensor.index_select(0, rows) for name, tensor in self.per_row.items()})
        (self.ancestry,) = self._put({"ancestry": self.ancestry.index_select(0, rows)}).values()

    def keep(self, sentences: Tensor) -> None:
        gaps = Gaps.of(sentences, self._places.device)
        self.per_sentence, self.seen = gaps.close_all(self.per_sentence), gaps.close_all(self.seen)
        self.n_sentence = gaps.n

    def widen(self, n_step: int) -> None:
        """Make room for so many tokens in all."""
        self._n_slot = n_step * self._n_row
        widen, prefix = self._places.widen, self._prefix
        self.seen = {name: widen(prefix + name, tensor, 2, self._n_slot) for name, tensor in self.seen.items()}
        self.ancestry = widen(prefix + "ancestry", self.ancestry, 1, self._n_slot)

    def _cache(self, name: str, n_head: int, width: int, dtype: torch.dtype) -> None:
        # Zeros, since what is hidden is multiplied by zero, which not everything survives.
        shape = (self.n_sentence, n_head, self._n_slot, width)
        self.seen[name] = self._room(name, shape, dtype).zero_()

    def _room(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self._places.room(self._prefix + name, shape, dtype)

    def _put(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._places.put(self._prefix + name, value) for name, value in values.items()}


class FixedStates(States):
    """The fixed states of several models, which move together."""

    def __init__(self, states: States, places: Places, *, n_row: int, n_step: int, prefix: str = "") -> None:
        each = [
            fixed(state, places, n_row=n_row, n_step=n_step, prefix=f"{prefix}{number}.")
            for number, state in enumerate(states.states)
        ]
        super().__init__(list[DecoderState](each))
        self._each = each

    def widen(self, n_step: int) -> None:
        """Make room for so many tokens in all."""
        for state in self._each:
            state.widen(n_step)


def fixed(
    state: DecoderState, places: Places, *, n_row: int, n_step: int, prefix: str = ""
) -> "FixedState | FixedStates":
    """A state before its first token, made fixed."""
    if isinstance(state, States):
        return FixedStates(state, places, n_row=n_row, n_step=n_step, prefix=prefix)
    return FixedState(state, places, n_row=n_row, n_step=n_step, prefix=prefix)
