"""The options of regularisers that change what training sees of the model: passes, words and layers.

Dropout belongs to the model, label smoothing to `train`.
"""

from typing import Annotated, Self

from pydantic import Field

from nmt.recipe.section import NonNegativeFloat, Rate, Section

Probability = Annotated[float, Field(gt=0.0, lt=1.0)]


Share = Annotated[float, Field(ge=0.0, le=1.0)]


class NoiseConfig(Section):
    """Shares of the training pairs that are read as careless writers would have them, each epoch others; 0 is off."""

    upper: Share = Field(
        0.0, description="Share of the pairs in CAPITALS, both sides: what comes in capitals is translated into them."
    )
    title: Share = Field(0.0, description="Share of the pairs whose source is In Title Case; the target stays.")
    lower: Share = Field(0.0, description="Share of the pairs whose source is in small letters; the target stays.")
    no_end: Share = Field(
        0.0, description="Share of the pairs whose sides both lose their full stop, ? or ! at the end."
    )
    typo: Share = Field(
        0.0,
        description="Share of the pairs with letters of the source swapped, left out or doubled, one in 60 characters.",
    )

    def shares(self) -> dict[str, float]:
        """Return what is on, and how much of it."""
        return {name: share for name in type(self).model_fields if (share := getattr(self, name))}


class RegularizeConfig(Section):
    """Regularisers, each from a share of the run on; 0 is off."""

    r_drop: NonNegativeFloat = Field(
        0.0,
        description="R-Drop: weight alpha of the symmetric divergence between two passes with different dropout (Liang "
        "et al. 2021, who take 5). About twice the time, and the memory of twice batch.max_tokens.",
    )
    r_drop_from: Rate = Field(0.0, description="Share of the run after which r_drop is on.")
    simcut: NonNegativeFloat = Field(
        0.0,
        description="SimCut: weight alpha of the divergence between a pass and one with words cut out on both sides "
        "(Gao et al. 2022, who take 3). About twice the time, and the memory of twice batch.max_tokens.",
    )
    simcut_p: Probability = Field(0.05, description="SimCut: probability of a word to be cut out.")
    simcut_from: Rate = Field(0.0, description="Share of the run after which simcut is on.")
    src_word_dropout: Rate = Field(
        0.0, description="Probability of a source word to be dropped: its embedding is zero (Sennrich et al. 2016)."
    )
    trg_word_dropout: Rate = Field(
        0.0, description="Probability of a target word to be dropped where the decoder reads it, not where it predicts."
    )
    word_dropout_from: Rate = Field(0.0, description="Share of the run after which both word dropouts are on.")
    layer_drop: Rate = Field(
        0.0, description="Probability of a layer to be left out of an update (Fan et al. 2020, who take 0.2)."
    )
    layer_drop_from: Rate = Field(0.0, description="Share of the run after which layer_drop is on.")
    noise: NoiseConfig = Field(
        default_factory=lambda: NoiseConfig(),
        description="Training pairs in other dress: capitals, no end, typing errors. Batches grow by about as much.",
    )

    @property
    def drops_words(self) -> bool:
        """Whether a word may ever be missing from a sentence."""
        return bool(self.simcut or self.src_word_dropout or self.trg_word_dropout)

    def at(self, share: float) -> Self:
        """What is on when this share of the run has passed: the same options, with 0 for what is not."""
        begins = {
            "r_drop": self.r_drop_from,
            "simcut": self.simcut_from,
            "src_word_dropout": self.word_dropout_from,
            "trg_word_dropout": self.word_dropout_from,
            "layer_drop": self.layer_drop_from,
        }
        return self.model_copy(update={name: 0.0 for name, begin in begins.items() if share < begin})
