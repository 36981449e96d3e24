"""Quality flags of translations without a reference, by small tests of source and output; and retries of flagged lines.

A flag is a reason for doubt, not a verdict: good translations may contain repetitions, too.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from itertools import combinations

from nmt.data.filters import UsualRatio, is_unusual
from nmt.data.placeholders import PATTERNS
from nmt.data.scripts import letters_of, scripts_of
from nmt.decoding.request import Request, is_blank
from nmt.decoding.translator import Translation, Translator
from nmt.recipe.decode_options import DecodeConfig

# Numbers of a text by their values. ASCII equivalents of marks within numbers: full-width, Arabic, no-break spaces.
_MARKS = str.maketrans("．，：／٫٬’\u00a0\u202f\u2009", ".,:/.,'   ")
_NUMBER = re.compile(r"\d+(?:[.,':/]\d+|(?: \d{3})+(?!\d))*")
_THOUSANDS = re.compile(r"\d{1,3}(?P<mark>[.,' ])\d{2,3}(?:(?P=mark)\d{2,3})*(?<=\d{3})")
# Words for powers of ten, or their beginnings.
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
# Other words, each with the numbers that it may stand for.
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
_HAN = re.compile("[〇零一二三四五六七八九两兩十百千万萬億亿]+")
_AFTERNOON = re.compile(r"(\d{1,2})(?:[:.]\d\d)? ?p\.?m|(\d{1,2})(?:[:.]\d\d| ?Uhr| ?h\b)", re.IGNORECASE)
# Offsets from years of the common calendar to those of the Buddhist and the two Islamic ones.
_CALENDARS = [sign * n for n in (543, 579, 621, 622) for sign in (1, -1)]
_LONGEST_HAN = 18  # characters of a number

Value = Decimal | int
Reading = tuple[Decimal, ...]  # values that must all occur


def missing_numbers(text: str, other: str, least: int) -> list[str]:
    """Return the digits of the numbers in a text, from `least` on, that the other text does not have."""
    text, other = text.translate(_MARKS), other.translate(_MARKS)
    with localcontext(Context(prec=10 * _MAX_CHECKED)):  # nothing is rounded
        missing = [(digits, readings) for digits, readings in _numbers(text, least) if all(readings)]
        for values in (_written_values, _values):  # the slow second one is for the few that are written differently
            known = values(other) if missing else set()
            missing = [number for number in missing if not any(known.issuperset(reading) for reading in number[1])]
    return [digits for digits, _ in missing]


def _numbers(text: str, least: int = 0) -> Iterator[tuple[str, list[Reading]]]:
    """Yield the digits and the readings of each number. A reading is empty if all its values are below `least`."""

    def is_small(value: Decimal) -> bool:
        return value < least and value % 1 == 0

    end, previous = 0, Decimal(0)  # end and value of a number to which the next one may be added, as in 1億2000万
    for match in _NUMBER.finditer(text):
        number, groups = match[0], re.split(r"\D", match[0])
        head, last, digits = number[: -len(groups[-1]) - 1], groups[-1], Decimal("".join(groups))
        has_thousands = _THOUSANDS.fullmatch(number) is not None
        whole = [digits] if len(groups) == 1 or has_thousands else []
        mark = number[len(head) : len(head) + 1]
        if head and mark in ".," and mark not in head and (head.isdecimal() or _THOUSANDS.fullmatch(head)):
            whole.append(digits.scaleb(-len(last)))
        if scale := _SCALE.match(text, match.end()):
            powers = _POWERS[(scale[1] or scale[2]).lower()]
            if scaled := [value.scaleb(power) for value in whole for power in powers]:
                previous = scaled[0] + (previous if match.start() == end else 0)
                end = scale.end()
                whole += [*scaled, previous]
        parts = tuple(map(Decimal, groups))
        parts = parts if has_thousands else tuple(value for value in parts if not is_small(value))
        yield str(digits), [*((value,) for value in whole if not is_small(value)), parts]


def _written_values(text: str) -> set[Value]:
    """Return the values of the runs of digits in a text."""
    return {Decimal(group) for group in re.findall(r"\d+", text)}


def _values(text: str) -> set[Value]:
    """Return all values that the numbers and the words of a text may stand for."""
    values = _written_values(text)
    values |= {value for _, readings in _numbers(text) for reading in readings for value in reading}
    values |= {10**power for word in _SCALE_ALONE.findall(text) for power in _POWERS[word.lower()]}
    values |= {n for words, numbers in _WORDS.items() if re.search(words, text, re.IGNORECASE) for n in numbers}
    values |= {10 * _ROMAN_TENS.index(tens) + _ROMAN_ONES.index(ones) for tens, ones in _ROMAN.findall(text)}
    values |= {_han_value(run) for run in _HAN.findall(text)}
    for hours in _AFTERNOON.findall(text):
        values |= {int(hour) + more for hour in hours if hour for more in (12, -12)}
    for year in [int(value) for value in values if 1000 <= value <= 9999 and value % 1 == 0]:
        values |= {year % 100, year // 100 + 1, *(year + n for n in _CALENDARS)}
    return values | {100 * century + value for value in values if 10 <= value < 100 for century in (18, 19, 20)}


def _han_value(run: str) -> int:
    """Return the value of a number in Chinese characters, with powers of ten or digit by digit."""
    total = part = digit = 0
    for c in run[:_LONGEST_HAN]:
        value = int(unicodedata.numeric(c, 2))  # Python 3.12 has no value of 两, which is 2
        if value < 10:
            digit = 10 * digit + value
        elif value < 10_000:
            part, digit = part + (digit or 1) * value, 0
        else:
            total, part, digit = (total + part + digit or 1) * value, 0, 0
    return total + part + digit


CAP = "cap"  # known to the search only
# A block of at least two characters repeated in a row, and a single character repeated more than in a dotted line.
_RUN = {n: re.compile(rf"(\S.{{1,80}}?)\1{{{n - 1},}}", re.DOTALL) for n in (3, 4)}
_SHORT_RUN = re.compile(r"(\S.{1,3})\1\1", re.DOTALL)
_GRAM = 5  # characters: longer than the block of a short run
_RUN_OF_ONE = re.compile(r"(\S)\1{9,}")
_DOUBLE = re.compile(r"(?:^| )(\S{3,}) \1(?= )")
# White space and punctuation may separate the turns of a loop. Vowel signs are not letters in Python, but do not match.
_BETWEEN = re.compile(r"[\s!-/:-@[-`{-~¡-¿\u2010-\u2027\u2030-\u205e\u3000-\u303f\uff00-\uff0f\uff1a-\uff20।॥၊။؟،]+")
_LONG_LOOP = 4
_LOST_CHARACTER = "\ufffd"
_UNCHANGED = re.compile("|".join(pattern for kind, pattern in PATTERNS.items() if kind != "number"))
_MAX_CHECKED = 5_000  # characters of a line of any size
_SHORTEST_COPY = 4  # words: shorter lines may be names, which stay the same
_LEAST_LOST = 10  # smaller numbers are often written as words
_LEAST_ADDED = 13  # smaller ones may be months that the source writes as words
_LONG_COPY = 40  # bytes
_FEW_LETTERS = 4  # of other scripts: fewer may be a formula


def reasons(
    source: str, output: str, max_ratio: float, usual_ratio: float | None = None, languages: Collection[str] = ()
) -> list[str]:
    """Return the names of reasons for doubt. max_ratio, usual_ratio: see `is_out_of_ratio`; languages: see
    `is_in_foreign_script`."""
    checks = {
        "empty": is_blank(output) and not is_blank(source),
        "damaged": output.count(_LOST_CHARACTER) > source.count(_LOST_CHARACTER),  # an incomplete character
        "repeated": is_repeated(source, output),
        "copied": is_copied(source, output),
        "lost": bool(lost(source, output)),
        "added": bool(added(source, output)),
        "script": is_in_foreign_script(source, output, languages),
        "ratio": is_out_of_ratio(source, output, max_ratio, usual_ratio),
    }
    return [name for name, failed in checks.items() if failed]


def flags_of(translation: Translation, reasons: list[str]) -> list[str]:
    """Return all flags of a translation. reasons: the result of `Evidence.reasons`."""
    if not translation.hypotheses:
        return ["letterless" if translation.text else "blank"]
    # A line with one part was not split: only the emoji at its ends were removed.
    return ["split"] * (len(translation.parts) > 1) + reasons


def is_repeated(source: str, output: str) -> bool:
    """Return whether the output is a loop, and the source has no loop of at least half as many turns.

    A loop is a text four times in a row. A text three times or a word twice is one if it makes up most of the output
    and nothing in the source is repeated.
    """
    source, output = source[:_MAX_CHECKED].casefold(), output[:_MAX_CHECKED].casefold()
    n_turn = _n_turn(output)
    if n_turn >= _LONG_LOOP:
        return n_turn > 2 * _n_turn(source)
    words = f"{_BETWEEN.sub(' ', output).strip()} "
    runs = (_RUN[3], _DOUBLE) if _may_run(words) else (_DOUBLE,)
    matches = filter(None, (run.search(words) for run in runs))
    longest = max(matches, key=lambda match: len(match[0]), default=None)
    if longest is None or 2 * len(longest[0]) <= len(words) or not any(map(str.isalpha, longest[1])):
        return False
    return _n_turn(source) == 1


def _n_turn(text: str) -> int:
    """Return the largest number of repetitions in a row."""
    turns = [1, *(len(run[0]) for run in _RUN_OF_ONE.finditer(text))]
    words = f"{_BETWEEN.sub(' ', text).strip()} "
    for form in filter(_may_run, (text, words)):
        turns += [len(run[0]) // len(run[1]) for run in _RUN[_LONG_LOOP].finditer(form)]
    if max(turns) == 1:
        turns += [3] * bool(_may_run(words) and _RUN[3].search(words)) + [2] * bool(_DOUBLE.search(words))
    return max(turns)


@lru_cache(maxsize=4)
def _may_run(text: str) -> bool:
    """Return False only for a text without any block three times in a row; faster than `_RUN`."""
    if _SHORT_RUN.search(text):
        return True
    places_of: dict[str, list[int]] = {}  # of the first characters of longer blocks
    for place in range(len(text) - _GRAM + 1):
        places_of.setdefault(text[place : place + _GRAM], []).append(place)
    frequent = ((places, frozenset(places)) for places in places_of.values() if len(places) > 2)
    return any(2 * b - a in known for places, known in frequent for a, b in combinations(places, 2))


def is_copied(source: str, output: str) -> bool:
    """Return whether the output is the source, if that is longer than a name."""
    words = source.split()
    return words == output.split() and (len(words) >= _SHORTEST_COPY or len(source.encode()) >= _LONG_COPY)


def lost(source: str, output: str) -> list[str]:
    """Return what the output misses of the source: addresses, names, tags and emoji; numbers by value."""
    source, output = source[:_MAX_CHECKED], output[: 10 * _MAX_CHECKED]
    (source_items, source_rest), (output_items, output_rest) = _items(source), _items(output)
    missing = Counter(source_items) - Counter(output_items)
    return sorted(missing.elements()) + missing_numbers(source_rest, output_rest, _LEAST_LOST)


def added(source: str, output: str) -> list[str]:
    """Return the numbers of the output that the source does not have, by value."""
    source, output = source[: 10 * _MAX_CHECKED], output[:_MAX_CHECKED]
    return missing_numbers(_items(output)[1], _items(source)[1], _LEAST_ADDED)


def is_in_foreign_script(source: str, output: str, languages: Collection[str]) -> bool:
    """Return whether most letters of the output, but not of the source, are in scripts of none of the languages.

    languages: codes of source and target languages. If the scripts of one are unknown, every script is allowed.
    """
    scripts = list(map(scripts_of, languages))
    if not scripts or not all(scripts) or (output.isascii() and any("Latn" in codes for codes in scripts)):
        return False
    foreign_letters = letters_of(frozenset().union(*scripts))[1]

    def is_foreign(text: str) -> bool:
        n_foreign, n_letter = sum(map(len, foreign_letters.findall(text))), sum(map(str.isalpha, text))
        return n_foreign >= _FEW_LETTERS and 2 * n_foreign > n_letter

    return is_foreign(output[:_MAX_CHECKED]) and not is_foreign(source[:_MAX_CHECKED])


def is_out_of_ratio(source: str, output: str, max_ratio: float, usual_ratio: float | None = None) -> bool:
    """Return whether data.max_ratio drops training pairs of such lengths. usual_ratio: target characters per source
    character. Without it, characters and UTF-8 bytes must both be out of a ratio around 1."""
    if not max_ratio:
        return False
    median = usual_ratio or 1.0
    bounds = UsualRatio(median, median / max_ratio, median * max_ratio)
    if not is_unusual(len(source), len(output), bounds):
        return False
    return usual_ratio is not None or is_unusual(len(source.encode()), len(output.encode()), bounds)


@lru_cache(maxsize=4)
def _items(text: str) -> tuple[list[str], str]:
    """Return the addresses, names, tags and emoji of a text, and the text without them, as they may contain numbers."""
    items = _UNCHANGED.findall(text)
    return items, _UNCHANGED.sub(" ", text) if items else text


# Retries with other search settings for translations that look wrong.
N_SAMPLES, EPSILON = 16, 0.02  # enough samples to leave a loop; less likely tokens are never drawn
FIRST = "first"  # the name of the translation before any retry
MENDED, BETTER, KEPT = "mended", "better", "kept"


@dataclass(frozen=True, slots=True)
class Answer:
    """The translation of a line after all retries."""

    translation: Translation
    reasons: list[str]  # against this translation
    retry: str | None = None  # name of the retry that made it; FIRST if none was better; None without any retry

    @property
    def outcome(self) -> str | None:
        """Outcome of the retries: MENDED, BETTER but still with reasons against it, or KEPT; None without any retry."""
        if self.retry in (None, FIRST):
            return KEPT if self.retry else None
        return BETTER if self.reasons else MENDED


def tries(config: DecodeConfig) -> dict[str, DecodeConfig]:
    """Return the settings of each retry by name, in order: a beam twice as wide, which may find better hypotheses; then
    minimum Bayes risk over samples, which may avoid loops."""
    beam, n_sample = 2 * config.beam, max(N_SAMPLES, config.n_best, config.samples)
    wide = {"beam": beam, "n_best": min(config.n_best, beam), "precision": config.precision}
    sampling = {"samples": n_sample, "mbr": "chrf", "epsilon": EPSILON, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    # With the seed of the first samples, the same ones would be drawn again.
    sampling["seed"] = config.seed + 1
    return {"beam": config.for_beam_search().model_copy(update=wide), "mbr": config.model_copy(update=sampling)}


def mend(
    requests: Sequence[Request],
    translations: Sequence[Translation],
    translators: Mapping[str, Translator],
    reasons_of: Callable[[Request, Translation], list[str]],
) -> list[Answer]:
    """Retry the lines with reasons against their translations, by one translator after another. Fewer reasons win.

    translators: by the name of the retry. reasons_of: returns the reasons against the translation of a line. Samples
    are not drawn for lines with required phrases.
    """
    pairs = zip(requests, translations, strict=True)
    answers = [Answer(translation, reasons_of(request, translation)) for request, translation in pairs]
    for name, translator in translators.items():
        suspect = [n for n, answer in enumerate(answers) if answer.reasons]
        suspect = [n for n in suspect if not (translator.config.samples and requests[n].requires)]
        for n, translation in zip(suspect, translator.translate([requests[n] for n in suspect]), strict=True):
            earlier = replace(answers[n], retry=answers[n].retry or FIRST)
            later = Answer(translation, reasons_of(requests[n], translation), name)
            answers[n] = later if len(later.reasons) < len(earlier.reasons) else earlier
    return answers
