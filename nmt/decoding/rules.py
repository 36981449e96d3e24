"""What the translations of a batch must and must not contain, and where every hypothesis of a search stands in that.

Subwords that may not follow get the logit -inf; nothing else of a search changes, so what it finds is still ranked by
the model. Required phrases need more than that, since a beam drops what does not pay at once: the places of a beam are
shared out among the hypotheses that have none, a part and all of them (Post and Vilar 2018, dynamic beam allocation;
Hu et al. 2019).
Shapes: B sentences still searched, K hypotheses of each, R = B·K rows, V vocabulary, C candidates, P phrases.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nmt.decoding.candidates import Candidates, best_of
from nmt.decoding.phrases import Pieces
from nmt.decoding.request import Request


@dataclass(frozen=True, slots=True)
class _Watch:
    """A phrase of one sentence, and which column of the states is its own; the rest is as in `PhraseTable`."""

    sentence: int
    column: int
    required: bool
    found: int
    after: Tensor
    complete: Tensor
    left: Tensor
    matched: Tensor


class Rules:
    """The rules of one batch, and the state of every hypothesis in them.

    min_len: (B,) fewest tokens, EOS not counted. no_repeat: no hypothesis has so many tokens in a row twice; 0: it may.
    placeholders: their ids, of which a translation has each that stands for an item of its source once at most, and no
    other. Where phrases are asked for, which may have items in them, it has those that it has.
    """

    def __init__(
        self,
        pieces: Pieces,
        asked: Sequence[Request],
        *,
        min_len: Tensor,
        no_repeat: int,
        eos: int,
        placeholders: Mapping[str, int] | None = None,
    ) -> None:
        self._pieces, self._eos, self._no_repeat = pieces, eos, no_repeat
        self._min_len = min_len
        self._streams = [pieces.stream(one.prefix) if one.prefix else b"" for one in asked]
        self._n_byte = torch.from_numpy(pieces.n_byte).to(min_len.device)
        self._no_space = torch.tensor([raw[:1] != b" " for raw in pieces.bytes], device=min_len.device)
        n_phrase = max((len(one.required) + len(one.avoided) for one in asked), default=0)
        # Where each hypothesis is: bytes of the prefix that are there (B, K), and states of the phrases (B, K, P).
        self._place = min_len.new_zeros(len(asked), 1)
        self._state = min_len.new_zeros(len(asked), 1, n_phrase)
        self._watches = [watch for sentence, one in enumerate(asked) for watch in self._watch(sentence, one)]
        # (B, K, placeholders) which may still follow.
        names, self._placeholders = list(placeholders or {}), min_len.new_tensor(list((placeholders or {}).values()))
        there = [[one.asks or name in dict(one.items) for name in names] for one in asked]
        self._left = torch.tensor(there, device=min_len.device, dtype=torch.bool).unsqueeze(1)
        self._free = torch.tensor([[one.asks] for one in asked], device=min_len.device)  # (B, 1)

    @property
    def requires(self) -> bool:
        """Whether any sentence still searched has to contain a phrase."""
        return any(watch.required for watch in self._watches)

    def spread(self, n: int) -> None:
        """Let each sentence, which has one hypothesis, have n of it."""
        self._place, self._state = self._place.repeat(1, n), self._state.repeat(1, n, 1)
        self._left = self._left.repeat(1, n, 1)

    def forbid(self, logits: Tensor, prefix: Tensor) -> None:
        """Make impossible what may not follow. logits: (R, V), changed in place; prefix: (R, t) the tokens so far."""
        n, n_token = self._place.size(1), prefix.size(1)
        if self._no_repeat and n_token >= self._no_repeat:
            self._forbid_repeats(logits, prefix)
        logits[:, self._eos].masked_fill_((self._min_len > n_token).repeat_interleave(n), -torch.inf)
        if len(self._placeholders):
            possible = logits[:, self._placeholders]
            logits[:, self._placeholders] = possible.masked_fill(~self._left.flatten(0, 1), -torch.inf)
        for watch, rows, state in self._watched():
            complete = watch.complete[state]
            if watch.required:
                logits[rows, self._eos].masked_fill_(~complete, -torch.inf)
            else:
                logits[rows].masked_fill_(watch.after[state] == watch.found, -torch.inf)
                logits[rows, self._eos].masked_fill_(complete, -torch.inf)
        for sentence, stream in enumerate(self._streams):
            for k, place in enumerate(self._place[sentence].tolist() if stream else ()):
                if place < len(stream):
                    row = logits[sentence * n + k]
                    possible = torch.tensor(self._pieces.leading_to(stream, place), device=row.device)
                    kept = row[possible]
                    row.fill_(-torch.inf)
                    row[possible] = kept

    def ends(
        self, logits: Tensor, score: Tensor, at_cap: Tensor, forced: Tensor, has_ended: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Where hypotheses have to end: as at their cap where nothing may follow, but not as they should not if another
        one of the sentence has ended, or ends now, as it should.

        logits: (R, V) of what may follow; score: (B, K); at_cap, has_ended: (B,); forced: (B, K) the scores with EOS.
        """
        nothing = (logits.amax(-1).view_as(score) + score == -torch.inf).all(1)
        barred = (logits[:, self._eos] == -torch.inf).view_as(score)
        fine = has_ended | (~barred & (score > -torch.inf)).any(1)
        return at_cap | nothing, forced.masked_fill(barred & fine.unsqueeze(1), -torch.inf)

    def share_out(
        self, found: Candidates, rank: Tensor, logits: Tensor, score: Tensor, normaliser: Tensor, n: int
    ) -> Candidates:
        """The n continuations of each sentence that share out the places of a beam: first the best of those that lack
        least of what is required, then the best of those that lack more, …, then the second best of each.

        found, rank: (B, C) what the model would do, and what that is ranked by; what gets on with a phrase is added.
        logits: (R, V) of what may follow; score: (B, K); normaliser: (R,).
        """
        more = self._advancing(found, logits, score, normaliser)
        every = Candidates(*(torch.cat(parts, dim=1) for parts in zip(found, more, strict=True)))
        place = torch.cat([rank, more.score], dim=1).sort(dim=1, descending=True, stable=True).indices
        every = Candidates(*(part.gather(1, place) for part in every))
        lack = self._lack(every).masked_fill(every.score == -torch.inf, torch.iinfo(torch.int32).max)
        lack, place = lack.sort(dim=1, stable=True)
        # Within those that lack the same, how many come before.
        count = torch.arange(lack.size(1), device=lack.device).expand_as(lack)
        first = torch.ones_like(lack, dtype=torch.bool)
        first[:, 1:] = lack[:, 1:] != lack[:, :-1]
        turn = count - count.masked_fill(~first, 0).cummax(1).values
        turn = turn.masked_fill(lack == torch.iinfo(torch.int32).max, lack.size(1))
        every = Candidates(*(part.gather(1, place) for part in every))
        return best_of(every, -turn, n)

    def follow(self, parent: Tensor, token: Tensor) -> None:
        """Hypothesis k of a sentence is from now on old hypothesis parent[k] and one more token. Both (B, K)."""
        place = self._place.gather(1, parent)
        self._place = place + self._n_byte[token] + ((place == 0) & self._no_space[token])
        self._state = self._state.gather(1, parent.unsqueeze(2).expand(-1, -1, self._state.size(2)))
        written = (token.unsqueeze(2) == self._placeholders) & ~self._free.unsqueeze(2)
        self._left = self._left.gather(1, parent.unsqueeze(2).expand(-1, -1, self._left.size(2))) & ~written
        for watch in self._watches:
            state = self._state[watch.sentence, :, watch.column]
            self._state[watch.sentence, :, watch.column] = watch.after[state, token[watch.sentence]].long()

    def keep(self, sentences: Tensor) -> None:
        """Let sentences leave. sentences: (B',) the ones that stay."""
        place_of = {b: place for place, b in enumerate(sentences.tolist())}
        staying = [one for one in self._watches if one.sentence in place_of]
        self._watches = [replace(one, sentence=place_of[one.sentence]) for one in staying]
        self._streams = [self._streams[b] for b in place_of]
        self._min_len, self._place, self._state, self._left, self._free = (
            part[sentences] for part in (self._min_len, self._place, self._state, self._left, self._free)
        )

    def may_end(self) -> Tensor:
        """(B, K) whether a hypothesis has all that is required."""
        length = self._place.new_tensor([len(stream) for stream in self._streams])
        found = self._place >= length.unsqueeze(1)
        for watch, _, state in self._watched():
            if watch.required:
                found[watch.sentence] &= watch.complete[state]
        return found

    def _watch(self, sentence: int, asked: Request) -> Iterator[_Watch]:
        both = [*((phrase, True) for phrase in asked.required), *((phrase, False) for phrase in asked.avoided)]
        for column, (phrase, required) in enumerate(both):
            table = self._pieces.phrase(phrase)
            parts = (table.after, table.complete, table.left, table.matched)
            tensors = (torch.from_numpy(part).to(self._place.device) for part in parts)
            yield _Watch(sentence, column, required, table.found, *tensors)

    def _watched(self) -> Iterator[tuple[_Watch, slice, Tensor]]:
        """Each phrase of each sentence, the rows of the sentence, and the states of the phrase in them."""
        n = self._place.size(1)
        for watch in self._watches:
            rows = slice(watch.sentence * n, (watch.sentence + 1) * n)
            yield watch, rows, self._state[watch.sentence, :, watch.column]

    def _forbid_repeats(self, logits: Tensor, prefix: Tensor) -> None:
        n = self._no_repeat
        windows = prefix.unfold(1, n, 1)  # (R, W, n)
        last = prefix[:, prefix.size(1) - n + 1 :].unsqueeze(1)
        row, window = (windows[:, :, :-1] == last).all(2).nonzero(as_tuple=True)
        logits[row, windows[row, window, -1]] = -torch.inf

    def _advancing(self, found: Candidates, logits: Tensor, score: Tensor, normaliser: Tensor) -> Candidates:
        """The likeliest continuation of each hypothesis that gets on with each phrase, unless it is found already."""
        n = score.size(1)
        value = logits.new_full((len(score), n, self._state.size(2)), -torch.inf)
        token = torch.zeros_like(value, dtype=torch.long)
        for watch, rows, state in self._watched():
            if watch.required:
                best, which = _advance(logits[rows], watch, state)
                value[watch.sentence, :, watch.column], token[watch.sentence, :, watch.column] = best, which
        value = value - normaliser.view(-1, n, 1) + score.unsqueeze(2)
        there = found.token.view(len(score), n, 1, -1)
        here = token.masked_fill(value == -torch.inf, -1)
        again = (token.unsqueeze(3) == there).any(3) | (token.unsqueeze(3) == here.unsqueeze(2)).tril(-1).any(3)
        parent = torch.arange(n, device=score.device).view(1, n, 1).expand_as(token)
        return Candidates(value.masked_fill(again, -torch.inf).flatten(1), parent.flatten(1), token.flatten(1))

    def _lack(self, found: Candidates) -> Tensor:
        """(B, C) how many subwords of required phrases each candidate still lacks."""
        lack = torch.zeros_like(found.token)
        for watch in self._watches:
            if watch.required:
                b = watch.sentence
                before = self._state[b, :, watch.column][found.parent[b]]
                lack[b] += watch.left[watch.after[before, found.token[b]].long()]
        return lack


def _advance(logits: Tensor, watch: _Watch, state: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest subword that gets each hypothesis of a sentence on with a phrase: logit and id, both (K,)."""
    after = watch.after[state].long()  # (K, V)
    left, matched = watch.left[state].unsqueeze(1), watch.matched[state].unsqueeze(1)
    whole = logits.masked_fill(watch.left[after] >= left, -torch.inf)  # one of its usual subwords
    part = logits.masked_fill(watch.matched[after] <= matched, -torch.inf)
    best, token = torch.where((whole > -torch.inf).any(1, keepdim=True), whole, part).max(1)
    return best.masked_fill(left.squeeze(1) == 0, -torch.inf), token
