"""Text to pieces as SentencePiece does it: its rules of normalisation, BPE and unigram models, to the last piece.

A file of theirs becomes pieces of ours in `sentencepiece_file.py`; their package is not needed here. A character
without a piece becomes its bytes. No piece reaches over the beginning of a word, so words are cut one by one.
The tokenizers library has the same models, but rounds sums of scores in another way, and ties are decided by that.
"""

import heapq
import itertools
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nmt.data.vocabulary.letters import BYTE_OF

SPACE = "▁"  # U+2581, which they write for a space; in a text it is one
_PENALTY = 10.0  # of a character without a piece, below the score of the least likely piece
_MOST_REMEMBERED = 400_000
_LONGEST_REMEMBERED = 64  # characters of a word
# Scores are summed in single precision from the beginning of a text. What is nearer than this share of the sum, twice
# the rounding of as many additions as a word has, is decided as they do it.
_NEAR = 2.0**-16
_WORD = re.compile(" *[^ ]+| +")


@dataclass(frozen=True, slots=True)
class SentencePiece:
    """What a model of theirs is beside its pieces.

    model: bpe or unigram. scores: of each piece, None for one that only stands for a byte. charsmap: the rules of
    normalisation as they store them. squeeze: whether spaces at the ends go, and several become one.
    """

    model: str
    scores: Sequence[float | None]
    charsmap: bytes
    squeeze: bool


class Rules:
    """Rules of normalisation: what stands at a place of a text becomes what the longest rule for it says.

    They are stored as a double-array trie (Darts) of keys, in units of four bytes, and the texts that keys become, each
    with a zero byte at its end; four bytes before tell how long the trie is.
    """

    def __init__(self, charsmap: bytes) -> None:
        """Raises ValueError for bytes that are no such rules; none at all are no rules."""
        n_trie = int.from_bytes(charsmap[:4], "little")
        if charsmap and (not n_trie or n_trie % 4 or len(charsmap) <= 4 + n_trie or charsmap[-1]):
            raise ValueError("the rules of normalisation are damaged")
        units = np.frombuffer(charsmap, "<u4", n_trie // 4, 4) if charsmap else np.empty(0, np.uint32)
        self._units: list[int] = units.tolist()
        self.texts = charsmap[4 + n_trie :]
        # Where no key has a space in it, what is between spaces is normalised by itself, and each word once.
        self._by_word = not bool(((units & 0x800000FF) == 0x20).any())
        self._known: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """The text after the rules."""
        if not self._units:
            return text
        return " ".join(map(self._word, text.split(" "))) if self._by_word else self._changed(text)

    def _word(self, word: str) -> str:
        if (found := self._known.get(word)) is None:
            found = self._changed(word)
            if len(self._known) < _MOST_REMEMBERED and len(word) <= _LONGEST_REMEMBERED:
                self._known[word] = found
        return found

    def _changed(self, text: str) -> str:
        raw, found, at = text.encode("utf-8", errors="surrogatepass"), bytearray(), 0
        while at < len(raw):
            end, place = self._longest(raw, at)
            if end > at:
                found += self.texts[place : self.texts.index(b"\0", place)]
                at = end
            else:
                first = raw[at]
                end = at + (1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4)
                found += raw[at:end]
                at = end
        return found.decode("utf-8", errors="surrogatepass")

    def _longest(self, raw: bytes, at: int) -> tuple[int, int]:
        """Where the longest key that begins at a place ends, and the place of what it becomes; its beginning: none."""
        units, end, text = self._units, at, 0
        node = _offset(units[0])
        for k in range(at, len(raw)):
            node ^= raw[k]
            if node >= len(units) or (unit := units[node]) & 0x800000FF != raw[k]:
                break
            node ^= _offset(unit)
            if unit >> 8 & 1 and node < len(units) and (place := units[node] & 0x7FFFFFFF) < len(self.texts):
                end, text = k + 1, place
        return end, text


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & (1 << 9)) >> 6)


