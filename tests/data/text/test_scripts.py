"""Filter by script: the letters of a side against the scripts of its language."""

import pytest

from nmt.data.scripts import is_in_another_script, scripts_of

CODES = {"de": "Latn", "pt-BR": "Latn", "no": "Latn", "sr": "Cyrl Latn", "sr-Latn": "Latn", "srp_Cyrl": "Cyrl"}
CODES |= {"zh-Hant-TW": "Hani", "ja": "Jpan", "ko": "Kore", "src": "", "": "", "xx": "", "mww": ""}


def test_a_language_code_determines_the_scripts():
    assert {code: scripts_of(code) for code in CODES} == {code: {*scripts.split()} for code, scripts in CODES.items()}


# One long sentence in each script.
SENTENCE = {
    "en": "A man in a blue shirt is standing on a ladder",
    "ru": "Человек в синей рубашке стоит на лестнице",
    "el": "Ένας άνδρας με μπλε πουκάμισο στέκεται",
    "ar": "رجل يرتدي قميصا أزرق يقف على سلم",
    "he": "אדם בחולצה כחולה עומד על סולם",
    "hi": "नीली कमीज़ पहने एक आदमी सीढ़ी पर खड़ा है",
    "th": "ผู้ชายใส่เสื้อสีฟ้ายืนอยู่บนบันได",
    "zh": "穿蓝色衬衫的男人站在梯子上",
    "ko": "파란 셔츠를 입은 남자가 사다리 위에 서 있다",
    "ka": "კაცი ლურჯ პერანგში დგას კიბეზე",
    "hy": "Կապույտ վերնաշապիկով տղամարդը կանգնած է",
    "ta": "நீல சட்டை அணிந்த மனிதன் ஏணியில் நிற்கிறான்",
    "am": "ሰማያዊ ሸሚዝ የለበሰ ሰው መሰላል ላይ ቆሟል",
}


@pytest.mark.parametrize("language", SENTENCE)
def test_a_sentence_is_in_the_script_of_its_language_and_in_no_other(language):
    for other, sentence in SENTENCE.items():
        related = (language, other) in {("ko", "zh")}  # Korean is written with Chinese characters, too
        assert is_in_another_script(sentence, scripts_of(language), 0.2) == (other != language and not related)


@pytest.mark.parametrize(
    ("text", "language", "min_share", "expected"),
    [
        ("Photoshop, iPad", "ru", 0.2, False),  # 13 bytes of letters
        ("Adobe Photoshop", "ru", 0.2, False),  # 14
        ("Adobe Photoshops", "ru", 0.2, True),  # 15
        ("Adobe Photoshops", "ru", 0.0, False),
        ("Купить Adobe Photoshop Elements", "ru", 0.2, False),  # 12 of 37 bytes are Cyrillic
        ("Купить Adobe Photoshop Elements", "ru", 0.5, True),
        ("https://example.org/a/very/long/path", "ru", 0.2, False),
        ("1234567890 !!! …", "ru", 0.2, False),
        ("わたしはがくせいです", "zh", 0.2, True),
        ("ㄋㄧˇ ㄏㄠˇ ㄇㄚ ㄨㄛˇ ㄏㄣˇ ㄏㄠˇ", "zh", 0.2, False),
        ("我是学生，他是老师", "ja", 0.2, False),  # Japanese is written with Chinese characters, too
    ],
)
def test_too_few_letters_or_a_shared_script_are_not_judged(text, language, min_share, expected):
    assert is_in_another_script(text, scripts_of(language), min_share) == expected
