"""The options of the subwords: what pieces text is cut into, and how they are learnt."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from nmt.recipe.section import Count, PositiveInt, Section, list_to_tuple

# A file with one of these is a model of SentencePiece.
SENTENCEPIECE_ENDINGS = (".spm", ".model")
SMALLEST = 264  # pieces: 256 bytes and the control symbols, in a round number


class SubwordsConfig(Section):
    """Pieces of bytes: no unknown token whatever the kind, and decoding gives the text back byte for byte."""

    kind: Literal["bpe", "unigram", "word", "char", "sentencepiece"] = Field(
        "bpe",
        description="Pieces: bpe, learnt parts of words, put together by merges; unigram, parts of words, each with a "
        "probability (Kudo 2018); word, whole words, rare ones byte by byte; char, single characters, rare ones byte "
        "by byte; sentencepiece, those of a model file of SentencePiece, which vocab_from names.",
    )
    vocab_size: Annotated[int, Field(ge=SMALLEST, le=1_000_000)] = Field(
        8000,
        description="Pieces, control symbols, `symbols` and 256 bytes included; the model's size is the next multiple "
        "of 8.",
    )
    joint: bool = Field(True, description="One vocabulary for both languages.")
    normalize: Literal["nfc", "nfkc", "none"] = Field(
        "nfc",
        description="Unicode normalisation before encoding, stored with the subwords; nfkc also makes one of variants: "
        "full-width letters, ligatures, no-break spaces.",
    )
    whitespace: Literal["unified", "kept"] = Field(
        "unified",
        description="White space before encoding, stored with the subwords. unified: each run is one space, none is at "
        "the ends, and what cannot be seen is dropped: byte order marks, soft hyphens, zero-width spaces, marks of "
        "direction, and joiners in scripts without them. With vocab_from that of the old subwords counts.",
    )
    symbols: Annotated[
        tuple[str, ...], BeforeValidator(list_to_tuple, json_schema_input_type=list[str]), Field(max_length=1000)
    ] = Field(
        (),
        description="Placeholders, as <url>: each is one piece, never cut, where it stands in the text and no letter "
        "or digit touches it.",
    )
    vocab_from: str = Field(
        "",
        description="Take the subwords of a run or a folder of prepared data instead of learning them; vocab_size is "
        "theirs then. Needed to go on from that run's weights with all rows of the embeddings. Or a model file of "
        "SentencePiece, .spm or .model; with joint: false also two of them, SRC.spm,TRG.spm.",
    )
    extend: Count = Field(
        0, description="With vocab_from: learn this many more pieces from this text, for each vocabulary."
    )
    max_train_lines: PositiveInt = Field(
        10_000_000,
        description="Lines that pieces are learnt from; a seeded sample when there are more. Of a line its first "
        "10,000 characters count, words over 100 characters are cut.",
    )

    @property
    def vocab_names(self) -> list[str]:
        """The names in vocab_from: one, or those of several models of SentencePiece between commas."""
        names = self.vocab_from.split(",")
        return names if all(name.endswith(SENTENCEPIECE_ENDINGS) for name in names) else [self.vocab_from]
