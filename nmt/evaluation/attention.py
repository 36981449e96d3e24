"""Pictures of attention: a .png by matplotlib, or a page of .html that needs nothing else."""

import os
from collections.abc import Sequence
from pathlib import Path

from nmt.errors import NmtError
from nmt.evaluation.attention_html import page
from nmt.evaluation.attention_panels import Alignment, Heads, Layers, panels

SUFFIXES = (".png", ".html")


def check_path(path: Path) -> None:
    """Raises NmtError where no picture can be drawn under such a name."""
    if path.suffix.lower() not in SUFFIXES:
        raise NmtError(f"{path}: a picture of attention is a .png or an .html; give the file one of these endings.")
    if not path.absolute().parent.is_dir():
        raise NmtError(f"{path}: there is no folder {path.parent} to write into; make it first.")


def draw(alignments: Sequence[Alignment], path: Path, *, layers: Layers = "last", heads: Heads = "mean") -> None:
    """Draw sentence pairs below each other, each as a grid of layers x heads, replacing `path`.

    The ending of `path` chooses the kind. The file is there whole or not at all.
    """
    assert alignments
    check_path(path)
    grids = [(alignment, panels(alignment, layers, heads)) for alignment in alignments]
    if path.suffix.lower() == ".png":
        from nmt.evaluation.attention_png import picture  # matplotlib is slow to import, and seldom needed

        content = picture(grids)
    else:
        content = page(grids).encode("utf-8", errors="replace")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
