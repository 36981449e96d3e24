"""The words of the date task: months, weekdays (Monday first) and turns of phrase of each language.

No two languages use one word for different months; a test checks it.
"""

from dataclasses import dataclass

ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII")


@dataclass(frozen=True)
class Language:
    """What a language needs for its dates. A day without its own ending in `endings` has `ending`."""

    code: str
    months: tuple[str, ...]
    short_months: tuple[str, ...]
    weekdays: tuple[str, ...]
    short_weekdays: tuple[str, ...]
    ending: str
    endings: dict[int, str]
    templates: tuple[str, ...]

    def ordinal(self, day: int) -> str:
        """The day as an ordinal number: 1st, 2., 3e."""
        return f"{day}{self.endings.get(day, self.ending)}"


def _language(
    code: str,
    *,
    months: str,
    short_months: str,
    weekdays: str,
    short_weekdays: str,
    ending: str,
    templates: tuple[str, ...],
    endings: dict[int, str] | None = None,
) -> Language:
    words = [tuple(each.split()) for each in (months, short_months, weekdays, short_weekdays)]
    assert [len(each) for each in words] == [12, 12, 7, 7], code
    return Language(code, words[0], words[1], words[2], words[3], ending, endings or {}, templates)


LANGUAGES = (
    _language(
        "en",
        months="January February March April May June July August September October November December",
        short_months="Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec",
        weekdays="Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
        short_weekdays="Mon Tue Wed Thu Fri Sat Sun",
        ending="th",
        endings={1: "st", 21: "st", 31: "st", 2: "nd", 22: "nd", 3: "rd", 23: "rd"},
        templates=(
            "{o} of {month} {yyyy}",
            "the {o} of {month}, {yyyy}",
            "{month} {o}, {yyyy}",
            "{month} the {o}, {yyyy}",
            "{mon} {o} '{yy}",
            "{wday}, {month} {o}, {yyyy}",
            "{wday} the {o} of {month}, {yyyy}",
            "on {wday}, {d} {month} {yyyy}",
            "on {month} {o}, {yyyy}",
            "{mon}. {d}, {yyyy}",
        ),
    ),
    _language(
        "de",
        months="Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
        short_months="Jan Feb Mär Apr Mai Jun Jul Aug Sep Okt Nov Dez",
        weekdays="Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
        short_weekdays="Mo Di Mi Do Fr Sa So",
        ending=".",
        templates=(
            "am {d}. {month} {yyyy}",
            "den {d}. {month} {yyyy}",
            "der {d}. {month} '{yy}",
            "vom {dd}. {mon} {yyyy}",
            "{wday}, {d}. {month} {yyyy}",
            "{wday}, den {d}. {month} {yyyy}",
            "{wday}, der {d}. {m}. {yyyy}",
            "{wd}, {d}. {mon} {yyyy}",
        ),
    ),
    _language(
        "fr",
        months="janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        short_months="janv févr mars avr mai juin juil août sept oct nov déc",
        weekdays="lundi mardi mercredi jeudi vendredi samedi dimanche",
        short_weekdays="lun mar mer jeu ven sam dim",
        ending="",
        endings={1: "er"},
        templates=(
            "le {o} {month} {yyyy}",
            "le {wday} {o} {month} {yyyy}",
            "du {o} {month} {yyyy}",
            "ce {wday} {d} {month} '{yy}",
            "le {dd}/{mm}/{yyyy}",
            "le {o} {mon} {yy}",
        ),
    ),
    _language(
        "es",
        months="enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        short_months="ene feb mar abr may jun jul ago sep oct nov dic",
        weekdays="lunes martes miércoles jueves viernes sábado domingo",
        short_weekdays="lun mar mié jue vie sáb dom",
        ending="º",
        templates=(
            "{d} de {month} de {yyyy}",
            "{d} de {month} del {yyyy}",
            "el {d} de {month} de {yyyy}",
            "{wday}, {d} de {month} de {yyyy}",
            "{wday} {d} de {mon} de {yyyy}",
            "a {d} de {month} de {yyyy}",
            "{d} de {mon} del {yy}",
        ),
    ),
    _language(
        "it",
        months="gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
        short_months="gen feb mar apr mag giu lug ago set ott nov dic",
        weekdays="lunedì martedì mercoledì giovedì venerdì sabato domenica",
        short_weekdays="lun mar mer gio ven sab dom",
        ending="º",
        templates=(
            "il {d} {month} {yyyy}",
            "il {o} {month} {yyyy}",
            "addì {d} {month} {yyyy}",
            "{wday} il {d} {month} {yyyy}",
            "{d} {month} del {yyyy}",
            "il {d} {mon} '{yy}",
        ),
    ),
    _language(
        "pt",
        months="janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
        short_months="jan fev mar abr mai jun jul ago set out nov dez",
        weekdays="segunda-feira terça-feira quarta-feira quinta-feira sexta-feira sábado domingo",
        short_weekdays="seg ter qua qui sex sáb dom",
        ending="º",
        templates=(
            "{d} de {month} de {yyyy}",
            "em {d} de {month} de {yyyy}",
            "aos {d} de {month} de {yyyy}",
            "{wday}, {d} de {month} de {yyyy}",
            "{wd}, {d} de {mon} de {yyyy}",
            "{d}/{mon}/{yy}",
        ),
    ),
    _language(
        "nl",
        months="januari februari maart april mei juni juli augustus september oktober november december",
        short_months="jan feb mrt apr mei jun jul aug sep okt nov dec",
        weekdays="maandag dinsdag woensdag donderdag vrijdag zaterdag zondag",
        short_weekdays="ma di wo do vr za zo",
        ending="e",
        templates=(
            "op {d} {month} {yyyy}",
            "de {o} {month} {yyyy}",
            "de {o} van {month} {yyyy}",
            "{wday} de {o} {month} {yyyy}",
            "op {wday} {d} {month} {yyyy}",
        ),
    ),
    _language(
        "sv",
        months="januari februari mars april maj juni juli augusti september oktober november december",
        short_months="jan feb mar apr maj jun jul aug sep okt nov dec",
        weekdays="måndag tisdag onsdag torsdag fredag lördag söndag",
        short_weekdays="mån tis ons tors fre lör sön",
        ending=":e",
        endings={1: ":a", 2: ":a", 21: ":a", 22: ":a", 31: ":a"},
        templates=(
            "den {d} {month} {yyyy}",
            "den {o} {month} {yyyy}",
            "{wday} den {d} {month} {yyyy}",
            "{wday}en den {o} {month} {yyyy}",
            "{d} {month} år {yyyy}",
        ),
    ),
)
