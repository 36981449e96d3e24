"""Text that a translation must or must not contain, as automata over bytes, and tables of them over subwords.

A phrase is found where it stands as words: no letter goes on before or after it. What follows a name in Chinese,
Japanese or Korean does not make it another word; a phrase in such a script, or in Thai, Lao, Tibetan, Burmese or Khmer,
is found anywhere. Of a part of the source, what stands beside it there decides. Where no letter may stand beside it,
nor may its own first or last character: %%s is another thing than %s to the program that reads it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.placeholders import CHARACTERS
from nmt.data.subword_kinds import LONGEST_PIECE
from nmt.data.subwords import Codec

Ids = NDArray[np.int64]
Room = tuple[bool, bool]  # whether no letter may stand before a phrase, and after it

# First bytes of letters: ASCII; U+00C0 to U+07FF, from Latin to Arabic; U+0800 to U+1FFF, from Indic to Vietnamese.
LETTERS = frozenset([*b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz", *range(0xC3, 0xE2)])
# Of these, the blocks of scripts without spaces: Thai to Tibetan, Burmese, Khmer.
_WITHOUT_SPACES = (range(0x0E00, 0x1000), range(0x1000, 0x10A0), range(0x1780, 0x1800))


class Wanted(NamedTuple):
    """A phrase that has to be there, and how."""

    phrase: str
    times: int = 1
    room: Room | None = None  # None: where it has a letter there itself


def occurrences(phrase: str, text: str, room: Room | None = None) -> Iterator[tuple[int, int]]:
    """Find a phrase in a text as words: beginning and end, in characters, none overlapping another."""
    at = text.find(phrase)
    if at < 0:
        return
    room_before, room_after = room or edges(phrase)
    while at >= 0:
        end = at + len(phrase)
        before, after = barred_around(text, at, end)
        if (before and room_before) or (after and room_after):
            at = text.find(phrase, at + 1)
        else:
            yield at, end
            at = text.find(phrase, end)


def contains(text: str, phrase: str) -> bool:
    """Return whether a phrase stands in a text as words."""
    return next(occurrences(phrase, text), None) is not None


def barred_around(text: str, start: int, end: int) -> tuple[bool, bool]:
    """Return whether before a part of a text, and after it, stands a letter or, in ASCII, its own edge character."""
    before, after = text[start - 1 : start] if start else "", text[end : end + 1]
    return (
        _is_letter(before) or (before == text[start] and before.isascii()),
        _is_letter(after) or (after == text[end - 1] and after.isascii()),
    )


def edges(phrase: str) -> Room:
    """Return whether no letter may stand before a phrase, and after it: where it has one there itself, of a script with
    spaces."""

    def needs_room(edge: str) -> bool:
        return _is_letter(edge) and not any(ord(edge) in block for block in _WITHOUT_SPACES)

    return needs_room(phrase[0]), needs_room(phrase[-1])


def _is_letter(character: str) -> bool:
    """Return whether a word goes on with this character; "" is none."""
    return bool(character) and character.encode("utf-8", errors="replace")[0] in LETTERS


class Pieces:
    """The bytes of every subword of a vocabulary, and what can be asked about them."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.bytes = codec.raw(range(codec.n_vocab), {name: CHARACTERS[name] for name in codec.placeholders})
        self.n_byte = np.array([len(raw) for raw in self.bytes], dtype=np.int64)
        self._id_of = {raw: i for i, raw in enumerate(self.bytes) if raw}
        # All in the order of their bytes, those with the same ones among them.
        self._sorted = np.array(sorted((i for i, raw in enumerate(self.bytes) if raw), key=self.bytes.__getitem__))
        self._sorted_bytes = [self.bytes[i] for i in self._sorted]
        self._joined = b"\n".join(self.bytes)  # no phrase has a line feed
        self._joined_at = [0, *accumulate(len(raw) + 1 for raw in self.bytes)]
        self.matrix = np.array(self.bytes, dtype=f"S{LONGEST_PIECE}").view(np.uint8).reshape(-1, LONGEST_PIECE)
        self.table = lru_cache(128)(self._table)  # a usual one takes a megabyte or less, the longest phrase 60

    def in_bytes(self, text: str) -> bytes:
        """A normalised text as the vocabulary writes it."""
        # Halves of surrogate pairs are placeholders; where a vocabulary has none, they are no text.
        return text.encode("utf-8", errors="surrogatepass" if self.codec.placeholders else "replace")

    def leading_to(self, stream: bytes, place: int) -> list[int]:
        """The subwords that can stand at a place of a stream of which the rest has to come, or that end beyond it."""
        rest = stream[place : place + LONGEST_PIECE]
        found = [i for n in range(1, len(rest) + 1) if (i := self._id_of.get(rest[:n])) is not None]
        if place + len(rest) == len(stream):
            found += [i for i in self.beginning_with(rest).tolist() if self._id_of[self.bytes[i]] == i]
        if not place:  # the space before the text may be missing
            found += [i for i in self.leading_to(stream, 1) if self.bytes[i][:1] != b" "]
        return found

    def beginning_with(self, start: bytes) -> Ids:
        """The subwords that begin with some bytes."""
        first = bisect_left(self._sorted_bytes, start)
        beyond = bisect_left(self._sorted_bytes, start[:-1] + bytes([start[-1] + 1])) if start else len(self._sorted)
        found: Ids = self._sorted[first:beyond]
        return found

    def containing(self, part: bytes) -> set[int]:
        """The subwords that have some bytes in them, no line feed among these."""
        found, at = set(), self._joined.find(part)
        while at >= 0:
            found.add(i := bisect_right(self._joined_at, at) - 1)
            at = self._joined.find(part, self._joined_at[i + 1])
        return found

    def _table(self, wanted: Wanted) -> "PhraseTable":
        """The table of a phrase that has to be there."""
        text = self.codec.normalised(wanted.phrase)
        raw, room, times = self.in_bytes(text), wanted.room or edges(text), wanted.times
        phrases = Phrases(self, [(raw, room)], times)
        states, by_byte = phrases.states()
        after = np.repeat(np.arange(len(states), dtype=by_byte.dtype)[:, None], self.codec.n_vocab, axis=1)
        for place in range(LONGEST_PIECE):
            there = np.flatnonzero(self.n_byte > place)
            after[:, there] = by_byte[after[:, there], self.matrix[there, place]]
        matched = np.array([n * len(raw) + phrases.depth(nodes) for nodes, _, n in states])
        complete = matched == times * len(raw)
        # Its usual subwords, of which the first has the space before it, or is that.
        usual = self.codec.encode([text])[0]
        ends = np.cumsum([self.n_byte[i] for i in usual]) - 1
        left_once = np.array([int((ends > n).sum()) for n in range(len(raw) + 1)])
        n_more, lacking = np.divmod(times * len(raw) - matched, len(raw))
        left = n_more * left_once[0] + np.where(lacking > 0, left_once[len(raw) - lacking], 0)
        onward = [np.flatnonzero(matched[row] > n) for row, n in zip(after, matched, strict=True)]
        if room[0] and self.bytes[usual[0]] == b" ":  # where a letter was last, nothing but a space gets on with it
            for number, (nodes, is_barred, _) in enumerate(states[:-1]):
                if is_barred and not nodes:
                    left[number] += 1
                    onward[number] = np.append(onward[number], usual[0])
        waits = np.array([not phrases.may_end(state) for state in states])
        return PhraseTable(after, complete, left, matched, onward, waits)


