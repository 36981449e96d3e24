"""Numbers of a text by their values, so that a translation may write them in its own way.

1,250,000 is 12,50,000 and १२,५०,००० and 125万; 10:30 is 10.30; 1994 may be '94. Where marks can be read in two ways, as
the dot of 1.250, both are. Small numbers are not looked for: they become words. Words for greater ones, and those of
months, are known in some languages, and roughly: they tell that a number need not be missing.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

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
_WORDS = [
    (re.compile(words, re.IGNORECASE), [str(n) for n in values])
    for words, values in (
        (r"\b(?:ten\b|zehn|dix\b|diez|dieci|o[ckt]t|outubro)", (10,)),
        (r"\b(?:eleven|elf\b|onze|once|undici|nov)", (11,)),
        (r"\b(?:twel|zwölf|douz|doce|dodici|dozen|dutzend|dec|dez|déc|dic|noon|mittag|midi)", (12,)),
        ("teen|zehn|treize|quatorze|quinze|seize|dix-|trece|catorce|quince|diec", range(13, 20)),
        ("twent|zwanzig|vingt|veint|venti", range(20, 30)),
        ("thirt|drei(?:ß|ss)ig|trent|treint", range(30, 40)),
        (r"\bfort|vierzig|quarant|cuarent", range(40, 50)),
        ("fift|fünfzig|cinquant|cincuent", range(50, 60)),
        ("sixt|sechzig|soixant|sesent|sessant", range(60, 80)),
        ("sevent|siebzig|septant|setent|settant", range(70, 80)),
        (r"\beight|achtzig|quatre-vingt|ochent|ottant", range(80, 100)),
        ("ninet|neunzig|nonant|novent|noventa", range(90, 100)),
        (r"\bhal[fb]|\bdemi|半", (30, 50)),
        (r"viertel|\bquart", (15, 25, 45, 75)),
    )
]
_ROMAN = re.compile(r"\b(?=[IVXL]{2})(X{0,3}|XL|LX{0,3})(IX|IV|V?I{0,3})(?![A-Z0-9])")
_ROMAN_ONES = ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
_ROMAN_TENS = [ones.translate(str.maketrans("IVX", "XLC")) for ones in _ROMAN_ONES]
_HAN_DIGITS = {**{c: n for n, c in enumerate("〇一二三四五六七八九")}, "零": 0, "两": 2, "兩": 2}
_HAN_POWERS = {"十": 1, "百": 2, "千": 3, "万": 4, "萬": 4, "億": 8, "亿": 8}
_HAN = re.compile(f"[{''.join(_HAN_DIGITS)}{''.join(_HAN_POWERS)}]+")
_AFTERNOON = re.compile(r"(\d{1,2})(?:[:.]\d\d)? ?p\.?m|(\d{1,2})(?:[:.]\d\d| ?Uhr| ?h\b)", re.IGNORECASE)
# Years of the Buddhist and of the two Islamic calendars, less those of the common one.
_CALENDARS = (543, -621, -622, -579)
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
    found |= {value for words, values in _WORDS if words.search(text) for value in values}
    found |= {str(10 * _ROMAN_TENS.index(tens) + _ROMAN_ONES.index(ones)) for tens, ones in _ROMAN.findall(text)}
    found |= {str(_han_value(run)) for run in _HAN.findall(text)}
    for hours in _AFTERNOON.findall(text):
        found |= {str(int(hour) + more) for hour in hours if hour for more in (12, -12)}
    for year in [int(one) for one in found if len(one) == 4 and one.isdecimal()]:
        found |= {
            str(year % 100),
            str(year // 100 + 1),
            *(str(year + sign * n) for n in _CALENDARS for sign in (1, -1)),
        }
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
