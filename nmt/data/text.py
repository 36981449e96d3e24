"""Properties of lines: hashes of normal forms and of words that look alike in other languages (numpy arrays), white
space, traces of the Moses scripts, and style. Also the names of the parts of a corpus.
"""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays import STEP, Ints, mixed, positions, seeds_of

Hashes = NDArray[np.uint64]

N_ANCHOR = 4  # words of a line that serve as anchors of its alignment, each as a hash of 16 bits
N_HASH = 1 << 16  # number of hashes of words; 0 stands for no word
NO_ANCHOR = 0
MOST_SHOWN = 200  # characters of a text that is shown

# Classes of code points. Marks count as letters. Symbols are kept, since they distinguish lines.
_OTHER, _SYMBOL, _DIGIT, _LETTER, _WIDE = range(5)
_TABLE = 0x20001  # the last code point is an ideograph; most of those beyond are, too, and all count as letters like it
_FIRST_WIDE = 0x2E80  # scripts without spaces: a Latin word or number between their letters is a separate word
_LINE_FEED, _SPACE = 10, 32
_SHORTEST_WORD = 3
_MAX_COUNT = (1 << 20) - 1
_COUNT_SHIFT, _LINE_SHIFT = np.uint64(16), np.uint64(36)  # places of the count and the line in a key of `anchors_of`
_ODD = np.uint64(STEP)
_POWERS = np.cumprod(np.full(64, 0xD6E8FEB86659FD93, dtype=np.uint64))


