"""One sentence pair as pictures of attention want it: the pieces of both sides, the words they make, all the weights.

Where the weights come from is the model's affair; how they are drawn is that of `picture` and `page`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from nmt.data.text.sentences import writes_no_space
from nmt.data.vocabulary.subwords import BOS, EOS, Codec, Subwords
from nmt.errors import NmtError
from nmt.evaluation.attention.panels import Alignment
from nmt.models.base import Attns
from nmt.recipe.model_options import ATTENTIONS, Attention


class Axis(NamedTuple):
    """What stands along one side of an attention: pieces, the number of the word that each is part of, the words."""

    pieces: list[str]
    words: list[int]
    texts: list[str]


@dataclass(frozen=True, slots=True)
class Sentence:
    """Where a model looked while it wrote one translation, in each attention that it has.

    weights: (n_layer, n_head, Q, K) by kind, what looks in rows and what is looked at in columns. src and trg have EOS
    at their ends; read: what the decoder had read when it wrote each of trg, a place behind it.
    """

    weights: dict[Attention, Tensor]
    src: Axis
    trg: Axis
    read: Axis
    title: str = ""

    def axes(self, kind: Attention) -> tuple[Axis, Axis]:
        """What looks, and what it looks at."""
        if kind == "encoder":
            return self.src, self.src
        return self.trg, self.src if kind == "cross" else self.read

    def alignment(self, kind: Attention) -> Alignment:
        """One kind of attention, by pieces. Raises NmtError where the model has none of this kind."""
        if kind not in self.weights:
            raise NmtError(f"this model has no attention of the kind {kind}, only {', '.join(self.weights)}.")
        rows, columns = self.axes(kind)
        return Alignment(self.weights[kind], columns.pieces, rows.pieces, self.title, kind)


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
    """Whether a piece begins a word, after those just before it, of which there are some."""
    if not before[-1] or not piece:
        return True
    if piece[0] & 0xC0 == 0x80:
        return False  # it goes on with a character
    last = b"".join(before)[-4:].decode("utf-8", errors="ignore")[-1:]
    first = piece.decode("utf-8", errors="replace")[0]
    if not before[-1].strip() or not last:
        return False  # white space belongs to what comes after it
    return last.isspace() or first.isspace() or writes_no_space(last) or writes_no_space(first)
