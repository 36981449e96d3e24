"""From the sources to the pairs that are kept: training pairs that pass the filters, in blocks; the lines of the
validation and test files, all of them. And then how often their words occur.

The work on blocks is done by `block_work.py`; here it is handed out, and put together in order. What is dropped is
counted with file and line. Nothing is encoded here.
"""

import bisect
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays import STEP, Ragged, mixed
from nmt.data.block_work import Setup, Task, TextBlock, read_block
from nmt.data.corpus import in_batches, write_arrow
from nmt.data.dedup import keys_for, repeated
from nmt.data.filters import CODES, LOW_SCORE, TOO_LONG, CorpusFacts, filters_of, most_bytes, oddities, usual_ratio
from nmt.data.formats import Flaw, Found, Policy, Reading
from nmt.data.letters import add_counts, drawn
from nmt.data.manifest import SUBWORDS
from nmt.data.report import DataReport
from nmt.data.sources import Source, Text
from nmt.data.subwords import Subwords, VocabularyUse
from nmt.data.survey import KeptBlock, Survey, Texts
from nmt.data.text import SIDES, VALID, Block
from nmt.data.worker_pool import WorkerPool
from nmt.errors import DataError
from nmt.progress import Bar
from nmt.recipe.data_options import DataConfig, SubwordsConfig


class KeptPairs:
    """The training pairs that are kept: the blocks of all corpora, in order, in files."""

    def __init__(self, training: Sequence[Source]) -> None:
        self.training = training
        self.n_of_source = [0] * len(training)  # pairs of each source that are still there
        self.blocks: list[KeptBlock] = []
        self._n_pair = 0

    def add(self, block: KeptBlock) -> None:
        """Add the next block."""
        self.blocks.append(block._replace(start=self._n_pair))
        self._n_pair += block.n_kept
        self.n_of_source[block.source] += block.n_kept

    def name(self, source: int, number: int) -> str:
        """A place as people write it."""
        return f"{self.training[source].src.name}:{number}"

    def __len__(self) -> int:
        return self._n_pair

    def shown(self, numbers: Iterable[int]) -> dict[int, tuple[str, str, str]]:
        """The place, source and target of some pairs, by their numbers from 0."""
        found = {}
        for number in sorted(set(numbers)):
            block = self.blocks[bisect.bisect_right(self.blocks, number, key=lambda block: block.start) - 1]
            content, n = read_block(block), number - block.start
            place = self.name(block.source, block.first + int(np.flatnonzero(content.kept)[n]))
            src, trg = (side.texts()[n] for side in content.sides)
            found[number] = place, src, trg
        return found

    def remove(self) -> None:
        """Delete the files."""
        for file in {block.file for block in self.blocks}:
            Path(file).unlink()


N_ROW = 10_000  # rows of a record batch


def encode_training_pairs(
    config: DataConfig, subwords: Subwords, kept: KeptPairs, report: DataReport, folder: Path, workers: WorkerPool
) -> list[dict[str, Any]]:
    """Write train.arrow without the pairs that turn out too long; return the corpora for the manifest."""
    tags = [subwords.src.tag_ids(config.tags_of(corpus)) for corpus in config.train]
    use = report.vocabulary = VocabularyUse(subwords, (config.src_lang, config.trg_lang))
    tasks = ((block, tags[kept.training[block.source].corpus], folder / SUBWORDS) for block in kept.blocks)

    def rows() -> Iterator[tuple[Ragged, Ragged]]:
        with progress_bar("encoding", len(kept)) as progress:
            for block, found in zip(kept.blocks, workers.each("encode", tasks), strict=True):
                if n := int((~found.fits).sum()):
                    places = [(kept.name(block.source, block.first + at), texts) for at, texts in found.too_long]
                    report.drop(TOO_LONG, n, places, kept.training[block.source].corpus)
                    kept.n_of_source[block.source] -= n
                for name, side in zip(SIDES, found.sides, strict=True):
                    use.add(name, side.n_word, side.n_char, side.counts)
                src, trg = (side.rows.some(found.fits) for side in found.sides)
                yield src, trg
                progress.update(block.n_kept)

    report.n_kept = write_arrow(folder / "train.arrow", in_batches(rows(), N_ROW), subwords)
    corpora: dict[int, dict[str, Any]] = {}
    for source, n_pair in zip(kept.training, kept.n_of_source, strict=True):
        usual = report.learnt_ratios.get((source.corpus, source.src.name))
        about = {"trg_lang": config.languages_of(source.corpus)[1], "usual_ratio": usual.median if usual else None}
        each = corpora.setdefault(source.corpus, {"name": source.src.name, "n_pair": 0, **about})
        each["n_pair"] += n_pair
    # A corpus that is not translated yet has no source: the others are counted without it.
    report.dropped = {n: report.dropped.get(corpus, Counter()) for n, corpus in enumerate(corpora)}
    return [*corpora.values()]


