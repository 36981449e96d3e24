"""The options of the model: sizes, the variants of its parts, and what is shared.

An option stands in the class of the models that have it; `ModelConfig` has them all, and is refused where it names one
that its architecture has no use for.
"""

from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from nmt.recipe.section import Count, NonNegativeFloat, PositiveInt, Rate, Section

# Named sizes of the Transformer.


Size = int | float

PRESETS: dict[str, dict[str, Size]] = {
    "tiny": {"n_enc_layer": 2, "n_dec_layer": 2, "d_model": 128, "d_inner": 512, "n_head": 4},
    "small": {"n_enc_layer": 3, "n_dec_layer": 3, "d_model": 256, "d_inner": 1024, "n_head": 4},
    "base": {"n_enc_layer": 6, "n_dec_layer": 6, "d_model": 512, "d_inner": 2048, "n_head": 8},
    "big": {"n_enc_layer": 6, "n_dec_layer": 6, "d_model": 1024, "d_inner": 4096, "n_head": 16, "dropout": 0.3},
}

# What `model.preset: auto` takes: the first row whose number is above that of the corpus' target tokens (EOS counted).
# A model that is too large for its corpus learns it by heart, and one that is too small for it wastes it. The rows are
# where practice changes: Multi30k (0.4 M tokens) is best with layers of width 128 and dropout 0.3 (Wu et al. 2021,
# "Good for misconceived reasons"); small corpora up to IWSLT (3.5 M) want shallow, narrow models and dropout of 0.3
# (Araabi and Monz 2020, "Optimizing Transformer for low-resource NMT"); WMT14 en-de (120 M) and en-fr (1 G) made base
# and big (Vaswani et al. 2017). Between those there is no law: the bounds are the middle, on a scale of factors.
AUTO: tuple[tuple[float, str, dict[str, Size]], ...] = (
    (1e6, "tiny", {"dropout": 0.3}),
    (1e7, "small", {"dropout": 0.3}),
    (3e7, "base", {"dropout": 0.2}),
    (4e8, "base", {"dropout": 0.1}),
    (float("inf"), "big", {"dropout": 0.1}),
)


def preset_for(n_token: int) -> tuple[str, dict[str, Size]]:
    """The preset for a corpus with this many target tokens, and the options that go with it."""
    return next((preset, options) for below, preset, options in AUTO if n_token < below)


# What attention there may be: where words of the translation look at the source, words of the source at each other, and
# words of the translation at those before.
Attention = Literal["cross", "encoder", "decoder"]
ATTENTIONS: tuple[Attention, ...] = get_args(Attention)


class AnyModelOptions(Section):
    """Options of every model."""

    architecture: Literal["transformer", "seq2seq", "peeky", "attention"] = Field(
        "transformer",
        description="The kind of model. transformer; or recurrent: seq2seq, whose decoder begins with the encoder's "
        "last state; peeky, which sees that state at every step; attention, which looks at all states of the encoder "
        "at every step.",
    )
    d_model: PositiveInt = Field(
        512, description="Width of the residual stream, and of the embeddings; of a recurrent state."
    )
    dropout: Rate = Field(
        0.1,
        description="Dropout on sub-layer outputs (the residual branches); between recurrent layers and at the end.",
    )
    emb_dropout: Rate | None = Field(None, description="Dropout on embeddings + positions; empty: dropout.")
    trg_emb_prj_weight_sharing: bool = Field(True, description="The output projection is the target embedding.")
    emb_src_trg_weight_sharing: bool = Field(
        True, description="Source and target embedding are one; needs subwords.joint."
    )
    scale_emb_or_prj: Literal["emb", "prj", "none"] = Field(
        "prj",
        description="With a shared projection, scale embeddings by the root of their width, or logits by its inverse, "
        "or none; recurrent models, which hardly hear a word otherwise: emb.",
    )
    lexical_attn: bool = Field(
        False,
        description="Look at the source once more (the Transformer with a head of its own, architecture attention with "
        "the weights that it has) and add the embeddings of the words that are found to the last state: a word's own "
        "way to its translation; with emb_init: cooccurrence, a dictionary to begin with.",
    )
    emb_init: Literal["xavier", "normal", "cooccurrence"] = Field(
        "xavier",
        description="First embeddings: Xavier-uniform as every matrix; normal of variance 1 / d_model, which "
        "scale_emb_or_prj: emb makes as large as the positions; or of that size, but with subwords that occur in "
        "the same training pairs, as translations do, near each other: a dictionary before the first update.",
    )


