"""Lines in, lines out: sorts, batches, searches, and puts the answers back in order.

The search itself is `beam.py`; where lines come from and go to is `nmt.cli.translate`.
"""

import hashlib
import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt.data.batches import length_batches, pad
from nmt.data.plan import Rows
from nmt.data.subwords import BOS, EOS, LONGEST_PIECE, PAD, Codec, Subwords
from nmt.decoding.beam import Hypothesis, search
from nmt.decoding.sample import Narrowing, sample
from nmt.decoding.scorer import as_array, score_tokens
from nmt.errors import MachineError
from nmt.models.base import SearchModel
from nmt.recipe.decode_options import DecodeConfig

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
    utilities: list[float] = field(default_factory=list)  # of `texts` under minimum Bayes risk, and empty without

    @property
    def score(self) -> float:
        """Log-probability of the best translation over its length penalty; 0 for a blank line."""
        return self.hypotheses[0].normalised if self.hypotheses else 0.0


@dataclass(frozen=True, slots=True)
class Scored:
    """What a model thinks of a given translation."""

    token_log_probs: list[float]  # of each subword, and of the end
    warning: str | None = None  # what the user should know about this line

    @property
    def log_prob(self) -> float:
        """The logarithm of the probability of the whole translation."""
        return math.fsum(self.token_log_probs)


