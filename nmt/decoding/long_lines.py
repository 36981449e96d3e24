"""Lines longer than training is used to: cut into pieces (`nmt.data.sentences`), and their translations joined
again."""

import math
import re
import string
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.data.sentences import pieces, writes_no_space
from nmt.data.subword_kinds import LONGEST_PIECE
from nmt.data.subwords import EOS, Codec
from nmt.decoding.beam import BeamSettings, Hypothesis
from nmt.languages import language_of
from nmt.recipe.decode_options import LEAST_SRC_LEN, DecodeConfig

# Text that no model has to read.


_EMOJI = "[\u2600-\u26ff\u2700-\u2757\u2763-\u27bf\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\U0001f1e6-\U0001faff]"
_WITH_EMOJI = "\u200d\ufe0f\ufe0e"  # joiner and variation selectors
_EMOJI_AND_SPACE = re.compile(rf"(?:[\s{_WITH_EMOJI}]|(?P<emoji>{_EMOJI}))*")
# Languages whose numbers are usually in digits of their own (CLDR, default numbering systems).
_OWN_DIGITS = frozenset(
    ["ar", "as", "bn", "ckb", "dz", "fa", "ks", "lrc", "mni", "mr", "my", "mzn", "ne", "ps", "sa", "sat", "sd", "ug"]
)


def is_letterless(text: str, src_lang: str, trg_lang: str) -> bool:
    """Return whether a text is copied: it has no letter, and digits only where both languages write them like that."""
    if any(unicodedata.category(one)[0] in "LM" and one not in _WITH_EMOJI for one in text):
        return False
    if not any(one.isnumeric() for one in text):
        return True
    both = [language_of(code) for code in (src_lang, trg_lang)]
    if any(not one.scripts or one.primary in _OWN_DIGITS for one in both):  # made-up languages have numbers of any kind
        return False
    return all(one.isascii() for one in text if one.isdecimal())


def emoji_at_ends(text: str) -> tuple[str, str, str]:
    """The emoji that a text begins with, what is between, and those that it ends with, with white space beside them."""
    before = _first_emoji(text)
    text = text[len(before) :]
    after = _first_emoji(text[::-1])[::-1]
    return before, text[: len(text) - len(after)], after


def _first_emoji(text: str) -> str:
    found = _EMOJI_AND_SPACE.match(text)
    return found[0] if found and found["emoji"] else ""


# Most subwords of a line that go through a model of which nothing is known, and of one side of a given pair. Attention
# needs memory by the square of the length, and a line of this length is no sentence.
MAX_SRC_LEN = 1024

_NARROW_MARKS = string.punctuation + "“”‘’…"

