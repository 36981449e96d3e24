"""Text to pieces by the package sentencepiece, with the pieces and rules that a vocabulary of ours has stored.

A file of theirs becomes pieces of ours in `sentencepiece_file.py`. A character without a piece becomes its bytes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nmt.data.vocabulary.letters import BYTE_OF
from nmt.errors import DataError
from nmt.extras import missing

SPACE = "▁"  # U+2581, which they write for a space; in a text it is one
UNIGRAM, BPE = 1, 2  # model types
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of pieces
_HALF = re.compile("([\ud800-\udfff]+)")  # placeholders, which are not theirs


@dataclass(frozen=True, slots=True)
class SentencePiece:
    """What a model of theirs is beside its pieces.

    model: bpe or unigram. scores: of each piece, None for one that only stands for a byte. charsmap: the rules of
    normalisation as they store them. squeeze: whether spaces at the ends go, and several become one.
    """

    model: str
    scores: Sequence[float | None]
    charsmap: bytes
    squeeze: bool


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

    def __init__(self, vocab: Sequence[str], config: SentencePiece) -> None:
        """vocab: pieces in the order of their numbers, from 0, in the letters of the byte-level alphabet."""
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
        has_byte = {its[0] for its, score in zip(raw, config.scores, strict=True) if score is None}
        for i, (its, score) in enumerate(zip(raw, config.scores, strict=True)):
            if score is None:
                model.pieces.add(piece=f"<0x{its[0]:02X}>", score=0.0, type=BYTE)
            else:
                model.pieces.add(piece=its.decode("utf-8").replace(" ", SPACE), score=score, type=NORMAL)
            self._ours.append(i)
        for byte in sorted(set(range(256)) - has_byte):  # which they want to be there, and never write
            model.pieces.add(piece=f"<0x{byte:02X}>", score=0.0, type=BYTE)
            self._ours.append(self._byte[byte])
        model.trainer_spec.model_type = BPE if config.model == "bpe" else UNIGRAM
        model.trainer_spec.byte_fallback = True
        rules = model.normalizer_spec  # none: what is encoded has been normalised
        rules.name, rules.add_dummy_prefix, rules.remove_extra_whitespaces = "identity", False, False
        try:
            self._theirs: Any = SentencePieceProcessor(model_proto=model.SerializeToString())
            rules.precompiled_charsmap, rules.escape_whitespaces = config.charsmap, False
            self._rules: Any = SentencePieceNormalizer(model_proto=model.SerializeToString())
        except RuntimeError as error:
            raise DataError(f"these pieces are no model of SentencePiece: {error}") from None
        self._squeeze = config.squeeze

    def normalised(self, text: str) -> str:
        """The text after the rules, which leave spaces as they are."""
        return "".join(self._rules.normalize(part) if n % 2 == 0 else part for n, part in enumerate(_HALF.split(text)))

    def line(self, text: str) -> str:
        """What of a line becomes pieces: normalised and with a space before it; "" if nothing is left."""
        found = self.normalised(text)
        if self._squeeze:
            found = re.sub(" {2,}", " ", found).lstrip(" ")
        found = f" {found}".replace(SPACE, " ") if found or (text and not self._squeeze) else ""
        return found.rstrip(" ") if self._squeeze else found

    def encode(self, text: str) -> list[int]:
        """The numbers of the pieces of a text, in which a space stands before each word."""
        return [self._ours[i] for i in self._theirs.encode(text)]

    def cut(self, raw: bytes) -> list[int]:
        """The numbers of the pieces of some bytes, which may be no whole text."""
        try:
            return self.encode(raw.decode("utf-8"))
        except UnicodeDecodeError:
            return [self._byte[byte] for byte in raw]
