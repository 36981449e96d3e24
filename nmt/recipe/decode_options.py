"""Options of translation: search, sampling, and the choice among what they find."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from nmt.recipe.data_options import Tag
from nmt.recipe.section import Count, LanguageCode, NonNegativeFloat, PositiveFloat, PositiveInt, Rate, Section

# What changes how samples are drawn, and means nothing where none are.
OF_SAMPLES = ("temperature", "top_k", "top_p", "epsilon", "seed")
# What changes the translations that beam search finds, but for their lengths.
OF_BEAM = ("beam", "length_penalty", "alpha", "no_repeat", "diversity")
# Subwords that any single character fits into, also where its normal form is several.
LEAST_SRC_LEN = 16


class AlignBy(NamedTuple):
    """Attention that alignments are read off: the options align_layer, align_head and align_when."""

    layer: int
    head: int
    when: Literal["written", "read"]


class DecodeConfig(Section):
    """Translation of lines in nmt-translate and at the end of training. Training validates by beam search."""

    beam: PositiveInt = Field(5, description="Hypotheses kept for each sentence; 1 is greedy.")
    length_penalty: Literal["wu", "average", "none"] = Field(
        "wu", description="Score / ((5 + length) / 6)^alpha (Wu et al. 2016), score / length^alpha, or the bare score."
    )
    alpha: NonNegativeFloat = Field(1.0, description="Exponent of the length penalty.")
    n_best: PositiveInt = Field(1, description="Hypotheses written for each sentence, best first.")
    samples: Count = Field(
        0, description="Translations drawn from the model for each sentence, in place of beam search; 0: beam search."
    )
    temperature: PositiveFloat = Field(
        1.0, description="Of samples: divides the logits; below 1 what is likely gets likelier."
    )
    top_k: Count = Field(0, description="Of samples: draw from the k likeliest tokens only; 0: from all.")
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        1.0, description="Of samples: draw from the likeliest tokens that together have this probability."
    )
    epsilon: Rate = Field(0.0, description="Of samples: draw from tokens of at least this probability only.")
    seed: Count = Field(
        1, description="Of samples: what is drawn for a line follows from this and from the line, not from its batch."
    )
    mbr: Literal["none", "chrf", "bleu"] = Field(
        "none",
        description="Minimum Bayes risk: the best of the samples, or of the hypotheses of the beam, is the one that is "
        "most like all of them by sentence chrF or BLEU.",
    )
    precision: Literal["fp32", "bf16", "int8"] = Field(
        "fp32",
        description="Arithmetic of the model in nmt-translate. bf16 is much faster where the processor has it, and "
        "scores are off in their third digit. int8, on a CPU: the feed-forward sub-layers of a Transformer and its "
        "product with the vocabulary in 8 bits, on some processors most of its attention, too, and all else in bf16, "
        "or in fp32 where the processor multiplies that faster.",
    )
    cuda_graphs: bool = Field(
        True,
        description="On a GPU, in nmt-translate: a step of beam search is recorded as a CUDA graph and replayed rather "
        "than ordered kernel by kernel, in a few fixed shapes: two to three times as fast. The same translations up to "
        "the arithmetic. Not for lines of which anything is asked, and samples, which are found as without.",
    )
    low_score: Annotated[float, Field(le=0.0)] = Field(
        -1.5,
        description="A translation whose mean log-probability of a token, its end among them, is below this is flagged "
        "`low`; 0: none is.",
    )
    align_layer: Count = Field(
        0, description="Decoder layer whose attention alignments are read off, from 1; 0: the mean of the last two."
    )
    align_head: Count = Field(0, description="Head of align_layer that they are read off, from 1; 0: the mean of all.")
    align_when: Literal["written", "read"] = Field(
        "written",
        description="Whether a subword comes from where the model looked when it wrote it, or a step later, when it "
        "had read it (Chen et al. 2020, SHIFT-ATT), which fits some deep models better.",
    )
    align_units: Literal["auto", "words", "characters"] = Field(
        "auto",
        description="Of which alignments are pairs: words, as white space cuts them; characters, white space aside; "
        "auto: characters on a side whose language has no spaces between words. For segmented text: words.",
    )
    trg_lang: LanguageCode = Field(
        "", description="Of a model for several target languages: the one to translate into; empty: data.trg_lang."
    )
    tags: list[Tag] = Field(
        default_factory=list,
        description="What to say of each line beside its text, by tags of the training corpora: [news].",
    )
    max_len_a: NonNegativeFloat = Field(2.0, description="A translation has at most a x source length + b tokens.")
    max_len_b: PositiveInt = Field(20, description="See max_len_a.")
    min_len_a: NonNegativeFloat = Field(0.0, description="A translation has at least a x source length + b tokens.")
    min_len_b: Count = Field(0, description="See min_len_a.")
    no_repeat: Count = Field(
        0, description="No translation has this many subwords in a row twice, but for what is asked of it; 0: it may."
    )
    diversity: NonNegativeFloat = Field(
        0.0,
        description="Of beam search: what a continuation falls behind for each better one of the same hypothesis (Li "
        "et al. 2016): with 0.5 or more the n best differ more.",
    )
    split: Literal["long", "every"] = Field(
        "long",
        description="Which lines are translated sentence by sentence: those longer than 99 of 100 source lines of "
        "training, or every one.",
    )
    copy_letterless: bool = Field(
        True,
        description="Copy lines without a letter (`...`, `😀`), and numbers alone where both languages write them in "
        "the digits 0 to 9; emoji at the ends of a line are taken off before the model and put back.",
    )
    max_src_len: Literal[0] | Annotated[int, Field(ge=LEAST_SRC_LEN)] = Field(
        0,
        description="Longest source in subwords that is translated in one piece: longer lines are split into "
        "sentences, longer sentences into clauses; 0: lines by what is usual in training, see split, sentences by "
        "data.max_len.",
    )
    max_tokens: PositiveInt = Field(
        16384,
        description="Bound on sentences x hypotheses of each x longest source in one batch; larger batches are faster, "
        "and take more memory.",
    )
    window: PositiveInt = Field(1000, description="Lines that are sorted and batched together.")

    @property
    def n_candidate(self) -> int:
        """Hypotheses of each sentence that are alive together."""
        return self.samples or self.beam

    @property
    def align_by(self) -> AlignBy:
        """The attention that alignments are read off."""
        return AlignBy(self.align_layer, self.align_head, self.align_when)

    def searching(self) -> "DecodeConfig":
        """These options for beam search, without samples and minimum Bayes risk, and in the usual precision."""
        usual = {name: type(self).model_fields[name].default for name in (*OF_SAMPLES, "samples", "mbr", "precision")}
        return self.model_copy(update={**usual, "n_best": min(self.n_best, self.beam)})
