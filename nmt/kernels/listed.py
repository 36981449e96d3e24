"""Where the hypotheses of a sentence may look, in the form in which kernels of a GPU take it."""

from typing import NamedTuple

from torch import Tensor


class Listed(NamedTuple):
    """The places of a mask, (B or 1, 1, K or 1, S), without those where none may look.

    n: (B,) int32, how many places are left; place: (B, S) int32, which, in their order; bits: (B, S), bit k of them
    whether hypothesis k may look there, all bits where that is asked of all alike. Only the first n count.
    """

    n: Tensor
    place: Tensor
    bits: Tensor
