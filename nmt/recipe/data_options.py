"""Options of the data and of the subwords: sources of the pairs, filters, vocabulary."""

import re
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, create_model

from nmt.languages import UNTOLD
from nmt.recipe.section import (
    Count,
    LanguageCode,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Rate,
    Section,
    one_or_many,
)


class FilterConfig(Section):
    """Filters of training pairs. Pairs with a side that is empty or longer than data.max_len are always dropped."""

    max_ratio: NonNegativeFloat = 4.0
    """Largest factor between a pair's ratio of characters and its corpus' median, from 40 characters on; 0: any."""
    drop_identical: bool = True
    """Drop training pairs whose two sides are the same text."""
    drop_control: bool = True
    """Drop pairs with control characters inside, such as NUL; tabs and line breaks do not count."""
    drop_damaged: bool = True
    """Drop pairs with U+FFFD, or with UTF-8 that was read as another encoding (fÃ¼r, donâ€™t)."""
    min_script: Rate = 0.2
    """Least share of a side's letters in a script of its language, if others have 15 bytes or more; 0: any."""
    max_symbols: Rate = 0.9
    """Largest share of digits, punctuation and symbols in a side of 20 characters or more; 0: any."""
    max_repeats: Literal[0] | Annotated[int, Field(ge=3)] = 5
    """Most occurrences in a row of a piece of text, with letters and 48 bytes in all; 0: any."""
    max_other_language: Rate = 0.0
    """Drop pairs with a side in another language, by py3langid (extra langid), more probable than this; 0: off."""
    drop_duplicates: bool = False
    """Keep one copy of a training pair that occurs several times."""
    drop_near_duplicates: bool = False
    """The same for pairs that differ only in case, digits, punctuation, spaces or width."""
    max_translations: Count = 0
    """Keep at most this many pairs with the same source, and with the same target; 0: all."""


# The same options for one corpus. Their default, None, means the value of the section.
_filter_fields: dict[str, Any] = {
    name: (
        field.rebuild_annotation() | None,
        Field(None, description=f"data.{name} of this corpus alone; empty: as there. {field.description}"),
    )
    for name, field in FilterConfig.model_fields.items()
}
_CorpusFilters: Any = create_model("CorpusFilters", __base__=Section, **_filter_fields)

Kind = Literal["tag", "url", "email", "number", "host", "mention", "path", "emoji"]
KINDS: tuple[Kind, ...] = get_args(Kind)  # in search order, which also numbers the placeholders: append new kinds
PATTERN = "pattern"  # the one kind of all matches of the user's patterns
PER_KIND = 10  # placeholders of a kind in a line; further items stay text
UserPattern = Annotated[str, Field(pattern="^/.+/$")]


def _in_order(value: Any) -> Any:
    """Return a list as a tuple, kinds in the order of KINDS before patterns, so that equal settings compare equal."""
    if not isinstance(value, list | tuple):
        return value
    return tuple(sorted(value, key=lambda item: KINDS.index(item) if item in KINDS else len(KINDS)))


def kind_of(item: str) -> str:
    """Return the kind of the placeholders for a kind or pattern of data.protect."""
    return PATTERN if item.startswith("/") else item


