"""Language of a text, told by py3langid: 140 languages, by statistics of bytes that the package brings.

The package is an extra, asked only if `data.max_other_language` is set; it takes some 0.1 to 0.3 ms a text.
"""

import functools
import re
from collections.abc import Callable

from nmt.errors import DataError
from nmt.extras import missing
from nmt.languages import language_of

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

Identify = Callable[[str], tuple[str, float]]


def is_in_another_language(text: str, own: frozenset[str], max_probability: float, identify: Identify) -> bool:
    """Return whether a text of 20 letters or more is in a language beside `own`, with a higher probability."""
    if not has_enough_letters(text):
        return False
    language, probability = identify(text)
    return language not in own and probability > max_probability


def has_enough_letters(text: str) -> bool:
    """Return whether a text is long enough for its language to be told."""
    return len(_LETTER.findall(text)) >= _FEW_LETTERS


@functools.cache
def identifier() -> tuple[Identify, frozenset[str]]:
    """Return the function that tells the language of a text with its probability, and the codes that it knows.

    Raises MachineError without the package.
    """
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise missing("langid", "data.max_other_language", ", or set the option to 0") from None
    found = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    return found.classify, frozenset(found.labels) - {"zxx"}


def languages_like(code: str) -> frozenset[str]:
    """The language of a code and those that may be taken for it; "zxx", no language at all, passes everywhere."""
    _, known = identifier()
    primary = language_of(code).primary
    primary = _OTHER_NAMES.get(primary, primary)
    if primary not in known:
        raise DataError(
            f"data.max_other_language: {code!r} is no language that py3langid knows. Expected as data.src_lang and "
            f"data.trg_lang: {', '.join(sorted(known))}. Correct the code, or set the option to 0."
        )
    alike: set[str] = set().union(*(group for group in _ALIKE if primary in group))
    return frozenset(alike | {primary, "zxx"})
