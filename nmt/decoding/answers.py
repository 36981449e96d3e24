"""From the hypotheses of a line to its translation: their texts, the choice among them, what was asked and is not so.

No search: that is `batch_search.py`.
"""

import math
from collections.abc import Callable, Sequence

from nmt.data.text.placeholders import came_back, restored
from nmt.data.text.whitespace import with_ends_of
from nmt.data.vocabulary.subwords import Codec
from nmt.decoding.constraints.request import Request
from nmt.decoding.long_lines import Split, join_hypotheses, join_ids, join_texts, ranked
from nmt.decoding.search.beam import Hypothesis
from nmt.decoding.translation import Translation
from nmt.recipe.decode_options import DecodeConfig

# For minimum Bayes risk: what each of some translations of a line is worth beside the others.
Utility = Callable[[Sequence[str]], list[float]]

_LINE_ENDS = str.maketrans("\n\r", "  ")


class Answers:
    """Makes the answers to requests.

    codec: of the target side.
    """

    def __init__(self, codec: Codec, config: DecodeConfig, utility: Utility | None = None) -> None:
        self._codec, self._config, self._utility = codec, config, utility

    def of(self, request: Request, src_ids: list[int], found: Sequence[Hypothesis]) -> Translation:
        """The answer to a line that the model read at once. found: the hypotheses of it, best first or as drawn."""
        # A line feed inside a translation would shift every line after it.
        codec, items = self._codec, dict(request.items)
        texts = [codec.decode(one.ids, items).translate(_LINE_ENDS) for one in found]
        worth = self._utility(texts) if self._utility else [one.normalised for one in found]
        best = list(range(len(found)))  # as search ranks them
        if self._utility or self._config.samples:
            best.sort(key=lambda n: -worth[n])
        first: dict[str, int] = {}
        for n in best:  # the same text can be drawn twice, or found in other subwords
            first.setdefault(texts[n], n)
        best = list(first.values())[: self._config.n_best]
        texts, utilities = [texts[n] for n in best], [worth[n] for n in best] if self._utility else []
        hypotheses = [found[n] for n in best]
        missing, doubled = self._came_back(request, hypotheses[0].ids) if codec.protects else ([], [])
        unmet = self._unmet(request, texts[0])
        if codec.whitespace == "unified":
            texts = [with_ends_of(request.source, text) for text in texts]
        return Translation(texts[0], texts, hypotheses, src_ids, utilities, unmet, items, missing, doubled)

    def of_pieces(self, request: Request, line: Split, parts: list[Translation]) -> Translation:
        """The answer to a line from those to its pieces: its k-th translation is made of their k-th."""
        there = [one for one in parts if one.hypotheses]
        hypotheses = join_hypotheses([one.hypotheses for one in there], self._config.length_penalty, self._config.alpha)
        each = [one.texts for one in parts]
        texts = [join_texts(line, ranked(each, rank)) for rank in range(len(hypotheses))]
        if "\n" not in request.source:  # whose lines are one
            texts = [text.translate(_LINE_ENDS) for text in texts]
        utilities = []
        if self._utility:
            worth = [ranked([one.utilities for one in there], rank) for rank in range(len(hypotheses))]
            utilities = [math.fsum(one) / len(one) for one in worth]
        src_ids = join_ids([one.src_ids for one in there])
        return Translation(
            texts[0],
            texts,
            hypotheses,
            src_ids,
            utilities,
            self._unmet(request, texts[0][len(line.spaces[0]) :]),
            missing=[item for part in parts for item in part.missing],
            doubled=[item for part in parts for item in part.doubled],
            split=line,
            parts=parts,
        )

    def _unmet(self, request: Request, text: str) -> list[str]:
        if not request.asks:
            return []
        # Items come back as they stood in the source, and what is asked is in the letters that the model writes.
        return request.unmet(self._codec.normalised(text) if self._codec.protects else text)

    def _came_back(self, request: Request, ids: Sequence[int]) -> tuple[list[str], list[str]]:
        """The items of a source that its translation lacks, and what it has too often."""
        codec, items = self._codec, dict(request.items)
        written = [name for i in ids if (name := codec.placeholder(i))]
        without = codec.decode(ids, dict.fromkeys(codec.placeholders, " "))
        return came_back(restored(request.source, items), written, without, items, codec.protects)