def patterns_of(protect: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns among the kinds and patterns of data.protect."""
    return tuple(item for item in protect if kind_of(item) == PATTERN)


def complaint_about_patterns(patterns: Sequence[Any]) -> str | None:
    """Return the complaint about the first unusable pattern of data.protect; None if all are usable."""
    for pattern in patterns:
        if not isinstance(pattern, str) or not re.fullmatch("/.{1,200}/", pattern):
            return "expected a pattern of at most 200 characters between slashes"
        try:
            with warnings.catch_warnings(action="error"):
                re.compile(pattern[1:-1])
                group = re.compile(f"(?P<{PATTERN}>{pattern[1:-1]})")  # as a part of a larger expression
        except (re.error, OverflowError, RecursionError, Warning) as error:
            return f"{pattern} is not a usable regular expression ({error})"
        if len(group.groupindex) > 1 or re.search(r"(?<!\\)(?:\\\\)*(?:\\[1-9]|\(\?\()", pattern):
            return f"{pattern} names a group or refers to one, which other patterns would change (write it without)"
        if group.match(""):
            return f"{pattern} also matches the empty text (make one of its parts required)"
    return None


# A tag is shown as <tag>. It begins with a letter, since <2fr> is the tag of a language.
Tag = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=50)]
Tags = Annotated[list[Tag], one_or_many(Tag)]


def language_tag(lang: str) -> str:
    """Return the tag of a target language."""
    return f"<2{lang}>"


# The name of a column or key, `translation.de` for a nested one, or a number from 1 for columns without names.
Column = PositiveInt | Annotated[str, Field(min_length=1)]
Format = Literal["text", "tsv", "json", "jsonl", "parquet", "arrow", "csv", "tmx"]


class CorpusFiles(Section):
    """Pairs of sentences: two files that translate each other line by line, or one file or dataset with two columns."""

    trg_lang: LanguageCode | None = None
    """Language of the target side, if it is not data.trg_lang; with several, nmt-translate takes --trg-lang."""
    tags: Tags = Field(default_factory=list)
    """Control symbols to put before each source: [bt] for translated text, [news] for a domain; see decode.tags."""
    src: str | list[str] | None = None
    """File of source sentences, one a line; a list of files; or a pattern like news.*.de.gz."""
    trg: str | list[str] | None = None
    """File of target sentences, one a line; as many files as src has, in the same order."""
    file: str | list[str] | None = None
    """In place of src and trg: files with both sides: CSV, TSV, JSON, JSONL, TMX, Parquet or Arrow."""
    dataset: str | None = None
    """In place of src and trg: a dataset for load_dataset, by its name on the hub or its folder."""
    subset: str | None = None
    """Configuration of the dataset, if it has several: de-en."""
    split: str | None = None
    """Split of the dataset: train, validation, train[:1000]."""
    src_column: Column | None = None
    """Column or key of the source: its name, translation.de for one inside another, or number; empty: by language."""
    trg_column: Column | None = None
    """The same of the target sentence."""
    format: Format | None = None
    """Format of the files; empty: by the ending, less .gz, .zst or .xz; any other is text, a sentence a line."""
    header: bool | None = None
    """The first line of TSV or CSV names its columns; empty: it does if a column is chosen by name."""
    unescape: bool = False
    """Undo the tokenisation of Moses in these files: entities (&apos;), @-@, spaces before full stops."""


class TrainingCorpus(_CorpusFilters, CorpusFiles):
    """One training corpus, the weight of its pairs, and filters for it alone."""

    src_lang: LanguageCode | None = None
    """Language of the source side, if it is not data.src_lang: for the filters."""
    drop_flagged: bool = False
    """Drop the lines of JSONL that nmt-translate flagged; a line that was only split stays."""
    scores: str | list[str] | None = None
    """Files of scores, one for each pair: text, a number a line, or TSV, CSV, JSON, JSONL, Parquet or Arrow."""
    score_column: Column | None = None
    """Column or key of the score in the files of scores, or, without those, in the files of pairs; null: no score."""
    min_score: float | None = None
    """Drop pairs with a lower score, or with none."""
    best_share: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Keep this share of the pairs with a score, 0.5 for half: the highest, and ties with the last of them."""
    weight: PositiveFloat = 1.0
    """Visits of each pair in an epoch: 3 thrice, 0.25 another quarter each time; may change without preparing again."""
    translated_by: str | list[str] | None = None
    """Run, or several as an ensemble, that translates the missing side: src by sampling, trg by the run's search."""

    @property
    def back_translates(self) -> bool:
        """Return whether a run translates the target side into the source."""
        return self.translated_by is not None and self.src is None


class ValidationSet(CorpusFiles):
    """A validation set, its name, and the metrics that are measured on it."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=50)] = "valid"
    """Name of the set in the log and in the prepared data; each set needs another."""
    measure: Literal["translate", "loss"] | None = None
    """translate: all metrics; loss: loss, perplexity and accuracy, much faster; empty: as valid.translate says."""
    max_sentences: Count | None = None
    """Measure at most this many pairs of the set, the first ones; 0: all; empty: translate valid.max_sentences."""


class _Sources(Section):
    """Sources of the pairs, and protected items: the model sees placeholders, and translation restores the items."""

    src_lang: LanguageCode = UNTOLD
    """Language of the source side: de, pt-BR, zho_Hans, japanese; und: not told; x-NAME: a made-up one."""
    trg_lang: LanguageCode = UNTOLD
    """Language of the target side. It decides the scripts that are expected and the tokens of BLEU."""
    train: Annotated[list[TrainingCorpus], one_or_many(TrainingCorpus)] = Field(default_factory=list)
    """Training pairs, one mapping like {src: FILE, trg: FILE} or a list of them; see docs/data.md."""
    temperature: Annotated[float, Field(ge=1.0)] = 1.0
    """Above 1 small corpora are visited more: shares proportional to size^(1 / temperature), times weights."""
    valid: Annotated[list[ValidationSet], one_or_many(ValidationSet)] = Field(default_factory=list)
    """Validation pairs, a mapping or a list of them, with names; the first decides the best checkpoint and the stop."""
    valid_size: Annotated[float, Field(gt=0)] | Literal["auto"] | None = None
    """Without data.valid: pairs held out of training, a number or, below 1, a share; auto: 1 %, 200 to 2,000."""
    test: CorpusFiles | None = None
    """Test pairs, never used in training; checked in the report."""
    out: str = ""
    """Folder of the prepared data; empty: prepared/NAME."""
    alarms: Literal["stop", "warn"] = "stop"
    """If a corpus looks wrong as a whole: stop before any data is written, or only warn, as --accept-alarms."""
    max_len: PositiveInt = 256
    """Longest side of a training pair, in subwords; longer pairs are dropped."""
    bad_utf8: Literal["refuse", "drop"] = "refuse"
    """A line that is not UTF-8: stop, or drop its pair and count it."""
    bad_records: Literal["refuse", "drop"] = "refuse"
    """A record of TSV, CSV, JSONL or a table without text in a column: stop, or drop and count it."""
    workers: Count = 0
    """Processes that prepare the data; 0: one a core. The data is the same for any number."""
    protect: Annotated[
        tuple[Kind | UserPattern, ...], BeforeValidator(_in_order, json_schema_input_type=list[Kind | UserPattern])
    ] = ()
    """Items kept as placeholders: these, and regular expressions ('/[A-Z]{2}-[0-9]+/'); see docs/subwords.md."""


class DataConfig(FilterConfig, _Sources):
    """Sources of the pairs, protected items, and filters."""

    def filters_of(self, corpus: int) -> FilterConfig:
        """Return the filters of a training corpus, by its number from 0: its own values, else those of this section."""
        names, options = set(FilterConfig.model_fields), self.train[corpus]
        filters = self.model_dump(include=names)
        filters["drop_duplicates"] |= options.back_translates
        return FilterConfig(**(filters | options.model_dump(include=names, exclude_none=True)))

    def languages_of(self, corpus: int) -> tuple[str, str]:
        """Return the languages of a training corpus, by its number from 0; without data.train those of the recipe."""
        if not self.train:
            return self.src_lang, self.trg_lang
        options = self.train[corpus]
        return options.src_lang or self.src_lang, options.trg_lang or self.trg_lang

    def tags_of(self, pairs: CorpusFiles) -> tuple[str, ...]:
        """Return the tags of a corpus or of held-out pairs. With several target languages the language tag is first."""
        languages = {corpus.trg_lang or self.trg_lang for corpus in self.train}
        language_tags = (language_tag(pairs.trg_lang or self.trg_lang),) if len(languages) > 1 else ()
        return (*language_tags, *(f"<{tag}>" for tag in pairs.tags))

    @property
    def known_tags(self) -> tuple[str, ...]:
        """All tags that a model of this recipe learns, in a fixed order."""
        return tuple(sorted({tag for corpus in self.train for tag in self.tags_of(corpus)}))


# Endings of the files of SentencePiece models.
SENTENCEPIECE_ENDINGS = (".spm", ".model")
MIN_VOCAB_SIZE = 264  # pieces: 256 bytes and the control symbols, rounded up


class SubwordsConfig(Section):
    """Subwords over bytes: no kind has an unknown token, and decoding restores the text byte for byte."""

    kind: Literal["bpe", "unigram", "word", "char", "sentencepiece"] = "bpe"
    """bpe, unigram (Kudo 2018): parts of words; word; char; sentencepiece: of the model file that vocab_from names."""
    vocab_size: Annotated[int, Field(ge=MIN_VOCAB_SIZE, le=1_000_000)] = 8000
    """Pieces, control symbols, `symbols` and 256 bytes included; the model's size is the next multiple of 8."""
    joint: bool = True
    """One vocabulary for both languages."""
    normalize: Literal["nfc", "nfkc", "none"] = "nfc"
    """Unicode form before encoding, stored with the subwords; nfkc also unifies full-width letters and ligatures."""
    whitespace: Literal["unified", "kept"] = "unified"
    """unified: white space is one space, none at ends, nothing invisible; stored with the subwords."""
    symbols: tuple[str, ...] = Field((), max_length=1000, strict=False)  # takes a list, as YAML and JSON have it
    """Placeholders like <url>: each is one piece, never cut, if no letter or digit touches it."""
    vocab_from: str = ""
    """Subwords of a run or prepared data, or .spm or .model files: SRC.spm,TRG.spm with joint: false."""
    extend: Count = 0
    """With vocab_from: learn this many more pieces from the training text, for each vocabulary."""
    max_train_lines: PositiveInt = 10_000_000
    """Lines to learn the pieces from; a seeded sample if there are more."""

    @property
    def vocab_names(self) -> list[str]:
        """Names in vocab_from: one, or those of several SentencePiece models, separated by commas."""
        names = self.vocab_from.split(",")
        return names if all(name.endswith(SENTENCEPIECE_ENDINGS) for name in names) else [self.vocab_from]
