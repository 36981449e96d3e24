"""What it saves to leave out zeros, of fp32 on a CPU with AVX2 or AVX-512: python tools/bench_zeros.py --help

Hidden units of a ReLU are drawn of which given shares are not zero, of some units more and of some fewer. Each of the
four products of a feed-forward sub-layer that read them, or their gradients, is made of all numbers and without zeros
in turns; both results must be the same to the bit. The gradient of hidden units, with the sums of its columns, is made
of all and of those that are not zero alone, which is the same up to rounding. Printed is the share of the time.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from nmt.native import kernels, passes, products
from nmt.native.allocator import keep_freed_blocks

SHARES = (0.5, 0.333, 0.25, 0.125)


def units(share: float, n_row: int, width: int) -> Tensor:
    """(n_row, width) that a ReLU may have made, of which about a share is not zero."""
    each = torch.rand(width) ** (1 / share - 1)  # whose mean is the share
    return torch.where(torch.rand(n_row, width) < each, torch.rand(n_row, width), torch.zeros(()))


def ways(hidden: Tensor, d_model: int) -> dict[str, Callable[[bool], Tensor]]:
    """Products by what is made, each a function of whether to leave out zeros."""
    n_row, d_inner = hidden.shape
    first, second, rows = torch.randn(d_inner, d_model), torch.randn(d_model, d_inner), torch.randn(n_row, d_model)

    def d_hidden(zeros: bool) -> Tensor:
        if zeros:
            return products.product_where(rows, second, hidden)[0]
        found = products.product(rows, second)
        passes.column_sums(found, hidden)  # where hidden is zero, it becomes so
        return found

    return {
        "d_hidden": d_hidden,
        "output": lambda zeros: products.linear(hidden, [second], torch.zeros(d_model), zeros=zeros),
        "d_input": lambda zeros: products.product(hidden, first, zeros=zeros),
        "d_w_1": lambda zeros: products.weight_gradient(hidden, rows, torch.float32, zeros_in="d_out" if zeros else ""),
        "d_w_2": lambda zeros: products.weight_gradient(rows, hidden, torch.float32, zeros_in="x" if zeros else ""),
    }


def share_of_time(make: Callable[[bool], Tensor], rounds: int, tolerance: float) -> float:
    """Of what it takes with zeros, by medians of turns. tolerance: of the difference between both results."""
    torch.testing.assert_close(make(True), make(False), rtol=0.0, atol=tolerance)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for zeros, found in seconds.items():
            begin = time.perf_counter()
            make(zeros)
            found.append(time.perf_counter() - begin)
    return statistics.median(seconds[True]) / statistics.median(seconds[False])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4000, help="words of a batch")
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--d-inner", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    if why_not := kernels.why_not():
        sys.exit(f"bench_zeros: error: no kernels here: {why_not}")
    kernels.use(True, wide_panels=True)
    if not kernels.switched_on().has_panels():
        sys.exit(
            "bench_zeros: error: zeros are left out on processors with AVX2 or AVX-512 and no AMX, which this is not"
        )
    keep_freed_blocks(in_large_pages=True)  # as nmt-train does
    torch.manual_seed(1)
    for share in SHARES:
        hidden = units(share, args.rows, args.d_inner)
        print(f"{(hidden != 0).float().mean():.1%} not zero", end="")
        for name, make in ways(hidden, args.d_model).items():
            print(
                f"  {name} {share_of_time(make, args.rounds, 1e-3 if name == 'd_hidden' else 0.0):.2f}",
                end="",
                flush=True,
            )
        print()


if __name__ == "__main__":
    main()
