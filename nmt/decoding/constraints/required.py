"""Phrases that a translation must contain: how much of each every hypothesis has, and what would get it on.

Shapes: B sentences still searched, K hypotheses of each, R = B·K rows, V vocabulary, C candidates; W phrases of all
sentences, one after another, P of the sentence that has most of them; M subwords that get on with a phrase.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.decoding.constraints.phrases import Pieces, Wanted
from nmt.decoding.scoring.candidates import Candidates


class Required:
    """The phrases of a batch, and the states of every hypothesis in them. asked: those of each sentence."""

    def __init__(self, pieces: Pieces, asked: Sequence[Sequence[Wanted]], device: torch.device) -> None:
        every = [(b, column, wanted) for b, one in enumerate(asked) for column, wanted in enumerate(one)]
        tables = {wanted: pieces.phrase(*wanted) for _, _, wanted in every}
        first, n_state = dict[Wanted, int](), 0
        for wanted, table in tables.items():
            first[wanted], n_state = n_state, n_state + len(table.complete)
        self._n_sentence, self._n_column = len(asked), max(map(len, asked), default=0)
        # (W,) the sentence of each, which of its phrases it is, and the first of its states in the tables of all.
        self._sentence, self._column, self._first = (
            torch.tensor(part, dtype=torch.long, device=device)
            for part in ([b for b, _, _ in every], [n for _, n, _ in every], [first[one] for _, _, one in every])
        )
        self._state = self._first.unsqueeze(1)  # (W, K)
        if tables:  # one after another: (n_state, …), and (n_state, M) the subwords that get on with a phrase, or -1
            parts = [(one.after, one.complete, one.left, one.matched, one.waits) for one in tables.values()]
            self._after, self._complete, self._left, self._matched, self._waits = (
                torch.from_numpy(np.concatenate(part)).to(device) for part in zip(*parts, strict=True)
            )
            self._onward = torch.from_numpy(_padded([ids for one in tables.values() for ids in one.onward])).to(device)

    def __bool__(self) -> bool:
        """Whether any sentence still searched has any."""
        return len(self._sentence) > 0

    def spread(self, n: int) -> None:
        """Let each sentence, which has one hypothesis, have n of it."""
        self._state = self._state.repeat(1, n)

    def lacking(self) -> Tensor:
        """(B, K) whether a hypothesis would lack a phrase if it ended now."""
        n = torch.zeros(self._n_sentence, self._state.size(1), dtype=torch.long, device=self._state.device)
        return n.index_add_(0, self._sentence, (~self._complete[self._state]).long()) > 0

    def get_on(self, row: Tensor, token: Tensor) -> Tensor:
        """(N,) whether a subword gets a hypothesis on with a phrase that it lacks. row, token: (N,)"""
        n = self._state.size(1)
        state = self._state[:, row % n]  # (W, N)
        more = self._matched[self._next(state, token.expand_as(state))] > self._matched[state]
        return (more & (self._sentence.unsqueeze(1) == row // n)).any(0)

    def follow(self, parent: Tensor, token: Tensor) -> None:
        """Hypothesis k of a sentence is from now on old hypothesis parent[k] and one more token. Both (B, K)."""
        state = self._state.gather(1, parent[self._sentence])
        self._state = self._next(state, token[self._sentence])

    def keep(self, sentences: Tensor) -> None:
        """Let sentences leave. sentences: (B',) the ones that stay."""
        place = sentences.new_full((self._n_sentence,), -1)
        place[sentences] = torch.arange(len(sentences), device=sentences.device)
        stay = place[self._sentence] >= 0
        self._n_sentence, self._sentence = len(sentences), place[self._sentence[stay]]
        self._column, self._first, self._state = self._column[stay], self._first[stay], self._state[stay]

    def advancing(self, found: Candidates, logits: Tensor, score: Tensor, normaliser: Tensor) -> Candidates:
        """The likeliest continuation of each hypothesis that gets on with each phrase, or leaves one standing that is
        there unless a letter follows; but none that is found already.

        found: (B, C), the same number of each hypothesis, one after another; logits: (R, V) of what may follow;
        score: (B, K); normaliser: (R,). Returns (B, K·P).
        """
        n = score.size(1)
        best, which = self._likeliest(logits)
        value = logits.new_full((len(score), n, self._n_column), -torch.inf)
        token = torch.zeros_like(value, dtype=torch.long)
        value[self._sentence, :, self._column], token[self._sentence, :, self._column] = best, which
        value = value - normaliser.view(-1, n, 1) + score.unsqueeze(2)
        there = found.token.view(len(score), n, 1, -1)
        here = token.masked_fill(value == -torch.inf, -1)
        again = (token.unsqueeze(3) == there).any(3) | (token.unsqueeze(3) == here.unsqueeze(2)).tril(-1).any(3)
        parent = torch.arange(n, device=score.device).view(1, n, 1).expand_as(token)
        return Candidates(value.masked_fill(again, -torch.inf).flatten(1), parent.flatten(1), token.flatten(1))

    def lack(self, found: Candidates) -> Tensor:
        """(B, C) how many subwords of its phrases each candidate still lacks."""
        before = self._state.gather(1, found.parent[self._sentence])
        left = self._left[self._next(before, found.token[self._sentence])]
        return torch.zeros_like(found.token).index_add_(0, self._sentence, left)

    def _next(self, state: Tensor, token: Tensor) -> Tensor:
        """The states after one more token. state, token: (W, N)"""
        return self._after[state, token].long() + self._first.unsqueeze(1)

    def _likeliest(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest subword that gets each hypothesis on with each phrase, or leaves it standing where it waits for
        anything but a letter: logit and id, both (W, K)."""
        n = self._state.size(1)
        token = self._onward[self._state]  # (W, K, M)
        row = (self._sentence * n).unsqueeze(1) + torch.arange(n, device=logits.device)
        value = logits[row.unsqueeze(2), token.clamp(min=0)].masked_fill(token < 0, -torch.inf)
        left = self._left[self._next(self._state.repeat_interleave(token.size(2), 1), token.clamp(min=0).flatten(1))]
        usual = value.masked_fill(left.view_as(token) >= self._left[self._state].unsqueeze(2), -torch.inf)
        best, place = torch.where((usual > -torch.inf).any(2, keepdim=True), usual, value).max(2)
        token = token.gather(2, place.unsqueeze(2)).squeeze(2).clamp(min=0)
        phrase, k = self._waits[self._state].nonzero(as_tuple=True)
        if len(phrase):
            state = self._state[phrase, k].unsqueeze(1)
            after = self._after[state.squeeze(1)].long() + self._first[phrase].unsqueeze(1)  # (N, V)
            lost = self._matched[after] < self._matched[state]
            best[phrase, k], token[phrase, k] = logits[row[phrase, k]].masked_fill(lost, -torch.inf).max(1)
        return best, token


def _padded(rows: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """(n_row, length of the longest), with -1 where a row is shorter."""
    found = np.full((len(rows), max(map(len, rows))), -1, dtype=np.int64)
    for place, row in enumerate(rows):
        found[place, : len(row)] = row
    return found
