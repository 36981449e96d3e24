"""Options of translation: beam search, sampling, and the choice among the hypotheses."""

from typing import Annotated, Literal

from pydantic import Field

from nmt.recipe.data_options import Tags
from nmt.recipe.section import Count, LanguageCode, NonNegativeFloat, PositiveFloat, PositiveInt, Rate, Section

# Options of sampling, without effect in beam search.
SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "epsilon", "seed")
# Subwords that are enough for any single character, even if its normal form has several characters.
LEAST_SRC_LEN = 16


class DecodeConfig(Section):
    """Translation of lines in nmt-translate and at the end of training. Training validates by beam search."""

    beam: PositiveInt = 5
    """Hypotheses kept for each sentence; 1 is greedy."""
    length_penalty: Literal["wu", "average", "none"] = "wu"
    """Score / ((5 + length) / 6)^alpha (Wu et al. 2016), score / length^alpha, or the bare score."""
    alpha: NonNegativeFloat = 1.0
    """Exponent of the length penalty."""
    n_best: PositiveInt = 1
    """Hypotheses written for each sentence, best first."""
    samples: Count = 0
    """Translations drawn from the model for each sentence, in place of beam search; 0: beam search."""
    temperature: PositiveFloat = 1.0
    """Of samples: divides the logits; below 1 likely tokens get likelier."""
    top_k: Count = 0
    """Of samples: draw from the k likeliest tokens only; 0: from all."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Of samples: draw from the likeliest tokens that together have this probability."""
    epsilon: Rate = 0.0
    """Of samples: draw from tokens of at least this probability only."""
    seed: Count = 1
    """Of samples: seed of the draws; those of a line depend on the line and not on its batch."""
    mbr: Literal["none", "chrf"] = "none"
    """Minimum Bayes risk: take the sample or hypothesis with the highest mean sentence chrF against all of them."""
    qe: str = ""
    """COMET model without references, as valid.comet, that ranks hypotheses; mbr chooses among the better half."""
    precision: Literal["fp32", "bf16", "int8"] = "fp32"
    """Arithmetic in nmt-translate; bf16 changes scores in the third digit; int8, on a CPU: large products in 8 bits."""
    cuda_graphs: bool = True
    """On a GPU, replay steps of beam search as CUDA graphs, twice as fast; not with constraints or ensembles."""
    low_score: Annotated[float, Field(le=0.0)] = -1.5
    """Flag a translation as `low` if its mean log-probability a token, its end included, is below this; 0: none."""
    align_layer: Count = 0
    """Decoder layer, from 1, whose attention gives the alignments; 0: the mean of the last two."""
    align_head: Count = 0
    """Head of align_layer, from 1, that gives the alignments; 0: the mean of all."""
    align_units: Literal["auto", "words", "characters"] = "auto"
    """Units of alignments; auto: words, or characters in languages without spaces between words."""
    trg_lang: LanguageCode = ""
    """Target language, for a model with several; empty: data.trg_lang."""
    tags: Tags = Field(default_factory=list)
    """Tags of the training corpora to put before each line: [news]."""
    max_len_a: NonNegativeFloat = 2.0
    """A translation has at most a x source length (rounded down) + b tokens."""
    max_len_b: PositiveInt = 20
    """See max_len_a."""
    min_len_a: NonNegativeFloat = 0.0
    """A translation has at least a x source length (rounded down) + b tokens."""
    min_len_b: Count = 0
    """See min_len_a."""
    no_repeat: Count = 0
    """No n-gram of this many subwords occurs twice once the prefix and the required phrases are there; 0: any may."""
    split: Literal["long", "every"] = "long"
    """Lines to translate sentence by sentence: those longer than 99 of 100 source lines of training, or every line."""
    copy_letterless: bool = True
    """Copy lines without a letter (`...`, `😀`), and numbers that both languages write alike; keep emoji at ends."""
    max_src_len: Literal[0] | Annotated[int, Field(ge=LEAST_SRC_LEN)] = 0
    """Subwords translated in one piece; longer lines are split into sentences and clauses; 0: as usual in training."""
    max_tokens: PositiveInt = 16384
    """Bound on sentences x hypotheses x longest source in one batch: larger is faster and takes more memory."""
    window: PositiveInt = 1000
    """Lines that are sorted and batched together."""

    @property
    def n_candidate(self) -> int:
        """Hypotheses that the search keeps for each sentence."""
        return self.samples or self.beam

    def for_beam_search(self) -> "DecodeConfig":
        """Return these options for plain beam search: no sampling, no MBR, no COMET, and the default precision."""
        names = (*SAMPLING_OPTIONS, "samples", "mbr", "qe", "precision")
        defaults = {name: type(self).model_fields[name].default for name in names}
        return self.model_copy(update={**defaults, "n_best": min(self.n_best, self.beam)})
