"""Attention as one page of HTML that can be asked: which sentence, attention, layer and head; words or subwords.

Its script and style are `page.js` and `page.css`, inside the page; nothing is loaded, and its policy forbids it.
The texts are data: the script is given JSON, in which no character can end it, and shows them as text.
"""

import base64
import hashlib
import html as html_module
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nmt.errors import NmtError
from nmt.evaluation.attention.panels import Heads, Layers
from nmt.evaluation.attention.sentence import Axis, Sentence
from nmt.recipe.model_options import Attention

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
    data = {
        "kinds": {each: {"layers": n_layer, "heads": n_head} for each, (n_layer, n_head) in grids.items()},
        "shown": {"kind": kind, "layer": _first_layer(layers, grids[kind][0]), "head": _first_head(heads)},
        "langs": dict(zip(("src", "trg"), langs, strict=True)),
        "sentences": [_sentence(one) for one in sentences],
    }
    html, style, script = (_file(ending) for ending in ("html", "css", "js"))
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'"
    parts = {"policy": policy, "style": style, "script": script, "data": _json(data)}
    named = [part for part in (" → ".join(langs) if all(langs) else "", run) if part]
    parts["title"] = html_module.escape(f"Attention{': ' if named else ''}{', '.join(named)}")
    before, *rest = html.split("{{")  # and not replaced one by one: a text may say {{script}}
    return before + "".join(parts[name] + after for name, _, after in (one.partition("}}") for one in rest))


def letters(weights: Tensor) -> str:
    """Weights, each as two letters of base 64, in a row: those of the first layer and head first."""
    numbers = np.rint(weights.double().clamp(0.0, 1.0).numpy() * 4095.0).astype(np.int64)
    return _LETTERS[np.stack([numbers >> 6, numbers & 63], axis=-1)].tobytes().decode("ascii")


def _sentence(sentence: Sentence) -> dict[str, Any]:
    weights = {kind: letters(its) for kind, its in sentence.weights.items()}
    axes = {"src": _axis(sentence.src), "trg": _axis(sentence.trg), "read": _axis(sentence.read)}
    return {"title": sentence.title, **axes, "weights": weights}


def _axis(axis: Axis) -> dict[str, Any]:
    return {"pieces": axis.pieces, "words": axis.words, "texts": axis.texts}


def _first_layer(layers: Layers, n_layer: int) -> int:
    return n_layer - 1 if isinstance(layers, str) else layers[-1] - 1


def _first_head(heads: Heads) -> int | str:
    if isinstance(heads, str):
        return heads
    return heads[0] - 1 if len(heads) == 1 else "all"


def _json(data: dict[str, Any]) -> str:
    """JSON without a character that HTML or a script could take for its own: all but ASCII is escaped, and < > &."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(ending: str) -> str:
    return Path(__file__).with_name(f"page.{ending}").read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """What a content security policy calls this script or style, so that no other one is let in."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