One = TypeVar("One")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the length of a text that the model translates at once, in subwords."""

    line: int = MAX_SRC_LEN  # a longer line is translated sentence by sentence
    piece: int = MAX_SRC_LEN  # a longer sentence is cut; at least `line`
    every: bool = False  # every line is translated sentence by sentence


def usual_len(lengths: NDArray[Any]) -> int:
    """The length that 99 of 100 lines have at most. The longest of all is often an accident, as long as may be."""
    return int(np.quantile(lengths, 0.99, method="higher"))


def limits_of(config: DecodeConfig, *, max_len: int, usual_src_len: int | None) -> Limits:
    """max_len: data.max_len of the recipe; usual_src_len: `usual_len` of the training data, if known."""
    piece = config.max_src_len or max(LEAST_SRC_LEN, max_len)
    line = piece if config.max_src_len or usual_src_len is None else min(piece, max(LEAST_SRC_LEN, usual_src_len))
    return Limits(line, piece, config.split == "every")


@dataclass(frozen=True, slots=True)
class Split:
    """A line in pieces: spaces[0] pieces[0] spaces[1] … pieces[-1] spaces[-1] is the line, byte for byte."""

    pieces: list[str]
    spaces: list[str]  # one more than pieces; often ""

    @property
    def starts(self) -> list[int]:
        """At which character of the line each piece begins."""
        found, at = [], 0
        for space, piece in zip(self.spaces, self.pieces, strict=False):
            found.append(at + len(space))
            at = found[-1] + len(piece)
        return found


def split(
    line: str, ids: Sequence[int] | None, codec: Codec, limits: Limits, *, emoji: bool = False, language: str = ""
) -> Split | None:
    """The line in pieces of at most `limits.piece` subwords, none with a line feed; None if it is translated as it
    stands.

    ids: its subwords; None if they are `surely_too_long`. emoji: those at the ends of a piece stand between pieces.
    """
    before, text, after = emoji_at_ends(line) if emoji else ("", line, "")
    if text and len(text) < len(line):
        its_ids = None if surely_too_long(text, limits.piece) else codec.encode([text])[0]
        inner = split(text, its_ids, codec, limits, emoji=True, language=language) or Split([text], ["", ""])
        return Split(inner.pieces, [before + inner.spaces[0], *inner.spaces[1:-1], inner.spaces[-1] + after])
    too_long = ids is None or len(ids) > limits.line
    lines = line.split("\n")
    if not too_long and not limits.every and len(lines) == 1:
        return None

    def fits(text: str, limit: int = limits.piece) -> bool:
        return not surely_too_long(text, limit) and len(codec.encode([text])[0]) <= limit

    def of_line(text: str) -> Iterable[str]:
        is_whole = len(lines) > 1 and not limits.every and fits(text, limits.line)
        return [text] if is_whole else pieces(text, fits, language)

    found = Split([], [""])
    for piece in (piece for n, text in enumerate(lines) for piece in ("\n" * bool(n), *of_line(text))):
        bare = (emoji_at_ends(piece)[1] if emoji else piece).strip()
        before, _, after = piece.partition(bare) if bare else (piece, "", "")
        found.spaces[-1] += before
        if bare:
            found.pieces.append(bare)
            found.spaces.append(after)
    whole = len(lines) == 1 and len(found.pieces) == 1 and (not too_long or found.pieces == [line])
    return None if whole else found


def surely_too_long(text: str, limit: int) -> bool:
    """Return True only for a text that has more than `limit` subwords, without encoding it."""
    return len(text) > limit * LONGEST_PIECE


def joined(line: Split, texts: Sequence[str]) -> tuple[str, list[int]]:
    """Return the translations of the pieces with the white space of the line between them, as far as both languages
    write it, and at which character each of them begins."""
    assert len(texts) == len(line.pieces)
    found, places = line.spaces[0], []
    for i, text in enumerate(texts):
        space = line.spaces[i] if i else ""
        if i and found and text:
            unspaced = _meet_unspaced(line.pieces[i - 1], line.pieces[i])
            if not space and any(unspaced):
                space = "" if writes_no_space(found[-1]) or writes_no_space(text[0]) else " "
            elif space == " " and not any(unspaced) and all(_meet_unspaced(found, text)):
                space = ""
        found += space
        places.append(len(found))
        found += text
    return found + line.spaces[-1], places


def _meet_unspaced(before: str, after: str) -> tuple[bool, bool]:
    """Return whether each side of a place between sentences is written without spaces, ASCII marks aside."""
    before, after = before.rstrip(_NARROW_MARKS) or before, after.lstrip(_NARROW_MARKS) or after
    return writes_no_space(before[-1]), writes_no_space(after[0])


def first_words(text: str, places: Sequence[int], by_character: bool = False) -> list[int]:
    """The number of the word, as white space cuts them, that stands at each of some places of a text, from 0.

    by_character: each character is a word, white space aside.
    """
    ends = [word.end() for word in re.finditer(r"\S" if by_character else r"\S+", text)]
    return [bisect_right(ends, place) for place in places]


def ranked(parts: Sequence[Sequence[One]], rank: int) -> list[One]:
    """Choose a rank among the n best of each piece, the last where it has fewer."""
    return [one[min(rank, len(one) - 1)] for one in parts]


def join_hypotheses(parts: Sequence[Sequence[Hypothesis]], how: BeamSettings) -> list[Hypothesis]:
    """The k-th hypothesis of a line is made of the k-th of each of its pieces.

    Its ids are theirs with EOS between, its log-probability is their sum, and its length that of all of them.
    """
    found = []
    for rank in range(max(map(len, parts), default=0)):
        chosen = ranked(parts, rank)
        ids, score = join_ids([one.ids for one in chosen]), math.fsum(one.score for one in chosen)
        divisor = float(how.divisor(torch.tensor(len(ids) + 1)))
        finished = all(one.finished for one in chosen)
        found.append(Hypothesis(ids=ids, score=score, normalised=score / divisor, finished=finished))
    return found


def join_ids(rows: Sequence[Sequence[int]]) -> list[int]:
    """Rows of ids with EOS between them."""
    return [i for number, row in enumerate(rows) for i in ([EOS, *row] if number else row)]


def join_attention(blocks: Sequence[Tensor]) -> Tensor:
    """(…, T, S) of each piece -> the same of the line: no piece looks at another."""
    n_trg, n_src = sum(one.size(-2) for one in blocks), sum(one.size(-1) for one in blocks)
    found = blocks[0].new_zeros(*blocks[0].shape[:-2], n_trg, n_src)
    t = s = 0
    for one in blocks:
        found[..., t : t + one.size(-2), s : s + one.size(-1)] = one
        t, s = t + one.size(-2), s + one.size(-1)
    return found
