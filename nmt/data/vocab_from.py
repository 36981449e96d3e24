"""The subwords of another run or data folder, as they are or with new pieces for other text; or those of SentencePiece.

Old pieces keep their text, and each stays what it is made of: only what comes after them is new.
"""

import base64
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from nmt.data.letters import BYTE, NORMAL, SPACE, UNUSED, USER_DEFINED, ByteLetters, texts_of_rules
from nmt.data.manifest import SUBWORDS, read_manifest
from nmt.data.placeholders import canonical_tag, names_of, shown
from nmt.data.subword_kinds import KINDS, LONGEST_PIECE, PieceTable, SubwordsFile
from nmt.data.subwords import Codec, Subwords
from nmt.errors import DataError
from nmt.extras import missing
from nmt.files import refuse_links_out, sha256_of
from nmt.recipe.data_options import SENTENCEPIECE_ENDINGS, SubwordsConfig, patterns_of
from nmt.recipe.places import Origin, is_of_run, is_prepared, read_run_data

_MODELS: dict[int, Literal["bpe", "unigram"]] = {1: "unigram", 2: "bpe"}


def _pieces_of_model(path: Path) -> PieceTable:
    """The pieces of a model file of SentencePiece, in their order, without control symbols and those for bytes that
    have a piece anyway.

    Raises DataError for what is no such file or cannot be expressed, and MachineError without the package.
    """
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise missing("sentencepiece", f"{path}, a model of SentencePiece") from None
    theirs: Any = sentencepiece_model_pb2  # whose classes are made as it is imported
    try:
        model = theirs.ModelProto.FromString(path.read_bytes())
        rules = model.normalizer_spec
        written = texts_of_rules(rules.precompiled_charsmap)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except ValueError as error:
        raise DataError(f"{path}: {error}.") from None
    except DecodeError:
        model = theirs.ModelProto()
    if not model.pieces:
        raise DataError(f"{path}: not a model of SentencePiece, or damaged. Expected what spm_train writes.")
    kind, types = model.trainer_spec.model_type, Counter(each.type for each in model.pieces)
    normal = [each.piece for each in model.pieces if each.type == NORMAL]
    user_defined = [repr(each.piece) for each in model.pieces if each.type == USER_DEFINED]
    obstacles = {
        "a model_type other than bpe and unigram": kind not in _MODELS,
        "no byte_fallback, so that some characters are unknown": types[BYTE] != 256,
        f"user_defined_symbols {', '.join(user_defined)[:100]}": user_defined,
        "pieces marked as unused": types[UNUSED],
        "treat_whitespace_as_suffix": model.trainer_spec.treat_whitespace_as_suffix,
        "add_dummy_prefix=false": not rules.add_dummy_prefix,
        "escape_whitespaces=false": not rules.escape_whitespaces,
        "rules of denormalisation": model.denormalizer_spec.precompiled_charsmap,
        "a rule of normalisation that makes several spaces": b"  " in written,
        "pieces that reach over a space (split_by_whitespace=false)": any(
            SPACE in piece.lstrip(SPACE) or " " in piece for piece in normal
        ),
        f"pieces of over {LONGEST_PIECE} bytes": any(
            len(piece.replace(SPACE, " ").encode("utf-8")) > LONGEST_PIECE for piece in normal
        ),
        "pieces that occur twice, or are empty": len({*normal, ""}) <= len(normal),
        "no piece for a space alone": SPACE not in normal,
        "scores above 0": kind == 1 and any(each.score > 0 for each in model.pieces),
    }
    if found := [name for name, is_there in obstacles.items() if is_there]:
        raise DataError(
            f"{path}: cannot be taken over exactly: {'; '.join(found)}. Train it again with other options of "
            "SentencePiece (--byte_fallback=true), or learn subwords here."
        )
    score_of, letters = dict[str, float | None](), ByteLetters()
    for each in model.pieces:
        if each.type == NORMAL:
            score_of[letters.piece(each.piece.replace(SPACE, " "))] = each.score
        elif each.type == BYTE:
            byte = int(each.piece[3:5], 16)
            if byte >= 0x80 or chr(byte).replace(" ", SPACE) not in normal:
                score_of[letters.word(bytes([byte]))] = None
    return PieceTable(
        vocab=list(score_of),
        scores=list(score_of.values()),
        model=_MODELS[kind],
        squeeze=rules.remove_extra_whitespaces,
        charsmap=base64.b64encode(rules.precompiled_charsmap).decode("ascii"),
    )


def find_subwords(*names: str, origin: Origin | None = None) -> list[Path]:
    """The files of what subwords.vocab_from names: a run, a folder of prepared data, or a file itself, or two."""
    option, origin, files = "subwords.vocab_from", origin or Origin(), []
    for name in names:
        path = origin.find(option, name, lambda place: place.is_file() or (place / SUBWORDS).is_file())
        files.append(path / SUBWORDS if path.is_dir() else path)
        if not files[-1].is_file():
            raise DataError(
                f"{option}: no {files[-1]}: {origin.tried(option, name)}. Name a run (runs/NAME), a folder of prepared "
                f"data (prepared/NAME), a {SUBWORDS} itself, or a model of SentencePiece "
                f"({' or '.join(SENTENCEPIECE_ENDINGS)})."
            )
    return files


