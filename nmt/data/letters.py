"""Letters that pieces are written in, words that no piece goes over, and counts of words to learn from.

In `CharacterLetters` a character of the vocabulary's alphabet is a letter, and so is each byte of any other character:
pieces are whole characters or single bytes. Vocabularies of earlier versions have the `ByteLetters` of GPT-2 instead, a
letter for each byte: one that prints is itself, the others are moved beyond U+0100.
"""

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, pre_tokenizers

from nmt.data.placeholders import PLACEHOLDER
from nmt.data.text import unified
from nmt.errors import DataError
from nmt.extras import missing
from nmt.recipe.data_options import SubwordsConfig


def normalised(text: str, normalize: str, whitespace: str = "kept") -> str:
    """The text as the model knows it."""
    if whitespace == "unified":
        text = unified(text)
    if normalize == "none" or text.isascii():
        return text
    if normalize == "nfc":
        return unicodedata.normalize("NFC", text)
    text = unicodedata.normalize("NFKC", text)
    return " ".join(text.split()) if whitespace == "unified" else text  # some characters become a space and others


def units_of(text: str) -> list[str]:
    """A text, with the space before it, cut into parts that can be encoded one by one.

    At its spaces, if white space in it is nothing but single spaces between words; no piece reaches over a single
    space, which always begins one. Else not at all.
    """
    words = text[1:].split() if text[:1] == " " else []
    return [" " + word for word in words] if words and " ".join(words) == text[1:] else [text]


def easy_words(text: str) -> list[str]:
    """The words of a text, as `in_words` cuts it, in a tenth of the time; none where not all of it is easy."""
    return _EASY_WORD.findall(text) if _EASY.fullmatch(text) else []


def kind_of(character: str) -> int:
    """Number of the kind of an easy character, 0 of any other: `in_words` cuts between two kinds, apostrophes apart."""
    found = _KIND.fullmatch(character)
    return (found.lastindex or 0) if found else 0


def in_words() -> pre_tokenizers.PreTokenizer:
    """Cut text into words with the space before them, numbers, punctuation and white space; no grapheme cluster is cut.

    A mark, joiner or virama belongs to the character before it.
    """
    # The space before a line is put there by `Codec.encode`, always, so that `decode` can take away exactly one.
    return pre_tokenizers.Split(Regex(_WORD), behavior="isolated")


# Bytes of characters without a letter are private characters at the end of Unicode, which so have no letter themselves.
_FIRST_BYTE_LETTER = 0x10FF00
_BYTE_LETTERS = [chr(byte if byte < 0x80 else _FIRST_BYTE_LETTER + byte) for byte in range(256)]
BYTE_LETTERS = {letter: byte for byte, letter in enumerate(_BYTE_LETTERS)}
# The byte behind each letter of the byte-level alphabet: itself where printable, else moved beyond U+0100.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_MOVED = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(_MOVED)}
# Private characters that are the letters of bytes have no letter where they stand in a text.
BYTE_IN_TEXT = re.compile(f"[{chr(_FIRST_BYTE_LETTER + 0x80)}-{chr(0x10FFFF)}]")
_NO_PIECE = re.compile(f"[\ud800-\udfff{chr(_FIRST_BYTE_LETTER + 0x80)}-{chr(0x10FFFF)}]|^<0x[0-9A-F]{{2}}>$")


class ByteLetters:
    """A letter for each byte, of vocabularies of earlier versions; a word ends at every combining mark."""

    of_bytes = BYTE_OF
    n_byte = dict.fromkeys(BYTE_OF, 1)
    pre_tokenizer: pre_tokenizers.PreTokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)

    def is_piece(self, piece: str) -> bool:
        """Return whether it can be one."""
        return bool(piece) and all(letter in BYTE_OF for letter in piece)

    def piece(self, text: str) -> str:
        """A text as a piece."""
        return self.word(text.encode("utf-8"))

    def raw(self, letters: str) -> bytes:
        """The bytes behind a piece, or a word that the tokenizers library has cut."""
        return bytes(BYTE_OF[letter] for letter in letters)

    def word(self, raw: bytes) -> str:
        """Bytes as a word for the tokenizers library."""
        return raw.decode("latin-1").translate(_LETTERS)

    def words(self, text: str) -> list[str]:
        """The words of a text, in letters."""
        return [word for word, _ in self.pre_tokenizer.pre_tokenize_str(text)]

    def name(self, piece: str) -> str:
        """The name of a piece for the tokenizers library."""
        return piece


