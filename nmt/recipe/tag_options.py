"""The options by which pairs are told apart: into which language they are, and from what kind of corpus."""

from typing import Annotated

from pydantic import Field

from nmt.recipe.section import LanguageCode, Section

# A tag is shown as <tag>; a digit at its beginning would make <2fr> of 2fr, which is a language's.
Tag = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=50)]


class Tagged(Section):
    """Pairs that a model can tell from others."""

    trg_lang: LanguageCode | None = Field(
        None,
        description="Language of the target side, where it is not data.trg_lang. If the training corpora have several, "
        "every source begins with a control symbol that says into which, and nmt-translate takes --trg-lang.",
    )
    tags: list[Tag] = Field(
        default_factory=list,
        description="Control symbols to put before each source, as [bt] for translated text or [news] for a domain; "
        "nmt-translate puts those of decode.tags before its lines.",
    )
