"""From the sources to the pairs that are kept: training pairs that pass the filters, in blocks; the lines of the
validation and test files, all of them. And then how often their words occur.

The work on blocks is done by `block_work.py`; here it is handed out, and put together in order. What is dropped is
counted with file and line. Nothing is encoded here.
"""

import contextlib
import itertools
import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nmt.data.block_work import task_of
from nmt.data.dedup import NO_KEY, in_pieces, kinds_of, repeated
from nmt.data.filters import CODES, KEPT, MOST_LEARNT, UsualRatio, most_bytes, oddities, usual_ratio
from nmt.data.formats import Flaw, Policy, Reading
from nmt.data.kept import KeptPairs, near_hashes, progress_bar
from nmt.data.letters import WordCounts, drawn
from nmt.data.lines import open_text
from nmt.data.report import DataReport
from nmt.data.sources import Source, Text
from nmt.data.survey import Looked, Survey, Texts
from nmt.data.text import SIDES, VALID
from nmt.data.worker_pool import WorkerPool
from nmt.errors import DataError
from nmt.progress import Bar
from nmt.recipe.data_options import DataConfig, FilterConfig, SubwordsConfig

# A corpus in blocks of some thousand pairs, which is how the work on it is shared out.
N_PAIR = 10_000
# Bytes of one side at which a block ends before it has so many pairs. A single line may be longer.
_MOST_BYTES = 1 << 22
_CHUNK = 1 << 20


def blocks_of(source: Source, reading: Reading) -> Iterator[dict[str, Any]]:
    """Cut a source into blocks: `first`, the number of their first line; `n_pair`; and their text, bytes or lines."""
    if _is_plain(source.src) and _is_plain(source.trg):
        yield from _cut(source, reading.longest)
        return
    pairs, first = source.pairs(reading), source.first_number
    while block := list(itertools.islice(pairs, N_PAIR)):
        sides = [[(found if isinstance(found, str) else "") for found in side] for side in zip(*block, strict=True)]
        flaws = [(n, flaw.reason) for n, pair in enumerate(block) for flaw in pair if isinstance(flaw, Flaw)]
        yield {
            "first": first,
            "n_pair": len(block),
            "src_lines": "\n".join(sides[0]).encode("utf-8"),
            "trg_lines": "\n".join(sides[1]).encode("utf-8"),
            "bad": [n for n, pair in enumerate(block) if None in pair],
            "flaws": flaws,
        }
        first += len(block)


def _is_plain(text: Text) -> bool:
    return text.form == "text" and isinstance(text.place, Path) and text.moses is None


def _cut(source: Source, longest: int) -> Iterator[dict[str, Any]]:
    assert isinstance(source.src.place, Path) and isinstance(source.trg.place, Path)
    with open_text(source.src.place) as src_file, open_text(source.trg.place) as trg_file:
        src, trg = _Ahead(src_file, longest), _Ahead(trg_file, longest)
        first = source.first_number
        while True:
            ready = src.fill(), trg.fill()
            n_pair = min(ready)
            if not n_pair:
                break
            yield {"first": first, "n_pair": n_pair, "src_raw": src.take(n_pair), "trg_raw": trg.take(n_pair)}
            first += n_pair
        if any(ready):
            raise DataError(f"{source.src.name} or {source.trg.name} changed while it was read.")