# How far a text has come: the nodes that it has reached in the trie of the phrases, whether it ends in what a phrase
# may not follow, and how often one of them is there.
State = tuple[frozenset[int], bool, int]
START: State = (frozenset(), False, 0)
_ANYWHERE, _AFTER_NO_LETTER = 0, 1  # the two roots of a trie


class Phrases:
    """An automaton over bytes that has found one of some phrases so many times, none overlapping another."""

    def __init__(self, pieces: Pieces, phrases: Iterable[tuple[bytes, Room]], times: int = 1) -> None:
        self._pieces, self._times, self._wanted = pieces, times, list(phrases)
        self.found: State = (frozenset(), False, times)  # whatever follows
        self._below: list[dict[int, int]] = [{}, {}]
        self._depth = [0, 0]
        self._whole: set[int] = set()  # nodes where a phrase is there
        self._ends: set[int] = set()  # nodes where one is there if no letter follows
        bar_before, bar_after = set(LETTERS), set(LETTERS)
        for raw, (room_before, room_after) in self._wanted:
            node = _AFTER_NO_LETTER if room_before else _ANYWHERE
            for depth, byte in enumerate(raw, start=1):
                if byte not in self._below[node]:
                    self._below[node][byte] = len(self._below)
                    self._below.append({})
                    self._depth.append(depth)
                node = self._below[node][byte]
            (self._ends if room_after else self._whole).add(node)
            bar_before.update(raw[:1] * (raw[0] < 0x80 and room_before))
            bar_after.update(raw[-1:] * (raw[-1] < 0x80 and room_after))
        self._bar_before, self._bar_after = frozenset(bar_before), frozenset(bar_after)
        self._completing = lru_cache(None)(self._completing_at)
        self._within = lru_cache(None)(self._with_all_of_one)
        self.after = lru_cache(1 << 16)(lambda state, token: self._walk(state, pieces.bytes[token]))

    def depth(self, nodes: frozenset[int]) -> int:
        """Return the number of bytes of a phrase that are there."""
        return max((self._depth[node] for node in nodes), default=0)

    def may_end(self, state: State) -> bool:
        """Return False where a text that ends here has one more."""
        return self._ends.isdisjoint(state[0])

    def completing(self, state: State) -> list[Ids]:
        """The subwords after which a phrase would be there for certain."""
        return [self._within(state[1]), *(ids for node in state[0] for ids in self._completing(node))]

    def states(self) -> tuple[list[State], NDArray[np.integer[Any]]]:
        """All states, the last being `found`; and (n_state, 256) the number of the one that each byte leads to."""
        states, number, rows = [START], {START: 0}, list[list[int]]()
        for state in states:  # grows as it goes
            after = [self._follow(state, byte) for byte in range(256)]
            for new in after:
                if new != self.found and new not in number:
                    number[new] = len(states)
                    states.append(new)
            rows.append([number.get(new, -1) for new in after])
        kind = np.int16 if len(states) < 1 << 15 else np.int32
        table: NDArray[np.integer[Any]] = np.array([*rows, [-1] * 256], dtype=kind)
        table[table < 0] = len(states)
        return [*states, self.found], table

    def _follow(self, state: State, byte: int) -> State:
        """The state after one more byte."""
        nodes, is_barred, n = state
        begins = not 0x80 <= byte < 0xC0  # a character, and not the rest of one
        if not (begins and byte in self._bar_after) and not self._ends.isdisjoint(nodes):
            nodes, n = frozenset(), n + 1
        roots = (_ANYWHERE,) if is_barred else (_ANYWHERE, _AFTER_NO_LETTER)
        grown = {self._below[node][byte] for node in (*nodes, *roots) if byte in self._below[node]}
        if not self._whole.isdisjoint(grown):
            grown, n = set(), n + 1
        if n >= self._times:
            return self.found
        return frozenset(grown), byte in self._bar_before if begins else is_barred, n

    def _walk(self, state: State, raw: bytes) -> State:
        for byte in raw:
            if state == self.found:
                break
            state = self._follow(state, byte)
        return state

    def _completing_at(self, node: int) -> list[Ids]:
        """The subwords that complete a phrase of which a text has what leads to a node."""
        found, ways = [], [(node, b"")]
        for at, way in ways:  # grows as it goes
            there = self._pieces.beginning_with(way)
            if at in self._whole:
                found.append(there)
            elif len(there):
                if at in self._ends:  # and then no letter follows
                    longer = there[self._pieces.n_byte[there] > len(way)]
                    found.append(longer[~np.isin(self._pieces.matrix[longer, len(way)], list(LETTERS))])
                ways += [(below, way + bytes([byte])) for byte, below in self._below[at].items()]
        return [ids for ids in found if len(ids)]

    def _with_all_of_one(self, is_barred: bool) -> Ids:
        """The subwords that have a whole phrase in them, and what has to stand around it."""
        likely = set().union(*(self._pieces.containing(raw) for raw, _ in self._wanted))
        ends = {i: self._walk((frozenset(), is_barred, 0), self._pieces.bytes[i]) for i in sorted(likely)}
        return np.array([i for i, state in ends.items() if state == self.found], np.int64)


@dataclass(frozen=True, slots=True)
class PhraseTable:
    """Transitions of the states of a phrase by subwords, (n_state, n_vocab); the first state is the beginning, in the
    last all of it is there, whatever follows.

    Of each state: complete: the phrase is there if the text ends now; left: subwords that are still to come; matched:
    bytes that are there; onward: subwords that get on with it; waits: all its bytes are there, and no letter may
    follow.
    """

    after: NDArray[np.integer[Any]]
    complete: NDArray[np.bool_]
    left: NDArray[np.int64]
    matched: NDArray[np.int64]
    onward: list[NDArray[np.int64]]
    waits: NDArray[np.bool_]


@lru_cache(4)
def pieces_of(codec: Codec) -> Pieces:
    """The `Pieces` of a vocabulary, made once."""
    return Pieces(codec)
