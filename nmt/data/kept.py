"""The training pairs that are kept, block by block in files; their ids; and pairs of them that are held out.

In memory is one entry for each block. What a block holds is in `block_work.py`.
"""

import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays import STEP, Ragged, mixed
from nmt.data.block_work import read_block
from nmt.data.corpus import in_batches, write_arrow
from nmt.data.filters import TOO_LONG, filters_of, most_bytes
from nmt.data.formats import Flaw, Reading
from nmt.data.manifest import SUBWORDS
from nmt.data.placeholders import tags_of
from nmt.data.report import DataReport
from nmt.data.sources import Source, Text
from nmt.data.subwords import Subwords, VocabularyUse
from nmt.data.text import SIDES, VALID, Block, Hashes
from nmt.data.units import write_cut_words
from nmt.data.worker_pool import WorkerPool
from nmt.errors import DataError
from nmt.progress import Bar
from nmt.recipe.data_options import DataConfig


class KeptBlock(NamedTuple):
    """Place of a block; the number of its source, of its first line there, and of its first kept pair among all."""

    file: str
    offset: int
    source: int
    first: int
    start: int
    n_kept: int


class KeptPairs:
    """All blocks of the training corpora, in order."""

    def __init__(self, training: Sequence[Source]) -> None:
        self._names = [source.src.name for source in training]
        self._corpora = [source.corpus for source in training]
        self._n_of_source = [0] * len(training)  # pairs of each source that are still there
        self.blocks: list[KeptBlock] = []
        self._starts: list[int] = []
        self._n_pair = 0

    def add(self, file: str, offset: int, source: int, first: int, n_kept: int) -> None:
        """Add the next block."""
        self.blocks.append(KeptBlock(file, offset, source, first, self._n_pair, n_kept))
        self._starts.append(self._n_pair)
        self._n_pair += n_kept
        self._n_of_source[source] += n_kept

    def lose(self, source: int, n: int) -> None:
        """Take pairs of a source out of the count of its corpus after all."""
        self._n_of_source[source] -= n

    def name(self, source: int, number: int) -> str:
        """A place as people write it."""
        return f"{self._names[source]}:{number}"

    def corpora(self) -> dict[int, dict[str, Any]]:
        """Return the entries of the corpora in the manifest by their numbers, in the order of their pairs."""
        found: dict[int, dict[str, Any]] = {}
        for corpus, name, n in zip(self._corpora, self._names, self._n_of_source, strict=True):
            found.setdefault(corpus, {"name": name, "n_pair": 0})["n_pair"] += n
        return found

    def corpus(self, block: KeptBlock) -> int:
        """The number of the corpus that a block is of."""
        return self._corpora[block.source]

    def __len__(self) -> int:
        return self._n_pair

    def shown(self, numbers: Iterable[int]) -> dict[int, tuple[str, str, str]]:
        """The place, source and target of some pairs, by their numbers from 0."""
        found = {}
        for number in sorted(set(numbers)):
            block = self.blocks[bisect.bisect_right(self._starts, number) - 1]
            content, n = read_block(block.file, block.offset), number - block.start
            place = self.name(block.source, block.first + content.place(n))
            found[number] = place, content.src.texts()[n], content.trg.texts()[n]
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
    tags = [subwords.src.tag_ids(tags_of(corpus, config)) for corpus in config.train] or [[]]
    use = report.vocabulary = VocabularyUse(subwords, (config.src_lang, config.trg_lang))
    cut_words: list[str | None] = []
    for name, codec in subwords.by_side().items():
        if codec.cut_words:
            write_cut_words(folder / f"words.{name}", codec.cut_words)
        cut_words.append(str(folder / f"words.{name}") if codec.cut_words else None)
    shared = {"subwords": str(folder / SUBWORDS), "cut_words": cut_words}

    def tasks() -> Iterator[dict[str, Any]]:
        for block in kept.blocks:
            yield {"file": block.file, "offset": block.offset, "before": tags[kept.corpus(block)], **shared}

    def rows() -> Iterator[tuple[Ragged, Ragged]]:
        with progress_bar("encoding", len(kept)) as progress:
            for block, found in zip(kept.blocks, workers.each("encode", tasks()), strict=True):
                if n := len(found["too_long"]):
                    places = [(kept.name(block.source, block.first + at), texts) for at, *texts in found["too_long"]]
                    report.drop(TOO_LONG, n, places, kept.corpus(block))
                    kept.lose(block.source, n)
                for name in SIDES:
                    use.add(name, found[f"{name}_n_word"], found[f"{name}_n_char"], found[f"{name}_counts"])
                src, trg = (Ragged(found[f"{name}_values"], found[f"{name}_lengths"]) for name in SIDES)
                yield src.some(found["fits"]), trg.some(found["fits"])
                progress.update(block.n_kept)

    report.n_kept = write_arrow(folder / "train.arrow", in_batches(rows(), N_ROW), subwords)
    for path in filter(None, cut_words):
        Path(path).unlink()
    corpora = []
    for n, each in kept.corpora().items():
        usual = report.learnt_ratios.get(each["name"])
        about = {"trg_lang": config.languages_of(n)[1], "usual_ratio": usual.median if usual else None}
        corpora.append({**each, **about})
    return corpora


