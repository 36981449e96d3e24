"""Pre-tokenisation: the letters that pieces consist of, the words that bound pieces, and word counts to learn from."""

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping

from tokenizers import Regex, pre_tokenizers

from nmt.data.placeholders import PLACEHOLDER
from nmt.data.text import unified
from nmt.recipe.data_options import SubwordsConfig


def normalised(text: str, normalize: str, whitespace: str = "kept") -> str:
    """Return the text in the normal form of the model."""
    if whitespace == "unified":
        text = unified(text)
    if normalize == "none" or text.isascii():
        return text
    if normalize == "nfc":
        return unicodedata.normalize("NFC", text)
    text = unicodedata.normalize("NFKC", text)
    return " ".join(text.split()) if whitespace == "unified" else text  # NFKC turns some characters into spaces


def easy_words(text: str) -> list[str]:
    """Return the words of a text as `in_words` cuts it, ten times faster; empty if the text has unusual characters."""
    return _EASY_WORD.findall(text) if _EASY.fullmatch(text) else []


def kind_of(character: str) -> int:
    """Return the kind of a usual character, 0 for any other. `in_words` cuts between kinds, except at apostrophes."""
    match = _KIND.fullmatch(character)
    return (match.lastindex or 0) if match else 0


def in_words() -> pre_tokenizers.PreTokenizer:
    """Return a splitter into words with the space before them, numbers, punctuation and white space.

    Grapheme clusters stay whole: a mark, joiner or virama belongs to the character before it.
    """
    # `Codec.encode` always adds the space before a line, so that `decode` can remove exactly one.
    return pre_tokenizers.Split(Regex(_WORD), behavior="isolated")


LONGEST_PIECE = 64  # bytes of a piece, at most
# The letters of bytes above 0x7F are private characters at the end of Unicode. These have no letter themselves.
_FIRST_BYTE_LETTER = 0x10FF00
_BYTE_LETTERS = [chr(byte if byte < 0x80 else _FIRST_BYTE_LETTER + byte) for byte in range(256)]
BYTE_LETTERS = {letter: byte for byte, letter in enumerate(_BYTE_LETTERS)}
_NO_PIECE = re.compile(f"[\ud800-\udfff{chr(_FIRST_BYTE_LETTER + 0x80)}-{chr(0x10FFFF)}]|^<0x[0-9A-F]{{2}}>$")


def letters_of(alphabet: Iterable[str]) -> dict[str, int]:
    """Return the letters of an alphabet, with their numbers of bytes: one for each byte, one for each character.

    A piece of several letters is text, so it has whole characters. Each byte of another character is its own piece.
    alphabet: characters besides those of ASCII. Longer strings, such as pieces, are ignored.
    """
    return {letter: len(raw_of(letter)) for letter in (*BYTE_LETTERS, *alphabet) if len(letter) == 1}


def spelled(word: str, letters: Container[str]) -> str:
    """Return a word in letters: a character without a letter becomes the letters of its bytes."""
    return "".join(
        c if c.isascii() or (c in letters and c not in BYTE_LETTERS) else "".join(_BYTE_LETTERS[b] for b in c.encode())
        for c in word
    )


def is_piece(piece: str) -> bool:
    """Return whether the string is a valid piece: no part of a character, and no name of a byte like <0xE3>."""
    return piece in BYTE_LETTERS or (not _NO_PIECE.search(piece) and 0 < len(piece.encode()) <= LONGEST_PIECE)


def raw_of(piece: str) -> bytes:
    """Return the bytes of a piece."""
    return bytes([BYTE_LETTERS[piece]]) if piece in BYTE_LETTERS else piece.encode("utf-8")


def name_of(piece: str) -> str:
    """Return the name of a piece for the tokenizers library. Its byte fallback writes the byte 0xE3 as <0xE3>."""
    return f"<0x{BYTE_LETTERS[piece]:02X}>" if piece in BYTE_LETTERS and not piece.isascii() else piece


