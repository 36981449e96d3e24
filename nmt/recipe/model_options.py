"""The options of the model: sizes, the variants of its parts, and what is shared."""

from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from nmt.recipe.presets import PRESETS
from nmt.recipe.section import PositiveInt, Rate, Section

# What attention there may be: where words of the translation look at the source, words of the source at each other, and
# words of the translation at those before.
Attention = Literal["cross", "encoder", "decoder"]
ATTENTIONS: tuple[Attention, ...] = get_args(Attention)


class ModelConfig(Section):
    """The Transformer. The defaults of a model without preset are those of the upstream layout."""

    preset: Literal["auto", "tiny", "small", "base", "big"] | None = Field(
        None,
        description="Sizes to start from; any option beside it refines it. auto: by the size of the corpus, when "
        "training begins; a small corpus gets more dropout, too.",
    )
    d_model: PositiveInt = Field(512, description="Width of the residual stream, and of the embeddings.")
    d_inner: PositiveInt = Field(2048, description="Width inside the feed-forward sub-layer.")
    n_enc_layer: PositiveInt = Field(6, description="Encoder layers.")
    n_dec_layer: PositiveInt = Field(6, description="Decoder layers.")
    n_head: PositiveInt = Field(8, description="Attention heads.")
    n_kv_head: PositiveInt | None = Field(
        None, description="Key/value heads: n_head = MHA, 1 = MQA, between = GQA; empty: n_head."
    )
    d_k: PositiveInt | None = Field(None, description="Width of a query and a key; empty: d_model / n_head.")
    d_v: PositiveInt | None = Field(None, description="Width of a value; empty: d_model / n_head.")
    norm: Literal["post", "pre"] = Field(
        "post", description="Normalise after each residual (the paper) or before each sub-layer."
    )
    norm_kind: Literal["layer", "rms"] = Field("layer", description="LayerNorm or RMSNorm.")
    ffn: Literal["relu", "gelu", "swiglu", "relu2"] = Field(
        "relu", description="Activation inside the feed-forward sub-layer."
    )
    position: Literal["sinusoid", "learned", "rotary"] = Field(
        "sinusoid", description="How a position is told; none has a hidden length limit."
    )
    n_position: PositiveInt = Field(
        200, description="Rows of the position table: sinusoids go on beyond it, learned positions repeat its last row."
    )
    rotary_enc_attn: bool = Field(
        False,
        description="Rotary positions in the attention over the source too, which then sees how far ahead or behind "
        "a source word is; without it no position is told there.",
    )
    qk_norm: bool = Field(False, description="Normalise queries and keys per head before their product.")
    attn_bias: bool = Field(False, description="Biases in the attention projections.")
    ffn_bias: bool = Field(True, description="Biases in the feed-forward sub-layer.")
    dropout: Rate = Field(0.1, description="Dropout on sub-layer outputs (the residual branches).")
    emb_dropout: Rate | None = Field(None, description="Dropout on embeddings + positions; empty: dropout.")
    attn_dropout: Rate | None = Field(None, description="Dropout on attention weights; empty: dropout.")
    act_dropout: Rate = Field(0.0, description="Dropout inside the feed-forward sub-layer, after the activation.")
    trg_emb_prj_weight_sharing: bool = Field(True, description="The output projection is the target embedding.")
    emb_src_trg_weight_sharing: bool = Field(
        True, description="Source and target embedding are one; needs subwords.joint."
    )
    scale_emb_or_prj: Literal["emb", "prj", "none"] = Field(
        "prj",
        description="With a shared projection, scale embeddings by sqrt(d_model), or logits by its inverse, or none.",
    )
    prj_transform: bool = Field(
        False,
        description="A square matrix, orthogonal at first, before the shared projection: without it what is left of a "
        "word's own embedding makes that word likely to be written again.",
    )
    lexical_attn: bool = Field(
        False,
        description="One more head looks at the source and adds the embeddings of the words that it finds to the last "
        "state: a word's own way to its translation; with emb_init: cooccurrence, a dictionary to begin with.",
    )
    emb_init: Literal["xavier", "normal", "cooccurrence"] = Field(
        "xavier",
        description="First embeddings: Xavier-uniform as every matrix; normal of variance 1 / d_model, which "
        "scale_emb_or_prj: emb makes as large as the positions; or of that size, but with subwords that occur in "
        "the same training pairs, as translations do, near each other: a dictionary before the first update.",
    )

    @property
    def attention_grids(self) -> dict[Attention, tuple[int, int]]:
        """Layers and heads of each attention that the model tells of, as `nmt.models.base.Attns` does: what can be
        drawn, written, and read alignments off. Without `cross` no word of a translation looks at the source."""
        encoder, decoder = (self.n_enc_layer, self.n_head), (self.n_dec_layer, self.n_head)
        return {"cross": decoder, "encoder": encoder, "decoder": decoder}

    @property
    def undecided(self) -> set[str]:
        """The options that a preset may still set: with auto, all those of presets that the recipe does not name."""
        return set().union(*PRESETS.values()) - self.model_fields_set if self.preset == "auto" else set()

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, given: Any) -> Any:
        """Fill in the preset's sizes, and no scale where the projection has a matrix of its own, as upstream does."""
        if not isinstance(given, dict):
            return given
        preset = given.get("preset")
        resolved = {**(PRESETS.get(preset, {}) if isinstance(preset, str) else {}), **given}
        if given.get("trg_emb_prj_weight_sharing") is False:
            resolved.setdefault("scale_emb_or_prj", "none")
        return resolved
