"""THE options: every name, type, default, bound and one-line help, written once.

The YAML reader, `--help`, the option tables and the JSON Schema are made from these models.
Presets live in `presets.py`, reading in `reader.py`, tables in `tables.py`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from nmt.recipe.contradictions import find_contradictions
from nmt.recipe.presets import PRESETS

PositiveInt = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
PositiveFloat = Annotated[float, Field(gt=0.0)]
NonNegativeFloat = Annotated[float, Field(ge=0.0)]
PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


def _list_to_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class Section(BaseModel):
    """A part of a recipe: frozen, strict about types, unknown keys and infinities refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class CorpusFiles(Section):
    """Two files, plain text or .gz, in which line n of one translates line n of the other."""

    src: str = Field(description="File of source sentences, one a line.")
    trg: str = Field(description="File of target sentences, one a line.")


class DataConfig(Section):
    """Where the pairs come from and which of them are kept."""

    src_lang: str = Field("src", description="Language of the source side, as a code: de, en, no.")
    trg_lang: str = Field("trg", description="Language of the target side, as a code.")
    generate: Literal["dates"] | None = Field(
        None, description="Make the corpus instead of reading files: the date task."
    )
    train: Annotated[
        list[CorpusFiles], BeforeValidator(_one_or_many, json_schema_input_type=CorpusFiles | list[CorpusFiles])
    ] = Field(default_factory=list, description="Training files, one mapping {src, trg} or a list of them.")
    valid: CorpusFiles | None = Field(None, description="Validation files; every line of them counts.")
    test: CorpusFiles | None = Field(
        None, description="Test files, kept out of everything; for the record and the quick start."
    )
    out: str = Field("", description="Folder of the prepared data; empty: prepared/NAME.")
    max_len: PositiveInt = Field(
        256, description="Longest side of a training pair, in subwords; longer pairs are dropped."
    )
    max_ratio: Annotated[float, Field(ge=1.0)] = Field(
        4.0, description="Largest ratio of the two sides' UTF-8 bytes; short pairs (under 40 bytes both) are exempt."
    )
    drop_identical: bool = Field(True, description="Drop training pairs whose two sides are the same text.")
    drop_duplicates: bool = Field(False, description="Keep a training pair that occurs again only once.")
    bad_utf8: Literal["refuse", "drop"] = Field(
        "refuse", description="A line that is not UTF-8: stop, or drop its pair and count it."
    )
    workers: Count = Field(0, description="Threads that learn and encode subwords; 0: one a core.")


class SubwordsConfig(Section):
    """Byte-level BPE: no unknown token, and decoding gives the text back byte for byte."""

    vocab_size: Annotated[int, Field(ge=264, le=1_000_000)] = Field(
        8000, description="Pieces, control symbols and 256 bytes included; the model's size is the next multiple of 8."
    )
    joint: bool = Field(True, description="One vocabulary for both languages.")
    normalize: Literal["nfc", "none"] = Field(
        "nfc", description="Unicode normalisation before encoding; stored with the subwords."
    )
    max_train_lines: PositiveInt = Field(
        10_000_000, description="Lines that BPE learns from; a seeded sample when there are more."
    )


class ModelConfig(Section):
    """The Transformer. The defaults of a model without preset are those of the upstream layout."""

    preset: Literal["tiny", "small", "base", "big"] | None = Field(
        None, description="Sizes to start from; any option beside it refines it."
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


class BatchConfig(Section):
    """Which pairs make up an update; nothing here depends on the number of devices."""

    max_tokens: PositiveInt = Field(
        4096, description="Bound on sentences x longest sentence in one batch, so on memory."
    )
    per_update: PositiveInt = Field(
        1, description="Batches per update over all devices: more devices are faster, not different."
    )
    pool: PositiveInt = Field(100_000, description="Shuffled pairs that are sorted by length together.")
    split_rate: Rate = Field(
        0.0,
        description="Share of the subwords of training pairs that fall apart into what they were merged from, anew "
        "each time, as with BPE-dropout: for rare words. Batches grow by about as much.",
    )


class OptimConfig(Section):
    """The optimizer, its learning rate over the updates, and clipping."""

    name: Literal["adam", "adamw", "muon"] = Field(
        "adam", description="adam, adamw, or muon: orthogonalised momentum for matrices, adamw for the rest."
    )
    lr: PositiveFloat = Field(1e-3, description="Peak learning rate (noam computes its own: see lr_mul).")
    muon_lr: PositiveFloat = Field(0.02, description="Peak learning rate of the matrices under muon.")
    betas: Annotated[tuple[Rate, Rate], BeforeValidator(_list_to_tuple)] = Field(
        (0.9, 0.98), description="Decay of Adam's two moments."
    )
    eps: PositiveFloat = Field(1e-9, description="Added to Adam's denominator.")
    weight_decay: NonNegativeFloat = Field(0.0, description="Decay of matrices; decoupled in adamw and muon.")
    schedule: Literal["noam", "inverse_sqrt", "cosine", "linear", "constant"] = Field(
        "noam", description="Learning rate over the updates, after a linear warm-up."
    )
    warmup: Count = Field(4000, description="Updates of linear warm-up.")
    lr_mul: PositiveFloat = Field(2.0, description="Factor of the noam schedule, as upstream.")
    end_factor: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.0, description="Where cosine and linear end, as a share of the peak."
    )
    clip: NonNegativeFloat = Field(0.0, description="Largest norm of the gradient; 0: no clipping.")


