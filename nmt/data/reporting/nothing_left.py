"""Advice where most or all training pairs are dropped: the main reason, and the option that sets its bound."""

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from nmt.data.filters import clean
from nmt.data.filters.seen import DUPLICATE, NEAR_DUPLICATE, TRANSLATIONS
from nmt.data.reading.sources import Source
from nmt.data.reporting.report_words import shortened
from nmt.data.text.scripts import is_in_another_script, scripts_of
from nmt.recipe.data_options import DataConfig

_OPTIONS = {
    clean.IDENTICAL: "drop_identical",
    clean.TOO_LONG: "max_len",
    clean.RATIO: "max_ratio",
    clean.CONTROL: "drop_control",
    clean.DAMAGED: "drop_damaged",
    clean.SCRIPT: "min_script",
    clean.SYMBOLS: "max_symbols",
    clean.REPEATS: "max_repeats",
    clean.LANGUAGE: "max_other_language",
    DUPLICATE: "drop_duplicates",
    NEAR_DUPLICATE: "drop_near_duplicates",
    TRANSLATIONS: "max_translations",
}
_NEARLY_ALL = 0.9


def nothing_left(facts: Mapping[str, Any], sources: Sequence[Source], data: DataConfig) -> str:
    """Why no pair is left. facts: those of the report; sources: of all splits."""
    counts = {reason: each["count"] for reason, each in facts["dropped"].items()}
    reason, *others = sorted(counts, key=lambda reason: -counts[reason])
    n, n_read = counts[reason], facts["read"]
    many = "all" if n == n_read else "nearly all" if n >= _NEARLY_ALL * n_read else f"{n:,}"
    first = shortened(facts["dropped"][reason]["first"])
    told = f"No training pair is left of {n_read:,}: {many} dropped for {reason} ({first})"
    told += f": {advice_on_dropped(facts, sources, data)}"
    also = (f"{reason} {counts[reason]:,} ({shortened(facts['dropped'][reason]['first'])})" for reason in others)
    return f"{told} Others: {', '.join(also)}." if others else told


def advice_on_dropped(facts: Mapping[str, Any], sources: Sequence[Source], data: DataConfig) -> str:
    """Return what to do about the reason that most pairs are dropped for."""
    reason = max(facts["dropped"], key=lambda reason: facts["dropped"][reason]["count"], default=None)
    if reason == clean.SCRIPT:
        return _scripts(facts, sources, data)
    if reason in _OPTIONS:
        return f"Is that right? The option is data.{_OPTIONS[reason]}."
    return "Look at these lines: are they the files that were meant?"


def _scripts(facts: Mapping[str, Any], sources: Sequence[Source], data: DataConfig) -> str:
    """Which side is in another script than its language, told by an example."""
    found = []
    for each in facts["examples"].get(clean.SCRIPT, ())[:1]:
        name = each["place"].rpartition(":")[0]
        source = next(source for source in sources if source.split == "train" and source.src.name == name)
        languages = data.languages_of(source.corpus)
        for side, language, file in zip(("src", "trg"), languages, (source.src, source.trg), strict=True):
            scripts = scripts_of(language)
            if is_in_another_script(each[side], scripts, data.filters_of(source.corpus).min_script):
                letters = ", ".join(sorted(scripts))
                found.append(
                    f"{side}_lang is {language} ({letters}), the letters of {file.name} are {_letters(each[side])}"
                )
    told = "; ".join(found) or f"expected are those of {data.src_lang} and {data.trg_lang}"
    return f"{told}. Is --langs (data.src_lang, data.trg_lang) right?"


def _letters(text: str) -> str:
    """The script that most letters of a text are of, by the names that Unicode gives them."""
    names = Counter(unicodedata.name(c, "unnamed").partition(" ")[0].capitalize() for c in text if c.isalpha())
    return names.most_common(1)[0][0]