class Translator:
    """Translates lines with one model, in the order in which they come.

    utility: for minimum Bayes risk, what each of some translations of a line is worth beside the others.
    """

    def __init__(
        self,
        model: SearchModel,
        subwords: Subwords,
        config: DecodeConfig,
        device: torch.device | None = None,
        utility: Callable[[Sequence[str]], list[float]] | None = None,
    ) -> None:
        assert config.n_best <= config.n_candidate
        assert (utility is not None) == (config.mbr != "none")
        self.model = model if device is None else model.to(device)
        self.subwords = subwords
        self.config = config
        self.utility = utility

    def translate(
        self, lines: Iterable[str], on_progress: Callable[[int], object] | None = None
    ) -> Iterator[Translation]:
        """One translation for each line, in order, `config.window` lines at a time.

        on_progress: called with the number of lines done since the last call.
        """
        coming = iter(lines)
        while window := list(islice(coming, self.config.window)):
            yield from self._translate_window(window, on_progress)

    def score(self, sources: Sequence[str], translations: Sequence[str]) -> Iterator[Scored]:
        """What the model thinks of given translations, in order; all of them go through the model together."""
        src_ids, src_warnings = self._encode(list(sources), self.subwords.src)
        trg_ids, trg_warnings = self._encode(list(translations), self.subwords.trg)
        with _evaluating(self.model):
            found = score_tokens(self.model, src_ids, trg_ids, max_tokens=self.config.max_tokens)
        for tokens, of_src, of_trg in zip(found, src_warnings, trg_warnings, strict=True):
            yield Scored(tokens, of_src or of_trg)

    def token_log_probs(self, translations: Sequence[Translation]) -> list[list[float]]:
        """Log-probability of each token of the best translations, EOS included; [] for a blank line."""
        there = [one for one in translations if one.hypotheses]
        with _evaluating(self.model):
            src_ids, trg_ids = [one.src_ids for one in there], [one.hypotheses[0].ids for one in there]
            found = iter(score_tokens(self.model, src_ids, trg_ids, max_tokens=self.config.max_tokens))
        return [next(found) if one.hypotheses else [] for one in translations]

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
        ids, warnings = self._encode(different, self.subwords.src)
        translations: dict[str, Translation] = {}
        for batch, hypotheses in self.batches(ids):
            for number, found in zip(batch, hypotheses, strict=True):
                translations[different[number]] = self._translation(ids[number], found, warnings[number])
            if on_progress:
                on_progress(sum(count[different[number]] for number in batch))
        blank = Translation("", [""], [], [])
        for line in lines:
            yield translations.get(line, blank)

    def batches(self, ids: Sequence[list[int]]) -> Iterator[tuple[Rows, list[list[Hypothesis]]]]:
        """Find hypotheses for rows of ids, batch by batch: the numbers of the rows, and what was found for each."""
        for batch in self._batches(ids):
            yield batch, self._search([ids[number] for number in batch])

    def shared(self, lines: Sequence[str]) -> list[list[int]]:
        """The places of different lines, those together that `translate` puts into one batch, and in its order.

        Each list translated alone gives what all of them together give, to the last digit.
        """
        blank = [place for place, line in enumerate(lines) if is_blank(line)]
        rest = sorted(set(range(len(lines))) - set(blank))
        ids, _ = self._encode([lines[place] for place in rest], self.subwords.src)
        batches = [[rest[number] for number in sorted(batch.tolist())] for batch in self._batches(ids)]
        return [blank, *batches] if blank else batches

    def _batches(self, ids: Sequence[list[int]]) -> list[Rows]:
        # A batch costs sentences x hypotheses x longest source, and the source ends with EOS.
        cost = np.array([(len(row) + 1) * self.config.n_candidate for row in ids], dtype=np.int64)
        return length_batches(cost, self.config.max_tokens)

    @staticmethod
    def _encode(lines: list[str], codec: Codec) -> tuple[list[list[int]], list[str | None]]:
        """Ids of each line, cut where there are too many, and a warning where that was."""
        ids = codec.encode([line[:_MAX_CHARACTERS] for line in lines])
        warnings: list[str | None] = [None] * len(lines)
        for number, (line, row) in enumerate(zip(lines, ids, strict=True)):
            if len(row) > MAX_SRC_LEN:
                ids[number] = row[:MAX_SRC_LEN]
                warnings[number] = (
                    f"too long ({len(line):,} characters): only its first {MAX_SRC_LEN:,} subwords were read; split "
                    "it into sentences"
                )
        return ids, warnings

    def _search(self, ids: list[list[int]]) -> list[list[Hypothesis]]:
        """Search for one batch; where the memory of the device is too small, for its halves."""
        try:
            return self._search_whole(ids)
        except torch.OutOfMemoryError:
            if len(ids) == 1:
                raise MachineError(
                    f"the memory of {self.model.device} is too small for one sentence of {len(ids[0])} subwords and "
                    f"{self.config.n_candidate} hypotheses of it. Make decode.beam or decode.samples smaller, or "
                    "translate on the CPU: --device cpu."
                ) from None
        half = len(ids) // 2
        return self._search(ids[:half]) + self._search(ids[half:])

    def _search_whole(self, ids: list[list[int]]) -> list[list[Hypothesis]]:
        config = self.config
        src_seq = pad([as_array(row) for row in ids], after=(EOS,)).to(self.model.device)
        max_len = torch.tensor([int(config.max_len_a * len(row)) + config.max_len_b for row in ids])
        known: dict[str, Any] = {
            "bos": BOS,
            "eos": EOS,
            "pad": PAD,
            "length_penalty": config.length_penalty,
            "alpha": config.alpha,
            "max_len": max_len,
            "n_real": self.subwords.trg.size,
        }
        with _evaluating(self.model):
            if not config.samples:
                n_best = config.beam if self.utility else config.n_best
                return search(self.model, src_seq, beam=config.beam, n_best=n_best, **known)
            seeds = [[config.seed, *_fingerprint(row)] for row in ids]
            narrowing = Narrowing(config.temperature, config.top_k, config.top_p, config.epsilon)
            return sample(self.model, src_seq, n=config.samples, seeds=seeds, narrowing=narrowing, **known)

    def _translation(self, ids: list[int], found: list[Hypothesis], warning: str | None) -> Translation:
        # A line feed inside a translation would shift every line after it.
        texts = [self.subwords.trg.decode(one.ids).translate(_LINE_ENDS) for one in found]
        worth = self.utility(texts) if self.utility else [one.normalised for one in found]
        best = sorted(range(len(found)), key=lambda n: -worth[n])
        if self.utility or self.config.samples:  # the same translation can be drawn twice
            first: dict[str, int] = {}
            for n in best:
                first.setdefault(texts[n], n)
            best = list(first.values())
        best = best[: self.config.n_best]
        texts, utilities = [texts[n] for n in best], [worth[n] for n in best] if self.utility else []
        return Translation(texts[0], texts, [found[n] for n in best], ids, warning, utilities)


def _fingerprint(ids: list[int]) -> list[int]:
    """Whole numbers that stand for a line: the same for the same subwords, on any machine."""
    digest = hashlib.sha256(np.asarray(ids, dtype="<i8").tobytes()).digest()
    return [int.from_bytes(digest[i : i + 8], "little") for i in (0, 8)]


def is_blank(line: str) -> bool:
    """Whether nothing of a line can be seen: white space, control and format characters of any script only."""
    return all(letter.isspace() or unicodedata.category(letter) in ("Cc", "Cf") for letter in line)


class _evaluating:
    """Dropout off inside, and as it was afterwards: a translation is never drawn by lot."""

    def __init__(self, model: SearchModel) -> None:
        self._model, self._training = model, model.training

    def __enter__(self) -> None:
        if self._training:
            self._model.eval()

    def __exit__(self, *_: object) -> None:
        if self._training:
            self._model.train()
