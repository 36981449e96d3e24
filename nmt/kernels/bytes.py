"""Matrix products of whole numbers of 8 bits by a kernel, called with tensors.

N rows, D and E columns.
"""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.kernels.compiler import library
from nmt.kernels.switch import place, room, why_not, workroom

PANEL, GROUP = 16, 8  # columns, and numbers of a sum, that are multiplied at a time
MOST = 127  # of the whole numbers from 0 on that stand for states


@functools.cache
def bytes_in_kernels() -> bool:
    """Whether a kernel multiplies numbers of 8 bits: the processor has AVX2, and no instructions for such sums."""
    return not why_not() and bool(library().has_bytes())


class BytesLaidOut:
    """A matrix (E, D) of whole numbers from -127 to 127 that is laid out as the kernel reads it; `bytes_in_kernels` was
    asked. Of each group of 8 numbers of a row the first two of both halves, of either sign, come to 258 at most, and so
    do the others: times MOST they have 16 bits.
    """

    def __init__(self, whole: Tensor, scale: Tensor, bias: Tensor, affine: tuple[Tensor, Tensor] | None = None) -> None:
        """What a sum stands for is sum · scale + bias, (E,) both. affine: what states of fp32 are multiplied by, and
        what is then added, (D,) both, to be rounded to 0 to MOST; None: they only are to be rounded."""
        self._size = n_out, n_in = whole.shape
        self._held, self._laid = room(library().size_of_bytes(n_out, n_in))
        library().lay_out_bytes(self._laid, place(whole.contiguous()), n_out, n_in)
        self._scale, self._bias = (F.pad(one.float(), (0, -n_out % PANEL)) for one in (scale, bias))
        self._affine = [F.pad(one.float(), (0, -n_in % GROUP)) for one in affine] if affine else [None, None]
        self._room = library().room_of_bytes(n_in)

    def times(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """(N, D) fp32, or what `states` made -> (N, E) fp32, to which plus, of that shape, is added.

        A row in which something is not finite is NaN.
        """
        out = torch.empty(len(x), self._size[0])
        self._multiply(x, out, None if plus is None else plus.contiguous(), None)
        return out

    def states(self, x: Tensor) -> Tensor:
        """(N, D) fp32 -> (N, E) and zeros up to whole panels, uint8: sum · scale + bias of each, as whole numbers from
        0 to MOST."""
        out = torch.empty(len(x), self._size[0] + -self._size[0] % PANEL, dtype=torch.uint8)
        self._multiply(x, None, None, out)
        return out

    def _multiply(self, x: Tensor, out: Tensor | None, plus: Tensor | None, states: Tensor | None) -> None:
        x, n_thread, (n_out, n_in) = x.contiguous(), torch.get_num_threads(), self._size
        known = x.dtype == torch.uint8
        assert (known or x.dtype == torch.float32) and (plus is None or plus.dtype == torch.float32)
        assert x.size(1) == (n_in + -n_in % PANEL if known else n_in)
        mine = workroom(n_thread * self._room)
        library().multiply_bytes(
            *(place(one) for one in (out, plus, states)),
            place(x if known else None),
            place(None if known else x),
            *(place(one) for one in self._affine),
            self._laid,
            place(self._scale),
            place(self._bias),
            len(x),
            n_out,
            n_in,
            mine,
            n_thread,
        )
