"""What is odd about the languages of a recipe: no script known of them, or their codes stand in a file like text."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from nmt.data.reading.fields import Reading
from nmt.data.reading.sources import Source
from nmt.data.text.scripts import scripts_of
from nmt.languages import language_of
from nmt.recipe.data_options import DataConfig

_LONGEST = 100  # bytes of a text that is compared with a code


def unknown_languages(data: DataConfig) -> list[str]:
    """The languages of training corpora whose letters are to be looked at, but of which no script is known."""
    named = [
        language
        for n in range(len(data.train))
        if data.filters_of(n).min_script
        for language in data.languages_of(n)
        if not scripts_of(language)
    ]
    return list(dict.fromkeys(named))


def codes_as_text(sources: Sequence[Source], data: DataConfig) -> Iterator[str]:
    """Where the first line of TSV is taken for a pair, but names its columns by the languages of the recipe: file:1."""
    reading = Reading("drop", "drop", _LONGEST)
    for source in sources:
        texts = source.src, source.trg
        if all(isinstance(text.place, Path) and text.form == "tsv" and not text.header for text in texts):
            first = next(source.pairs(reading), ())
            found = [language_of(text.strip()).code if isinstance(text, str) else "" for text in first]
            if found == [data.src_lang, data.trg_lang]:
                yield f"{source.src.name}:{source.first_number}"