class CharacterLetters:
    """A letter for each character of an alphabet, and one for each byte of all other characters.

    A piece of several letters is text, so of whole characters. Bytes of other characters are pieces by themselves.
    """

    of_bytes = BYTE_LETTERS

    def __init__(self, alphabet: Iterable[str] = ()) -> None:
        """alphabet: characters besides those of ASCII; what else is in it does not count, as longer pieces."""
        characters = (one for one in alphabet if len(one) == 1 and one not in BYTE_LETTERS)
        self.n_byte = {**dict.fromkeys(BYTE_LETTERS, 1), **{one: len(one.encode("utf-8")) for one in characters}}
        self.pre_tokenizer = in_words()
        plain = (letter for letter in self.n_byte if letter.isascii() or letter not in BYTE_LETTERS)
        self._table = _Spelled((ord(letter), letter) for letter in plain)

    def is_piece(self, piece: str) -> bool:
        """Return whether it can be one: nothing in it is part of a character, or looks like a byte by its name."""
        return piece in BYTE_LETTERS or bool(piece and not _NO_PIECE.search(piece))

    def piece(self, text: str) -> str:
        """A text as a piece."""
        return text

    def raw(self, letters: str) -> bytes:
        """The bytes behind a piece or a word that the tokenizers library has cut."""
        return bytes([BYTE_LETTERS[letters]]) if letters in BYTE_LETTERS else letters.encode("utf-8")

    def word(self, raw: bytes) -> str:
        """Bytes as a word for the tokenizers library. Raises UnicodeDecodeError for parts of characters."""
        return raw.decode("utf-8")

    def words(self, text: str) -> list[str]:
        """The words of a text, in letters."""
        words = easy_words(text) or [word for word, _ in self.pre_tokenizer.pre_tokenize_str(text)]
        return [word.translate(self._table) for word in words]

    def name(self, piece: str) -> str:
        """The name of a piece for the tokenizers library, which writes a byte of a character without a piece <0xE3>."""
        return f"<0x{BYTE_LETTERS[piece]:02X}>" if piece in BYTE_LETTERS and not piece.isascii() else piece


class _Spelled(dict[int, str]):
    """For str.translate: a character without a letter becomes those of its bytes."""

    def __missing__(self, code: int) -> str:
        self[code] = "".join(_BYTE_LETTERS[byte] for byte in chr(code).encode("utf-8"))
        return self[code]


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
_LETTERS = {byte: letter for letter, byte in BYTE_OF.items()}
# Words of these with a space before each, as most text is: nothing in it is another character in a normal form, and an
# expression of Python cuts it as `in_words` does.
_EASY_LETTERS = "A-Za-zÀ-ÖØ-öø-ÿĀ-ıĴ-ľŁ-ňŊ-žЀ-ҁ"
_EASY_MARKS = "!-/:-@\\[-`{-~’‘“”„«»–—•€§°"
_EASY = re.compile(f"(?: [{_EASY_MARKS}{_EASY_LETTERS}0-9]+)+")
_KIND = re.compile(f"([{_EASY_LETTERS}])|([0-9])|([{_EASY_MARKS}])")
_EASY_WORD = re.compile(f"'s|'t|'re|'ve|'m|'ll|'d| ?[{_EASY_LETTERS}]+| ?[0-9]+| ?[^ {_EASY_LETTERS}0-9]+")


# Text to pieces by the package sentencepiece, with the pieces and rules that a vocabulary of ours has stored.
SPACE = "▁"  # U+2581, which they write for a space; in a text it is one
UNIGRAM, BPE = 1, 2  # model types
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of pieces
_HALF = re.compile("([\ud800-\udfff]+)")  # placeholders, which are not theirs


def texts_of_rules(charsmap: bytes) -> bytes:
    """Return the texts that rules of normalisation write, each with a zero byte at its end. Raises ValueError.

    A double-array trie of keys comes first, in units of four bytes; four bytes before tell how long it is.
    """
    n_trie = int.from_bytes(charsmap[:4], "little")
    if charsmap and (not n_trie or n_trie % 4 or len(charsmap) <= 4 + n_trie or charsmap[-1]):
        raise ValueError("the rules of normalisation are damaged")
    return charsmap[4 + n_trie :]


