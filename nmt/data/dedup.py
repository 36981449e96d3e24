"""Pairs that came before: exactly, nearly, or too often with another translation.

Compared are hashes of 64 bits, 8 bytes for each pair and each kind that is asked for, in files that are read once for
each share of the hashes. In memory are 2 bytes for each pair, and some hundred for each text that has more translations
than are kept. Of 100 million different pairs one is taken for another with a probability of 1 in 3,700.
"""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.recipe.data_options import FilterConfig

DUPLICATE = "duplicate"
NEAR_DUPLICATE = "near duplicate"
TRANSLATIONS = "many translations"

NO_KEY = 0  # of a pair that is not asked about
_DIGIT = re.compile(r"\d")
_NO_WORD = re.compile(r"[\W_]+")
_KEYS_AT_ONCE = 1 << 20  # keys in memory at once, at 40 bytes
_KEYS_READ = 1 << 18  # keys read at once

Keys = NDArray[np.uint64]
# Gives the keys of a kind in pieces, in order, anew at each call.
Pieces = Callable[[], Iterator[Keys]]


def kinds_of(filters: Iterable[FilterConfig]) -> tuple[str, ...]:
    """The kinds of keys that one corpus or another asks for: then they are those of the pairs of all."""
    every = list(filters)
    exact, near = any(one.drop_duplicates for one in every), any(one.drop_near_duplicates for one in every)
    kinds = (("exact",) if exact else ()) + (("near",) if near else ())
    return kinds + (("src", "trg") if any(one.max_translations for one in every) else ())


def keys_of(src: Sequence[str], trg: Sequence[str], kinds: Iterable[str]) -> dict[str, Keys]:
    """The keys of some pairs."""
    texts: dict[str, Callable[[], Iterator[str]]] = {
        "exact": lambda: (f"{a}\n{b}" for a, b in zip(src, trg, strict=True)),
        "near": lambda: (f"{skeleton(a)}\n{skeleton(b)}" for a, b in zip(src, trg, strict=True)),
        "src": lambda: iter(src),
        "trg": lambda: iter(trg),
    }
    return {kind: np.array([hash_of(text) for text in texts[kind]()], np.uint64) for kind in kinds}


def in_pieces(path: Path) -> Pieces:
    """The keys of a file."""

    def pieces() -> Iterator[Keys]:
        start = 0
        while len(keys := np.fromfile(path, np.uint64, _KEYS_READ, offset=8 * start)):
            yield keys
            start += len(keys)

    return pieces


def repeated(
    keys: Mapping[str, Pieces], filters: Sequence[FilterConfig], n_of: Sequence[int]
) -> list[tuple[str, NDArray[np.int64]]]:
    """Yield the pairs that those before them leave no place for: reasons, each with the numbers of its pairs.

    keys: of all pairs, by kind, NO_KEY for pairs that are not asked about. filters: what is asked of the first pairs,
    then of the next ones; n_of: how many those are. A pair that stays counts for those after it, whatever they ask for.
    """
    ends = np.cumsum(n_of, dtype=np.int64)
    is_gone, found = np.zeros(int(ends[-1]), dtype=bool), []
    asks = {
        "exact": (DUPLICATE, [one.drop_duplicates for one in filters]),
        "near": (NEAR_DUPLICATE, [one.drop_near_duplicates for one in filters]),
    }
    for kind, (reason, drops) in asks.items():
        if kind in keys:
            parts = [later for _, later in _repeats(keys[kind], len(is_gone))]
            again = np.sort(np.concatenate([np.empty(0, np.int64), *parts]))
            again = again[np.array(drops)[np.searchsorted(ends, again, side="right")] & ~is_gone[again]]
            found.append((reason, again))
            is_gone[again] = True
    if "src" in keys:
        most = np.array([one.max_translations for one in filters])
        found.append((TRANSLATIONS, _too_often(keys, is_gone, most, ends)))
    return found


