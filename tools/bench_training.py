"""Compare training speed with other libraries on the same batches: python tools/bench_training.py --help

The whole step counts: forward, loss, backward, clipping, the check for non-finite values, Adam. Each contender has its
own process, and they take turns batch by batch, so that other load on the machine affects all alike; figures are made
of medians. Target tokens are counted with </s> and without padding. Compare within one run only.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from bench_peers import PEERS, PeerStep

from nmt import ops
from nmt.data.arrays import Ragged
from nmt.data.corpus import Prepared
from nmt.data.plan import Position, Rows
from nmt.device import choose_device
from nmt.errors import NmtError
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe, write_recipe
from nmt.training.engine import Engine
from nmt.training.feed import Feed
from nmt.training.materials import new_model
from nmt.training.memory import Work
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision

OURS = "nmt"
# Median length of a sentence in subwords, and the standard deviation of its logarithm.
LENGTHS = {"newstest": (24.0, 0.6), "multi30k": (13.0, 0.33)}
ARITHMETIC = ("fp32", "bf16")  # precisions, a column each


class Synthetic:
    """Pairs of random subwords with the length distribution of a test set."""

    def __init__(self, lengths: str, n_vocab: int, longest: int, n_pair: int = 50_000) -> None:
        rng = np.random.default_rng(1)
        median, spread = LENGTHS[lengths]
        src = median * np.exp(spread * rng.standard_normal(n_pair))
        trg = src * np.exp(0.15 * rng.standard_normal(n_pair))
        self.src_len, self.trg_len = (side.round().clip(1, longest).astype(np.int32) for side in (src, trg))
        self.n_vocab = n_vocab

    def picked(self, rows: Rows) -> tuple[Ragged, Ragged]:
        """Return the ids of some pairs, without control symbols."""
        rng = np.random.default_rng(int(rows[0]))
        src, trg = (
            Ragged(rng.integers(4, self.n_vocab, length[rows].sum()), length[rows])
            for length in (self.src_len, self.trg_len)
        )
        return src, trg


def data_of(args: argparse.Namespace, recipe: Recipe) -> Any:
    """Return the inputs of a feed and a new model: the prepared folder, or a synthetic substitute."""
    if args.data:
        return Prepared.open(args.data)
    side = SimpleNamespace(n_vocab=args.vocab)
    train = Synthetic(args.lengths, args.vocab, recipe.data.max_len)
    return SimpleNamespace(train=train, sizes=[len(train.src_len)], subwords=SimpleNamespace(src=side, trg=side))


def switch(arithmetic: str, device: torch.device) -> Precision:
    """Switch to the arithmetic of a column."""
    has_kernels = device.type == "cpu" and not ops.why_no_kernels()
    precision = Precision(arithmetic, "for the benchmark", device.type, kernels=has_kernels)
    precision.apply()
    return precision


# -- the process of a contender ----------------------------------------------------------------------------------------


def contend(args: argparse.Namespace) -> None:
    """Train on the batches that each line of stdin names, in its arithmetic. Orders and answers are JSON lines."""
    recipe = read_recipe(args.recipe)
    device = choose_device(args.device)
    if args.threads:
        torch.set_num_threads(args.threads)
    precision = switch(args.arithmetic[0], device)
    data = data_of(args, recipe)
    portions = Feed(recipe, data, Ranks()).begin(Position())
    works = [work for _, portion in zip(range(args.batches), portions, strict=False) for work in portion.work]
    if args.contender == OURS:
        engine = Engine(new_model(recipe, data, device).train(), recipe, precision=precision, ranks=Ranks())
    else:
        peer = PeerStep(args.contender, recipe.model, data.subwords.trg.n_vocab, recipe.train.label_smoothing, device)

    def train(work: Work, precision: Precision) -> None:
        if args.contender != OURS:
            peer(work.batch.to(device), precision.autocast())
            return
        engine.precision = precision
        engine.backward([work], work.batch.n_gold)
        engine.settle()  # the previous update, like the training loop
        engine.step(1e-4, update=1)

    train(works[0], precision)
    if args.contender == OURS:
        engine.settle()
    n_position = sum(work.batch.src_seq.numel() + work.batch.gold.numel() for work in works)
    n_token = sum(int((work.batch.src_seq != 0).sum()) + work.batch.n_gold for work in works)
    answer(padding=1 - n_token / n_position)
    for line in sys.stdin:
        order = json.loads(line)
        precision = switch(order["arithmetic"], device)
        begin = time.perf_counter()
        for n in order["batches"]:
            train(works[n], precision)
        if args.contender == OURS:
            engine.settle()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        answer(seconds=seconds, tokens=sum(works[n].batch.n_gold for n in order["batches"]))


def answer(**values: float) -> None:
    """Write a line for the parent process."""
    print(json.dumps(values), flush=True)


class Contender:
    """A contender, seen from the parent process."""

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        command = [sys.executable, __file__, *argv, "--contender", name]
        begin = time.perf_counter()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
        self.name, self.ready = name, self._read_answer()
        self.ready["first"] = time.perf_counter() - begin  # including the start of the interpreter

    def ask(self, **order: Any) -> dict[str, float]:
        """Send an order and wait for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self._read_answer()

    def _read_answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(
                f"bench_training: error: {self.name} ended with code {self.process.wait()}; its messages are above"
            )
        return cast(dict[str, float], json.loads(line))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


