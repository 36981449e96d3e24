"""Make the corpus of the date task: python tools/make_dates.py OUT [--seed N]

Writes OUT/{train,valid,test}.{src,trg}: many human ways to write a date -> ISO, 1994-03-07. A line has one reading.
Numbers alone have the day first (7/3/1994), unless a four-digit year comes first (1994.03.07). A two-digit year comes
last and means 1950-2049. No word is the name of different months in two languages.
"""

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII")


class Language:
    """Date formats of a language: names in the order of the calendar, templates separated by bars.

    `endings` has the ordinal suffixes of some days; the others have `ending`.
    """

    def __init__(
        self,
        code: str,
        *,
        months: str,
        short_months: str,
        weekdays: str,
        short_weekdays: str,
        ending: str,
        templates: str,
        endings: dict[int, str] | None = None,
    ) -> None:
        self.code, self.ending, self.endings, self.templates = code, ending, endings or {}, _split_at_bars(templates)
        self.months, self.short_months = months.split(), short_months.split()
        self.weekdays, self.short_weekdays = weekdays.split(), short_weekdays.split()
        words = self.months, self.short_months, self.weekdays, self.short_weekdays
        assert [len(names) for names in words] == [12, 12, 7, 7], code

    def ordinal(self, day: int) -> str:
        """Return the day as an ordinal number: 1st, 2., 3e."""
        return f"{day}{self.endings.get(day, self.ending)}"


def _split_at_bars(templates: str) -> list[str]:
    return [template.strip() for template in templates.split("|")]


LANGUAGES = (
    Language(
        "en",
        months="January February March April May June July August September October November December",
        short_months="Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec",
        weekdays="Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
        short_weekdays="Mon Tue Wed Thu Fri Sat Sun",
        ending="th",
        endings={1: "st", 21: "st", 31: "st", 2: "nd", 22: "nd", 3: "rd", 23: "rd"},
        templates="""{o} of {month} {yyyy} | the {o} of {month}, {yyyy} | {month} {o}, {yyyy} |
            {month} the {o}, {yyyy} | {mon} {o} '{yy} | {wday}, {month} {o}, {yyyy} |
            {wday} the {o} of {month}, {yyyy} | on {wday}, {d} {month} {yyyy} |
            on {month} {o}, {yyyy} | {mon}. {d}, {yyyy}""",
    ),
    Language(
        "de",
        months="Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
        short_months="Jan Feb Mär Apr Mai Jun Jul Aug Sep Okt Nov Dez",
        weekdays="Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
        short_weekdays="Mo Di Mi Do Fr Sa So",
        ending=".",
        templates="""am {d}. {month} {yyyy} | den {d}. {month} {yyyy} | der {d}. {month} '{yy} |
            vom {dd}. {mon} {yyyy} | {wday}, {d}. {month} {yyyy} | {wday}, den {d}. {month} {yyyy} |
            {wday}, der {d}. {m}. {yyyy} | {wd}, {d}. {mon} {yyyy}""",
    ),
    Language(
        "fr",
        months="janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        short_months="janv févr mars avr mai juin juil août sept oct nov déc",
        weekdays="lundi mardi mercredi jeudi vendredi samedi dimanche",
        short_weekdays="lun mar mer jeu ven sam dim",
        ending="",
        endings={1: "er"},
        templates="""le {o} {month} {yyyy} | le {wday} {o} {month} {yyyy} | du {o} {month} {yyyy} |
            ce {wday} {d} {month} '{yy} | le {dd}/{mm}/{yyyy} | le {o} {mon} {yy}""",
    ),
    Language(
        "es",
        months="enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        short_months="ene feb mar abr may jun jul ago sep oct nov dic",
        weekdays="lunes martes miércoles jueves viernes sábado domingo",
        short_weekdays="lun mar mié jue vie sáb dom",
        ending="º",
        templates="""{d} de {month} de {yyyy} | {d} de {month} del {yyyy} | el {d} de {month} de {yyyy} |
            {wday}, {d} de {month} de {yyyy} | {wday} {d} de {mon} de {yyyy} | a {d} de {month} de {yyyy} |
            {d} de {mon} del {yy}""",
    ),
    Language(
        "it",
        months="gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
        short_months="gen feb mar apr mag giu lug ago set ott nov dic",
        weekdays="lunedì martedì mercoledì giovedì venerdì sabato domenica",
        short_weekdays="lun mar mer gio ven sab dom",
        ending="º",
        templates="""il {d} {month} {yyyy} | il {o} {month} {yyyy} | addì {d} {month} {yyyy} |
            {wday} il {d} {month} {yyyy} | {d} {month} del {yyyy} | il {d} {mon} '{yy}""",
    ),
    Language(
        "pt",
        months="janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
        short_months="jan fev mar abr mai jun jul ago set out nov dez",
        weekdays="segunda-feira terça-feira quarta-feira quinta-feira sexta-feira sábado domingo",
        short_weekdays="seg ter qua qui sex sáb dom",
        ending="º",
        templates="""{d} de {month} de {yyyy} | em {d} de {month} de {yyyy} | aos {d} de {month} de {yyyy} |
            {wday}, {d} de {month} de {yyyy} | {wd}, {d} de {mon} de {yyyy} | {d}/{mon}/{yy}""",
    ),
    Language(
        "nl",
        months="januari februari maart april mei juni juli augustus september oktober november december",
        short_months="jan feb mrt apr mei jun jul aug sep okt nov dec",
        weekdays="maandag dinsdag woensdag donderdag vrijdag zaterdag zondag",
        short_weekdays="ma di wo do vr za zo",
        ending="e",
        templates="""op {d} {month} {yyyy} | de {o} {month} {yyyy} | de {o} van {month} {yyyy} |
            {wday} de {o} {month} {yyyy} | op {wday} {d} {month} {yyyy}""",
    ),
    Language(
        "sv",
        months="januari februari mars april maj juni juli augusti september oktober november december",
        short_months="jan feb mar apr maj jun jul aug sep okt nov dec",
        weekdays="måndag tisdag onsdag torsdag fredag lördag söndag",
        short_weekdays="mån tis ons tors fre lör sön",
        ending=":e",
        endings={1: ":a", 2: ":a", 21: ":a", 22: ":a", 31: ":a"},
        templates="""den {d} {month} {yyyy} | den {o} {month} {yyyy} | {wday} den {d} {month} {yyyy} |
            {wday}en den {o} {month} {yyyy} | {d} {month} år {yyyy}""",
    ),
)

FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)
# Two-digit years below the pivot are 20xx, the others 19xx.
PIVOT = 50
N_TRAIN, N_VALID, N_TEST = 40_000, 500, 1_000
# Shapes with words share what a model learns; a shape of numbers is learned only from its own lines.
_NUMBERS_WEIGHT = 3

# {d} {m}: 7 3, {dd} {mm}: 07 03, {mon} {month}: abbreviated and full name, {ROMAN} {roman}: III iii, {o}: ordinal,
# {wd} {wday}: weekday.
_IN_EVERY_LANGUAGE = _split_at_bars("""
    {d} {month} {yyyy} | {dd} {month} {yyyy} | {d} {mon} {yyyy} | {dd} {mon} {yyyy} | {o} {month} {yyyy} |
    {d} {month}, {yyyy} | {month} {d}, {yyyy} | {month} {d} {yyyy} | {mon} {d}, {yyyy} | {mon} {dd} {yyyy} |
    {yyyy} {month} {d} | {yyyy}, {d} {month} | {yyyy}-{mon}-{dd} | {d}-{mon}-{yyyy} | {dd}-{mon}-{yy} |
    {d}/{mon}/{yyyy} | {dd}.{mon}.{yyyy} | {d} {mon} {yy} | {d} {mon} '{yy} | {d} {month} '{yy} |
    {mon} {d} '{yy} | {wday}, {d} {month} {yyyy} | {wday} {d} {month} {yyyy} | {wday} {o} {month} {yyyy} |
    {wday}, {month} {d}, {yyyy} | {wd} {d} {mon} {yyyy} | {wd}, {dd} {mon} {yyyy} | {wd}. {d} {mon} {yy} |
    {wd} {d} {mon} '{yy} | {d} {month} {yyyy} ({wday}) | {wday} {d}/{m}/{yyyy} | {wday}, {dd}.{mm}.{yyyy} |
    {wd} {dd}/{mm}/{yy} | {wd}, {d}.{m}.{yy} | {yyyy}-{mm}-{dd} {wd} | {wday} {yyyy}/{mm}/{dd}
""")

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
    """A way to write a date. `language` is None for a shape without words."""

    template: str
    language: Language | None

    def can_write(self, year: int) -> bool:
        """Return whether a date of that year has one reading in this shape."""
        return "{yy}" not in self.template or 1900 + PIVOT <= year < 2000 + PIVOT

    def write(self, day: date) -> str:
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
    """Return all ways to write a date, in a fixed order."""
    with_words = [
        Shape(template, language)
        for language in LANGUAGES
        for template in dict.fromkeys((*_IN_EVERY_LANGUAGE, *language.templates))
    ]
    return [Shape(template, None) for template in _NUMBERS_ONLY] + with_words


def write(folder: Path, seed: int) -> None:
    """Write both sides of each split into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, sides in generate(seed).items():
        for side, lines in zip(("src", "trg"), sides, strict=True):
            path = folder / f"{split}.{side}"
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def generate(seed: int) -> dict[str, tuple[list[str], list[str]]]:
    """Return the corpus, a pure function of the seed: {"train" | "valid" | "test": (source lines, target lines)}.

    A date belongs to one split, so no date and no line of the test set occurs in training.
    """
    rng = random.Random(f"dates {seed}")
    days = [FIRST + timedelta(days=n) for n in range((LAST - FIRST).days + 1)]
    rng.shuffle(days)
    test, valid, train = days[:N_TEST], days[N_TEST : N_TEST + N_VALID], days[N_TEST + N_VALID :]
    return {split: _pairs(days, rng) for split, days in (("train", train[:N_TRAIN]), ("valid", valid), ("test", test))}


def _pairs(days: list[date], rng: random.Random) -> tuple[list[str], list[str]]:
    weighted = [shape for shape in shapes() for _ in range(1 if shape.language else _NUMBERS_WEIGHT)]
    years = range(FIRST.year, LAST.year + 1)
    by_year = {year: [shape for shape in weighted if shape.can_write(year)] for year in years}
    src = []
    for day in days:
        line = rng.choice(by_year[day.year]).write(day)
        case = rng.random()
        src.append(line.upper() if case < 0.1 else line.lower() if case < 0.2 else line)
    return src, [day.isoformat() for day in days]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", type=Path, help="folder of the six files; they are replaced")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="another seed, other dates (1)")
    args = parser.parse_args(argv)
    write(args.out, args.seed)
    print(f"{args.out}: {N_TRAIN:,} pairs for training, {N_VALID:,} for validation, {N_TEST:,} for the test")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
