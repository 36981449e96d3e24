"""A model file of SentencePiece as subwords of ours, if they can be exactly that; what cannot be is named.

What encodes with it is `sentencepiece_text.py`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nmt.data.vocabulary.letters import BYTE_OF, in_letters
from nmt.data.vocabulary.sentencepiece_text import (
    BYTE,
    NORMAL,
    SPACE,
    UNUSED,
    USER_DEFINED,
    SentencePiece,
    texts_of_rules,
)
from nmt.data.vocabulary.subwords import LONGEST_PIECE, Codec
from nmt.errors import DataError
from nmt.extras import missing
from nmt.recipe.subword_options import SENTENCEPIECE_ENDINGS

_LETTER_OF = {byte: letter for letter, byte in BYTE_OF.items()}
_MODELS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_LARGEST_FILE = 1 << 28


def is_sentencepiece(path: Path) -> bool:
    """Whether a file is said to be a model of SentencePiece by its ending."""
    return path.suffix in SENTENCEPIECE_ENDINGS


def codec_of(path: Path) -> Codec:
    """The pieces of a model file, in their order, without control symbols and those for bytes that have a piece anyway.

    Raises DataError for what is no such file or cannot be expressed, and MachineError without the package.
    """
    model = _parsed(path)
    charsmap: bytes = model.normalizer_spec.precompiled_charsmap
    try:
        written = texts_of_rules(charsmap)
    except ValueError as error:
        raise DataError(f"{path}: {error}.") from None
    if obstacles := list(_obstacles(model, written)):
        raise DataError(
            f"{path}: cannot be taken over exactly: {'; '.join(obstacles)}. Train it again with other options of "
            "SentencePiece (--byte_fallback=true), or learn subwords here."
        )
    vocab: list[str] = []
    scores: list[float | None] = []
    normal = {each.piece for each in model.pieces if each.type == NORMAL}
    for each in model.pieces:
        if each.type == NORMAL:
            vocab.append(in_letters(each.piece.replace(SPACE, " ")))
            scores.append(each.score)
        elif each.type == BYTE and not _is_there(byte := int(each.piece[3:5], 16), normal):
            vocab.append(_LETTER_OF[byte])
            scores.append(None)
    squeeze = model.normalizer_spec.remove_extra_whitespaces
    config = SentencePiece(_MODELS[model.trainer_spec.model_type], scores, charsmap, squeeze)
    return Codec(vocab, normalize="none", kind="sentencepiece", sentencepiece=config)


def _is_there(byte: int, normal: set[str]) -> bool:
    """Whether a byte is a character that has a piece, so that it never becomes the piece for the byte."""
    return byte < 0x80 and (SPACE if byte == 0x20 else chr(byte)) in normal


def _parsed(path: Path) -> Any:
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise missing("sentencepiece", f"{path}, a model of SentencePiece") from None
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise DataError(f"{path}: {path.stat().st_size:,} bytes are too many for a vocabulary.")
        theirs: Any = sentencepiece_model_pb2  # whose classes are made as it is imported
        model = theirs.ModelProto.FromString(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except DecodeError:
        raise DataError(f"{path}: not a model of SentencePiece, or damaged. Expected what spm_train writes.") from None
    if not model.pieces:
        raise DataError(f"{path}: not a model of SentencePiece: there are no pieces in it.")
    return model


def _obstacles(model: Any, written: bytes) -> Iterator[str]:
    """What a model has that we have not, as its options call it. written: what its rules of normalisation write."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    of_type: dict[int, list[str]] = {}
    for each in model.pieces:
        of_type.setdefault(each.type, []).append(each.piece)
    if trainer.model_type not in (1, 2):
        yield f"model_type {_MODELS.get(trainer.model_type, trainer.model_type)} (bpe and unigram can be)"
    if len(of_type.get(BYTE, ())) != 256:
        yield "no byte_fallback, so that some characters are unknown"
    for kind, name in ((USER_DEFINED, "user_defined_symbols"), (UNUSED, "pieces marked as unused")):
        if found := of_type.get(kind):
            yield f"{name} {_some(found)}"
    if trainer.treat_whitespace_as_suffix:
        yield "treat_whitespace_as_suffix"
    if not normalizer.add_dummy_prefix:
        yield "add_dummy_prefix=false"
    if not normalizer.escape_whitespaces:
        yield "escape_whitespaces=false"
    if model.denormalizer_spec.precompiled_charsmap:
        yield "rules of denormalisation"
    normal = of_type.get(NORMAL, [])
    if SPACE not in normal:
        yield "no piece for a space alone"
    if found := [piece for piece in normal if SPACE in piece.lstrip(SPACE)]:
        yield f"pieces that reach over a space, {_some(found)} (split_by_whitespace=false)"
    if found := [piece for piece in normal if len(piece.replace(SPACE, " ").encode("utf-8")) > LONGEST_PIECE]:
        yield f"pieces of over {LONGEST_PIECE} bytes, {_some(found)}"
    if found := [piece for piece in normal if " " in piece or not piece]:
        yield f"pieces with a plain space in them, or with nothing, {_some(found)}"
    if len(set(normal)) < len(normal):
        yield "pieces that occur twice"
    if b"  " in written:
        yield "a rule of normalisation that makes several spaces"
    if trainer.model_type == 1 and (found := [each.piece for each in model.pieces if each.score > 0]):
        yield f"scores above 0, of {_some(found)}"


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
