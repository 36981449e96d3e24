"""What more GPUs bring, on paper: python tools/scaling_model.py [--price 3.0] [--critical 400000] > tables.md

Prints the tables of docs/scaling.md, which explains the formulas. Nothing here was measured: the shares of peak are
the goals of one GPU, the rest are figures of data sheets, and all of them stand in this file to be replaced.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass

PEAK = 790e12  # dense bf16 of one H200, FLOP/s, as measured with large products
MEMORY = 4.3e12  # bytes/s of its memory, as measured
NVLINK = 360e9  # bytes/s that a collective inside a node reaches, of 450 GB/s in each direction
NIC = 0.8 * 400e9 / 8  # bytes/s of 400 Gb/s InfiniBand, of which 80 % arrive
HOP = 10e-6  # seconds until a message has arrived on another node
BUCKET = 25e6  # bytes that ddp exchanges at a time
PER_NODE = 8  # GPUs
START = 2e-3  # seconds a batch takes on a GPU however small it is: a thousand kernels to start
HIDDEN = 0.8  # share of the backward pass behind which an exchange can hide
BATCH = 25_000  # target tokens that one GPU computes at once, for which the share of peak holds
GPUS = (1, 8, 64, 512)


@dataclass(frozen=True)
class Model:
    """A Transformer: its matrices, and the share of peak that one GPU is to reach with it."""

    name: str
    d_model: int
    d_inner: int
    n_layer: int
    n_vocab: int
    share: float

    @property
    def n_param(self) -> int:
        """Matrices of encoder and decoder layers, and one matrix of embeddings."""
        d, inner = self.d_model, self.d_inner
        encoder, decoder = 4 * d * d + 2 * d * inner, 8 * d * d + 2 * d * inner
        return self.n_layer * (encoder + decoder) + self.n_vocab * d

    @property
    def flop(self) -> float:
        """FLOP of a target token and the source token beside it, forward and backward: 6 for every parameter."""
        return 6.0 * self.n_param

    @property
    def adam(self) -> float:
        """Seconds of the optimizer: it reads weight, gradient and two moments and writes three of them, in fp32."""
        return 28 * self.n_param / MEMORY

    @property
    def per_token(self) -> float:
        """Seconds of compute a token, such that an update of one full batch reaches the share of peak as a whole."""
        return self.flop / (self.share * PEAK) - (START + self.adam) / BATCH


MODELS = (Model("base", 512, 2048, 6, 37_000, 0.35), Model("big", 1024, 4096, 6, 32_000, 0.50))


@dataclass(frozen=True)
class Update:
    """Seconds of one update on n_gpu devices. tokens: target tokens of all of them."""

    n_gpu: int
    tokens: float
    compute: float
    exchange: float
    exposed: float
    optimizer: float

    @property
    def seconds(self) -> float:
        return self.compute + self.exposed + self.optimizer

    @property
    def speed(self) -> float:
        """Target tokens a second, all devices together."""
        return self.tokens / self.seconds


def update(model: Model, n_gpu: int, tokens: float, nic: float = NIC) -> Update:
    """One update of so many target tokens under ddp. nic: bytes/s between nodes for each GPU."""
    mine = tokens / n_gpu
    n_batch = math.ceil(mine / BATCH)
    compute = n_batch * START + mine * model.per_token
    spent = exchange(model, n_gpu, nic)
    # Only the last batch of an update exchanges, and the last bucket has nothing left to hide behind.
    last = min(mine, BATCH) * model.per_token
    tail = spent * min(1.0, BUCKET / (4 * model.n_param))
    exposed = max(tail, spent - HIDDEN * 2 / 3 * last)
    return Update(n_gpu, tokens, compute, spent, exposed, model.adam)


def exchange(model: Model, n_gpu: int, nic: float) -> float:
    """Seconds to add up the gradient: a ring inside each node, and one between nodes for each GPU's part of it."""
    size = 4.0 * model.n_param
    inside, n_node = min(n_gpu, PER_NODE), max(1, n_gpu // PER_NODE)
    ring = 2 * (inside - 1) / inside * size / NVLINK
    between = 2 * (n_node - 1) / n_node * size / inside / nic
    waiting = math.ceil(size / BUCKET) * 2 * math.log2(n_node) * HOP
    return ring + between + waiting


def tables(price: float, critical: float) -> Iterator[str]:
    """The lines of docs/scaling.md that are computed."""
    yield "| model | parameters | FLOP a token | gradient, fp32 | one GPU alone, tokens/s |"
    yield "|---|---|---|---|---|"
    for model in MODELS:
        alone = update(model, 1, BATCH).speed
        yield (
            f"| {model.name} | {model.n_param / 1e6:.1f} M | {model.flop / 1e6:,.0f} M "
            f"| {4 * model.n_param / 1e6:.0f} MB | {alone / 1e3:,.0f} k |"
        )
    plans = (
        (0.0, NIC, f"{BATCH:,} tokens on each GPU, 400 Gb/s for each GPU"),
        (400_000.0, NIC, "400,000 tokens an update, 400 Gb/s for each GPU"),
        (400_000.0, NIC / PER_NODE, f"400,000 tokens an update, 400 Gb/s for each node of {PER_NODE}"),
    )
    for model in MODELS:
        for fixed, nic, plan in plans:
            yield from ("", f"**{model.name}: {plan}**", "")
            yield from _table(model, fixed, nic, price, critical)


def _table(model: Model, fixed: float, nic: float, price: float, critical: float) -> Iterator[str]:
    yield (
        "| GPUs | tokens/update | compute ms | exchange ms | of it exposed | Adam ms | tokens/s | of linear "
        "| $ a billion | needs | $ a useful billion |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    alone = update(model, 1, fixed or BATCH, nic)
    for n_gpu in GPUS:
        one = update(model, n_gpu, fixed or n_gpu * BATCH, nic)
        linear = one.speed / (n_gpu * alone.speed)
        cost = price * n_gpu * 1e9 / one.speed / 3600
        needs = 1 + one.tokens / critical  # tokens to the same loss, beside those of small batches
        yield (
            f"| {n_gpu} | {one.tokens:,.0f} | {1e3 * one.compute:.1f} | {1e3 * one.exchange:.1f} "
            f"| {1e3 * one.exposed:.1f} | {1e3 * one.optimizer:.1f} | {one.speed / 1e6:.2f} M | {linear:.0%} "
            f"| {cost:.2f} | x {needs:.2f} | {cost * needs:.2f} |"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--price", type=float, default=3.0, help="dollars for an hour of one GPU [%(default)s]")
    parser.add_argument("--critical", type=float, default=400_000, help="critical batch in target tokens [%(default)s]")
    args = parser.parse_args()
    print("\n".join(tables(args.price, args.critical)))


if __name__ == "__main__":
    main()
