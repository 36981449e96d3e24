"""Languages: one form for the many codes of a language, and what is known of it: scripts, spaces, capitals.

Codes of ISO 639-1 and 639-3, of BCP 47 (zh-Hant, pt-BR), of FLORES (zho_Hans) and English names are read, by the
package langcodes. Made-up languages have the codes that BCP 47 leaves to everybody: x-NAME, or qaa to qtz. Text of no
language is zxx, of many languages mul, and und is a language that is not told. No text is looked at here.
"""

import contextlib
import difflib
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nmt.errors import RecipeError

if TYPE_CHECKING:  # takes some 70 ms to import, which --help has no use for
    from langcodes import Language as Tag

UNTOLD = "und"
# Scripts by ISO 15924, East Asian ones for all that their texts are full of, of languages of which CLDR does not tell
# those in use: several, each of them right, or one that is not the first of CLDR.
_WRITTEN_IN = {
    "Arab": "azb",
    "Arab Cyrl Latn": "az kk tg uz",
    "Arab Deva": "ks sd",
    "Arab Latn": "ha ku ms",
    "Arab Thaa": "dv",
    "Armn": "hyw",
    "Beng Deva": "unr",
    "Beng Mtei": "mni",
    "Cans Latn": "iu",
    "Cyrl Latn": "bs crh ro sr tk tt",
    "Cyrl Mong": "mn",
    "Deva Limb": "lif",
    "Deva Olck": "sat",
    "Grek": "grc",
    "Hani Latn": "nan",
    "Hebr": "hbo",
    "Latn": "hmn",
    "Latn Nkoo": "man",
    "Latn Tfng": "ber kab rif tzm zgh",
    "Syrc": "arc syc",
}
_WITHIN = {"Hans": "Hani", "Hant": "Hani", "Hira": "Jpan", "Kana": "Jpan", "Hang": "Kore"}
UNSPACED = frozenset({"Hani", "Jpan", "Thai", "Laoo", "Khmr", "Mymr", "Tibt", "Java", "Bali", "Lana", "Talu"})
_OF_NO_LANGUAGE = frozenset({UNTOLD, "mul", "zxx", "mis"})
# Words for a side that no language was told of; that they are codes of very small languages is by chance.
_SIDES = frozenset({"", "src", "trg", "tgt"})
_NO_REGION = frozenset({"XX", "ZZ"})  # of en_XX and the like, the codes of mBART


@dataclass(frozen=True, slots=True)
class Language:
    """A language, maybe as it is written in one script or region.

    code: the one form of all codes of it. primary: the code without script and region. scripts: those it is written in,
    by ISO 15924 with Hani, Jpan and Kore for East Asia; none where they are not known.
    """

    code: str
    primary: str
    scripts: frozenset[str]
    is_known: bool = True

    @property
    def name(self) -> str:
        """The English name: Japanese, Chinese (Simplified); the code of what has none."""
        if self.code.startswith("x-") or not self.is_known:
            return self.code
        from langcodes import Language as Tag

        found = Tag.get(self.code).display_name("en")
        return self.code if found.startswith("Unknown language [") else found

    @property
    def is_unspaced(self) -> bool:
        """Written without spaces between words."""
        return bool(self.scripts) and self.scripts <= UNSPACED


@functools.cache
def language_of(code: str) -> Language:
    """The language of a code or English name; of one that is not known, a language of which nothing is known."""
    tag = _tag_of(code)
    if tag is None:
        return Language(code, code, frozenset(), is_known=False)
    primary = tag.language or (UNTOLD if tag.private is None else tag.to_tag())
    scripts = _scripts_of(primary)
    if tag.script:
        own = frozenset({_WITHIN.get(tag.script, tag.script)})
        if own == scripts and tag.script not in ("Hans", "Hant"):
            tag = tag.update_dict({"script": None})
        scripts = own
    return Language(tag.to_tag(), primary, scripts)


def canonical(code: str) -> str:
    """The one form of a language's codes. Raises RecipeError for one that is not known, with the nearest that is."""
    if not (found := language_of(code)).is_known:
        nearest = _nearest(code.strip().lower())
        meant = f" (did you mean {nearest}, {language_of(nearest).name}?)" if nearest else ""
        raise RecipeError(
            f"{code!r} is no language code{meant}. Expected one like de, pt-BR or zho_Hans, or x-NAME for a made-up "
            "language."
        )
    return found.code


def _tag_of(code: str) -> "Tag | None":
    """Return what langcodes makes of a code or an English name; None where it is neither."""
    import langcodes

    text = code.strip().replace("_", "-")
    if text.lower() in _SIDES:
        text = UNTOLD
    tag = None
    with contextlib.suppress(ValueError):  # of a shape that no code has
        tag = langcodes.Language.get(text)
    if tag is None or not tag.is_valid():
        if len(text) < 4:  # too short for a name
            return None
        try:
            tag = langcodes.find(code.strip(), "en")
        except LookupError:
            return None
    if tag.territory in _NO_REGION:
        tag = tag.update_dict({"territory": None})
    return tag.prefer_macrolanguage()


def _scripts_of(primary: str) -> frozenset[str]:
    """The scripts of a language, by its shortest code."""
    if primary in _OF_NO_LANGUAGE or primary.startswith("x-"):
        return frozenset()
    for scripts, languages in _WRITTEN_IN.items():
        if primary in languages.split():
            return frozenset(scripts.split())
    from langcodes.data_dicts import LIKELY_SUBTAGS

    likely = LIKELY_SUBTAGS.get(primary, "").split("-")[1:2]
    return frozenset(_WITHIN.get(script, script) for script in likely)


def _nearest(text: str) -> str:
    """The code that was probably meant by one that is not known: that of a country's language, or of a name; or ""."""
    import langcodes
    from langcodes.data_dicts import LIKELY_SUBTAGS

    is_code = len(text) == 2 and text.isascii() and text.isalpha() and text != "xx"
    if is_code and (country := langcodes.Language.get(f"und-{text}")).is_valid():
        return country.maximize().language or ""
    known = sorted(code for code in LIKELY_SUBTAGS if len(code) == 2)
    names = {language_of(one).name.lower(): one for one in known} | {one: one for one in known}
    close = difflib.get_close_matches(text, names, n=1, cutoff=0.7)
    close = close or [one for one in known if len(text) == 2 and one[0] == text[0]]
    return names[close[0]] if close else ""
