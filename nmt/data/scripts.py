"""Checks of the script and the language of a text: the share of letters of a script, and the guess of py3langid.

Russian and Bulgarian share a script; py3langid distinguishes them. The scripts of a language are in `languages.py`.
"""

import functools
import re
from re import Pattern
from typing import Any

from nmt.errors import DataError
from nmt.extras import require
from nmt.languages import language_of

# Codes of ISO 15924 that combine several scripts of Unicode.
_PARTS = {"Hani": ("Hani", "Bopo"), "Jpan": ("Hani", "Hira", "Kana"), "Kore": ("Hang", "Hani")}
# Scripts that CLDR lists first for languages that are mostly written in another script. They are not used for checks.
_RARE = (
    "Aghb Ahom Avst Bamu Bass Brah Cari Cham Chrs Egyp Gong Gonm Goth Hluw Hmnp Ital Khar Kits Lana Lina Lyci Lydi "
    "Mand Mani Medf Merc Mroo Narb Nshu Ogam Orkh Osge Ougr Pauc Phli Phnx Plrd Prti Rohg Runr Samr Sarb Saur Sgnw "
    "Sogd Sora Soyo Tang Tavt Tnsa Toto Ugar Wcho Xpeo Xsux"
)
_LAST = 0x32400  # no letters from here on
_FEW = 15  # fewer bytes of other scripts are no evidence: a name, a product, an abbreviation
_ADDRESS = re.compile(r"(?:https?://|www\.)\S+|\S+@\S+|\S+\.(?:com|org|net|html?|php|pdf)\b\S*", re.IGNORECASE)


def scripts_of(language: str) -> frozenset[str]:
    """Return the scripts of a language code; empty if one of them is unknown to Unicode or rarely used."""
    scripts = language_of(language).scripts
    return scripts if all(script not in _RARE and _ranges(script) for script in scripts) else frozenset()


def is_in_another_script(text: str, scripts: frozenset[str], min_share: float) -> bool:
    """Return whether less than min_share of the letters, web addresses aside, are of these scripts.

    Letters are weighted by their bytes in UTF-8, so a Chinese character counts like a syllable. No scripts: False.
    """
    # Nearly all letters of Latin-1 are Latin, and fewer than four other letters have under 15 bytes.
    if not scripts or ("Latn" in scripts and (text.isascii() or len(text) - len(text.encode("latin-1", "ignore")) < 4)):
        return False
    expected, other = letters_of(scripts)
    if other.search(text) is None:
        return False
    text = _ADDRESS.sub(" ", text)
    n_expected, n_other = (len("".join(letters.findall(text)).encode("utf-8")) for letters in (expected, other))
    return n_other >= _FEW and n_expected < min_share * (n_expected + n_other)


@functools.cache
def letters_of(scripts: frozenset[str]) -> tuple[Pattern[str], Pattern[str]]:
    """Return patterns for letters of these scripts, and for letters of all others. scripts: not empty."""
    ranges = "".join(map(_ranges, sorted(scripts)))
    return re.compile(f"[{ranges}]+"), re.compile(f"[^\\W\\d_{ranges}]+")


@functools.cache
def _ranges(script: str) -> str:
    """Return letters, marks and digits of a script as ranges for `re`, which is faster than `regex`; "" if unknown."""
    import regex  # here, since few commands need it

    scripts = "".join(rf"\p{{Script_Extensions={part}}}" for part in _PARTS.get(script, (script,)))
    try:
        pattern = regex.compile(rf"[[{scripts}]&&[\p{{L}}\p{{M}}\p{{N}}]]+", regex.V1)
    except regex.error:
        return ""
    return "".join(f"{run[0]}-{run[-1]}" for run in pattern.findall("".join(map(chr, range(_LAST)))))


# Languages so similar in writing that byte statistics confuse them. A confusion is no reason to drop a sentence.
_SIMILAR = (
    "no nn da,hr sr bs,id ms jv,zh yue wuu,ar ary arz,en pcm,hi ne mr sa,gl pt es an ext,he hbo,el grc,ku sdh,uz uzs"
)
_OTHER_NAMES = {"nb": "no", "fil": "tl"}  # codes of py3langid
_FEW_LETTERS = 20  # shorter texts, such as a name, a heading or an exclamation, have no certain language
LETTER = re.compile(r"[^\W\d_]")


def is_in_another_language(text: str, accepted: frozenset[str], max_probability: float) -> bool:
    """Return whether a text of 20 letters or more is in another language with a probability over max_probability."""
    if len(LETTER.findall(text)) < _FEW_LETTERS:
        return False
    language, probability = identifier().classify(text)
    return language not in accepted and probability > max_probability


@functools.cache
def identifier() -> Any:
    """Return the `LanguageIdentifier` of py3langid. Raises MachineError if the package is missing."""
    require("langid", "data.max_other_language", ", or set the option to 0")
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def languages_like(code: str) -> frozenset[str]:
    """Return the language of a code, languages easily confused with it, and "zxx" for text without a language."""
    supported = set(identifier().labels) - {"zxx"}
    primary = language_of(code).primary
    primary = _OTHER_NAMES.get(primary, primary)
    if primary not in supported:
        raise DataError(
            f"data.max_other_language: py3langid does not know the language {code!r}. Expected as data.src_lang and "
            f"data.trg_lang: {', '.join(sorted(supported))}. Correct the code, or set the option to 0."
        )
    similar = next((group.split() for group in _SIMILAR.split(",") if primary in group.split()), [])
    return frozenset({*similar, primary, "zxx"})
