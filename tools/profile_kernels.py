"""What a GPU spends its time on, kernel by kernel: in an update of training, or in a search.

    python tools/profile_kernels.py train [--size base] [--vocab 37000] [--tokens 16384] [--set OPTION=VALUE ...]
    python tools/profile_kernels.py translate RUN --input FILE [--lines 3003] [--beam 4] [--max-tokens 262144]

train: packed batches of random pairs as long as those of newstest, in bf16; with --set train.compile=true and
train.cuda_graphs=true as docs/gpu.md advises. translate: ids in, ids out, in bf16 with decode.cuda_graphs.
Prints how long an update or the search took by the clock, how long kernels ran in it, a line for each part of it as in
tools/roofline.py, and the longest kernels. With --device cpu it shows the operators of torch.
"""

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bench_training
import torch
from bench_decoding import sources_of
from torch.profiler import ProfilerActivity, profile

import nmt
from nmt.data.batching.plan import Position
from nmt.device import choose_device
from nmt.errors import NmtError
from nmt.native.allocator import keep_freed_blocks
from nmt.recipe.reader import load_resolved
from nmt.training.engine import Engine
from nmt.training.feed import Feed
from nmt.training.out_of_memory import Work
from nmt.training.parallel import Ranks
from nmt.training.starting.materials import new_model

# What the name of a kernel says of the part that it belongs to; the first that fits.
PARTS = {
    "attention": r"_forward$|_backward_of|_(look|list|write)$|flash|fmha|attention",
    "products": r"nvjet|gemm|cublas|cutlass|aten::(add)?mm$|aten::bmm",
    "Adam and clipping": r"FusedOptimizer|multi_tensor|adam|foreach",
    "norm, dropout, residual": r"_and_norm$|layer_norm|native_dropout|rms_norm",
    "loss or choice": r"_scan$|_go_on$|softmax|exp_mul|nll|[Tt]op[kK]|logsumexp|sort",
    "activation": r"relu|threshold|gelu|silu",
}


def part_of(name: str) -> str:
    """Of a kernel by its name."""
    return next((part for part, pattern in PARTS.items() if re.search(pattern, name)), "all else")


def updates(args: argparse.Namespace) -> Callable[[], object]:
    """What trains on all batches once."""
    flags = f"--device {args.device} --size {args.size} --vocab {args.vocab} --lengths newstest --arithmetic bf16"
    flags += (
        f" --max-tokens {args.tokens} --batches {args.batches} --set model.attn_dropout=0.0 --set batch.packed=true"
    )
    bench = bench_training.parse([*flags.split(), *(part for pair in args.set for part in ("--set", pair))])
    with tempfile.TemporaryDirectory() as folder:
        recipe = load_resolved(bench_training.make_recipe(bench, Path(folder) / "recipe.yaml"))
    device = choose_device(args.device)
    precision, data = bench_training.switch("bf16", device), bench_training.data_of(bench, recipe)
    portions = Feed(recipe, data, Ranks()).begin(Position())
    works: list[Work] = [
        work for _, portion in zip(range(args.batches), portions, strict=False) for work in portion.work
    ]
    engine = Engine(new_model(recipe, data, device).train(), recipe, precision=precision, ranks=Ranks())

    def go() -> None:
        for work in works:
            engine.backward([work], work.batch.n_gold)
            engine.settle()
            engine.step(1e-4, update=1)
        engine.settle()

    return go


def search(args: argparse.Namespace) -> Callable[[], object]:
    """What translates all lines once."""
    model = nmt.load(args.run, device=args.device)
    translator = model.translator(
        model.decode(beam=args.beam, n_best=1, max_tokens=args.max_tokens, precision="bf16", cuda_graphs=True)
    )
    sources = sources_of(args, model)
    return lambda: sum(len(batch) for _, batch in translator.batches(sources))


def seconds_of(go: Callable[[], object], device: str) -> float:
    """How long it takes, the device's work included."""
    begin = time.perf_counter()
    go()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def report(found: list[SimpleNamespace], seconds: float, n: int, most: int) -> Iterator[str]:
    """The lines to print. found: kernels with name, ms and count in all; seconds and n: of n updates or searches."""
    total = sum(one.ms for one in found)
    n_kernel = sum(one.count for one in found) / n
    yield f"{1000 * seconds / n:.2f} ms by the clock, {total / n:.2f} ms in {n_kernel:,.0f} kernels"
    parts: Counter[str] = Counter()
    for one in found:
        parts[part_of(one.name)] += one.ms
    for part, ms in parts.most_common():
        yield f"{ms / n:10.3f} ms {ms / total:6.1%}  {part}"
    yield ""
    for one in sorted(found, key=lambda one: -one.ms)[:most]:
        yield f"{one.ms / n:10.3f} ms {one.count / n:9.1f}x  {one.name[:90]}"


def kernels_of(profiled: Any, device: str) -> list[SimpleNamespace]:
    """What ran on the device, without the marks that torch puts around several kernels."""
    found = []
    for event in profiled.key_averages():
        us = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        if event.device_type.name.lower() == device and us > 0 and not event.key.startswith("##"):
            found.append(SimpleNamespace(name=event.key, ms=us / 1000, count=event.count))
    return found


def parse() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--rounds", type=int, default=3, help="that are timed")
    parser.add_argument("--most", type=int, default=25, help="kernels to name")
    ways = parser.add_subparsers(dest="what", required=True)
    train = ways.add_parser("train")
    train.add_argument("--size", default="base", choices=["tiny", "small", "base", "big"])
    train.add_argument("--vocab", type=int, default=37_000)
    train.add_argument("--tokens", type=int, default=16_384, help="of each side, in a batch")
    train.add_argument("--batches", type=int, default=8)
    train.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="of the recipe")
    translate = ways.add_parser("translate")
    translate.add_argument("run")
    translate.add_argument("--input", required=True, help="source sentences")
    translate.add_argument("--lines", type=int, default=3003)
    translate.add_argument("--beam", type=int, default=4)
    translate.add_argument("--max-tokens", type=int, default=262_144, help="decode.max_tokens")
    return parser.parse_args()


def main() -> None:
    """Time, profile and print."""
    args = parse()
    keep_freed_blocks(in_large_pages=args.what == "train")
    go, n = (updates(args), args.batches) if args.what == "train" else (search(args), 1)
    for _ in range(2):  # compiles and records what is not there yet
        first = seconds_of(go, args.device)
    seconds = statistics.median([first, *(seconds_of(go, args.device) for _ in range(args.rounds))])
    with profile(activities=[ProfilerActivity.CUDA if args.device == "cuda" else ProfilerActivity.CPU]) as profiled:
        seconds_of(go, args.device)
    for line in report(kernels_of(profiled, args.device), seconds, n, args.most):
        print(line)


if __name__ == "__main__":
    try:
        main()
    except NmtError as error:
        sys.exit(f"profile_kernels: error: {error}")
