"""Options of the model: sizes, variants of its parts, and shared weights.

Each class holds the options of one family of models, and `ModelConfig` has them all. `contradictions.py` refuses an
option that the architecture does not use.
"""

from typing import Any, Literal, get_args

from pydantic import model_validator

from nmt.recipe.section import Count, NonNegativeFloat, PositiveInt, Rate, Section

# Named sizes of the Transformer.
PRESETS: dict[str, dict[str, float]] = {
    "tiny": {"n_enc_layer": 2, "n_dec_layer": 2, "d_model": 128, "d_inner": 512, "n_head": 4},
    "small": {"n_enc_layer": 3, "n_dec_layer": 3, "d_model": 256, "d_inner": 1024, "n_head": 4},
    "base": {"n_enc_layer": 6, "n_dec_layer": 6, "d_model": 512, "d_inner": 2048, "n_head": 8},
    "big": {"n_enc_layer": 6, "n_dec_layer": 6, "d_model": 1024, "d_inner": 4096, "n_head": 16, "dropout": 0.3},
}

# `model.preset: auto` takes preset and dropout of the first row with a bound above the corpus' target tokens (EOS too).
# docs/results.md for Multi30k (0.4 M tokens); practice for IWSLT (3.5 M; Araabi and Monz 2020, "Optimizing Transformer
# for low-resource NMT"), WMT14 en-de (120 M) and en-fr (1 G; Vaswani et al. 2017).
AUTO = (
    (3e5, "tiny", 0.3),
    (1e7, "small", 0.3),
    (3e7, "base", 0.2),
    (4e8, "base", 0.1),
    (float("inf"), "big", 0.1),
)


def preset_for(n_token: int) -> tuple[str, float]:
    """Return preset and dropout for a corpus with this many target tokens."""
    return next((preset, dropout) for bound, preset, dropout in AUTO if n_token < bound)


# Kinds of attention: cross-attention of the decoder to the source, self-attention of the encoder, and causal
# self-attention of the decoder.
Attention = Literal["cross", "encoder", "decoder"]
ATTENTIONS: tuple[Attention, ...] = get_args(Attention)


class AnyModelOptions(Section):
    """Options of every model."""

    architecture: Literal["transformer", "seq2seq", "peeky", "attention"] = "transformer"
    """Recurrent: seq2seq reads the encoder's last state once, peeky at every step; attention attends to all states."""
    d_model: PositiveInt = 512
    """Width of the residual stream, and of the embeddings; of a recurrent state."""
    dropout: Rate = 0.1
    """Dropout on sub-layer outputs (the residual branches); between recurrent layers and at the end."""
    emb_dropout: Rate | None = None
    """Dropout on embeddings + positions; empty: dropout."""
    trg_emb_prj_weight_sharing: bool = True
    """The output projection is the target embedding."""
    emb_src_trg_weight_sharing: bool = True
    """Source and target embedding are one; needs subwords.joint."""
    scale_emb_or_prj: Literal["emb", "prj", "none"] = "prj"
    """With a shared projection: scale embeddings by √width, or logits by its inverse; recurrent models: emb."""
    lexical_attn: bool = False
    """Lexical attention: add the attended source embeddings to the last state (not: seq2seq, peeky)."""
    emb_init: Literal["xavier", "normal", "cooccurrence"] = "xavier"
    """Xavier-uniform; normal, variance 1 / d_model; cooccurrence: normal, words of the same pairs near each other."""


