"""Pictures of attention: a .png, .svg or .pdf by matplotlib, or a page of .html that needs nothing else."""

from collections.abc import Sequence
from pathlib import Path

from nmt.errors import NmtError
from nmt.evaluation.attention_page import Heads, Layers, Sentence, page, panels
from nmt.extras import require
from nmt.files import write_durably
from nmt.recipe.model_options import Attention

PICTURES = (".png", ".svg", ".pdf")
PAGE = ".html"


def check_path(path: Path) -> None:
    """Raise NmtError where no picture can be drawn under such a name: its ending, its folder, or no matplotlib."""
    if path.suffix.lower() not in (*PICTURES, PAGE):
        raise NmtError(
            f"{path}: attention is drawn as a picture, {', '.join(PICTURES)}, or as a page, {PAGE}; give the file one "
            "of these endings."
        )
    if path.suffix.lower() != PAGE:
        require("plots", str(path), f"; a page, {PAGE}, needs none")
    if not path.absolute().parent.is_dir():
        raise NmtError(f"{path}: there is no folder {path.parent} to write into; make it first.")


def draw(
    sentences: Sequence[Sentence],
    path: Path,
    *,
    kind: Attention = "cross",
    layers: Layers = "last",
    heads: Heads = "mean",
    langs: tuple[str, str] = ("", ""),
    run: str = "",
) -> None:
    """Draw one kind of attention of some sentences below each other, each as a grid of layers x heads; or a page of all
    of it, by the ending of `path`. langs: of source and target. run: its name, for the title of a page.

    Raises NmtError for what the model has not, and for a page of too many bytes.
    """
    assert sentences
    check_path(path)
    alignments = [one.alignment(kind) for one in sentences]
    grids = [(one, panels(one, layers, heads)) for one in alignments]
    suffix = path.suffix.lower()
    if suffix == PAGE:
        content = page(sentences, kind, layers, heads, langs, run).encode("utf-8")
    else:
        from nmt.evaluation.attention_picture import picture  # here, since matplotlib is slow to import

        content = picture(grids, suffix.removeprefix("."))
    write_durably(path, content)
