"""Phrases that a translation must or must not contain: automata over bytes, and their transition tables over subwords.

A phrase is found as words: no letter may directly precede or follow it. Chinese, Japanese and Korean letters after a
name do not make it another word. A phrase in such a script, or in Thai, Lao, Tibetan, Burmese or Khmer, is found
anywhere. For a part of the source, its neighbours in the source decide. Where no letter may stand beside a phrase, its
own first or last character may not either: %%s is not %s to the program that reads it.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache, reduce
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.letters import LONGEST_PIECE
from nmt.data.placeholders import CHARACTERS, IN_WORD
from nmt.data.subwords import EOS, Codec

Ids = NDArray[np.int64]
Boundaries = tuple[bool, bool]  # whether a word boundary is required before a phrase, and after it

_LETTER = re.compile(f"[{IN_WORD}]")
# Their first bytes: ASCII; U+00C0 to U+07FF, from Latin to Arabic; U+0800 to U+1FFF, from Indic to Vietnamese.
LETTERS = frozenset([*b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz", *range(0xC3, 0xE2)])
# Letters of scripts with spaces: without the blocks from Thai to Tibetan, Burmese, and Khmer.
_SPACED_LETTER = re.compile("[0-9A-Z_a-z\u00c0-\u0dff\u10a0-\u177f\u1800-\u1fff]")


class RequiredPhrase(NamedTuple):
    """A phrase that a translation has to contain, and its number of occurrences."""

    phrase: str
    times: int = 1
    boundaries: Boundaries | None = None  # None: `boundaries_of` the phrase


def occurrences(phrase: str, text: str, boundaries: Boundaries | None = None) -> Iterator[tuple[int, int]]:
    """Find a phrase in a text as words. Yields start and end, in characters, of occurrences that do not overlap."""
    if phrase in text:  # mostly false, and the expression takes longer
        before, after = boundaries or boundaries_of(phrase)
        first, last = (IN_WORD + (re.escape(edge) if edge.isascii() else "") for edge in (phrase[0], phrase[-1]))
        pattern = f"(?<![{first}])" * before + re.escape(phrase) + f"(?![{last}])" * after
        yield from (match.span() for match in re.finditer(pattern, text))


def contains(text: str, phrase: str) -> bool:
    """Return whether a text contains a phrase as words."""
    return next(occurrences(phrase, text), None) is not None


def attached_sides(text: str, start: int, end: int) -> tuple[bool, bool]:
    """Return whether a part of a text is attached to what precedes it, and to what follows it: to a letter or, in
    ASCII, to its own first or last character."""
    neighbours = (text[start - 1 : start] if start else "", text[start]), (text[end : end + 1], text[end - 1])
    before, after = (bool(_LETTER.match(c)) or (c == edge and c.isascii()) for c, edge in neighbours)
    return before, after


def boundaries_of(phrase: str) -> Boundaries:
    """Return the word boundaries of a phrase: where its edge is a letter of a script with spaces."""
    before, after = (bool(_SPACED_LETTER.match(edge)) for edge in (phrase[0], phrase[-1]))
    return before, after


class Pieces:
    """Index of the subwords of a vocabulary by their bytes."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.bytes = codec.raw(range(codec.n_vocab), {name: CHARACTERS[name] for name in codec.placeholders})
        self.n_byte = np.array([len(raw) for raw in self.bytes], dtype=np.int64)
        self._id_of = {raw: i for i, raw in enumerate(self.bytes) if raw}
        # Ids in the order of their bytes, including those with equal bytes.
        self._sorted = np.array(sorted((i for i, raw in enumerate(self.bytes) if raw), key=self.bytes.__getitem__))
        self._sorted_bytes = [self.bytes[i] for i in self._sorted]
        self._joined = b"\n".join(self.bytes)  # no phrase has a line feed
        self._starts = [0, *accumulate(len(raw) + 1 for raw in self.bytes)]  # in `_joined`
        self.matrix = np.array(self.bytes, dtype=f"S{LONGEST_PIECE}").view(np.uint8).reshape(-1, LONGEST_PIECE)
        self.table = lru_cache(128)(self._table)  # a table takes a megabyte or less, that of the longest phrase 60

    def in_bytes(self, text: str) -> bytes:
        """Encode a normalised text in the bytes of the vocabulary."""
        # Halves of surrogate pairs are placeholders. In a vocabulary without placeholders they are no text.
        return text.encode("utf-8", errors="surrogatepass" if self.codec.placeholders else "replace")

    def continuing(self, stream: bytes, place: int) -> list[int]:
        """Return the subwords that may come next where a text has to continue like a stream from a place in it. The
        last one may extend beyond the stream."""
        rest = stream[place : place + LONGEST_PIECE]
        ids = [i for n in range(1, len(rest) + 1) if (i := self._id_of.get(rest[:n])) is not None]
        if place + len(rest) == len(stream):
            ids += [i for i in self.beginning_with(rest).tolist() if self._id_of[self.bytes[i]] == i]
        if not place:  # the space before the text may be missing
            ids += [i for i in self.continuing(stream, 1) if self.bytes[i][:1] != b" "]
        return ids

    def beginning_with(self, start: bytes) -> Ids:
        """Return the subwords that begin with some bytes."""
        first = bisect_left(self._sorted_bytes, start)
        stop = bisect_left(self._sorted_bytes, start[:-1] + bytes([start[-1] + 1])) if start else len(self._sorted)
        ids: Ids = self._sorted[first:stop]
        return ids

    def containing(self, part: bytes) -> set[int]:
        """Return the subwords that contain some bytes, none of which is a line feed."""
        matches = re.finditer(re.escape(part), self._joined)
        return {bisect_right(self._starts, match.start()) - 1 for match in matches}

    def _table(self, required: RequiredPhrase) -> "PhraseTable":
        text = self.codec.normalised(required.phrase)
        raw, boundaries, times = self.in_bytes(text), required.boundaries or boundaries_of(text), required.times
        automaton = PhraseAutomaton(self, [(raw, boundaries)], times)
        states, after_byte = automaton.states()
        after = np.repeat(np.arange(len(states), dtype=after_byte.dtype)[:, None], self.codec.n_vocab, axis=1)
        for place in range(LONGEST_PIECE):
            longer = np.flatnonzero(self.n_byte > place)
            after[:, longer] = after_byte[after[:, longer], self.matrix[longer, place]]
        n_matched = np.array([n * len(raw) + automaton.depth(nodes) for nodes, _, n in states])
        complete = n_matched == times * len(raw)
        # The subwords into which the codec cuts the phrase: the first one has the space before it, or is that space.
        ids = self.codec.encode([text])[0]
        ends = np.cumsum([self.n_byte[i] for i in ids]) - 1
        n_left_once = np.array([int((ends > n).sum()) for n in range(len(raw) + 1)])
        n_more, n_byte_left = np.divmod(times * len(raw) - n_matched, len(raw))
        n_left = n_more * n_left_once[0] + np.where(n_byte_left > 0, n_left_once[len(raw) - n_byte_left], 0)
        advancing = [np.flatnonzero(n_matched[row] > n) for row, n in zip(after, n_matched, strict=True)]
        if boundaries[0] and self.bytes[ids[0]] == b" ":  # after a letter only a space leads to the phrase
            for number, (nodes, is_attached, _) in enumerate(states[:-1]):
                if is_attached and not nodes:
                    n_left[number] += 1
                    advancing[number] = np.append(advancing[number], ids[0])
        awaits_boundary = np.array([not automaton.may_end(state) for state in states])
        return PhraseTable(after, complete, n_left, n_matched, awaits_boundary, advancing)