# A line of a validation or test file is kept whole whatever it is, but this is no line of text.
LONGEST_KEPT = 1 << 20


def reading_of(source: Source, data: DataConfig | None, report: DataReport) -> Reading:
    """Return the policy of reading a source, of a training one by its options; its oddities go to the report."""
    policy: tuple[Policy, Policy, int] = ("refuse", "refuse", LONGEST_KEPT)
    if data:  # what is cut there is too long all the same
        policy = data.bad_utf8, data.bad_records, most_bytes(data.max_len) + 8
    return Reading(*policy, report.notes, lambda number: report.note("line_feed", f"{source.src.name}:{number}"))


def texts_of(source: Source, data: DataConfig) -> Iterator[tuple[str, str]]:
    """The pairs of a training source without low scores, empty ones for flaws; what is odd is noted elsewhere."""
    pairs = source.pairs(reading_of(source, data, DataReport()))
    for src, trg in compress(pairs, chain(~source.is_low, repeat(True))):
        yield ("", "") if isinstance(src, Flaw) or isinstance(trg, Flaw) else (src, trg)


def progress_bar(what: str, total: int) -> Bar:
    """A progress bar that counts pairs."""
    return Bar(total=total, desc=what, unit=" pairs", unit_scale=True)


# Validation pairs that are drawn from the training files, where there are none of their own.
AUTO_SHARE, AUTO_LEAST, AUTO_MOST = 0.01, 200, 2000
_LARGEST_SHARE = 0.2  # of the training pairs, whatever is asked for
_SPARE = 3  # as many candidates as pairs: some are dropped by the filters


class _Candidate(NamedTuple):
    rank: int
    near: tuple[int, int]
    src: str
    trg: str
    corpus: int


def n_to_hold_out(size: float | str, n_pair: int) -> int:
    """Return how many pairs are held out of so many."""
    most = int(_LARGEST_SHARE * n_pair)
    if isinstance(size, str):
        return min(most, max(AUTO_LEAST, min(AUTO_MOST, round(AUTO_SHARE * n_pair))))
    return min(most, round(size * n_pair) if size < 1 else int(size))


def with_held_out(sources: Sequence[Source], data: DataConfig) -> list[Source]:
    """The sources, with one more for validation: texts drawn from the training files."""
    assert data.valid_size is not None
    candidates, n_pair = list[_Candidate](), 0  # by ascending hashes, some more than are wanted
    made = [n for n, corpus in enumerate(data.train) if corpus.translated_by]
    for source in (source for source in sources if source.split == "train" and source.corpus not in made):
        for block in cut_blocks(texts_of(source, data)):
            src, trg = zip(*block, strict=True)
            n_pair += len(src)
            most = _SPARE * max(1, n_to_hold_out(data.valid_size, n_pair))
            (of_src, _, n_src, _), (of_trg, _, n_trg, _) = (Block(side).near() for side in (src, trg))
            rank = mixed(of_src * np.uint64(STEP))
            rank[(n_src == 0) | (n_trg == 0)] = np.iinfo(np.uint64).max
            candidates += [
                _Candidate(int(rank[k]), (int(of_src[k]), int(of_trg[k])), src[k], trg[k], source.corpus)
                for k in np.argsort(rank, kind="stable")[:most].tolist()
            ]
            candidates = sorted(candidates)[:most]
    wanted = n_to_hold_out(data.valid_size, n_pair)
    corpora = (CorpusFacts(data.filters_of(n), data.max_len, data.languages_of(n)) for n in range(len(data.train)))
    filters = list(map(filters_of, corpora))
    taken: set[int] = set()
    chosen: list[_Candidate] = []
    for one in candidates:
        if len(chosen) == wanted:
            break
        is_new = taken.isdisjoint(one.near)
        if is_new and not any(drops(one.src, one.trg) for _, drops in filters[one.corpus]):
            taken.update(one.near)
            chosen.append(one)
    if not chosen:
        raise DataError(
            f"no pair can be held out for validation: {n_pair:,} training pairs are too few, or the filters drop all. "
            "Name validation files: --valid, or data.valid."
        )
    name = f"{len(chosen):,} pairs held out of training"
    texts = {side: tuple(getattr(one, side) for one in chosen) for side in SIDES}
    return [*sources, Source(VALID, Text(f"{name}, source", texts["src"]), Text(f"{name}, target", texts["trg"]))]


