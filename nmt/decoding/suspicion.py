"""Quality flags of translations without a reference: small tests of source and output, each a pure function.

Reasons, not verdicts: a name repeats itself in good translations too.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

from nmt.data.filters import UsualRatio, is_unusual
from nmt.data.placeholders import PATTERNS
from nmt.data.scripts import letters_of, scripts_of
from nmt.decoding.request import Request, is_blank
from nmt.decoding.translation import Translation
from nmt.decoding.translator import Translator
from nmt.recipe.decode_options import DecodeConfig

# Numbers of a text by their values.


_OTHER_DIGIT = re.compile(r"[^\W0-9A-Za-z_]")
# Marks within numbers as ASCII has them: full-width ones, those of Arabic, and spaces that do not break.
_MARKS = str.maketrans("．，：／٫٬’\u00a0\u202f\u2009", ".,:/.,'   ")
_NUMBER = re.compile(r"\d+(?:[.,':/]\d+|(?: \d{3})+(?!\d))*")
_THOUSANDS = re.compile(r"\d{1,3}(?P<mark>[.,' ])\d{2,3}(?:(?P=mark)\d{2,3})*(?<=\d{3})")
# Words for powers of ten, and how they begin.
_SCALES = {
    2: "hundred hundert cent cien",
    3: "thousand tausend mille mil тысяч हज़ार हजार হাজার هزار ထောင် พัน 千 천",
    4: "万 萬 만 သောင်း หมื่น",
    5: "lakh लाख লাখ লক্ষ သိန်း แสน",
    6: "million millón milh milion mio mln миллион млн मिलियन মিলিয়ন میلیون مليون သန်း ล้าน",
    7: "crore करोड़ কোটি ကုဋေ",
    8: "億 亿 억",
    9: "billion milliard miliard mrd миллиард млрд बिलियन বিলিয়ন میلیارد مليار",
    12: "兆 trillion billion",
}
_POWERS: dict[str, list[int]] = {"m": [6], "bn": [9], "k": [3]}
for _power, _words in _SCALES.items():
    for _word in _words.split():
        _POWERS.setdefault(_word, []).append(_power)
_ANY_SCALE = "|".join(sorted((word for word in _POWERS if len(word) > 2 or not word.isascii()), key=len, reverse=True))
_SCALE = re.compile(rf"(?:[ -]|\b)?(?:多|余|餘)?({_ANY_SCALE})|(m|bn|k)\b", re.IGNORECASE)
_SCALE_ALONE = re.compile(_ANY_SCALE, re.IGNORECASE)
# Other words, each with the numbers that it may be a part of.
_WORDS = {
    r"\b(?:ten\b|zehn|dix\b|diez|dieci|o[ckt]t|outubro)": (10,),
    r"\b(?:eleven|elf\b|onze|once|undici|nov)": (11,),
    r"\b(?:twel|zwölf|douz|doce|dodici|dozen|dutzend|dec|dez|déc|dic|noon|mittag|midi)": (12,),
    "teen|zehn|treize|quatorze|quinze|seize|dix-|trece|catorce|quince|diec": range(13, 20),
    "twent|zwanzig|vingt|veint|venti": range(20, 30),
    "thirt|drei(?:ß|ss)ig|trent|treint": range(30, 40),
    r"\bfort|vierzig|quarant|cuarent": range(40, 50),
    "fift|fünfzig|cinquant|cincuent": range(50, 60),
    "sixt|sechzig|soixant|sesent|sessant": range(60, 80),
    "sevent|siebzig|septant|setent|settant": range(70, 80),
    r"\beight|achtzig|quatre-vingt|ochent|ottant": range(80, 100),
    "ninet|neunzig|nonant|novent|noventa": range(90, 100),
    r"\bhal[fb]|\bdemi|半": (30, 50),
    r"viertel|\bquart": (15, 25, 45, 75),
}
_ROMAN = re.compile(r"\b(?=[IVXL]{2})(X{0,3}|XL|LX{0,3})(IX|IV|V?I{0,3})(?![A-Z0-9])")
_ROMAN_ONES = ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
_ROMAN_TENS = [ones.translate(str.maketrans("IVX", "XLC")) for ones in _ROMAN_ONES]
_HAN_DIGITS = {**{c: n for n, c in enumerate("〇一二三四五六七八九")}, "零": 0, "两": 2, "兩": 2}
_HAN_POWERS = {"十": 1, "百": 2, "千": 3, "万": 4, "萬": 4, "億": 8, "亿": 8}
_HAN = re.compile(f"[{''.join(_HAN_DIGITS)}{''.join(_HAN_POWERS)}]+")
_AFTERNOON = re.compile(r"(\d{1,2})(?:[:.]\d\d)? ?p\.?m|(\d{1,2})(?:[:.]\d\d| ?Uhr| ?h\b)", re.IGNORECASE)
# Between years of the common calendar and those of the Buddhist and of the two Islamic ones.
_CALENDARS = [sign * n for n in (543, 579, 621, 622) for sign in (1, -1)]
_LONGEST_SUM = 18  # digits

Reading = tuple[str, ...]  # values that all have to be there


def missing_numbers(text: str, other: str, least: int) -> list[str]:
    """Numbers of a text, from `least` on, that the other one has not, by their digits."""
    wanted = [(digits, readings) for digits, readings in _numbers(_plain(text), least) if all(readings)]
    for values in (_written_values, _values):  # most numbers are written alike, and all values take long to find
        there = values(_plain(other)) if wanted else set()
        wanted = [one for one in wanted if not any(there.issuperset(reading) for reading in one[1])]
    return [digits for digits, _ in wanted]


@lru_cache(maxsize=4)
def _plain(text: str) -> str:
    """The text with ASCII digits and marks."""
    if text.isascii():
        return text
    return _OTHER_DIGIT.sub(lambda found: str(unicodedata.decimal(found[0], found[0])), text.translate(_MARKS))


def _value(whole: str, decimals: str = "", power: int = 0) -> str:
    """A value as it is compared: without zeros in front, and at the end of decimals."""
    digits, point = whole + decimals, len(whole) + power
    decimals = digits[point:].rstrip("0")
    return digits[:point].ljust(point, "0").lstrip("0") + (f".{decimals}" if decimals else "")


def _numbers(text: str, least: int = 0) -> Iterator[tuple[str, list[Reading]]]:
    """The digits and the readings of each number; a reading is empty where all of it is less than `least`."""

    def is_small(value: str) -> bool:
        return not value or (len(value) <= 2 and value.isdecimal() and int(value) < least)

    end, before = 0, 0  # of a number that the next one adds to, as in 1億2000万
    for match in _NUMBER.finditer(text):
        number, groups = match[0], re.split(r"\D", match[0])
        head, last = number[: -len(groups[-1]) - 1], groups[-1]
        has_thousands = _THOUSANDS.fullmatch(number) is not None
        whole = [_value("".join(groups))] if len(groups) == 1 or has_thousands else []
        mark = number[len(head) : len(head) + 1]
        if head and mark in ".," and mark not in head and (head.isdecimal() or _THOUSANDS.fullmatch(head)):
            whole.append(_value("".join(groups[:-1]), last))
        if scale := _SCALE.match(text, match.end()):
            powers = _POWERS[(scale[1] or scale[2]).lower()]
            scaled = [_value(*one.partition(".")[::2], power) for one in whole for power in powers]
            if scaled and scaled[0].isdecimal() and len(scaled[0]) <= _LONGEST_SUM:
                total = int(scaled[0]) + (before if match.start() == end else 0)
                end, before = scale.end(), total
                scaled.append(str(total))
            whole += scaled
        apart = tuple(map(_value, groups))
        apart = apart if has_thousands else tuple(one for one in apart if not is_small(one))
        yield "".join(groups), [*((one,) for one in whole if not is_small(one)), apart]


def _written_values(text: str) -> set[str]:
    """Values of the digits of a text."""
    return {_value(group) for group in re.findall(r"\d+", text)}


def _values(text: str) -> set[str]:
    """All values that the numbers and the words of a text may stand for."""
    found = {value for _, readings in _numbers(text) for reading in readings for value in reading}
    found |= _written_values(text)
    found |= {str(10**power) for word in _SCALE_ALONE.findall(text) for power in _POWERS[word.lower()]}
    found |= {str(n) for words, values in _WORDS.items() if re.search(words, text, re.IGNORECASE) for n in values}
    found |= {str(10 * _ROMAN_TENS.index(tens) + _ROMAN_ONES.index(ones)) for tens, ones in _ROMAN.findall(text)}
    found |= {str(_han_value(run)) for run in _HAN.findall(text)}
    for hours in _AFTERNOON.findall(text):
        found |= {str(int(hour) + more) for hour in hours if hour for more in (12, -12)}
    for year in [int(one) for one in found if len(one) == 4 and one.isdecimal()]:
        found |= {str(one) for one in (year % 100, year // 100 + 1, *(year + n for n in _CALENDARS))}
    return found | {f"{century}{one}" for one in found if len(one) == 2 for century in (18, 19, 20)}


def _han_value(run: str) -> int:
    """The value of a number in Chinese characters, one that is written by its digits among them."""
    total = part = digit = 0
    for c in run[:_LONGEST_SUM]:
        if c in _HAN_DIGITS:
            digit = 10 * digit + _HAN_DIGITS[c]
        elif _HAN_POWERS[c] < 4:
            part, digit = part + (digit or 1) * 10 ** _HAN_POWERS[c], 0
        else:
            total, part, digit = (total + part + digit or 1) * 10 ** _HAN_POWERS[c], 0, 0
    return total + part + digit


CAP = "cap"  # which only the search can know
# A block of at least two characters some times in a row, or one character so often that it is no ellipsis.
_RUN = {n: re.compile(rf"(\S.{{1,80}}?)\1{{{n - 1},}}", re.DOTALL) for n in (3, 4)}
_SHORT_RUN = re.compile(r"(\S.{1,3})\1\1", re.DOTALL)
_GRAM = 5  # characters, more than a short block has
_RUN_OF_ONE = re.compile(r"([^\s\d])\1{2,}|(\d)\2{9,}")
_DOUBLE = re.compile(r"(?:^| )(\S{3,}) \1(?= )")
# White space and punctuation, which may stand in a loop or not. Vowel signs are no letters to Python, and stay.
_BETWEEN = re.compile(r"[\s!-/:-@[-`{-~¡-¿\u2010-\u2027\u2030-\u205e\u3000-\u303f\uff00-\uff0f\uff1a-\uff20।॥၊။؟،]+")
_LONG_LOOP, _LONG_ROW = 4, 10
_LOST_CHARACTER = "\ufffd"
_UNCHANGED = re.compile("|".join(pattern for kind, pattern in PATTERNS.items() if kind != "number"))
_FAR_ENOUGH = 5_000  # characters that are looked at: a line may be of any size
_SHORTEST_COPY = 4  # words: a name or two may well stay as they are
_LEAST_LOST = 10  # smaller numbers are often written as words
_LEAST_ADDED = 13  # so are these in the source, if they are months
_LONG_COPY = 40  # bytes
_FEW_LETTERS = 4  # of other scripts, which a formula may have


def reasons(
    source: str, output: str, max_ratio: float, usual_ratio: float | None = None, languages: Collection[str] = ()
) -> list[str]:
    """Name reasons for doubt.

    max_ratio, usual_ratio: as for `is_out_of_ratio`; languages: as for `is_in_foreign_script`.
    """
    checks = {
        "empty": is_blank(output) and not is_blank(source),
        "damaged": output.count(_LOST_CHARACTER) > source.count(_LOST_CHARACTER),  # it ended inside one
        "repeated": is_repeated(source, output),
        "copied": is_copied(source, output),
        "lost": bool(lost(source, output)),
        "added": bool(added(source, output)),
        "script": is_in_foreign_script(source, output, languages),
        "ratio": is_out_of_ratio(source, output, max_ratio, usual_ratio),
    }
    return [name for name, found in checks.items() if found]


def complaints(
    line: str,
    translation: Translation,
    max_ratio: float,
    low_score: float,
    usual_ratio: float | None = None,
    languages: Collection[str] = (),
) -> list[str]:
    """`reasons` of the best translation of a line, and those that lie in how it was found. low_score: the mean
    log-probability of a token, the end counted, below which it is `low`; 0: none is."""
    if not translation.hypotheses:
        return []
    best = translation.hypotheses[0]
    found = [] if best.finished else [CAP]
    found += reasons(line, translation.text, max_ratio, usual_ratio, languages)
    rest = {
        "low": low_score < 0 and best.score / (len(best.ids) + 1) < low_score,
        "missing": translation.missing,
        "doubled": translation.doubled,
        "unmet": translation.unmet,
    }
    return found + [name for name, holds in rest.items() if holds]


def flags_of(translation: Translation, reasons: list[str]) -> list[str]:
    """Everything odd about a translation, by name. reasons: those against it, as of `complaints`."""
    if not translation.hypotheses:
        return ["letterless" if translation.text else "blank"]
    # Emoji that were taken off the ends of a line do not make it one in pieces.
    return ["split"] * (len(translation.parts) > 1) + reasons


def is_repeated(source: str, output: str) -> bool:
    """Return whether the output goes round in a loop, and the source in none or in one of less than half as many turns:
    text four times in a row; or three times, or a word twice, where that is most of it and nothing in the source comes
    twice.
    """
    source, output = source[:_FAR_ENOUGH].casefold(), output[:_FAR_ENOUGH].casefold()
    n_turn = _turns(output)
    if n_turn >= _LONG_LOOP:
        return n_turn > 2 * _turns(source)
    words = f"{_BETWEEN.sub(' ', output).strip()} "
    runs = (_RUN[3], _DOUBLE) if _may_run(words) else (_DOUBLE,)
    found = max((one for run in runs if (one := run.search(words))), key=lambda one: len(one[0]), default=None)
    if found is None or 2 * len(found[0]) <= len(words) or not any(map(str.isalpha, found[1])):
        return False
    return _turns(source) == 1


def _turns(text: str) -> int:
    """Return how often something stands in a row, at most."""
    ones = [len(one[0]) for one in _RUN_OF_ONE.finditer(text)]
    turns = [n for n in ones if n >= _LONG_ROW] or [1]
    words = f"{_BETWEEN.sub(' ', text).strip()} "
    for form in filter(_may_run, (text, words)):
        turns += [len(one[0]) // len(one[1]) for one in _RUN[_LONG_LOOP].finditer(form)]
    if max(turns) == 1:
        turns += [3] * bool(_may_run(words) and _RUN[3].search(words)) + [2] * bool(_DOUBLE.search(words))
    return max(turns)


@lru_cache(maxsize=4)
def _may_run(text: str) -> bool:
    """Return False only for a text in which no block comes three times in a row, in less time than `_RUN` takes."""
    if _SHORT_RUN.search(text):
        return True
    places: dict[str, list[int]] = {}  # of the first characters of longer blocks
    for place in range(len(text) - _GRAM + 1):
        places.setdefault(text[place : place + _GRAM], []).append(place)
    often = ((found, frozenset(found)) for found in places.values() if len(found) > 2)
    return any(2 * b - a in known for found, known in often for a, b in combinations(found, 2))


def is_copied(source: str, output: str) -> bool:
    """Return whether the output is the source, and that is longer than a name."""
    words = source.split()
    return words == output.split() and (len(words) >= _SHORTEST_COPY or len(source.encode()) >= _LONG_COPY)


def lost(source: str, output: str) -> list[str]:
    """Numbers of the source, by their value, and addresses, names, tags and emoji that the output has not."""
    source, output = source[:_FAR_ENOUGH], output[: 10 * _FAR_ENOUGH]
    (wanted, rest), (there, other) = _items(source), _items(output)
    missing = Counter(wanted) - Counter(there)
    return sorted(missing.elements()) + missing_numbers(rest, other, _LEAST_LOST)


def added(source: str, output: str) -> list[str]:
    """Numbers of the output that the source has not, by their value."""
    source, output = source[: 10 * _FAR_ENOUGH], output[:_FAR_ENOUGH]
    return missing_numbers(_items(output)[1], _items(source)[1], _LEAST_ADDED)


def is_in_foreign_script(source: str, output: str, languages: Collection[str]) -> bool:
    """Return whether most letters of the output, and not of the source, are of scripts of none of the languages.

    languages: codes of those of the source and of the target; where the scripts of one are not known, any will do.
    """
    scripts = list(map(scripts_of, languages))
    if not scripts or not all(scripts) or (output.isascii() and any("Latn" in one for one in scripts)):
        return False
    others = letters_of(frozenset().union(*scripts))[1]

    def is_foreign(text: str) -> bool:
        n_foreign, n_letter = sum(map(len, others.findall(text))), sum(map(str.isalpha, text))
        return n_foreign >= _FEW_LETTERS and 2 * n_foreign > n_letter

    return is_foreign(output[:_FAR_ENOUGH]) and not is_foreign(source[:_FAR_ENOUGH])


def is_out_of_ratio(source: str, output: str, max_ratio: float, usual_ratio: float | None = None) -> bool:
    """Return whether data.max_ratio dropped all training pairs of such lengths. usual_ratio: characters of a target for
    one of its source; where it is not known, neither characters nor UTF-8 bytes may be in a ratio around 1."""
    if not max_ratio:
        return False
    median = usual_ratio or 1.0
    usual = UsualRatio(median, median / max_ratio, median * max_ratio)
    if not is_unusual(len(source), len(output), usual):
        return False
    return usual_ratio is not None or is_unusual(len(source.encode()), len(output.encode()), usual)


@lru_cache(maxsize=4)
def _items(text: str) -> tuple[list[str], str]:
    """Addresses, names, tags and emoji of a text, and the text without them, as they have numbers of their own."""
    found = _UNCHANGED.findall(text)
    return found, _UNCHANGED.sub(" ", text) if found else text


# A second and a third try for translations that look wrong, with other settings of the search.


N_SAMPLES, EPSILON = 16, 0.02  # enough to leave a loop behind; what is unlikelier than this is never drawn

FIRST = "first"  # the name of the translation that there was before any try
MENDED, BETTER, KEPT = "mended", "better", "kept"


@dataclass(frozen=True, slots=True)
class Answer:
    """The translation of a line after all tries."""

    translation: Translation
    reasons: list[str]  # why it still looks wrong
    retry: str | None = None  # the try it is from, FIRST if none was better, None if it looked right at once

    @property
    def outcome(self) -> str | None:
        """Outcome of trying again: MENDED, BETTER but not right, or KEPT; None where nothing was tried."""
        if self.retry in (None, FIRST):
            return KEPT if self.retry else None
        return BETTER if self.reasons else MENDED


def tries(config: DecodeConfig) -> dict[str, DecodeConfig]:
    """The settings of each try by its name, in order: a beam twice as wide, which finds what the search missed; then
    minimum Bayes risk over samples, which leave loops."""
    beam, n_sample = 2 * config.beam, max(N_SAMPLES, config.n_best, config.samples)
    wide = {"beam": beam, "n_best": min(config.n_best, beam), "precision": config.precision}
    drawn = {"samples": n_sample, "mbr": "chrf", "epsilon": EPSILON, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    # A seed of its own, or samples that looked wrong would be drawn again.
    drawn["seed"] = config.seed + 1
    return {"beam": config.for_beam_search().model_copy(update=wide), "mbr": config.model_copy(update=drawn)}


def mend(
    requests: Sequence[Request],
    found: Sequence[Translation],
    again: Mapping[str, Translator],
    why: Callable[[Request, Translation], list[str]],
) -> list[Answer]:
    """Translate the lines again that look wrong, one try after another while they do; fewer reasons win.

    again: what translates, by name of the try. why: the reasons against a translation of a line. Samples are not drawn
    where phrases are required.
    """
    answers = [Answer(one, why(request, one)) for request, one in zip(requests, found, strict=True)]
    for name, translator in again.items():
        wrong = [number for number, answer in enumerate(answers) if answer.reasons]
        wrong = [number for number in wrong if not (translator.config.samples and requests[number].requires)]
        for number, other in zip(wrong, translator.translate([requests[number] for number in wrong]), strict=True):
            answer, reasons = answers[number], why(requests[number], other)
            better = len(reasons) < len(answer.reasons)
            answers[number] = Answer(other, reasons, name) if better else replace(answer, retry=answer.retry or FIRST)
    return answers
