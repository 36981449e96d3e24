"""Duplicate pairs, and overlap of held-out lines with the training data.

Filters drop exact duplicates, near duplicates, and pairs of a text with too many translations. Pairs are compared by
64-bit hashes: 8 bytes for each pair and each kind of key, in files that are read once for each share of the hashes. The
memory is 2 bytes for each pair, and about a hundred for each text with more translations than are kept. Among 100
million different pairs, the probability that any two have the same hash is 1 in 3,700.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays import Ints, seeds_of
from nmt.data.text import SIDES, Block, Hashes, hashes_of, of_pairs
from nmt.recipe.data_options import FilterConfig

NO_KEY = 0  # key of a pair that is not compared
_AT_ONCE = 1 << 20  # keys in memory at once, at some 60 bytes
_READ = 1 << 18  # keys read at once

# Kinds of keys, each with the reason to drop a pair whose key occurred before and the option that turns this on.
KINDS = {"exact": ("duplicate", "drop_duplicates"), "near": ("near duplicate", "drop_near_duplicates")}
TRANSLATIONS = "many translations"  # the reason of max_translations


def keys_for(filters: Iterable[FilterConfig]) -> np.dtype[Any]:
    """Return a field for each kind of key that any corpus needs. All corpora get these keys."""
    configs = list(filters)
    kinds = [kind for kind, (_, option) in KINDS.items() if any(getattr(config, option) for config in configs)]
    kinds += SIDES if any(config.max_translations for config in configs) else ()
    return np.dtype([(kind, np.uint64) for kind in kinds])


def keys_of(src: Sequence[str], trg: Sequence[str], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the keys of pairs. dtype: result of `keys_for`."""
    keys, names = np.empty(len(src), dtype), dtype.names or ()
    hashes = {"src": hashes_of(src), "trg": hashes_of(trg)}
    hashes["exact"] = of_pairs(hashes["src"], hashes["trg"])
    if "near" in names:
        hashes["near"] = of_pairs(_near(src), _near(trg))
    for kind in names:
        keys[kind] = np.maximum(hashes[kind], NO_KEY + 1)
    return keys


def _near(lines: Sequence[str]) -> Hashes:
    """Return a hash of each line at the level `numberless`; for a line of punctuation alone, a hash of the line."""
    _, numberless, lengths, _ = Block(lines).near()
    return np.where(lengths > 0, numberless, hashes_of(lines))


def repeated(keys: NDArray[Any], filters: Sequence[FilterConfig], n_of: Sequence[int]) -> list[tuple[str, Ints]]:
    """Find the pairs that the filters drop because of earlier pairs: reasons, each with the numbers of its pairs.

    keys: keys of all pairs from `keys_of`, in memory or memory-mapped; NO_KEY for pairs that are not compared. filters:
    options of each source. n_of: number of pairs of each source. A kept pair counts as an earlier pair for all later
    ones, also of sources with other options.
    """
    ends = np.cumsum(n_of, dtype=np.int64)
    is_dropped, dropped, kinds = np.zeros(len(keys), dtype=bool), [], keys.dtype.names or ()
    for kind, (reason, option) in KINDS.items():
        if kind not in kinds:
            continue
        is_on = np.array([getattr(config, option) for config in filters])
        numbers = np.sort(np.concatenate([_later(keys[kind][places], places) for places in _shares(keys[kind])]))
        numbers = numbers[is_on[np.searchsorted(ends, numbers, side="right")] & ~is_dropped[numbers]]
        dropped.append((reason, numbers))
        is_dropped[numbers] = True
    if "src" in kinds:
        limits = np.array([config.max_translations for config in filters])
        dropped.append((TRANSLATIONS, _too_often(keys, is_dropped, limits, ends)))
    return dropped


