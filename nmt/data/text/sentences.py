"""Where a text may be cut: after sentences, after clauses, at white space, and where nothing else helps, anywhere.

Nothing is ever lost: the parts of a text put together are the text. No language is asked for: where a full stop looks
like that of an abbreviation, an initial or an ordinal in any of several, nothing is cut.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator

# What ends a sentence whatever comes after it, also where the script writes no white space.
_SURE = "。｡！？۔؟।॥።፧፨։။។៕᠃᠉꓿"
# What ends one where white space follows, and after that no small letter.
_LIKELY = ".!?…‼⁇⁈⁉"
# Closing quotes and brackets belong to what they close. Those of the second kind open in other languages.
_CLOSERS = "\"'”’»›)\\]}」』）】》〉｣］｝"
_ALSO_OPENERS = "“‘«‹"
_SENTENCE = re.compile(
    rf"(?P<mark>[{_SURE}{_LIKELY}]+)(?P<close>[{_CLOSERS}]*(?:[{_ALSO_OPENERS}](?=\s))?)(?P<gap>\s*)"
)
_CLAUSE = re.compile(rf"[,;:،؛፣፤፥፦՝][{_CLOSERS}]*\s+|[、，；：—]+\s*|(?<=\s)[–-]\s+")
_GAP = re.compile(r"\s+")
_LINE_BREAK = re.compile("[\n\x0b\x0c\r\x85\u2028\u2029]")
_OPENERS = "\"'([{¿¡«»‹›„“‚‘”’「『（【《〈-–— "
_WORD = re.compile(r"[^\s(\[{\"“„«»]+$")
_LONGEST_WORD = 40  # characters: what is longer is no abbreviation
_ROMAN = re.compile(r"[IVXLC]{1,6}")
_VOWELS = frozenset("aeiouyæœøаеёиоуыэюяіїєαεηιουω")
# Words with a vowel that are hardly ever written without their full stop; those without a vowel are known by that.
# fmt: off
_SHORTENED = frozenset((
    "abb", "abs", "anm", "approx", "apr", "aufl", "aug", "ave", "ca", "capt", "dec", "dept", "dez", "dott", "est",
    "evtl", "feb", "fig", "figs", "geb", "ggf", "gov", "inc", "inkl", "jan", "kap", "lieut", "maj", "messrs", "mio",
    "mlle", "mme", "mmes", "nov", "obs", "oct", "okt", "op", "orig", "pag", "prof", "resp", "rev", "sept", "sra",
    "srta", "tel", "univ", "vol", "vols", "гг", "им", "илл", "рис", "руб", "см", "стр", "тел", "тыс", "ул",
))
# fmt: on
_LONGEST_CONSONANTS = 4


def sentences(text: str) -> list[str]:
    """The sentences of a text, each with the white space after it; the text itself where there is one only."""
    return _cut(text, _sentence_ends(text))


def pieces(text: str, fits: Callable[[str], bool]) -> list[str]:
    """The sentences of a text, of which those that do not fit are cut further, each with the white space after it.

    fits: whether a piece, white space at its ends aside, is short enough; a single character must always be. A sentence
    that is not is cut in two at the clause nearest to its middle, or at the white space, or there, and so on.
    """
    return [piece for sentence in sentences(text) for piece in _fitting(sentence, fits)]


def writes_no_space(letter: str) -> bool:
    """Whether a letter is of a script whose words stand together: Chinese, Japanese, Thai, Lao, Burmese, Khmer."""
    if "\u1100" <= letter <= "\u11ff" or "\uac00" <= letter <= "\ud7af":  # Korean is as wide, and has spaces
        return False
    thai_lao_tibetan_burmese = "\u0e00" <= letter <= "\u109f"
    return unicodedata.east_asian_width(letter) in "WF" or thai_lao_tibetan_burmese or "\u1780" <= letter <= "\u17ff"


def _cut(text: str, ends: list[int]) -> list[str]:
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


def _fitting(text: str, fits: Callable[[str], bool]) -> list[str]:
    if fits(text.strip()):
        return [text]
    end = _best_end(text)
    return [*_fitting(text[:end], fits), *_fitting(text[end:], fits)] if end else [text]


def _best_end(text: str) -> int:
    """Where to cut a text in two that is a sentence or less; 0 where it is a single character."""
    middle = len(text.rstrip()) / 2
    # A clause near one end would leave the rest as long as the whole.
    clauses = [end for end in _ends(_CLAUSE, text) if middle / 2 <= end <= 3 * middle / 2]
    if found := clauses or list(_ends(_GAP, text)):
        return min(found, key=lambda end: abs(end - middle))
    return _between_characters(text, int(middle))


def _between_characters(text: str, place: int) -> int:
    """The place, or one shortly before it that does not take an accent from its letter."""
    for end in range(place, max(0, place - 16), -1):
        if unicodedata.category(text[end])[0] != "M" and "\u200d" not in text[end - 1 : end + 1]:
            return end
    return place


def _ends(pattern: re.Pattern[str], text: str) -> Iterator[int]:
    """Where matches end, less those at the ends of the text: nothing would be cut off there."""
    last = len(text.rstrip())
    first = len(text) - len(text.lstrip())
    return (end for match in pattern.finditer(text) if first < (end := match.end()) < last)


def _sentence_ends(text: str) -> list[int]:
    breaks = {match.end() for match in _GAP.finditer(text) if _LINE_BREAK.search(match[0])}
    marks = {match.end() for match in _SENTENCE.finditer(text) if _ends_a_sentence(text, match)}
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    return sorted(end for end in breaks | marks if first < end < last)


def _ends_a_sentence(text: str, match: re.Match[str]) -> bool:
    mark = match["mark"]
    if any(letter in _SURE for letter in mark):
        return True
    after = text[match.end() : match.end() + 9].lstrip(_OPENERS)
    if not match["gap"] or after[:1].islower():
        return False
    if mark != ".":
        return True
    word = _WORD.search(text[max(0, match.start() - _LONGEST_WORD) : match.start()])
    return word is None or not _may_be_shortened(word[0])


def _may_be_shortened(word: str) -> bool:
    """Whether the full stop after a word may be a part of it: Dr. z.B. J. 3. XIV. ca."""
    if len(word) == 1 or "." in word or (word.isdigit() and len(word) <= 2) or _ROMAN.fullmatch(word):
        return True
    if word.casefold() in _SHORTENED:
        return True
    if len(word) > _LONGEST_CONSONANTS or not word.isalpha() or word.isupper() or word.upper() == word.lower():
        return False  # TV, and words of alphabets without capitals, where vowels may not be written
    return not _VOWELS.intersection(unicodedata.normalize("NFD", word.casefold()))
