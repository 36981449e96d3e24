"""Lines in, lines out: sorts, batches, searches, and puts the answers back in order.

The search itself is `beam.py`; where lines come from and go to is `nmt.cli.translate`.
"""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from nmt.data.batches import length_batches, pad
from nmt.data.subwords import BOS, EOS, LONGEST_PIECE, PAD, Subwords
from nmt.decoding.beam import Hypothesis, search
from nmt.decoding.scorer import as_array
from nmt.errors import MachineError
from nmt.models.base import TranslationModel
from nmt.recipe.options import DecodeConfig

# Most subwords of a line that are translated. Attention needs memory by the square of the length, and a line of
# this length is no sentence: models are trained on shorter ones (data.max_len).
MAX_SRC_LEN = 1024
# A piece has at most LONGEST_PIECE bytes, so this many characters have MAX_SRC_LEN pieces or more: the rest of a
# line of any size need not be looked at.
_MAX_CHARACTERS = MAX_SRC_LEN * LONGEST_PIECE
_LINE_ENDS = str.maketrans("\n\r", "  ")


@dataclass(frozen=True, slots=True)
class Translation:
    """The answer to one line."""

    text: str  # the best translation; "" for a blank line
    texts: list[str]  # the n best, best first; as many as `hypotheses`
    hypotheses: list[Hypothesis]  # empty for a blank line
    src_ids: list[int]  # what the model read, without EOS
    warning: str | None = None  # what the user should know about this line

    @property
    def score(self) -> float:
        """Log-probability of the best translation over its length penalty; 0 for a blank line."""
        return self.hypotheses[0].normalised if self.hypotheses else 0.0


class Translator:
    """Translates lines with one model, in the order in which they come."""

    def __init__(
        self,
        model: TranslationModel,
        subwords: Subwords,
        config: DecodeConfig,
        device: torch.device | None = None,
    ) -> None:
        assert config.n_best <= config.beam
        self.model = model if device is None else model.to(device)
        self.subwords = subwords
        self.config = config

    def translate(
        self, lines: Iterable[str], on_progress: Callable[[int], object] | None = None
    ) -> Iterator[Translation]:
        """One translation for each line, in order, `config.window` lines at a time.

        on_progress: called with the number of lines done since the last call.
        """
        coming = iter(lines)
        while window := list(islice(coming, self.config.window)):
            yield from self._translate_window(window, on_progress)

    def attention(self, translation: Translation) -> tuple[Tensor, list[str], list[str]]:
        """Where the model looked while it wrote the best translation of a line that is not blank.

        Returns (n_layer, n_head, T, S) weights and the readable pieces, T of the target and S of the source.
        """
        assert translation.hypotheses
        ids = translation.hypotheses[0].ids
        src_seq, trg_seq = pad([as_array(translation.src_ids)], after=(EOS,)), pad([as_array(ids)], before=(BOS,))
        with torch.inference_mode(), _evaluating(self.model):
            weights = self.model.attention(src_seq.to(self.model.device), trg_seq.to(self.model.device))
        src_pieces = self.subwords.src.pieces([*translation.src_ids, EOS])
        return weights[:, 0].float().cpu(), src_pieces, self.subwords.trg.pieces([*ids, EOS])

    def _translate_window(self, lines: list[str], on_progress: Callable[[int], object] | None) -> Iterator[Translation]:
        """Identical lines are translated once; blank ones never reach the model."""
        count = Counter(line for line in lines if not is_blank(line))
        different = list(count)
        if on_progress:
            on_progress(len(lines) - count.total())
        ids, warnings = self._encode(different)
        # A batch costs sentences x beam x longest source, and the source ends with EOS.
        cost = np.array([(len(row) + 1) * self.config.beam for row in ids], dtype=np.int64)
        translations: dict[str, Translation] = {}
        for batch in length_batches(cost, self.config.max_tokens):
            for number, found in zip(batch, self._search([ids[number] for number in batch]), strict=True):
                translations[different[number]] = self._translation(ids[number], found, warnings[number])
            if on_progress:
                on_progress(sum(count[different[number]] for number in batch))
        blank = Translation("", [""], [], [])
        for line in lines:
            yield translations.get(line, blank)

    def _encode(self, lines: list[str]) -> tuple[list[list[int]], list[str | None]]:
        """Ids of each line, cut where there are too many, and a warning where that was."""
        ids = self.subwords.src.encode([line[:_MAX_CHARACTERS] for line in lines])
        warnings: list[str | None] = [None] * len(lines)
        for number, (line, row) in enumerate(zip(lines, ids, strict=True)):
            if len(row) > MAX_SRC_LEN:
                ids[number] = row[:MAX_SRC_LEN]
                warnings[number] = (
                    f"too long ({len(line):,} characters): only its first {MAX_SRC_LEN:,} subwords were translated; "
                    "split it into sentences"
                )
        return ids, warnings

    def _search(self, ids: list[list[int]]) -> list[list[Hypothesis]]:
        """Search for one batch; where the memory of the device is too small, for its halves."""
        try:
            return self._search_whole(ids)
        except torch.OutOfMemoryError:
            if len(ids) == 1:
                raise MachineError(
                    f"the memory of {self.model.device} is too small for one sentence of {len(ids[0])} subwords at "
                    f"beam {self.config.beam}. Make decode.beam smaller, or translate on the CPU: --device cpu."
                ) from None
        half = len(ids) // 2
        return self._search(ids[:half]) + self._search(ids[half:])

    def _search_whole(self, ids: list[list[int]]) -> list[list[Hypothesis]]:
        config = self.config
        max_len = [int(config.max_len_a * len(row)) + config.max_len_b for row in ids]
        with _evaluating(self.model):
            return search(
                self.model,
                pad([as_array(row) for row in ids], after=(EOS,)).to(self.model.device),
                bos=BOS,
                eos=EOS,
                pad=PAD,
                beam=config.beam,
                length_penalty=config.length_penalty,
                alpha=config.alpha,
                max_len=torch.tensor(max_len),
                n_best=config.n_best,
                n_real=self.subwords.trg.size,
            )

    def _translation(self, ids: list[int], found: list[Hypothesis], warning: str | None) -> Translation:
        # A line feed inside a translation would shift every line after it.
        texts = [self.subwords.trg.decode(one.ids).translate(_LINE_ENDS) for one in found]
        return Translation(texts[0], texts, found, ids, warning)


def is_blank(line: str) -> bool:
    """Whether nothing of a line can be seen: white space, control and format characters of any script only."""
    return all(letter.isspace() or unicodedata.category(letter) in ("Cc", "Cf") for letter in line)


class _evaluating:
    """Dropout off inside, and as it was afterwards: a translation is never drawn by lot."""

    def __init__(self, model: TranslationModel) -> None:
        self._model, self._training = model, model.training

    def __enter__(self) -> None:
        if self._training:
            self._model.eval()

    def __exit__(self, *_: object) -> None:
        if self._training:
            self._model.train()
