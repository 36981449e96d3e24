"""Rows of ids of the kept training pairs in train.arrow: encoded, or copied from a folder that has them.

Encoded or copied, the bytes are the same, and so is what the report and the manifest say of them. A row follows from
the text of its pair, the subwords, the tags of its corpus and the longest side that is kept. The manifest has a digest
of all that for each corpus, `made_of`; the rows of corpora lie one after the other, so their `n_pair` tell where each
begins. In memory are, for each pair of such a folder, its two lengths of four bytes.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays import Ragged
from nmt.data.corpus import Corpus, Prepared, dtype_of_ids, in_batches, write_arrow
from nmt.data.dedup import N_SHOWN
from nmt.data.filters import TOO_LONG
from nmt.data.keep import progress_bar
from nmt.data.kept import KeptBlock, KeptPairs
from nmt.data.manifest import HASHED_BYTES, SUBWORDS, read_manifest
from nmt.data.report import DataReport
from nmt.data.subwords import Subwords, VocabularyUse
from nmt.data.tags import tags_of
from nmt.data.text import SIDES
from nmt.data.units import write_cut_words
from nmt.data.worker_pool import WorkerPool
from nmt.errors import DataError
from nmt.files import sha256_of
from nmt.recipe.data_options import DataConfig
from nmt.recipe.places import MANIFEST

# Rows of a record batch.
BLOCK = 10_000
# Another number, and what was encoded before is encoded anew.
_VERSION = 1

Part = tuple[Ragged, Ragged]  # both sides of some pairs


class RowFacts(NamedTuple):
    """Facts of the rows of a corpus, as the manifest has them.

    too_long: of the pairs that were dropped as too long the first few, by their numbers among the kept pairs of the
    corpus. n_word, n_char: of source and target, in the pairs that have rows.
    """

    made_of: str
    n_too_long: int
    too_long: list[int]
    n_word: list[int]
    n_char: list[int]


class Taken(NamedTuple):
    """Rows that a folder has, from `start` to `stop`."""

    corpus: Corpus
    start: int
    stop: int
    facts: RowFacts

    @property
    def folder(self) -> Path:
        """The folder that has the rows."""
        return self.corpus.path.parent

    def rows(self, n: int) -> Iterator[tuple[Ragged, Ragged]]:
        """Both sides, n rows at a time."""
        for start in range(self.start, self.stop, n):
            yield self.corpus.rows(start, min(self.stop, start + n))


def encode_training_pairs(
    config: DataConfig,
    subwords: Subwords,
    kept: KeptPairs,
    report: DataReport,
    folder: Path,
    workers: WorkerPool,
    known: Iterable[Path],
    talk: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Write train.arrow without the pairs that turn out too long; return the corpora for the manifest.

    known: folders where pairs may have been encoded before. talk: is told of which corpora the rows are from there.
    """
    digests = kept.digests()
    tags = {n: subwords.src.tag_ids(tags_of(corpus, config)) for n, corpus in enumerate(config.train)}
    sums = {
        n: _Sum(made_of(subwords, config.max_len, tags.get(n, []), digest), n, kept, report)
        for n, digest in digests.items()
    }
    taken = taken_over({each.made_of for each in sums.values()}, known, talk)
    use = report.vocabulary = VocabularyUse(subwords, (config.src_lang, config.trg_lang))
    cut_words = list(_write_cut_words(subwords, folder))

    def tasks() -> Iterator[dict[str, Any]]:
        for block in kept.blocks:
            if sums[kept.corpus(block)].made_of not in taken:
                yield {
                    "file": block.file,
                    "offset": block.offset,
                    "subwords": str(folder / SUBWORDS),
                    "cut_words": [str(path) if path else None for path in cut_words],
                    "before": tags.get(kept.corpus(block), []),
                }

    def parts() -> Iterator[Part]:
        answers = workers.each("encode", tasks())
        with progress_bar("encoding", len(kept)) as progress:
            for n, blocks in itertools.groupby(kept.blocks, kept.corpus):
                there, here = taken.get(sums[n].made_of), sums[n]
                if there is not None:
                    yield from here.copied(there, list(blocks), use)
                    progress.update(there.stop - there.start)
                else:
                    for block in blocks:
                        yield here.encoded(block, next(answers), use)
                        progress.update(block.n_kept)
            assert next(answers, None) is None, "as many answers as tasks"

    report.n_kept = write_arrow(folder / "train.arrow", in_batches(parts(), BLOCK), subwords)
    for path in filter(None, cut_words):
        path.unlink()
    corpora = []
    for (n, each), told in zip(sums.items(), kept.corpora(), strict=True):
        usual = report.learnt_ratios.get(told["name"])
        about = {"trg_lang": config.languages_of(n)[1], "usual_ratio": usual.median if usual else None}
        corpora.append({**told, **about, "rows": each.facts()._asdict()})
        if told["n_pair"] and each.made_of in taken:
            talk(
                f"{told['name']}: the rows of {told['n_pair']:,} pairs are taken over from {taken[each.made_of].folder}"
            )
    return corpora


