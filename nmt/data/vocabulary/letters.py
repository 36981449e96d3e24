"""How text is written for the tokenizers library: normalised, one letter for each byte, cut where no piece goes over.

The letters are those of GPT-2: a byte that prints is itself, the others are moved beyond U+0100. Knows no vocabulary.
"""

import re
import unicodedata
from collections.abc import Sequence

from tokenizers import Regex, pre_tokenizers


def normalised(text: str, normalize: str) -> str:
    """The text as the model knows it."""
    if normalize == "none" or text.isascii():
        return text
    return unicodedata.normalize("NFKC" if normalize == "nfkc" else "NFC", text)


def in_letters(text: str) -> str:
    """The letters of a text's bytes."""
    return text.encode("utf-8").decode("latin-1").translate(_LETTERS)


def units_of(text: str) -> list[str]:
    """A text, with the space before it, cut into parts that can be encoded one by one.

    At its spaces, if white space in it is nothing but single spaces between words; no piece reaches over a single
    space, which always begins one. Else not at all.
    """
    words = text[1:].split() if text[:1] == " " else []
    return [" " + word for word in words] if words and " ".join(words) == text[1:] else [text]


def is_easy(unit: str) -> bool:
    """Whether this is a space and a word of ASCII and other Latin or Cyrillic letters, as most units are."""
    return _EASY.fullmatch(unit) is not None


def words_of_easy(units: Sequence[str]) -> tuple[list[str], list[int]]:
    """What `in_words` makes of easy units: the words of all, end to end, and how many each has.

    One expression of Python cuts them all, in less than a tenth of the time.
    """
    found = _EASY_WORD.findall("\n".join([*units, ""]))
    ends = [n for n, word in enumerate(found) if word == "\n"]
    n_of = [end - start - 1 for start, end in zip([-1, *ends], ends, strict=False)]
    # No easy unit has a character that separates here, so all words become letters at once.
    words = in_letters("\0".join([word for word in found if word != "\n"])).split(_LETTERS[0])
    return words if found else [], n_of


def kind_of(character: str) -> int:
    """LETTER, DIGIT or MARK of an easy character, 0 of any other. `in_words` cuts between two kinds, but for what
    follows an apostrophe and what a space is before.
    """
    found = _KIND.fullmatch(character)
    return (found.lastindex or 0) if found else 0


def in_words() -> pre_tokenizers.PreTokenizer:
    """Cuts text into words with the space before them, numbers, punctuation and white space."""
    # The space before a line is put there by `Codec.encode`, always, so that `decode` can take away exactly one.
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def in_characters() -> pre_tokenizers.PreTokenizer:
    """For learning merges that put characters together from their bytes, and nothing from characters.

    No byte that ends a character is the first of another in a merge, so in encoding they stay within characters, too.
    """
    each = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    return pre_tokenizers.Sequence([each, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _byte_alphabet() -> dict[str, int]:
    """The byte behind each letter of the byte-level alphabet: itself where printable, else moved beyond U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(moved)}


BYTE_OF = _byte_alphabet()
_LETTERS = {byte: letter for letter, byte in BYTE_OF.items()}
# None of these, nor of the marks, is another one in a normal form.
_EASY_LETTERS = "A-Za-zÀ-ÖØ-öø-ÿĀ-ıĴ-ľŁ-ňŊ-žЀ-ҁ"
_EASY_MARKS = "!-/:-@\\[-`{-~’‘“”„«»–—•€§°"
_EASY = re.compile(f" [{_EASY_MARKS}{_EASY_LETTERS}0-9]+")
_KIND = re.compile(f"([{_EASY_LETTERS}])|([0-9])|([{_EASY_MARKS}])")
LETTER, DIGIT, MARK = 1, 2, 3
_EASY_WORD = re.compile(f"\n|'s|'t|'re|'ve|'m|'ll|'d| ?[{_EASY_LETTERS}]+| ?[0-9]+| ?[^ \n{_EASY_LETTERS}0-9]+")
