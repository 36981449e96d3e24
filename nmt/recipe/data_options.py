"""The options of the data: where pairs come from, and which of them are kept."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from nmt.languages import UNTOLD
from nmt.recipe.filter_options import FilterConfig, OwnFilters
from nmt.recipe.protect_options import ProtectConfig
from nmt.recipe.section import Count, LanguageCode, PositiveFloat, PositiveInt, Section
from nmt.recipe.tag_options import Tagged


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


def _none_one_or_many(value: Any) -> Any:
    return [] if value is None else _one_or_many(value)


# The name of a column or key, `translation.de` for one inside another, or a number from 1 where columns have none.
Column = PositiveInt | Annotated[str, Field(min_length=1)]
Format = Literal["text", "tsv", "jsonl", "parquet", "arrow", "csv", "tmx"]


class CorpusFiles(Tagged):
    """Pairs of sentences: two files in which line n of one translates line n of the other, or one file or dataset with
    a column for each side.
    """

    src: str | list[str] | None = Field(
        None, description="File of source sentences, one a line; a list of files; or a pattern like news.*.de.gz."
    )
    trg: str | list[str] | None = Field(
        None, description="File of target sentences, one a line; as many files as there are of src, in their order."
    )
    file: str | list[str] | None = Field(
        None,
        description="In place of src and trg: file, list or pattern of files with both sides, CSV, TSV, JSONL, TMX, "
        "Parquet or Arrow; - is stdin, for a training corpus.",
    )
    dataset: str | None = Field(
        None, description="In place of src and trg: a dataset for load_dataset, by its name on the hub or its folder."
    )
    subset: str | None = Field(None, description="Which configuration of the dataset, where it has several: de-en.")
    split: str | None = Field(None, description="Which split of the dataset: train, validation, train[:1000].")
    src_column: Column | None = Field(
        None,
        description="Column or key of the source sentence: its name, translation.de for one inside another, a language "
        "of TMX, or in TSV and CSV its number from 1; empty, in a file: found by its name, as de, German or source.",
    )
    trg_column: Column | None = Field(None, description="The same of the target sentence.")
    format: Format | None = Field(
        None,
        description="What is in the files; empty: by the ending, .csv, .tsv, .jsonl, .tmx, .parquet or .arrow, less "
        ".gz, .zst or .xz; anything else is text, a sentence a line.",
    )
    header: bool | None = Field(
        None,
        description="The first line of TSV or CSV names its columns; empty: it does where one is chosen by name.",
    )

    unescape: bool = Field(
        False,
        description="Undo what the scripts of Moses did to these files: entities (&apos;), @-@, spaces before full "
        "stops and the like, where it is plain what stood there before.",
    )


class TrainingCorpus(OwnFilters, CorpusFiles):
    """One corpus to train on, how often its pairs are visited, and by which filters of its own they are chosen."""

    src_lang: LanguageCode | None = Field(
        None, description="Language of the source side, where it is not data.src_lang: for the filters."
    )
    drop_flagged: bool = Field(
        False,
        description="Drop the lines of JSONL that nmt-translate wrote and flagged: repeated, copied, lost, ratio, low, "
        "cap, unmet, missing, doubled, blank, cut, invalid_utf8; one that was only split stays.",
    )
    weight: PositiveFloat = Field(
        1.0,
        description="How often each pair of this corpus is visited in an epoch, on average: 3 thrice, 0.25 a quarter "
        "of the pairs, another one in each epoch. Changing it needs no new preparation.",
    )


class ValidationSet(CorpusFiles):
    """Pairs to validate on, what they are called in the log, and how much is measured on them."""

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
        description="Measure at most this many pairs of the set, the first ones; 0: all; empty: the loss on all, "
        "translations on valid.max_sentences.",
    )


class _Sources(Section):
    """Where the pairs come from."""

    src_lang: LanguageCode = Field(
        UNTOLD,
        description="Language of the source side: de, pt-BR, zho_Hans, japanese; und: not told; x-NAME: a made-up one.",
    )
    trg_lang: LanguageCode = Field(
        UNTOLD,
        description="Language of the target side. The scripts that are expected and the words of BLEU follow it.",
    )
    train: Annotated[
        list[TrainingCorpus],
        BeforeValidator(_one_or_many, json_schema_input_type=TrainingCorpus | list[TrainingCorpus]),
    ] = Field(
        default_factory=list,
        description="Training pairs, one mapping like {src: FILE, trg: FILE} or a list of them; see docs/data.md.",
    )
    temperature: Annotated[float, Field(ge=1.0)] = Field(
        1.0,
        description="Of several training corpora: above 1 small ones are visited more often, so that shares go with "
        "the sizes to the power of 1 / temperature; a corpus' weight multiplies that.",
    )
    valid: Annotated[
        list[ValidationSet],
        BeforeValidator(_none_one_or_many, json_schema_input_type=ValidationSet | list[ValidationSet] | None),
    ] = Field(
        default_factory=list,
        description="Validation pairs, one such mapping or a list of them, each with a name; no line is dropped. The "
        "first set decides what is best and when to stop.",
    )
    valid_size: Annotated[float, Field(gt=0)] | Literal["auto"] | None = Field(
        None,
        description="Where data.valid is empty: pairs held out of training for validation, a number or, below 1, a "
        "share; auto: 1 %, 200 to 2,000. Near copies of them are left out of training.",
    )
    test: CorpusFiles | None = Field(
        None, description="Test pairs, kept out of everything; for the record and the quick start."
    )
    out: str = Field("", description="Folder of the prepared data; empty: prepared/NAME.")
    alarms: Literal["stop", "warn"] = Field(
        "stop",
        description="Swapped files, shifted lines, validation pairs among the training pairs, most pairs dropped: stop "
        "before any data is written, or only warn; --accept-alarms is warn.",
    )
    max_len: PositiveInt = Field(
        256, description="Longest side of a training pair, in subwords; longer pairs are dropped."
    )
    bad_utf8: Literal["refuse", "drop"] = Field(
        "refuse", description="A line that is not UTF-8: stop, or drop its pair and count it."
    )
    bad_records: Literal["refuse", "drop"] = Field(
        "refuse",
        description="A line of TSV or JSONL, or a row of a table, with no text in a column that is read: stop, or drop "
        "its pair and count it.",
    )
    workers: Count = Field(
        0, description="Processes that share the work of preparing; 0: one a core. The data is the same for any number."
    )


class DataConfig(FilterConfig, ProtectConfig, _Sources):
    """Where the pairs come from, what in them is protected, and which of them are kept."""

    def filters_of(self, corpus: int) -> FilterConfig:
        """The filters of a training corpus, by its number from 0: its own, and the others as they are here.

        A corpus that is made on the spot is in no list.
        """
        own = self.train[corpus] if self.train else None
        told = {name: getattr(own, name, None) for name in FilterConfig.model_fields}
        return FilterConfig(**{name: getattr(self, name) if value is None else value for name, value in told.items()})

    def languages_of(self, corpus: int) -> tuple[str, str]:
        """The languages of the two sides of a training corpus."""
        own = self.train[corpus] if self.train else None
        return (own and own.src_lang) or self.src_lang, (own and own.trg_lang) or self.trg_lang
