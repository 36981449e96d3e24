"""What a search for translations is told beside the sentences: once for beam search, in two ways, and for sampling."""

from dataclasses import dataclass

from torch import Tensor

from nmt.decoding.scoring.scorer import LengthPenalty, length_divisor


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """The symbols of the vocabulary, and what a log-probability is divided by."""

    bos: int
    eos: int
    pad: int
    length_penalty: LengthPenalty
    alpha: float
    n_real: int | None = None  # ids from here on only pad the vocabulary

    def divisor(self, length: Tensor) -> Tensor:
        """What scores of hypotheses of some lengths, in tokens with EOS, are divided by: see `length_divisor`."""
        return length_divisor(length, self.length_penalty, self.alpha)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSettings(SearchSettings):
    """What beam search is told."""

    beam: int  # hypotheses of a sentence that are alive together
    n_best: int = 1  # hypotheses of a sentence that come back, `beam` at most
    diversity: float = 0.0  # see `fallen_behind`