class Speller:
    """Encodes with the pieces of a model. Raises MachineError where their package is missing."""

    def __init__(
        self, vocab: Sequence[str], scores: Sequence[float | None], kind: str, charsmap: bytes, *, squeeze: bool
    ) -> None:
        """vocab: pieces in the order of their numbers, from 0, in byte letters. The rest as in `PieceTable`."""
        try:
            from sentencepiece import SentencePieceNormalizer, SentencePieceProcessor, sentencepiece_model_pb2
        except ImportError:
            raise missing("sentencepiece", "a vocabulary of subwords.kind: sentencepiece") from None
        raw = [bytes(BYTE_OF[letter] for letter in piece) for piece in vocab]
        self._byte = {its[0]: i for i, its in enumerate(raw) if len(its) == 1}
        theirs: Any = sentencepiece_model_pb2  # whose classes are made as it is imported
        model = theirs.ModelProto()
        model.pieces.add(piece="<unk>", score=0.0, type=UNKNOWN)
        self._ours = [-1]  # by their number; with a piece for each byte nothing is unknown
        has_byte = {its[0] for its, score in zip(raw, scores, strict=True) if score is None}
        for i, (its, score) in enumerate(zip(raw, scores, strict=True)):
            if score is None:
                model.pieces.add(piece=f"<0x{its[0]:02X}>", score=0.0, type=BYTE)
            else:
                model.pieces.add(piece=its.decode("utf-8").replace(" ", SPACE), score=score, type=NORMAL)
            self._ours.append(i)
        for byte in sorted(set(range(256)) - has_byte):  # which they want to be there, and never write
            model.pieces.add(piece=f"<0x{byte:02X}>", score=0.0, type=BYTE)
            self._ours.append(self._byte[byte])
        model.trainer_spec.model_type = BPE if kind == "bpe" else UNIGRAM
        model.trainer_spec.byte_fallback = True
        rules = model.normalizer_spec  # none: what is encoded has been normalised
        rules.name, rules.add_dummy_prefix, rules.remove_extra_whitespaces = "identity", False, False
        try:
            self._theirs: Any = SentencePieceProcessor(model_proto=model.SerializeToString())
            rules.precompiled_charsmap, rules.escape_whitespaces = charsmap, False
            self._rules: Any = SentencePieceNormalizer(model_proto=model.SerializeToString())
        except RuntimeError as error:
            raise DataError(f"these pieces are no model of SentencePiece: {error}") from None
        self._squeeze = squeeze

    def normalised(self, text: str) -> str:
        """The text after the rules, which leave spaces as they are."""
        return "".join(self._rules.normalize(part) if n % 2 == 0 else part for n, part in enumerate(_HALF.split(text)))

    def line(self, text: str) -> str:
        """Text of a line that becomes pieces: normalised and with a space before it; "" if nothing is left."""
        found = self.normalised(text)
        if not self._squeeze:
            return f" {found}".replace(SPACE, " ") if text else ""
        found = re.sub(" {2,}", " ", found).lstrip(" ")
        return f" {found}".replace(SPACE, " ").rstrip(" ")

    def encode(self, text: str) -> list[int]:
        """The numbers of the pieces of a text, in which a space stands before each word."""
        return [self._ours[i] for i in self._theirs.encode(text)]

    def cut(self, raw: bytes) -> list[int]:
        """The numbers of the pieces of some bytes, which may be no whole text."""
        try:
            return self.encode(raw.decode("utf-8"))
        except UnicodeDecodeError:
            return [self._byte[byte] for byte in raw]


# Words that pieces are learnt from. Text is never held: what grows with it is the number of different words.
# BPE looks at every symbol of a word for every merge in it: one endless word would take minutes. What is cut off
# here is only not learned from; encoding sees whole lines.
LINE_CAP = 10_000
WORD_CAP = 100
_ENDLESS = re.compile(rf"\S{{{WORD_CAP + 1},}}|\s{{{WORD_CAP + 1},}}")
_PART = re.compile(rf"\s{{0,{WORD_CAP}}}\S{{1,{WORD_CAP}}}|\s{{1,{WORD_CAP}}}")
# Different words that are counted, some 100 bytes each; with more, those that occurred once are forgotten.
MOST_COUNTED = 2_000_000
# Share of the characters of a text that the alphabet covers at least, if it has room.
COVERAGE = 0.9995


