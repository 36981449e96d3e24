"""The subwords of another run or data folder, as they are or with new pieces for other text.

Old pieces keep their text, and each stays what it is made of: only what comes after them is new.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.data.letters import (
    BYTE,
    BYTE_OF,
    NORMAL,
    SPACE,
    UNUSED,
    USER_DEFINED,
    Lines,
    SentencePiece,
    in_letters,
    texts_of_rules,
    words_of_sides,
)
from nmt.data.manifest import SUBWORDS, read_manifest
from nmt.data.placeholders import alike, names_of, shown
from nmt.data.subword_kinds import KINDS, Pieces, learnt_kind
from nmt.data.subwords import LONGEST_PIECE, Codec, Subwords
from nmt.errors import DataError
from nmt.extras import missing
from nmt.files import parse_json, refuse_links_out, sha256_of
from nmt.recipe.data_options import SENTENCEPIECE_ENDINGS, SubwordsConfig, patterns_of
from nmt.recipe.places import MANIFEST, RUN_DATA, Origin, is_of_run, is_prepared

# A model file of SentencePiece as subwords of ours, if they can be exactly that; what cannot be is named.
_LETTER_OF = {byte: letter for letter, byte in BYTE_OF.items()}
_MODELS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_LARGEST_FILE = 1 << 28


def is_sentencepiece(path: Path) -> bool:
    """True if the ending of a file says that it is a model of SentencePiece."""
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
    """True if a byte is a character that has a piece, so that it never becomes the piece for the byte."""
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
    """Options of a model that cannot be taken over, by their names. written: what its rules of normalisation write."""
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


@dataclass(frozen=True)
class Given:
    """Files of given subwords: a subwords file, or models of SentencePiece, one for both sides or one each."""

    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return " and ".join(map(str, self.paths))

    def load(self, *, joint: bool) -> Subwords:
        """The subwords. joint: whether a model of SentencePiece makes one vocabulary or two."""
        if not is_sentencepiece(self.paths[0]):
            return _as_written(self.paths[0])
        src = codec_of(self.paths[0])
        return Subwords(src, src if joint else codec_of(self.paths[-1]), src.normalize)

    def facts(self) -> list[dict[str, Any]]:
        """Entries of the files among the inputs of the manifest: other bytes make other data."""
        sides = ("both",) if len(self.paths) == 1 else ("src", "trg")
        return [
            {
                "split": "subwords",
                "side": side,
                "name": str(path),
                "n_line": 1,
                "size": path.stat().st_size,
                "sha256": sha256_of(path),
            }
            for side, path in zip(sides, self.paths, strict=True)
        ]


def find_subwords(*names: str, origin: Origin | None = None) -> Given:
    """The files of what subwords.vocab_from names: a run, a folder of prepared data, or a file itself, or two."""
    return Given(tuple(_found(name, origin or Origin()) for name in names))


def _found(name: str, origin: Origin) -> Path:
    option = "subwords.vocab_from"
    path = origin.find(option, name, lambda place: place.is_file() or (place / SUBWORDS).is_file())
    found = path / SUBWORDS if path.is_dir() else path
    if not found.is_file():
        raise DataError(
            f"{option}: no {found}: {origin.tried(option, name)}. Name a run (runs/NAME), a folder of prepared data "
            f"(prepared/NAME), a {SUBWORDS} itself, or a model of SentencePiece ({' or '.join(SENTENCEPIECE_ENDINGS)})."
        )
    return found


def _as_written(path: Path) -> Subwords:
    """The subwords of a file. In a run or a folder of prepared data they have to be those that its ids are of."""
    folder = path.parent
    if is_prepared(folder) or is_of_run(folder):  # and no lone file among the user's own
        refuse_links_out(folder)
    found = Subwords.load(path)
    told = read_manifest(folder)["subwords_sha256"] if (folder / MANIFEST).is_file() else _told_by_run(folder)
    if told not in (None, found.sha256):
        raise DataError(
            f"subwords.vocab_from: {path} is not as it was written: its SHA-256 is not the one noted beside it. "
            "Get the file back from a copy of the folder, or from a run that was trained with it."
        )
    return found


def _told_by_run(folder: Path) -> Any:
    try:
        told = parse_json((folder / RUN_DATA).read_bytes())
    except (OSError, ValueError):
        return None
    return told.get("subwords") if isinstance(told, dict) else None


def account_of(old: Subwords, new: Subwords, path: Given) -> list[str]:
    """Lines for people: what was taken and what was added."""
    lines = []
    for (side, here), there in zip(new.by_side().items(), old.by_side().values(), strict=True):
        known = set(there.vocab)
        n_new = sum(piece not in known for piece in here.vocab)
        grown = f", {n_new:,} new, {here.size:,} in all" if n_new else ""
        lines.append(f"{side} vocabulary: {there.size:,} pieces of {path}{grown}, padded to {here.n_vocab:,}")
    return lines


def reuse(
    given: Given,
    sides: tuple[Lines, Lines],
    config: SubwordsConfig,
    notes: Counter[str] | None = None,
    tags: Sequence[str] = (),
    protect: Sequence[str] = (),
) -> Subwords:
    """The subwords of a file, with config.extend new pieces a vocabulary and with the symbols, tags and placeholders
    that are new. protect: data.protect, of which the patterns are taken in its order.

    sides: give the lines of source and target anew at each call. notes: counts what was too long to be learnt from.
    What the file and the options say differently is refused.
    """
    old = given.load(joint=config.joint)
    _must_agree(given, old, config, protect)
    symbols = (*old.src.symbols, *(symbol for symbol in config.symbols if symbol not in old.src.symbols))
    wanted = config.model_copy(update={"symbols": symbols, "whitespace": old.src.whitespace})

    all_tags = (*old.src.tags, *(tag for tag in tags if alike(tag) not in map(alike, old.src.tags)))
    names = (*old.src.placeholders, *(name for name in names_of(protect) if name not in old.src.placeholders))

    def grown(codec: Codec, *lines: Lines, tags: Sequence[str] = ()) -> Codec:
        pieces_there = set(codec.plain_vocab())
        if twice := [one for one in (*symbols, *map(shown, names)) if codec.letters.piece(one) in pieces_there]:
            raise DataError(
                f"subwords.symbols: {', '.join(twice)} is a piece of {given} already, put together from ordinary text: "
                "choose another symbol."
            )
        if not config.extend:
            pieces, merges, scores = codec.plain_vocab(), codec.merges, codec.scores
        else:
            letters = codec.letters
            cut = letters.in_characters if config.kind == "char" else letters.pre_tokenizer
            words = Counter[str]()  # as the letters of an earlier version may cut them
            for word, n in words_of_sides(lines, wanted, notes).items():
                for part, _ in cut.pre_tokenize_str(word):
                    words[part] += n
            old_pieces = Pieces(codec.plain_vocab(), codec.merges, codec.scores)
            found = learnt_kind(config.kind).extend(old_pieces, letters, words, config.extend, LONGEST_PIECE)
            pieces, merges, scores = found.vocab, list(found.merges), list(found.scores)
        return Codec(
            pieces,
            merges,
            codec.normalize,
            kind=codec.kind,
            scores=scores,
            symbols=symbols,
            placeholders=names,
            patterns=patterns_of(protect),
            tags=tags,
            sentencepiece=codec.sentencepiece,
            characters=codec.characters,
            whitespace=codec.whitespace,
        )

    there = (old.src.symbols, old.src.placeholders, patterns_of(old.src.protects), old.src.tags)
    if not config.extend and (symbols, names, patterns_of(protect), all_tags) == there:
        return old
    src = grown(old.src, *(sides if old.joint else sides[:1]), tags=all_tags)
    return Subwords(src, src if old.joint else grown(old.trg, sides[1]), old.normalize)


def _must_agree(path: Given, old: Subwords, config: SubwordsConfig, protect: Sequence[str]) -> None:
    """Exports and translation go by the recipe, so it has to say what the file says."""
    kinds = [name for name, kind in KINDS.items() if kind.stored == old.src.kind]
    wrong = []
    if config.kind not in kinds:
        wrong.append(f"kind: {config.kind}, but {' or '.join(kinds)} there")
    for name, there in (("joint", old.joint), ("normalize", old.normalize)):
        if name == "normalize" and old.src.sentencepiece:
            continue  # it has rules of its own
        if getattr(config, name) != there:
            wrong.append(f"{name}: {str(getattr(config, name)).lower()}, but {str(there).lower()} there")
    if missing := [symbol for symbol in old.src.symbols if symbol not in config.symbols]:
        wrong.append(f"symbols: {', '.join(missing)} of there is missing")
    if no_more := set(old.src.protects) - set(protect):
        wrong.append(f"data.protect: {', '.join(sorted(no_more))} of there is missing")
    if wrong:
        raise DataError(
            f"subwords.vocab_from: the options of the subwords are not those of {path}: {'; '.join(wrong)}. Give the "
            "recipe the same ones."
        )