class Block:
    """Lines of one side."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        text = "\n".join([*lines, ""])
        # NFKC and case folding neither add nor remove a line feed, so the lines stay apart.
        normalized = text if text.isascii() else unicodedata.normalize("NFKC", text)
        self._folded = _code_points(normalized.casefold())
        self._kind = _classes()[np.minimum(self._folded, _TABLE - 1)]
        self._ends = np.flatnonzero(self._folded == _LINE_FEED)
        assert len(self._ends) == len(lines), "a line feed inside a line"

    def near(self) -> tuple[Hashes, Hashes, Ints, Ints]:
        """Return hashes of each line in two normal forms, and counts of characters and digits in the first form.

        First form: NFKC, case folded, without punctuation and white space. One space stays between two numbers, so
        1/11 differs from 11/1. Second form: the same with each number replaced by one 0.
        """
        is_digit, folded = self._kind == _DIGIT, self._folded.copy()
        is_dropped = (self._kind == _OTHER) & (folded != _LINE_FEED)  # punctuation and white space
        # One or two of these between digits become one space, at the first place.
        digits = np.flatnonzero(is_digit)
        gap = np.diff(digits)
        first = digits[:-1][(gap == 2) | (gap == 3)] + 1
        between = first[is_dropped[first] & (is_dropped[first + 1] | is_digit[first + 1])]
        is_dropped[between], folded[between] = False, _SPACE
        codes, is_digit = folded[~is_dropped], is_digit[~is_dropped]
        ends = np.flatnonzero(codes == _LINE_FEED)
        lengths = np.diff(ends, prepend=-1) - 1
        n_digit = np.bincount(np.searchsorted(ends, np.flatnonzero(is_digit)), minlength=len(ends))
        near = _hashes(codes)
        numberless, has_number = near.copy(), n_digit > 0
        if has_number.any():
            follows_digit = np.zeros_like(is_digit)
            follows_digit[1:] = is_digit[1:] & is_digit[:-1]
            is_kept = np.repeat(has_number, lengths + 1) & ~follows_digit
            numberless[has_number] = _hashes(np.where(is_digit, np.uint32(48), codes)[is_kept])
        return near, numberless, lengths, n_digit

    def bags(self) -> Hashes:
        """Return a hash of each line that depends only on its letters, marks and symbols.

        Order, punctuation, white space and numbers do not count. Equal hashes of `near` have equal bags.
        """
        letters = (self._folded.astype(np.uint64) + np.uint64(1)) * _ODD
        letters = (letters ^ (letters >> np.uint64(29))) * _ODD
        letters[(self._kind == _OTHER) | (self._kind == _DIGIT)] = 0
        total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(letters)])[self._ends]
        return np.diff(total, prepend=np.uint64(0))

    def words(self) -> tuple[NDArray[np.uint16], Ints]:
        """Return the 16-bit hash and the line of each number and longer word, to match across languages."""
        kind = self._kind
        starts = np.concatenate(([0], np.flatnonzero(kind[1:] != kind[:-1]) + 1))
        lengths = np.diff(starts, append=len(kind))
        total = np.add.reduceat(self._folded * _POWERS[np.minimum(positions(lengths), len(_POWERS) - 1)], starts)
        run_kind = kind[starts]
        is_word = (run_kind == _DIGIT) | ((lengths >= _SHORTEST_WORD) & (run_kind >= _LETTER))
        hashed = ((total[is_word] * _ODD) >> np.uint64(48)).astype(np.uint16)
        return np.maximum(hashed, NO_ANCHOR + 1), np.searchsorted(self._ends, starts[is_word])


def hashes_of(lines: Iterable[str]) -> Hashes:
    """Return a hash of each line, as `_hashes` does."""
    return _hashes(_code_points("\n".join([*lines, ""])))


Words = tuple[NDArray[np.uint16], Ints]  # hash and line of each word, as `Block.words` returns them


def anchors_of(src: Words, trg: Words, n_line: int) -> list[NDArray[np.uint16]]:
    """Return (n_line, N_ANCHOR) for each side: the rarest words of each line that occur on both sides, or NO_ANCHOR."""
    counts = np.stack([np.bincount(hashed, minlength=N_HASH) for hashed, _ in (src, trg)])
    count = np.where((counts > 0).all(axis=0), np.minimum(counts.sum(axis=0), _MAX_COUNT), 0).astype(np.uint64)
    anchors_of_side = []
    for hashed, line in (src, trg):
        # One key to sort by: line, then rarity, then hash. So equal words of a line are adjacent.
        key = line.astype(np.uint64) << _LINE_SHIFT | count[hashed] << _COUNT_SHIFT | hashed.astype(np.uint64)
        key = key[count[hashed] > 0]
        key.sort(kind="stable")
        key = key[np.append(True, key[1:] != key[:-1])[: len(key)]]
        starts = np.searchsorted(key, np.arange(n_line + 1, dtype=np.uint64) << _LINE_SHIFT)
        place = starts[:-1, None] + np.arange(N_ANCHOR)
        is_present = place < starts[1:, None]
        anchors = np.full((n_line, N_ANCHOR), NO_ANCHOR, dtype=np.uint16)
        anchors[is_present] = key[place[is_present]].astype(np.uint16)
        anchors_of_side.append(anchors)
    return anchors_of_side


def cut(text: str) -> str:
    """Shorten a text for display."""
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 1] + "…"


def of_pairs(src: Hashes, trg: Hashes) -> Hashes:
    """Combine the hashes of both sides into one hash of each pair, which depends on the order of the sides."""
    return (src * _ODD + (trg ^ (trg >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)).astype(np.uint64)


@functools.cache
def _classes() -> NDArray[np.uint8]:
    class_of = {"L": _LETTER, "M": _LETTER, "N": _SYMBOL, "S": _SYMBOL, "P": _OTHER, "Z": _OTHER, "C": _OTHER}
    categories = map(unicodedata.category, map(chr, range(_TABLE)))
    classes = np.fromiter((_DIGIT if name == "Nd" else class_of[name[0]] for name in categories), np.uint8, _TABLE)
    classes[_FIRST_WIDE:][classes[_FIRST_WIDE:] == _LETTER] = _WIDE
    return classes


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def _hashes(codes: NDArray[np.uint32]) -> Hashes:
    """Return a hash of each line of a text, from its characters and their places in the line.

    With 64 bits, two of 100 million lines hardly share a hash by chance. The hash is no protection against attacks.
    """
    n_of = np.diff(np.flatnonzero(codes == _LINE_FEED), prepend=-1)
    # Mixing makes the terms of equal characters at different places unrelated.
    return np.add.reduceat(mixed(codes.astype(np.uint64) + seeds_of(positions(n_of))), np.cumsum(n_of) - n_of)


# White space and invisible characters.
_SPACES = "\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # as str.isspace
# Byte order mark, soft hyphen, zero-width space, word joiner, invisible operators, direction marks.
_UNSEEN = "\xad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_JOINERS = "\u200c\u200d"
# Scripts in which joiners have a visible effect, from Arabic to Mongolian, and emoji with their modifiers.
_JOINED = (
    "\u0600-\u07ff\u0840-\u085f\u0860-\u0dff\u1000-\u109f\u1780-\u18af\u1900-\u1cff\ua800-\ua8ff\ua930-\uaadf\uabc0-\uabff"
    "\ufb50-\ufdff\ufe70-\ufefc\U00010a00-\U00010fff\U00011000-\U00011fff\U0001e900-\U0001e95f"
    "\u20e3\u2190-\u2bff\u3030\u303d\u3297\u3299\ufe0f\U0001f000-\U0001faff\U000e0020-\U000e007f"
)
# After a virama a joiner selects the form of the letter before it, also at the end of a word.
_VIRAMAS = "\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d4d\u0dca\u1039\u103a\u17d2"

# Regular expressions of text to drop and of white space; Python and the tokenizers library read them alike.
DROPPED = "|".join(
    [
        f"[{_UNSEEN}]+",
        f"(?<![{_JOINED}{_JOINERS}])[{_JOINERS}]+",
        f"(?<![{_VIRAMAS}{_JOINERS}])[{_JOINERS}]+(?![{_JOINED}{_JOINERS}])",
    ]
)
SPACES = f"[{_SPACES}]+"
_DROPPED = re.compile(DROPPED)
_INVISIBLE = re.compile(f"[{_UNSEEN}{_JOINERS}]")  # a fast first test: no other character is dropped
_NO_LINE_ENDS = dict.fromkeys(map(ord, "\n\r"))


def unified(text: str) -> str:
    """Return the text with single spaces for runs of white space, stripped, and without invisible characters."""
    return " ".join((_DROPPED.sub("", text) if _INVISIBLE.search(text) else text).split())


def with_ends_of(source: str, text: str) -> str:
    """Return a translation with the white space at the ends of its source, line ends excepted."""
    if not (bare := source.strip()):
        return text
    before, _, after = source.partition(bare)
    return before.translate(_NO_LINE_ENDS) + text + after.translate(_NO_LINE_ENDS)


# Traces of the Moses scripts in a text: escaped characters, and spaces around punctuation.
_ENTITIES = {"&#124;": "|", "&lt;": "<", "&gt;": ">", "&apos;": "'", "&#39;": "'"}
_ENTITIES |= {"&quot;": '"', "&#91;": "[", "&#93;": "]", "&amp;": "&"}
_ENTITY = re.compile("|".join(_ENTITIES))
_CLITIC = re.compile(r"(?<=[^\W\d_]) '(?=(?:s|t|re|ve|d|ll|m)\b)", re.IGNORECASE)
_ELISION = re.compile(r"\b([cdjlmnst]|qu)' (?=[^\W\d_])", re.IGNORECASE)
_ELIDING = ("fr", "it", "ca")
# Spaces before punctuation and after opening brackets. French itself has a space before its high marks.
_SPACE_APART, _SPACE_APART_IN_FRENCH = (re.compile(rf" (?=[.,)\]{high}])|(?<=[(\[]) ") for high in (";:!?", ""))
_QUOTED = re.compile(r'" ([^"]*?) "')
_FEWEST_ENDS = 10  # lines with a final full stop, to tell if it is set apart


class Dress(NamedTuple):
    """Counts of Moses traces in lines. ends: lines with a final full stop; apart: those with a space before it."""

    lines: int = 0
    entities: int = 0
    ends: int = 0
    apart: int = 0

    @property
    def is_escaped(self) -> bool:
        """True for more than one entity in a hundred lines."""
        return self.entities > max(1, 0.01 * self.lines)

    @property
    def is_apart(self) -> bool:
        """True if most full stops at the ends of lines have a space before them."""
        return self.ends >= _FEWEST_ENDS and self.apart > self.ends / 2

    def differs(self, other: "Dress") -> bool:
        """Return whether one text went through a Moses script and the other did not."""
        escaped = self.is_escaped != other.is_escaped and 0 in (self.entities, other.entities)
        many = min(self.ends, other.ends) >= _FEWEST_ENDS
        apart = many and self.is_apart != other.is_apart and min(self.apart / self.ends, other.apart / other.ends) < 0.1
        return escaped or apart


def dress_of(lines: Iterable[str]) -> Dress:
    """Return the counts for lines."""
    text = "\n".join([*lines, ""])
    marks = (*_ENTITIES, " @-@ ") if "&" in text or "@" in text else ()
    return Dress(text.count("\n"), sum(map(text.count, marks)), text.count(".\n"), text.count(" .\n"))


def undo_moses(line: str, language: str) -> str:
    """Undo the changes of the Moses scripts where they are unambiguous. language: code of the text's language."""
    line = _CLITIC.sub("'", _ENTITY.sub(lambda match: _ENTITIES[match[0]], line).replace(" @-@ ", "-"))
    if language in _ELIDING:
        line = _ELISION.sub(r"\1'", line)
    line = (_SPACE_APART_IN_FRENCH if language == "fr" else _SPACE_APART).sub("", line)
    return _QUOTED.sub(r'"\1"', line) if line.count('"') % 2 == 0 else line