class Speller:
    """Encodes with the pieces of a model."""

    def __init__(self, vocab: Sequence[str], config: SentencePiece) -> None:
        """vocab: pieces in the order of their numbers, from 0, in the letters of the byte-level alphabet."""
        self.config = config
        raw = [bytes(BYTE_OF[letter] for letter in piece) for piece in vocab]
        self._byte = {its[0]: i for i, its in enumerate(raw) if len(its) == 1}
        self._score_of: dict[str, float] = {}
        self._id_of: dict[str, int] = {}
        for i, (its, score) in enumerate(zip(raw, config.scores, strict=True)):
            if score is not None:
                self._id_of[its.decode("utf-8")], self._score_of[its.decode("utf-8")] = i, score
        self._longest = max(map(len, self._id_of), default=1)
        self._unknown = min(self._score_of.values(), default=0.0) - _PENALTY
        self.normalised = Rules(config.charsmap)  # leaves spaces as they are
        self._known: dict[str, tuple[list[int], float, float]] = {}

    def line(self, text: str) -> str:
        """What of a line becomes pieces: normalised and with a space before it; "" if nothing is left."""
        found = self.normalised(text)
        if self.config.squeeze:
            found = re.sub(" {2,}", " ", found).lstrip(" ")
        found = f" {found}".replace(SPACE, " ") if found or (text and not self.config.squeeze) else ""
        return found.rstrip(" ") if self.config.squeeze else found

    def encode(self, text: str) -> list[int]:
        """The numbers of the pieces of a text, in which a space stands before each word."""
        words = _WORD.findall(text)
        if self.config.model == "bpe":
            return [i for word in words for i in self._word(word)[0]]
        found = [self._word(word) for word in words]
        total = sum(score for _, score, _ in found)
        if found and min(margin for *_, margin in found) <= -total * _NEAR:
            return self._ids(self._likeliest(text)[0])
        return [i for ids, *_ in found for i in ids]

    def cut(self, raw: bytes) -> list[int]:
        """The numbers of the pieces of some bytes, which may be no whole text."""
        try:
            return self.encode(raw.decode("utf-8"))
        except UnicodeDecodeError:
            return [self._byte[byte] for byte in raw]

    def _word(self, word: str) -> tuple[list[int], float, float]:
        """Numbers, score, and how much better that is than what comes next; the last two for unigram models."""
        if (found := self._known.get(word)) is None:
            if self.config.model == "bpe":
                found = self._ids(self._merged(word)), 0.0, 0.0
            else:
                parts, best, margin = self._likeliest(word)
                found = self._ids(parts), best, margin if len(word) <= _LONGEST_REMEMBERED else 0.0
            if len(self._known) < _MOST_REMEMBERED and len(word) <= _LONGEST_REMEMBERED:
                self._known[word] = found
        return found

    def _ids(self, parts: Sequence[str]) -> list[int]:
        ids: list[int] = []
        for part in parts:
            if (i := self._id_of.get(part)) is not None:
                ids.append(i)
            else:
                ids += [self._byte[byte] for byte in part.encode("utf-8")]
        return ids

    def _merged(self, word: str) -> list[str]:
        """BPE: of all neighbours that make a piece the pair with the best score first, the leftmost of equals."""
        parts = list(word)
        before, after = list(range(-1, len(parts) - 1)), list(range(1, len(parts) + 1))
        agenda: list[tuple[float, int, int, int]] = []

        def consider(left: int, right: int) -> None:
            if left >= 0 and right < len(parts) and (whole := parts[left] + parts[right]) in self._score_of:
                heapq.heappush(agenda, (-self._score_of[whole], left, right, len(whole)))

        for left, right in itertools.pairwise(range(len(parts))):
            consider(left, right)
        while agenda:
            _, left, right, n = heapq.heappop(agenda)
            if not parts[left] or not parts[right] or len(parts[left]) + len(parts[right]) != n:
                continue  # one of the two has been merged otherwise
            parts[left] += parts[right]
            parts[right] = ""
            after[left] = after[right]
            if after[right] < len(parts):
                before[after[right]] = left
            consider(before[left], left)
            consider(left, after[left])
        return [part for part in parts if part]

    def _likeliest(self, text: str) -> tuple[list[str], float, float]:
        """Unigram: the pieces that are likeliest together, their score, and by how much another way is less likely.

        Sums are rounded to single precision, as theirs are, and of equals the one that begins first stays.
        """
        n = len(text)
        best, start, second = array("f", [0.0]) * (n + 2), [-1] * (n + 1), [float("-inf")] * (n + 1)
        for i in range(n):
            here, other, is_single = best[i], second[i], False
            for j in range(i + 1, min(n, i + self._longest) + 1):
                if (score := self._score_of.get(text[i:j])) is not None:
                    is_single |= j == i + 1
                    self._offer(best, start, second, i, j, score + here, score + other)
            if not is_single:
                self._offer(best, start, second, i, i + 1, self._unknown + here, self._unknown + other)
        parts, at = [], n
        while at:
            parts.append(text[start[at] : at])
            at = start[at]
        return parts[::-1], best[n], best[n] - second[n]

    @staticmethod
    def _offer(
        best: "array[float]", start: list[int], second: list[float], i: int, j: int, score: float, other: float
    ) -> None:
        best[-1] = score  # which rounds it
        score = best[-1]
        if start[j] < 0 or score > best[j]:
            second[j] = max(second[j], other, best[j] if start[j] >= 0 else other)
            best[j], start[j] = score, i
        else:
            second[j] = max(second[j], score, other)
