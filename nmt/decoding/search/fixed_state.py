"""Decoder states whose tensors keep their shapes and places, so that a GPU can record a step and replay it.

A recording is a list of kernels with the addresses that they read and write. So all that a step reads and writes lies
in `Places`; how far decoding has come is a number on the device; and there is room for many steps from the start, of
which masks hide those to come.

Shapes: B sentences, K hypotheses of each, R = B·K rows, G key/value heads.
"""

import torch
from torch import Tensor

from nmt.decoding.scoring.ensemble import States
from nmt.decoding.search.places import Kind, Pile, Places, pile_up, spread
from nmt.kernels import on_gpu
from nmt.models.base import DecoderState
from nmt.models.gaps import Gaps


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
        self._known = pile_up(places, prefix, state.per_sentence)
        self.per_sentence = spread(self._known)
        self.per_row = self._put({name: tensor.repeat_interleave(n_row, 0) for name, tensor in state.per_row.items()})
        self.n_step = places.alike(prefix + "n_step", 1, (1,), torch.int64)[0].zero_()
        shape = (state.n_sentence * n_row, self._n_slot)
        self.ancestry = places.alike(prefix + "ancestry", 1, shape, torch.bool)[0].zero_()
        # The caches of a state before: a replayed step finds them without asking `remember` for any.
        self._caches = {kind: self._cache(kind, names) for kind, names in places.caches.items() if kind[0] == prefix}
        self.seen = spread(self._caches.values())

    def look_back(self, visible: Tensor) -> Tensor:
        row = torch.arange(self._n_row, device=visible.device)
        self._slots = self.n_step * self._n_row + row
        own = (row.unsqueeze(1) == row) & visible.view(-1, self._n_row, 1)
        self.ancestry.index_copy_(1, self._slots, own.flatten(0, 1))
        return self.ancestry.view(self.n_sentence, 1, self._n_row, -1)

    def remember(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        new = {f"slf_k.{layer}": k, f"slf_v.{layer}": v}
        for name in new:
            if name not in self.seen:
                self._open(name, new[name])
        keys, values = (self.seen[name] for name in new)
        if on_gpu.takes_hypotheses(k, k, v):
            from nmt.kernels import search_triton

            search_triton.write(keys, values, k, v, self.n_step)
        else:
            keys.index_copy_(2, self._slots, k)
            values.index_copy_(2, self._slots, v)
        return keys, values

    def _open(self, name: str, new: Tensor) -> None:
        """Make a cache, which moves others like it."""
        kind = (self._prefix, new.size(1), new.size(3), new.dtype)
        if kind in self._caches:
            self._caches[kind].add(name)
        else:
            self._caches[kind] = self._cache(kind, [name])
        self._places.caches[kind] = self._caches[kind].names
        self.seen = spread(self._caches.values())

    def reorder(self, rows: Tensor) -> None:
        self.per_row = self._put({name: tensor.index_select(0, rows) for name, tensor in self.per_row.items()})
        (self.ancestry,) = self._put({"ancestry": self.ancestry.index_select(0, rows)}).values()

    def keep(self, gaps: Gaps) -> None:
        """As of any state; but here the rows leave with their sentences, since it is known how many each has."""
        for pile in (*self._known, *self._caches.values()):
            pile.close(gaps)
        self.per_sentence, self.seen = spread(self._known), spread(self._caches.values())
        self.per_row = {name: self._close_rows(tensor, gaps) for name, tensor in self.per_row.items()}
        self.ancestry = self._close_rows(self.ancestry, gaps)
        self.n_sentence = gaps.n

    def widen(self, n_step: int) -> None:
        """Make room for so many tokens in all."""
        self._n_slot = n_step * self._n_row
        for cache in self._caches.values():
            cache.widen(2, self._n_slot)
        self.seen = spread(self._caches.values())
        self.ancestry = self._places.widen(self._prefix + "ancestry", self.ancestry.unsqueeze(0), 2, self._n_slot)[0]

    def _cache(self, kind: Kind, names: list[str]) -> Pile:
        # Zeros, since what is hidden is multiplied by zero, which not everything survives.
        _, n_head, width, dtype = kind
        place = f"{self._prefix}seen.{n_head}.{width}.{dtype}"
        cache = Pile(self._places, place, names, (self.n_sentence, n_head, self._n_slot, width), dtype)
        cache.all.zero_()
        return cache

    def _close_rows(self, value: Tensor, gaps: Gaps) -> Tensor:
        return gaps.close(value.view(-1, self._n_row, *value.shape[1:])).flatten(0, 1)

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