class TransformerOptions(Section):
    """Options of the Transformer alone. Without a preset the defaults are those of the upstream layout."""

    preset: Literal["auto", "tiny", "small", "base", "big"] | None = None
    """Sizes to start from; an option beside it wins. auto: by corpus and time budget, with dropout to match."""
    d_inner: PositiveInt = 2048
    """Width inside the feed-forward sub-layer."""
    n_enc_layer: PositiveInt = 6
    """Encoder layers."""
    n_dec_layer: PositiveInt = 6
    """Decoder layers."""
    n_head: PositiveInt = 8
    """Attention heads."""
    n_kv_head: PositiveInt | None = None
    """Key/value heads: n_head = MHA, 1 = MQA, between = GQA; empty: n_head."""
    enc_n_kv_head: PositiveInt | None = None
    """The same of the encoder's self-attention; empty: n_kv_head."""
    d_k: PositiveInt | None = None
    """Width of a query and a key; empty: d_model / n_head."""
    d_v: PositiveInt | None = None
    """Width of a value; empty: d_model / n_head."""
    norm: Literal["post", "pre"] = "post"
    """Normalise after each residual (the paper) or before each sub-layer."""
    norm_kind: Literal["layer", "rms"] = "layer"
    """LayerNorm or RMSNorm."""
    ffn: Literal["relu", "gelu", "swiglu", "relu2"] = "relu"
    """Activation inside the feed-forward sub-layer."""
    position: Literal["sinusoid", "learned", "rotary"] = "sinusoid"
    """Encoding of positions; none has a hidden length limit."""
    n_position: PositiveInt = 200
    """Rows of the position table: sinusoids go on beyond it, learned positions repeat its last row."""
    rotary_enc_attn: bool = False
    """Rotary positions in the attention over the source, too."""
    enc_conv: Count = 0
    """Width, in words and odd, of a depthwise convolution before every encoder layer; 0: none."""
    qk_norm: bool = False
    """Normalise queries and keys per head before their product."""
    attn_bias: bool = False
    """Biases in the attention projections."""
    ffn_bias: bool = True
    """Biases in the feed-forward sub-layer."""
    attn_dropout: Rate | None = None
    """Dropout on attention weights; empty: dropout."""
    act_dropout: Rate = 0.0
    """Dropout inside the feed-forward sub-layer, after the activation."""
    prj_transform: bool = False
    """A square matrix, orthogonal at first, before the shared projection, against repeating the last word."""


class RecurrentOptions(Section):
    """Options of the recurrent models alone."""

    cell: Literal["lstm", "gru"] = "lstm"
    """Of recurrent models: the cell."""
    n_rnn_layer: PositiveInt = 1
    """Of recurrent models: layers of the encoder, and of the decoder."""
    d_emb: PositiveInt | None = None
    """Of recurrent models: width of embeddings; empty: d_model."""
    enc_direction: Literal["forward", "backward", "both"] = "forward"
    """Of recurrent models: reading direction of the encoder; both: each direction with half of d_model."""
    attn_score: Literal["dot", "general", "additive"] = "dot"
    """Of architecture attention: a dot product, a bilinear form (Luong), or a small network (Bahdanau)."""
    input_feeding: bool = False
    """Of architecture attention: the attention output enters the next step; training goes step by step."""
    variational_dropout: bool = False
    """Of recurrent models: one dropout mask a sentence, not one a word."""
    forget_bias: NonNegativeFloat = 1.0
    """Of cell lstm: initial bias of the forget gate: the larger, the longer a new model remembers."""


class ModelConfig(RecurrentOptions, TransformerOptions, AnyModelOptions):
    """The model."""

    @property
    def is_recurrent(self) -> bool:
        """Return whether the model is recurrent (models/lstm)."""
        return self.architecture != "transformer"

    @property
    def useless(self) -> set[str]:
        """Names of the options that have no effect in a model of this architecture."""
        if not self.is_recurrent:
            return set(RecurrentOptions.model_fields)
        unused = {"forget_bias"} if self.cell == "gru" else set()
        if self.architecture != "attention":
            unused |= {"attn_score", "input_feeding", "lexical_attn"}
        return set(TransformerOptions.model_fields) | unused

    @property
    def attention_grids(self) -> dict[Attention, tuple[int, int]]:
        """(n_layer, n_head) by kind of attention, for the weights that the model returns (`nmt.models.base.Attns`)."""
        if self.is_recurrent:
            return {"cross": (1, 1)} if self.architecture == "attention" else {}
        encoder, decoder = (self.n_enc_layer, self.n_head), (self.n_dec_layer, self.n_head)
        return {"cross": decoder, "encoder": encoder, "decoder": decoder}

    @property
    def undecided(self) -> set[str]:
        """Names of the options that `preset: auto` has yet to set: those of the presets that the recipe leaves out."""
        return set().union(*PRESETS.values()) - self.model_fields_set if self.preset == "auto" else set()

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, given: Any) -> Any:
        """Fill in the sizes of a Transformer's preset, and `scale_emb_or_prj`: none without sharing, as upstream."""
        if not isinstance(given, dict):
            return given
        preset, is_transformer = given.get("preset"), given.get("architecture", "transformer") == "transformer"
        sizes = PRESETS.get(preset, {}) if isinstance(preset, str) and is_transformer else {}
        is_shared = given.get("trg_emb_prj_weight_sharing") is not False
        scale = ("prj" if is_transformer else "emb") if is_shared else "none"
        return {"scale_emb_or_prj": scale, **sizes, **given}
