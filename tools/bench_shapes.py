"""What batches of new shapes cost on a CPU, where oneDNN prepares each new shape of a product before it makes it.

    python tools/bench_shapes.py RECIPE [--batches 60] [--precision bf16]

RECIPE is prepared already. Some batches are trained on, each twice in a row, then all of them again, each twice in a
row. The ratio of the two times of a batch says what there was to prepare: at first the shape is new, later it was seen
some batches ago. ONEDNN_PRIMITIVE_CACHE_CAPACITY=1024 in front of the command is oneDNN by itself.
How many batches of how many shapes an epoch has, and how much of them is padding, is printed first.
"""

import argparse
import itertools
import resource
import statistics
import sys
import time

from nmt.data.batching.batches import STEP
from nmt.data.batching.plan import Plan, Position
from nmt.data.stored.corpus import Prepared
from nmt.device import choose_device
from nmt.errors import NmtError
from nmt.recipe.reader import read_recipe
from nmt.training.engine import Engine
from nmt.training.feed import Feed, Portion
from nmt.training.onednn_cache import enlarge_onednn_cache
from nmt.training.parallel import Ranks
from nmt.training.precision import choose_precision
from nmt.training.starting.materials import new_model


def seconds_of(engine: Engine, portion: Portion) -> float:
    """Seconds of one update."""
    begin = time.perf_counter()
    engine.backward(portion.work, sum(item.batch.n_gold for item in portion.work))
    engine.settle()
    engine.step(1e-4, update=1)
    engine.settle()
    return time.perf_counter() - begin


def in_an_epoch(plan: Plan, packs: bool) -> str:
    """What to print of its batches. packs: whether their sentences are laid end to end."""
    batches = [rows for update in plan.updates(0) for rows in update]
    if packs:
        n_real = [[int(side.sum()) for side in plan.lengths(rows)] for rows in batches]
        held = [[-(-n // STEP) * STEP for n in of_batch] for of_batch in n_real]
        shapes, padding = set(map(tuple, held)), 1 - sum(map(sum, n_real)) / sum(map(sum, held))
    else:
        shapes = {(len(rows), *(plan.padded(int(side.max())) for side in plan.lengths(rows))) for rows in batches}
        padding = plan.padding_share(0)
    return f"an epoch: {len(batches):,} batches of {len(shapes):,} shapes, {padding:.2%} padding"


def main() -> None:
    """Train, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--precision", default="auto")
    args = parser.parse_args()
    enlarge_onednn_cache()
    recipe = read_recipe(args.recipe, [("train.precision", args.precision)])
    data, device = Prepared.open(recipe.data_folder), choose_device("cpu")
    precision = choose_precision(recipe.train, device)
    precision.apply()
    engine = Engine(new_model(recipe, data, device).train(), recipe, precision=precision, ranks=Ranks())
    source = Feed(recipe, data, Ranks())
    if not source.plan.packed:
        print(in_an_epoch(source.plan, engine.packs))
    feed = source.begin(Position())
    for portion in itertools.islice(feed, 3):
        seconds_of(engine, portion)
    portions = list(itertools.islice(feed, args.batches))
    batches = [engine.laid_out(item.batch)[0] for portion in portions for item in portion.work]
    shapes = {(batch.src_seq.shape, batch.gold.shape) for batch in batches}
    print(f"{precision.name}: {len(portions)} updates of {len(shapes)} shapes")
    for what in ("a new shape", "a shape seen before"):
        times = [(seconds_of(engine, portion), seconds_of(engine, portion)) for portion in portions]
        ratio = statistics.median(first / second for first, second in times)
        again = statistics.median(second for _, second in times)
        print(f"{what:20} {ratio:.3f} of the time of the same batch at once again, which takes {1000 * again:,.0f} ms")
    print(f"memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB at most")


if __name__ == "__main__":
    try:
        main()
    except NmtError as error:
        sys.exit(f"bench_shapes: error: {error}")