def facts_of_subwords(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Entries of the files among the inputs of the manifest: other bytes make other data."""
    found = []
    for side, path in zip(["both"] if len(files) == 1 else ["src", "trg"], files, strict=False):
        about = {"name": str(path), "n_line": 1, "size": path.stat().st_size, "sha256": sha256_of(path)}
        found.append({"split": "subwords", "side": side, **about})
    return found


def given_subwords(files: Sequence[Path], *, joint: bool) -> Subwords:
    """The subwords of a file, or of one or two models of SentencePiece. joint: whether one makes one vocabulary or two.

    Those of a run or a folder of prepared data have to be those that its ids are of.
    """
    path, folder = files[0], files[0].parent
    if path.suffix in SENTENCEPIECE_ENDINGS:
        codecs = [_pieces_of_model(path)] if joint else [_pieces_of_model(files[0]), _pieces_of_model(files[-1])]
        return Subwords(SubwordsFile(kind="sentencepiece", normalize="none", joint=joint, codecs=codecs))
    if is_prepared(folder) or is_of_run(folder):  # and no lone file among the user's own
        refuse_links_out(folder)
    found = Subwords.load(path)
    told = read_manifest(folder)["subwords_sha256"] if is_prepared(folder) else read_run_data(folder).get("subwords")
    if told not in (None, found.sha256):
        raise DataError(
            f"subwords.vocab_from: {path} is not as it was written: its SHA-256 is not the one noted beside it. "
            "Get the file back from a copy of the folder, or from a run that was trained with it."
        )
    return found


def account_of(old: Subwords, new: Subwords, files: Sequence[Path]) -> list[str]:
    """Lines for people: what was taken and what was added."""
    lines = []
    for (side, here), there in zip(new.by_side().items(), old.by_side().values(), strict=True):
        n_new = len(set(here.vocab) - set(there.vocab))
        grown = f", {n_new:,} new, {here.size:,} in all" if n_new else ""
        names = " and ".join(map(str, files))
        lines.append(f"{side} vocabulary: {there.size:,} pieces of {names}{grown}, padded to {here.n_vocab:,}")
    return lines


def reuse(
    files: Sequence[Path],
    words: tuple[Counter[str], Counter[str]],
    config: SubwordsConfig,
    tags: Sequence[str] = (),
    protect: Sequence[str] = (),
) -> Subwords:
    """The subwords of a file, with config.extend new pieces a vocabulary and with the symbols, tags and placeholders
    that are new. protect: data.protect, of which the patterns are taken in its order.

    words: of source and target, as `WordsOf` cuts them. What the file and the options say differently is refused.
    """
    subwords = given_subwords(files, joint=config.joint)
    old, there = subwords.file, f"of {' and '.join(map(str, files))}"
    _must_agree(there, subwords, config, protect)
    if config.extend and not old.characters:
        raise DataError(
            f"subwords.extend: the pieces {there} are those of an earlier version, which nothing can be added to: "
            "set it to 0, or learn new subwords."
        )
    symbols = (*old.symbols, *(symbol for symbol in config.symbols if symbol not in old.symbols))
    names = (*old.placeholders, *(name for name in names_of(protect) if name not in old.placeholders))
    all_tags = (*old.tags, *(tag for tag in tags if canonical_tag(tag) not in map(canonical_tag, old.tags)))

    def grown(codec: Codec, of_text: Counter[str]) -> PieceTable:
        pieces = set(codec.given.vocab)
        if twice := [one for one in (*symbols, *map(shown, names)) if codec.letters.piece(one) in pieces]:
            raise DataError(
                f"subwords.symbols: {', '.join(twice)} is a piece {there} already, put together from ordinary text: "
                "choose another symbol."
            )
        if not config.extend:
            return codec.given
        return KINDS[config.kind].extend(codec.given, of_text, config.extend)

    src_words, trg_words = words
    if old.joint:
        codecs = [grown(subwords.src, src_words + trg_words)]
    else:
        codecs = [grown(subwords.src, src_words), grown(subwords.trg, trg_words)]
    more = {"symbols": symbols, "placeholders": names, "patterns": patterns_of(protect), "tags": all_tags}
    return Subwords(old.model_copy(update={**more, "codecs": codecs}))


def _must_agree(there: str, old: Subwords, config: SubwordsConfig, protect: Sequence[str]) -> None:
    """Exports and translation go by the recipe, so it has to say what the file says."""
    kinds = [name for name, kind in KINDS.items() if kind.stored == old.file.kind]
    wrong = []
    if config.kind not in kinds:
        wrong.append(f"kind: {config.kind}, but {' or '.join(kinds)} there")
    names = ["joint"]
    if not old.src.speller:  # SentencePiece has rules of its own
        names += ["normalize", "whitespace"] if config.extend else ["normalize"]
    for name in names:
        asked, stored = (str(getattr(one, name)).lower() for one in (config, old.file))
        if asked != stored:
            wrong.append(f"{name}: {asked}, but {stored} there")
    if missing := [symbol for symbol in old.file.symbols if symbol not in config.symbols]:
        wrong.append(f"symbols: {', '.join(missing)} of there is missing")
    if no_more := set(old.src.protects) - set(protect):
        wrong.append(f"data.protect: {', '.join(sorted(no_more))} of there is missing")
    if wrong:
        raise DataError(
            f"subwords.vocab_from: the options of the subwords are not those {there}: {'; '.join(wrong)}. Give the "
            "recipe the same ones."
        )
