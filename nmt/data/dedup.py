"""Repeated pairs, and overlap of held-out lines with the training data.

A pair that came before, exactly, nearly, or too often with another translation, is dropped if a filter asks for that.
Compared are hashes of 64 bits, 8 bytes for each pair and each kind that is asked for, in files that are read once for
each share of the hashes. In memory are 2 bytes for each pair, and some hundred for each text that has more translations
than are kept. Of 100 million different pairs one is taken for another with a probability of 1 in 3,700.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.text import SIDES, Block, Hashes, hashes_of, of_pairs
from nmt.recipe.data_options import FilterConfig

DUPLICATE = "duplicate"
NEAR_DUPLICATE = "near duplicate"
TRANSLATIONS = "many translations"

NO_KEY = 0  # of a pair that is not asked about
_DIGIT = re.compile(r"\d")
_NO_WORD = re.compile(r"[\W_]+")
_AT_ONCE = 1 << 20  # keys in memory at once, at some 60 bytes
_READ = 1 << 18  # keys read at once


# Kinds of keys, each with the reason to drop a pair whose key came before and the option that asks for it.
_KINDS = {"exact": (DUPLICATE, "drop_duplicates"), "near": (NEAR_DUPLICATE, "drop_near_duplicates")}


def keys_for(filters: Iterable[FilterConfig]) -> np.dtype[Any]:
    """The keys that one corpus or another asks for, a field for each kind: then they are those of the pairs of all."""
    every = list(filters)
    kinds = [kind for kind, (_, option) in _KINDS.items() if any(getattr(one, option) for one in every)]
    kinds += SIDES if any(one.max_translations for one in every) else ()
    return np.dtype([(kind, np.uint64) for kind in kinds])


def keys_of(src: Sequence[str], trg: Sequence[str], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The keys of some pairs. dtype: as `keys_for` returns it."""
    keys = np.empty(len(src), dtype)
    for kind in dtype.names or ():
        one, other = (hashes_of(map(skeleton, side) if kind == "near" else side) for side in (src, trg))
        found = {"src": one, "trg": other}.get(kind, of_pairs(one, other))
        keys[kind] = np.maximum(found, NO_KEY + 1)
    return keys


def repeated(
    keys: NDArray[Any], filters: Sequence[FilterConfig], n_of: Sequence[int]
) -> list[tuple[str, NDArray[np.int64]]]:
    """Return the pairs that those before them leave no place for: reasons, each with the numbers of its pairs.

    keys: of all pairs, as `keys_of` returns them, in memory or mapped to it; NO_KEY for pairs that are not asked about.
    filters: what is asked of the first pairs, then of the next ones; n_of: how many those are. A pair that stays counts
    for those after it, whatever they ask for.
    """
    ends = np.cumsum(n_of, dtype=np.int64)
    is_gone, found, kinds = np.zeros(len(keys), dtype=bool), [], keys.dtype.names or ()
    for kind, (reason, option) in _KINDS.items():
        if kind not in kinds:
            continue
        drops = np.array([getattr(one, option) for one in filters])
        again = np.sort(np.concatenate([_later(keys[kind][at], at) for at in _shares(keys[kind])]))
        again = again[drops[np.searchsorted(ends, again, side="right")] & ~is_gone[again]]
        found.append((reason, again))
        is_gone[again] = True
    if "src" in kinds:
        most = np.array([one.max_translations for one in filters])
        found.append((TRANSLATIONS, _too_often(keys, is_gone, most, ends)))
    return found