class _Ahead:
    """The next lines of a file, as bytes."""

    def __init__(self, file: BinaryIO, longest: int) -> None:
        """longest: bytes of a line that are kept, at least, and of an endless one at most that and a chunk."""
        self._file, self._longest = file, longest
        self._raw, self._ends = b"", np.empty(0, np.int64)  # where each whole line in it ends, its line feed included
        self._at_end = False

    def fill(self) -> int:
        """Read until there are lines for a block; return how many a block may have."""
        while not self._at_end and len(self._ends) < N_PAIR and (not len(self._ends) or self._ends[-1] < _MOST_BYTES):
            self._add(self._file.read(_CHUNK))
        few = int(np.searchsorted(self._ends, _MOST_BYTES, side="right"))
        return min(len(self._ends), N_PAIR, max(few, 1))

    def take(self, n: int) -> bytes:
        """The first n lines, each ended by a line feed."""
        stop = int(self._ends[n - 1])
        taken, self._raw = self._raw[:stop], self._raw[stop:]
        self._ends = self._ends[n:] - stop
        return taken

    def _add(self, chunk: bytes) -> None:
        if not chunk:
            self._at_end = True
            whole = int(self._ends[-1]) if len(self._ends) else 0
            if len(self._raw) > whole:
                self._raw += b"\n"
                self._ends = np.append(self._ends, len(self._raw))
            return
        start = len(self._raw)
        self._raw += chunk
        ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n")) + start + 1
        self._ends = np.concatenate([self._ends, ends])
        whole = int(self._ends[-1]) if len(self._ends) else 0
        self._raw = self._raw[: whole + self._longest]  # more of a line is not wanted, and will be cut off


_WORTHWHILE = 2 * N_PAIR  # pairs for which it pays to start a process

# A line of a validation or test file is kept whole whatever it is, but this is no line of text.
_LONGEST_KEPT = 1 << 20


def read_held_out(sources: Sequence[Source], split: str, report: DataReport) -> Texts:
    """All lines of the validation or test files, as they stand. Raises DataError where no pair of them has text."""
    found, n_blank = Texts([], [], []), 0
    for source in sources:
        if source.split == split:
            reading = _reading(source, "refuse", "refuse", _LONGEST_KEPT, report)
            for number, pair in enumerate(source.pairs(reading), start=source.first_number):
                if any(isinstance(line, str) and not line.strip() for line in pair):
                    n_blank += 1
                    report.note("blank", f"{source.src.name}:{number}")
                for text, line, lines in zip((source.src, source.trg), pair, (found.src, found.trg), strict=True):
                    assert line is not None, "refused lines raise"
                    if isinstance(line, Flaw) or len(line.encode("utf-8")) > _LONGEST_KEPT - 8:
                        raise DataError(
                            f"{text.name}:{number}: a {split} line of over {_LONGEST_KEPT:,} bytes. Lines of {split} "
                            "files are never dropped: look for missing line feeds in the file."
                        )
                    report.notes.update(oddities(line))
                    lines.append(line)
            found.ends.append(len(found.src))
    if n_blank and n_blank == len(found.src):
        names = ", ".join(source.src.name for source in sources if source.split == split)
        raise DataError(
            f"{names}: none of {n_blank:,} {split} pairs has text on both sides, so nothing can be measured."
        )
    return found


