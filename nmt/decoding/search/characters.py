"""UTF-8 in a search: no token is chosen that breaks a character, and no translation ends inside one.

The pieces of a vocabulary may be single bytes, or cut through characters. Where a hypothesis stands in its last
character is a state of the automaton that accepts UTF-8 (RFC 3629), carried along from token to token. Knows the bytes
behind ids, and no text.
Shapes: R rows, V vocabulary, N tokens that begin inside a character.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# State 0 is between characters. From each other one: the lowest and highest byte that may follow, and the state then.
_NEXT = {1: (0x80, 0xBF, 0), 2: (0x80, 0xBF, 1), 3: (0x80, 0xBF, 2)}
_NEXT |= {4: (0xA0, 0xBF, 1), 5: (0x80, 0x9F, 1), 6: (0x90, 0xBF, 2), 7: (0x80, 0x8F, 2)}
_FIRST = [(0x00, 0x7F, 0), (0xC2, 0xDF, 1), (0xE0, 0xE0, 4), (0xE1, 0xEC, 2), (0xED, 0xED, 5), (0xEE, 0xEF, 2)]
_FIRST += [(0xF0, 0xF0, 6), (0xF1, 0xF3, 3), (0xF4, 0xF4, 7)]
_NEEDED = [0, 1, 2, 3, 2, 2, 3, 3]  # bytes from each state to the end of the character
_NOWHERE = -1


class Characters(NamedTuple):
    """The tokens that may follow in each state, and the state after them.

    inner: (N,) tokens that begin inside a character, which nothing else can follow there. inner_after: (8, N) the state
    after each of those, -1 where it may not follow. never: (n,) tokens that may not follow between characters, `inner`
    among them. after: (V,) the state after each of the others.
    """

    inner: Tensor
    inner_after: Tensor
    never: Tensor
    after: Tensor

    def named(self) -> list[tuple[str, Tensor]]:
        """The parts with their names."""
        return list(zip(self._fields, self, strict=True))

    def cut(self) -> list[int]:
        """All tokens that are no whole characters."""
        return sorted({*self.never.tolist(), *self.after.nonzero().flatten().tolist()})

    def to(self, device: torch.device) -> "Characters":
        """The same on a device."""
        return Characters(*(part.to(device) for part in self))

    def follow(self, state: Tensor, token: Tensor) -> Tensor:
        """The states of hypotheses after one more token each. Both of one shape, and so is the result."""
        place = torch.searchsorted(self.inner, token).clamp(max=len(self.inner) - 1)
        return torch.where(state > 0, self.inner_after[state, place].clamp(min=0), self.after[token])

    def forbid(self, logits: Tensor, state: Tensor) -> None:
        """Make impossible what may not follow. logits: (R, V), changed in place; state: (R,)."""
        inside = state > 0
        kept = logits[:, self.inner].masked_fill(self.inner_after[state] == _NOWHERE, -torch.inf)
        logits.index_fill_(1, self.never, -torch.inf)
        logits.masked_fill_(inside.unsqueeze(1), -torch.inf)
        logits[:, self.inner] = torch.where(inside.unsqueeze(1), kept, logits[:, self.inner])

    def leave_room(self, logits: Tensor, state: Tensor, room: Tensor) -> None:
        """Make impossible what begins a character that the cap would cut, where anything else may follow.

        logits: (R, V), changed in place; state: (R,). room: (R,) tokens that may follow the next one.
        """
        if int(room.min()) >= max(_NEEDED):
            return
        n_token = len(self.after)
        token = torch.arange(n_token, device=logits.device).repeat(len(state), 1)
        after = self.follow(state.unsqueeze(1).expand_as(token), token)
        fits = logits.new_tensor(_NEEDED)[after] <= room.unsqueeze(1)
        left = logits[:, :n_token].masked_fill(~fits, -torch.inf)
        logits[:, :n_token] = torch.where((left > -torch.inf).any(1, keepdim=True), left, logits[:, :n_token])

    def ends(self, forced: Tensor, score: Tensor, state: Tensor, has_ended: Tensor) -> Tensor:
        """The scores of hypotheses that a cap ends, (B, K): none inside a character if another one of its sentence ends
        as it should. score, state: (B, K) of all hypotheses; has_ended: (B,) whether one of the sentence has ended."""
        fine = has_ended | ((state == 0) & (score > -torch.inf)).any(1)
        return forced.masked_fill((state > 0) & fine.unsqueeze(1), -torch.inf)

    def allowed(self, n_column: int, never: Tensor) -> Tensor:
        """Return which of so many columns may follow in each state and are not among `never`: (8, V) uint8."""
        allowed = torch.zeros(len(self.inner_after), n_column, dtype=torch.uint8, device=never.device)
        allowed[:, self.inner] = (self.inner_after != _NOWHERE).to(torch.uint8)
        allowed[0] = 1
        allowed[0, self.never] = 0
        return allowed.index_fill_(1, never, 0)

    def best_inside(self, logits: Tensor, state: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """The n best tokens of each row among those that begin inside a character: two (R, n), logit and token.

        Of logits (R, V); -inf where fewer may follow in the state, (R,).
        """
        logits = logits.index_select(1, self.inner).masked_fill(self.inner_after[state] == _NOWHERE, -torch.inf)
        best, place = logits.topk(min(n, len(self.inner)), dim=-1)
        missing = n - best.size(1)
        fill = torch.nn.functional.pad
        return fill(best, (0, missing), value=-torch.inf), self.inner[fill(place, (0, missing))]


def characters_of(pieces: Sequence[bytes]) -> Characters | None:
    """The tokens that may follow each other, from the bytes behind each id; None where every piece is whole characters.

    What has no bytes, such as EOS, may follow between characters alone.
    """
    inner, broken, after = [], [], np.zeros(len(pieces), np.int64)
    for token, raw in enumerate(pieces):
        if raw.isascii():
            continue
        if 0x80 <= raw[0] <= 0xBF:
            inner.append(token)
        elif (state := _state_after(raw, 0)) == _NOWHERE:
            broken.append(token)
        else:
            after[token] = state
    if not inner:
        return None
    inner_after = [[_state_after(pieces[token], state) if state else _NOWHERE for token in inner] for state in range(8)]
    return Characters(
        torch.tensor(inner),
        torch.tensor(inner_after),
        torch.tensor(sorted({*inner, *broken})),
        torch.from_numpy(after),
    )


def _state_after(raw: bytes, state: int) -> int:
    for byte in raw:
        ways = [_NEXT[state]] if state else _FIRST
        state = next((new for low, high, new in ways if low <= byte <= high), _NOWHERE)
        if state == _NOWHERE:
            break
    return state
