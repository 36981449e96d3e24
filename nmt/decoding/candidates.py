"""The best continuations of the hypotheses of a search: found, and those kept that go on.

Shapes: B sentences, K hypotheses of each, R = B·K rows, V vocabulary, C candidates.
"""

import codecs
import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class Candidates(NamedTuple):
    """The best continuations of each sentence, best first; all three are (B, C)."""

    score: Tensor  # log-probability up to and including the token; -inf where there is no candidate
    parent: Tensor  # hypothesis that is continued, 0 … K-1
    token: Tensor


def best_of(found: Candidates, n: int, rank: Tensor | None = None) -> Candidates:
    """The n of each sentence with the highest scores, or ranks, (B, C), best first."""
    # Stable: among equals the better parent comes first, whatever the batch looks like.
    place = (found.score if rank is None else rank).sort(dim=1, descending=True, stable=True).indices[:, :n]
    found = Candidates(*(part.gather(1, place) for part in found))
    if missing := n - place.size(1):
        score, parent, token = found
        rest = (F.pad(one, (0, missing)) for one in (parent, token))
        found = Candidates(F.pad(score, (0, missing), value=-torch.inf), *rest)
    return found


def mostly_done(n_done: int, n_sentence: int) -> bool:
    """Return whether sentences that are done leave the batch: to move a part of every cache costs a 20th of a step."""
    return 20 * n_done >= n_sentence


# UTF-8 in a search.


# The bytes of a character that each state stands for: 0 is between characters. The last four are first bytes that not
# every other may follow.
_BEGUN = [b"", b"\xc3", b"\xe1", b"\xf1", b"\xe0", b"\xed", b"\xf0", b"\xf4"]
_NEEDED = [0, 1, 2, 3, 2, 2, 3, 3]  # bytes from each state to the end of the character
_NOWHERE = -1


class Characters(NamedTuple):
    """The tokens that keep a text in UTF-8. after: (8, V) the state after each token in each state, -1 where it may
    not follow."""

    after: Tensor

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


def characters_of(pieces: Sequence[bytes]) -> Characters | None:
    """The tokens that may follow each other, from the bytes behind each id; None where every piece is whole characters.

    What has no bytes, such as EOS, may follow between characters alone.
    """
    after = np.full((8, len(pieces)), _NOWHERE, dtype=np.int8)
    after[0] = 0
    for token, raw in enumerate(pieces):
        with contextlib.suppress(UnicodeDecodeError):
            raw.decode()  # whole characters follow between characters alone
            continue
        for state in range(8):
            after[state, token] = _state_after(raw, state)
    return Characters(torch.from_numpy(after)) if (after[1:] > _NOWHERE).any() else None


def _state_after(raw: bytes, state: int) -> int:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(_BEGUN[state] + raw)
    except UnicodeDecodeError:
        return _NOWHERE
    begun = decoder.getstate()[0]
    if begun[:1] == b"\xed" and begun[1:] > b"\x9f":  # half of a surrogate pair
        return _NOWHERE
    if begun in _BEGUN:
        return _BEGUN.index(begun)
    return 2 + (begun[0] >= 0xE0) + (begun[0] >= 0xF0) - len(begun)  # bytes that are still to come