def counted_characters(words: Mapping[str, int]) -> dict[str, int]:
    """Return how often each character occurs in words, by its code point."""
    joined = np.frombuffer("".join(words).encode("utf-32-le"), np.uint32)
    n_letter = np.fromiter(map(len, words), np.int64, len(words))
    times = np.repeat(np.fromiter(words.values(), np.int64, len(words)), n_letter)
    codes, which = np.unique(joined, return_inverse=True)
    counts = np.bincount(which, times, len(codes)).astype(np.int64)
    return dict(zip(map(chr, codes.tolist()), counts.tolist(), strict=True))


def alphabet_of(
    characters: Mapping[str, int], most: int, known: Container[str] = BYTE_LETTERS, coverage: float = COVERAGE
) -> list[str]:
    """The characters that become letters besides the known ones: the most frequent, up to a share of the text.

    characters: how often each occurs. most: characters.
    """
    left = sum(characters.values()) * (1 - coverage)
    others = {one: n for one, n in characters.items() if one not in known}
    found = sorted(others, key=lambda one: (-others[one], one))
    while found and others[found[-1]] <= left:  # these fit into what is left out
        left -= others[found.pop()]
    return found[:most]


def within(words: Counter[str], letters: Iterable[str]) -> Counter[str]:
    """Words without the characters that are no letters: the parts before and after them."""
    other = re.compile(f"[^{re.escape(''.join(letters))}]+")
    found = Counter[str]()
    for word, n in words.items():
        for part in (word,) if word.isascii() else filter(None, other.split(word)):
            found[part] += n
    return found


class WordsOf:
    """Cuts units into the words that are learnt from."""

    def __init__(self, config: SubwordsConfig) -> None:
        self._config = config
        self._cut = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated") if config.kind == "char" else in_words()
        # Symbols and placeholders are not learnt from.
        self._symbol = re.compile("|".join([*map(re.escape, config.symbols), PLACEHOLDER]))
        self._is_plain = config.kind != "char" and not config.symbols

    def __call__(self, unit: str, notes: Counter[str]) -> list[str]:
        """The words of any unit. notes: counts what was too long for learning."""
        if self._is_plain and len(unit) <= WORD_CAP and (words := easy_words(unit)):
            return words
        text = " " + normalised(unit[1:], self._config.normalize, self._config.whitespace)
        texts = [part for one in self._symbol.split(text) for part in parts(one, notes)]
        return [word for one in texts for word, _ in self._cut.pre_tokenize_str(one)]


def add_counts(counts: Counter[str], words: Sequence[str], times: NDArray[np.int64]) -> None:
    """Add to counts how often words of a block occur. Of too many words, those that occurred once are forgotten."""
    for word, n in zip(words, times.tolist(), strict=True):
        counts[word] += n
    if len(counts) > MOST_COUNTED:
        often = {word: n for word, n in counts.items() if n > 1}
        counts.clear()
        counts.update(often)


def drawn(left: int, most: int, seed: int) -> Iterator[bool]:
    """Yield for each of `left` lines if it is in a sample of `most` of them, each as likely as any other."""
    wanted, draw = min(most, left), random.Random(seed)
    while left:
        chosen = wanted >= left or draw.random() * left < wanted
        wanted -= chosen
        left -= 1
        yield chosen


def parts(text: str, notes: Counter[str]) -> Iterable[str]:
    """Parts of a text to learn from: all of it, but no end of a very long one and no endless word."""
    if len(text) > LINE_CAP:
        notes["line_cap"] += 1
    text = text[:LINE_CAP]
    if len(text) <= WORD_CAP or not (endless := _ENDLESS.findall(text)):
        return (text,)
    notes["word_cap"] += len(endless)
    return _PART.findall(text)


def most_frequent(words: Counter[str], n: int, longest: int, but: Container[str] = ()) -> list[str]:
    """The n words that occur most often, of two letters or more and of up to `longest` bytes, without some."""
    found = (word for word in words if len(word) > 1 and len(word.encode()) <= longest and word not in but)
    return sorted(found, key=lambda word: (-words[word], word))[:n]
