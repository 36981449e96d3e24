"""What batches of few fixed shapes cost in padding, beside rows in which sentences lie end to end.

    python tools/static_shapes.py [--lengths newstest|multi30k] [--max-tokens 16384]

A GPU can record a batch once and replay it if its shape returns. Sentences in buckets: source and target are padded to
multiples of a step, and all pairs padded alike make one shape, of as many sentences as max_tokens holds; the last batch
of each shape is not full, which is not counted. One line a step: how many shapes there are, and the share of padding.
"""

import argparse
import sys
from collections.abc import Iterator

import numpy as np
from bench_training import LENGTHS, Synthetic

from nmt.data.batching.plan import Plan


def table(pairs: Synthetic, max_tokens: int) -> Iterator[str]:
    """The lines to print."""
    src, trg = pairs.src_len + 1, pairs.trg_len + 1  # with EOS
    used = int(src.sum() + trg.sum())
    yield f"{'padded to':16}{'shapes':>6}{'padding':>10}"
    for step in (2, 4, 8, 16, 32):
        src_held, trg_held = (-(-side // step) * step for side in (src, trg))
        n_shape = len(np.unique(np.stack([src_held, trg_held]), axis=1).T)
        padding = 1 - used / int(src_held.sum() + trg_held.sum())
        yield f"{f'multiples of {step}':16}{n_shape:6}{padding:10.1%}"
    packed = Plan(pairs.src_len, pairs.trg_len, seed=1, max_tokens=max_tokens, per_update=1, pool=len(src), packed=True)
    yield f"{'packed rows':16}{1:6}{packed.padding_share(0):10.1%}"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", choices=sorted(LENGTHS), default="newstest")
    parser.add_argument("--max-tokens", type=int, default=16_384, help="of each side, in a packed row")
    args = parser.parse_args()
    for line in table(Synthetic(args.lengths, 0, longest=256, n_pair=500_000), args.max_tokens):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