# A line of a validation or test file is kept whole whatever it is, but this is no line of text.
LONGEST_KEPT = 1 << 20


def reading_of(source: Source, data: DataConfig | None, report: DataReport | None) -> Reading:
    """Return the policy of reading a source, of a training one by its options; its oddities go to the report."""

    def joined(number: int) -> None:
        if report is not None:
            report.note("line_feed", f"{source.src.name}:{number}")

    notes = Counter[str]() if report is None else report.notes
    if data is None:
        return Reading("refuse", "refuse", LONGEST_KEPT, notes, joined)
    # What is cut there is too long all the same.
    return Reading(data.bad_utf8, data.bad_records, most_bytes(data.max_len) + 8, notes, joined)


def texts_of(source: Source, data: DataConfig) -> Iterator[tuple[str, str]]:
    """All pairs of a training source, empty ones for those that are no text; what is odd is noted elsewhere."""
    for src, trg in source.pairs(reading_of(source, data, None)):
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
    training = [source for source in sources if source.split == "train"]
    candidates, n_pair = _candidates(training, data)
    wanted = n_to_hold_out(data.valid_size, n_pair)
    filters = [filters_of(data.filters_of(n), data.max_len, data.languages_of(n), None) for n in range(len(data.train))]
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
    src = Text(f"{name}, source", tuple(one.src for one in chosen))
    trg = Text(f"{name}, target", tuple(one.trg for one in chosen))
    return [*sources, Source(VALID, src, trg)]


def near_hashes(src: Sequence[str], trg: Sequence[str]) -> tuple[Hashes, Hashes]:
    """Return keys of near copies of pairs, in ascending order: hashes of their sides, and the sums of their letters,
    of which one is to be there before a line is hashed."""
    blocks = Block(src), Block(trg)
    hashes = [near[length > 0] for near, _, length, _ in (block.near() for block in blocks)]
    return np.unique(np.concatenate(hashes)), np.unique(np.concatenate([block.bags() for block in blocks]))


def _candidates(training: Sequence[Source], data: DataConfig) -> tuple[list[_Candidate], int]:
    """Pairs by ascending hashes, some more than are wanted, and how many there are in all."""
    best: list[_Candidate] = []
    n_pair = 0
    for source in training:
        pairs = texts_of(source, data)
        while block := list(islice(pairs, N_ROW)):
            src, trg = zip(*block, strict=True)
            n_pair += len(src)
            (of_src, _, n_src, _), (of_trg, _, n_trg, _) = (Block(side).near() for side in (src, trg))
            rank = mixed(of_src * np.uint64(STEP))
            rank[(n_src == 0) | (n_trg == 0)] = np.iinfo(np.uint64).max
            n = min(len(src), _SPARE * max(1, n_to_hold_out(data.valid_size or 0, n_pair)))
            first: NDArray[np.int64] = np.argsort(rank, kind="stable")[:n]
            best += [
                _Candidate(int(rank[k]), (int(of_src[k]), int(of_trg[k])), src[k], trg[k], source.corpus)
                for k in first.tolist()
            ]
            best = sorted(best)[: _SPARE * max(1, n_to_hold_out(data.valid_size or 0, n_pair))]
    return best, n_pair
