"""The options of the subwords: what pieces text is cut into, and how they are learnt."""

from typing import Annotated, Literal

from pydantic import Field

from nmt.recipe.section import PositiveInt, Section


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
