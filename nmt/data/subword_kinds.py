"""Kinds of subwords: a class for each, which learns and extends pieces, validates a file of them, and segments words.

A new kind is a class here, an entry of `KINDS`, and its name in `subwords.kind` of the recipe. `subwords.py` converts
text to ids and back for all kinds; `letters.py` counts words. The format of the subwords file is defined here, too.
"""

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError
from tokenizers import models

from nmt.data.learners import learn_scores, merges_of
from nmt.data.letters import BYTE_LETTERS, LONGEST_PIECE, alphabet_of, is_piece, letters_of, name_of, raw_of, within
from nmt.data.placeholders import CHARACTERS, shown
from nmt.errors import DataError
from nmt.extras import require
from nmt.recipe.contradictions import complaint_about_symbol
from nmt.recipe.data_options import PATTERN, complaint_about_patterns

# A unigram vocabulary starts with so many times the final number of pieces, and drops the least useful ones.
_SEED_PIECES = 4
_UNUSED_BYTE = [*BYTE_LETTERS][0xFF]  # no UTF-8 text contains it
_FIRST_ALIAS = 0x10000  # code points beyond the surrogates, one for each old piece


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class PieceTable(_Strict):
    """The pieces of a vocabulary in the order of their ids, in letters, and the further data of its kind if it has any.

    merges: of BPE. scores: of unigram. model: of SentencePiece, its model file in base64.
    """

    vocab: list[str]
    merges: list[tuple[str, str]] = []
    scores: list[float] = []
    model: str = ""


class Kind:
    """A kind of subwords. stored: its name in a subwords file."""

    stored: str
    keeps_pieces = False  # if True, a word that is a piece is not split

    def learn(self, words: Counter[str], n_piece: int) -> PieceTable:
        """Learn n_piece pieces, or fewer if the text has no more. By default: extend the pieces of the bytes."""
        return self.extend(PieceTable(vocab=[*BYTE_LETTERS]), words, n_piece - len(BYTE_LETTERS))

    def extend(self, old: PieceTable, words: Counter[str], n_new: int) -> PieceTable:
        """Add n_new pieces, or fewer if the text has no more. Raises DataError for a kind that cannot be extended."""
        raise DataError(f"subwords.extend: subwords of the kind {self.stored} cannot be extended. Set it to 0.")

    def complaints(self, pieces: PieceTable) -> Iterator[str]:
        """Yield complaints about the entries of a file besides the pieces: merges of or into what is no piece."""
        known = set(pieces.vocab)
        wrong = ((a, b) for a, b in pieces.merges if not known.issuperset((a, b, a + b)))
        return (f"the merge of {a!r} and {b!r} is not in the vocabulary" for a, b in wrong)

    def model(self, pieces: PieceTable) -> models.Model:
        """Return the model that segments words; a character without a piece becomes the pieces of its bytes."""
        id_of = {name_of(piece): i for i, piece in enumerate(pieces.vocab)}
        return models.BPE(id_of, pieces.merges, byte_fallback=True, ignore_merges=self.keeps_pieces)


