"""What oneDNN remembers of the products it has made: training on a CPU comes back to the same shapes."""

import os

# A batch of a new shape needs up to fifty, which take some 50 kB and up to 2 ms each.
N_REMEMBERED = 16_384
_VARIABLE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def remember_kernels() -> None:
    """Have oneDNN remember so many kernels, to be called before its first product; the variable of the user stands.

    By itself it remembers 1,024, those of some twenty shapes of batches, and prepares nearly all of an update anew.
    """
    os.environ.setdefault(_VARIABLE, str(N_REMEMBERED))
