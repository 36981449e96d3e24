"""Lines as numpy arrays: code points, lengths, normal forms, hashes, words that other languages share.

All work on characters for the report is done here, for some thousand lines at once; nothing of a text is kept.
"""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays import STEP, mixed, seeds_of

Hashes = NDArray[np.uint64]

# Words of a line that are kept as anchors of its alignment, each as 16 bits.
N_ANCHOR = 4
N_HASH = 1 << 16  # words are told by 16 bits, 0 for none
NO_ANCHOR = 0
MOST_SHOWN = 200  # characters of a text

# What a code point is to us. Marks and symbols are parts of a text; they tell lines apart.
_OTHER, _KEPT, _DIGIT, _LETTER, _WIDE = range(5)
_TABLE = 1 << 17  # beyond are ideographs and private characters, which we take for letters
_FIRST_WIDE = 0x2E80  # scripts without spaces: a Latin word or number between their letters is a word of its own
_LINE_FEED, _SPACE = 10, 32
_SHORTEST_WORD = 3
_MOST_TIMES = (1 << 20) - 1
_OF_TIMES, _OF_LINE = np.uint64(16), np.uint64(36)  # bits before those in a key of `anchors_of`
_ODD = np.uint64(STEP)
_POWERS = np.cumprod(np.full(64, 0xD6E8FEB86659FD93, dtype=np.uint64))