# State of a text: the nodes that it has reached in the trie of the phrases, whether a phrase that follows it would be
# attached to it, and the number of occurrences so far.
State = tuple[frozenset[int], bool, int]
START: State = (frozenset(), False, 0)
_ANYWHERE, _AT_BOUNDARY = 0, 1  # the two roots of a trie


class PhraseAutomaton:
    """Automaton over bytes. It accepts a text with a number of occurrences of any of its phrases, without overlap."""

    def __init__(self, pieces: Pieces, phrases: Iterable[tuple[bytes, Boundaries]], times: int = 1) -> None:
        self._pieces, self._times, self._phrases = pieces, times, list(phrases)
        self.accepting: State = (frozenset(), False, times)  # it is never left
        self._children: list[dict[int, int]] = [{}, {}]
        self._depth = [0, 0]
        self._final: set[int] = set()  # nodes where a phrase is complete
        self._final_at_boundary: set[int] = set()  # nodes where a phrase is complete if no letter follows
        barred_before, barred_after = set(LETTERS), set(LETTERS)
        for raw, (boundary_before, boundary_after) in self._phrases:
            node = _AT_BOUNDARY if boundary_before else _ANYWHERE
            for depth, byte in enumerate(raw, start=1):
                if byte not in self._children[node]:
                    self._children[node][byte] = len(self._children)
                    self._children.append({})
                    self._depth.append(depth)
                node = self._children[node][byte]
            (self._final_at_boundary if boundary_after else self._final).add(node)
            barred_before.update(raw[:1] * (raw[0] < 0x80 and boundary_before))
            barred_after.update(raw[-1:] * (raw[-1] < 0x80 and boundary_after))
        self._barred_before, self._barred_after = frozenset(barred_before), frozenset(barred_after)
        self._containing = lru_cache(None)(self._containing_phrase)
        self.forbidden = lru_cache(1 << 10)(self._forbidden)
        self.after = lru_cache(1 << 16)(lambda state, token: reduce(self._follow, pieces.bytes[token], state))

    def depth(self, nodes: frozenset[int]) -> int:
        """Return the number of bytes of a phrase that are matched."""
        return max((self._depth[node] for node in nodes), default=0)

    def may_end(self, state: State) -> bool:
        """Return False if the end of the text would complete a phrase."""
        return self._final_at_boundary.isdisjoint(state[0])

    def states(self) -> tuple[list[State], NDArray[np.integer[Any]]]:
        """Return all states, the accepting one last, and (n_state, 256) the number of the state after each byte."""
        states, number_of, rows = [START], {START: 0}, list[list[int]]()
        for state in states:  # the list grows during the loop
            next_states = [self._follow(state, byte) for byte in range(256)]
            for next_state in next_states:
                if next_state != self.accepting and next_state not in number_of:
                    number_of[next_state] = len(states)
                    states.append(next_state)
            rows.append([number_of.get(next_state, -1) for next_state in next_states])
        dtype = np.int16 if len(states) < 1 << 15 else np.int32
        table: NDArray[np.integer[Any]] = np.array([*rows, [-1] * 256], dtype=dtype)
        table[table < 0] = len(states)
        return [*states, self.accepting], table

    def _follow(self, state: State, byte: int) -> State:
        """Return the state after one more byte."""
        nodes, is_attached, n = state
        is_first = not 0x80 <= byte < 0xC0  # of a character
        if not (is_first and byte in self._barred_after) and not self._final_at_boundary.isdisjoint(nodes):
            nodes, n = frozenset(), n + 1
        roots = (_ANYWHERE,) if is_attached else (_ANYWHERE, _AT_BOUNDARY)
        reached = {self._children[node][byte] for node in (*nodes, *roots) if byte in self._children[node]}
        if not self._final.isdisjoint(reached):
            reached, n = set(), n + 1
        if n >= self._times:
            return self.accepting
        return frozenset(reached), byte in self._barred_before if is_first else is_attached, n

    def _forbidden(self, state: State) -> Ids:
        """Return the ids after which a phrase is certainly complete: subwords, and EOS if it completes one."""
        if state == self.accepting:
            return np.arange(len(self._pieces.bytes), dtype=np.int64)
        nodes, is_attached, _ = state
        forbidden = [self._containing(is_attached), np.array([] if self.may_end(state) else [EOS], dtype=np.int64)]
        paths = [(node, b"") for node in nodes]
        for end, path in paths:  # the list grows during the loop
            ids = self._pieces.beginning_with(path)
            if end in self._final:
                forbidden.append(ids)
            elif len(ids):
                if end in self._final_at_boundary:
                    longer = ids[self._pieces.n_byte[ids] > len(path)]
                    forbidden.append(longer[~np.isin(self._pieces.matrix[longer, len(path)], list(LETTERS))])
                paths += [(child, path + bytes([byte])) for byte, child in self._children[end].items()]
        return np.concatenate(forbidden)

    def _containing_phrase(self, is_attached: bool) -> Ids:
        """Return the subwords that contain a whole phrase with its boundaries."""
        start: State = (frozenset(), is_attached, 0)
        likely = sorted(set().union(*(self._pieces.containing(raw) for raw, _ in self._phrases)))
        complete = [i for i in likely if reduce(self._follow, self._pieces.bytes[i], start) == self.accepting]
        return np.array(complete, np.int64)


class PhraseTable(NamedTuple):
    """States of a required phrase. The first one is the start; the last one is accepting and never left."""

    after: NDArray[np.integer[Any]]  # (n_state, n_vocab) the state after each subword
    complete: NDArray[np.bool_]  # (n_state,) as all that follow; the phrase is complete if the text ends now
    n_left: NDArray[np.int64]  # subwords that are missing
    n_matched: NDArray[np.int64]  # bytes that are matched
    awaits_boundary: NDArray[np.bool_]  # all bytes are matched, and no letter may follow
    advancing: list[NDArray[np.int64]]  # subwords that match more


pieces_of = lru_cache(4)(Pieces)  # the index of a vocabulary, from a cache
