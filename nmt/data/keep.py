"""From the sources to the pairs that are kept: training pairs that pass the filters, in blocks; the lines of the
validation and test files, all of them. And then how often their words occur.

The work on blocks is done by `block_work.py`; here it is handed out, and put together in order. What is dropped is
counted with file and line. Nothing is encoded here.
"""

import contextlib
import itertools
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from nmt.data.block_work import task_of
from nmt.data.dedup import NO_KEY, kinds_of, repeated
from nmt.data.filters import CODES, KEPT, MOST_LEARNT, oddities, usual_ratio
from nmt.data.formats import Flaw
from nmt.data.kept import LONGEST_KEPT, KeptPairs, near_hashes, progress_bar, reading_of, texts_of
from nmt.data.letters import WordCounts, drawn
from nmt.data.report import DataReport
from nmt.data.sources import Source
from nmt.data.survey import Looked, Survey, Texts
from nmt.data.text import SIDES, VALID
from nmt.data.worker_pool import WorkerPool
from nmt.errors import DataError
from nmt.recipe.data_options import DataConfig, FilterConfig, SubwordsConfig

N_PAIR = 10_000  # of a block, by which the work on a corpus is shared out
_WORTHWHILE = 2 * N_PAIR  # pairs for which it pays to start a process


def blocks_of(
    training: Sequence[Source], config: DataConfig, report: DataReport | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Cut training sources into blocks, each with the number of its source: `first`, the number of its first line;
    `n_pair`; the text of both sides, each line ended by a line feed; and `flaws`, places and reasons of pairs that are
    no text, whose lines are empty. report: of what is odd.
    """
    for n_source, source in enumerate(training):
        pairs, first = source.pairs(reading_of(source, config, report)), source.first_number
        while block := list(itertools.islice(pairs, N_PAIR)):
            flaws = []
            for n, pair in enumerate(block):
                if flaw := next((found for found in pair if isinstance(found, Flaw)), None):
                    flaws.append((n, flaw.reason))
                    block[n] = ("", "")
            sides = ("\n".join([*cast(Iterable[str], side), ""]).encode("utf-8") for side in zip(*block, strict=True))
            found = dict(zip(SIDES, sides, strict=True))
            yield n_source, {"source": n_source, "first": first, "n_pair": len(block), "flaws": flaws, **found}
            first += len(block)


def read_held_out(sources: Sequence[Source], split: str, report: DataReport) -> Texts:
    """All lines of the validation or test files, as they stand. Raises DataError where no pair of them has text."""
    found, n_blank = Texts([], [], []), 0
    mine = [source for source in sources if source.split == split]
    for source in mine:
        reading = reading_of(source, None, report)
        for number, pair in enumerate(source.pairs(reading), start=source.first_number):
            if any(isinstance(line, str) and not line.strip() for line in pair):
                n_blank += 1
                report.note("blank", f"{source.src.name}:{number}")
            for text, line, lines in zip((source.src, source.trg), pair, (found.src, found.trg), strict=True):
                if isinstance(line, Flaw) or len(line.encode("utf-8")) > LONGEST_KEPT - 8:
                    raise DataError(
                        f"{text.name}:{number}: a {split} line of over {LONGEST_KEPT:,} bytes. Lines of {split} files "
                        "are never dropped: look for missing line feeds in the file."
                    )
                report.notes.update(oddities(line))
                lines.append(line)
        found.ends.append(len(found.src))
    if n_blank and n_blank == len(found.src):
        names = ", ".join(source.src.name for source in mine)
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
    with progress_bar("learning the ratio", min(report.n_read, MOST_LEARNT * len(training))) as bar:
        usual = [
            usual_ratio((pair for pair in texts_of(source, config) if not bar.update()), filters)
            for source, filters in zip(training, own, strict=True)
        ]
    report.learnt_ratios |= {
        source.src.name: ratio for source, ratio in zip(training, usual, strict=True) if ratio is not None
    }
    setup = {
        "data": config.model_dump(mode="json"),
        "subwords": subwords.model_dump(mode="json"),
        "folder": str(folder),
        "sources": [
            {
                "languages": config.languages_of(source.corpus),
                "filters": filters.model_dump(mode="json"),
                "usual": ratio,
            }
            for source, filters, ratio in zip(training, own, usual, strict=True)
        ],
        **survey.held_out.packed(),
    }
    if config.valid_size and not config.valid and VALID in held_out:
        setup |= dict(zip(("drawn", "drawn_bags"), near_hashes(*held_out[VALID][:2]), strict=True))
    workers.begin(setup, task_of)
    codes = _decide(training, own, config, report, folder, workers)
    kept, taken = KeptPairs(training), deque[tuple[int, int, int]]()

    def tasks() -> Iterator[dict[str, Any]]:
        start = 0
        for n, block in blocks_of(training, config, report if codes is None else None):  # or it was noted before
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
        raise _changed(report.n_read, n_read)
    return kept


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


def _decide(
    training: Sequence[Source],
    own: Sequence[FilterConfig],
    config: DataConfig,
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
    parts, n_of = list[NDArray[np.uint8]](), [0] * len(training)

    def tasks() -> Iterator[dict[str, Any]]:
        for n, block in blocks_of(training, config, report):
            n_of[n] += block["n_pair"]
            yield block

    paths = {kind: folder / f"keys.{kind}" for kind in kinds}
    with contextlib.ExitStack() as stack:
        files = {kind: stack.enter_context(path.open("wb")) for kind, path in paths.items()}
        progress = stack.enter_context(progress_bar("looking for duplicates", report.n_read))
        for found in workers.each("decide", tasks()):
            parts.append(found["codes"])
            for kind, file in files.items():
                keys = np.full(len(parts[-1]), NO_KEY, np.uint64)
                keys[parts[-1] == KEPT] = found[kind]
                file.write(keys.tobytes())
            progress.update(len(parts[-1]))
    codes = np.concatenate([np.empty(0, np.uint8), *parts])
    if len(codes) != report.n_read:
        raise _changed(report.n_read, len(codes))
    stored = {kind: np.memmap(path, np.uint64, "r") for kind, path in paths.items() if len(codes)}
    for reason, numbers in repeated(stored, own, n_of):
        codes[numbers] = CODES[reason]
    for path in paths.values():
        path.unlink()
    return codes


def _changed(before: int, after: int) -> DataError:
    return DataError(f"The training files changed while they were read: {before:,} lines, then {after:,}.")