class Bpe(Kind):
    """Pieces formed by merges."""

    stored = "bpe"

    def learn(self, words: Counter[str], n_piece: int) -> PieceTable:
        """Learn merges and the pieces that they form."""
        characters = alphabet_of(words, (n_piece - len(BYTE_LETTERS)) // 2, coverage=1.0)
        letters = letters_of(characters)
        # Pieces that a letter saves, compared with a piece for each of its bytes.
        saved = {letter: (letters[letter] - 1) * n for letter, n in characters.items()}
        vocab, merges = merges_of(within(words, letters), letters, n_piece, LONGEST_PIECE, saved)
        return PieceTable(vocab=vocab, merges=merges)

    def extend(self, old: PieceTable, words: Counter[str], n_new: int) -> PieceTable:
        """Continue from the old pieces: to the learner of new merges, each of them is one letter, its alias."""
        vocab = [*old.vocab, *alphabet_of(words, n_new // 2, old.vocab)]
        model = self.model(PieceTable(vocab=vocab, merges=old.merges))
        aliased_words = Counter[str]()
        for word, n in within(words, letters_of(vocab)).items():
            aliased_words["".join(chr(_FIRST_ALIAS + token.id) for token in model.tokenize(word))] += n
        piece_of = dict(enumerate(vocab, _FIRST_ALIAS))  # by the code point of its alias
        n_byte = {chr(alias): len(raw_of(piece)) for alias, piece in piece_of.items()}
        n_piece = len(old.vocab) + n_new
        # More than needed, since a merge may form a piece that exists already.
        n_learnt = n_piece + (n_piece - len(vocab)) // 4 + 100
        pieces, merges, old_merges = dict.fromkeys(vocab), list(old.merges), set(old.merges)
        for pair in merges_of(aliased_words, n_byte, n_learnt, LONGEST_PIECE + 1)[1]:
            a, b = (part.translate(piece_of) for part in pair)
            # A second entry of a merge would change its rank.
            if len(pieces) < n_piece and a in pieces and b in pieces and (a, b) not in old_merges:
                merges.append((a, b))
                pieces[a + b] = None
        return PieceTable(vocab=[*pieces], merges=merges)


class Char(Kind):
    """Single characters; stored as BPE without merges."""

    stored = "bpe"

    def extend(self, old: PieceTable, words: Counter[str], n_new: int) -> PieceTable:
        """Add the most frequent of the new characters."""
        characters = alphabet_of(words, n_new, old.vocab, coverage=1.0)
        return PieceTable(vocab=[*old.vocab, *characters], merges=old.merges)


class Word(Kind):
    """Whole words; a word that is no piece is spelled in letters."""

    stored, keeps_pieces = "word", True

    def extend(self, old: PieceTable, words: Counter[str], n_new: int) -> PieceTable:
        """Add the most frequent of the new words."""
        characters = alphabet_of(words, n_new // 2, old.vocab)
        known = {*old.vocab, *characters}
        new = [word for word in words if len(word) > 1 and len(word.encode()) <= LONGEST_PIECE and word not in known]
        new.sort(key=lambda word: (-words[word], word))
        return PieceTable(vocab=[*old.vocab, *characters, *new[: n_new - len(characters)]])


class Unigram(Kind):
    """Pieces with log-probabilities; a word is segmented into its likeliest sequence of pieces."""

    stored = "unigram"

    def learn(self, words: Counter[str], n_piece: int) -> PieceTable:
        """Start from the pieces of BPE, and drop the least useful ones."""
        letters = letters_of(alphabet_of(words, (n_piece - len(BYTE_LETTERS)) // 2))
        words = within(words, letters)
        pieces, _ = merges_of(words, letters, n_piece * _SEED_PIECES, LONGEST_PIECE)
        scored = learn_scores(words, pieces, [*letters], n_piece)
        return PieceTable(vocab=[*scored], scores=[*scored.values()])

    def extend(self, old: PieceTable, words: Counter[str], n_new: int) -> PieceTable:
        """Add pieces after the old ones, whose scores stay: so do their likeliest segmentations of words."""
        characters = alphabet_of(words, n_new // 2, old.vocab)
        n_byte = letters_of([*old.vocab, *characters])
        words = within(words, n_byte)
        candidates, _ = merges_of(words, n_byte, len(n_byte) + _SEED_PIECES * n_new, LONGEST_PIECE)
        scored = learn_scores(words, candidates, [*old.vocab, *characters], len(old.vocab) + n_new)
        known = set(old.vocab)
        new = {piece: score for piece, score in scored.items() if piece not in known}
        return PieceTable(vocab=[*old.vocab, *new], scores=[*old.scores, *new.values()])

    def complaints(self, pieces: PieceTable) -> Iterator[str]:
        """Yield a complaint if a piece has no log-probability."""
        if len(pieces.scores) != len(pieces.vocab) or any(score > 0 for score in pieces.scores):
            yield "there is not one score for each piece, the logarithm of a probability"

    def model(self, pieces: PieceTable) -> models.Model:
        """Return the unigram model of the tokenizers library."""
        # The library merges successive unknown pieces, so the unknown piece is the byte FF, which no text has.
        scored = zip(map(name_of, pieces.vocab), pieces.scores, strict=True)
        return models.Unigram(list(scored), unk_id=pieces.vocab.index(_UNUSED_BYTE), byte_fallback=True)


# Encoding with the package sentencepiece, which reads its own model file.
SPACE = "▁"  # U+2581, written for a space by sentencepiece; in a text it counts as a space
_TEXT = re.compile("[^\ud800-\udfff]+")  # sentencepiece does not know placeholders


class Speller:
    """Encoder with a model of SentencePiece. Lines are cut at symbols, which it does not know, after normalisation.

    vocab: the pieces in letters: all bytes, then the others, without control symbols.
    squeeze: whether the model removes spaces at the ends of a line and merges several into one.
    """

    def __init__(self, model_file: str) -> None:
        """model_file: the bytes of the file in base64.

        Raises ValueError if they are no such model or it cannot be used, and MachineError if the package is missing.
        """
        require("sentencepiece", "a vocabulary of subwords.kind: sentencepiece")
        from google.protobuf.message import DecodeError
        from sentencepiece import SentencePieceNormalizer, SentencePieceProcessor, sentencepiece_model_pb2

        protobuf: Any = sentencepiece_model_pb2  # its classes are created at import, unknown to mypy
        content = base64.b64decode(model_file, validate=True)
        try:
            SentencePieceProcessor().LoadFromSerializedProto(content)
            given = protobuf.ModelProto.FromString(content)
        except (RuntimeError, DecodeError):
            raise ValueError("not a model of SentencePiece, or damaged: expected what spm_train writes") from None
        normal = [piece.piece.replace(SPACE, " ") for piece in given.pieces if piece.type == piece.NORMAL]
        if obstacles := [name for name, is_present in _obstacles(given, normal).items() if is_present]:
            raise ValueError(
                f"its segmentation cannot be reproduced exactly: {'; '.join(obstacles)}. Train it again with other "
                "options of SentencePiece (--byte_fallback=true), or learn subwords here"
            )
        self.vocab = list(dict.fromkeys([*BYTE_LETTERS, *normal]))
        id_of = {piece.replace(" ", SPACE): i for i, piece in enumerate(self.vocab)}
        id_of |= {f"<0x{byte:02X}>": byte for byte in range(256)}
        # By the id of SentencePiece. Control symbols and <unk> never occur.
        self._our_id = [id_of.get(piece.piece, -1) for piece in given.pieces]
        self.squeeze: bool = given.normalizer_spec.remove_extra_whitespaces
        self._normalizer: Any = SentencePieceNormalizer(
            model_proto=content, add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=False
        )
        # For normalised text: without rules, and without the tests of itself that a model may contain.
        encoder = protobuf.ModelProto(pieces=given.pieces, trainer_spec=given.trainer_spec)
        encoder.normalizer_spec.add_dummy_prefix = encoder.normalizer_spec.remove_extra_whitespaces = False
        self._encoder: Any = SentencePieceProcessor(model_proto=encoder.SerializeToString())

    def normalised(self, text: str) -> str:
        """Apply the normalisation rules, which keep spaces."""
        return _TEXT.sub(lambda part: self._normalizer.normalize(part[0]), text)

    def line(self, text: str) -> str:
        """Return a line ready to encode: normalised, with a space before it; "" if nothing is left."""
        normal = self.normalised(text)
        if not self.squeeze:
            return f" {normal}".replace(SPACE, " ") if text else ""
        normal = re.sub(" {2,}", " ", normal).lstrip(" ")
        return f" {normal}".replace(SPACE, " ").rstrip(" ")

    def encode(self, text: str) -> list[int]:
        """Return the ids of the pieces of a text that has a space before each word."""
        return [self._our_id[i] for i in self._encoder.encode(text)]


def _obstacles(model: Any, normal: Sequence[str]) -> dict[str, object]:
    """Properties that a model of SentencePiece must not have, with a true value if it has them. normal: its pieces."""
    trainer, rules = model.trainer_spec, model.normalizer_spec
    special = [repr(piece.piece) for piece in model.pieces if piece.type in (piece.USER_DEFINED, piece.UNUSED)]
    charsmap = rules.precompiled_charsmap  # length of a trie in four bytes, the trie, and the texts that rules produce
    texts_of_rules = charsmap[4 + int.from_bytes(charsmap[:4], "little") :]
    return {
        "a model_type other than bpe and unigram": trainer.model_type not in (trainer.BPE, trainer.UNIGRAM),
        "no byte_fallback, so that some characters are unknown": not trainer.byte_fallback,
        f"user_defined_symbols or unused pieces {', '.join(special)[:100]}": special,
        "treat_whitespace_as_suffix": trainer.treat_whitespace_as_suffix,
        "add_dummy_prefix=false": not rules.add_dummy_prefix,
        "escape_whitespaces=false": not rules.escape_whitespaces,
        "rules of denormalisation": model.denormalizer_spec.precompiled_charsmap,
        "a rule of normalisation that makes several spaces": b"  " in texts_of_rules,
        "pieces that contain a space (split_by_whitespace=false)": any(" " in piece.lstrip(" ") for piece in normal),
        f"pieces of over {LONGEST_PIECE} bytes, or in private characters": not all(map(is_piece, map(name_of, normal))),
        "no piece for a space alone": " " not in normal,
    }


class OfSentencePiece(Kind):
    """The pieces of a model file of SentencePiece. That package segments lines with it; nothing is learnt here."""

    stored = "sentencepiece"

    def complaints(self, pieces: PieceTable) -> Iterator[str]:
        """Yield a complaint about a model that cannot be used, or has other pieces."""
        yield from super().complaints(pieces)
        try:
            if Speller(pieces.model).vocab != pieces.vocab:
                yield "the pieces are not those of the model"
        except ValueError as error:
            yield str(error)


KINDS: dict[str, Kind] = {
    "bpe": Bpe(),
    "unigram": Unigram(),
    "word": Word(),
    "char": Char(),
    "sentencepiece": OfSentencePiece(),
}


class SubwordsFile(_Strict):
    """The content of a subwords file: the settings of both vocabularies, and the pieces of each, or of a joint one.

    placeholders: their names. patterns: those of data.protect. tags: of the source side.
    """

    format: Literal[4] = 4
    kind: str = "bpe"
    normalize: Literal["nfc", "nfkc", "none"] = "nfc"
    whitespace: Literal["unified", "kept"] = "kept"
    symbols: tuple[str, ...] = ()
    placeholders: tuple[str, ...] = ()
    tags: tuple[Annotated[str, StringConstraints(pattern=r"^<[A-Za-z0-9_-]{1,60}>$")], ...] = ()
    joint: bool = True
    codecs: list[PieceTable] = []
    patterns: tuple[str, ...] = ()

    @property
    def extra_texts(self) -> list[str]:
        """Texts of the ids that follow the pieces: symbols, and placeholders as users see them."""
        return [*self.symbols, *map(shown, self.placeholders)]

    @classmethod
    def read(cls, path: Path) -> "SubwordsFile":
        """Read a file of the content of `text`. Raises DataError for any other file."""
        try:
            content = cls.model_validate_json(path.read_bytes())
            complaint = next(content._complaints(), "")
        except OSError as error:
            raise DataError(f"{path}: cannot read the subwords ({error.strerror or error}).") from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            complaint = f"{'.'.join(map(str, first['loc']))} {first['msg']}".strip()
        if complaint:
            raise DataError(f"{path}: damaged, or not of this version of nmt: {complaint}. Run nmt-preprocess again.")
        return content

    def text(self) -> str:
        """The text of the file."""
        content = self.model_dump(exclude=None if self.patterns else {"patterns"})
        content["codecs"] = [pieces.model_dump(exclude_unset=True) for pieces in self.codecs]
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))

    def _complaints(self) -> Iterator[str]:
        """Yield complaints about the content. Only the first counts, since a check relies on those before it."""
        stored = [name for name, kind in KINDS.items() if kind.stored == name]
        if self.kind not in stored:
            yield f"expected the kind {', '.join(stored)}, found {self.kind!r}"
        for symbol in self.symbols:
            if complaint := complaint_about_symbol(symbol, self.normalize):
                yield f"symbol {symbol!r} {complaint}"
        if wrong := [name for name in self.placeholders if name not in CHARACTERS]:
            yield f"{wrong[0]!r} is no name of a placeholder"
        if bool(self.patterns) != (f"{PATTERN}1" in self.placeholders):
            yield "patterns without placeholders, or placeholders without them"
        if complaint := complaint_about_patterns(self.patterns):
            yield complaint
        if len(self.codecs) != (1 if self.joint else 2):
            yield "wrong number of vocabularies"
        for pieces in self.codecs:
            if self.kind == "bpe" and "merges" not in pieces.model_fields_set:
                yield "there are no merges"
            if not all(map(is_piece, pieces.vocab)):
                yield f"a piece is longer than {LONGEST_PIECE} bytes, or not written in the letters of its format"
            vocab = [*pieces.vocab, *self.extra_texts]
            if len(set(vocab)) != len(vocab) or len(set(self.tags)) != len(self.tags):
                yield "a piece, symbol, placeholder or tag occurs twice"
            if not BYTE_LETTERS.keys() <= set(vocab):
                yield "a byte is missing from the vocabulary"
            yield from KINDS[self.kind].complaints(pieces)
