"""Kinds of subwords: a class for each, which learns pieces, extends them, checks a file of them, and cuts words.

A new kind is a class here, a row of `KINDS`, and its name in `subwords.kind` of the recipe. What all kinds share, text
to ids and back, is in `subwords.py`; words are counted in `letters.py`. The format of the subwords file is here, too.
"""

import base64
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tokenizers import models

from nmt.data.learners import learn_scores, merges_of
from nmt.data.letters import (
    BYTE_LETTERS,
    BYTE_OF,
    ByteLetters,
    CharacterLetters,
    CutWords,
    Letters,
    alphabet_of,
    counted_characters,
    most_frequent,
    often_cut,
    texts_of_rules,
    within,
)
from nmt.data.placeholders import is_name, shown
from nmt.recipe.contradictions import complaint_about_symbol
from nmt.recipe.data_options import PATTERN, complaint_about_patterns

# A unigram vocabulary begins with so many times the pieces that are wanted, and drops the least useful ones.
_SEED_PIECES = 4
_NEVER = "<0xFF>"
_FIRST_ALIAS = 0x10000  # code points beyond the surrogates, one for each old piece


class Pieces(NamedTuple):
    """The pieces of a vocabulary in the order of their ids, in letters; merges for BPE, scores for unigram."""

    vocab: list[str]
    merges: Sequence[tuple[str, str]] = ()
    scores: Sequence[float] = ()
    cut: CutWords | None = None


class Kind:
    """A kind of subwords, which may be nothing but the pieces of a file.

    stored: its name in a subwords file. beside: entries of the file beside the pieces. noun: plural of a piece.
    """

    stored: str
    beside: tuple[str, ...] = ()
    noun = "subwords"

    def complaint(self, table: Mapping[str, Any]) -> str | None:
        """Complaint about the entries of a file beside the pieces, which were checked."""

    def model(self, vocab: Sequence[str], merges: Sequence[tuple[str, str]], scores: Sequence[float]) -> models.Model:
        """Return the model that cuts words; a character without a piece becomes the pieces of its bytes."""
        return models.BPE({piece: i for i, piece in enumerate(vocab)}, list(merges), byte_fallback=True)


class LearntKind(Kind, ABC):
    """A kind whose pieces are learnt from words."""

    @abstractmethod
    def learn(self, words: Counter[str], n_piece: int, longest: int) -> Pieces:
        """Learn n_piece pieces, or fewer where the text has no more, none of over `longest` bytes."""

    @abstractmethod
    def extend(self, old: Pieces, letters: Letters, words: Counter[str], n_new: int, longest: int) -> Pieces:
        """Add n_new pieces, or fewer where the text has no more. words: in letters."""


