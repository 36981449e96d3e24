"""Splitting of long lines into pieces (see `nmt.data.sentences`), and joining of the translations of the pieces."""

import re
import string
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from nmt.data.sentences import pieces, writes_no_space
from nmt.data.subwords import EOS, Codec
from nmt.languages import language_of
from nmt.recipe.decode_options import LEAST_SRC_LEN, DecodeConfig

# Text that skips the model.
_EMOJI = "[\u2600-\u26ff\u2700-\u2757\u2763-\u27bf\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\U0001f1e6-\U0001faff]"
_WITH_EMOJI = "\u200d\ufe0f\ufe0e"  # joiner and variation selectors
_EMOJI_AT_START = re.compile(rf"^(?:[\s{_WITH_EMOJI}]*{_EMOJI})+[\s{_WITH_EMOJI}]*")
# Languages that mostly write numbers in digits of their own (CLDR, default numbering systems).
_OWN_DIGITS = "ar as bn ckb dz fa ks lrc mni mr my mzn ne ps sa sat sd ug"


def is_letterless(text: str, src_lang: str, trg_lang: str) -> bool:
    """Return whether to copy a text: it has no letter, and has digits only if both languages write them alike."""
    if any(unicodedata.category(character)[0] in "LM" and character not in _WITH_EMOJI for character in text):
        return False
    if not any(character.isnumeric() for character in text):
        return True
    languages = [language_of(code) for code in (src_lang, trg_lang)]
    # A language without known scripts may be invented, with numbers of any kind.
    if any(not language.scripts or language.primary in _OWN_DIGITS.split() for language in languages):
        return False
    return all(character.isascii() for character in text if character.isdecimal())


def without_emoji(text: str) -> str:
    """Remove the emoji at both ends of a text, with the white space around them."""
    text = _EMOJI_AT_START.sub("", text)
    return _EMOJI_AT_START.sub("", text[::-1])[::-1]


# Maximum number of subwords of a line for a model without known limits, and of each side of a given pair. Attention
# needs memory by the square of the length, and so long a line is not a sentence.
MAX_SRC_LEN = 1024

_NARROW_MARKS = string.punctuation + "“”‘’…"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum lengths of a text that the model translates at once, in subwords."""

    line: int = MAX_SRC_LEN  # a longer line is translated sentence by sentence
    piece: int = MAX_SRC_LEN  # a longer sentence is cut; at least `line`
    every: bool = False  # translate every line sentence by sentence


def usual_len(lengths: NDArray[Any]) -> int:
    """Return the 99th percentile of lengths. The maximum is often an outlier, as long as data.max_len allows."""
    return int(np.quantile(lengths, 0.99, method="higher"))


def limits_of(config: DecodeConfig, *, max_len: int, usual_src_len: int | None) -> Limits:
    """Limits of a model. max_len: data.max_len of the recipe; usual_src_len: `usual_len` of the training data, if
    known."""
    piece = config.max_src_len or max(LEAST_SRC_LEN, max_len)
    line = piece if config.max_src_len or usual_src_len is None else min(piece, max(LEAST_SRC_LEN, usual_src_len))
    return Limits(line, piece, config.split == "every")


@dataclass(frozen=True, slots=True)
class Split:
    """A line in pieces: spaces[0] pieces[0] spaces[1] … pieces[-1] spaces[-1] is the line, byte for byte."""

    pieces: list[str]
    spaces: list[str]  # one more than pieces; often ""


def split(
    line: str, ids: Sequence[int], codec: Codec, limits: Limits, *, emoji: bool = False, language: str = ""
) -> Split | None:
    """Split a line into pieces of at most `limits.piece` subwords and without line feeds. Returns None if the model
    translates the whole line at once.

    ids: subwords of the line. emoji: move emoji at the ends of pieces to the spaces.
    """

    def bare(text: str) -> str:
        return (without_emoji(text) if emoji else text).strip()

    def fits(text: str, limit: int = limits.piece) -> bool:
        return len(codec.encode([bare(text)])[0]) <= limit

    lines, too_long, has_emoji = line.split("\n"), len(ids) > limits.line, bare(line) != line.strip()
    if not (too_long or has_emoji or limits.every or len(lines) > 1):
        return None
    result = Split([], [""])
    for n, text in enumerate(lines):
        is_whole = not limits.every and fits(text, limits.line)
        parts = [text] if is_whole else pieces(text, fits, language)
        for piece in ("\n" * bool(n), *parts):
            core = bare(piece)
            before, _, after = piece.partition(core) if core else (piece, "", "")
            result.spaces[-1] += before
            if core:
                result.pieces.append(core)
                result.spaces.append(after)
    is_whole_line = len(lines) == len(result.pieces) == 1 and not has_emoji and (not too_long or result.pieces == lines)
    return None if is_whole_line else result


def joined(line: Split, texts: Sequence[str]) -> list[str]:
    """Join the translations of the pieces by the white space of the line, adapted to languages written without spaces.

    Returns the parts of the text: white space, a translation, white space, …, white space.
    """
    assert len(texts) == len(line.pieces)
    result, parts = "", list[str]()
    for i, (space, text) in enumerate(zip(line.spaces, texts, strict=False)):
        if i and result and text:
            src_unspaced = _meet_unspaced(line.pieces[i - 1], line.pieces[i])
            if not space and any(src_unspaced):
                space = "" if writes_no_space(result[-1]) or writes_no_space(text[0]) else " "
            elif space == " " and not any(src_unspaced) and all(_meet_unspaced(result, text)):
                space = ""
        result += space + text
        parts += space, text
    return [*parts, line.spaces[-1]]


def _meet_unspaced(before: str, after: str) -> tuple[bool, bool]:
    """Return whether the text on each side of a sentence boundary is in a script without spaces, ASCII marks aside."""
    before, after = before.rstrip(_NARROW_MARKS) or before, after.lstrip(_NARROW_MARKS) or after
    return writes_no_space(before[-1]), writes_no_space(after[0])


def by_rank(n_best_lists: Sequence[Sequence[_T]]) -> list[list[_T]]:
    """Return the best entries of all n-best lists, then the second ones, and so on; a shorter list repeats its last."""
    n = max(map(len, n_best_lists), default=0)
    return [[n_best[min(rank, len(n_best) - 1)] for n_best in n_best_lists] for rank in range(n)]


def join_ids(rows: Sequence[Sequence[int]]) -> list[int]:
    """Join rows of ids by EOS."""
    return [i for number, row in enumerate(rows) for i in ([EOS, *row] if number else row)]