def _repeats(pieces: Pieces, n_pair: int, is_gone: NDArray[np.bool_] | None = None) -> Iterator[tuple[Keys, Any]]:
    """By shares of the keys: those of pairs that are there, sorted, and the numbers of those that came before."""
    n_share = np.uint64(max(1, -(-n_pair // _KEYS_AT_ONCE)))
    for share in range(int(n_share)):
        mine, numbers, start = [], [], 0
        for piece in pieces():
            chosen = (piece % n_share == share) & (piece != NO_KEY)
            if is_gone is not None:
                chosen &= ~is_gone[start : start + len(piece)]
            place = np.flatnonzero(chosen)
            mine.append(piece[place])
            numbers.append(place + start)
            start += len(piece)
        keys = np.concatenate([np.empty(0, np.uint64), *mine])
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        again = np.append(False, keys[1:] == keys[:-1])[: len(keys)]
        yield keys, np.concatenate([np.empty(0, np.int64), *numbers])[order][again]


def _too_often(
    keys: Mapping[str, Pieces], is_gone: NDArray[np.bool_], most: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Numbers of the pairs whose source or target was kept `most` times before, 0 for any number.

    most: for the pairs up to each of the ends.
    """
    often, least = {}, int(most[most > 0].min(initial=len(is_gone)))
    for side in ("src", "trg"):
        parts = []
        for found, _ in _repeats(keys[side], len(is_gone), is_gone):
            different, times = np.unique(found, return_counts=True)
            parts.append(different[times > least])
        often[side] = np.sort(np.concatenate(parts))
    kept: dict[str, Counter[int]] = {"src": Counter(), "trg": Counter()}
    dropped, start = [], 0
    for src, trg in zip(keys["src"](), keys["trg"](), strict=True):
        of_often = np.isin(src, often["src"]) | np.isin(trg, often["trg"])
        asked = np.flatnonzero(of_often & (src != NO_KEY) & ~is_gone[start : start + len(src)])
        its_most = most[np.searchsorted(ends, start + asked, side="right")]
        for n, few in zip(asked.tolist(), its_most.tolist(), strict=True):
            pair = int(src[n]), int(trg[n])
            if few and max(kept["src"][pair[0]], kept["trg"][pair[1]]) >= few:
                dropped.append(start + n)
                continue
            kept["src"][pair[0]] += 1
            kept["trg"][pair[1]] += 1
        start += len(src)
    return np.array(dropped, np.int64)


def hash_of(text: str) -> int:
    """64 bits that depend on the text alone, not on the process; never NO_KEY."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little") or 1


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

_PAIRS_AT_ONCE = 1 << 20  # pairs in memory at once, at some 60 bytes
_PAIRS_READ = 1 << 20  # pairs read at once


def count_duplicates(path: Path) -> dict[str, Any]:
    """Count repetitions among the pairs of the file.

    {"pairs": those that came before, "again": all that occur more than once, the first occurrences too,
    "sources": distinct ones with several targets, "targets": with several sources,
    "most": [(number of a pair, times), ...] the most frequent pairs, by their first occurrence, counted from 0}
    """
    n_pair = path.stat().st_size // PAIR.itemsize
    n_share = max(1, -(-n_pair // _PAIRS_AT_ONCE))
    before, again, most, several = 0, 0, [], {}
    for side, other in (("src", "trg"), ("trg", "src")):
        several[side] = 0
        for share in range(n_share):
            mine, partner, number = _share(path, side, other, share, n_share)
            again_there = _repeated(mine)  # most are not, and say nothing here
            order = again_there[np.lexsort((number[again_there], partner[again_there], mine[again_there]))]
            mine, partner, number = mine[order], partner[order], number[order]
            fresh = np.ones(len(mine), dtype=bool)
            fresh[1:] = (mine[1:] != mine[:-1]) | (partner[1:] != partner[:-1])
            distinct = mine[fresh]
            _, n_partner = np.unique(distinct, return_counts=True)
            several[side] += int((n_partner > 1).sum())
            if side == "src":
                before += int((~fresh).sum())
                firsts = np.flatnonzero(fresh)
                times = np.diff(firsts, append=len(mine))
                again += int(times[times > 1].sum())
                best = np.lexsort((number[firsts], -times))[:N_SHOWN]
                most += [(int(number[firsts[k]]), int(times[k])) for k in best if times[k] > 1]
    most = sorted(most, key=lambda each: (-each[1], each[0]))[:N_SHOWN]
    return {"pairs": before, "again": again, "sources": several["src"], "targets": several["trg"], "most": most}


def _repeated(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The places of all values that stand there more than once."""
    order = np.argsort(values)
    ordered = values[order]
    as_before = np.zeros(len(values), dtype=bool)
    as_before[1:] = ordered[1:] == ordered[:-1]
    is_repeated = as_before.copy()
    is_repeated[:-1] |= as_before[1:]
    return order[is_repeated]


def _share(
    path: Path, side: str, other: str, share: int, n_share: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """The pairs whose hash of one side falls into a share: that hash, the other side's, and the pair's number."""
    found = []
    for start, pairs in _pieces(path):
        mine = np.flatnonzero(pairs[side] % np.uint64(n_share) == share)
        found.append((pairs[side][mine], pairs[other][mine], mine + start))
    columns = [np.concatenate(column) for column in zip(*found, strict=True)] if found else []
    empty = np.empty(0, np.uint64)
    return (columns[0], columns[1], columns[2]) if columns else (empty, empty, np.empty(0, np.int64))


def _pieces(path: Path) -> Iterator[tuple[int, NDArray[Any]]]:
    start = 0
    while len(pairs := np.fromfile(path, PAIR, _PAIRS_READ, offset=start * PAIR.itemsize)):
        yield start, pairs
        start += len(pairs)
