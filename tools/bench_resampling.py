"""How much training slows down when words are cut anew on the fly: seconds of the same updates, with three readers.

    python tools/bench_resampling.py RECIPE [--turns 60] [--updates 6] [--skip 0] [--of N] [--rate 0.1] [--device cuda]

RECIPE is prepared already, with subwords.kind bpe, char or unigram. Each update is done three times, on one batch.
Beside it a thread makes batches ahead: as they are stored; with words that are cut anew; and as they are stored once
more, which says what the benchmark can see. What is read is put aside, for other batches are other work: how much of
them is padding is told by itself, and so is the time from the opening of the data to the first batch. The turns are a
sample of a run of --of updates, by default as many as the recipe's; of those between them the batches
are only made. With --of 0 they follow each other: the beginning of a run, or what comes after --skip updates.
"""

import argparse
import itertools
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator

from bench_shapes import seconds_of

from nmt.data.batching.plan import Position
from nmt.data.stored.corpus import Prepared
from nmt.data.vocabulary.subwords import PAD
from nmt.device import choose_device
from nmt.errors import NmtError
from nmt.native.allocator import keep_freed_blocks
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe
from nmt.training.engine import Engine
from nmt.training.feed import Feed, Portion
from nmt.training.onednn_cache import enlarge_onednn_cache
from nmt.training.parallel import Ranks
from nmt.training.precision import choose_precision
from nmt.training.starting.materials import new_model

_SETTLED = 0.5  # seconds, in which the threads have made what they make ahead


class Reader:
    """Portions of one feed, and what they cost whoever trains."""

    def __init__(self, open_feed: Callable[[], Feed], skip: int) -> None:
        """skip: portions to leave; one is left to see how long the first one takes."""
        begin = time.perf_counter()
        self._portions: Iterator[Portion] = open_feed().begin(Position())
        self.skip(1)
        self.first = time.perf_counter() - begin
        self._n_full = self._n_place = 0
        self.waited = 0.0
        self.seconds: list[float] = []  # of each turn
        self.skip(skip - 1)

    def skip(self, n: int) -> None:
        """Leave some portions, which were made all the same."""
        for _ in range(n):
            next(self._portions)

    def read(self) -> None:
        """One portion, which the thread then makes another for."""
        asked = time.perf_counter()
        portion = next(self._portions)
        self.waited += time.perf_counter() - asked
        for matrix in (side for item in portion.work for side in (item.batch.src_seq, item.batch.gold)):
            self._n_full += int((matrix != PAD).sum())
            self._n_place += matrix.numel()

    @property
    def full(self) -> float:
        """The share of all places in batches that is not padding."""
        return self._n_full / self._n_place


def main() -> None:
    """Measure in turns, print each and the means of their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--updates", type=int, default=6, help="of a turn; some are cut at once")
    parser.add_argument("--skip", type=int, default=0, help="updates whose batches are made and left before the clock")
    parser.add_argument("--of", type=int, help="updates that the turns are a sample of")
    parser.add_argument("--rate", type=float, default=0.1, help="batch.bpe_dropout, or batch.unigram_alpha")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    enlarge_onednn_cache()  # these two as nmt-train does
    keep_freed_blocks()
    recipe = read_recipe(args.recipe, [])
    option = "unigram_alpha" if recipe.subwords.kind == "unigram" else "bpe_dropout"
    data, device = Prepared.open(recipe.data_folder), choose_device(args.device)
    precision = choose_precision(recipe.train, device)
    precision.apply()

    def feed(rate: float) -> Feed:
        one: Recipe = recipe.model_copy(update={"batch": recipe.batch.model_copy(update={option: rate})})
        return Feed(one, data, Ranks())

    engine = Engine(new_model(recipe, data, device).train(), recipe, precision=precision, ranks=Ranks())
    updates = feed(args.rate).begin(Position())
    readers = {
        "stored": Reader(lambda: feed(0.0), args.skip),
        f"{option} {args.rate}": Reader(lambda: feed(args.rate), args.skip),
        "stored again": Reader(lambda: feed(0.0), args.skip),
    }
    orders = itertools.cycle(itertools.permutations(readers))  # each is as often before and after each other
    of = recipe.train.updates if args.of is None else args.of
    between = max(0, of - args.skip - args.turns * args.updates) / args.turns
    chance = random.Random(1)
    for number in range(args.turns):
        # Not at equal distances: the updates whose words are cut at once have nearly such.
        if n_left := round(between * chance.uniform(0, 2)):
            for reader in readers.values():
                reader.skip(n_left)
            time.sleep(_SETTLED)
        seconds = dict.fromkeys(readers, 0.0)
        for portion in itertools.islice(updates, args.updates):
            seconds_of(engine, portion)  # whoever is the second to train on a shape finds its kernels made
            for name in next(orders):
                readers[name].read()
                seconds[name] += seconds_of(engine, portion)
        for name, reader in readers.items():
            reader.seconds.append(seconds[name])
        print(f"turn {number + 1}  " + "  ".join(f"{name} {seconds[name]:.2f} s" for name in readers), flush=True)
    plain, cut, again = readers.values()
    n_update = args.turns * args.updates
    waited = 1000 * (cut.waited - (plain.waited + again.waited) / 2) / n_update
    update = 1000 * statistics.median(plain.seconds) / args.updates
    print(f"an update: {update:,.0f} ms; longer wait for its batch when cut anew: {waited:.2f} ms")
    print(f"from the opening to the first batch: {cut.first:.2f} s, as stored {plain.first:.2f} s")
    print(f"time when cut anew / as stored:     {_ratio(cut, plain)}")
    print(f"time as stored again / as stored:   {_ratio(again, plain)}")
    print(f"places filled when cut anew / as stored: {cut.full / plain.full:.4f} ({cut.full:.1%} / {plain.full:.1%})")


def _ratio(one: Reader, other: Reader) -> str:
    """The mean of the ratios turn by turn, its standard error, and the quartiles of the turns."""
    logs = [math.log(a / b) for a, b in zip(one.seconds, other.seconds, strict=True)]
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    low, _, high = (math.exp(log) for log in statistics.quantiles(logs, n=4))
    return f"{math.exp(statistics.mean(logs)):.4f} +- {error:.4f} (half of the turns: {low:.3f} to {high:.3f})"


if __name__ == "__main__":
    try:
        main()
    except NmtError as error:
        sys.exit(f"bench_resampling: error: {error}")
