"""The best continuations of the hypotheses of a search: found, and those kept that go on.

Shapes: B sentences, K hypotheses of each, R = B·K rows, V vocabulary, C candidates.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Candidates(NamedTuple):
    """The best continuations of each sentence, best first; all three are (B, C)."""

    score: Tensor  # log-probability up to and including the token; -inf where there is no candidate
    parent: Tensor  # hypothesis that is continued, 0 … K-1
    token: Tensor


def continuations(score: Tensor, best: Tensor, token: Tensor, normaliser: Tensor) -> Candidates:
    """All of the best ways to continue each hypothesis of each sentence by one token, hypothesis by hypothesis.

    score: (B, K) of the live hypotheses; best, token: (B·K, n), the highest possible logits of each row, best first,
    and their columns; normaliser: (B·K,). A sentence's n best are among the n best of each of its rows, so neither an
    (R, V) log-softmax is needed, nor more of a row than what a beam keeps of all.
    """
    n_sentence, n_live = score.shape
    total = ((best - normaliser.unsqueeze(1)).view(n_sentence, n_live, -1) + score.unsqueeze(2)).flatten(1)
    parent = torch.arange(n_live, device=score.device).repeat_interleave(best.size(1))
    return Candidates(total, parent.expand_as(total), token.view(n_sentence, -1))


def best_of(found: Candidates, rank: Tensor, n: int) -> Candidates:
    """The n of each sentence that are ranked highest, best first. rank: (B, C)"""
    # Stable: among equals the better parent comes first, whatever the batch looks like.
    place = rank.sort(dim=1, descending=True, stable=True).indices[:, :n]
    found = Candidates(*(part.gather(1, place) for part in found))
    if missing := n - place.size(1):
        fill = torch.nn.functional.pad
        found = Candidates(
            fill(found.score, (0, missing), value=-torch.inf),
            fill(found.parent, (0, missing)),
            fill(found.token, (0, missing)),
        )
    return found


def keep(found: Candidates, beam: int, eos: int) -> Candidates:
    """The `beam` best continuations that go on. Of 2·beam candidates at most `beam` end, so there are enough."""
    order = (found.token == eos).to(torch.uint8).sort(dim=1, stable=True).indices[:, :beam]
    kept = Candidates(*(part.gather(1, order) for part in found))
    return kept._replace(score=kept.score.masked_fill(kept.token == eos, -torch.inf))


# When sentences that are done are taken out of the batch that is searched.


# To take them out moves a part of every cache, which costs about so much of a step.
_COST = 0.05


class LeavePolicy:
    """They leave when, by staying, they have cost as much as that does: so in all never over twice the least possible,
    whether many are done at once or, in a long batch, one after the other."""

    def __init__(self) -> None:
        self._wasted = 0.0  # of steps, since the last time

    def pays(self, n_done: int, n_sentence: int) -> bool:
        """Return whether they leave now: n_done of n_sentence in the step that was made."""
        self._wasted += n_done / n_sentence
        if self._wasted < _COST:
            return False
        self._wasted = 0.0
        return True


# UTF-8 in a search.


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