class Block:
    """Some lines of one side, one at least."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self.lengths = np.fromiter(map(len, lines), np.int64, len(lines))  # characters of each line
        text = "\n".join(lines) + "\n"
        # Neither NFKC nor case folding makes or takes a line feed, so the lines stay lines.
        same = text if text.isascii() else unicodedata.normalize("NFKC", text)
        self._folded = _code_points(same.casefold())
        self._kind = _classes()[np.minimum(self._folded, _TABLE - 1)]
        self._ends = np.flatnonzero(self._folded == _LINE_FEED)
        assert len(self._ends) == len(lines), "a line feed inside a line"

    def near(self) -> tuple[Hashes, Hashes, NDArray[np.int64], NDArray[np.int64]]:
        """Hashes of each line in two normal forms; characters in the first of them, and how many are digits.

        First: NFKC, case folded, without punctuation and white space; one space stays between two numbers: 1/11 is
        not 11/1. Second: also one 0 for each number.
        """
        wanted, folded = (self._kind != _OTHER) | (self._folded == _LINE_FEED), self._folded.copy()
        between = self._between_numbers()
        wanted[between], folded[between] = True, _SPACE
        codes, digit = folded[wanted], self._kind[wanted] == _DIGIT
        ends = np.flatnonzero(codes == _LINE_FEED)
        lengths = np.diff(ends, prepend=-1) - 1
        n_digit = np.bincount(np.searchsorted(ends, np.flatnonzero(digit)), minlength=len(ends))
        first = _hashes(codes)
        second, with_number = first.copy(), n_digit > 0
        if with_number.any():
            again = np.zeros_like(digit)
            again[1:] = digit[1:] & digit[:-1]
            chosen = np.repeat(with_number, lengths + 1) & ~again
            second[with_number] = _hashes(np.where(digit, np.uint32(48), codes)[chosen])
        return first, second, lengths, n_digit

    def bags(self) -> Hashes:
        """A number for each line that is the same for lines with the same letters, marks and symbols, however often
        punctuation, white space and numbers stand between them: equal hashes of `near` have equal bags."""
        letters = (self._folded.astype(np.uint64) + np.uint64(1)) * _ODD
        letters = (letters ^ (letters >> np.uint64(29))) * _ODD
        letters[(self._kind == _OTHER) | (self._kind == _DIGIT)] = 0
        total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(letters)])[self._ends]
        return np.diff(total, prepend=np.uint64(0))

    def _between_numbers(self) -> NDArray[np.int64]:
        """Places of one or two characters of punctuation or white space between digits: the first of them."""
        parts = (self._kind == _OTHER) & (self._folded != _LINE_FEED)
        digits = np.flatnonzero(self._kind == _DIGIT)
        gap = np.diff(digits)
        found = digits[:-1][(gap == 2) | (gap == 3)] + 1
        chosen: NDArray[np.int64] = found[parts[found] & (parts[found + 1] | (self._kind[found + 1] == _DIGIT))]
        return chosen

    def words(self) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
        """A hash of 16 bits and the line of each word that may look alike in other languages: numbers, longer words."""
        kind = self._kind
        starts = np.concatenate(([0], np.flatnonzero(kind[1:] != kind[:-1]) + 1))
        lengths = np.diff(starts, append=len(kind))
        place = np.arange(len(kind), dtype=np.int64) - np.repeat(starts, lengths)
        total = np.add.reduceat(self._folded * _POWERS[np.minimum(place, len(_POWERS) - 1)], starts)
        its = kind[starts]
        wanted = (its == _DIGIT) | ((lengths >= _SHORTEST_WORD) & (its >= _LETTER))
        hashed = ((total[wanted] * _ODD) >> np.uint64(48)).astype(np.uint16)
        return np.maximum(hashed, NO_ANCHOR + 1), np.searchsorted(self._ends, starts[wanted])


def row_hashes(values: NDArray[Any], n_of: NDArray[Any]) -> Hashes:
    """A hash of each row, one value at least, from what its values are and where each of them stands in it.

    values: of all rows, end to end; n_of: how many each has. 64 bits: too many for two of 100 million texts to share
    them by chance, though not on purpose.
    """
    starts = np.cumsum(n_of) - n_of
    place = np.arange(len(values)) - np.repeat(starts, n_of)
    # Mixed, a value in one place has nothing to do with the same one in another.
    return np.add.reduceat(mixed(values.astype(np.uint64) + seeds_of(place)), starts)


def hashes_of(lines: Iterable[str]) -> Hashes:
    """A hash of each line."""
    return _hashes(_code_points("\n".join([*lines, ""])))


Words = tuple[NDArray[np.uint16], NDArray[np.int64]]  # the hash and the line of each, as `Block.words` has them


def anchors_of(src: Words, trg: Words, n_line: int) -> list[NDArray[np.uint16]]:
    """(n_line, N_ANCHOR) of each side: the rarest words of a line that both sides have; NO_ANCHOR for too few."""
    counts = np.stack([np.bincount(hashed, minlength=N_HASH) for hashed, _ in (src, trg)])
    times = np.where((counts > 0).all(axis=0), np.minimum(counts.sum(axis=0), _MOST_TIMES), 0).astype(np.uint64)
    anchors = []
    for hashed, line in (src, trg):
        # One key to sort by: line, then rarity, then hash, so that equal words of a line stand together.
        key = line.astype(np.uint64) << _OF_LINE | times[hashed] << _OF_TIMES | hashed.astype(np.uint64)
        key = key[times[hashed] > 0]
        key.sort(kind="stable")
        key = key[np.append(True, key[1:] != key[:-1])[: len(key)]]
        starts = np.searchsorted(key, np.arange(n_line + 1, dtype=np.uint64) << _OF_LINE)
        place = starts[:-1, None] + np.arange(N_ANCHOR)
        there = place < starts[1:, None]
        found = np.full((n_line, N_ANCHOR), NO_ANCHOR, dtype=np.uint16)
        found[there] = key[place[there]].astype(np.uint16)
        anchors.append(found)
    return anchors


def cut(text: str) -> str:
    """A text that is shown: its beginning is enough."""
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 1] + "…"


def of_pairs(src: Hashes, trg: Hashes) -> Hashes:
    """One hash of each pair of hashes, in which the sides are not exchangeable."""
    return (src * _ODD + (trg ^ (trg >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)).astype(np.uint64)


@functools.cache
def _classes() -> NDArray[np.uint8]:
    kinds = list(map(unicodedata.category, map(chr, range(_TABLE))))
    of_kind = {kind: _OTHER if kind[0] in "PZC" else _LETTER if kind[0] in "LM" else _KEPT for kind in set(kinds)}
    found = np.fromiter(map({**of_kind, "Nd": _DIGIT}.__getitem__, kinds), np.uint8, _TABLE)
    found[_FIRST_WIDE:][found[_FIRST_WIDE:] == _LETTER] = _WIDE
    return found


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def _hashes(codes: NDArray[np.uint32]) -> Hashes:
    """A hash of each line of a text."""
    return row_hashes(codes, np.diff(np.flatnonzero(codes == _LINE_FEED), prepend=-1))


# White space and invisible characters.
_SPACES = "\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # as str.isspace
# Byte order mark, soft hyphen, zero-width space, word joiner, invisible operators, marks of direction.
_UNSEEN = "\xad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_JOINERS = "\u200c\u200d"
# Scripts in which joiners change what is seen, from Arabic to Mongolian, and emoji with what belongs to them.
_JOINED = (
    "\u0600-\u07ff\u0840-\u085f\u0860-\u0dff\u1000-\u109f\u1780-\u18af\u1900-\u1cff\ua800-\ua8ff\ua930-\uaadf\uabc0-\uabff"
    "\ufb50-\ufdff\ufe70-\ufefc\U00010a00-\U00010fff\U00011000-\U00011fff\U0001e900-\U0001e95f"
    "\u20e3\u2190-\u2bff\u3030\u303d\u3297\u3299\ufe0f\U0001f000-\U0001faff\U000e0020-\U000e007f"
)
# After a virama a joiner tells the form of the letter before it, so also at the end of a word.
_VIRAMAS = "\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d4d\u0dca\u1039\u103a\u17d2"

# Expressions that Python and the tokenizers library understand alike: what goes, and what becomes one space.
DROPPED = "|".join(
    [
        f"[{_UNSEEN}]+",
        f"(?<![{_JOINED}{_JOINERS}])[{_JOINERS}]+",
        f"(?<![{_VIRAMAS}{_JOINERS}])[{_JOINERS}]+(?![{_JOINED}{_JOINERS}])",
    ]
)
SPACES = f"[{_SPACES}]+"
_DROPPED = re.compile(DROPPED)
_NO_LINE_ENDS = dict.fromkeys(map(ord, "\n\r"))


def unified(text: str) -> str:
    """A text with single spaces for runs of white space, none at its ends, and without what cannot be seen."""
    return " ".join((text if text.isascii() else _DROPPED.sub("", text)).split())


def with_ends_of(source: str, text: str) -> str:
    """A translation with the white space at the ends of its source; line ends are no part of a line."""
    if not (bare := source.strip()):
        return text
    before, _, after = source.partition(bare)
    return before.translate(_NO_LINE_ENDS) + text + after.translate(_NO_LINE_ENDS)


# Text as the scripts of Moses leave it.
_ENTITIES = {"&#124;": "|", "&lt;": "<", "&gt;": ">", "&apos;": "'", "&#39;": "'"}
_ENTITIES |= {"&quot;": '"', "&#91;": "[", "&#93;": "]", "&amp;": "&"}
_ENTITY = re.compile("|".join(_ENTITIES))
_CLITIC = re.compile(r"(?<=[^\W\d_]) '(?=(?:s|t|re|ve|d|ll|m)\b)", re.IGNORECASE)
_ELISION = re.compile(r"\b([cdjlmnst]|qu)' (?=[^\W\d_])", re.IGNORECASE)
_ELIDING = ("fr", "it", "ca")
# Spaces before marks and after opening brackets; French has one before its high marks.
_SPACE_APART, _SPACE_APART_IN_FRENCH = (re.compile(rf" (?=[.,)\]{high}])|(?<=[(\[]) ") for high in (";:!?", ""))
_QUOTED = re.compile(r'" ([^"]*?) "')


class Dress(NamedTuple):
    """Counts of some lines. ends: lines that end in a full stop; apart: those of them with a space before it."""

    lines: int = 0
    entities: int = 0
    ends: int = 0
    apart: int = 0

    @property
    def is_escaped(self) -> bool:
        """More than one entity in a hundred lines."""
        return self.entities > max(1, 0.01 * self.lines)

    @property
    def is_apart(self) -> bool:
        """Most full stops at the ends of lines have a space before them."""
        return self.ends >= _FEWEST_ENDS and self.apart > self.ends / 2

    def differs(self, other: "Dress") -> bool:
        """One of both is dressed by Moses, the other not at all."""
        escaped = self.is_escaped != other.is_escaped and 0 in (self.entities, other.entities)
        many = min(self.ends, other.ends) >= _FEWEST_ENDS
        apart = many and self.is_apart != other.is_apart and min(self.apart / self.ends, other.apart / other.ends) < 0.1
        return escaped or apart


_FEWEST_ENDS = 10


def dress_of(text: bytes) -> Dress:
    """The counts of lines, each ended by a line feed."""
    marks = (*_ENTITIES, " @-@ ") if b"&" in text or b"@" in text else ()
    entities = sum(text.count(mark.encode()) for mark in marks)
    return Dress(text.count(b"\n"), entities, text.count(b".\n"), text.count(b" .\n"))


def undone(line: str, language: str) -> str:
    """A line as it was before the scripts of Moses, as far as that is plain. language: its code."""
    line = _CLITIC.sub("'", _ENTITY.sub(lambda found: _ENTITIES[found[0]], line).replace(" @-@ ", "-"))
    if language in _ELIDING:
        line = _ELISION.sub(r"\1'", line)
    line = (_SPACE_APART_IN_FRENCH if language == "fr" else _SPACE_APART).sub("", line)
    return _QUOTED.sub(r'"\1"', line) if line.count('"') % 2 == 0 else line


# Style of a text.
_APART = re.compile(r"\s[.,!?;:]+(?:\s|$)")
# By the name of each trait: of which lines it is told, and what is said of text that has it, and that has it not.
_TRAITS = {
    "lower": ("cased", "lower-cased", "hardly ever lower-cased"),
    "capitals": ("cased", "in capitals", "hardly ever in capitals"),
    "apart": ("marked", "tokenised, marks set apart by spaces", "hardly ever with marks set apart by spaces"),
}
_USUAL, _UNUSUAL = 0.9, 0.02  # shares of the training lines
_MANY, _FEWEST = 0.3, 5  # share and number of the input lines


def traits_of(line: str) -> Counter[str]:
    """1 for each trait of a line, and under `cased` and `marked` where it could have any."""
    letters = [one for one in line if one.lower() != one.upper() and not "\u10a0" <= one <= "\u10ff"]
    cased, marked = len(letters) >= 3, bool(re.search(r"\w.*[.,!?;:]", line))
    lower = cased and all(map(str.islower, letters))
    capitals = cased and all(map(str.isupper, letters))
    apart = marked and bool(_APART.search(line))
    return Counter(cased=cased, marked=marked, lower=lower, capitals=capitals, apart=apart)


def shares_of(lines: Iterable[str]) -> dict[str, float]:
    """The share of the lines that have each trait, of those that could."""
    found = sum(map(traits_of, lines), Counter[str]())
    return {trait: round(found[trait] / n, 4) for trait, (possible, *_) in _TRAITS.items() if (n := found[possible])}


def style_notes(trained: Mapping[str, float], found: Counter[str]) -> list[str]:
    """Notes on input that is written unlike the training text. trained: `shares_of`; found: sums of `traits_of`."""
    notes = []
    for trait, (possible, usual, unusual) in _TRAITS.items():
        n, n_with, share = found[possible], found[trait], trained.get(trait, 0.5)
        many = max(_FEWEST, _MANY * n)
        if share >= _USUAL and n - n_with >= many:
            notes.append(f"training text is {usual}, {n - n_with:,} of {n:,} input lines are not")
        if share <= _UNUSUAL and n_with >= many:
            notes.append(f"training text is {unusual}, {n_with:,} of {n:,} input lines are")
    return [f"note: {one}: translations may be poor; write the input as training text is" for one in notes]


# What the parts of a corpus are called.
SIDES = ("src", "trg")
VALID = "valid"


def split_of(set_name: str) -> str:
    """Name of the files of a validation set in the folder: "valid", or "valid-NAME" under another name."""
    return VALID if set_name == VALID else f"{VALID}-{set_name}"


def set_of(split: str) -> str | None:
    """The name of the validation set that a split is; None where it is none."""
    return split.removeprefix(f"{VALID}-") if split.partition("-")[0] == VALID else None