# Characters that continue a grapheme cluster, and those that begin one with the character after them.
_AFTER = "\\p{M}\u0e33\u0eb3\u200c\u200d\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f"
_BEFORE = (
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e\U000110bd\U000110cd\U000111c2\U000111c3\U0001193f\U00011941"
    "\U00011a84-\U00011a89\U00011d46"
)
_EMOJI_LETTER = "\u2139"  # the only letter that may be a part of an emoji
_WORD = "|".join(
    [
        f"'(?:s|t|re|ve|m|ll|d)(?![{_AFTER}])",
        f" ?(?:[{_BEFORE}]*(?![{_BEFORE}{_EMOJI_LETTER}])\\p{{L}}[{_AFTER}]*)+",
        f" ?(?:[{_BEFORE}]*\\p{{N}}[{_AFTER}]*)+",
        f" ?(?:[{_BEFORE}]*(?:[^\\s\\p{{L}}\\p{{N}}{_BEFORE}]|{_EMOJI_LETTER})[{_AFTER}]*"
        f"|[{_BEFORE}]+(?![\\p{{L}}\\p{{N}}{_BEFORE}]))+",
        f"\\s[{_AFTER}]+",
        "\\s+(?!\\S)",
        "\\s+",
    ]
)
# Usual characters. Normalisation does not change text of these words with a space before each, and a Python expression
# cuts it as `in_words` does. Most text is like this.
_EASY_LETTERS = "A-Za-zÀ-ÖØ-öø-ÿĀ-ıĴ-ľŁ-ňŊ-žЀ-ҁ"
_EASY_MARKS = "!-/:-@\\[-`{-~’‘“”„«»–—•€§°"
_EASY = re.compile(f"(?: [{_EASY_MARKS}{_EASY_LETTERS}0-9]+)+")
_KIND = re.compile(f"([{_EASY_LETTERS}])|([0-9])|([{_EASY_MARKS}])")
_EASY_WORD = re.compile(f"'s|'t|'re|'ve|'m|'ll|'d| ?[{_EASY_LETTERS}]+| ?[0-9]+| ?[^ {_EASY_LETTERS}0-9]+")


# Words that pieces are learnt from. No text is stored; the memory grows with the number of different words.
# BPE visits every symbol of a word for every merge in it, so one endless word would take minutes. This limit applies to
# learning only; encoding uses whole words.
_WORD_CAP = 100
_PART = re.compile(rf"\s{{0,{_WORD_CAP}}}\S{{1,{_WORD_CAP}}}|\s{{1,{_WORD_CAP}}}")
COVERAGE = 0.9995  # minimum share of the characters of a text that the alphabet covers, if it has room


def alphabet_of(
    words: Mapping[str, int], most: int, known: Iterable[str] = BYTE_LETTERS, coverage: float = COVERAGE
) -> dict[str, int]:
    """Return the characters that become letters besides the known ones: the most frequent, until coverage is reached.

    Each comes with its number of occurrences. words: their counts. most: limit of the number of characters.
    """
    counts = Counter[str]()
    for word, n in words.items():
        for character in word:
            counts[character] += n
    n_uncovered = counts.total() * (1 - coverage)  # occurrences that may still be left out
    alphabet = sorted(counts.keys() - known, key=lambda character: (-counts[character], character))
    while alphabet and counts[alphabet[-1]] <= n_uncovered:
        n_uncovered -= counts[alphabet.pop()]
    return {character: counts[character] for character in alphabet[:most]}


def learnable(words: Mapping[str, int]) -> Counter[str]:
    """Return the counts of the words that can become pieces: those without private characters that mean bytes."""
    return Counter({word: n for word, n in words.items() if word.isascii() or not _NO_PIECE.search(word)})


def within(words: Counter[str], letters: Iterable[str]) -> Counter[str]:
    """Split words at the characters that are no letters, and count the parts."""
    other = re.compile(f"[^{re.escape(''.join(letters))}]+")
    counts = Counter[str]()
    for word, n in words.items():
        for part in (word,) if word.isascii() else filter(None, other.split(word)):
            counts[part] += n
    return counts


class WordsOf:
    """Splitter of units into the words to learn from."""

    def __init__(self, config: SubwordsConfig) -> None:
        self._config = config
        self._cut = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated") if config.kind == "char" else in_words()
        # Symbols and placeholders are never part of a learned piece.
        self._symbol = re.compile("|".join([*map(re.escape, config.symbols), PLACEHOLDER]))
        self._is_plain = config.kind != "char" and not config.symbols

    def __call__(self, unit: str) -> list[str]:
        """Return the words of any unit, a word of over _WORD_CAP characters in parts."""
        if self._is_plain and len(unit) <= _WORD_CAP and (words := easy_words(unit)):
            return words
        parts = list[str]()
        for text in self._symbol.split(" " + normalised(unit[1:], self._config.normalize, self._config.whitespace)):
            parts += _PART.findall(text) if len(text) > _WORD_CAP else [text]
        return [word for part in parts for word, _ in self._cut.pre_tokenize_str(part)]


def draw_sample(n_line: int, most: int, seed: int) -> Iterator[bool]:
    """Draw a uniform sample of at most `most` lines: yield True for each line in the sample, False for the others."""
    n_wanted, rng = min(most, n_line), random.Random(seed)
    for n_left in range(n_line, 0, -1):
        is_chosen = n_wanted >= n_left or rng.random() * n_left < n_wanted
        n_wanted -= is_chosen
        yield is_chosen