# Style of a text.
_APART = re.compile(r"\s[.,!?;:]+(?:\s|$)")
# For each trait: the lines that could have it, and the wording for lines with it.
_TRAITS = {
    "lower": ("cased", "lower-cased"),
    "capitals": ("cased", "in capitals"),
    "apart": ("marked", "tokenised, with punctuation set apart by spaces"),
}
_USUAL, _UNUSUAL = 0.9, 0.02  # shares of the training lines
_MANY, _FEWEST = 0.3, 5  # share and number of the input lines


def traits_of(line: str) -> Counter[str]:
    """Count 1 for each trait of a line. `cased` and `marked` count the lines that could have a trait."""
    # Georgian text has no capitals.
    letters = [letter for letter in line if letter.lower() != letter.upper() and not "\u10a0" <= letter <= "\u10ff"]
    cased, marked = len(letters) >= 3, bool(re.search(r"\w.*[.,!?;:]", line))
    lower = cased and all(map(str.islower, letters))
    capitals = cased and all(map(str.isupper, letters))
    apart = marked and bool(_APART.search(line))
    return Counter(cased=cased, marked=marked, lower=lower, capitals=capitals, apart=apart)


def shares_of(lines: Iterable[str]) -> dict[str, float]:
    """Return for each trait the share of lines that have it, among the lines that could."""
    counts = sum(map(traits_of, lines), Counter[str]())
    return {trait: round(counts[trait] / n, 4) for trait, (possible, _) in _TRAITS.items() if (n := counts[possible])}


def style_notes(trained: Mapping[str, float], counts: Counter[str]) -> Iterator[str]:
    """Yield notes on input unlike the training text. trained: result of `shares_of`; counts: sums of `traits_of`."""
    for trait, (possible, wording) in _TRAITS.items():
        n_line, n_with, share = counts[possible], counts[trait], trained.get(trait, 0.5)
        n_unlike = n_line - n_with if share >= _USUAL else n_with if share <= _UNUSUAL else 0
        if n_unlike >= max(_FEWEST, _MANY * n_line):
            yield (
                f"note: {share:.0%} of the training lines are {wording}, but {n_with:,} of {n_line:,} input lines: "
                "translations may be poor; write the input like the training text"
            )


# Names of the parts of a corpus.
SIDES = ("src", "trg")
VALID = "valid"


def split_of(set_name: str) -> str:
    """Return the split of a validation set, as in its file names: "valid", or "valid-NAME" for a named set."""
    return VALID if set_name == VALID else f"{VALID}-{set_name}"


def set_of(split: str) -> str | None:
    """Return the name of the validation set of a split; None if the split is no validation set."""
    return split.removeprefix(f"{VALID}-") if split.partition("-")[0] == VALID else None
