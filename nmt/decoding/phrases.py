"""Text that a translation must or must not contain, as automata over bytes, and tables of them over subwords.

A phrase is found where it stands as words: no letter goes on before or after it. What follows a name in Chinese,
Japanese or Korean does not make it another word; a phrase in such a script, or in Thai, Lao, Tibetan, Burmese or Khmer,
is found anywhere. Of a part of the source, what stands beside it there decides. Where no letter may stand beside it,
nor may its own first or last character: %%s is another thing than %s to the program that reads it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.placeholders import character
from nmt.data.subword_kinds import LONGEST_PIECE
from nmt.data.subwords import Codec

_ASCII_LETTERS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
# First bytes of letters: ASCII; U+00C0 to U+07FF, from Latin to Arabic; U+0800 to U+1FFF, from Indic to Vietnamese.
LETTERS = frozenset([*_ASCII_LETTERS, *range(0xC3, 0xE2)])
_IS_LETTER = np.isin(np.arange(256), list(LETTERS))

# Of these, the blocks of scripts without spaces: Thai to Tibetan, Burmese, Khmer.
_WITHOUT_SPACES = (range(0x0E00, 0x1000), range(0x1000, 0x10A0), range(0x1780, 0x1800))

# How much of the phrase the last bytes may be, whether something was last that it may not follow, and how often it is
# there.
State = tuple[frozenset[int], bool, int]
Room = tuple[bool, bool]  # whether no letter may stand before a phrase, and after it


class Wanted(NamedTuple):
    """A phrase that has to be there, and how."""

    phrase: str
    times: int = 1
    room: Room | None = None  # None: where it has a letter there itself


@dataclass(frozen=True, slots=True)
class PhraseTable:
    """Transitions of the states of a phrase by subwords; states begin with 0, `found` is the last and is never left.

    after: (n_state, n_vocab). Of each state: complete: the phrase is there if the text ends now; left: subwords that
    are still to come; matched: bytes that are there; onward: subwords that get on with it; waits: all its bytes are
    there, and no letter may follow.
    """

    after: NDArray[np.integer[Any]]
    complete: NDArray[np.bool_]
    left: NDArray[np.int64]
    matched: NDArray[np.int64]
    onward: list[NDArray[np.int64]]
    waits: NDArray[np.bool_]

    @property
    def found(self) -> int:
        """The state in which the phrase is there, whatever follows."""
        return len(self.complete) - 1


class Pieces:
    """The bytes of every subword of a vocabulary, and what can be asked about them."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.bytes = codec.raw(range(codec.n_vocab), {name: character(name) for name in codec.placeholders})
        self.n_byte = np.array([len(raw) for raw in self.bytes], dtype=np.int64)
        self._id_of = {raw: i for i, raw in enumerate(self.bytes) if raw}
        self._in_order = sorted(self._id_of)
        # All in that order, those with the same bytes among them.
        self._sorted = np.array(sorted((i for i, raw in enumerate(self.bytes) if raw), key=self.bytes.__getitem__))
        self._sorted_bytes = [self.bytes[i] for i in self._sorted]
        self._joined = b"\n".join(self.bytes)  # no phrase has a line feed
        self._joined_at = [0, *accumulate(len(raw) + 1 for raw in self.bytes)]
        self._longest_first = np.argsort(-self.n_byte, kind="stable")
        self._matrix = np.zeros((codec.n_vocab, LONGEST_PIECE), dtype=np.uint8)
        for i, raw in enumerate(self.bytes):
            self._matrix[i, : len(raw)] = np.frombuffer(raw, dtype=np.uint8)
        self.phrase = lru_cache(16)(self._phrase)  # each takes up to 60 MB

    def stream(self, text: str) -> bytes:
        """Return what the subwords of a prefix are put together to: it after a space, as the vocabulary writes it."""
        return b" " + self.in_bytes(self.codec.normalised_prefix(text))

    def in_bytes(self, text: str) -> bytes:
        """A normalised text as the vocabulary writes it."""
        # Halves of surrogate pairs are placeholders; where a vocabulary has none, they are no text.
        return text.encode("utf-8", errors="surrogatepass" if self.codec.placeholders else "replace")

    def leading_to(self, stream: bytes, place: int) -> list[int]:
        """The subwords that can stand at a place of a stream of which the rest has to come, or that end beyond it."""
        rest = stream[place : place + LONGEST_PIECE]
        parts = (self._id_of.get(rest[:n]) for n in range(1, len(rest) + 1))
        found = [i for i in parts if i is not None]
        if place + len(rest) == len(stream):
            at = bisect_left(self._in_order, rest + b"\0")
            while at < len(self._in_order) and self._in_order[at].startswith(rest):
                found.append(self._id_of[self._in_order[at]])
                at += 1
        if not place:  # the space before the text may be missing
            found += [i for i in self.leading_to(stream, 1) if self.bytes[i][:1] != b" "]
        return found

    def beginning_with(self, start: bytes, room: bool) -> NDArray[np.int64]:
        """The subwords that begin with some bytes; room: and then go on, but not with a letter."""
        first = bisect_left(self._sorted_bytes, start)
        beyond = bisect_left(self._sorted_bytes, start[:-1] + bytes([start[-1] + 1])) if start else len(self._sorted)
        found: NDArray[np.int64] = self._sorted[first:beyond]
        if not room or not len(found):
            return found
        there = self.n_byte[found] > len(start)
        found = found[there]
        return found[~_IS_LETTER[self._matrix[found, len(start)]]] if len(found) else found

    def containing(self, part: bytes) -> set[int]:
        """The subwords that have some bytes in them, no line feed among these."""
        found, at = set(), self._joined.find(part)
        while at >= 0:
            found.add(i := bisect_right(self._joined_at, at) - 1)
            at = self._joined.find(part, self._joined_at[i + 1])
        return found

    def _phrase(self, text: str, times: int = 1, room: Room | None = None) -> PhraseTable:
        """The table of a phrase that has to be there so many times, none overlapping another. room: see `Wanted`."""
        text = self.codec.normalised(text)
        wanted, room = self.in_bytes(text), room or edges(text)
        byte_table, states = _automaton(wanted, room, times)
        n_state = len(states) + 1
        after = np.repeat(np.arange(n_state, dtype=byte_table.dtype)[:, None], self.codec.n_vocab, axis=1)
        for place in range(LONGEST_PIECE):
            there = self._longest_first[: int((self.n_byte > place).sum())]
            if not len(there):
                break
            after[:, there] = byte_table[after[:, there], self._matrix[there, place]]
        whole = times * len(wanted)
        matched = np.array([n * len(wanted) + max(lengths, default=0) for lengths, _, n in states] + [whole])
        complete = matched == whole
        # Its usual subwords, of which the first has the space before it, or is that.
        usual = self.codec.encode([text])[0]
        ends = np.cumsum([self.n_byte[i] for i in usual]) - 1
        left_once = np.array([int((ends > n).sum()) for n in range(len(wanted) + 1)])
        n_more, lacking = np.divmod(whole - matched, len(wanted))
        left = n_more * left_once[0] + np.where(lacking > 0, left_once[len(wanted) - lacking], 0)
        onward = [np.flatnonzero(matched[row] > n) for row, n in zip(after, matched, strict=True)]
        if room[0] and self.bytes[usual[0]] == b" ":  # where a letter was last, nothing but a space gets on with it
            for state, (lengths, is_barred, _) in enumerate(states):
                if is_barred and not lengths:
                    left[state] += 1
                    onward[state] = np.append(onward[state], usual[0])
        waits = np.array([len(wanted) in lengths for lengths, _, _ in states] + [False])
        return PhraseTable(after, complete, left, matched, onward, waits)


