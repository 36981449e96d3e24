"""Some pairs of a prepared folder as people can read them: the text that the ids stand for, the pieces, the ids.

The text is decoded from what is stored, so that what is shown is what a model will learn from.
"""

import random
from collections.abc import Iterator
from pathlib import Path

from nmt.data.stored.corpus import Prepared

_SEED = 0


def show_pairs(folder: Path, n: int, seed: int = _SEED) -> Iterator[str]:
    """Lines of text on n training pairs, drawn by the seed, in their order; all pairs where there are no more."""
    data = Prepared.open(folder)
    n = min(n, data.train.n_pair)
    numbers = sorted(random.Random(seed).sample(range(data.train.n_pair), n))
    codecs = (data.subwords.src, data.subwords.trg)
    for number in numbers:
        yield f"pair {number + 1:,} of {data.train.n_pair:,}"
        for side, codec, (ids,) in zip(("src", "trg"), codecs, data.train.pairs([number]), strict=True):
            yield f"  {side} text    {codec.decode(ids.tolist())}"
            yield f"  {side} pieces  {' '.join(codec.pieces(ids.tolist()))}"
            yield f"  {side} ids     {' '.join(map(str, ids.tolist()))}"
