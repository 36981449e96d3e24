"""Scripts and languages of texts: how much of a text is written in a script, and what language py3langid takes it for.

Russian passes for Bulgarian by its script; py3langid tells them apart. The scripts of a language are in `languages.py`.
"""

import functools
import re
from re import Pattern
from typing import Any

from nmt.errors import DataError
from nmt.extras import missing
from nmt.languages import language_of

# Codes of ISO 15924 for several scripts of Unicode.
_PARTS = {"Hani": ("Hani", "Bopo"), "Jpan": ("Hani", "Hira", "Kana"), "Kore": ("Hang", "Hani")}
# Scripts that CLDR names first for languages whose text is mostly written in others: nothing is judged by them.
_SELDOM = (
    "Aghb Ahom Avst Bamu Bass Brah Cari Cham Chrs Egyp Gong Gonm Goth Hluw Hmnp Ital Khar Kits Lana Lina Lyci Lydi "
    "Mand Mani Medf Merc Mroo Narb Nshu Ogam Orkh Osge Ougr Pauc Phli Phnx Plrd Prti Rohg Runr Samr Sarb Saur Sgnw "
    "Sogd Sora Soyo Tang Tavt Tnsa Toto Ugar Wcho Xpeo Xsux"
)
_LAST = 0x32400  # beyond are no letters
# Under so many bytes of other scripts a text says little: a name, a product, an abbreviation.
_FEW = 15
_ADDRESS = re.compile(r"(?:https?://|www\.)\S+|\S+@\S+|\S+\.(?:com|org|net|html?|php|pdf)\b\S*", re.IGNORECASE)


def scripts_of(language: str) -> frozenset[str]:
    """The scripts of a language code; none where Unicode has not all of them, or text is seldom written in them."""
    found = language_of(language).scripts
    return found if all(script not in _SELDOM and _ranges(script) for script in found) else frozenset()


def is_in_another_script(text: str, scripts: frozenset[str], min_share: float) -> bool:
    """Return whether less than min_share of the letters are of these scripts. Addresses of the web have no language.

    Letters count by their bytes in UTF-8, which weighs a Chinese character like a syllable. No scripts: any will do.
    """
    # Nearly all letters of Latin-1 are Latin, and fewer than four others are too few.
    if not scripts or ("Latn" in scripts and (text.isascii() or len(text) - len(text.encode("latin-1", "ignore")) < 4)):
        return False
    own, other = letters_of(scripts)
    if other.search(text) is None:
        return False
    text = _ADDRESS.sub(" ", text)
    n_own, n_other = (len("".join(letters.findall(text)).encode("utf-8")) for letters in (own, other))
    return n_other >= _FEW and n_own < min_share * (n_own + n_other)


@functools.cache
def letters_of(scripts: frozenset[str]) -> tuple[Pattern[str], Pattern[str]]:
    """Return the patterns of letters of these scripts, one at least, and of letters of all others."""
    ranges = "".join(map(_ranges, sorted(scripts)))
    return re.compile(f"[{ranges}]+"), re.compile(f"[^\\W\\d_{ranges}]+")


@functools.cache
def _ranges(script: str) -> str:
    """Letters, marks and digits of a script as ranges for `re`, which is faster than `regex`; "" for an unknown one."""
    import regex  # here, since few commands have a use for it

    scripts = "".join(rf"\p{{Script_Extensions={part}}}" for part in _PARTS.get(script, (script,)))
    try:
        pattern = regex.compile(rf"[[{scripts}]&&[\p{{L}}\p{{M}}\p{{N}}]]+", regex.V1)
    except regex.error:
        return ""
    return "".join(f"{run[0]}-{run[-1]}" for run in pattern.findall("".join(map(chr, range(_LAST)))))


# Languages written so much alike that statistics of bytes can well be wrong: no reason to drop a sentence.
_ALIKE = (
    "no nn da,hr sr bs,id ms jv,zh yue wuu,ar ary arz,en pcm,hi ne mr sa,gl pt es an ext,he hbo,el grc,ku sdh,uz uzs"
)
_OTHER_NAMES = {"nb": "no", "fil": "tl"}  # of the package
# A name, a heading or an exclamation is of no language in particular.
_FEW_LETTERS = 20
_LETTER = re.compile(r"[^\W\d_]")


def is_in_another_language(text: str, own: frozenset[str], max_probability: float) -> bool:
    """Return whether a text of 20 letters or more is in a language beside `own`, with a higher probability."""
    if len(_LETTER.findall(text)) < _FEW_LETTERS:
        return False
    language, probability = identifier().classify(text)
    return language not in own and probability > max_probability


@functools.cache
def identifier() -> Any:
    """The `LanguageIdentifier` of py3langid. Raises MachineError without the package."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise missing("langid", "data.max_other_language", ", or set the option to 0") from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def languages_like(code: str) -> frozenset[str]:
    """The language of a code and those that may be taken for it; "zxx", no language at all, passes everywhere."""
    known = set(identifier().labels) - {"zxx"}
    primary = language_of(code).primary
    primary = _OTHER_NAMES.get(primary, primary)
    if primary not in known:
        raise DataError(
            f"data.max_other_language: {code!r} is no language that py3langid knows. Expected as data.src_lang and "
            f"data.trg_lang: {', '.join(sorted(known))}. Correct the code, or set the option to 0."
        )
    alike = next((group.split() for group in _ALIKE.split(",") if primary in group.split()), [])
    return frozenset({*alike, primary, "zxx"})
