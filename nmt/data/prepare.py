"""The whole of nmt-preprocess: text in, a folder of ids with a manifest out.

The folder is built beside its place under another name and renamed when complete, so whatever kills this
program leaves nothing that a later command accepts. What is read back is in `corpus.py`.
"""

import itertools
import json
import os
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from tqdm import tqdm

from nmt.data.arrow import dtype_of_ids, table_of, write_arrow
from nmt.data.clean import BAD_UTF8, DUPLICATE, TOO_LONG, DataReport, Seen, most_bytes, oddities, reason_to_drop
from nmt.data.corpus import Prepared
from nmt.data.folder import building, refuse_foreign_files
from nmt.data.lines import write_lines
from nmt.data.manifest import RECIPE, REPORT, SUBWORDS, changed_settings, settings_of, write_manifest
from nmt.data.sources import Source, find_sources, survey
from nmt.data.subwords import Codec, Subwords
from nmt.errors import DataError
from nmt.recipe.options import DataConfig, Recipe
from nmt.recipe.reader import write_recipe

# Sampling lines for BPE has a seed of its own: another seed of training is no reason for another vocabulary.
_SAMPLE_SEED = 0
# Pairs encoded at once, and rows of a record batch: enough for the threads, little for the memory.
_BLOCK = 10_000
# A line of a validation or test file is kept whole whatever it is, but this is no line of text.
_LONGEST_KEPT = 1 << 20

Talk = Callable[[str], None]


def prepare(recipe: Recipe, folder: Path, *, overwrite: bool = False, talk: Talk | None = None) -> dict[str, Any]:
    """Make the data folder of a recipe and return its manifest.

    A folder that was made from the same bytes with the same settings is left as it is; another one of ours is
    replaced with overwrite=True, at the very end. talk: gets each line of the account (default: stderr).
    """
    talk = talk or _to_stderr
    use_threads(recipe.data.workers)
    sources = find_sources(recipe)
    present = refuse_foreign_files(folder)
    inputs = survey(sources)
    settings = settings_of(recipe)
    if present is not None:
        changed = _changes(present, inputs, settings)
        if not changed and not overwrite:
            Prepared.open(folder)
            talk(f"{folder}: already prepared from the same files with the same settings, nothing to do")
            return present
        if not overwrite:
            raise DataError(
                f"{folder}: holds data prepared from other files or with other settings ({'; '.join(changed)}). "
                "Replace it with --overwrite, or choose another folder with data.out."
            )
    with building(folder, replace=present) as temporary:
        report = DataReport()
        report.n_read = sum(each["n_line"] for each in inputs if each["split"] == "train" and each["side"] == "src")
        splits = dict.fromkeys(source.split for source in sources if source.split != "train")
        held_out = {split: _read_held_out(sources, split, report) for split in splits}
        places = _keep_training_pairs(sources, held_out, recipe.data, report, temporary)
        kept = tuple(temporary / name for name in ("kept.src", "kept.trg"))
        subwords = _learn(recipe, kept, talk)
        subwords.save(temporary / SUBWORDS)
        n_pair = {"train": _encode_training_pairs(recipe.data, subwords, kept, places, report, temporary)}
        for path in kept:
            path.unlink()
        if not n_pair["train"]:
            raise DataError("\n".join(["No training pair is left.", *report.table()]))
        for line in report.table():
            talk(line)
        for split, (src, trg) in held_out.items():
            tables = _held_out_tables(src, trg, subwords)
            n_pair[split] = write_arrow(temporary / f"{split}.arrow", tables, subwords)
        files = [SUBWORDS, REPORT, *(f"{split}.arrow" for split in n_pair)]
        if recipe.data.generate:
            files += _write_generated(held_out, temporary)
        write_recipe(recipe, temporary / RECIPE)
        write_lines(temporary / REPORT, json.dumps(report.as_dict(), indent=1, ensure_ascii=False).split("\n"))
        content = {
            "inputs": inputs,
            "settings": settings,
            "n_pair": n_pair,
            "n_vocab": {"src": subwords.src.n_vocab, "trg": subwords.trg.n_vocab},
            "ids": str(dtype_of_ids(subwords)),
            "subwords_sha256": subwords.sha256,
            "tokenizers": metadata.version("tokenizers"),
        }
        manifest = write_manifest(temporary, content, files)
    counts = ", ".join(f"{n:,} {split}" for split, n in n_pair.items())
    talk(f"{folder}: {counts} pairs")
    return manifest


