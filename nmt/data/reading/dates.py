"""The date task: a corpus made on the spot. Many human ways to write a date -> ISO, 1994-03-07.

A line has one reading. Numbers alone are day first (7/3/1994), unless a year of four digits comes first
(1994.03.07); a year of two digits comes last and means 1950-2049. The words are in `date_words.py`.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from nmt.data.reading.date_words import LANGUAGES, ROMAN, Language

FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)
# Two digits under the pivot are years of 2000, the others of 1900.
PIVOT = 50
N_TRAIN, N_VALID, N_TEST = 40_000, 500, 1_000
# Shapes with words help each other to be learned; one of bare numbers must be learned from its own lines.
_WEIGHT_OF_NUMBERS = 3

# {d} {m}: 7 3, {dd} {mm}: 07 03, {mon} {month}: abbreviated and full name, {ROMAN} {roman}: III iii, {o}: ordinal,
# {wd} {wday}: weekday.
_IN_EVERY_LANGUAGE = (
    "{d} {month} {yyyy}",
    "{dd} {month} {yyyy}",
    "{d} {mon} {yyyy}",
    "{dd} {mon} {yyyy}",
    "{o} {month} {yyyy}",
    "{d} {month}, {yyyy}",
    "{month} {d}, {yyyy}",
    "{month} {d} {yyyy}",
    "{mon} {d}, {yyyy}",
    "{mon} {dd} {yyyy}",
    "{yyyy} {month} {d}",
    "{yyyy}, {d} {month}",
    "{yyyy}-{mon}-{dd}",
    "{d}-{mon}-{yyyy}",
    "{dd}-{mon}-{yy}",
    "{d}/{mon}/{yyyy}",
    "{dd}.{mon}.{yyyy}",
    "{d} {mon} {yy}",
    "{d} {mon} '{yy}",
    "{d} {month} '{yy}",
    "{mon} {d} '{yy}",
    "{wday}, {d} {month} {yyyy}",
    "{wday} {d} {month} {yyyy}",
    "{wday} {o} {month} {yyyy}",
    "{wday}, {month} {d}, {yyyy}",
    "{wd} {d} {mon} {yyyy}",
    "{wd}, {dd} {mon} {yyyy}",
    "{wd}. {d} {mon} {yy}",
    "{wd} {d} {mon} '{yy}",
    "{d} {month} {yyyy} ({wday})",
    "{wday} {d}/{m}/{yyyy}",
    "{wday}, {dd}.{mm}.{yyyy}",
    "{wd} {dd}/{mm}/{yy}",
    "{wd}, {d}.{m}.{yy}",
    "{yyyy}-{mm}-{dd} {wd}",
    "{wday} {yyyy}/{mm}/{dd}",
)

_NUMBERS_ONLY = (
    *(
        f"{{{d}}}{dot}{{{m}}}{dot}{{{y}}}"
        for dot in "/.-"
        for d, m in (("d", "m"), ("dd", "mm"))
        for y in ("yyyy", "yy")
    ),
    *(f"{{yyyy}}{dot}{{{m}}}{dot}{{{d}}}" for dot in "/.-" for d, m in (("d", "m"), ("dd", "mm"))),
    *(
        f"{{{d}}}{dot}{{{m}}}{dot}{{{y}}}"
        for dot in "/.-"
        for m in ("ROMAN", "roman")
        for d in ("d", "dd")
        for y in ("yyyy", "yy")
    ),
    "{d}. {m}. {yyyy}",
    "{d}. {m}. '{yy}",
    "{yyyy} {ROMAN} {d}",
    "{yyyy} {roman} {d}",
    "{yyyy}年{m}月{d}日",
    "{yyyy}年{mm}月{dd}日",
    "{yyyy}년 {m}월 {d}일",
)


@dataclass(frozen=True)
class Shape:
    """A way to write a date. `language` is None where there are no words in it."""

    template: str
    language: Language | None

    @property
    def is_short(self) -> bool:
        """Whether the year has two digits."""
        return "{yy}" in self.template

    def can_write(self, year: int) -> bool:
        """Whether a line of a date of that year will have one reading."""
        return not self.is_short or 1900 + PIVOT <= year < 2000 + PIVOT

    def write(self, day: date) -> str:
        """The date in this shape."""
        fields = {
            "d": str(day.day),
            "dd": f"{day.day:02}",
            "m": str(day.month),
            "mm": f"{day.month:02}",
            "yy": f"{day.year % 100:02}",
            "yyyy": str(day.year),
            "ROMAN": ROMAN[day.month - 1],
            "roman": ROMAN[day.month - 1].lower(),
        }
        if self.language is not None:
            fields |= {
                "month": self.language.months[day.month - 1],
                "mon": self.language.short_months[day.month - 1],
                "wday": self.language.weekdays[day.weekday()],
                "wd": self.language.short_weekdays[day.weekday()],
                "o": self.language.ordinal(day.day),
            }
        return self.template.format_map(fields)


def shapes() -> list[Shape]:
    """All ways to write a date, in a fixed order."""
    with_words = [
        Shape(template, language)
        for language in LANGUAGES
        for template in dict.fromkeys((*_IN_EVERY_LANGUAGE, *language.templates))
    ]
    return [Shape(template, None) for template in _NUMBERS_ONLY] + with_words


def generate(seed: int) -> dict[str, tuple[list[str], list[str]]]:
    """The corpus, a pure function of the seed: {"train" | "valid" | "test": (source lines, target lines)}.

    A date belongs to one split, so no date and no line of the test set occurs in training.
    """
    draw = random.Random(f"dates {seed}")
    days = list(_calendar())
    draw.shuffle(days)
    test, valid, train = days[:N_TEST], days[N_TEST : N_TEST + N_VALID], days[N_TEST + N_VALID :]
    return {
        "train": _pairs(train[:N_TRAIN], draw),
        "valid": _pairs(valid, draw),
        "test": _pairs(test, draw),
    }


def _calendar() -> Iterator[date]:
    for n in range((LAST - FIRST).days + 1):
        yield FIRST + timedelta(days=n)


def _pairs(days: list[date], draw: random.Random) -> tuple[list[str], list[str]]:
    every = [shape for shape in shapes() for _ in range(1 if shape.language else _WEIGHT_OF_NUMBERS)]
    fitting = {year: [shape for shape in every if shape.can_write(year)] for year in range(FIRST.year, LAST.year + 1)}
    src = []
    for day in days:
        line = draw.choice(fitting[day.year]).write(day)
        case = draw.random()
        src.append(line.upper() if case < 0.1 else line.lower() if case < 0.2 else line)
    return src, [day.isoformat() for day in days]
