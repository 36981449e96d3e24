"""Does nmt-preprocess find shifted lines? python tools/prove_shifts.py [SRC TRG ...] [--lines 20000] [--trials 20]

Corpora are shifted on purpose at random places. In every second trial stray lines are put into one side and the last
ones dropped, so that the counts agree; in the others as many are removed again further on. Strays are other lines of
the same side, 1 to 5 at a time. Found is a shift whose first line is named within 10 lines, with the right offset, and
with its end within 10 lines where it has one. Clean slices, as they stand, must raise no alarm, also with half the
evidence that is asked for. Without file names: the corpora under NMT_DATA that are known here. Exits 1 where fewer than
19 of 20 are found, or where there is a false alarm.
"""

import argparse
import itertools
import os
import random
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from preparing import check_lengths

from nmt.data.reporting.shift import FARTHEST, PRICE, Alignment, find_shifts, records_of
from nmt.data.text.facts import Anchors, Block
from nmt.data.text.lines import read_lines
from nmt.errors import DataError, NmtError

_KNOWN = (
    ("multi30k.train.de.gz", "multi30k.train.en.gz"),
    ("multi30k.train.de.gz", "multi30k.train.fr.gz"),
    ("multi30k-tok.train.en.gz", "multi30k-tok.train.fr.gz"),
    ("tatoeba-de-en.train.de.gz", "tatoeba-de-en.train.en.gz"),
    ("canlaw-en-fr.train.en.gz", "canlaw-en-fr.train.fr.gz"),
    ("small-enja.train.en.gz", "small-enja.train.ja.gz"),
    ("newstest.2008-2012.de.gz", "newstest.2008-2012.en.gz"),
    ("newstest.2008-2012.fr.gz", "newstest.2008-2012.de.gz"),
    ("addition.train.src.gz", "addition.train.tgt.gz"),
    ("dates.train.src.gz", "dates.train.tgt.gz"),
)
_TOLERANCE = 10
_BLOCK = 10_000
_MOST_SLICES = 5


@dataclass(frozen=True)
class Damage:
    """What was done: source lines first to last go with target lines `offset` later. last: None for to the end."""

    first: int
    last: int | None
    offset: int


def align(src: list[str], trg: list[str], price: float = PRICE) -> Alignment:
    """What nmt-preprocess would find in two files of these lines."""
    anchors = Anchors()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records"
        with path.open("wb") as file:
            for start in range(0, len(src), _BLOCK):
                blocks = Block(src[start : start + _BLOCK]), Block(trg[start : start + _BLOCK])
                file.write(records_of(*blocks, anchors).tobytes())
        return find_shifts(path, 0, len(src), price)


def damaged(
    src: list[str], trg: list[str], draw: random.Random, *, to_the_end: bool, shortest: int
) -> tuple[list[str], list[str], Damage]:
    """The two sides with stray lines in one of them."""
    sides = [list(src), list(trg)]
    which, n = draw.randrange(2), len(src)
    n_stray = draw.choice((1, 1, 1, 2, 3, 5))
    first = draw.randrange(shortest, n - 2 * shortest)
    last = n - n_stray if to_the_end else draw.randrange(first + shortest, n - shortest)
    stray = [sides[which][draw.randrange(n)] for _ in range(n_stray)]
    del sides[which][last : last + n_stray]
    sides[which][first:first] = stray
    ahead = 0 if which else n_stray  # strays of the source have no target; those after them are shifted
    end = None if to_the_end else last + ahead
    return sides[0], sides[1], Damage(first + ahead + 1, end, n_stray if which else -n_stray)


def distance(found: Alignment, done: Damage) -> int | None:
    """Lines between what was named and what is so; None where the shift was not found, or others were, too."""
    if len(found.stretches) != 1 or found.stretches[0].offset != done.offset:
        return None
    stretch = found.stretches[0]
    away = [abs(stretch.first - done.first)]
    away.append(abs(stretch.last - done.last) if done.last is not None else found.n_pair - stretch.last)
    return max(away) if max(away) <= _TOLERANCE else None


def prove(src_path: Path, trg_path: Path, args: argparse.Namespace) -> tuple[int, int, int]:
    """Print a line about a corpus; return how many shifts were made and found, and the number of false alarms."""
    most = args.lines * _MOST_SLICES
    sides = [[line or "" for line in itertools.islice(read_lines(path), most)] for path in (src_path, trg_path)]
    check_lengths((str(src_path), str(trg_path)), [len(side) for side in sides])
    slices = [(sides[0][a : a + args.lines], sides[1][a : a + args.lines]) for a in range(0, len(sides[0]), args.lines)]
    slices = [pair for pair in slices if len(pair[0]) >= min(args.lines, 5000)]
    if not slices:
        raise DataError(f"{src_path}: too few lines for a slice: expected {min(args.lines, 5000):,} at least")
    clean = [align(*pair) for pair in slices]
    alarms = sum(len(each.stretches) for each in clean)
    at_half = sum(len(align(*pair, PRICE / 2).stretches) for pair in slices)
    draw, away, n_found = random.Random(args.seed), [], 0
    for trial in range(args.trials):
        src, trg, done = damaged(*draw.choice(slices), draw, to_the_end=trial % 2 == 0, shortest=args.shortest)
        lines = distance(align(src, trg), done)
        if lines is not None:
            n_found += 1
            away.append(lines)
        elif args.missed:
            print(f"  missed: {done}, found {align(src, trg).stretches}")
    strength = statistics.median(each.strength for each in clean)
    far = f"{statistics.median(away):g} and {max(away)}" if away else "-"
    print(
        f"{src_path.name} {trg_path.name}: {n_found} of {args.trials} found, lines off, in the middle and at most: "
        f"{far}; {len(clean)} clean slices: {alarms} alarms, {at_half} with half the evidence; "
        f"{strength:.2f} nats a line",
        flush=True,
    )
    return args.trials, n_found, alarms


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="SRC TRG")
    parser.add_argument("--lines", type=int, default=20_000, help="pairs of a slice")
    parser.add_argument("--trials", type=int, default=20, help="shifts a corpus")
    parser.add_argument("--shortest", type=int, default=200, help="lines between two changes, at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--missed", action="store_true", help="show what was not found")
    args = parser.parse_args()
    if len(args.files) % 2:
        parser.error("expected files two by two: SRC TRG SRC TRG ...")
    pairs = list(zip(args.files[::2], args.files[1::2], strict=True))
    if not pairs:
        folder = os.environ.get("NMT_DATA")
        if not folder:
            parser.error("name files, or a folder of the known corpora in NMT_DATA")
        pairs = [(Path(folder) / src, Path(folder) / trg) for src, trg in _KNOWN if (Path(folder) / src).exists()]
        if not pairs:
            parser.error(f"none of the known corpora is in {folder}, the folder that NMT_DATA names")
    try:
        done = [prove(src, trg, args) for src, trg in pairs]
    except NmtError as error:
        print(f"prove_shifts: error: {error}", file=sys.stderr)
        return error.exit_code
    n_trial, n_found, n_alarm = map(sum, zip(*done, strict=True))
    print(f"all: {n_found} of {n_trial} shifts of up to 5 lines found (looked for up to {FARTHEST}), {n_alarm} alarms")
    return 0 if n_found >= 0.95 * n_trial and not n_alarm else 1


if __name__ == "__main__":
    sys.exit(main())