def use_threads(n: int) -> None:
    """Let tokenizers use n threads, all cores for 0. Only the first call of a process that encodes has an effect."""
    os.environ["RAYON_NUM_THREADS"] = str(n or os.cpu_count() or 1)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"  # said explicitly, or a later fork prints a warning


def _changes(present: dict[str, Any], inputs: list[dict[str, Any]], settings: dict[str, Any]) -> list[str]:
    """What a new folder would be made of otherwise than the present one. Names of files do not count, bytes do."""

    def identity(each: dict[str, Any]) -> tuple[Any, ...]:
        return each.get("split"), each.get("side"), each.get("sha256")

    before = set(map(identity, present["inputs"]))
    changed = [f"{each['name']} is new" for each in inputs if identity(each) not in before]
    if not changed and list(map(identity, present["inputs"])) != list(map(identity, inputs)):
        changed = ["the list of files is another"]
    return changed + changed_settings(present["settings"], settings)


def _read_held_out(sources: Sequence[Source], split: str, report: DataReport) -> tuple[list[str], list[str]]:
    """All lines of the validation or test files, as they stand."""
    sides: tuple[list[str], list[str]] = ([], [])
    for source in sources:
        if source.split == split:
            for text, lines in zip((source.src, source.trg), sides, strict=True):
                for number, line in enumerate(text.read("refuse", _LONGEST_KEPT, report.notes), start=1):
                    assert line is not None, "refused lines raise"
                    if len(line.encode("utf-8")) > _LONGEST_KEPT - 8:
                        raise DataError(
                            f"{text.name}:{number}: a {split} line of over {_LONGEST_KEPT:,} bytes. Lines of {split} "
                            "files are never dropped: look for missing line feeds in the file."
                        )
                    report.notes.update(oddities(line))
                    lines.append(line)
    if len(sides[0]) != len(sides[1]):
        raise DataError(f"The {split} files changed while they were read.")
    return sides


def _keep_training_pairs(
    sources: Sequence[Source],
    held_out: dict[str, tuple[list[str], list[str]]],
    config: DataConfig,
    report: DataReport,
    folder: Path,
) -> "_Places":
    """Write the pairs that pass the filters on text into kept.src and kept.trg; return where they came from."""
    training = [source for source in sources if source.split == "train"]
    places = _Places([source.src.name for source in training])
    known = {line.strip() for src, _ in held_out.values() for line in src if line.strip()}
    seen = Seen() if config.drop_duplicates else None
    longest = most_bytes(config.max_len) + 8  # what is cut there is too long all the same
    with open(folder / "kept.src", "wb") as src_file, open(folder / "kept.trg", "wb") as trg_file:
        progress = _bar("reading", report.n_read)
        for n_source, source in enumerate(training):
            for number, (src, trg) in enumerate(_pairs_of(source, config, longest, report), start=1):
                progress.update()
                reason = reason_to_drop(src, trg, config)
                if reason == BAD_UTF8 or src is None or trg is None:
                    report.drop(BAD_UTF8, places.name(n_source, number))
                    continue
                if reason is None and seen is not None and seen.has(src, trg):
                    reason = DUPLICATE
                report.notes.update((*oddities(src), *oddities(trg)))
                if reason is not None:
                    report.drop(reason, places.name(n_source, number))
                    continue
                report.n_leaked += src.strip() in known
                places.add(n_source, number)
                src_file.write(src.encode("utf-8") + b"\n")
                trg_file.write(trg.encode("utf-8") + b"\n")
        progress.close()
    if places.n_read != report.n_read:
        raise DataError(
            f"The training files changed while they were read: {report.n_read:,} lines, then {places.n_read:,}."
        )
    if not len(places):
        raise DataError("\n".join(["No training pair is left.", *report.table()]))
    return places


def _pairs_of(
    source: Source, config: DataConfig, longest: int, report: DataReport
) -> Iterator[tuple[str | None, str | None]]:
    src, trg = (text.read(config.bad_utf8, longest, report.notes) for text in (source.src, source.trg))
    try:
        yield from zip(src, trg, strict=True)
    except ValueError:
        raise DataError(f"{source.src.name} or {source.trg.name} changed while it was read.") from None