# -- the parent process ------------------------------------------------------------------------------------------------


def compare(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """Train in turns and print the table."""
    contenders = [Contender(name, argv) for name in (OURS, *args.peers)]
    ready = contenders[0].ready
    everything = list(range(args.batches))
    # On a GPU the next step is prepared during the current one, so only a whole pass has a duration.
    units = [everything] if args.device == "cuda" else [[n] for n in everything]
    answers: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    for turn in range(args.rounds + 1):  # the first round warms up
        for n, batches in enumerate(units):
            for arithmetic in args.arithmetic:
                for contender in contenders[turn % len(contenders) :] + contenders[: turn % len(contenders)]:
                    result = contender.ask(arithmetic=arithmetic, batches=batches)
                    if turn:
                        answers.setdefault((contender.name, arithmetic, n), []).append(result)
    print(f"padding {ready['padding']:.1%}; first update {ready['first']:.1f} s after the start")
    print(f"{'':26}{'target tokens/s':>16}")
    for arithmetic in args.arithmetic:
        for contender in contenders:
            unit_results = [answers[contender.name, arithmetic, n] for n in range(len(units))]
            seconds = sum(statistics.median(result["seconds"] for result in results) for results in unit_results)
            n_token = sum(results[0]["tokens"] for results in unit_results)
            print(f"{arithmetic:14}{contender.name:12}{n_token / seconds:16,.0f}")
    for contender in contenders:
        contender.close()


def make_recipe(args: argparse.Namespace, path: Path) -> Path:
    """Write the recipe of the contenders: defaults, changed by the flags. Returns the path."""
    options = {
        "name": "bench",
        "model.preset": args.size,
        "data.max_len": "255",  # with the end 256, two blocks of attention on a GPU
        "batch.max_tokens": str(args.max_tokens),
        "optim.clip": "1.0",
        "train.updates": str(args.batches),
        "train.log_every": str(max(1, args.batches // 4)),
        "train.device": args.device,
        "train.threads": str(args.threads),
        "train.precision": args.arithmetic[0],
        "valid.translate": "false",
        "valid.metric": "loss",
        **dict(pair.partition("=")[::2] for pair in args.set),
    }
    recipe = read_recipe(None, list(options.items()))
    if args.data:
        prepared = read_recipe(args.data / "recipe.yaml")
        data = prepared.data.model_copy(update={"out": str(args.data)})
        recipe = recipe.model_copy(update={"data": data, "subwords": prepared.subwords})
    write_recipe(recipe, path)
    return path


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the flags. --contender and --recipe are for the processes that this one starts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=["tiny", "small", "base", "big"])
    parser.add_argument("--data", type=Path, help="a folder of nmt-preprocess; default: synthetic pairs")
    parser.add_argument("--lengths", default="multi30k", choices=sorted(LENGTHS), help="of synthetic pairs")
    parser.add_argument("--vocab", type=int, default=8000, help="of synthetic pairs")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=0, help="0: one a core")
    parser.add_argument("--peers", nargs="*", default=None, choices=sorted(PEERS), help="default: all, on a GPU none")
    arithmetic = f"some of: {', '.join(ARITHMETIC)}"
    parser.add_argument("--arithmetic", nargs="+", choices=list(ARITHMETIC), metavar="NAME", help=arithmetic)
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--batches", type=int, default=6, help="different batches")
    parser.add_argument("--rounds", type=int, default=5, help="times each batch counts")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="of our recipe")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--recipe", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.peers is None:
        args.peers = [] if args.device == "cuda" else sorted(PEERS)
    if args.arithmetic is None:
        args.arithmetic = ["bf16"] if args.device == "cuda" else list(ARITHMETIC)
    return args


def main() -> None:
    argv = sys.argv[1:]
    args = parse(argv)
    try:
        if args.contender:
            contend(args)
            return
        with tempfile.TemporaryDirectory() as folder:
            args.recipe = make_recipe(args, Path(folder) / "recipe.yaml")
            compare(args, [*argv, "--recipe", str(args.recipe)])
    except NmtError as error:
        sys.exit(f"bench_training: error: {error}")


if __name__ == "__main__":
    main()
