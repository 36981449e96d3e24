"""The least time that each part of an update can take on a GPU: its operations over the peak, its bytes over bandwidth.

    python tools/roofline.py [--model base|big] [--vocabulary 37000] [--tokens 16384] [--length 30]
                             [--peak 790] [--bandwidth 4300] [--memory 150]
                             [--unfused | --search [--beam 4] [--sentences 512]]

For a packed batch of --tokens source and as many target tokens, in bf16 under autocast (matrix products in 2 bytes,
the residual stream and the norms in 4). One line a part: TFLOP, GB, the milliseconds of each, and which of them rules.
No part can be faster; how near the sum comes to the truth is what tools/bench_training.py --device cuda measures.
With --search: of a beam search of --sentences in bf16 with decode.cuda_graphs, which tools/bench_decoding.py
--device cuda --cuda-graphs measures.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from nmt.recipe.presets import PRESETS
from nmt.training.losses.loss import chunk_bytes_of_gpu

HALF, FULL = 2, 4  # bytes of a number in matrix products, and in the residual stream, weights and optimizer


@dataclass(frozen=True)
class Part:
    """flop and byte: of forward and backward together, for one update; or of a whole search."""

    name: str
    flop: float
    byte: float


@dataclass(frozen=True)
class Shape:
    """What an update is made of."""

    d_model: int
    d_inner: int
    n_enc: int
    n_dec: int
    vocabulary: int
    tokens: int
    length: int

    @property
    def n_param(self) -> float:
        """Weights with one shared embedding; biases and norms are too few to count."""
        layer = 4 * self.d_model**2 + 2 * self.d_model * self.d_inner
        return self.n_enc * layer + self.n_dec * (layer + 4 * self.d_model**2) + self.vocabulary * self.d_model


def product(name: str, shape: Shape, n: float, d_in: int, d_out: int) -> Part:
    """n matrices of (d_in, d_out) applied to all tokens: y = x W, then the gradients of x and of W."""
    x, y, w = shape.tokens * d_in * HALF, shape.tokens * d_out * HALF, d_in * d_out
    # Each of the three products reads two and writes one of x, y, W; W's gradient in full precision, its cast once.
    moved = 3 * (x + y) + 2 * w * HALF + w * FULL + w * (FULL + HALF)
    return Part(name, n * 3 * 2 * shape.tokens * d_in * d_out, n * moved)


def parts(shape: Shape, *, fused: bool, memory: float) -> Iterator[Part]:
    """Everything that an update does, part by part. memory: of the device, in GB."""
    d, n_layer = shape.d_model, shape.n_enc + shape.n_dec
    n_attention = shape.n_enc + 2 * shape.n_dec
    n_sublayer = 2 * shape.n_enc + 3 * shape.n_dec
    yield product("attention projections", shape, 4 * n_attention, d, d)
    yield product("feed-forward", shape, 2 * n_layer, d, shape.d_inner)
    # Flash attention: q kT and its product with v, backward two and a half times as much; nothing but q, k, v, the
    # output and their gradients is moved.
    flop = n_attention * 3.5 * 4 * shape.tokens * shape.length * d
    yield Part("attention itself", flop, n_attention * (4 + 8) * shape.tokens * d * HALF)
    # The logits are made and used up chunk by chunk. Fused: written, read for the sum and for the probabilities, which
    # are written and read by two products; else a pass in fp32 for each of maximum, exponent, sum, scale, target, ...
    output = product("", shape, 1, d, 0)
    passes = 6 * HALF if fused else 13 * FULL + 4 * HALF
    # The gradient of the weights is a product for each chunk, which a pass of its own adds to the sum of those before.
    n_chunk = math.ceil(shape.tokens * shape.vocabulary * FULL / chunk_bytes_of_gpu(int(memory * 1e9)))
    n_gradient = n_chunk * d * shape.vocabulary
    flop = 3 * 2 * shape.tokens * d * shape.vocabulary
    moved = output.byte + n_gradient * HALF + shape.tokens * shape.vocabulary * passes
    yield Part("output layer and loss", flop, moved)
    yield Part("its gradients, summed", 0, n_gradient * (HALF + 2 * FULL))
    # Between two products: dropout, residual, norm, and their gradients. Fused, forward reads the branch and the
    # residual and writes the new residual and what is normed; backward moves as much again, and the mask.
    row = shape.tokens * d
    passes = (2 * HALF + 2 * FULL) * 2 + 1 if fused else (6 * HALF + 5 * FULL) * 2 + 4
    yield Part("norm, dropout, residual", 0, n_sublayer * row * passes)
    inner = shape.tokens * shape.d_inner * HALF
    yield Part("activation", 0, n_layer * inner * (2 + 3) * (1 if fused else 2))
    yield Part("embeddings", 0, 2 * row * (2 * FULL + 3 * FULL))
    yield Part("clipping and Adam", 0, shape.n_param * FULL * (7 + 1 + 2))


def products(name: str, n: float, rows: float, weights: float, width: float) -> Part:
    """n times so many weights, each used by every row. width: numbers that a row brings and takes away."""
    return Part(name, n * 2 * rows * weights, n * (weights + rows * width) * HALF)


def parts_of_search(shape: Shape, *, sentences: int, beam: int) -> Iterator[Part]:
    """Everything that a search does whose translations are as long as the sources, end included."""
    d, inner, n_step, rows = shape.d_model, shape.d_inner, shape.length + 1, sentences * beam
    tokens = sentences * (shape.length + 1)
    per_layer, moved = 4 * d * d + 2 * d * inner, 8 * d + 2 * (d + inner)
    yield products("encoder", shape.n_enc, tokens, per_layer, moved)
    yield products("keys, values of source", shape.n_dec, tokens, 2 * d * d, 3 * d)
    yield products("decoder, all steps", n_step * shape.n_dec, rows, per_layer + 2 * d * d, moved + 4 * d)
    yield products("output layer", n_step, rows, d * shape.vocabulary, d + shape.vocabulary)
    yield Part("choice", 0, n_step * rows * shape.vocabulary * HALF)  # read once, for the sum and the best
    # At most: what several hypotheses of a sentence look at is read once.
    yield Part("looking back", 0, n_step * shape.n_dec * rows * (n_step + 1) / 2 * 2 * d * HALF)
    yield Part("looking at the source", 0, n_step * shape.n_dec * tokens * 2 * d * HALF)
    yield Part("norm, residual", 0, n_step * 3 * shape.n_dec * rows * d * 5 * HALF)


def table(found: Iterator[Part], *, tokens: int, peak: float, bandwidth: float) -> Iterator[str]:
    """The lines to print. tokens: target tokens; peak in TFLOP/s, bandwidth in GB/s."""
    yield f"{'part':24} {'TFLOP':>8} {'GB':>8} {'ms FLOP':>9} {'ms byte':>9}  rules"
    total = flop = 0.0
    for part in found:
        by_flop, by_byte = part.flop / peak / 1e9, part.byte / bandwidth / 1e6
        total += max(by_flop, by_byte)
        flop += part.flop
        rules = "arithmetic" if by_flop >= by_byte else "memory"
        yield f"{part.name:24} {part.flop / 1e12:8.2f} {part.byte / 1e9:8.2f} {by_flop:9.2f} {by_byte:9.2f}  {rules}"
    yield (
        f"{'all':24} {flop / 1e12:8.2f} {'':8} {flop / peak / 1e9:9.2f} {total:9.2f}  at most "
        f"{tokens / total:,.0f} k target tokens/s, {flop / peak / 1e9 / total:.0%} of the peak"
    )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[name for name in PRESETS if name != "auto"], default="base")
    parser.add_argument("--vocabulary", type=int, default=37_000)
    parser.add_argument("--tokens", type=int, default=16_384, help="of each side, in a batch")
    parser.add_argument("--length", type=int, default=30, help="of a sentence, in subwords")
    parser.add_argument("--peak", type=float, default=790.0, help="TFLOP/s of dense bf16 products")
    parser.add_argument("--bandwidth", type=float, default=4300.0, help="GB/s of the device memory")
    parser.add_argument("--memory", type=float, default=150.0, help="GB of the device memory")
    parser.add_argument("--unfused", action="store_true", help="every small operation a pass of its own")
    parser.add_argument("--search", action="store_true", help="of beam search, not of training")
    parser.add_argument("--beam", type=int, default=4, help="hypotheses of a sentence, with --search")
    parser.add_argument("--sentences", type=int, default=512, help="searched together, with --search")
    args = parser.parse_args()
    sizes = PRESETS[args.model]
    d_model, d_inner, n_enc, n_dec = (int(sizes[name]) for name in ("d_model", "d_inner", "n_enc_layer", "n_dec_layer"))
    shape = Shape(d_model, d_inner, n_enc, n_dec, args.vocabulary, args.tokens, args.length)
    found, tokens = parts(shape, fused=not args.unfused, memory=args.memory), args.tokens
    if args.search:
        found = parts_of_search(shape, sentences=args.sentences, beam=args.beam)
        tokens = args.sentences * (args.length + 1)
    for line in table(found, tokens=tokens, peak=args.peak, bandwidth=args.bandwidth):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