def _learn(recipe: Recipe, kept: tuple[Path, ...], talk: Talk) -> Subwords:
    """Train the subwords on the kept pairs, and say what came of it."""
    # No bar: the lines go by in a moment, and of the merges that follow the library tells nothing we could show.
    what = "characters" if recipe.subwords.kind == "char" else "subwords"
    talk(f"learning {recipe.subwords.vocab_size:,} {what} ...")
    subwords = Subwords.train(lambda: _text_of(kept[0]), lambda: _text_of(kept[1]), recipe.subwords, _SAMPLE_SEED)
    sides = [("joint", subwords.src)] if subwords.joint else [("source", subwords.src), ("target", subwords.trg)]
    for side, codec in sides:
        wanted = recipe.subwords.vocab_size
        short = f" ({wanted:,} asked for: the text has no more)" if codec.size < wanted else ""
        talk(f"{side} vocabulary: {codec.size:,} pieces{short}, padded to {codec.n_vocab:,}")
    return subwords


def _encode_training_pairs(
    config: DataConfig, subwords: Subwords, kept: tuple[Path, ...], places: "_Places", report: DataReport, folder: Path
) -> int:
    """Write train.arrow without the pairs that turn out too long; return the number of pairs in it."""

    def tables() -> Iterator[pa.Table]:
        pairs = zip(*map(_text_of, kept), strict=True)
        progress = _bar("encoding", len(places))
        for start in itertools.count(0, _BLOCK):
            block = list(itertools.islice(pairs, _BLOCK))
            if not block:
                progress.close()
                return
            src, trg = (codec.encode([pair[side] for pair in block]) for side, codec in _codecs(subwords))
            fits = [len(a) <= config.max_len and len(b) <= config.max_len for a, b in zip(src, trg, strict=True)]
            for n, fit in enumerate(fits):
                if not fit:
                    report.drop(TOO_LONG, places[start + n])
            if any(fits):
                yield table_of(list(itertools.compress(src, fits)), list(itertools.compress(trg, fits)), subwords)
            progress.update(len(block))

    report.n_kept = write_arrow(folder / "train.arrow", tables(), subwords)
    return report.n_kept


def _held_out_tables(src: list[str], trg: list[str], subwords: Subwords) -> Iterator[pa.Table]:
    for start in range(0, len(src), _BLOCK):
        lines = src[start : start + _BLOCK], trg[start : start + _BLOCK]
        table = table_of(subwords.src.encode(lines[0]), subwords.trg.encode(lines[1]), subwords)
        for name, text in zip(("src_text", "trg_text"), lines, strict=True):
            table = table.append_column(name, pa.array(text, pa.large_string()))
        yield table


def _write_generated(held_out: dict[str, tuple[list[str], list[str]]], folder: Path) -> list[str]:
    """Write the made-up validation and test lines as text too: there is no other file of them to translate."""
    names = []
    for split, sides in held_out.items():
        for side, lines in zip(("src", "trg"), sides, strict=True):
            names.append(f"{split}.{side}")
            write_lines(folder / names[-1], lines)
    return names


def _text_of(path: Path) -> Iterator[str]:
    """Lines that we wrote ourselves, as they are: `read_lines` would take a second byte order mark for the first."""
    with open(path, "rb") as file:
        for raw in file:
            yield raw[:-1].decode("utf-8")


def _bar(what: str, total: int) -> "tqdm[NoReturn]":
    """A progress bar that shows itself only when there is something to wait for."""
    return tqdm(total=total, desc=what, unit=" pairs", unit_scale=True, delay=2, file=sys.stderr)


def _codecs(subwords: Subwords) -> tuple[tuple[int, Codec], tuple[int, Codec]]:
    return (0, subwords.src), (1, subwords.trg)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


class _Places:
    """Where each kept pair stood: file and line, for the report. Twelve bytes a pair."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._sources, self._lines = names, array("l"), array("q")
        self.n_read = 0

    def name(self, n_source: int, number: int) -> str:
        """The place as people write it. Counts the line as read."""
        self.n_read += 1
        return f"{self._names[n_source]}:{number}"

    def add(self, n_source: int, number: int) -> None:
        """Remember the place of the next kept pair."""
        self.n_read += 1
        self._sources.append(n_source)
        self._lines.append(number)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, n: int) -> str:
        return f"{self._names[self._sources[n]]}:{self._lines[n]}"