def _automaton(wanted: bytes, room: Room, times: int) -> tuple[NDArray[np.integer[Any]], list[State]]:
    """(n_state + 1, 256) which state each byte leads to, the last being the one in which all is found; the others.

    room: whether no letter may stand before it, and after it.
    """
    start: State = (frozenset(), False, 0)
    states, rows, number = [start], [], {start: 0}
    for state in states:  # grows as it goes
        row = []
        for byte in range(256):
            to = _follow(wanted, state, byte, room)
            if to[2] < times and to not in number:
                number[to] = len(states)
                states.append(to)
            row.append(number[to] if to[2] < times else -1)
        rows.append(row)
    numbers: type[np.integer[Any]] = np.int16 if len(states) < 1 << 15 else np.int32
    table: NDArray[np.integer[Any]] = np.array([*rows, [-1] * 256], dtype=numbers)
    table[table < 0] = len(states)
    return table, states


def _follow(wanted: bytes, state: State, byte: int, room: Room) -> State:
    """The state after one more byte. room: see `_automaton`."""
    lengths, is_barred, n = state
    begins = not 0x80 <= byte < 0xC0  # a character, and not the rest of one
    bars = _bars(byte, wanted[0]) if begins else is_barred
    if len(wanted) in lengths and not (begins and _bars(byte, wanted[-1])):
        lengths, n = frozenset(), n + 1
    grown = {length + 1 for length in lengths if length < len(wanted) and wanted[length] == byte}
    if wanted[0] == byte and not (is_barred and room[0]):
        grown.add(1)
    if len(wanted) in grown and not room[1]:
        return frozenset(), bars, n + 1
    return frozenset(grown), bars, n


def _bars(byte: int, edge: int) -> bool:
    """Return whether a character that begins with a byte may not stand beside a phrase with this byte at its edge."""
    return byte in LETTERS or (byte == edge and byte < 0x80)


def occurrences(phrase: str, text: str, room: Room | None = None) -> Iterator[tuple[int, int]]:
    """Find a phrase in a text as words: beginning and end, in characters, none overlapping another.

    room: see `Wanted`.
    """
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
    return phrase in text and next(occurrences(phrase, text), None) is not None


def barred_around(text: str, start: int, end: int) -> tuple[bool, bool]:
    """Return whether before a part of a text, and after it, stands a letter or, in ASCII, its own edge character."""
    before, after = text[start - 1 : start] if start else "", text[end : end + 1]
    return (
        _is_letter(before) or (before == text[start] and before.isascii()),
        _is_letter(after) or (after == text[end - 1] and after.isascii()),
    )


def edges(phrase: str) -> Room:
    """Return whether no letter may stand before a phrase, and after it: where it has one there itself."""
    return _needs_room(phrase[0]), _needs_room(phrase[-1])


def _is_letter(character: str) -> bool:
    """Return whether a word goes on with this character; "" is none."""
    return bool(character) and character.encode("utf-8", errors="replace")[0] in LETTERS


def _needs_room(character: str) -> bool:
    """Return whether a phrase with this character at its edge is another word where letters go on."""
    return _is_letter(character) and not any(ord(character) in block for block in _WITHOUT_SPACES)


@lru_cache(4)
def pieces_of(codec: Codec) -> Pieces:
    """The `Pieces` of a vocabulary, made once."""
    return Pieces(codec)
