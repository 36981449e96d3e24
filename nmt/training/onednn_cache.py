"""oneDNN's cache of primitives, products made ready for one shape: training on a CPU meets the same shapes again."""

import os

# A batch of a new shape needs up to fifty, which take some 50 kB and up to 2 ms each.
N_PRIMITIVE = 16_384
_VARIABLE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def enlarge_onednn_cache() -> None:
    """Enlarge oneDNN's cache of primitives; call before the first product. A value set by the user is kept.

    By itself it holds 1,024, those of some twenty shapes of batches, and nearly all of an update is prepared anew.
    """
    os.environ.setdefault(_VARIABLE, str(N_PRIMITIVE))
