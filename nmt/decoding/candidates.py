"""Candidates of a search, and the UTF-8 automaton that keeps hypotheses valid.

Shapes: B sentences, K hypotheses of each, R = B·K rows, V vocabulary, C candidates.
"""

import codecs
import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Candidates(NamedTuple):
    """The best continuations of each sentence, best first; all three are (B, C)."""

    score: Tensor  # log-probability up to and including the token; -inf without a candidate
    parent: Tensor  # number of the hypothesis to continue, 0 … K-1
    token: Tensor


def best_of(candidates: Candidates, n: int, rank: Tensor | None = None) -> Candidates:
    """Return the n best candidates of each sentence, or all of fewer, best first. rank: (B, C), instead of scores."""
    # Stable: among equals the better parent comes first, independent of the batch.
    place = (candidates.score if rank is None else rank).sort(dim=1, descending=True, stable=True).indices[:, :n]
    return Candidates(*(part.gather(1, place) for part in candidates))


def should_shrink(n_done: int, n_sentence: int) -> bool:
    """Return whether to remove finished sentences from the batch: moving the caches costs a 20th of a step."""
    return 20 * n_done >= n_sentence


# The incomplete character that each state stands for; 0 is between characters. After the last four, first bytes, not
# every continuation byte is valid.
_INCOMPLETE = [b"", b"\xc3", b"\xe1", b"\xf1", b"\xe0", b"\xed", b"\xf0", b"\xf4"]
FORBIDDEN = -1


class Characters(NamedTuple):
    """UTF-8 automaton over tokens. after: (S, V) the state after each token in each state, FORBIDDEN if it may not
    follow. S is 8, or 1 if characters need no check: every token has whole ones, or may break them."""

    after: Tensor

    def forbidden_between(self) -> Tensor:
        """Return the tokens that may not follow between characters."""
        return (self.after[0] == FORBIDDEN).nonzero().squeeze(1)

    def follow(self, state: Tensor, token: Tensor) -> Tensor:
        """Return the states after one more token each. All three have the same shape."""
        return state if len(self.after) == 1 else self.after[state, token].long().clamp(min=0)

    def forbid(self, logits: Tensor, state: Tensor) -> Tensor:
        """Forbid tokens that may not follow. logits: (R, V), changed in place and returned; state: (R,)."""
        after = self.after if len(self.after) == 1 else self.after[state]
        return logits.masked_fill_(after == FORBIDDEN, -torch.inf)


def characters_of(pieces: Sequence[bytes]) -> Characters | None:
    """Make the automaton of a vocabulary from the bytes of each id; None if every id has whole characters. Ids without
    bytes, such as EOS, may follow only between characters."""
    after = np.full((8, len(pieces)), FORBIDDEN, dtype=np.int8)
    after[0] = 0
    for token, raw in enumerate(pieces):
        with contextlib.suppress(UnicodeDecodeError):
            raw.decode()  # whole characters follow only between characters
            continue
        after[:, token] = [_state_after(raw, state) for state in range(8)]
    return Characters(torch.from_numpy(after)) if (after[1:] > FORBIDDEN).any() else None


def _state_after(raw: bytes, state: int) -> int:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(_INCOMPLETE[state] + raw)
    except UnicodeDecodeError:
        return FORBIDDEN
    rest = decoder.getstate()[0]
    if rest[:1] == b"\xed" and rest[1:] > b"\x9f":  # half of a surrogate pair
        return FORBIDDEN
    if rest in _INCOMPLETE:
        return _INCOMPLETE.index(rest)
    return 2 + (rest[0] >= 0xE0) + (rest[0] >= 0xF0) - len(rest)  # number of missing bytes
