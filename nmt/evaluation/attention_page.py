"""Attention as a picture by matplotlib, or as one page of HTML that can be asked: which sentence, attention, layer and
head; words or subwords.

The texts are data: the script of the page is given JSON, in which no character can end it, and shows them as text.
"""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from nmt.data.sentences import writes_no_space
from nmt.data.subwords import BOS, EOS, Codec, Subwords
from nmt.errors import NmtError
from nmt.extras import require
from nmt.files import filled_page, json_for_html, write_durably
from nmt.models.base import Attns
from nmt.recipe.model_options import ATTENTIONS, Attention

Layers = Sequence[int] | Literal["last", "all"]
Heads = Sequence[int] | Literal["mean", "all"]
# What looks, and at what: the words of `attention_page.js`.
KINDS: dict[Attention, str] = {
    "cross": "cross: translation at source",
    "encoder": "encoder: source at itself",
    "decoder": "decoder: translation at itself",
}
PICTURES = (".png", ".svg", ".pdf")
PAGE = ".html"


class Panel(NamedTuple):
    """One heat map: name says which layer and head, weights is (Q, K), what looks in rows."""

    name: str
    weights: Tensor


class Grid(NamedTuple):
    """Heat maps of one kind of attention in a sentence: a row of panels for each layer, a column for each head.

    queries, keys: the Q pieces that look and the K that they look at. caption: the kind, in words.
    """

    rows: list[list[Panel]]
    queries: list[str]
    keys: list[str]
    caption: str
    title: str


class Axis(NamedTuple):
    """Labels along one side of an attention: pieces, the number of the word that each is part of, the words."""

    pieces: list[str]
    words: list[int]
    texts: list[str]


class Sentence(NamedTuple):
    """All kinds of attention of a model while it wrote one translation.

    weights: (n_layer, n_head, Q, K) by kind, what looks in rows and what is looked at in columns. src and trg have EOS
    at their ends; read: what the decoder had read when it wrote each of trg, a place behind it.
    """

    weights: dict[Attention, Tensor]
    src: Axis
    trg: Axis
    read: Axis
    title: str = ""

    def axes(self, kind: Attention) -> tuple[Axis, Axis]:
        """Return the axes of the rows (queries) and of the columns (keys)."""
        if kind == "encoder":
            return self.src, self.src
        return self.trg, self.src if kind == "cross" else self.read

    def grid(self, kind: Attention, layers: Layers, heads: Heads) -> Grid:
        """One kind of attention, by pieces. Raises NmtError for a kind, layer or head that the model has not."""
        if kind not in self.weights:
            raise NmtError(f"this model has no attention of the kind {kind}, only {', '.join(self.weights)}.")
        queries, keys = self.axes(kind)
        rows = panels(self.weights[kind], layers, heads)
        return Grid(rows, queries.pieces, keys.pieces, KINDS[kind], self.title)


def check_path(path: Path) -> None:
    """Raise NmtError where no picture can be drawn under such a name: its ending, its folder, or no matplotlib."""
    ending = path.suffix.lower()
    if ending not in (*PICTURES, PAGE):
        raise NmtError(
            f"{path}: attention is drawn as a picture, {', '.join(PICTURES)}, or as a page, {PAGE}; give the file one "
            "of these endings."
        )
    if ending != PAGE:
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
    check_path(path)
    grids = [one.grid(kind, layers, heads) for one in sentences]
    ending = path.suffix.lower()
    if ending == PAGE:
        content = page(sentences, kind, layers, heads, langs, run).encode("utf-8")
    else:
        from nmt.evaluation.attention_picture import picture  # here, since matplotlib is slow to import

        content = picture(grids, ending.removeprefix("."))
    write_durably(path, content)


def panels(weights: Tensor, layers: Layers, heads: Heads) -> list[list[Panel]]:
    """The heat maps of one pair: a row for each layer, a column for each head, or one column for their mean.

    Raises NmtError naming the layers or heads that do not exist.
    """
    n_layer, n_head = weights.shape[:2]
    rows = _numbers("layer", layers, n_layer)
    if heads == "mean":
        of = f", mean of {n_head} heads" if n_head > 1 else ""
        return [[Panel(f"layer {i}{of}", weights[i - 1].mean(0))] for i in rows]
    columns = _numbers("head", heads, n_head)
    return [[Panel(f"layer {i}, head {j}", weights[i - 1, j - 1]) for j in columns] for i in rows]


def _numbers(what: str, wanted: Sequence[int] | str, n: int) -> list[int]:
    if isinstance(wanted, str):
        return [n] if wanted == "last" else list(range(1, n + 1))
    if missing := [str(number) for number in wanted if not 1 <= number <= n]:
        raise NmtError(f"there is no {what} {', '.join(missing)}: the model has {what}s 1 to {n}.")
    return list(wanted)


