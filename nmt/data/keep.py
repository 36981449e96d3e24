"""From the sources to the pairs that are kept: training pairs that pass the filters, as two plain files; the lines of
the validation and test files, all of them.

What is dropped is counted with file and line. Nothing is encoded here.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from nmt.data.clean import BAD_UTF8, filters_of, most_bytes, oddities, reason_to_drop
from nmt.data.fields import Flaw, Policy, Reading
from nmt.data.ratio import UsualRatio, usual_ratio
from nmt.data.report import DataReport
from nmt.data.seen import Seen
from nmt.data.sources import Source
from nmt.data.survey import Survey
from nmt.errors import DataError
from nmt.recipe.data_options import DataConfig

# A line of a validation or test file is kept whole whatever it is, but this is no line of text.
_LONGEST_KEPT = 1 << 20


class Places:
    """Where each kept pair stood: file and line, for the report. Twelve bytes a pair."""

    def __init__(self, training: Sequence[Source]) -> None:
        self._names, self._sources, self._lines = [one.src.name for one in training], array("l"), array("q")
        self.n_read = 0
        self._corpora = [source.corpus for source in training]
        self._n_of_source = [0] * len(training)  # pairs of each source that are still there

    def name(self, n_source: int, number: int) -> str:
        """The place as people write it. Counts the line as read."""
        self.n_read += 1
        return f"{self._names[n_source]}:{number}"

    def add(self, n_source: int, number: int) -> None:
        """Remember the place of the next kept pair."""
        self.n_read += 1
        self._n_of_source[n_source] += 1
        self._sources.append(n_source)
        self._lines.append(number)

    def corpora(self) -> list[dict[str, Any]]:
        """For the manifest: the corpora in the order of their pairs."""
        found: dict[int, dict[str, Any]] = {}
        for corpus, name, n in zip(self._corpora, self._names, self._n_of_source, strict=True):
            found.setdefault(corpus, {"name": name, "n_pair": 0})["n_pair"] += n
        return list(found.values())

    def corpus(self, n: int) -> int:
        """The number of the corpus that a pair is of."""
        return self._corpora[self._sources[n]]

    def lose(self, n: int) -> str:
        """Take a pair out of the count of its corpus after all, and tell where it stood."""
        self._n_of_source[self._sources[n]] -= 1
        return self[n]

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, n: int) -> str:
        return f"{self._names[self._sources[n]]}:{self._lines[n]}"


def read_held_out(sources: Sequence[Source], split: str, report: DataReport) -> tuple[list[str], list[str]]:
    """All lines of the validation or test files, as they stand."""
    sides: tuple[list[str], list[str]] = ([], [])
    for source in sources:
        if source.split == split:
            reading = _reading(source, "refuse", "refuse", _LONGEST_KEPT, report)
            for number, pair in enumerate(source.pairs(reading), start=source.first_number):
                for text, line, lines in zip((source.src, source.trg), pair, sides, strict=True):
                    assert line is not None, "refused lines raise"
                    if isinstance(line, Flaw) or len(line.encode("utf-8")) > _LONGEST_KEPT - 8:
                        raise DataError(
                            f"{text.name}:{number}: a {split} line of over {_LONGEST_KEPT:,} bytes. Lines of {split} "
                            "files are never dropped: look for missing line feeds in the file."
                        )
                    report.notes.update(oddities(line))
                    lines.append(line)
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
    places = Places(training)
    survey = report.survey = Survey(folder, sources, held_out)
    own = [config.filters_of(source.corpus) for source in training]
    seen = Seen(config, report.n_read, own)
    longest = most_bytes(config.max_len) + 8  # what is cut there is too long all the same
    with progress_bar("learning the ratio", report.n_read) as bar:
        usual = [
            _learn_ratio(source, spread.max_ratio_spread, config, longest, report, bar)
            for source, spread in zip(training, own, strict=True)
        ]
    filters = [
        filters_of(one, config.max_len, config.languages_of(source.corpus), ratio)
        for source, one, ratio in zip(training, own, usual, strict=True)
    ]
    with open(folder / "kept.src", "wb") as src_file, open(folder / "kept.trg", "wb") as trg_file:
        progress = progress_bar("reading", report.n_read)
        for n_source, source in enumerate(training):
            survey.begin(source)
            reading = _reading(source, config.bad_utf8, config.bad_records, longest, report)
            for number, (src, trg) in enumerate(source.pairs(reading), start=source.first_number):
                progress.update()
                if isinstance(src, Flaw) or isinstance(trg, Flaw):
                    flaw = next(side for side in (src, trg) if isinstance(side, Flaw))
                    report.drop(flaw.reason, places.name(n_source, number), corpus=source.corpus)
                    survey.add(None, None, kept=False)
                    continue
                reason = reason_to_drop(src, trg, filters[n_source])
                if reason == BAD_UTF8 or src is None or trg is None:
                    report.drop(BAD_UTF8, places.name(n_source, number), corpus=source.corpus)
                    survey.add(src, trg, kept=False)
                    continue
                reason = reason or seen.reason_to_drop(src, trg, own[n_source])
                survey.add(src, trg, kept=reason is None)
                if reason is not None:
                    report.drop(reason, places.name(n_source, number), src, trg, corpus=source.corpus)
                    continue
                report.notes.update((*oddities(src), *oddities(trg)))
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


def _reading(source: Source, bad_utf8: Policy, bad_records: Policy, longest: int, report: DataReport) -> Reading:
    """How to read a source, with the report as the one that is told of oddities."""
    joined = partial(_note_joined, report, source.src.name)
    return Reading(bad_utf8, bad_records, longest, report.notes, joined)


def _note_joined(report: DataReport, name: str, number: int) -> None:
    report.note("line_feed", f"{name}:{number}")


def _learn_ratio(
    source: Source, spread: float, config: DataConfig, longest: int, report: DataReport, bar: "tqdm[NoReturn]"
) -> UsualRatio | None:
    """What ratio of lengths is usual in a corpus, if pairs are to be dropped by it: one more pass over its files."""
    if not spread:
        return None
    reading = Reading(config.bad_utf8, config.bad_records, longest)  # what is odd is noted when the pairs are kept

    def shown() -> Iterator[tuple[str | None, str | None]]:
        for src, trg in source.pairs(reading):
            bar.update()
            yield (None if isinstance(src, Flaw) else src), (None if isinstance(trg, Flaw) else trg)

    usual = usual_ratio(shown(), spread)
    if usual is not None:
        report.learnt_ratios[source.src.name] = usual
    return usual


def text_of(path: Path) -> Iterator[str]:
    """Lines that we wrote ourselves, as they are: `read_lines` would take a second byte order mark for the first."""
    with open(path, "rb") as file:
        for raw in file:
            yield raw[:-1].decode("utf-8", errors="surrogatepass")  # placeholders are halves of surrogate pairs


def progress_bar(what: str, total: int) -> "tqdm[NoReturn]":
    """A progress bar that shows itself only when there is something to wait for."""
    return tqdm(total=total, desc=what, unit=" pairs", unit_scale=True, delay=2, file=sys.stderr)