def n_process(config: DataConfig, n_pair: int) -> int:
    """Number of processes that are worth their start, which takes half a second."""
    return min(config.workers or os.cpu_count() or 1, 1 + n_pair // _WORTHWHILE)


def keep_training_pairs(
    sources: Sequence[Source],
    held_out: dict[str, Texts],
    config: DataConfig,
    subwords: SubwordsConfig,
    report: DataReport,
    folder: Path,
    workers: WorkerPool,
) -> KeptPairs:
    """Read, filter and measure all training pairs; what is kept of them lies in the folder until it is removed."""
    training = [source for source in sources if source.split == "train"]
    own = [config.filters_of(source.corpus) for source in training]
    survey = report.survey = Survey(folder, sources, held_out)
    longest = most_bytes(config.max_len) + 8  # what is cut there is too long all the same
    with progress_bar("learning the ratio", min(report.n_read, MOST_LEARNT * len(training))) as bar:
        usual = [_learn_ratio(source, filters, config, bar) for source, filters in zip(training, own, strict=True)]
    report.learnt_ratios |= {
        source.src.name: ratio for source, ratio in zip(training, usual, strict=True) if ratio is not None
    }
    setup = {
        "data": config.model_dump(mode="json"),
        "subwords": subwords.model_dump(mode="json"),
        "folder": str(folder),
        "sources": [_shared(*each, config) for each in zip(training, own, usual, strict=True)],
        **survey.held_out.packed(),
        **_drawn(held_out, config),
    }
    workers.begin(setup, task_of)
    codes = _decide(training, own, config, longest, report, folder, workers)
    kept, taken = KeptPairs(training), deque[tuple[int, int, int]]()

    def tasks() -> Iterator[dict[str, Any]]:
        start = 0
        for n, block in _blocks(training, config, longest, report, quiet=codes is not None):
            taken.append((n, block["first"], block["n_pair"]))
            known = {} if codes is None else {"codes": codes[start : start + block["n_pair"]]}
            start += block["n_pair"]
            yield {**block, **known}

    n_read, n_begun = 0, 0
    with progress_bar("reading", report.n_read) as progress:
        for answer in workers.each("look", tasks()):
            found, (n_source, first, n_pair) = Looked(**answer), taken.popleft()
            for source in training[n_begun : n_source + 1]:
                survey.begin(source)
            n_begun = max(n_begun, n_source + 1)
            survey.add(found)
            kept.add(found.file, found.offset, n_source, first, found.n_kept)
            report.notes.update(found.notes)
            corpus = training[n_source].corpus
            for reason, n, shown in found.dropped:
                report.drop(reason, n, [(kept.name(n_source, number), texts) for number, *texts in shown], corpus)
            for number in found.unlike:
                report.note("unlike_items", kept.name(n_source, number))
            n_read += n_pair
            progress.update(n_pair)
    if n_read != report.n_read:
        raise _changed(report.n_read, f"{n_read:,}")
    return kept


def _drawn(held_out: dict[str, Texts], config: DataConfig) -> dict[str, Any]:
    """Return what tells pairs that are drawn from the training files for validation, and near copies of them."""
    if not config.valid_size or config.valid or VALID not in held_out:
        return {}
    return dict(zip(("drawn", "drawn_bags"), near_hashes(*held_out[VALID][:2]), strict=True))


def count_words_of(
    kept: KeptPairs, config: SubwordsConfig, seed: int, report: DataReport, workers: WorkerPool
) -> tuple[Counter[str], Counter[str]]:
    """Count each word of source and target, in a sample of the lines if there are more than are learnt from.

    Nothing is counted where the subwords are those of another folder. The survey is given what it aligns by on the way.
    """
    assert report.survey is not None
    survey, learns = report.survey, bool(not config.vocab_from or config.extend)
    chosen = _sample(kept, config.max_train_lines, seed, joint=config.joint) if learns else {}

    def tasks() -> Iterator[dict[str, Any]]:
        for n, block in enumerate(kept.blocks):
            flags = {f"{name}_chosen": flags[n] for name, flags in chosen.items()}
            unpacked = {name: np.unpackbits(bits, count=block.n_kept).astype(bool) for name, bits in flags.items()}
            what = {"file": block.file, "offset": block.offset, "rarity": survey.rarity(n), "words": learns}
            yield {**what, **unpacked}

    counts = WordCounts(), WordCounts()
    with progress_bar("counting", len(kept)) as progress:
        for block, found in zip(kept.blocks, workers.each("count", tasks()), strict=True):
            survey.add_records(found["records"])
            report.notes.update(found["notes"])
            for counted, name in zip(counts, SIDES, strict=True):
                if len(found.get(f"{name}_n", ())):
                    counted.add(found[f"{name}_words"].decode("utf-8").split("\n"), found[f"{name}_n"])
            progress.update(block.n_kept)
    return counts[0].counter(), counts[1].counter()


def _sample(kept: KeptPairs, most: int, seed: int, *, joint: bool) -> dict[str, list[NDArray[np.uint8]]]:
    """Draw the lines that are learnt from, a bit for each, by side and block; empty where it is all of them."""
    n_line = len(kept) * (2 if joint else 1)
    if n_line <= most:
        return {}
    found: dict[str, list[NDArray[np.uint8]]] = {}
    for name in SIDES:
        if name == "src" or not joint:
            draw = drawn(n_line, most, seed)
        flags = (np.fromiter(draw, bool, block.n_kept) for block in kept.blocks)
        found[name] = [np.packbits(each) for each in flags]
    return found


def _shared(source: Source, own: FilterConfig, usual: UsualRatio | None, config: DataConfig) -> dict[str, Any]:
    """Return the facts of a source that work on its blocks needs."""
    return {
        "src": str(source.src.place if isinstance(source.src.place, Path) else source.src.name),
        "trg": str(source.trg.place if isinstance(source.trg.place, Path) else source.trg.name),
        "languages": config.languages_of(source.corpus),
        "filters": own.model_dump(mode="json"),
        "usual": usual,
    }


def _blocks(
    training: Sequence[Source],
    config: DataConfig,
    longest: int,
    report: DataReport,
    *,
    quiet: bool,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """All blocks with the numbers of their sources. quiet: what is odd was noted before."""
    for n, source in enumerate(training):
        reading = _reading(source, config.bad_utf8, config.bad_records, longest, report)
        if quiet:
            reading = Reading(config.bad_utf8, config.bad_records, longest)
        for block in blocks_of(source, reading):
            yield n, {"source": n, **block}


def _decide(
    training: Sequence[Source],
    own: Sequence[FilterConfig],
    config: DataConfig,
    longest: int,
    report: DataReport,
    folder: Path,
    workers: WorkerPool,
) -> NDArray[np.uint8] | None:
    """A code for each pair, for the filters that compare a pair with all others; None if no corpus uses one.

    own: the filters of each source.
    """
    kinds = kinds_of(own)
    if not kinds:
        return None
    codes, start, n_of = np.zeros(report.n_read, np.uint8), 0, [0] * len(training)

    def tasks() -> Iterator[dict[str, Any]]:
        for n, block in _blocks(training, config, longest, report, quiet=False):
            n_of[n] += block["n_pair"]
            yield block

    with contextlib.ExitStack() as stack:
        paths = {kind: folder / f"keys.{kind}" for kind in kinds}
        files = {kind: stack.enter_context(path.open("wb")) for kind, path in paths.items()}
        progress = stack.enter_context(progress_bar("looking for duplicates", report.n_read))
        for found in workers.each("decide", tasks()):
            mine = found["codes"]
            if start + len(mine) > len(codes):
                raise _changed(len(codes), "more")
            codes[start : start + len(mine)] = mine
            start += len(mine)
            for kind, file in files.items():
                keys = np.full(len(mine), NO_KEY, np.uint64)
                keys[mine == KEPT] = found[kind]
                file.write(keys.tobytes())
            progress.update(len(mine))
    if start != len(codes):
        raise _changed(len(codes), f"{start:,}")
    keys_in = {kind: in_pieces(path) for kind, path in paths.items()}
    for reason, numbers in repeated(keys_in, own, n_of):
        codes[numbers] = CODES[reason]
    for path in paths.values():
        path.unlink()
    return codes


def _changed(before: int, after: str) -> DataError:
    return DataError(f"The training files changed while they were read: {before:,} lines, then {after}.")


def _reading(source: Source, bad_utf8: Policy, bad_records: Policy, longest: int, report: DataReport) -> Reading:
    """Return how to read a source; its oddities go to the report."""
    joined = partial(_note_joined, report, source.src.name)
    return Reading(bad_utf8, bad_records, longest, report.notes, joined)


def _note_joined(report: DataReport, name: str, number: int) -> None:
    report.note("line_feed", f"{name}:{number}")


def _learn_ratio(source: Source, filters: FilterConfig, config: DataConfig, bar: Bar) -> UsualRatio | None:
    """Learn the usual ratio of lengths of a corpus, if its filters ask for that, from the beginning of its files."""
    # What is odd is noted when the pairs are kept.
    reading = Reading(config.bad_utf8, config.bad_records, most_bytes(config.max_len) + 8)

    def shown() -> Iterator[tuple[str | None, str | None]]:
        for src, trg in source.pairs(reading):
            bar.update()
            yield (None if isinstance(src, Flaw) else src), (None if isinstance(trg, Flaw) else trg)

    return usual_ratio(shown(), filters)