def sentence_of(
    attns: Attns, src_ids: Sequence[int], trg_ids: Sequence[int], subwords: Subwords, title: str = ""
) -> Sentence:
    """attns: of this sentence alone, (n_layer, n_head, Q, K) each. Ids are without EOS at the end."""
    weights = {kind: found for kind in ATTENTIONS if (found := getattr(attns, kind)) is not None}
    src, trg = [*src_ids, EOS], [*trg_ids, EOS]
    # What was translated in pieces was begun anew for each.
    read = [BOS, *(BOS if i == EOS else i for i in trg[:-1])]
    return Sentence(weights, axis_of(src, subwords.src), axis_of(trg, subwords.trg), axis_of(read, subwords.trg), title)


def axis_of(ids: Sequence[int], codec: Codec) -> Axis:
    """Pieces and words of a row of ids. A word is what stands between white space; where a script writes none, each
    piece that is no part of a character is one, and so is each control symbol."""
    raw, pieces = codec.raw(ids), codec.pieces(ids)
    words: list[int] = []
    for number in range(len(raw)):
        # The last character before a piece may be of several pieces: four bytes hold any.
        words.append(words[-1] + _begins_word(raw[max(0, number - 4) : number], raw[number]) if words else 0)
    texts = []
    for word in range(max(words, default=-1) + 1):
        its = [number for number, one in enumerate(words) if one == word]
        text = b"".join(raw[number] for number in its).decode("utf-8", errors="replace").strip()
        shown = "".join(pieces[number] for number in its)
        texts.append(text if text and text.isprintable() else shown.lstrip("▁") or shown)
    return Axis(pieces, words, texts)


def _begins_word(before: Sequence[bytes], piece: bytes) -> bool:
    """Return whether a piece begins a word, given at least one piece before it."""
    if not before[-1] or not piece:
        return True
    if piece[0] & 0xC0 == 0x80:
        return False  # it goes on with a character
    last = b"".join(before)[-4:].decode("utf-8", errors="ignore")[-1:]
    first = piece.decode("utf-8", errors="replace")[0]
    if not before[-1].strip() or not last:
        return False  # white space belongs to what comes after it
    return last.isspace() or first.isspace() or writes_no_space(last) or writes_no_space(first)


# A weight is two letters of base 64, so a multiple of 1/4095: right in three digits. A sentence takes layers x heads x
# 2 bytes x (S² + T² + T·S) of its S and T subwords, and that is nearly all of the page.
_LETTERS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8)
MOST_BYTES = 100_000_000  # of weights: more than that, and browsers get slow


def page(
    sentences: Sequence[Sentence],
    kind: Attention,
    layers: Layers,
    heads: Heads,
    langs: tuple[str, str] = ("", ""),
    run: str = "",
) -> str:
    """The text of a page of all attention in some sentences of one model.

    kind, layers, heads: what it shows first, of several layers the last. langs, run: for the title.
    Raises NmtError where it would be too large.
    """
    n_byte = sum(2 * weights.numel() for one in sentences for weights in one.weights.values())
    if n_byte > MOST_BYTES:
        raise NmtError(
            f"a page of this attention would have {n_byte / 1e6:,.0f} MB, and {MOST_BYTES / 1e6:,.0f} is the most: "
            "name fewer or shorter lines with --lines, or draw a picture."
        )
    grids = {each: one.shape[:2] for each, one in sentences[0].weights.items()}
    layer = (grids[kind][0] if isinstance(layers, str) else layers[-1]) - 1
    head = heads if isinstance(heads, str) else heads[0] - 1 if len(heads) == 1 else "all"
    data = {
        "kinds": {each: {"layers": n_layer, "heads": n_head} for each, (n_layer, n_head) in grids.items()},
        "shown": {"kind": kind, "layer": layer, "head": head},
        "langs": dict(zip(("src", "trg"), langs, strict=True)),
        "sentences": [
            {
                "title": one.title,
                **{name: getattr(one, name)._asdict() for name in ("src", "trg", "read")},
                "weights": {each: letters(weights) for each, weights in one.weights.items()},
            }
            for one in sentences
        ],
    }
    named = [part for part in (" → ".join(langs) if all(langs) else "", run) if part]
    title = html.escape(f"Attention{': ' if named else ''}{', '.join(named)}")
    return filled_page(Path(__file__).with_name("attention_page.html"), {"title": title, "data": json_for_html(data)})


def letters(weights: Tensor) -> str:
    """Weights, each as two letters of base 64, in a row: those of the first layer and head first."""
    numbers = np.rint(weights.double().clamp(0.0, 1.0).numpy() * 4095.0).astype(np.int64)
    return _LETTERS[np.stack([numbers >> 6, numbers & 63], axis=-1)].tobytes().decode("ascii")