class TransformerOptions(Section):
    """Options of the Transformer alone. The defaults of a model without preset are those of the upstream layout."""

    preset: Literal["auto", "tiny", "small", "base", "big"] | None = Field(
        None,
        description="Sizes to start from; any option beside it refines it. auto: by the size of the corpus, when "
        "training begins; a small corpus gets more dropout, too.",
    )
    d_inner: PositiveInt = Field(2048, description="Width inside the feed-forward sub-layer.")
    n_enc_layer: PositiveInt = Field(6, description="Encoder layers.")
    n_dec_layer: PositiveInt = Field(6, description="Decoder layers.")
    n_head: PositiveInt = Field(8, description="Attention heads.")
    n_kv_head: PositiveInt | None = Field(
        None, description="Key/value heads: n_head = MHA, 1 = MQA, between = GQA; empty: n_head."
    )
    enc_n_kv_head: PositiveInt | None = Field(
        None,
        description="The same of the encoder's self-attention, which keeps nothing from step to step that fewer heads "
        "would make smaller; empty: n_kv_head.",
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
    enc_conv: Count = Field(
        0,
        description="So many neighbouring words, an odd number, are mixed into each before every encoder layer, by a "
        "depthwise convolution: what stands side by side need not be found by attention, which helps models of "
        "characters most; 0: none.",
    )
    qk_norm: bool = Field(False, description="Normalise queries and keys per head before their product.")
    attn_bias: bool = Field(False, description="Biases in the attention projections.")
    ffn_bias: bool = Field(True, description="Biases in the feed-forward sub-layer.")
    attn_dropout: Rate | None = Field(None, description="Dropout on attention weights; empty: dropout.")
    act_dropout: Rate = Field(0.0, description="Dropout inside the feed-forward sub-layer, after the activation.")
    prj_transform: bool = Field(
        False,
        description="A square matrix, orthogonal at first, before the shared projection: without it what is left of a "
        "word's own embedding makes that word likely to be written again.",
    )


class RecurrentOptions(Section):
    """Options of the recurrent models alone."""

    cell: Literal["lstm", "gru"] = Field("lstm", description="Of recurrent models: what remembers.")
    n_rnn_layer: PositiveInt = Field(1, description="Of recurrent models: layers of the encoder, and of the decoder.")
    d_emb: PositiveInt | None = Field(None, description="Of recurrent models: width of embeddings; empty: d_model.")
    enc_direction: Literal["forward", "backward", "both"] = Field(
        "forward",
        description="Of recurrent models: the encoder reads from the first word to the last, or backward, or both "
        "ways, each with half of d_model.",
    )
    attn_score: Literal["dot", "general", "additive"] = Field(
        "dot",
        description="Of architecture attention: how well a state of the decoder and one of the encoder agree: their "
        "product (Luong), the same with a matrix between them, or a small network (Bahdanau).",
    )
    input_feeding: bool = Field(
        False,
        description="Of architecture attention: what was found in the source also enters the next step; training then "
        "goes step by step.",
    )
    variational_dropout: bool = Field(
        False, description="Of recurrent models: dropout draws once a sentence, not for every word anew."
    )
    forget_bias: NonNegativeFloat = Field(
        1.0, description="Of cell lstm: first bias of the forget gate: the larger, the longer a new model remembers."
    )


class ModelConfig(RecurrentOptions, TransformerOptions, AnyModelOptions):
    """The model."""

    @property
    def is_recurrent(self) -> bool:
        """Return whether the model is one of models/lstm."""
        return self.architecture != "transformer"

    @property
    def useless(self) -> set[str]:
        """The options that mean nothing to a model of this architecture."""
        if not self.is_recurrent:
            return set(RecurrentOptions.model_fields)
        of_others = {"forget_bias"} if self.cell == "gru" else set()
        if self.architecture != "attention":
            of_others |= {"attn_score", "input_feeding", "lexical_attn"}
        return set(TransformerOptions.model_fields) | of_others

    @property
    def attention_grids(self) -> dict[Attention, tuple[int, int]]:
        """Layers and heads of each attention that the model tells of, as `nmt.models.base.Attns` does: what can be
        drawn, written, and read alignments off. Without `cross` no word of a translation looks at the source."""
        if self.is_recurrent:
            return {"cross": (1, 1)} if self.architecture == "attention" else {}
        encoder, decoder = (self.n_enc_layer, self.n_head), (self.n_dec_layer, self.n_head)
        return {"cross": decoder, "encoder": encoder, "decoder": decoder}

    @property
    def undecided(self) -> set[str]:
        """The options that a preset may still set: with auto, all those of presets that the recipe does not name."""
        return set().union(*PRESETS.values()) - self.model_fields_set if self.preset == "auto" else set()

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, given: Any) -> Any:
        """Fill in the preset's sizes, and the scale: none where the projection has a matrix of its own, as upstream
        has it."""
        if not isinstance(given, dict):
            return given
        preset = given.get("preset")
        resolved = {**(PRESETS.get(preset, {}) if isinstance(preset, str) else {}), **given}
        shared = given.get("trg_emb_prj_weight_sharing") is not False
        if not shared:
            resolved.setdefault("scale_emb_or_prj", "none")
        elif given.get("architecture", "transformer") != "transformer":
            resolved.setdefault("scale_emb_or_prj", "emb")
        return resolved
