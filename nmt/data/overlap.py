"""Lines of the validation and test files that are in the training data, too: a score on them flatters the model.

Compared are 64-bit hashes, so the memory is that of the validation and test lines alone. A pair is found again at three
levels, each of which holds the one before: `exact`, but for white space around a line; `near`, after NFKC and case
folding and without punctuation and white space; `numberless`, also with all numbers equal, for lines with other text.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.corpus import Prepared
from nmt.data.text import Block, Hashes, of_pairs
from nmt.errors import DataError, NmtError
from nmt.files import parse_json
from nmt.recipe.places import RUN_DATA, is_of_run
from nmt.recipe.reader import load_resolved

LEVELS = ("exact", "near", "numberless")
# reversed: the pair with its sides exchanged, as where a corpus is trained on in both directions.
PARTS = ("src", "trg", "pair", "reversed")

# The levels and parts that are shown first.
_WHOLE = (("exact", "pair"), ("near", "pair"), ("exact", "reversed"), ("near", "reversed"))
_N_PAIR = 10_000  # of a base run that are decoded at once
_NOWHERE = np.iinfo(np.int64).max
_FEWEST_CHARACTERS = 10  # without numbers, for a line to be compared without them


@dataclass(frozen=True)
class Keys:
    """The hashes of some pairs: for each level, of source, target and pair; and which of them may be compared."""

    hashes: dict[tuple[str, str], Hashes]
    usable: dict[tuple[str, str], NDArray[np.bool_]]

    @classmethod
    def of(cls, src: Block, trg: Block) -> "Keys":
        """The hashes of the pairs whose sides two blocks are."""
        hashes: dict[tuple[str, str], Hashes] = {}
        usable: dict[tuple[str, str], NDArray[np.bool_]] = {}
        for part, block in (("src", src), ("trg", trg)):
            near, numberless, length, n_digit = block.near()
            for level, found in zip(LEVELS, (block.exact(), near, numberless), strict=True):
                hashes[level, part] = found
                usable[level, part] = length > 0
            usable["numberless", part] = length - n_digit >= _FEWEST_CHARACTERS
        for level in LEVELS:
            hashes[level, "pair"] = of_pairs(hashes[level, "src"], hashes[level, "trg"])
            hashes[level, "reversed"] = of_pairs(hashes[level, "trg"], hashes[level, "src"])
            usable[level, "pair"] = usable[level, "src"] & usable["near", "trg"]
            usable[level, "reversed"] = usable[level, "trg"] & usable["near", "src"]
        return cls(hashes, usable)

    def only(self, which: NDArray[np.int64]) -> "Keys":
        """The hashes of some of the pairs, by their numbers."""
        return Keys(
            {key: found[which] for key, found in self.hashes.items()},
            {key: found[which] for key, found in self.usable.items()},
        )


class Known:
    """The hashes of all held-out lines, in which those of training pairs are looked up."""

    def __init__(self, hashes: Mapping[tuple[str, str], Hashes]) -> None:
        """hashes: by level and part, in ascending order."""
        self.hashes = dict(hashes)

    def hits(self, keys: Keys) -> dict[tuple[str, str], tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Find the pairs that are there, and their places among the hashes."""
        found = {}
        for key, known in self.hashes.items():
            if len(known):
                mine = _counterpart(key)
                place, there = _find(known, keys.hashes[mine])
                pairs = np.flatnonzero(there & keys.usable[mine])
                found[key] = pairs, place[pairs]
        return found


