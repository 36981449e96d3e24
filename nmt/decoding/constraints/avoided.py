"""Phrases that a translation must not contain, all of them looked for at once.

There may be thousands, but where a text ends it has begun few of them. So they are a trie over bytes, as in Aho and
Corasick 1975, and a hypothesis is at few of its nodes; which subwords would complete a phrase there is found out when
a hypothesis first comes to a node. Finds what the tables of `phrases.py` find, one by one.
Shapes: B sentences still searched, K hypotheses of each, R = B·K rows, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.decoding.constraints.phrases import LETTERS, Pieces, edges

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
        """Whether a text has none of them if it ends here."""
        return place is not _FOUND and self._ends.isdisjoint(place[0])

    def completing(self, place: Place) -> list[Ids]:
        """The subwords after which a phrase would be there for certain."""
        nodes, after_letter = place
        return [self._within(after_letter), *(ids for node in nodes for ids in self._completing(node))]

    def _after(self, place: Place, token: int) -> Place:
        """Where a text is after one more subword."""
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

    def __init__(self, pieces: Pieces, asked: Sequence[Iterable[str]], eos: int) -> None:
        self._end = np.array([eos])
        sets = [frozenset(one) for one in asked]
        # What all sentences avoid that avoid anything is in one trie, what a sentence avoids beside that in another.
        common = frozenset[str]().union(*sets).intersection(*filter(None, sets))
        parts = [(one & common, one - common) for one in sets]
        self._tries = [[_trie(pieces, part) for part in both if part] for both in parts]
        self._places = [[(_START,) * len(tries)] for tries in self._tries]

    def spread(self, n: int) -> None:
        """Let each sentence, which has one hypothesis, have n of it."""
        self._places = [places * n for places in self._places]

    def forbid(self, logits: Tensor) -> None:
        """Make impossible what may not follow. logits: (R, V), changed in place."""
        n = len(logits) // max(len(self._tries), 1)
        rows, found, lost = list[int](), list[Ids](), list[int]()
        for b, tries in enumerate(self._tries):
            for row, places in enumerate(self._places[b] if tries else (), start=b * n):
                for trie, place in zip(tries, places, strict=True):
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
            [
                tuple(trie.after(place, i) for trie, place in zip(tries, before[k], strict=True))
                for k, i in zip(parents, tokens, strict=True)
            ]
            for tries, before, parents, tokens in hypotheses
        ]

    def keep(self, sentences: Sequence[int]) -> None:
        """Let sentences leave. sentences: the ones that stay."""
        self._tries, self._places = [self._tries[b] for b in sentences], [self._places[b] for b in sentences]


@lru_cache(_MOST_TRIES)
def _trie(pieces: Pieces, phrases: frozenset[str]) -> PhraseTrie:
    return PhraseTrie(pieces, phrases)
