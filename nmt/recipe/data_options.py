"""The options of the data: where pairs come from, and which of them are kept."""

import re
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, create_model
from pydantic.fields import FieldInfo

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
    """Filters that drop a training pair, beside a side that is empty or longer than data.max_len."""

    max_ratio: NonNegativeFloat = 4.0
    """Largest factor between a pair's ratio of characters and its corpus' median, from 40 characters on; 0: any."""
    drop_identical: bool = True
    """Drop training pairs whose two sides are the same text."""
    drop_control: bool = True
    """Drop pairs with control characters inside, such as NUL; tabs and line breaks are none."""
    drop_damaged: bool = True
    """Drop pairs with U+FFFD, or with UTF-8 that was read as another encoding (fÃ¼r, donâ€™t)."""
    min_script: Rate = 0.2
    """Least share of a side's letters in a script of its language, from 15 bytes of others on; 0: any."""
    max_symbols: Rate = 0.9
    """Largest share of digits, punctuation and symbols in a side of 20 characters or more; 0: any."""
    max_repeats: Literal[0] | Annotated[int, Field(ge=3)] = 5
    """Most times in a row that a piece of text, with letters and 48 bytes in all, may stand; 0: any."""
    max_other_language: Rate = 0.0
    """Drop pairs with a side in another language, by py3langid (extra langid), more probable than this; 0: off."""
    drop_duplicates: bool = False
    """Keep a training pair that occurs again only once."""
    drop_near_duplicates: bool = False
    """The same for pairs that differ in case, digits, punctuation, spaces or width alone."""
    max_translations: Count = 0
    """Keep at most this many pairs with the same source, and with the same target; 0: all."""


def _own(name: str, field: FieldInfo) -> tuple[Any, Any]:
    """A filter once more, for one corpus; it may be left out, and is then as the section has it."""
    kind: Any = field.annotation
    bounded = Annotated[kind, *field.metadata] if field.metadata else kind
    about = f"data.{name} of this corpus alone; empty: as there. {field.description}"
    return bounded | None, Field(None, description=about)


_own_fields: dict[str, Any] = {name: _own(name, field) for name, field in FilterConfig.model_fields.items()}
_OwnFilters: Any = create_model("OwnFilters", __base__=Section, **_own_fields)


Kind = Literal["tag", "url", "email", "number", "host", "mention", "path", "emoji"]
KINDS: tuple[Kind, ...] = get_args(Kind)  # looked for in this order; new ones come last, as placeholders are numbered
PATTERN = "pattern"  # the kind of what patterns of one's own find, all of them
PER_KIND = 10  # this many items of a kind in a line have placeholders; further ones stay text
OwnPattern = Annotated[str, Field(pattern="^/.+/$")]


def _in_order(value: Any) -> Any:
    """A list as a tuple, kinds in the order of KINDS before patterns: two recipes that mean the same say the same."""
    if not isinstance(value, list | tuple):
        return value
    return tuple(sorted(value, key=lambda one: KINDS.index(one) if one in KINDS else len(KINDS)))


def kind_of(one: str) -> str:
    """Return the kind of the placeholders for a kind or pattern of data.protect."""
    return PATTERN if one.startswith("/") else one


