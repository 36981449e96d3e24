"""Oddities in the languages of a recipe: no script known of them, or their codes stand in a file like text."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from nmt.data.reading.fields import Reading
from nmt.data.reading.sources import Source
from nmt.data.text.languages import has_enough_letters, identifier, languages_like
from nmt.data.text.scripts import scripts_of
from nmt.extras import is_installed
from nmt.languages import language_of
from nmt.recipe.data_options import DataConfig

N_LINE = 200  # whose language is looked at
_FEWEST, _NEARLY_ALL, _CERTAIN = 50, 0.8, 0.9
_LONGEST_LINE = 10_000
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


def other_languages(sources: Sequence[Source], data: DataConfig) -> Iterator[str]:
    """Sides of training files whose first lines are nearly all in one language that is not theirs, as file:language.

    Asked where the package is installed and no filter asks it anyway.
    """
    if not is_installed("langid"):
        return
    identify, known = identifier()
    reading = Reading("drop", "drop", _LONGEST_LINE)
    for source in sources:
        if source.split != "train" or data.filters_of(source.corpus).max_other_language:
            continue
        pairs = list(itertools.islice(source.pairs(reading), N_LINE))
        for text, language, lines in zip(
            (source.src, source.trg), data.languages_of(source.corpus), zip(*pairs, strict=True), strict=False
        ):
            if known.isdisjoint({language_of(language).primary}):
                continue
            own = languages_like(language)
            told = [identify(line) for line in lines if isinstance(line, str) and has_enough_letters(line)]
            found = Counter(code for code, probability in told if probability > _CERTAIN and code not in own)
            if len(told) >= _FEWEST and found and found.most_common(1)[0][1] > _NEARLY_ALL * len(told):
                yield f"{text.name}:{found.most_common(1)[0][0]}"


def codes_as_text(sources: Sequence[Source], data: DataConfig) -> Iterator[str]:
    """Yield file:1 where the first line of TSV is taken for a pair, but names columns by the languages."""
    reading = Reading("drop", "drop", _LONGEST)
    for source in sources:
        texts = source.src, source.trg
        if all(isinstance(text.place, Path) and text.form == "tsv" and not text.header for text in texts):
            first = next(source.pairs(reading), ())
            found = [language_of(text.strip()).code if isinstance(text, str) else "" for text in first]
            if found == [data.src_lang, data.trg_lang]:
                yield f"{source.src.name}:{source.first_number}"