class _Sum:
    """Sums over the rows of a corpus."""

    def __init__(self, made_of_what: str, corpus: int, kept: KeptPairs, report: DataReport) -> None:
        self.made_of, self._corpus, self._kept, self._report = made_of_what, corpus, kept, report
        self._n_pair = self._n_too_long = 0
        self._too_long: list[int] = []
        self._n_word, self._n_char = [0, 0], [0, 0]

    def encoded(self, block: KeptBlock, found: Mapping[str, Any], use: VocabularyUse) -> Part:
        """The rows of a block, as a worker encoded it."""
        if found["too_long"]:
            places = [(self._kept.name(block.source, block.first + n), texts) for n, *texts in found["too_long"]]
            self._drop(block.source, len(places), places)
            numbers = np.flatnonzero(~found["fits"])[: N_SHOWN - len(self._too_long)]
            self._too_long += (self._n_pair + numbers).tolist()
        self._n_pair += block.n_kept
        for side, name in enumerate(SIDES):
            self._add(side, found[f"{name}_n_word"], found[f"{name}_n_char"], found[f"{name}_counts"], use)
        src, trg = (Ragged(found[f"{name}_values"], found[f"{name}_lengths"]).some(found["fits"]) for name in SIDES)
        return src, trg

    def copied(self, there: Taken, blocks: list[KeptBlock], use: VocabularyUse) -> Iterator[Part]:
        """All rows of the corpus, which lie in another folder."""
        facts = there.facts
        if facts.n_too_long:
            places = [self._kept.learnt_line(blocks, n) for n in facts.too_long]
            self._drop(blocks[0].source, facts.n_too_long, places)
            self._too_long = facts.too_long
        n_word, n_char = facts.n_word, facts.n_char
        for rows in there.rows(BLOCK):
            for side, ids in enumerate(rows):
                self._add(side, n_word[side], n_char[side], np.bincount(ids.values, minlength=use.sizes[side]), use)
            n_word = n_char = [0, 0]  # they are of all rows
            yield rows

    def facts(self) -> RowFacts:
        """Return the facts of the rows for the manifest."""
        return RowFacts(self.made_of, self._n_too_long, self._too_long, self._n_word, self._n_char)

    def _drop(self, source: int, n: int, places: Any) -> None:
        self._n_too_long += n
        self._report.drop(TOO_LONG, n, places, self._corpus)
        self._kept.lose(source, n)

    def _add(self, side: int, n_word: int, n_char: int, counts: NDArray[Any], use: VocabularyUse) -> None:
        self._n_word[side] += n_word
        self._n_char[side] += n_char
        use.add(SIDES[side], n_word, n_char, counts)


def _write_cut_words(subwords: Subwords, folder: Path) -> Iterator[Path | None]:
    """Write how words of each vocabulary are cut, where that is known, in a file each."""
    for name, codec in subwords.by_side().items():
        if codec.cut_words:
            write_cut_words(folder / f"words.{name}", codec.cut_words)
        yield folder / f"words.{name}" if codec.cut_words else None


def made_of(subwords: Subwords, max_len: int, tags: Sequence[int], text_digest: str) -> str:
    """The digest of all that the rows of a corpus follow from. tags: ids that every source begins with.

    Tags come after all pieces, so those of other corpora have no say, unless ids get longer by them.
    """
    pieces = subwords.sha256_of_pieces() if dtype_of_ids(subwords).itemsize == 2 else subwords.sha256
    told = [_VERSION, metadata.version("tokenizers"), pieces, max_len, list(tags), text_digest]
    return hashlib.sha256(json.dumps(told).encode("utf-8")).hexdigest()


def taken_over(wanted: Collection[str], folders: Iterable[Path], talk: Callable[[str], None]) -> dict[str, Taken]:
    """The rows that one folder or another has, by what they are made of. talk: is told of a folder that is damaged."""
    found: dict[str, Taken] = {}
    for folder in folders:
        try:
            known = [facts for each in _corpora(folder) if (facts := _facts(each))]
            if any(facts.made_of in wanted and facts.made_of not in found for facts in known):
                found = {**_rows_of(folder, wanted), **found}
        except DataError as error:
            talk(f"{folder}: no rows are taken over from there: {error}")
    return found


def _corpora(folder: Path) -> list[dict[str, Any]]:
    try:
        corpora: list[dict[str, Any]] = read_manifest(folder)["corpora"] if (folder / MANIFEST).is_file() else []
    except DataError:
        return []  # nothing of ours, or of another version: whoever needs the folder itself will say so
    return corpora


def _rows_of(folder: Path, wanted: Collection[str]) -> dict[str, Taken]:
    prepared = Prepared.open(folder)
    told = prepared.manifest["files"][prepared.train.path.name]
    if told["size"] > HASHED_BYTES and sha256_of(prepared.train.path) != told["sha256"]:
        raise DataError(f"{prepared.train.path}: its bytes are not those that were written (SHA-256 differs).")
    found, start = dict[str, Taken](), 0
    for each in prepared.manifest["corpora"]:
        stop, facts = start + each["n_pair"], _facts(each)
        if facts and facts.made_of in wanted:
            found[facts.made_of] = Taken(prepared.train, start, stop, facts)
        start = stop
    return found


def _facts(corpus: dict[str, Any]) -> RowFacts | None:
    """Return the facts of the rows of a corpus from a manifest; None if the manifest is too old to have them."""
    told = corpus.get("rows")
    return RowFacts(**told) if isinstance(told, dict) and set(told) == set(RowFacts._fields) else None