def _shares(keys: Hashes) -> Iterator[Ints]:
    """Yield the places of the keys, share by share. Equal keys are in the same share."""
    n_share = np.uint64(max(1, -(-len(keys) // _AT_ONCE)))
    starts = range(0, max(1, len(keys)), _READ)
    for share in range(int(n_share)):
        yield np.concatenate([np.flatnonzero(keys[n : n + _READ] % n_share == share) + n for n in starts])


def _later(keys: Hashes, places: Ints) -> Ints:
    """Return the places whose key occurred at an earlier place."""
    order = np.argsort(keys, kind="stable")
    later, before = order[1:], order[:-1]
    repeats: Ints = places[later[(keys[later] == keys[before]) & (keys[later] != NO_KEY)]]
    return repeats


def _too_often(keys: NDArray[Any], is_dropped: NDArray[np.bool_], limits: Ints, ends: Ints) -> Ints:
    """Return the pairs of which a side was kept as often as allowed. limits: of the pairs up to each end; 0: none."""
    lowest = int(limits[limits > 0].min(initial=len(is_dropped)))
    is_frequent = np.zeros(len(is_dropped), dtype=bool)
    for side in SIDES:
        for places in _shares(keys[side]):
            remaining = places[~is_dropped[places]]
            distinct, which, times = np.unique(keys[side][remaining], return_inverse=True, return_counts=True)
            is_frequent[remaining] |= ((times > lowest) & (distinct != NO_KEY))[which]
    n_src, n_trg = Counter[int](), Counter[int]()  # kept pairs of each source and of each target
    dropped = []
    candidates = np.flatnonzero(is_frequent)
    limit_of = limits[np.searchsorted(ends, candidates, side="right")]
    for n, limit in zip(candidates.tolist(), limit_of.tolist(), strict=True):
        src, trg = int(keys["src"][n]), int(keys["trg"][n])
        if limit and max(n_src[src], n_trg[trg]) >= limit:
            dropped.append(n)
        else:
            n_src[src] += 1
            n_trg[trg] += 1
    return np.array(dropped, np.int64)


# Duplicate pairs, sources with several targets, and targets with several sources.
PAIR = np.dtype([("src", "<u8"), ("trg", "<u8")])
N_SHOWN = 5


def count_duplicates(path: Path) -> dict[str, Any]:
    """Count repetitions among the pairs of the file.

    {"pairs": pairs that occurred before, "again": pairs that occur more than once, first occurrences included,
    "sources": distinct sources with several targets, "targets": distinct targets with several sources,
    "most": [(number of a pair, times), ...] the most frequent pairs, by the number of the first occurrence, from 0}
    """
    pairs = np.memmap(path, PAIR, "r") if path.stat().st_size else np.empty(0, PAIR)
    n_again, n_before, several, top = 0, 0, Counter[str](), list[tuple[int, int]]()
    for side in SIDES:
        for places in _shares(pairs[side]):
            share = pairs[places]
            _, first, times = np.unique(of_pairs(share["src"], share["trg"]), return_index=True, return_counts=True)
            several[side] += int((np.unique(share[side][first], return_counts=True)[1] > 1).sum())
            if side == "src":
                n_before += len(share) - len(first)
                n_again += int(times[times > 1].sum())
                numbers = places[first]
                best = np.lexsort((numbers, -times))[:N_SHOWN]
                top += [(int(numbers[k]), int(times[k])) for k in best if times[k] > 1]
    top = sorted(top, key=lambda pair: (-pair[1], pair[0]))[:N_SHOWN]
    return {"pairs": n_before, "again": n_again, "sources": several["src"], "targets": several["trg"], "most": top}


# Overlap: validation and test lines that are in the training data, so that a score on them measures memorisation.
# Lines are compared by 64-bit hashes, so the memory is that of the validation and test lines alone. There are three
# levels; each includes the one before. `exact`: equal up to white space around the line. `near`: equal after NFKC and
# case folding, without punctuation and white space. `numberless`: also with all numbers equal, for lines with enough
# other text.
LEVELS = ("exact", "near", "numberless")
# reversed: the pair with its sides exchanged, as in training on a corpus in both directions.
PARTS = ("src", "trg", "pair", "reversed")
_EXACT, _NEAR, _NUMBERLESS = range(len(LEVELS))
_SRC, _TRG, _PAIR, _REVERSED = range(len(PARTS))
Keys = Hashes  # (level, part, pair): hashes of pairs; NO_KEY for a line with too little text to be compared
# Matches of training pairs with held-out lines: their numbers, and the places of the held-out hashes that they match.
# And the number of training pairs whose source exactly matches a held-out source.
Hits = tuple[Ints, Ints, int]

# These keep the hashes of levels and parts apart in one array. A reversed pair is looked up among pairs.
_SALTS = seeds_of(np.arange(len(LEVELS) * len(PARTS))).reshape(len(LEVELS), len(PARTS), 1)
_SALTS[:, _REVERSED] = _SALTS[:, _PAIR]
# The levels and parts of examples, closest matches first.
_CLOSEST = (
    *((level, part) for part in (_PAIR, _REVERSED) for level in (_EXACT, _NEAR)),
    *((_EXACT, _SRC), (_NEAR, _SRC), (_EXACT, _TRG)),
)
_NOWHERE = np.iinfo(np.int64).max
_FEWEST_CHARACTERS = 10  # besides digits, for a line to be compared at the level `numberless`


def overlap_keys(src: Block, trg: Block) -> Keys:
    """Return the hashes of the pairs of two blocks, for `Leaks` and `hits`."""
    keys = np.empty((len(LEVELS), len(PARTS), len(src.lines)), np.uint64)
    is_usable = np.empty(keys.shape, bool)
    for part, block in ((_SRC, src), (_TRG, trg)):
        near, numberless, length, n_digit = block.near()
        keys[:, part] = hashes_of(map(str.strip, block.lines)), near, numberless
        is_usable[:, part] = length > 0
        is_usable[_NUMBERLESS, part] = length - n_digit >= _FEWEST_CHARACTERS
    for part, first, second in ((_PAIR, _SRC, _TRG), (_REVERSED, _TRG, _SRC)):
        keys[:, part] = of_pairs(keys[:, first], keys[:, second])
        is_usable[:, part] = is_usable[:, first] & is_usable[_NEAR, second]
    return np.where(is_usable, keys ^ _SALTS, np.uint64(NO_KEY))


def hits(known: Hashes, keys: Keys, numbers: Ints) -> Hits:
    """Find training pairs among known, ascending hashes. numbers: of all pairs."""
    places, is_known = _find(known, keys[:, :_REVERSED])
    return np.broadcast_to(numbers, places.shape)[is_known], places[is_known], int(is_known[_EXACT, _SRC].sum())


class Leaks:
    """Held-out lines, each with the first training pair that is like it. known: all their hashes, ascending."""

    def __init__(self, splits: Mapping[str, Keys]) -> None:
        """splits: the hashes of each validation and test set, in the order of the recipe."""
        self.splits = dict(splits)
        self.n_source = 0  # training pairs whose source exactly matches a held-out source
        hashes = np.unique(np.concatenate([np.empty(0, np.uint64), *map(np.ravel, self.splits.values())]))
        self.known: Hashes = hashes[hashes != NO_KEY]
        self._first = np.full(len(self.known) + 1, _NOWHERE)

    def note(self, matches: Hits, first: int = 0) -> None:
        """Record training pairs that match held-out lines. first: number of the pair that has number 0 in `matches`."""
        numbers, places, n_source = matches
        self.n_source += n_source
        np.minimum.at(self._first, places, first + numbers)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each split and each place it is compared with: the number of lines found, at each level."""
        rows = list[dict[str, Any]]()
        for split, keys in self.splits.items():
            found = {"train": self.places(split) >= 0}
            valid_sets = [other[:, :_REVERSED].ravel() for name, other in self.splits.items() if name != "test"]
            if split == "test" and valid_sets:
                in_valid = np.isin(keys, np.concatenate(valid_sets)) & (keys != NO_KEY)
                found |= {"valid": in_valid, "train or valid": found["train"] | in_valid}
            for where, is_found in found.items():
                # A line too short for the level `numberless` still counts there if found before.
                counts = np.logical_or.accumulate(is_found, axis=0).sum(axis=2).tolist()
                by_level = {level: dict(zip(PARTS, n, strict=True)) for level, n in zip(LEVELS, counts, strict=True)}
                rows.append({"split": split, "in": where, "lines": keys.shape[2], **by_level})
        return rows

    def places(self, split: str) -> Ints:
        """Return (level, part, line): the first training pair like each line of a split, -1 if there is none."""
        place, is_known = _find(self.known, self.splits[split])
        first = self._first[place]
        return np.where(is_known & (first < _NOWHERE), first, -1)

    def examples(self, split: str, most: int) -> list[tuple[str, str, int, int]]:
        """Return (level, part, line from 0, number of the training pair), closest matches first, each line once."""
        places, closest = self.places(split), dict[int, tuple[str, str, int, int]]()
        for level, part in _CLOSEST:
            for line in np.flatnonzero(places[level, part] >= 0).tolist():
                closest.setdefault(line, (LEVELS[level], PARTS[part], line, int(places[level, part, line])))
        return list(closest.values())[:most]


def _find(known: Hashes, hashes: Hashes) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the place of each hash in a sorted array, and whether the hash is there."""
    place, end = np.searchsorted(known, hashes, side="left"), np.searchsorted(known, hashes, side="right")
    return place, place < end
