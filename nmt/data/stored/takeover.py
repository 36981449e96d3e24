"""Rows that were encoded before: which corpora a prepared folder has the same rows of, and what is told of them.

A row follows from the text of its pair, the subwords, the tags of its corpus and the longest side that is kept. The
manifest has a digest of all that for each corpus, `made_of`; the rows of corpora lie one after the other, so their
`n_pair` tell where each begins. In memory are, for each pair of such a folder, its two lengths of four bytes. How rows
are made and put together is in `blockwise/encode.py`.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from nmt.data.arrays.ragged import Ragged
from nmt.data.stored.arrow import dtype_of_ids
from nmt.data.stored.corpus import Corpus, Prepared
from nmt.data.stored.manifest import HASHED_BYTES, read_manifest
from nmt.data.vocabulary.subwords import Subwords
from nmt.errors import DataError
from nmt.files import sha256_of
from nmt.recipe.places import MANIFEST

# Another number, and what was encoded before is encoded anew.
_VERSION = 1


class RowFacts(NamedTuple):
    """What the manifest tells of the rows of a corpus.

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
        """Where they are."""
        return self.corpus.path.parent

    def rows(self, n: int) -> Iterator[tuple[Ragged, Ragged]]:
        """Both sides, n rows at a time."""
        for start in range(self.start, self.stop, n):
            yield self.corpus.rows(start, min(self.stop, start + n))


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
    """What a manifest tells of the rows of a corpus; None if the manifest is too old to have them."""
    told = corpus.get("rows")
    return RowFacts(**told) if isinstance(told, dict) and set(told) == set(RowFacts._fields) else None
