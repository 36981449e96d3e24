"""The options of the data: where pairs come from, and which of them are kept."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from nmt.recipe.filter_options import FilterConfig
from nmt.recipe.section import Count, PositiveInt, Section


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


class _Sources(Section):
    """Where the pairs come from."""

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
    bad_utf8: Literal["refuse", "drop"] = Field(
        "refuse", description="A line that is not UTF-8: stop, or drop its pair and count it."
    )
    workers: Count = Field(0, description="Threads that learn and encode subwords; 0: one a core.")


class DataConfig(FilterConfig, _Sources):
    """Where the pairs come from and which of them are kept."""
