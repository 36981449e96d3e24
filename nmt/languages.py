"""Languages: one canonical code for each language, its English name, its scripts, and whether it is written unspaced.

Reads codes of ISO 639-1 and 639-3, of BCP 47 (zh-Hant, pt-BR), of FLORES (zho_Hans), and English names, by the package
langcodes. Invented languages have the private codes of BCP 47: x-NAME, or qaa to qtz. Text of no language is zxx, of
many languages mul, of an unspecified language und. This module does not look at text.
"""

import difflib
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nmt.errors import RecipeError

if TYPE_CHECKING:  # the import takes some 70 ms, which --help does not need
    from langcodes import Language as Tag

UNTOLD = "und"
# Languages by their scripts (ISO 15924), where the first script of CLDR is not enough: the language is written in
# several, or in another one. The codes of East Asian scripts include all characters of their texts.
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
# Names of a side whose language is not specified. They happen to be codes of very small languages, too.
_SIDES = frozenset({"", "src", "trg", "tgt"})
_NO_REGION = frozenset({"XX", "ZZ"})  # as in en_XX, a code of mBART


@dataclass(frozen=True, slots=True)
class Language:
    """A language, possibly with a script or region. code: the canonical one. primary: without script and region.

    scripts: those it is written in, by ISO 15924 with Hani, Jpan and Kore for East Asia; empty if unknown.
    """

    code: str
    primary: str
    scripts: frozenset[str]
    is_known: bool = True

    @property
    def name(self) -> str:
        """The English name, as Japanese or Chinese (Simplified); the code if the language has no name."""
        if self.code.startswith("x-") or not self.is_known:
            return self.code
        from langcodes import Language as Tag

        name = Tag.get(self.code).display_name("en")
        return self.code if name.startswith("Unknown language [") else name

    @property
    def is_unspaced(self) -> bool:
        """True if it is written without spaces between words."""
        return bool(self.scripts) and self.scripts <= UNSPACED


@functools.cache
def language_of(code: str) -> Language:
    """The language of a code or English name. For an unknown one: a language with is_known=False and no scripts."""
    tag = _tag_of(code)
    if tag is None:
        return Language(code, code, frozenset(), is_known=False)
    primary = tag.language or (UNTOLD if tag.private is None else tag.to_tag())
    scripts = _scripts_of(primary)
    if tag.script:
        tag_scripts = frozenset({_WITHIN.get(tag.script, tag.script)})
        if tag_scripts == scripts and tag.script not in ("Hans", "Hant"):
            tag = tag.update_dict({"script": None})
        scripts = tag_scripts
    return Language(tag.to_tag(), primary, scripts)


def canonical(code: str) -> str:
    """The canonical code of a language. Raises RecipeError for an unknown code, with the nearest known one."""
    if not (language := language_of(code)).is_known:
        nearest = _nearest(code.strip().lower())
        hint = f" (did you mean {nearest}, {language_of(nearest).name}?)" if nearest else ""
        raise RecipeError(
            f"{code!r} is not a language code{hint}. Expected one like de, pt-BR or zho_Hans, or x-NAME for a made-up "
            "language."
        )
    return language.code


def _tag_of(code: str) -> "Tag | None":
    """The tag of a code or an English name, parsed by langcodes; None for any other text."""
    import langcodes

    text = code.strip().replace("_", "-")
    if text.lower() in _SIDES:
        text = UNTOLD
    if langcodes.tag_is_valid(text):
        tag = langcodes.Language.get(text)
    elif len(text) < 4:  # too short for a name
        return None
    else:
        try:
            tag = langcodes.find(code.strip(), "en")
        except LookupError:
            return None
    if tag.territory in _NO_REGION:
        tag = tag.update_dict({"territory": None})
    return tag.prefer_macrolanguage()


def _scripts_of(primary: str) -> frozenset[str]:
    """The scripts of a language. primary: its shortest code."""
    if primary == UNTOLD:  # for which CLDR has the script of English
        return frozenset()
    for scripts, languages in _WRITTEN_IN.items():
        if primary in languages.split():
            return frozenset(scripts.split())
    from langcodes.data_dicts import LIKELY_SUBTAGS

    likely = LIKELY_SUBTAGS.get(primary, "").split("-")[1:2]
    return frozenset(_WITHIN.get(script, script) for script in likely)


def _nearest(text: str) -> str:
    """Suggest a code for an unknown one: of the language of a country, or of a similar name or code; "" if none."""
    import langcodes
    from langcodes.data_dicts import LIKELY_SUBTAGS

    if len(text) == 2 and text != "xx" and langcodes.tag_is_valid(country := f"und-{text}"):
        return langcodes.Language.get(country).maximize().language or ""
    codes = sorted(code for code in LIKELY_SUBTAGS if len(code) == 2)
    code_of = {language_of(code).name.lower(): code for code in codes} | {code: code for code in codes}
    close = difflib.get_close_matches(text, code_of, n=1, cutoff=0.7)
    return code_of[close[0]] if close else ""
