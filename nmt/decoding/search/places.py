"""Memory that stays where it is, for work that a GPU records with the addresses that it reads and writes.

Shapes: B entries, such as sentences; N tensors that lie side by side.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod

import torch
from torch import Tensor

from nmt.models.gaps import Gaps

_ALIGNED = 16  # numbers: as a kernel likes to read them
Kind = tuple[str, int, int, torch.dtype]  # of a cache: the prefix of its state, heads, width and type


class Places:
    """Memory that stays where it is, by name: what has one name lies in one place, whatever its shape at the time.

    moves: how often something was given another place, having outgrown its own: recordings from before are void.
    caches: names of all caches that any state had so far, by their kind.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.moves = 0
        self.caches: dict[Kind, list[str]] = {}
        self._memory: dict[str, Tensor] = {}

    def alike(self, name: str, n: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The places of n tensors of one shape and type, with whatever lies there: (n, *shape). Each of them is
        contiguous, and begins where it always does."""
        n_number, memory = prod(shape), self._memory.get(name)
        if memory is None or len(memory) != n or memory.size(1) < n_number or memory.dtype != dtype:
            self.moves += 1
            memory = None
            self._memory.pop(name, None)  # it makes room for the new one, unless somebody still needs it
            room = -(-n_number // _ALIGNED) * _ALIGNED
            self._memory[name] = memory = torch.empty(n, room, dtype=dtype, device=self.device)
        return memory[:, :n_number].view(n, *shape)

    def widen(self, name: str, value: Tensor, dim: int, n: int) -> Tensor:
        """`value`, which lies there, (N, ...), with n entries along `dim`; the new ones are 0."""
        shape = (*value.shape[:dim], n, *value.shape[dim + 1 :])
        is_moved = self._memory[name].size(1) < prod(shape[1:])  # then what is there now stays as it is
        old = value if is_moved else value.clone()
        wide = self.alike(name, shape[0], shape[1:], value.dtype).zero_()
        wide.narrow(dim, 0, old.size(dim)).copy_(old)
        return wide

    def put(self, name: str, value: Tensor) -> Tensor:
        """A copy of `value`, which may not share memory with the place."""
        return self.alike(name, 1, tuple(value.shape), value.dtype)[0].copy_(value)

    def once(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """What `make` gave the first time, of one dimension."""
        if name not in self._memory:
            self._memory[name] = make().unsqueeze(0)
        return self._memory[name][0]


class Pile:
    """Tensors of one shape and type, by name, side by side in one place: what is done to all of them is one kernel.

    names: in the order of `all`, (N, B, ...).
    """

    def __init__(self, places: Places, name: str, names: list[str], shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._places, self._name, self.names = places, name, names
        self.all = places.alike(name, len(names), shape, dtype)

    def close(self, gaps: Gaps) -> None:
        """Let entries leave."""
        self.all = gaps.close(self.all, 1)

    def widen(self, dim: int, n: int) -> None:
        """Make it n entries along `dim` of each tensor; the new ones are 0."""
        self.all = self._places.widen(self._name, self.all, 1 + dim, n)

    def add(self, name: str) -> None:
        """One more tensor, of zeros."""
        old, self.names = self.all, [*self.names, name]
        self.all = self._places.alike(self._name, len(self.names), tuple(old.shape[1:]), old.dtype).zero_()
        self.all[:-1].copy_(old)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Each by its name."""
        return zip(self.names, self.all.unbind(), strict=True)


def pile_up(places: Places, prefix: str, values: Mapping[str, Tensor]) -> list[Pile]:
    """Copies of tensors by name, those alike on one pile; the name of a place is prefix and that of the first there."""
    kinds: dict[tuple[torch.Size, torch.dtype], list[str]] = {}
    for name, value in values.items():
        kinds.setdefault((value.shape, value.dtype), []).append(name)
    piles = [Pile(places, prefix + names[0], names, tuple(shape), kind) for (shape, kind), names in kinds.items()]
    for pile in piles:
        for name, place in pile:
            place.copy_(values[name])
    return piles


def spread(piles: Iterable[Pile]) -> dict[str, Tensor]:
    """All that lies on some piles, by name."""
    return {name: value for pile in piles for name, value in pile}