def _shares(keys: Hashes) -> Iterator[NDArray[np.int64]]:
    """The places of the keys, share by share, so that equal keys are in one share."""
    n_share = np.uint64(max(1, -(-len(keys) // _AT_ONCE)))
    for share in range(int(n_share)):
        found = [np.empty(0, np.int64)]
        for start in range(0, len(keys), _READ):
            found.append(np.flatnonzero(keys[start : start + _READ] % n_share == share) + start)
        yield np.concatenate(found)


def _later(keys: Hashes, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of the places whose key came before."""
    order = np.argsort(keys, kind="stable")
    later, before = order[1:], order[:-1]
    found: NDArray[np.int64] = at[later[(keys[later] == keys[before]) & (keys[later] != NO_KEY)]]
    return found


def _too_often(
    keys: NDArray[Any], is_gone: NDArray[np.bool_], most: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Numbers of the pairs whose source or target was kept `most` times before, 0 for any number.

    most: for the pairs up to each of the ends.
    """
    least = int(most[most > 0].min(initial=len(is_gone)))
    of_often = np.zeros(len(is_gone), dtype=bool)
    for side in ("src", "trg"):
        for at in _shares(keys[side]):
            its = at[~is_gone[at]]
            different, which, times = np.unique(keys[side][its], return_inverse=True, return_counts=True)
            of_often[its] |= ((times > least) & (different != NO_KEY))[which]
    kept: dict[str, Counter[int]] = {"src": Counter(), "trg": Counter()}
    dropped = []
    asked = np.flatnonzero(of_often)
    for n, few in zip(asked.tolist(), most[np.searchsorted(ends, asked, side="right")].tolist(), strict=True):
        src, trg = int(keys["src"][n]), int(keys["trg"][n])
        if few and max(kept["src"][src], kept["trg"][trg]) >= few:
            dropped.append(n)
        else:
            kept["src"][src] += 1
            kept["trg"][trg] += 1
    return np.array(dropped, np.int64)


def skeleton(text: str) -> str:
    """Return the form that near duplicates share: NFKC, case folded, digits 0, no white space, punctuation and symbols.

    Vowel signs and other marks stay, which tell words apart in many scripts. Where nothing else would be left, so do
    punctuation and symbols.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    digits_alike = _DIGIT.sub("0", folded)
    return _NO_WORD.sub("" if folded.isascii() else _marks, digits_alike) or folded.strip()


def _marks(found: re.Match[str]) -> str:
    return "".join(character for character in found.group() if unicodedata.category(character)[0] == "M")


# Pairs that occur again, sources with several targets, targets with several sources.
PAIR = np.dtype([("src", "<u8"), ("trg", "<u8")])
N_SHOWN = 5
N_NOTED = 10  # places of what is odd but harmless


def count_duplicates(path: Path) -> dict[str, Any]:
    """Count repetitions among the pairs of the file.

    {"pairs": those that came before, "again": all that occur more than once, the first occurrences too,
    "sources": distinct ones with several targets, "targets": with several sources,
    "most": [(number of a pair, times), ...] the most frequent pairs, by their first occurrence, counted from 0}
    """
    pairs = np.memmap(path, PAIR, "r") if path.stat().st_size else np.empty(0, PAIR)
    n_again, n_before, several, most = 0, 0, {}, list[tuple[int, int]]()
    for side, other in (("src", "trg"), ("trg", "src")):
        several[side] = 0
        for number in _shares(pairs[side]):
            mine, partner = pairs[side][number], pairs[other][number]
            order = np.lexsort((number, partner, mine))
            mine, partner, number = mine[order], partner[order], number[order]
            is_first = np.append(True, (mine[1:] != mine[:-1]) | (partner[1:] != partner[:-1]))[: len(mine)]
            several[side] += int((np.unique(mine[is_first], return_counts=True)[1] > 1).sum())
            if side == "src":
                first, times = number[is_first], np.diff(np.flatnonzero(is_first), append=len(mine))
                n_before += len(mine) - len(first)
                n_again += int(times[times > 1].sum())
                best = np.lexsort((first, -times))[:N_SHOWN]
                most += [(int(first[k]), int(times[k])) for k in best if times[k] > 1]
    most = sorted(most, key=lambda each: (-each[1], each[0]))[:N_SHOWN]
    return {"pairs": n_before, "again": n_again, "sources": several["src"], "targets": several["trg"], "most": most}


# Overlap: lines of the validation and test files that are in the training data, where a score measures memorisation.
# Compared are 64-bit hashes, so the memory is that of the validation and test lines alone. There are three levels, each
# of which holds the one before: `exact`, but for white space around a line; `near`, after NFKC and case folding and
# without punctuation and white space; `numberless`, also with all numbers equal, for lines with other text.
LEVELS = ("exact", "near", "numberless")
# reversed: the pair with its sides exchanged, as where a corpus is trained on in both directions.
PARTS = ("src", "trg", "pair", "reversed")

# The levels and parts that are shown first.
_WHOLE = (("exact", "pair"), ("near", "pair"), ("exact", "reversed"), ("near", "reversed"))
_NOWHERE = np.iinfo(np.int64).max
_FEWEST_CHARACTERS = 10  # without numbers, for a line to be compared without them


class Keys(dict[tuple[str, str], Hashes]):
    """The hashes of some pairs, by level and part; NO_KEY where a line has too little to be compared."""

    @classmethod
    def of(cls, src: Block, trg: Block) -> "Keys":
        """The hashes of the pairs whose sides two blocks are."""
        keys, usable = cls(), dict[tuple[str, str], NDArray[np.bool_]]()
        for part, block in (("src", src), ("trg", trg)):
            exact = hashes_of(map(str.strip, block.lines))
            near, numberless, length, n_digit = block.near()
            for level, found in zip(LEVELS, (exact, near, numberless), strict=True):
                keys[level, part], usable[level, part] = found, length > 0
            usable["numberless", part] = length - n_digit >= _FEWEST_CHARACTERS
        for level in LEVELS:
            for part, one, other in (("pair", "src", "trg"), ("reversed", "trg", "src")):
                keys[level, part] = of_pairs(keys[level, one], keys[level, other])
                usable[level, part] = usable[level, one] & usable["near", other]
        return cls({key: np.where(usable[key], found, np.uint64(NO_KEY)) for key, found in keys.items()})


Hits = dict[tuple[str, str], tuple[NDArray[np.int64], NDArray[np.int64]]]


def hits(known: Mapping[tuple[str, str], Hashes], keys: Keys, numbers: NDArray[np.int64]) -> Hits:
    """Find the pairs among known, ascending hashes, and their places there. numbers: what the pairs are called."""
    found = {}
    for key, hashes in known.items():
        place, there = _find(hashes, keys[_counterpart(key)])
        found[key] = numbers[there], place[there]
    return found


class Leaks:
    """Held-out lines, each with the first training pair that is like it. known: all their hashes, ascending."""

    def __init__(self, splits: Mapping[str, Keys]) -> None:
        """splits: the hashes of each validation and test set, in the order of the recipe."""
        self.splits = dict(splits)
        self.n_source = 0  # training pairs whose source is, to the letter, one of these
        self.known: dict[tuple[str, str], Hashes] = {}
        for key in ((level, part) for level in LEVELS for part in PARTS):
            found = np.unique(np.concatenate([np.empty(0, np.uint64), *(keys[key] for keys in self.splits.values())]))
            self.known[key] = found[found != NO_KEY]
        self._first = {key: np.full(len(known) + 1, _NOWHERE) for key, known in self.known.items()}

    def look(self, keys: Keys, numbers: NDArray[np.int64]) -> None:
        """Compare some training pairs. numbers: what the pairs are called."""
        for key, found in hits(self.known, keys, numbers).items():
            self.note(key, *found)

    def note(self, key: tuple[str, str], numbers: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        """Some training pairs are there. numbers: what they are called; places: as `hits` tells them."""
        if key == ("exact", "src"):
            self.n_source += len(numbers)
        np.minimum.at(self._first[key], places, numbers)

    def rows(self) -> list[dict[str, Any]]:
        """Per split and where it was looked for: how many lines of it are there, at each level."""
        found = []
        for split, keys in self.splits.items():
            in_train = {key: self.places(split, key) >= 0 for key in self.known}
            found.append(_row(split, "train", keys, in_train))
            others = [other for other in self.splits if split == "test" and other != "test"]
            if others:
                in_valid = {}
                for key in self.known:
                    there = np.concatenate([self.splits[name][_counterpart(key)] for name in others])
                    in_valid[key] = np.isin(keys[key], there) & (keys[key] != NO_KEY)
                either = {key: in_train[key] | in_valid[key] for key in self.known}
                found += [_row(split, "valid", keys, in_valid), _row(split, "train or valid", keys, either)]
        return found

    def places(self, split: str, key: tuple[str, str]) -> NDArray[np.int64]:
        """The number of the first training pair like each line of a split, -1 where there is none."""
        place, there = _find(self.known[key], self.splits[split][key])
        first = self._first[key][place]
        return np.where(there & (first < _NOWHERE), first, -1)

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
        so_far = np.zeros(len(keys["exact", part]), bool)
        for level in LEVELS:  # a line that is too short to be compared without numbers is found as it was before
            so_far |= found[level, part]
            counts[level][part] = int(so_far.sum())
    return {"split": split, "in": where, "lines": len(keys["exact", "src"]), **counts}
