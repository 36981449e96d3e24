"""Constraints of the translations of a batch, and the state of every hypothesis of a search in them.

Subwords that may not follow get the logit -inf. For required phrases the places of a beam are shared out among the
hypotheses that have none, a part and all of them (Post and Vilar 2018, dynamic beam allocation; Hu et al. 2019).
Shapes: B sentences still searched, K hypotheses of each, R = B·K rows, V vocabulary, C candidates.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from nmt.data.subwords import EOS
from nmt.decoding.candidates import Candidates, best_of
from nmt.decoding.phrases import START, Ids, Phrases, Pieces, Wanted, edges
from nmt.decoding.request import Request

_END = np.array([EOS])


class Avoided:
    """The phrases that the translations of a batch must not contain, and what of them every hypothesis has begun."""

    def __init__(self, pieces: Pieces, asked: Sequence[Iterable[str]], n: int) -> None:
        self._phrases = [_avoided(pieces, frozenset(one)) for one in asked]
        self._states = [[START] * n for _ in asked]

    def forbid(self, logits: Tensor) -> None:
        """Make impossible what may not follow. logits: (R, V), changed in place."""
        rows, found, lost = list[int](), list[Ids](), list[int]()
        every = ((one, state) for one, states in zip(self._phrases, self._states, strict=True) for state in states)
        for row, (phrases, state) in enumerate(every):
            if phrases is None:
                continue
            if state == phrases.found:
                lost.append(row)
                continue
            found += phrases.completing(state)
            found += [] if phrases.may_end(state) else [_END]
            rows += [row] * (len(found) - len(rows))
        logits[lost] = -torch.inf
        if found:
            of_row, column = np.repeat(rows, [len(ids) for ids in found]), np.concatenate(found)
            logits[torch.from_numpy(of_row).to(logits.device), torch.from_numpy(column).to(logits.device)] = -torch.inf

    def follow(self, parent: Tensor, token: Tensor) -> None:
        """Hypothesis k of a sentence is from now on old hypothesis parent[k] and one more token. Both (B, K)."""
        if not any(self._phrases):
            return
        hypotheses = zip(self._phrases, self._states, parent.tolist(), token.tolist(), strict=True)
        self._states = [
            [phrases.after(before[k], i) if phrases else START for k, i in zip(parents, tokens, strict=True)]
            for phrases, before, parents, tokens in hypotheses
        ]

    def keep(self, sentences: Sequence[int]) -> None:
        """Let sentences leave. sentences: the ones that stay."""
        self._phrases, self._states = [self._phrases[b] for b in sentences], [self._states[b] for b in sentences]


@lru_cache(64)
def _avoided(pieces: Pieces, phrases: frozenset[str]) -> Phrases | None:
    normalised = list(map(pieces.codec.normalised, phrases))
    return Phrases(pieces, [(pieces.in_bytes(one), edges(one)) for one in normalised]) if phrases else None


class Required:
    """The phrases of a batch that have to be there, W in all, and the states of every hypothesis in them."""

    def __init__(self, pieces: Pieces, asked: Sequence[Sequence[Wanted]], device: torch.device, n: int) -> None:
        every = [(b, column, wanted) for b, one in enumerate(asked) for column, wanted in enumerate(one)]
        tables = {wanted: pieces.table(wanted) for _, _, wanted in every}
        first, n_state = dict[Wanted, int](), 0
        for wanted, table in tables.items():
            first[wanted], n_state = n_state, n_state + len(table.complete)
        self._n_sentence, self._n_column = len(asked), max(map(len, asked), default=0)
        # (W,) the sentence of each, which of its phrases it is, and the first of its states in the tables of all.
        self._sentence, self._column, self._first = (
            torch.tensor(part, dtype=torch.long, device=device)
            for part in ([b for b, _, _ in every], [n for _, n, _ in every], [first[one] for _, _, one in every])
        )
        self._state = self._first.unsqueeze(1).repeat(1, n)  # (W, K)
        if tables:  # one after another: (n_state, …), and (n_state, M) the subwords that get on with a phrase, or -1
            parts = [(one.after, one.complete, one.left, one.matched, one.waits) for one in tables.values()]
            self._after, self._complete, self._left, self._matched, self._waits = (
                torch.from_numpy(np.concatenate(part)).to(device) for part in zip(*parts, strict=True)
            )
            onward = [torch.from_numpy(ids) for one in tables.values() for ids in one.onward]
            self._onward = torch.nn.utils.rnn.pad_sequence(onward, batch_first=True, padding_value=-1).to(device)

    def __bool__(self) -> bool:
        """Return whether any sentence still searched has any."""
        return len(self._sentence) > 0

    def lacking(self) -> Tensor:
        """(B, K) whether a hypothesis would lack a phrase if it ended now."""
        n = torch.zeros(self._n_sentence, self._state.size(1), dtype=torch.long, device=self._state.device)
        return n.index_add_(0, self._sentence, (~self._complete[self._state]).long()) > 0

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
        there unless a letter follows; but none that is found already. found: (B, C); logits: (R, V). Returns (B,
        K·P)."""
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


