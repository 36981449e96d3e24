"""Attention as a picture by matplotlib, or as one interactive HTML page: choose sentence, attention, layer, head, and
words or subwords.

The script of the page gets the texts as JSON, escaped so that no text can end the script, and shows them as text.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from nmt.data.sentences import writes_no_space
from nmt.data.subwords import BOS, EOS, Codec, Subwords
from nmt.errors import NmtError
from nmt.extras import require
from nmt.files import script_page, write_durably
from nmt.models.base import Attns
from nmt.recipe.model_options import ATTENTIONS, Attention

Layers = Sequence[int] | Literal["last", "all"]
Heads = Sequence[int] | Literal["mean", "all"]
# Captions of the kinds: queries at keys, as in `attention_page.js`.
KINDS: dict[Attention, str] = {
    "cross": "cross: translation at source",
    "encoder": "encoder: source at itself",
    "decoder": "decoder: translation at itself",
}
PICTURES = (".png", ".svg", ".pdf")
PAGE = ".html"


class Panel(NamedTuple):
    """One heat map. name: its layer and head. weights: (Q, K), queries in rows."""

    name: str
    weights: Tensor


class Grid(NamedTuple):
    """Heat maps of one kind of attention in a sentence: a row of panels for each layer, a column for each head.

    queries, keys: labels of the Q rows and the K columns. caption: the kind of attention, in words.
    """

    rows: list[list[Panel]]
    queries: list[str]
    keys: list[str]
    caption: str
    title: str


class Axis(NamedTuple):
    """Labels along one side of an attention matrix: pieces, the word number of each piece, and the words."""

    pieces: list[str]
    words: list[int]
    texts: list[str]


class Sentence(NamedTuple):
    """All kinds of attention of a model for one translation.

    weights: (n_layer, n_head, Q, K) by kind, with queries in rows and keys in columns. src, trg: with EOS at the end.
    read: the decoder input, that is trg shifted right by one.
    """

    weights: dict[Attention, Tensor]
    src: Axis
    trg: Axis
    read: Axis
    title: str = ""

    def grid(self, kind: Attention, layers: Layers, heads: Heads) -> Grid:
        """Return one kind of attention, by pieces. Raises NmtError for a layer or head that does not exist."""
        queries = self.src if kind == "encoder" else self.trg
        keys = self.read if kind == "decoder" else self.src
        rows = panels(self.weights[kind], layers, heads)
        return Grid(rows, queries.pieces, keys.pieces, KINDS[kind], self.title)


def check_path(path: Path) -> None:
    """Raise NmtError for an unknown ending of a picture, and Unavailable for a picture without matplotlib."""
    ending = path.suffix.lower()
    if ending not in (*PICTURES, PAGE):
        raise NmtError(
            f"{path}: attention is drawn as a picture, {', '.join(PICTURES)}, or as a page, {PAGE}; give the file one "
            "of these endings."
        )
    if ending != PAGE:
        require("plots", str(path), f"; a page, {PAGE}, needs none")


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
    """Draw a picture or a page of attention, by the ending of `path`.

    A picture has one kind of attention, a grid of layers x heads for each sentence, from top to bottom. A page has all
    kinds. langs: of source and target. run: name of the run, for the title of a page. Raises NmtError for a layer or
    head that does not exist, and for a page of too many bytes.
    """
    check_path(path)
    grids = [sentence.grid(kind, layers, heads) for sentence in sentences]
    ending = path.suffix.lower()
    if ending == PAGE:
        content = page(sentences, kind, layers, heads, langs, run).encode("utf-8")
    else:
        from nmt.evaluation.attention_picture import picture  # here, since matplotlib is slow to import

        content = picture(grids, ending.removeprefix("."))
    write_durably(path, content)


def panels(weights: Tensor, layers: Layers, heads: Heads) -> list[list[Panel]]:
    """Return the heat maps of one sentence: a row for each layer, a column for each head, or one for their mean. Raises
    NmtError naming the layers or heads that do not exist."""
    n_layer, n_head = weights.shape[:2]
    rows = _selected("layer", layers, n_layer)
    if heads == "mean":
        suffix = f", mean of {n_head} heads" if n_head > 1 else ""
        return [[Panel(f"layer {i}{suffix}", weights[i - 1].mean(0))] for i in rows]
    columns = _selected("head", heads, n_head)
    return [[Panel(f"layer {i}, head {j}", weights[i - 1, j - 1]) for j in columns] for i in rows]


def _selected(noun: str, selection: Sequence[int] | str, n: int) -> list[int]:
    if isinstance(selection, str):
        return [n] if selection == "last" else list(range(1, n + 1))
    if missing := [str(number) for number in selection if not 1 <= number <= n]:
        raise NmtError(f"there is no {noun} {', '.join(missing)}: the model has {noun}s 1 to {n}.")
    return list(selection)


def sentence_of(
    attns: Attns, src_ids: Sequence[int], trg_ids: Sequence[int], subwords: Subwords, title: str = ""
) -> Sentence:
    """Label the attention of a sentence. attns: its (n_layer, n_head, Q, K) by kind. src_ids, trg_ids: without EOS."""
    weights = {kind: attn for kind in ATTENTIONS if (attn := getattr(attns, kind)) is not None}
    src, trg = [*src_ids, EOS], [*trg_ids, EOS]
    read = axis_of([BOS, *trg_ids], subwords.trg)
    return Sentence(weights, axis_of(src, subwords.src), axis_of(trg, subwords.trg), read, title)


def axis_of(ids: Sequence[int], codec: Codec) -> Axis:
    """Return the pieces and words of a row of ids, at least one.

    Words are separated by white space. In a script without spaces each piece of whole characters is a word, and so is
    each control symbol.
    """
    raw, pieces = codec.raw(ids), codec.pieces(ids)
    # The last character before a piece may span several pieces; it has at most four bytes.
    starts = [i for i in range(len(raw)) if not i or _begins_word(raw[max(0, i - 4) : i], raw[i])]
    words, texts = list[int](), list[str]()
    for word, (start, end) in enumerate(pairwise([*starts, len(raw)])):
        words += [word] * (end - start)
        text = b"".join(raw[start:end]).decode("utf-8", errors="replace").strip()
        shown = "".join(pieces[start:end])
        texts.append(text if text and text.isprintable() else shown.lstrip("▁") or shown)
    return Axis(pieces, words, texts)


def _begins_word(before: Sequence[bytes], piece: bytes) -> bool:
    """Return whether a piece begins a word. before: at least one piece."""
    if not before[-1] or not piece:
        return True
    if piece[0] & 0xC0 == 0x80 or not before[-1].strip():
        return False  # the piece begins inside a character, or after white space, which belongs to the next word
    last, first = (raw.decode("utf-8", errors="replace") for raw in (b"".join(before)[-4:], piece))
    return any(letter.isspace() or writes_no_space(letter) for letter in (last[-1], first[0]))


# A weight is two letters of base 64, so a multiple of 1/4095: three exact digits. A sentence takes layers x heads x
# 2 bytes x (S² + T² + T·S) for its S and T subwords, which is nearly all of the page.
_LETTERS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8)
MAX_BYTES = 100_000_000  # of weights; browsers are slow with more


def page(
    sentences: Sequence[Sentence], kind: Attention, layers: Layers, heads: Heads, langs: tuple[str, str], run: str
) -> str:
    """Return the HTML of a page with all kinds of attention of sentences of one model.

    kind, layers, heads: the first view; of several layers the last. langs, run: for the title. Raises NmtError if the
    page would be too large.
    """
    n_byte = sum(2 * weights.numel() for sentence in sentences for weights in sentence.weights.values())
    if n_byte > MAX_BYTES:
        raise NmtError(
            f"a page of this attention would have {n_byte / 1e6:,.0f} MB, above the limit of {MAX_BYTES / 1e6:,.0f}: "
            "name fewer or shorter lines with --lines, or draw a picture."
        )
    grids = {name: weights.shape[:2] for name, weights in sentences[0].weights.items()}
    layer = (grids[kind][0] if isinstance(layers, str) else layers[-1]) - 1
    head = heads if isinstance(heads, str) else heads[0] - 1 if len(heads) == 1 else "all"
    data = {
        "kinds": {name: {"layers": n_layer, "heads": n_head} for name, (n_layer, n_head) in grids.items()},
        "shown": {"kind": kind, "layer": layer, "head": head},
        "langs": dict(zip(("src", "trg"), langs, strict=True)),
        "sentences": [
            {
                "title": sentence.title,
                **{name: getattr(sentence, name)._asdict() for name in ("src", "trg", "read")},
                "weights": {name: letters(weights) for name, weights in sentence.weights.items()},
            }
            for sentence in sentences
        ],
    }
    parts = [part for part in (" → ".join(langs) if all(langs) else "", run) if part]
    title = f"Attention{': ' if parts else ''}{', '.join(parts)}"
    return script_page(Path(__file__).with_name("attention_page.html"), title, data)


def letters(weights: Tensor) -> str:
    """Encode each weight as two letters of base 64, in row-major order: the first layer and head first."""
    numbers = np.rint(weights.double().clamp(0.0, 1.0).numpy() * 4095.0).astype(np.int64)
    return _LETTERS[np.stack([numbers >> 6, numbers & 63], axis=-1)].tobytes().decode("ascii")
