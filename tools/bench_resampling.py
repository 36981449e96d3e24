"""How much training slows down when words are cut anew on the fly: tokens a second with and without, in turns.

    python tools/bench_resampling.py RECIPE [--updates 5] [--turns 30] [--skip 0] [--rate 0.1] [--device cuda]

RECIPE is prepared already, with subwords.kind bpe, char or unigram. Of every turn the time counts in which the model is
trained and in which it waits for batches, which a thread makes ahead. Texts that are cut anew are longer, which costs
attention a little more for each token, however batches are made: so there is a third contender, which has its batches,
those that follow the second's, before the clock starts. The first minutes of a run fill the memory of ways to cut
words; --skip makes batches until it is as full as it is after so many updates.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator

from nmt.data.corpus import Prepared
from nmt.data.plan import Position
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe
from nmt.training.engine import Engine
from nmt.training.feed import Feed, Portion
from nmt.training.kernels import remember_kernels
from nmt.training.launch import new_model
from nmt.training.parallel import Ranks
from nmt.training.precision import choose_device, choose_precision


def turn(engine: Engine, portions: Iterator[Portion], n_update: int) -> tuple[float, float, float]:
    """Tokens of both sides a second, padding not counted; the share of the time that was spent waiting; and the share
    of padding.
    """
    begin, waited, n_token, n_place = time.perf_counter(), 0.0, 0, 0
    for _ in range(n_update):
        asked = time.perf_counter()
        portion = next(portions)
        waited += time.perf_counter() - asked
        n_gold = sum(item.batch.n_gold for item in portion.work)
        n_token += n_gold + sum(int((item.batch.src_seq != 0).sum()) for item in portion.work)
        n_place += sum(item.batch.src_seq.numel() + item.batch.gold.numel() for item in portion.work)
        engine.backward(portion.work, n_gold)
        engine.settle()
        engine.step(1e-4, update=1)
    engine.settle()
    seconds = time.perf_counter() - begin
    return n_token / seconds, waited / seconds, 1 - n_token / n_place


def main() -> None:
    """Measure in turns, print each and the medians of their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--updates", type=int, default=5, help="of a turn")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--skip", type=int, default=0, help="updates whose batches are made and left before the clock")
    parser.add_argument("--rate", type=float, default=0.1, help="batch.bpe_dropout, or batch.unigram_alpha")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    remember_kernels()  # as nmt-train does
    recipe = read_recipe(args.recipe, [])
    option = "unigram_alpha" if recipe.subwords.kind == "unigram" else "bpe_dropout"
    data, device = Prepared.open(recipe.data_folder), choose_device(args.device)
    precision = choose_precision(recipe.train.precision, device)
    precision.apply()

    def started(rate: float, *, ready: bool = False) -> tuple[Engine, Iterator[Portion]]:
        one: Recipe = recipe.model_copy(update={"batch": recipe.batch.model_copy(update={option: rate})})
        engine = Engine(new_model(one, data, device).train(), one, precision=precision, ranks=Ranks())
        portions = Feed(one, data, Ranks()).begin(Position())
        n_update = (args.turns + 1) * args.updates
        # Not the same batches: whoever is the second to train on a shape finds its kernels made.
        for _ in range(args.skip + n_update * ready):
            next(portions)
        return engine, iter(list(itertools.islice(portions, n_update))) if ready else portions

    contenders = {
        "stored": started(0.0),
        f"{option} {args.rate}": started(args.rate),
        "others, made before": started(args.rate, ready=True),
    }
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for number in range(args.turns + 1):
        for name in order:
            speed, waited, padding = turn(*contenders[name], args.updates)
            if number:  # the first one warms up
                speeds[name].append(speed)
                print(
                    f"turn {number}  {name:22} {speed:10,.0f} tokens/s, {waited:6.1%} waiting for batches, "
                    f"{padding:6.1%} padding"
                )
        order.append(order.pop(0))  # each is the first as often
    plain, cut, ready = speeds.values()
    print(f"speed when cut anew / as stored: {_ratio(cut, plain)}")
    print(f"speed when cut anew / with such batches, made before: {_ratio(cut, ready)}")


def _ratio(some: list[float], others: list[float]) -> str:
    """The median of the ratios turn by turn, and the quartiles: a shared machine is not as fast in every turn."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(some, others, strict=True)], n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
