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

    score: (B, K); best, token: (B·K, n), the highest logits of each row and their columns; normaliser: (B·K,). A
    sentence's n best are among the n best of each of its rows, so no (R, V) log-softmax is needed.
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


def mostly_done(n_done: int, n_sentence: int) -> bool:
    """Return whether sentences that are done leave the batch: to move a part of every cache costs a 20th of a step."""
    return 20 * n_done >= n_sentence


# UTF-8 in a search.


# State 0 is between characters. From each other one: the lowest and highest byte that may follow, and the state then.
_NEXT = {1: (0x80, 0xBF, 0), 2: (0x80, 0xBF, 1), 3: (0x80, 0xBF, 2)}
_NEXT |= {4: (0xA0, 0xBF, 1), 5: (0x80, 0x9F, 1), 6: (0x90, 0xBF, 2), 7: (0x80, 0x8F, 2)}
_FIRST = [(0x00, 0x7F, 0), (0xC2, 0xDF, 1), (0xE0, 0xE0, 4), (0xE1, 0xEC, 2), (0xED, 0xED, 5), (0xEE, 0xEF, 2)]
_FIRST += [(0xF0, 0xF0, 6), (0xF1, 0xF3, 3), (0xF4, 0xF4, 7)]
_NEEDED = [0, 1, 2, 3, 2, 2, 3, 3]  # bytes from each state to the end of the character
_NOWHERE = -1


class Characters(NamedTuple):
    """The tokens that keep a text in UTF-8. after: (8, V) the state after each token in each state, -1 where it may
    not follow."""

    after: Tensor

    def to(self, device: torch.device) -> "Characters":
        """The same on a device."""
        return Characters(self.after.to(device))

    def never(self) -> list[int]:
        """Tokens that may not follow between characters."""
        return (self.after[0] == _NOWHERE).nonzero().flatten().tolist()

    def follow(self, state: Tensor, token: Tensor) -> Tensor:
        """The states of hypotheses after one more token each. Both of one shape, and so is the result."""
        return self.after[state, token.clamp(max=self.after.size(1) - 1)].long().clamp(min=0)

    def forbid(self, logits: Tensor, state: Tensor) -> None:
        """Make impossible what may not follow. logits: (R, V), changed in place; state: (R,)."""
        logits[:, : self.after.size(1)].masked_fill_(self.after[state] == _NOWHERE, -torch.inf)
        logits[:, self.after.size(1) :] = -torch.inf

    def leave_room(self, logits: Tensor, state: Tensor, room: Tensor) -> None:
        """Make impossible what begins a character that the cap would cut, where anything else may follow.

        logits: (R, V), changed in place; state: (R,). room: (R,) tokens that may follow the next one.
        """
        if int(room.min()) >= max(_NEEDED):
            return
        known = logits[:, : self.after.size(1)]
        needed = torch.tensor(_NEEDED, device=logits.device)[self.after[state].long().clamp(min=0)]
        left = known.masked_fill(needed > room.unsqueeze(1), -torch.inf)
        known.copy_(torch.where((left > -torch.inf).any(1, keepdim=True), left, known))

    def ends(self, forced: Tensor, score: Tensor, state: Tensor, has_ended: Tensor) -> Tensor:
        """The scores of hypotheses that a cap ends, (B, K): none inside a character if another one of its sentence ends
        as it should. score, state: (B, K) of all hypotheses; has_ended: (B,) whether one of the sentence has ended."""
        fine = has_ended | ((state == 0) & (score > -torch.inf)).any(1)
        return forced.masked_fill((state > 0) & fine.unsqueeze(1), -torch.inf)


def characters_of(pieces: Sequence[bytes]) -> Characters | None:
    """The tokens that may follow each other, from the bytes behind each id; None where every piece is whole characters.

    What has no bytes, such as EOS, may follow between characters alone.
    """
    after = np.full((8, len(pieces)), _NOWHERE, dtype=np.int8)
    after[0] = 0
    for token, raw in enumerate(pieces):
        if not raw.isascii():
            for state in range(8):
                after[state, token] = _state_after(raw, state)
    return Characters(torch.from_numpy(after)) if (after[1:] > _NOWHERE).any() else None


def _state_after(raw: bytes, state: int) -> int:
    for byte in raw:
        ways = [_NEXT[state]] if state else _FIRST
        state = next((new for low, high, new in ways if low <= byte <= high), _NOWHERE)
        if state == _NOWHERE:
            break
    return state
