"""THE options: every name, type, default, bound and one-line help, written once.

The YAML reader, `--help`, the option tables and the JSON Schema are made from these models. Four sections have files of
their own, `model_options.py`, `training_options.py`, `regularize_options.py` and `decode_options.py`; here is the rest,
and the recipe as a whole. Presets live in `presets.py`, reading in `reader.py`, tables in `tables.py`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from nmt.recipe.contradictions import find_contradictions
from nmt.recipe.decode_options import DecodeConfig
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.regularize_options import RegularizeConfig
from nmt.recipe.section import Count, PlainName, PositiveInt, Section
from nmt.recipe.training_options import BatchConfig, OptimConfig, TrainConfig


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


def _none_one_or_many(value: Any) -> Any:
    return [] if value is None else _one_or_many(value)


class CorpusFiles(Section):
    """Two files, plain text or .gz, in which line n of one translates line n of the other."""

    src: str = Field(description="File of source sentences, one a line.")
    trg: str = Field(description="File of target sentences, one a line.")


class ValidationSet(CorpusFiles):
    """Two files to validate on, what they are called in the log, and how much is measured on them."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=50)] = Field(
        "valid", description="What the log and the prepared data call the set; each has a name of its own."
    )
    measure: Literal["translate", "loss"] | None = Field(
        None,
        description="translate: loss, perplexity, accuracy, BLEU and chrF; loss: the first three, much faster; empty: "
        "as valid.translate says.",
    )
    max_sentences: Count | None = Field(
        None,
        description="Measure only the first so many pairs of the set; 0: all; empty: the loss on all, translations on "
        "valid.max_sentences.",
    )


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
    valid: Annotated[
        list[ValidationSet],
        BeforeValidator(_none_one_or_many, json_schema_input_type=ValidationSet | list[ValidationSet] | None),
    ] = Field(
        default_factory=list,
        description="Validation files, one mapping {src, trg} or a list of them, each with a name; no line is dropped. "
        "The first set decides what is best and when to stop.",
    )
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

    kind: Literal["bpe", "char"] = Field(
        "bpe", description="Pieces: bpe, learnt parts of words; char, single characters, rare ones byte by byte."
    )
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


class Recipe(Section):
    """One experiment, whole."""

    name: PlainName = Field(description="Name of the experiment: letters, digits, dots, dashes; names its folders.")
    seed: Count = Field(1, description="Seed of everything that is drawn.")
    data: DataConfig = Field(default_factory=lambda: DataConfig(), description="Corpora and filters.")
    subwords: SubwordsConfig = Field(default_factory=lambda: SubwordsConfig(), description="The vocabulary.")
    model: ModelConfig = Field(default_factory=lambda: ModelConfig(), description="The model.")
    batch: BatchConfig = Field(default_factory=lambda: BatchConfig(), description="What an update is made of.")
    optim: OptimConfig = Field(default_factory=lambda: OptimConfig(), description="Optimizer and schedule.")
    train: TrainConfig = Field(default_factory=lambda: TrainConfig(), description="Length, precision, checkpoints.")
    regularize: RegularizeConfig = Field(
        default_factory=lambda: RegularizeConfig(),
        description="What the model must do without while it is trained.",
    )
    valid: ValidConfig = Field(default_factory=lambda: ValidConfig(), description="Validation.")
    decode: DecodeConfig = Field(default_factory=lambda: DecodeConfig(), description="Translation.")

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