class Bpe(LearntKind):
    """Pieces put together by merges."""

    stored, beside = "bpe", ("merges",)

    def learn(self, words: Counter[str], n_piece: int, longest: int) -> Pieces:
        """Learn merges and the pieces that they make."""
        characters = counted_characters(words)
        letters = CharacterLetters(alphabet_of(characters, (n_piece - len(BYTE_LETTERS)) // 2, coverage=1.0)).n_byte
        words = within(words, letters)
        # In place of a piece for each byte.
        saved = {one: (n - 1) * characters[one] for one, n in letters.items() if one not in BYTE_LETTERS}
        vocab, merges, values, lengths = merges_of(words, letters, n_piece, longest, saved)
        if values is None or lengths is None:
            return Pieces(vocab, merges)
        return Pieces(vocab, merges, cut=often_cut(words, values, lengths))

    def extend(self, old: Pieces, letters: Letters, words: Counter[str], n_new: int, longest: int) -> Pieces:
        """Go on from the old pieces, which are letters to the learner of new merges."""
        more = alphabet_of(counted_characters(words), n_new // 2, letters.n_byte)
        vocab, n_new = [*old.vocab, *more], n_new - len(more)
        letters = CharacterLetters(vocab) if isinstance(letters, CharacterLetters) else letters
        has_bytes = isinstance(letters, CharacterLetters)
        model = self.model(list(map(letters.name, vocab)), old.merges, ())
        aliases = [chr(_FIRST_ALIAS + n) for n in range(len(vocab))]
        # No merge has a byte of a character that is no piece: such bytes end words.
        ends = {n for n, piece in enumerate(vocab) if has_bytes and not piece.isascii() and piece in BYTE_LETTERS}
        written = [" " if n in ends else alias for n, alias in enumerate(aliases)]
        spelled = Counter[str]()
        for word, n in words.items():
            for part in "".join(written[token.id] for token in model.tokenize(word)).split():
                spelled[part] += n
        n_byte = {alias: len(letters.raw(piece)) for alias, piece in zip(aliases, vocab, strict=True)}
        # Some more than wanted: a merge may make a piece that is there already.
        n_piece = len(vocab) + n_new + n_new // 4 + 100
        there, merges = set(vocab), list(old.merges)
        for pair in merges_of(spelled, n_byte, n_piece, longest + 1).merges if spelled else ():
            if n_new == 0:
                break
            a, b = ("".join(vocab[ord(alias) - _FIRST_ALIAS] for alias in part) for part in pair)
            if a in there and b in there:
                merges.append((a, b))
                if a + b not in there:
                    there.add(a + b)
                    vocab.append(a + b)
                    n_new -= 1
        return Pieces(vocab, merges)

    def complaint(self, table: Mapping[str, Any]) -> str | None:
        """Each merge puts two pieces together to one."""
        known = set(table["vocab"])
        if not isinstance(table["merges"], list):
            return "vocab and merges must be lists"
        for merge in table["merges"]:
            if not isinstance(merge, list) or len(merge) != 2 or not all(isinstance(part, str) for part in merge):
                return "a merge is not a pair of pieces"
            if not known.issuperset((*merge, "".join(merge))):
                return f"the merge of {merge[0]!r} and {merge[1]!r} is not in the vocabulary"
        return None


class Char(Bpe):
    """Single characters; stored as BPE without merges."""

    noun = "characters"

    def learn(self, words: Counter[str], n_piece: int, longest: int) -> Pieces:
        """The most frequent characters."""
        alphabet = alphabet_of(counted_characters(words), n_piece - len(BYTE_LETTERS), coverage=1.0)
        return Pieces([*CharacterLetters(alphabet).n_byte])

    def extend(self, old: Pieces, letters: Letters, words: Counter[str], n_new: int, longest: int) -> Pieces:
        """Add the most frequent of the other characters."""
        more = alphabet_of(counted_characters(words), n_new, letters.n_byte)
        return old._replace(vocab=[*old.vocab, *more])


class Word(LearntKind):
    """Whole words; all others are spelled with the letters."""

    stored, noun = "word", "words"

    def learn(self, words: Counter[str], n_piece: int, longest: int) -> Pieces:
        """The most frequent words."""
        letters = _frequent_letters(words, n_piece)
        return Pieces([*letters, *most_frequent(words, n_piece - len(letters), longest)])

    def extend(self, old: Pieces, letters: Letters, words: Counter[str], n_new: int, longest: int) -> Pieces:
        """Add the most frequent of the other words."""
        more = alphabet_of(counted_characters(words), n_new // 2, letters.n_byte)
        vocab = [*old.vocab, *more]
        return Pieces([*vocab, *most_frequent(words, n_new - len(more), longest, set(vocab))])

    def model(self, vocab: Sequence[str], merges: Sequence[tuple[str, str]], scores: Sequence[float]) -> models.Model:
        """A word that is a piece is not cut."""
        return models.BPE({piece: i for i, piece in enumerate(vocab)}, [], byte_fallback=True, ignore_merges=True)


class Unigram(LearntKind):
    """Pieces with log-probabilities; a word is cut into what is likeliest."""

    stored, beside = "unigram", ("scores",)

    def learn(self, words: Counter[str], n_piece: int, longest: int) -> Pieces:
        """Begin with the pieces of BPE, and drop the least useful ones."""
        letters = _frequent_letters(words, n_piece)
        words = within(words, letters)
        pieces = merges_of(words, letters, n_piece * _SEED_PIECES, longest).vocab
        vocab, scores = learn_scores(words, pieces, [*letters], n_piece)
        return Pieces(vocab, [], scores)

    def extend(self, old: Pieces, letters: Letters, words: Counter[str], n_new: int, longest: int) -> Pieces:
        """Add pieces after the old ones, whose scores stay: what was likeliest for a word stays so among those."""
        more = alphabet_of(counted_characters(words), n_new // 2, letters.n_byte)
        n_byte = {**letters.n_byte, **CharacterLetters(more).n_byte} if more else letters.n_byte
        words = within(words, n_byte)
        candidates = merges_of(words, n_byte, len(n_byte) + _SEED_PIECES * n_new, longest).vocab
        found, scores = learn_scores(words, candidates, [*old.vocab, *more], len(old.vocab) + n_new)
        score_of = dict(zip(found, scores, strict=True))
        new = [piece for piece in found if piece not in set(old.vocab)]
        return Pieces([*old.vocab, *new], [], [*old.scores, *(score_of[piece] for piece in new)])

    def complaint(self, table: Mapping[str, Any]) -> str | None:
        """Each piece has a logarithm of a probability."""
        scores = table["scores"]
        if not isinstance(scores, list) or len(scores) != len(table["vocab"]):
            return "there is not one score for each piece"
        if not all(type(score) is float and math.isfinite(score) and score <= 0 for score in scores):
            return "a score is no logarithm of a probability"
        return None

    def model(self, vocab: Sequence[str], merges: Sequence[tuple[str, str]], scores: Sequence[float]) -> models.Model:
        """Unigram of the tokenizers library."""
        # The library takes several unknown pieces in a row for one: the byte FF, which no text has, stands for them.
        unknown = vocab.index(_NEVER) if _NEVER in vocab else None
        return models.Unigram(list(zip(vocab, scores, strict=True)), unk_id=unknown, byte_fallback=True)


class OfSentencePiece(Kind):
    """The pieces of a model file of SentencePiece; lines are cut by that package, and nothing is learnt."""

    stored, beside = "sentencepiece", ("scores", "model", "squeeze", "charsmap")

    def complaint(self, table: Mapping[str, Any]) -> str | None:
        """Scores, rules of normalisation, and the kind of the model."""
        scores = table["scores"]
        if table["model"] not in ("bpe", "unigram") or not isinstance(table["squeeze"], bool):
            return "the model is neither bpe nor unigram, or squeeze is neither true nor false"
        if not isinstance(scores, list) or len(scores) != len(table["vocab"]):
            return "there is not one score for each piece"
        for piece, score in zip(table["vocab"], scores, strict=True):
            if score is None and len(piece) > 1:
                return "a piece without a score is no byte"
            if score is not None and (type(score) is not float or not math.isfinite(score) or not _is_text(piece)):
                return "a score is no number, or that of a piece that is no text"
        try:
            texts_of_rules(base64.b64decode(table["charsmap"], validate=True))
        except (ValueError, TypeError):
            return "the rules of normalisation are damaged"
        return None


KINDS: dict[str, Kind] = {
    "bpe": Bpe(),
    "unigram": Unigram(),
    "word": Word(),
    "char": Char(),
    "sentencepiece": OfSentencePiece(),
}


def learnt_kind(name: str) -> LearntKind:
    """Return a kind that the recipe may have learnt."""
    kind = KINDS[name]
    assert isinstance(kind, LearntKind), "the recipe is checked"
    return kind


def stored_kinds() -> dict[str, Kind]:
    """Kinds by the names that a subwords file has."""
    return {name: kind for name, kind in KINDS.items() if kind.stored == name}


def _frequent_letters(words: Counter[str], n_piece: int) -> dict[str, int]:
    """Letters of the most frequent characters, and how many bytes each is."""
    return CharacterLetters(alphabet_of(counted_characters(words), (n_piece - len(BYTE_LETTERS)) // 2)).n_byte


def _is_text(letters: str) -> bool:
    try:
        bytes(BYTE_OF[letter] for letter in letters).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


# The subwords file. Format 1 has byte-level BPE in NFC or as it stands; it is written wherever it says all, so that
# what it holds has one text and one SHA-256. Format 2 also has other kinds and normalisations, symbols, and tags of the
# source; format 3 also placeholders. In format 4 pieces are whole characters or single bytes: what is learnt now has
# it. In 3 and 4 the patterns follow that some of the placeholders are for, if there are any.

_FORMAT, _FORMAT_OF_KINDS, _FORMAT_OF_PLACEHOLDERS, _FORMAT_OF_CHARACTERS = 1, 2, 3, 4
_ALL_KEYS = ("format", "kind", "normalize", "symbols", "placeholders", "tags", "joint", "codecs")
_KEYS = {
    _FORMAT: ("format", "normalize", "joint", "codecs"),
    _FORMAT_OF_KINDS: ("format", "kind", "normalize", "symbols", "tags", "joint", "codecs"),
    _FORMAT_OF_PLACEHOLDERS: _ALL_KEYS,
    _FORMAT_OF_CHARACTERS: (*_ALL_KEYS[:3], "whitespace", *_ALL_KEYS[3:]),
}
_NORMALIZE = {_FORMAT: ("nfc", "none")}
_ANY_NORMALIZE = ("nfc", "nfkc", "none")
_WHITESPACE = ("unified", "kept")
_TAG = re.compile(r"<[A-Za-z0-9_-]{1,60}>")


def content_of(
    kind: str,
    normalize: str,
    symbols: Sequence[str],
    tags: Sequence[str],
    *,
    placeholders: Sequence[str] = (),
    patterns: Sequence[str] = (),
    joint: bool,
    codecs: Sequence[Mapping[str, Any]],
    characters: bool = False,
    whitespace: str = "kept",
) -> dict[str, Any]:
    """The file for vocabularies of one kind. codecs: the pieces of each, `vocab`, and what the kind has beside.

    characters: whether pieces are whole characters or single bytes.
    """
    tables = [{name: codec[name] for name in ("vocab", *KINDS[kind].beside)} for codec in codecs]
    more = {"patterns": list(patterns)} if patterns else {}
    if characters:
        values = (_FORMAT_OF_CHARACTERS, kind, normalize, whitespace, symbols, placeholders, tags, joint, tables)
        return dict(zip(_KEYS[_FORMAT_OF_CHARACTERS], values, strict=True)) | more
    plain = not symbols and not placeholders and not tags
    if kind == "bpe" and plain and normalize in _NORMALIZE[_FORMAT]:
        return {"format": _FORMAT, "normalize": normalize, "joint": joint, "codecs": tables}
    return {
        "format": _FORMAT_OF_PLACEHOLDERS if placeholders else _FORMAT_OF_KINDS,
        "kind": kind,
        "normalize": normalize,
        "symbols": list(symbols),
        **({"placeholders": list(placeholders)} if placeholders else {}),
        "tags": list(tags),
        "joint": joint,
        "codecs": tables,
        **more,
    }


def has_characters(content: Mapping[str, Any]) -> bool:
    """Return whether the pieces of a file are whole characters or single bytes."""
    return bool(content["format"] == _FORMAT_OF_CHARACTERS)


def complaint_about(found: Any, longest: int) -> str | None:
    """Complaint about the content of a subwords file. longest: bytes of a piece."""
    number = found.get("format") if isinstance(found, dict) else "no mapping"
    if type(number) is not int or number not in _KEYS:
        *first, last = _KEYS
        return f"expected format {', '.join(map(str, first))} or {last}, found {number!r}"
    if tuple(found) != _KEYS[number] + ("patterns",) * ("patterns" in found and number >= _FORMAT_OF_PLACEHOLDERS):
        return f"expected the keys {', '.join(_KEYS[number])}, found {', '.join(map(repr, found))}"
    if found["normalize"] not in _NORMALIZE.get(number, _ANY_NORMALIZE) or not isinstance(found["joint"], bool):
        return "unknown normalisation, or joint is neither true nor false"
    kind, symbols = found.get("kind", "bpe"), found.get("symbols", [])
    if not isinstance(kind, str) or kind not in stored_kinds():
        return f"expected the kind {', '.join(stored_kinds())}, found {kind!r}"
    if found.get("whitespace", "kept") not in _WHITESPACE or (has_characters(found) and kind == "sentencepiece"):
        return "unknown treatment of white space, or a model of SentencePiece in format 4"
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        return "symbols are no list of texts"
    for symbol in symbols:
        if complaint := complaint_about_symbol(symbol, found["normalize"]):
            return f"symbol {symbol!r} {complaint}"
    placeholders = found.get("placeholders", [])
    if not isinstance(placeholders, list) or not all(isinstance(name, str) and is_name(name) for name in placeholders):
        return "placeholders are no list of their names"
    if len(set(placeholders)) != len(placeholders):
        return "a placeholder occurs twice"
    patterns = found.get("patterns", [])
    if not isinstance(patterns, list) or bool(patterns) != (f"{PATTERN}1" in placeholders):
        return "patterns are no list, or without placeholders, or placeholders without them"
    if complaint := complaint_about_patterns(patterns):
        return complaint
    tags = found.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) and _TAG.fullmatch(tag) for tag in tags):
        return "tags are no list of names between < and >"
    if len(set(tags)) != len(tags):
        return "a tag occurs twice"
    codecs = found["codecs"]
    if not isinstance(codecs, list) or len(codecs) != (1 if found["joint"] else 2):
        return "wrong number of vocabularies"
    names = ("vocab", *KINDS[kind].beside)
    for codec in codecs:
        if not isinstance(codec, dict) or set(codec) != set(names):
            return f"expected {' and '.join(names)}"
        texts = [*symbols, *map(shown, placeholders)]
        letters = CharacterLetters() if has_characters(found) else ByteLetters()
        if complaint := _complaint_about_pieces(codec["vocab"], texts, longest, letters):
            return complaint
        if complaint := KINDS[kind].complaint(codec):
            return complaint
    return None


def _complaint_about_pieces(vocab: Any, symbols: list[str], longest: int, letters: Letters) -> str | None:
    if not isinstance(vocab, list):
        return "vocab and merges must be lists"
    if not all(isinstance(piece, str) and letters.is_piece(piece) for piece in vocab):
        return "a piece is not written in the letters of its format"
    known = {*vocab, *map(letters.piece, symbols)}
    if len(known) != len(vocab) + len(symbols):
        return "a piece occurs twice"
    if not known.issuperset(letters.of_bytes):
        return "a byte is missing from the vocabulary"
    if max(len(letters.raw(piece)) for piece in vocab) > longest:
        return f"a piece is longer than {longest} bytes"
    return None
