"""The kept training pairs with placeholders for their items, where both sides have the same ones.

What becomes of a single pair is decided in `placeholders.py`.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from nmt.data.keep import Places, progress_bar, text_of
from nmt.data.placeholders import protected_pair
from nmt.data.report import DataReport
from nmt.recipe.protect_options import Kind


def protect_kept_pairs(kept: tuple[Path, ...], places: Places, kinds: Sequence[Kind], report: DataReport) -> None:
    """Put placeholders into the two files of kept pairs, which are written anew, a pair at a time.

    Their text is UTF-8 but for the placeholders, which are halves of surrogate pairs: `text_of` reads it.
    """
    if not kinds:
        return
    src_new, trg_new = (path.with_name(f"{path.name}.protected") for path in kept)
    with (
        open(src_new, "wb") as src_file,
        open(trg_new, "wb") as trg_file,
        progress_bar("protecting", len(places)) as bar,
    ):
        for n, (src, trg) in enumerate(zip(*map(text_of, kept), strict=True)):
            src_text, trg_text, are_alike = protected_pair(src, trg, kinds)
            if not are_alike:
                report.note("unlike_items", places[n])
            elif src_text != src:
                report.notes["protected"] += 1
            src_file.write(src_text.encode("utf-8", errors="surrogatepass") + b"\n")
            trg_file.write(trg_text.encode("utf-8", errors="surrogatepass") + b"\n")
            bar.update()
    for path, new in zip(kept, (src_new, trg_new), strict=True):
        os.replace(new, path)