N_PAIR = 10_000  # of a block, by which the work on a corpus is shared out
_MOST_CHARACTERS = 1 << 22  # of a side of a block, or a few more: blocks of long lines have fewer pairs
_WORTHWHILE = 2 * N_PAIR  # pairs for which it pays to start a process


def cut_blocks(pairs: Iterator[tuple[Found, Found]]) -> Iterator[list[tuple[Found, Found]]]:
    """Cut pairs into blocks."""
    block, n_char = list[tuple[Found, Found]](), 0
    while some := list(islice(pairs, min(100, N_PAIR - len(block)))):
        block += some
        n_char += max(sum(map(len, side)) for side in zip(*some, strict=True))
        if len(block) == N_PAIR or n_char >= _MOST_CHARACTERS:
            yield block
            block, n_char = [], 0
    if block:
        yield block


def blocks_of(training: Sequence[Source], config: DataConfig, report: DataReport) -> Iterator[TextBlock]:
    """Cut training sources into blocks. report: of what is odd."""
    for n_source, source in enumerate(training):
        first = source.first_number
        for block in cut_blocks(source.pairs(reading_of(source, config, report))):
            is_low = source.is_low[first - source.first_number :][: len(block)]
            flaws = dict.fromkeys(np.flatnonzero(is_low).tolist(), LOW_SCORE)
            for n, (one, other) in enumerate(block):
                if isinstance(one, Flaw) or isinstance(other, Flaw):
                    flaws[n] = one.reason if isinstance(one, Flaw) else cast(Flaw, other).reason
                    block[n] = ("", "")
            src, trg = ("\n".join([*side, ""]).encode("utf-8") for side in zip(*block, strict=True))
            yield TextBlock(n_source, first, len(block), src, trg, flaws)
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
    if sys.platform == "win32":
        return 1  # others need a descriptor that is handed on
    return min(config.workers or os.cpu_count() or 1, 1 + n_pair // _WORTHWHILE)


def keep_training_pairs(
    sources: Sequence[Source],
    held_out: dict[str, Texts],
    config: DataConfig,
    subwords: SubwordsConfig,
    report: DataReport,
    folder: Path,
    workers: WorkerPool,
) -> tuple[KeptPairs, Survey]:
    """Read, filter and measure all training pairs; what is kept of them lies in the folder until it is removed."""
    training = [source for source in sources if source.split == "train"]
    survey, setups = Survey(folder, sources, held_out), list[CorpusFacts]()
    for source in training:
        filters = config.filters_of(source.corpus)
        usual = usual_ratio(texts_of(source, config), filters.max_ratio)
        if usual is not None:
            report.learnt_ratios[source.corpus, source.src.name] = usual
        setups.append(CorpusFacts(filters, config.max_len, config.languages_of(source.corpus), usual))
    drawn = None
    if config.valid_size and not config.valid:
        blocks = Block(held_out[VALID].src), Block(held_out[VALID].trg)
        hashes = [near[length > 0] for near, _, length, _ in (block.near() for block in blocks)]
        drawn = np.unique(np.concatenate(hashes)), np.unique(np.concatenate([block.bags() for block in blocks]))
    workers.begin(Task, Setup(config, subwords, folder, setups, survey.held_out, drawn))
    codes = _decide(training, config, report, folder, workers)
    kept = KeptPairs(training)

    def tasks() -> Iterator[tuple[TextBlock, NDArray[np.uint8] | None]]:
        start = 0
        for block in blocks_of(training, config, report if codes is None else DataReport()):  # or noted
            yield block, None if codes is None else codes[start : start + block.n_pair]
            start += block.n_pair

    n_read = 0
    with progress_bar("reading", report.n_read) as progress:
        for found in workers.each("look", tasks()):
            survey.add(found)
            kept.add(found.block)
            report.notes.update(found.notes)
            source = found.block.source
            for reason, n, first in found.dropped:
                places = [(kept.name(source, number), texts) for number, texts in first]
                report.drop(reason, n, places, kept.training[source].corpus)
            for number in found.unlike:
                report.note("unlike_items", kept.name(source, number))
            n_read += found.n_pair
            progress.update(found.n_pair)
    if n_read != report.n_read:
        raise _changed(report.n_read, n_read)
    return kept, survey


# Sampling lines for BPE has a seed of its own: another seed of training is no reason for another vocabulary.
_SAMPLE_SEED = 0


def count_words_of(
    kept: KeptPairs, config: SubwordsConfig, report: DataReport, workers: WorkerPool
) -> tuple[Counter[str], Counter[str]]:
    """Count each word of source and target, in a sample of the lines if there are more than are learnt from.

    Nothing is counted where the subwords are those of another folder.
    """
    if config.vocab_from and not config.extend:
        return Counter(), Counter()
    chosen = _sample(kept, config.max_train_lines, joint=config.joint)

    def tasks() -> Iterator[tuple[KeptBlock, list[NDArray[np.bool_]]]]:
        for n, block in enumerate(kept.blocks):
            everything = np.ones(block.n_kept, bool)
            lines = [np.unpackbits(bits[n], count=block.n_kept).astype(bool) for bits in chosen] or [everything] * 2
            yield block, lines

    counts = Counter[str](), Counter[str]()
    with progress_bar("counting", len(kept)) as progress:
        for block, (of_sides, notes) in zip(kept.blocks, workers.each("count", tasks()), strict=True):
            report.notes.update(notes)
            for counted, (words, times) in zip(counts, of_sides, strict=True):
                add_counts(counted, words, times)
            progress.update(block.n_kept)
    return counts


def _sample(kept: KeptPairs, most: int, *, joint: bool) -> list[list[NDArray[np.uint8]]]:
    """Draw the lines that are learnt from, a bit for each, by side and block; empty where it is all of them."""
    n_line = len(kept) * (2 if joint else 1)
    if n_line <= most:
        return []
    draw = drawn(n_line, most, _SAMPLE_SEED)
    draws = draw, draw if joint else drawn(n_line, most, _SAMPLE_SEED)
    return [[np.packbits(np.fromiter(draw, bool, block.n_kept)) for block in kept.blocks] for draw in draws]


def _decide(
    training: Sequence[Source], config: DataConfig, report: DataReport, folder: Path, workers: WorkerPool
) -> NDArray[np.uint8] | None:
    """A code for each pair, for the filters that compare a pair with all others; None if no corpus uses one."""
    own = [config.filters_of(source.corpus) for source in training]
    if not (dtype := keys_for(own)).names:
        return None
    parts, n_of = list[NDArray[np.uint8]](), [0] * len(training)

    def tasks() -> Iterator[tuple[TextBlock]]:
        for block in blocks_of(training, config, report):
            n_of[block.source] += block.n_pair
            yield (block,)

    path = folder / "keys"
    with path.open("wb") as file, progress_bar("looking for duplicates", report.n_read) as progress:
        for part, keys in workers.each("decide", tasks()):
            parts.append(part)
            file.write(keys.tobytes())
            progress.update(len(part))
    codes = np.concatenate([np.empty(0, np.uint8), *parts])
    if len(codes) != report.n_read:
        raise _changed(report.n_read, len(codes))
    for reason, numbers in repeated(np.memmap(path, dtype, "r"), own, n_of):
        codes[numbers] = CODES[reason]
    path.unlink()
    return codes


def _changed(before: int, after: int) -> DataError:
    return DataError(f"The training files changed while they were read: {before:,} lines, then {after:,}.")
