"""From the sources to the pairs that are kept: training pairs that pass the filters, as two plain files; the lines of
the validation and test files, all of them.

What is dropped is counted with file and line. Nothing is encoded here.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from nmt.data.clean import BAD_UTF8, DUPLICATE, Seen, most_bytes, oddities, reason_to_drop
from nmt.data.report import DataReport
from nmt.data.sources import Source
from nmt.data.survey import Survey
from nmt.errors import DataError
from nmt.recipe.data_options import DataConfig

# A line of a validation or test file is kept whole whatever it is, but this is no line of text.
_LONGEST_KEPT = 1 << 20


class Places:
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


def read_held_out(sources: Sequence[Source], split: str, report: DataReport) -> tuple[list[str], list[str]]:
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


def keep_training_pairs(
    sources: Sequence[Source],
    held_out: dict[str, tuple[list[str], list[str]]],
    config: DataConfig,
    report: DataReport,
    folder: Path,
) -> "Places":
    """Write the pairs that pass the filters on text into kept.src and kept.trg; return where they came from."""
    training = [source for source in sources if source.split == "train"]
    places = Places([source.src.name for source in training])
    survey = report.survey = Survey(folder, sources, held_out)
    seen = Seen() if config.drop_duplicates else None
    longest = most_bytes(config.max_len) + 8  # what is cut there is too long all the same
    with open(folder / "kept.src", "wb") as src_file, open(folder / "kept.trg", "wb") as trg_file:
        progress = progress_bar("reading", report.n_read)
        for n_source, source in enumerate(training):
            survey.begin(source)
            for number, (src, trg) in enumerate(_pairs_of(source, config, longest, report), start=1):
                progress.update()
                reason = reason_to_drop(src, trg, config)
                if reason == BAD_UTF8 or src is None or trg is None:
                    report.drop(BAD_UTF8, places.name(n_source, number))
                    survey.add(src, trg, kept=False)
                    continue
                if reason is None and seen is not None and seen.has(src, trg):
                    reason = DUPLICATE
                report.notes.update((*oddities(src), *oddities(trg)))
                survey.add(src, trg, kept=reason is None)
                if reason is not None:
                    report.drop(reason, places.name(n_source, number), src, trg)
                    continue
                places.add(n_source, number)
                src_file.write(src.encode("utf-8") + b"\n")
                trg_file.write(trg.encode("utf-8") + b"\n")
        progress.close()
    if places.n_read != report.n_read:
        raise DataError(
            f"The training files changed while they were read: {report.n_read:,} lines, then {places.n_read:,}."
        )
    progress = progress_bar("looking for shifted lines", report.n_read)
    kept = folder / "kept.src", folder / "kept.trg"
    report.conclude(sources, held_out, places.__getitem__, kept, progress.update)
    progress.close()
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


def text_of(path: Path) -> Iterator[str]:
    """Lines that we wrote ourselves, as they are: `read_lines` would take a second byte order mark for the first."""
    with open(path, "rb") as file:
        for raw in file:
            yield raw[:-1].decode("utf-8")


def progress_bar(what: str, total: int) -> "tqdm[NoReturn]":
    """A progress bar that shows itself only when there is something to wait for."""
    return tqdm(total=total, desc=what, unit=" pairs", unit_scale=True, delay=2, file=sys.stderr)
