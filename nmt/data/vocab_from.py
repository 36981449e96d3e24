"""Subwords of another run or data folder, unchanged or extended by new pieces for other text; or of SentencePiece.

Old pieces keep their text, their merges or scores, and their order. New pieces follow them.
"""

import base64
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from nmt.data.letters import learnable
from nmt.data.manifest import read_manifest
from nmt.data.placeholders import names_of
from nmt.data.subword_kinds import KINDS, PieceTable, Speller, SubwordsFile
from nmt.data.subwords import Subwords
from nmt.errors import DataError
from nmt.extras import require
from nmt.files import refuse_links_out, sha256_of
from nmt.recipe.data_options import SENTENCEPIECE_ENDINGS, SubwordsConfig, patterns_of
from nmt.recipe.places import SUBWORDS, Origin, is_of_run, is_prepared, read_run_data


def _pieces_of_model(path: Path) -> PieceTable:
    """The pieces of a model file of SentencePiece.

    Raises DataError if the file is no such model or cannot be used, and MachineError if the package is missing.
    """
    require("sentencepiece", f"{path}, a model of SentencePiece")
    try:
        model = base64.b64encode(path.read_bytes()).decode("ascii")
        return PieceTable(vocab=Speller(model).vocab, model=model)
    except ValueError as error:
        raise DataError(f"{path}: {error}.") from None


def find_subwords(*names: str, origin: Origin | None = None) -> list[Path]:
    """The subwords files of the names in subwords.vocab_from: a run, a folder of prepared data, or one or two files."""
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


def facts_of_subwords(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Entries of the files for the inputs of the manifest, since the data depends on their bytes."""
    for side, path in zip(["both"] if len(files) == 1 else ["src", "trg"], files, strict=False):
        facts = {"name": str(path), "n_line": 1, "size": path.stat().st_size, "sha256": sha256_of(path)}
        yield {"split": "subwords", "side": side, **facts}


def given_subwords(files: Sequence[Path], *, joint: bool) -> Subwords:
    """The subwords of a file, or of one or two models of SentencePiece.

    joint: with SentencePiece, whether both sides share one vocabulary. Raises DataError if the file lies in a run or a
    folder of prepared data that was made with other subwords.
    """
    path, folder = files[0], files[0].parent
    if path.suffix in SENTENCEPIECE_ENDINGS:
        codecs = [_pieces_of_model(path)] if joint else [_pieces_of_model(files[0]), _pieces_of_model(files[-1])]
        return Subwords(SubwordsFile(kind="sentencepiece", normalize="none", joint=joint, codecs=codecs))
    if is_prepared(folder) or is_of_run(folder):  # a single file may lie anywhere
        refuse_links_out(folder)
    subwords = Subwords.load(path)
    sha256 = read_manifest(folder)["subwords_sha256"] if is_prepared(folder) else read_run_data(folder).get("subwords")
    if sha256 not in (None, subwords.sha256):
        raise DataError(
            f"subwords.vocab_from: {path} was changed: its SHA-256 differs from the one stored beside it. Restore the "
            "file from a copy of the folder, or from a run that was trained with it."
        )
    return subwords


def reuse(
    files: Sequence[Path],
    words: tuple[Counter[str], Counter[str]],
    config: SubwordsConfig,
    tags: Sequence[str] = (),
    protect: Sequence[str] = (),
    talk: Callable[[str], object] = lambda _: None,
) -> Subwords:
    """The subwords of files, extended by config.extend pieces in each vocabulary, and by symbols, tags, placeholders.

    words: of source and target, as `WordsOf` splits them. protect: data.protect, which gives the order of the patterns.
    talk: called with the numbers of old and new pieces. Raises DataError if the options contradict the files.
    """
    subwords = given_subwords(files, joint=config.joint)
    old, of_files = subwords.file, f"of {' and '.join(map(str, files))}"
    if differences := [*_differences(subwords, config, protect)]:
        raise DataError(
            f"subwords.vocab_from: the options of the subwords differ from those {of_files}: "
            f"{'; '.join(differences)}. Use the same options in the recipe."
        )
    wanted = {"symbols": config.symbols, "placeholders": names_of(protect), "tags": tags}
    entries = {name: tuple(dict.fromkeys((*getattr(old, name), *texts))) for name, texts in wanted.items()}
    new = old.model_copy(update={**entries, "patterns": patterns_of(protect), "codecs": list[PieceTable]()})
    counts = [words[0] + words[1]] if old.joint else words
    for codec, side_words in zip(subwords.by_side().values(), counts, strict=True):
        table, pieces = codec.table, set(codec.table.vocab)
        if ambiguous := [text for text in new.extra_texts if text in pieces]:
            raise DataError(
                f"subwords.symbols: {', '.join(ambiguous)} is already an ordinary piece {of_files}: choose another "
                "symbol."
            )
        if config.extend:
            table = KINDS[config.kind].extend(table, learnable(side_words), config.extend)
        new.codecs.append(table)
    extended = Subwords(new)
    for (side, codec), old_codec in zip(extended.by_side().items(), subwords.by_side().values(), strict=True):
        n_new = len(set(codec.vocab) - set(old_codec.vocab))
        growth = f", {n_new:,} new, {codec.size:,} in all" if n_new else ""
        talk(f"{side} vocabulary: {old_codec.size:,} pieces {of_files}{growth}, padded to {codec.n_vocab:,}")
    return extended


def _differences(old: Subwords, config: SubwordsConfig, protect: Sequence[str]) -> Iterator[str]:
    """Yield the differences of the options from those in the file: exports and translation use the options."""
    kinds = [name for name, kind in KINDS.items() if kind.stored == old.file.kind]
    if config.kind not in kinds:
        yield f"kind: {config.kind}, but {' or '.join(kinds)} there"
    names = ["joint"]
    if not old.src.speller:  # SentencePiece has rules of its own
        names += ["normalize", *(["whitespace"] if config.extend or config.whitespace == "kept" else [])]
    for name in names:
        value, stored = (str(getattr(options, name)).lower() for options in (config, old.file))
        if value != stored:
            yield f"{name}: {value}, but {stored} there"
    if missing := [symbol for symbol in old.file.symbols if symbol not in config.symbols]:
        yield f"symbols: {', '.join(missing)} is missing"
    if unprotected := set(old.src.protects) - set(protect):
        yield f"data.protect: {', '.join(sorted(unprotected))} is missing"