class TrainConfig(Section):
    """How long, in which precision, what is written and what is kept."""

    out: str = Field("", description="The run folder; empty: runs/NAME.")
    updates: PositiveInt = Field(100_000, description="Updates to train for.")
    label_smoothing: Rate = Field(
        0.1, description="Mass taken from the gold token and spread over the vocabulary, padding excepted."
    )
    ema: Rate = Field(
        0.0, description="Decay of a moving average of the weights, a candidate for the final model; 0: none."
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="auto measures the machine and says what it chose; the others measure nothing."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: the GPU if there is one.")
    threads: Count = Field(0, description="CPU threads; 0: one a core.")
    compile: bool = Field(False, description="torch.compile the model.")
    log_every: PositiveInt = Field(50, description="Updates between two lines of log.jsonl.")
    save_every: PositiveInt = Field(1000, description="Updates between two checkpoints.")
    keep_last: PositiveInt = Field(3, description="Newest checkpoints that are kept.")
    keep_best: PositiveInt = Field(1, description="Best checkpoints that are kept; the best is never deleted.")
    average: Literal["none", "last", "best"] = Field(
        "last", description="Which of the kept checkpoints are averaged at the end."
    )
    tensorboard: bool = Field(False, description="Also write TensorBoard events (needs the tensorboard extra).")


class ValidConfig(Section):
    """When the model is measured, by what, and when to stop."""

    every: PositiveInt = Field(1000, description="Updates between two validations.")
    metric: Literal["bleu", "chrf", "loss", "accuracy"] = Field(
        "bleu", description="What the best checkpoint is best in."
    )
    patience: Count = Field(0, description="Validations without a new best before training stops; 0: never.")
    beam: PositiveInt = Field(1, description="Beam of the validation translations; 1 is greedy.")
    max_sentences: Count = Field(0, description="Translate only the first so many validation pairs; 0: all.")
    translate: bool = Field(True, description="Translate the validation set for BLEU and chrF.")
    max_tokens: PositiveInt = Field(8192, description="Bound on sentences x longest sentence in one validation batch.")


class DecodeConfig(Section):
    """Beam search, at the end of training and in nmt-translate."""

    beam: PositiveInt = Field(5, description="Hypotheses kept for each sentence; 1 is greedy.")
    length_penalty: Literal["wu", "average", "none"] = Field(
        "wu", description="Score / ((5 + length) / 6)^alpha (Wu et al. 2016), score / length^alpha, or the bare score."
    )
    alpha: NonNegativeFloat = Field(1.0, description="Exponent of the length penalty.")
    n_best: PositiveInt = Field(1, description="Hypotheses written for each sentence, best first.")
    max_len_a: NonNegativeFloat = Field(2.0, description="A translation has at most a x source length + b tokens.")
    max_len_b: PositiveInt = Field(20, description="See max_len_a.")
    max_tokens: PositiveInt = Field(4096, description="Bound on sentences x beam x longest source in one batch.")
    window: PositiveInt = Field(1000, description="Lines that are sorted and batched together.")


class Recipe(Section):
    """One experiment, whole."""

    name: PlainName = Field(description="Name of the experiment: letters, digits, dots, dashes; names its folders.")
    seed: Count = Field(1, description="Seed of everything that is drawn.")
    data: DataConfig = Field(default_factory=lambda: DataConfig(), description="Corpora and filters.")
    subwords: SubwordsConfig = Field(default_factory=lambda: SubwordsConfig(), description="The vocabulary.")
    model: ModelConfig = Field(default_factory=lambda: ModelConfig(), description="The Transformer.")
    batch: BatchConfig = Field(default_factory=lambda: BatchConfig(), description="What an update is made of.")
    optim: OptimConfig = Field(default_factory=lambda: OptimConfig(), description="Optimizer and schedule.")
    train: TrainConfig = Field(default_factory=lambda: TrainConfig(), description="Length, precision, checkpoints.")
    valid: ValidConfig = Field(default_factory=lambda: ValidConfig(), description="Validation.")
    decode: DecodeConfig = Field(default_factory=lambda: DecodeConfig(), description="Beam search.")

    @property
    def data_folder(self) -> Path:
        """Where nmt-preprocess writes and nmt-train reads."""
        return Path(self.data.out or f"prepared/{self.name}")

    @property
    def run_folder(self) -> Path:
        """Where nmt-train writes and nmt-translate reads."""
        return Path(self.train.out or f"runs/{self.name}")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if found := find_contradictions(self):
            raise ValueError("\n".join(found))
        return self
