"""Scripts: ranges of code points (those of the Unicode blocks), and how much of a text is written in them.

Russian passes for Bulgarian here; py3langid tells them apart. The scripts of a language are in `nmt/languages.py`.
"""

import functools
import re
from re import Pattern
from typing import Any

from nmt.errors import DataError
from nmt.extras import missing
from nmt.languages import language_of

# By the codes of ISO 15924; East Asian ones with the other scripts that their texts are full of.
_HAN = "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_KANA = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_HANGUL = "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff"
_RANGES = {
    "Arab": "\u0600-\u06ff\u0750-\u077f\u0870-\u08ff\ufb50-\ufdff\ufe70-\ufefe",
    "Armn": "\u0530-\u058f\ufb13-\ufb17",
    "Beng": "\u0980-\u09ff",
    "Cans": "\u1400-\u167f\u18b0-\u18ff",
    "Cher": "\u13a0-\u13ff\uab70-\uabbf",
    "Cyrl": "\u0400-\u052f\u1c80-\u1c8f\u2de0-\u2dff\ua640-\ua69f",
    "Deva": "\u0900-\u097f\ua8e0-\ua8ff",
    "Ethi": "\u1200-\u139f\u2d80-\u2ddf\uab00-\uab2f",
    "Geor": "\u10a0-\u10ff\u1c90-\u1cbf\u2d00-\u2d2f",
    "Grek": "\u0370-\u03ff\u1f00-\u1fff",
    "Gujr": "\u0a80-\u0aff",
    "Guru": "\u0a00-\u0a7f",
    "Hang": _HANGUL,
    "Hani": _HAN + "\u3100-\u312f\u31a0-\u31bf",
    "Hebr": "\u0590-\u05ff\ufb1d-\ufb4f",
    "Jpan": _HAN + _KANA,
    "Khmr": "\u1780-\u17ff",
    "Knda": "\u0c80-\u0cff",
    "Kore": _HANGUL + _HAN,
    "Laoo": "\u0e80-\u0eff",
    "Latn": "A-Za-z\u00aa\u00b5\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02ff\u1d00-\u1dbf\u1e00-\u1eff\u2071\u207f"
    "\u2090-\u209c\u2c60-\u2c7f\ua722-\ua7ff\uab30-\uab6f\ufb00-\ufb06\uff21-\uff3a\uff41-\uff5a",
    "Mlym": "\u0d00-\u0d7f",
    "Mong": "\u1800-\u18af",
    "Mtei": "\uabc0-\uabff\uaae0-\uaaff",
    "Mymr": "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f",
    "Nkoo": "\u07c0-\u07ff",
    "Olck": "\u1c50-\u1c7f",
    "Orya": "\u0b00-\u0b7f",
    "Sinh": "\u0d80-\u0dff",
    "Syrc": "\u0700-\u074f",
    "Taml": "\u0b80-\u0bff",
    "Telu": "\u0c00-\u0c7f",
    "Tfng": "\u2d30-\u2d7f",
    "Thaa": "\u0780-\u07bf",
    "Thai": "\u0e00-\u0e7f",
    "Tibt": "\u0f00-\u0fff",
}
# Under so many bytes of other scripts a text says little: a name, a product, an abbreviation.
_FEW = 15
_ADDRESS = re.compile(r"(?:https?://|www\.)\S+|\S+@\S+|\S+\.(?:com|org|net|html?|php|pdf)\b\S*", re.IGNORECASE)


def scripts_of(language: str) -> frozenset[str]:
    """The scripts of a language code; none where they are not all known here."""
    found = language_of(language).scripts
    return found if found <= _RANGES.keys() else frozenset()


def is_in_another_script(text: str, scripts: frozenset[str], min_share: float) -> bool:
    """Return whether less than min_share of the letters are of these scripts. Addresses of the web have no language.

    Letters count by their bytes in UTF-8, which weighs a Chinese character like a syllable. No scripts: any will do.
    """
    # All letters of Latin-1 are Latin, and fewer than four others are too few.
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
    """Return the patterns of characters of these scripts, and of letters of all others."""
    ranges = "".join(_RANGES.get(script, "") for script in sorted(scripts))
    return re.compile(f"[{ranges}]+"), re.compile(f"[^\\W\\d_{ranges}]+")


# Language of a text, told by py3langid.
# Written so much alike that statistics of bytes can well be wrong: no reason to drop a sentence.
_ALIKE = (
    {"no", "nn", "da"},
    {"hr", "sr", "bs"},
    {"id", "ms", "jv"},
    {"zh", "yue", "wuu"},
    {"ar", "ary", "arz"},
    {"en", "pcm"},
    {"hi", "ne", "mr", "sa"},
    {"gl", "pt", "es", "an", "ext"},
    {"he", "hbo"},
    {"el", "grc"},
    {"ku", "sdh"},
    {"uz", "uzs"},
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
    alike: set[str] = set().union(*(group for group in _ALIKE if primary in group))
    return frozenset(alike | {primary, "zxx"})