def patterns_of(protect: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns among the kinds and patterns of data.protect."""
    return tuple(one for one in protect if kind_of(one) == PATTERN)


def complaint_about_patterns(patterns: Sequence[Any]) -> str | None:
    """Return why patterns of data.protect are refused."""
    for one in patterns:
        if not isinstance(one, str) or not re.fullmatch("/.{1,200}/", one):
            return "a pattern is no text of at most 200 characters between slashes"
        try:
            with warnings.catch_warnings(action="error"):
                re.compile(one[1:-1])
                pattern = re.compile(f"(?P<{PATTERN}>{one[1:-1]})")  # as a part of a larger one
        except (re.error, OverflowError, RecursionError, Warning) as error:
            return f"{one} is no regular expression that can be used ({error})"
        if len(pattern.groupindex) > 1:
            return f"{one} has a named group (write it as (?:...))"
        if pattern.match(""):
            return f"{one} also matches where nothing stands (make one of its parts necessary)"
    return None


# A tag is shown as <tag>; a digit at its beginning would make <2fr> of 2fr, which is a language's.
Tag = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=50)]


def language_tag(lang: str) -> str:
    """Return the tag of a target language."""
    return f"<2{lang}>"


# The name of a column or key, `translation.de` for one inside another, or a number from 1 where columns have none.
Column = PositiveInt | Annotated[str, Field(min_length=1)]
Format = Literal["text", "tsv", "jsonl", "parquet", "arrow", "csv", "tmx"]


class CorpusFiles(Section):
    """Pairs of sentences: two files in which line n of one translates line n of the other, or one file or dataset with
    a column for each side.
    """

    trg_lang: LanguageCode | None = None
    """Language of the target side, where it is not data.trg_lang; of several, nmt-translate takes --trg-lang."""
    tags: list[Tag] = Field(default_factory=list)
    """Control symbols to put before each source: [bt] for translated text, [news] for a domain; see decode.tags."""
    src: str | list[str] | None = None
    """File of source sentences, one a line; a list of files; or a pattern like news.*.de.gz."""
    trg: str | list[str] | None = None
    """File of target sentences, one a line; as many files as there are of src, in their order."""
    file: str | list[str] | None = None
    """In place of src and trg: files with both sides: CSV, TSV, JSONL, TMX, Parquet or Arrow."""
    dataset: str | None = None
    """In place of src and trg: a dataset for load_dataset, by its name on the hub or its folder."""
    subset: str | None = None
    """Which configuration of the dataset, where it has several: de-en."""
    split: str | None = None
    """Which split of the dataset: train, validation, train[:1000]."""
    src_column: Column | None = None
    """Column or key of the source: its name, translation.de for one inside another, or number; empty: by language."""
    trg_column: Column | None = None
    """The same of the target sentence."""
    format: Format | None = None
    """What is in the files; empty: by the ending, less .gz, .zst or .xz; any other is text, a sentence a line."""
    header: bool | None = None
    """The first line of TSV or CSV names its columns; empty: it does where one is chosen by name."""
    unescape: bool = False
    """Undo what the scripts of Moses did to these files: entities (&apos;), @-@, spaces before full stops."""


class TrainingCorpus(_OwnFilters, CorpusFiles):
    """One corpus to train on, how often its pairs are visited, and by which filters of its own they are chosen."""

    src_lang: LanguageCode | None = None
    """Language of the source side, where it is not data.src_lang: for the filters."""
    drop_flagged: bool = False
    """Drop the lines of JSONL that nmt-translate wrote and flagged; one that was only split stays."""
    scores: str | list[str] | None = None
    """Files of scores, one for each pair: text, a number a line, or TSV, CSV, JSONL, Parquet or Arrow."""
    score_column: Column | None = None
    """Column or key of the score, in the files of scores, or without them in those of the pairs; null: no score."""
    min_score: float | None = None
    """Drop pairs with a lower score, or with none."""
    best_share: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Keep this share of the pairs with a score, 0.5 for half: the highest, and those that equal the last of them."""
    weight: PositiveFloat = 1.0
    """Visits of each pair in an epoch: 3 thrice, 0.25 another quarter each time; may change without preparing again."""
    translated_by: str | list[str] | None = None
    """Run, or several as an ensemble, that makes the side not named: src by sampling, trg by the run's own search."""

    @property
    def back_translates(self) -> bool:
        """Return whether a run makes the source."""
        return self.translated_by is not None and self.src is None


class ValidationSet(CorpusFiles):
    """Pairs to validate on, what they are called in the log, and how much is measured on them."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=50)] = "valid"
    """What the log and the prepared data call the set; each has a name of its own."""
    measure: Literal["translate", "loss"] | None = None
    """translate: all metrics; loss: loss, perplexity and accuracy, much faster; empty: as valid.translate says."""
    max_sentences: Count | None = None
    """Measure at most this many pairs of the set, the first ones; 0: all; empty: translate valid.max_sentences."""


class _Sources(Section):
    """Sources of the pairs, and items that the model sees as placeholders and that are put back after it."""

    src_lang: LanguageCode = UNTOLD
    """Language of the source side: de, pt-BR, zho_Hans, japanese; und: not told; x-NAME: a made-up one."""
    trg_lang: LanguageCode = UNTOLD
    """Language of the target side. The scripts that are expected and the words of BLEU follow it."""
    train: Annotated[
        list[TrainingCorpus],
        BeforeValidator(one_or_many(dict), json_schema_input_type=TrainingCorpus | list[TrainingCorpus]),
    ] = Field(default_factory=list)
    """Training pairs, one mapping like {src: FILE, trg: FILE} or a list of them; see docs/data.md."""
    temperature: Annotated[float, Field(ge=1.0)] = 1.0
    """Above 1 small corpora are visited more: shares go with size^(1 / temperature), times weights."""
    valid: Annotated[
        list[ValidationSet],
        BeforeValidator(one_or_many(dict), json_schema_input_type=ValidationSet | list[ValidationSet] | None),
    ] = Field(default_factory=list)
    """Validation pairs, a mapping or a list of them, with names; the first decides what is best and when to stop."""
    valid_size: Annotated[float, Field(gt=0)] | Literal["auto"] | None = None
    """Without data.valid: pairs held out of training, a number or, below 1, a share; auto: 1 %, 200 to 2,000."""
    test: CorpusFiles | None = None
    """Test pairs, kept out of everything; for the record and the quick start."""
    out: str = ""
    """Folder of the prepared data; empty: prepared/NAME."""
    alarms: Literal["stop", "warn"] = "stop"
    """Corpora that look wrong as a whole: stop before any data is written, or only warn, as --accept-alarms."""
    max_len: PositiveInt = 256
    """Longest side of a training pair, in subwords; longer pairs are dropped."""
    bad_utf8: Literal["refuse", "drop"] = "refuse"
    """A line that is not UTF-8: stop, or drop its pair and count it."""
    bad_records: Literal["refuse", "drop"] = "refuse"
    """A line of TSV or JSONL, or a row of a table, without text in a column: stop, or drop and count it."""
    workers: Count = 0
    """Processes that share the work of preparing; 0: one a core. The data is the same for any number."""
    protect: Annotated[
        tuple[Kind | OwnPattern, ...], BeforeValidator(_in_order, json_schema_input_type=list[Kind | OwnPattern])
    ] = ()
    """Items kept as placeholders: these, and regular expressions ('/[A-Z]{2}-[0-9]+/'); see docs/subwords.md."""


class DataConfig(FilterConfig, _Sources):
    """Sources of the pairs, protected items, and filters."""

    def filters_of(self, corpus: int) -> FilterConfig:
        """The filters of a training corpus, by its number from 0: its own, and the others as they are here."""
        own = self.train[corpus]
        told = {name: getattr(own, name) for name in FilterConfig.model_fields}
        if own.back_translates and told["drop_duplicates"] is None:
            told["drop_duplicates"] = True
        return FilterConfig(**{name: getattr(self, name) if value is None else value for name, value in told.items()})

    def languages_of(self, corpus: int) -> tuple[str, str]:
        """The languages of the two sides of a training corpus."""
        own = self.train[corpus]
        return own.src_lang or self.src_lang, own.trg_lang or self.trg_lang

    def tags_of(self, pairs: CorpusFiles) -> tuple[str, ...]:
        """The tags of a corpus or of held-out pairs; first, of several target languages, that of its own."""
        languages = {corpus.trg_lang or self.trg_lang for corpus in self.train}
        of_language = (language_tag(pairs.trg_lang or self.trg_lang),) if len(languages) > 1 else ()
        return (*of_language, *(f"<{tag}>" for tag in pairs.tags))

    @property
    def known_tags(self) -> tuple[str, ...]:
        """All tags that a model of this recipe learns, in a fixed order."""
        return tuple(sorted({tag for corpus in self.train for tag in self.tags_of(corpus)}))


# A file with one of these is a model of SentencePiece.
SENTENCEPIECE_ENDINGS = (".spm", ".model")
SMALLEST = 264  # pieces: 256 bytes and the control symbols, in a round number


class SubwordsConfig(Section):
    """Pieces of bytes: no unknown token whatever the kind, and decoding gives the text back byte for byte."""

    kind: Literal["bpe", "unigram", "word", "char", "sentencepiece"] = "bpe"
    """bpe, unigram (Kudo 2018): parts of words; word; char; sentencepiece: of the model file that vocab_from names."""
    vocab_size: Annotated[int, Field(ge=SMALLEST, le=1_000_000)] = 8000
    """Pieces, control symbols, `symbols` and 256 bytes included; the model's size is the next multiple of 8."""
    joint: bool = True
    """One vocabulary for both languages."""
    normalize: Literal["nfc", "nfkc", "none"] = "nfc"
    """Unicode form before encoding, stored with the subwords; nfkc also unifies full-width letters and ligatures."""
    whitespace: Literal["unified", "kept"] = "unified"
    """unified: white space is one space, none at ends, nothing invisible; stored with the subwords."""
    symbols: tuple[str, ...] = Field((), max_length=1000, strict=False)  # a list, as YAML and JSON have it, will do
    """Placeholders, as <url>: each is one piece, never cut, where no letter or digit touches it."""
    vocab_from: str = ""
    """Subwords of a run or prepared data, or .spm or .model files: SRC.spm,TRG.spm with joint: false."""
    extend: Count = 0
    """With vocab_from: learn this many more pieces from this text, for each vocabulary."""
    max_train_lines: PositiveInt = 10_000_000
    """Lines that pieces are learnt from; a seeded sample when there are more."""

    @property
    def vocab_names(self) -> list[str]:
        """The names in vocab_from: one, or those of several models of SentencePiece between commas."""
        names = self.vocab_from.split(",")
        return names if all(name.endswith(SENTENCEPIECE_ENDINGS) for name in names) else [self.vocab_from]
