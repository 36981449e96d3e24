"""Format of a subwords file, and its check: nothing in it may surprise the tokenizer or the model.

Format 1 has byte-level BPE in NFC or as it stands; it is written wherever it says all, so that what it holds has one
text and one SHA-256. Format 2 also has other kinds and normalisations, symbols, and tags of the source; format 3 also
placeholders. In format 4 pieces are whole characters or single bytes: what is learnt now has it, always. In 3 and 4
the patterns follow that some of the placeholders are for, if there are any.
"""

import base64
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nmt.data.letters import BYTE_OF, ByteLetters, CharacterLetters, Letters, texts_of_rules
from nmt.data.placeholders import is_name, shown
from nmt.recipe.contradictions import complaint_about_symbol
from nmt.recipe.data_options import PATTERN, complaint_about_patterns

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
# What each kind has beside its pieces.
_BESIDE: dict[str, tuple[str, ...]] = {
    "bpe": ("merges",),
    "unigram": ("scores",),
    "word": (),
    "sentencepiece": ("scores", "model", "squeeze", "charsmap"),
}


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
    tables = [{name: codec[name] for name in ("vocab", *_BESIDE[kind])} for codec in codecs]
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
    if not isinstance(kind, str) or kind not in _BESIDE:
        return f"expected the kind {', '.join(_BESIDE)}, found {kind!r}"
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
    names = ("vocab", *_BESIDE[kind])
    for codec in codecs:
        if not isinstance(codec, dict) or set(codec) != set(names):
            return f"expected {' and '.join(names)}"
        texts = [*symbols, *map(shown, placeholders)]
        letters = CharacterLetters() if has_characters(found) else ByteLetters()
        if complaint := _complaint_about_pieces(codec["vocab"], texts, longest, letters):
            return complaint
        if kind == "bpe" and (complaint := _complaint_about_merges(codec["merges"], set(codec["vocab"]))):
            return complaint
        if kind == "sentencepiece" and (complaint := _complaint_about_model(codec)):
            return complaint
        if kind == "unigram" and (complaint := _complaint_about_scores(codec["scores"], len(codec["vocab"]))):
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


def _complaint_about_merges(merges: Any, known: set[str]) -> str | None:
    if not isinstance(merges, list):
        return "vocab and merges must be lists"
    for merge in merges:
        if not isinstance(merge, list) or len(merge) != 2 or not all(isinstance(part, str) for part in merge):
            return "a merge is not a pair of pieces"
        if merge[0] not in known or merge[1] not in known or merge[0] + merge[1] not in known:
            return f"the merge of {merge[0]!r} and {merge[1]!r} is not in the vocabulary"
    return None


def _complaint_about_model(codec: dict[str, Any]) -> str | None:
    scores = codec["scores"]
    if codec["model"] not in ("bpe", "unigram") or not isinstance(codec["squeeze"], bool):
        return "the model is neither bpe nor unigram, or squeeze is neither true nor false"
    if not isinstance(scores, list) or len(scores) != len(codec["vocab"]):
        return "there is not one score for each piece"
    for piece, score in zip(codec["vocab"], scores, strict=True):
        if score is None and len(piece) > 1:
            return "a piece without a score is no byte"
        if score is not None and (type(score) is not float or not math.isfinite(score) or not _is_text(piece)):
            return "a score is no number, or that of a piece that is no text"
    try:
        texts_of_rules(base64.b64decode(codec["charsmap"], validate=True))
    except (ValueError, TypeError):
        return "the rules of normalisation are damaged"
    return None


def _is_text(letters: str) -> bool:
    try:
        bytes(BYTE_OF[letter] for letter in letters).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _complaint_about_scores(scores: Any, n_piece: int) -> str | None:
    if not isinstance(scores, list) or len(scores) != n_piece:
        return "there is not one score for each piece"
    if not all(type(score) is float and math.isfinite(score) and score <= 0 for score in scores):
        return "a score is no logarithm of a probability"
    return None
