"""Options of translation: search, sampling, and the choice among what they find."""

from typing import Annotated, Literal

from pydantic import Field

from nmt.recipe.data_options import Tag
from nmt.recipe.section import Count, LanguageCode, NonNegativeFloat, PositiveFloat, PositiveInt, Rate, Section

# What changes how samples are drawn, and means nothing where none are.
OF_SAMPLES = ("temperature", "top_k", "top_p", "epsilon", "seed")
# Subwords that any single character fits into, also where its normal form is several.
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
    """Of samples: divides the logits; below 1 what is likely gets likelier."""
    top_k: Count = 0
    """Of samples: draw from the k likeliest tokens only; 0: from all."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Of samples: draw from the likeliest tokens that together have this probability."""
    epsilon: Rate = 0.0
    """Of samples: draw from tokens of at least this probability only."""
    seed: Count = 1
    """Of samples: what is drawn for a line follows from this and from the line, not from its batch."""
    mbr: Literal["none", "chrf"] = "none"
    """Minimum Bayes risk: take the sample or hypothesis that is most like all of them by sentence chrF."""
    qe: str = ""
    """COMET model without references, as valid.comet, that ranks what was found; mbr chooses among the better half."""
    precision: Literal["fp32", "bf16", "int8"] = "fp32"
    """Arithmetic in nmt-translate; bf16 changes scores in the third digit; int8, on a CPU: large products in 8 bits."""
    cuda_graphs: bool = True
    """On a GPU, replay steps of beam search as CUDA graphs, twice as fast; not with constraints or ensembles."""
    low_score: Annotated[float, Field(le=0.0)] = -1.5
    """Flag a translation `low` whose mean log-probability of a token, its end included, is below this; 0: none."""
    align_layer: Count = 0
    """Decoder layer whose attention alignments are read off, from 1; 0: the mean of the last two."""
    align_head: Count = 0
    """Head of align_layer that they are read off, from 1; 0: the mean of all."""
    align_units: Literal["auto", "words", "characters"] = "auto"
    """Units of alignments; auto: words, or characters in languages without spaces between words."""
    trg_lang: LanguageCode = ""
    """Of a model for several target languages: the one to translate into; empty: data.trg_lang."""
    tags: list[Tag] = Field(default_factory=list)
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
    """Lines translated sentence by sentence: those longer than 99 of 100 source lines of training, or every one."""
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
        """Hypotheses of each sentence that are alive together."""
        return self.samples or self.beam

    def searching(self) -> "DecodeConfig":
        """These options for beam search, without samples, minimum Bayes risk and COMET, in the usual precision."""
        names = (*OF_SAMPLES, "samples", "mbr", "qe", "precision")
        usual = {name: type(self).model_fields[name].default for name in names}
        return self.model_copy(update={**usual, "n_best": min(self.n_best, self.beam)})