class Leaks:
    """Held-out lines, each with the first training pair that is like it."""

    def __init__(self, splits: Mapping[str, Keys]) -> None:
        """splits: the hashes of each validation and test set, in the order of the recipe."""
        self.splits = dict(splits)
        self.n_source = 0  # training pairs whose source is, to the letter, one of these
        hashes = {}
        for key in ((level, part) for level in LEVELS for part in PARTS):
            found = [keys.hashes[key][keys.usable[key]] for keys in self.splits.values()]
            hashes[key] = np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64)
        self.known = Known(hashes)
        self._known = hashes
        self._first = {key: np.full(len(known), _NOWHERE) for key, known in hashes.items()}

    def look(self, keys: Keys, numbers: NDArray[np.int64]) -> None:
        """Compare some training pairs. numbers: what the pairs are called."""
        for key, (pairs, places) in self.known.hits(keys).items():
            self.note(key, numbers[pairs], places)

    def note(self, key: tuple[str, str], numbers: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        """Some training pairs are there. numbers: what they are called; places: as `Known.hits` tells them."""
        if key == ("exact", "src"):
            self.n_source += len(numbers)
        np.minimum.at(self._first[key], places, numbers)

    def rows(self) -> list[dict[str, Any]]:
        """Per split and where it was looked for: how many lines of it are there, at each level."""
        found = []
        for split, keys in self.splits.items():
            in_train = {key: self.places(split, key) >= 0 for key in self._known}
            found.append(_row(split, "train", keys, in_train))
            others = [other for other in self.splits if split == "test" and other != "test"]
            if others:
                in_valid = {key: self._in_splits(keys, others, key) for key in self._known}
                either = {key: in_train[key] | in_valid[key] for key in self._known}
                found += [_row(split, "valid", keys, in_valid), _row(split, "train or valid", keys, either)]
        return found

    def places(self, split: str, key: tuple[str, str]) -> NDArray[np.int64]:
        """The number of the first training pair like each line of a split, -1 where there is none."""
        keys = self.splits[split]
        place, there = _find(self._known[key], keys.hashes[key])
        found = np.full(len(there), -1, dtype=np.int64)
        mine = np.flatnonzero(there & keys.usable[key])
        first = self._first[key][place[mine]]
        found[mine[first < _NOWHERE]] = first[first < _NOWHERE]
        return found

    def examples(self, split: str, most: int) -> Iterator[tuple[str, str, int, int]]:
        """(level, part, line from 0, number of the training pair), the most alike first, each line once."""
        told: set[int] = set()
        for level, part in (*_WHOLE, ("exact", "src"), ("near", "src"), ("exact", "trg")):
            places = self.places(split, (level, part))
            for line in np.flatnonzero(places >= 0).tolist():
                if len(told) == most:
                    return
                if line not in told:
                    told.add(line)
                    yield level, part, line, int(places[line])

    def _in_splits(self, keys: Keys, others: Sequence[str], key: tuple[str, str]) -> NDArray[np.bool_]:
        its = _counterpart(key)
        there = np.concatenate([self.splits[name].hashes[its][self.splits[name].usable[its]] for name in others])
        return np.isin(keys.hashes[key], there) & keys.usable[key]


def _counterpart(key: tuple[str, str]) -> tuple[str, str]:
    """The hash of a training pair that is looked up among those hashes of held-out pairs."""
    level, part = key
    return level, "pair" if part == "reversed" else part


def _find(known: Hashes, wanted: Hashes) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Find where each hash is, or would be, in a sorted array, and whether it is there."""
    if not len(known):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return place, known[place] == wanted


def _row(split: str, where: str, keys: Keys, found: dict[tuple[str, str], NDArray[np.bool_]]) -> dict[str, Any]:
    counts: dict[str, dict[str, int]] = {level: {} for level in LEVELS}
    for part in PARTS:
        so_far = np.zeros(len(keys.hashes["exact", part]), bool)
        for level in LEVELS:  # a line that is too short to be compared without numbers is found as it was before
            so_far |= found[level, part]
            counts[level][part] = int(so_far.sum())
    return {"split": split, "in": where, "lines": len(keys.hashes["exact", "src"]), **counts}


def overlap_with_bases(bases: Iterable[Path], leaks: Leaks) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows as `Leaks.rows` has them, in `train of BASE`; and the bases whose pairs cannot be read, with reasons.

    bases: runs, models and checkpoints in them, or folders of prepared data.
    """
    rows: list[dict[str, Any]] = []
    unknown = []
    for base in dict.fromkeys(map(_folder_of, bases)):
        try:
            data = _data_of(base)
        except (NmtError, OSError, ValueError) as error:
            unknown.append(f"{base} ({error})")
            continue
        found = Leaks(leaks.splits)
        for src, trg, numbers in _texts(data):
            found.look(Keys.of(Block(src), Block(trg)), numbers)
        rows += [{**row, "in": f"train of {base}"} for row in found.rows() if row["in"] == "train"]
    return rows, unknown


def _folder_of(base: Path) -> Path:
    """The run of a model or checkpoint in it."""
    return next((folder for folder in (base, *base.parents[:2]) if is_of_run(folder)), base)


def _data_of(base: Path) -> Prepared:
    if not is_of_run(base):
        return Prepared.open(base)
    data = Prepared.open(load_resolved(base / "recipe.yaml").data_folder)
    told = parse_json((base / RUN_DATA).read_bytes())
    if not isinstance(told, dict) or told.get("train") != data.train.fingerprint:
        raise DataError(f"{data.folder} holds other pairs than when it was trained on.")
    return data


def _texts(data: Prepared) -> Iterator[tuple[Sequence[str], Sequence[str], Any]]:
    """The training pairs, decoded from what is stored."""
    codecs = (data.subwords.src, data.subwords.trg)
    for start in range(0, data.train.n_pair, _N_PAIR):
        numbers = range(start, min(start + _N_PAIR, data.train.n_pair))
        src, trg = (
            [" ".join(codec.decode(ids.tolist()).split("\n")) for ids in side]
            for codec, side in zip(codecs, data.train.pairs(numbers), strict=True)
        )
        yield src, trg, np.array(numbers)
