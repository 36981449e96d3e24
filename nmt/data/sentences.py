"""Segmentation of text: after sentences, after clauses, at white space, or anywhere as a last resort.

Segments joined together give the original text. A full stop that may belong to an abbreviation, an initial or an
ordinal, in any of several languages, ends no segment. If the language is given, neither does an abbreviation that the
package sentencex knows for it.
"""

import itertools
import re
import unicodedata
from collections.abc import Callable

from nmt.languages import language_of

_SURE = "།༎。｡！？۔؟।॥።፧፨։။។៕᠃᠉꓿"  # marks that end a sentence in any context, also in scripts without white space
_LIKELY = ".!?…‼⁇⁈⁉"  # marks that end a sentence if white space follows, and then no small letter
# Closing quotes and brackets belong to the sentence before them. The second kind are opening ones in other languages.
_CLOSERS = "\"'”’»›)\\]}」』）】》〉｣］｝"
_ALSO_OPENERS = "“‘«‹"
_EMOJI = "\u2600-\u26ff\u2705\u270a-\u270d\u2728\u274c\u2753-\u2757\u2764\u2b50\U0001f1e6-\U0001faff"
# Ends of sentences, with marks that have another meaning elsewhere: the Greek question mark, the Armenian full stop
# typed as a colon, the Ethiopic full stop typed as two word spaces, a line break of HTML, and emoji.
_SENTENCE = re.compile(
    rf"(?P<mark>(?:[།༎]\s*)+(?<!\s)|[{_SURE}{_LIKELY}]+|(?<=[\u0370-\u03ff\u1f00-\u1fff])[;\u037e]"
    rf"|(?<=[\u0531-\u058f]):|፡፡|<br\s*/?>|(?<=\s)[{_EMOJI}][{_EMOJI}\u200d\ufe0f]*)"
    rf"(?P<close>[{_CLOSERS}]*(?:[{_ALSO_OPENERS}](?=\s))?)(?P<gap>\s*)"
)
# No sentence ends inside a pair of brackets or quotes, unless the pair is longer than a sentence or two.
_PAIRS = dict(zip("「『｢（【《〈([“", "」』｣）】》〉)]”", strict=True))
_LONGEST_PAIR = 200  # characters
# Continuations of a sentence after a quotation: Japanese particles, and Chinese verbs of saying.
_CONTINUATION = re.compile("(?:と|って|は|が|を|の|に|も|など)|[^。！？，]{1,6}?[说說问問道喊叫答]")
_CLAUSE = re.compile(rf"[,;:،؛፣፤፥፦՝][{_CLOSERS}]*\s+|[、，；：—]+\s*|(?<=\s)[–-]\s+")
_GAP = re.compile(r"\s+")
_LINE_BREAK = re.compile("[\n\x0b\x0c\r\x85\u2028\u2029]")
_OPENERS = "\"'([{¿¡«»‹›„“‚‘”’「『（【《〈-–— "
_WORD = re.compile(r"[^\s(\[{\"“„«»]+$")
_LONGEST_WORD = 40  # characters; longer words are no abbreviations
_ROMAN = re.compile(r"[IVXLC]{1,6}")
_VOWELS = frozenset("aeiouyæœøаеёиоуыэюяіїєαεηιουω")
# Abbreviations with a vowel that are hardly ever written without a full stop. Others are recognised by having no vowel.
_SHORTENED = """abb abs anm approx apr aufl aug ave ca capt dec dept dez dott est evtl feb fig figs geb ggf gov inc inkl
    jan kap lieut maj messrs mio mlle mme mmes nov obs oct okt op orig pag prof resp rev sept sra srta tel univ vol vols
    bijv např доц проф акад डॉ प्रो पं श्री रु गु гг им илл рис руб см стр тел тыс ул"""
# Titles before names. With a small first letter, these are other words.
_TITLES = """adm av col cpt dr dra gen hon ing jr lic lt mr mrs ms rep sen sgt sr st ths tp tues ud uds"""
_LONGEST_CONSONANTS = 4
_LONGEST_BEFORE_NUMBER = 4  # letters: Art. 5, núm. 5, Sec. 12
_THAI = re.compile("[\u0e01-\u0e5b]{1,4}")  # no full stop ends a sentence in Thai
_HALF_OF_A_PAIR = re.compile("[\ud800-\udfff]")
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f](?=\.)")  # sentencex 1.0 fails at a space of several bytes before a full stop


