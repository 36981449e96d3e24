"""Constraints of the translations of a batch, and the state of every hypothesis of a search in them.

Subwords that may not follow get the logit -inf. For required phrases the places of a beam are shared out among the
hypotheses that have none, a part and all of them (Post and Vilar 2018, dynamic beam allocation; Hu et al. 2019).
Shapes: B sentences still searched, K hypotheses of each, R = B·K rows, V vocabulary, C candidates.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.decoding.candidates import Candidates, best_of
from nmt.decoding.phrases import LETTERS, Pieces, Wanted, edges
from nmt.decoding.request import Request

# Avoided phrases.


_MOST_TRIES = 64
_MOST_STEPS = 1 << 16  # of a trie, that are kept

Place = tuple[frozenset[int], bool]  # the nodes that a text has come to, and whether a letter was last
Ids = NDArray[np.int64]
_START: Place = (frozenset(), False)
_FOUND: Place = (frozenset([-1]), False)  # a phrase is there, whatever follows
_ANYWHERE, _AFTER_NO_LETTER = 0, 1  # the two roots


class PhraseTrie:
    """Some phrases, and what each subword does to a text that has begun some of them."""

    def __init__(self, pieces: Pieces, phrases: Iterable[str]) -> None:
        self._pieces = pieces
        self._below: list[dict[int, int]] = [{}, {}]
        self._found: set[int] = set()  # nodes where a phrase is there
        self._ends: set[int] = set()  # nodes where one is there if no letter follows
        self._wanted: list[bytes] = []
        for phrase in map(pieces.codec.normalised, phrases):
            room_before, room_after = edges(phrase)
            self._wanted.append(pieces.in_bytes(phrase))
            node = _AFTER_NO_LETTER if room_before else _ANYWHERE
            for byte in self._wanted[-1]:
                if byte not in self._below[node]:
                    self._below[node][byte] = len(self._below)
                    self._below.append({})
                node = self._below[node][byte]
            (self._ends if room_after else self._found).add(node)
        self._completing = lru_cache(None)(self._completing_at)
        self._within = lru_cache(None)(self._with_all_of_one)
        self.after = lru_cache(_MOST_STEPS)(self._after)

    def may_end(self, place: Place) -> bool:
        """Return whether a text has none of them if it ends here."""
        return place is not _FOUND and self._ends.isdisjoint(place[0])

    def completing(self, place: Place) -> list[Ids]:
        """The subwords after which a phrase would be there for certain."""
        nodes, after_letter = place
        return [self._within(after_letter), *(ids for node in nodes for ids in self._completing(node))]

    def _after(self, place: Place, token: int) -> Place:
        """Return the place of a text after one more subword."""
        return place if place is _FOUND else self._walk(place, self._pieces.bytes[token])

    def _walk(self, place: Place, raw: bytes) -> Place:
        nodes, after_letter = place
        for byte in raw:
            if byte not in LETTERS and not self._ends.isdisjoint(nodes):
                return _FOUND
            grown = {self._below[node][byte] for node in nodes if byte in self._below[node]}
            for root in (_ANYWHERE,) if after_letter else (_ANYWHERE, _AFTER_NO_LETTER):
                if byte in self._below[root]:
                    grown.add(self._below[root][byte])
            if not self._found.isdisjoint(grown):
                return _FOUND
            begins = not 0x80 <= byte < 0xC0  # a character, and not the rest of one
            nodes, after_letter = frozenset(grown), byte in LETTERS if begins else after_letter
        return nodes, after_letter

    def _completing_at(self, node: int) -> list[Ids]:
        """The subwords that complete a phrase of which a text has what leads to a node."""
        found, ways = [], [(node, b"")]
        for at, way in ways:  # grows as it goes
            there = self._pieces.beginning_with(way, room=False)
            if at in self._found:
                found.append(there)
            elif len(there):
                if at in self._ends:
                    found.append(self._pieces.beginning_with(way, room=True))
                ways += [(below, way + bytes([byte])) for byte, below in self._below[at].items()]
        return [ids for ids in found if len(ids)]

    def _with_all_of_one(self, after_letter: bool) -> Ids:
        """The subwords that have a whole phrase in them, and what has to stand around it."""
        likely = set().union(*(self._pieces.containing(wanted) for wanted in self._wanted))
        place: Place = (frozenset(), after_letter)
        return np.array([i for i in sorted(likely) if self._walk(place, self._pieces.bytes[i]) is _FOUND], np.int64)


class Avoided:
    """The phrases that the translations of a batch must not contain, and what of them every hypothesis has begun.

    asked: those of each sentence.
    """

    def __init__(self, pieces: Pieces, asked: Sequence[Iterable[str]], eos: int, n: int) -> None:
        self._end = np.array([eos])
        self._tries = [_trie(pieces, frozenset(one)) for one in asked]
        self._places = [[_START] * n for _ in asked]

    def forbid(self, logits: Tensor) -> None:
        """Make impossible what may not follow. logits: (R, V), changed in place."""
        rows, found, lost = list[int](), list[Ids](), list[int]()
        every = ((trie, place) for trie, places in zip(self._tries, self._places, strict=True) for place in places)
        for row, (trie, place) in enumerate(every):
            if trie is None:
                continue
            if place is _FOUND:
                lost.append(row)
                continue
            found += trie.completing(place)
            found += [] if trie.may_end(place) else [self._end]
            rows += [row] * (len(found) - len(rows))
        if lost:
            logits[lost] = -torch.inf
        if found:
            of_row, column = np.repeat(rows, [len(ids) for ids in found]), np.concatenate(found)
            logits[torch.from_numpy(of_row).to(logits.device), torch.from_numpy(column).to(logits.device)] = -torch.inf

    def follow(self, parent: Tensor, token: Tensor) -> None:
        """Hypothesis k of a sentence is from now on old hypothesis parent[k] and one more token. Both (B, K)."""
        if not any(self._tries):
            return
        hypotheses = zip(self._tries, self._places, parent.tolist(), token.tolist(), strict=True)
        self._places = [
            [trie.after(before[k], i) if trie else _START for k, i in zip(parents, tokens, strict=True)]
            for trie, before, parents, tokens in hypotheses
        ]

    def keep(self, sentences: Sequence[int]) -> None:
        """Let sentences leave. sentences: the ones that stay."""
        self._tries, self._places = [self._tries[b] for b in sentences], [self._places[b] for b in sentences]


@lru_cache(_MOST_TRIES)
def _trie(pieces: Pieces, phrases: frozenset[str]) -> PhraseTrie | None:
    return PhraseTrie(pieces, phrases) if phrases else None


# Required phrases.


class Required:
    """The phrases of a batch, and the states of every hypothesis in them. asked: those of each sentence."""

    def __init__(self, pieces: Pieces, asked: Sequence[Sequence[Wanted]], device: torch.device, n: int) -> None:
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
        self._state = self._first.unsqueeze(1).repeat(1, n)  # (W, K)
        if tables:  # one after another: (n_state, …), and (n_state, M) the subwords that get on with a phrase, or -1
            parts = [(one.after, one.complete, one.left, one.matched, one.waits) for one in tables.values()]
            self._after, self._complete, self._left, self._matched, self._waits = (
                torch.from_numpy(np.concatenate(part)).to(device) for part in zip(*parts, strict=True)
            )
            self._onward = torch.from_numpy(_padded([ids for one in tables.values() for ids in one.onward])).to(device)

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


def _padded(rows: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """(n_row, length of the longest), with -1 where a row is shorter."""
    found = np.full((len(rows), max(map(len, rows))), -1, dtype=np.int64)
    for place, row in enumerate(rows):
        found[place, : len(row)] = row
    return found


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
        eos: int,
        placeholders: Mapping[str, int] | None = None,
        n: int = 1,
    ) -> None:
        self._pieces, self._eos, self._no_repeat = pieces, eos, no_repeat
        self._min_len = min_len
        self._streams = [pieces.stream(one.prefix) if one.prefix else b"" for one in asked]
        self._n_byte = torch.from_numpy(pieces.n_byte).to(min_len.device)
        self._no_space = torch.tensor([raw[:1] != b" " for raw in pieces.bytes], device=min_len.device)
        self._place = min_len.new_zeros(len(asked), n)  # (B, K) bytes of the prefix that are there
        self._required = Required(pieces, [one.wanted for one in asked], min_len.device, n)
        self._avoided = Avoided(pieces, [one.avoided for one in asked], eos, n)
        # (B, K, placeholders) which may still follow.
        names, self._placeholders = list(placeholders or {}), min_len.new_tensor(list((placeholders or {}).values()))
        there = [[name in dict(one.items) for name in names] for one in asked]
        self._left = torch.tensor(there, device=min_len.device, dtype=torch.bool).unsqueeze(1).repeat(1, n, 1)
        self._free = torch.tensor([[one.asks] for one in asked], device=min_len.device)  # (B, 1)

    @property
    def requires(self) -> bool:
        """True where any sentence still searched has to contain a phrase."""
        return bool(self._required)

    def forbid(self, logits: Tensor, prefix: Tensor) -> None:
        """Make impossible what may not follow. logits: (R, V), changed in place; prefix: (R, t) the tokens so far."""
        n, n_token = self._place.size(1), prefix.size(1)
        if self._no_repeat and n_token >= self._no_repeat:
            windows = prefix.unfold(1, self._no_repeat, 1)  # (R, W, n)
            last = prefix[:, n_token - self._no_repeat + 1 :].unsqueeze(1)
            again = (windows[:, :, :-1] == last).all(2) & self.may_end().view(-1, 1)
            row, window = again.nonzero(as_tuple=True)
            logits[row, windows[row, window, -1]] = -torch.inf
        logits[:, self._eos].masked_fill_((self._min_len > n_token).repeat_interleave(n), -torch.inf)
        if len(self._placeholders):
            possible = logits[:, self._placeholders]
            logits[:, self._placeholders] = possible.masked_fill(~self._left.flatten(0, 1), -torch.inf)
        if self._required:
            logits[:, self._eos].masked_fill_(self._required.lacking().flatten(), -torch.inf)
        self._avoided.forbid(logits)
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
        """Find the hypotheses that have to end: as at their cap where nothing may follow, but not against the rules if
        another one of the sentence has ended, or ends now, as it should. forced: (B, K) the scores with EOS."""
        nothing = (logits.amax(-1).view_as(score) + score == -torch.inf).all(1)
        barred = (logits[:, self._eos] == -torch.inf).view_as(score)
        fine = has_ended | (~barred & (score > -torch.inf)).any(1)
        return at_cap | nothing, forced.masked_fill(barred & fine.unsqueeze(1), -torch.inf)

    def share_out(
        self, found: Candidates, rank: Tensor, logits: Tensor, score: Tensor, normaliser: Tensor, n: int
    ) -> Candidates:
        """The n continuations of each sentence that share out the places of a beam: first the best of those that lack
        least of what is required, then the best of those that lack more, …, then the second best of each."""
        more = self._required.advancing(found, logits, score, normaliser)
        every = Candidates(*(torch.cat(parts, dim=1) for parts in zip(found, more, strict=True)))
        place = torch.cat([rank, more.score], dim=1).sort(dim=1, descending=True, stable=True).indices
        every = Candidates(*(part.gather(1, place) for part in every))
        lack = self._required.lack(every).masked_fill(every.score == -torch.inf, torch.iinfo(torch.int32).max)
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
        written = (token.unsqueeze(2) == self._placeholders) & ~self._free.unsqueeze(2)
        self._left = self._left.gather(1, parent.unsqueeze(2).expand(-1, -1, self._left.size(2))) & ~written
        if self._required:
            self._required.follow(parent, token)
        self._avoided.follow(parent, token)

    def keep(self, sentences: Tensor) -> None:
        """Let sentences leave. sentences: (B',) the ones that stay."""
        self._streams = [self._streams[b] for b in sentences.tolist()]
        self._required.keep(sentences)
        self._avoided.keep(sentences.tolist())
        self._min_len, self._place, self._left, self._free = (
            part[sentences] for part in (self._min_len, self._place, self._left, self._free)
        )

    def may_end(self) -> Tensor:
        """(B, K) whether a hypothesis has all that is required."""
        length = self._place.new_tensor([len(stream) for stream in self._streams])
        found = self._place >= length.unsqueeze(1)
        return found & ~self._required.lacking() if self._required else found