class Rules:
    """The rules of one batch, and the state of every hypothesis in them.

    min_len: (B,) fewest tokens, EOS not counted. no_repeat: a hypothesis that has all that is required ends no so many
    tokens in a row that it had before; 0: it may.
    placeholders: their ids, of which a translation has each that stands for an item of its source, and no other; once
    at most, but where phrases are asked for, which may have items in them. n: hypotheses of each sentence at first.
    """

    def __init__(
        self,
        pieces: Pieces,
        asked: Sequence[Request],
        *,
        min_len: Tensor,
        no_repeat: int,
        placeholders: Mapping[str, int] | None = None,
        n: int = 1,
    ) -> None:
        device = min_len.device
        self._pieces, self._no_repeat, self._min_len = pieces, no_repeat, min_len
        self._tokens = min_len.new_zeros(len(asked), n, 0)  # (B, K, t) of each hypothesis
        # What the subwords of each prefix are put together to: it after a space, as the vocabulary writes it.
        prefixes = [one.prefix and " " + pieces.codec.normalised_prefix(one.prefix) for one in asked]
        self._streams = list(map(pieces.in_bytes, prefixes))
        self._n_byte = torch.from_numpy(pieces.n_byte).to(device)
        self._no_space = torch.from_numpy(pieces.matrix[:, 0] != ord(" ")).to(device)
        self._place = min_len.new_zeros(len(asked), n)  # (B, K) bytes of the prefix that are there
        self.required = Required(pieces, [one.wanted for one in asked], device, n)
        self._avoided = Avoided(pieces, [one.avoided for one in asked], n)
        # (B, K, placeholders) which may still follow.
        names, self._placeholders = list(placeholders or {}), min_len.new_tensor(list((placeholders or {}).values()))
        there = [[name in dict(one.items) for name in names] for one in asked]
        self._left = torch.tensor(there, device=device, dtype=torch.bool).unsqueeze(1).repeat(1, n, 1)
        self._free = torch.tensor([[one.asks] for one in asked], device=device)  # (B, 1)

    def forbid(self, logits: Tensor) -> None:
        """Make impossible what may not follow. logits: (R, V), changed in place."""
        _, n, n_token = self._tokens.shape
        if self._no_repeat and n_token >= self._no_repeat:
            tokens = self._tokens.flatten(0, 1)
            windows = tokens.unfold(1, self._no_repeat, 1)  # (R, W, n)
            last = tokens[:, n_token - self._no_repeat + 1 :].unsqueeze(1)
            again = (windows[:, :, :-1] == last).all(2) & self.may_end().view(-1, 1)
            row, window = again.nonzero(as_tuple=True)
            logits[row, windows[row, window, -1]] = -torch.inf
        too_short = (self._min_len > n_token).unsqueeze(1)
        if self.required:
            too_short = too_short | self.required.lacking()
        logits.view(len(too_short), n, -1)[:, :, EOS].masked_fill_(too_short, -torch.inf)
        if len(self._placeholders):
            possible = logits[:, self._placeholders]
            logits[:, self._placeholders] = possible.masked_fill(~self._left.flatten(0, 1), -torch.inf)
        self._avoided.forbid(logits)
        for sentence, stream in enumerate(self._streams):
            for k, place in enumerate(self._place[sentence].tolist() if stream else ()):
                if place < len(stream):
                    row = logits[sentence * n + k]
                    possible = torch.tensor(self._pieces.leading_to(stream, place), device=row.device)
                    kept = row[possible]
                    row.fill_(-torch.inf)
                    row[possible] = kept

    def share_out(self, found: Candidates, logits: Tensor, score: Tensor, normaliser: Tensor, n: int) -> Candidates:
        """The n continuations of each sentence that share out the places of a beam: first the best of those that lack
        least of what is required, then the best of those that lack more, …, then the second best of each."""
        most = torch.iinfo(torch.int32).max
        more = self.required.advancing(found, logits, score, normaliser)
        every = Candidates(*(torch.cat(parts, dim=1) for parts in zip(found, more, strict=True)))
        every = best_of(every, every.score.size(1))
        lack = self.required.lack(every).masked_fill(every.score == -torch.inf, most)
        lack, place = lack.sort(dim=1, stable=True)
        # Within those that lack the same, how many come before.
        count = torch.arange(lack.size(1), device=lack.device).expand_as(lack)
        first = lack.diff(dim=1, prepend=lack[:, :1] - 1) != 0
        turn = count - count.masked_fill(~first, 0).cummax(1).values
        turn = turn.masked_fill(lack == most, lack.size(1))
        return best_of(Candidates(*(part.gather(1, place) for part in every)), n, -turn)

    def follow(self, parent: Tensor, token: Tensor) -> None:
        """Hypothesis k of a sentence is from now on old hypothesis parent[k] and one more token. Both (B, K)."""
        before = parent.unsqueeze(2)
        self._tokens = torch.cat([self._tokens.take_along_dim(before, 1), token.unsqueeze(2)], dim=2)
        place = self._place.gather(1, parent)
        self._place = place + self._n_byte[token] + ((place == 0) & self._no_space[token])
        written = (token.unsqueeze(2) == self._placeholders) & ~self._free.unsqueeze(2)
        self._left = self._left.take_along_dim(before, 1) & ~written
        if self.required:
            self.required.follow(parent, token)
        self._avoided.follow(parent, token)

    def keep(self, sentences: Tensor) -> None:
        """Let sentences leave. sentences: (B',) the ones that stay."""
        self._streams = [self._streams[b] for b in sentences.tolist()]
        self.required.keep(sentences)
        self._avoided.keep(sentences.tolist())
        self._min_len, self._tokens, self._place, self._left, self._free = (
            part[sentences] for part in (self._min_len, self._tokens, self._place, self._left, self._free)
        )

    def may_end(self) -> Tensor:
        """(B, K) whether a hypothesis has all that is required."""
        length = self._place.new_tensor([len(stream) for stream in self._streams])
        found = self._place >= length.unsqueeze(1)
        return found & ~self.required.lacking() if self.required else found