def sentences(text: str, language: str = "") -> list[str]:
    """Split a text into sentences, each with the white space after it. A text of one sentence stays whole.

    language: code of the language, whose abbreviations are used; "" for unknown.
    """
    ends = {match.end() for match in _GAP.finditer(text) if _LINE_BREAK.search(match[0])}
    if matches := [match for match in _SENTENCE.finditer(text) if _ends_a_sentence(text, match)]:
        enclosed = _enclosed_places(text)
        matches = [match for match in matches if match.end("close") not in enclosed]
    if language_of(language).scripts and any(match["mark"] == "." for match in matches):
        language_ends = _ends_by_language(text, language)
        matches = [match for match in matches if match["mark"] != "." or match.end() in language_ends]
    ends.update(match.end() for match in matches)
    cuts = [0, *_inside(text, sorted(ends)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(cuts)]


def ends_a_sentence(text: str) -> bool:
    """Return whether a sentence ends at the end of a text."""
    return sentences(text.rstrip()[-_LONGEST_PAIR:] + " A")[-1] == "A"


def pieces(text: str, fits: Callable[[str], bool], language: str = "") -> list[str]:
    """Split a text into sentences, and those that do not fit into smaller pieces, each with the white space after it.

    fits: returns True if a stripped piece is short enough; it must accept any single character. A sentence that does
    not fit is cut in two, again and again: at the clause nearest to its middle, else at white space, else anywhere.
    """
    return [piece for sentence in sentences(text, language) for piece in _fitting(sentence, fits)]


def writes_no_space(letter: str) -> bool:
    """True if a letter is of a script without spaces between words: Chinese, Japanese, Thai, Lao, Burmese, Khmer."""
    if "\u1100" <= letter <= "\u11ff" or "\uac00" <= letter <= "\ud7af":  # Korean is wide, too, but has spaces
        return False
    thai_lao_tibetan_burmese = "\u0e00" <= letter <= "\u109f"
    return unicodedata.east_asian_width(letter) in "WF" or thai_lao_tibetan_burmese or "\u1780" <= letter <= "\u17ff"


def _fitting(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Cut a sentence that does not fit in two, recursively."""
    if fits(text.strip()):
        return [text]
    middle = len(text.rstrip()) / 2
    # A cut near one end would leave a part about as long as the whole.
    clauses = (match.end() for match in _CLAUSE.finditer(text))
    cuts = _inside(text, [end for end in clauses if middle / 2 <= end <= 3 * middle / 2])
    cuts = cuts or _inside(text, [match.end() for match in _GAP.finditer(text)])
    if not cuts:  # anywhere but between an accent and its letter
        is_mark = [unicodedata.category(letter)[0] == "M" or letter == "\u200d" for letter in text]
        cuts = [n for n in range(1, len(text)) if not is_mark[n] and text[n - 1] != "\u200d"]
    end = min(cuts, key=lambda cut: abs(cut - middle), default=int(middle))
    return [*_fitting(text[:end], fits), *_fitting(text[end:], fits)] if end else [text]


def _inside(text: str, ends: list[int]) -> list[int]:
    """Return the places with text on both sides."""
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    return [end for end in ends if first < end < last]


def _ends_by_language(text: str, language: str) -> set[int]:
    """Return the ends of sentences by sentencex, after the white space that follows them."""
    from sentencex import get_sentence_boundaries

    text = _HALF_OF_A_PAIR.sub("\ufffd", text)  # sentencex does not accept placeholders
    text = _WIDE_SPACE.sub(" ", text)
    ends = [sentence["end_index"] for sentence in get_sentence_boundaries(language_of(language).primary, text)]
    return {gap.end() if (gap := _GAP.match(text, end)) else end for end in ends}


def _enclosed_places(text: str) -> set[int]:
    """Return the places inside pairs of brackets or quotation marks that are no longer than a sentence or two."""
    enclosed, opened = set[int](), list[tuple[str, int]]()
    for place, letter in enumerate(text):
        if letter in _PAIRS:
            opened.append((_PAIRS[letter], place))
        elif opened and letter == opened[-1][0]:
            start = opened.pop()[1]
            if place - start <= _LONGEST_PAIR:
                enclosed.update(range(start + 1, place + 1))
    return enclosed


def _ends_a_sentence(text: str, match: re.Match[str]) -> bool:
    mark = match["mark"]
    after = text[match.end() : match.end() + 9].lstrip(_OPENERS)
    if any(letter in _SURE for letter in mark):
        quoted = match["close"][-1:] in ("」", "』", "”") and not match["gap"]
        return not (quoted and _CONTINUATION.match(text, match.end()))
    if mark == "፡፡" or mark.startswith("<"):
        return True
    if not match["gap"] or (after[:1].islower() and not "\u10d0" <= after[:1] <= "\u10ff"):  # Georgian has no capitals
        return False
    if mark != ".":
        return True
    word = _WORD.search(text[max(0, match.start() - _LONGEST_WORD) : match.start()])
    if word is None:
        return True
    is_number = after[:1].isdecimal() and word[0].isalpha() and len(word[0]) <= _LONGEST_BEFORE_NUMBER
    return not is_number and not _may_be_shortened(word[0])


def _may_be_shortened(word: str) -> bool:
    """Return whether the full stop after a word may belong to the word: Dr. z.B. J. 3. XIV. ca."""
    if len(word) == 1 or "." in word or (word.isdigit() and len(word) <= 2) or _ROMAN.fullmatch(word):
        return True
    if word.casefold() in _SHORTENED.split() or _THAI.fullmatch(word):
        return True
    if word[0].isupper() and word.casefold() in _TITLES.split():
        return True
    if len(word) > _LONGEST_CONSONANTS or not word.isalpha() or word.isupper() or word.upper() == word.lower():
        return False  # TV, and words of alphabets without capitals, which may omit vowels
    return not _VOWELS.intersection(unicodedata.normalize("NFD", word.casefold()))
