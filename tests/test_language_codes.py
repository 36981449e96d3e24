"""Canonical codes of languages, and properties of languages."""

import subprocess
import sys

import pytest

from nmt.errors import RecipeError
from nmt.languages import canonical, language_of

SPELLINGS = {
    "ja": ("ja", "JA", "jpn", "jpn_Jpan", "ja_XX", "japanese", "Japanese"),
    "zh": ("zh", "zho", "chi", "cmn", "Chinese"),
    "zh-Hans": ("zho_Hans", "zh-hans", "cmn_Hans", "Simplified Chinese"),
    "zh-Hant": ("zho_Hant", "zh_hant"),
    "yue": ("yue", "zh-yue", "Cantonese"),
    "ar": ("ar", "ara", "arb", "arb_Arab"),
    "fa": ("fas", "per", "pes", "pes_Arab", "Persian"),
    "sw": ("swh", "swa", "swh_Latn"),
    "ne": ("npi", "nep", "npi_Deva"),
    "nb": ("nob", "nb", "nob_Latn"),
    "ko": ("kor", "kor_Hang", "Korean"),
    "he": ("iw", "heb", "heb_Hebr"),
    "pt-BR": ("pt_br", "pt-BR", "Brazilian Portuguese"),
    "sr-Latn": ("sr_Latn", "srp_Latn", "hbs", "sh"),
    "und": ("und", "src", "trg", "tgt", ""),
    "x-dates": ("x-dates", "X-dates", "x_dates"),
    "zxx": ("zxx",),
}


@pytest.mark.parametrize("code", SPELLINGS)
def test_all_spellings_of_a_language_have_one_canonical_code(code):
    assert {spelling: canonical(spelling) for spelling in SPELLINGS[code]} == dict.fromkeys(SPELLINGS[code], code)
    assert canonical(code) == code


@pytest.mark.parametrize(
    ("code", "meant"),
    {"jp": "ja, Japanese", "cz": "cs, Czech", "cn": "zh, Chinese", "ua": "uk, Ukrainian", "gr": "el, Greek",
     "np": "ne, Nepali", "dk": "da, Danish", "englsh": "en, English", "germn": "de, German"}.items(),
)  # fmt: skip
def test_unknown_code_is_refused_with_the_nearest_known_one(code, meant):
    with pytest.raises(
        RecipeError, match=rf"^'{code}' is not a language code \(did you mean {meant}\?\)\. Expected one"
    ):
        canonical(code)


@pytest.mark.parametrize("code", ["xx", "dates", "zh-classical", "en_US.UTF-8", "a", "!"])
def test_code_near_no_language_is_refused_with_examples(code):
    with pytest.raises(
        RecipeError, match=r"is not a language code.* Expected one like de, pt-BR or zho_Hans, or x-NAME"
    ):
        canonical(code)
    assert not language_of(code).is_known and language_of(code).code == code and language_of(code).name == code


UNSPACED = ["zh", "zho_Hant", "yue", "wuu", "lzh", "ja", "th", "km", "my", "lo", "bo", "dz", "mya_Mymr", "jav_Java"]
SPACED = ["ko", "vi", "de", "hi", "ar", "am", "ka", "jv", "nan", "und", "zxx", "x-dates", "mn", "xx"]


def test_languages_without_spaces_between_words_are_known():
    assert [code for code in UNSPACED + SPACED if language_of(code).is_unspaced] == UNSPACED


def test_languages_have_english_names():
    names = {"jpn": "Japanese", "zho_Hans": "Chinese (Simplified)", "pt-BR": "Portuguese (Brazil)"}
    names |= {"x-dates": "x-dates", "und": "Unknown language"}
    assert {code: language_of(code).name for code in names} == names


def test_langcodes_is_imported_only_when_needed():
    code = "import sys, nmt.languages, nmt.recipe.fields as f; f.all_fields(); sys.exit('langcodes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
