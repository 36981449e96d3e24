"""Filters for damaged text: they find damage and pass good text in any script."""

import time

import pytest

from nmt.data.filters import (
    CorpusFacts,
    filters_of,
    has_control,
    is_damaged,
    is_mostly_symbols,
    reason_to_drop,
    repeats_itself,
)
from nmt.recipe.data_options import FilterConfig
from tests.data.made_lines import GOOD
from tests.data.text.sentences_with_tildes import PORTUGUESE, TURKISH, VIETNAMESE

LINES = [(language, line) for language, lines in GOOD.items() for line in lines]


@pytest.mark.parametrize(("language", "line"), LINES, ids=[f"{language}-{line[:12]}" for language, line in LINES])
def test_a_good_line_of_any_language_passes_all_filters(language, line):
    filters = filters_of(CorpusFacts(FilterConfig(max_ratio=0, drop_identical=False), 256, (language, language)))
    assert reason_to_drop(line, line, filters) is None


CONTROL = ("NUL\x00inside", "escape \x1b[0m", "delete \x7f", "no character \uffff")
NO_CONTROL = (
    "tab\tline\u2028paragraph\u2029next\x85feed\x0cvertical\x0breturn\r",
    "right to left \u200f, joined \u200d, marked \ufeff, soft\u00adhyphen",
    "\x84quotes of windows-1252\x93",
)


def test_control_characters_are_found_and_harmless_marks_pass():
    assert all(map(has_control, CONTROL)) and not any(map(has_control, NO_CONTROL))


WORDS = [
    "für Größe", "déjà vu à Noël", "año, corazón", "“quoted” – it’s…", "naïve™", "не знаю", "Россия", "Ελλάδα",
    "السلام عليكم", "שלום לכם", "नमस्ते", "สวัสดี", "你好世界", "こんにちは", "안녕하세요", "FRANÇAIS",
    "ÉTAT", "FÜR", "São Paulo", "Việt Nam", "bağ", "Öl", "20°C",
]  # fmt: skip


def decoded_as(encoding, text):
    """Decode UTF-8 by another encoding. Undefined bytes pass through, as in programs that make this mistake."""
    return "".join(bytes([b]).decode(encoding, "ignore") or chr(b) for b in text.encode())


def is_cyrillic(text):
    return all("\u0400" <= letter <= "\u04ff" or not letter.isalpha() for letter in text)


# Only Cyrillic text is decoded as cp1251 in practice.
MISREAD = [(encoding, text) for encoding in ("latin-1", "cp1252") for text in WORDS]
MISREAD += [("cp1251", text) for text in filter(is_cyrillic, WORDS)]


@pytest.mark.parametrize(("encoding", "text"), MISREAD)
def test_utf8_decoded_by_another_encoding_is_damaged(encoding, text):
    misread = decoded_as(encoding, text)
    assert is_damaged(f"before {misread} after") and not is_damaged(f"before {text} after")
    assert is_damaged("lost \ufffd one") and not is_damaged("question ? mark")


# Text directly after and directly before a word.
AFTER = [
    "", "…", "!", "”", "’", "»", "›", "“", "–", "—", "™", "®", "€", "€ 5", "²", "ª", "º", "†", "\u00a0É", "…E", "–E",
]  # fmt: skip
BEFORE = ["", "“", "«", "‹", "„", "¿", "€", "–"]


@pytest.mark.parametrize("lines", [PORTUGUESE, VIETNAMESE, TURKISH])
def test_words_with_these_letters_are_not_damaged_in_any_letter_case(lines):
    words = [*lines.split("\n"), *lines.split(), "“Ã”", "«Â»", "Ã–", "Â…"]
    variants = [form for word in words for form in (word, word.upper(), word.capitalize(), word.strip(",.;:!?"))]
    assert not [
        text
        for form in variants
        for text in (before + form + after for before in BEFORE for after in AFTER)
        if is_damaged(text)
    ]


@pytest.mark.parametrize("lines", [PORTUGUESE, VIETNAMESE, TURKISH])
@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_most_sentences_of_these_languages_are_damaged_if_misread(lines, encoding):
    sentences = [line for line in lines.split("\n") if not line.isascii()]
    assert sum(is_damaged(decoded_as(encoding, line)) for line in sentences) >= 0.8 * len(sentences)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12 34 56 78 90 12 34 56 78 90", True),
        ("-----===== ***** .......... |||||", True),
        ("😂😂😂😂😂😂😂😂😂😂😂😂😂😂😂😂😂😂😂😂", True),
        ("12.5 % 13.7 % 1,234.00 9,876.00 kg", True),
        ("1995-09-29 12:30:59", False),  # 19 characters: too short to tell
        ("1995-09-29             12:30:59", False),  # spaces are not counted
        ("On 1995-09-29 at 12:30:59 GMT", False),
        ("１２３４５６７８９０１２３４５６７８９０", True),
        ("二〇二四年一月五日上午十时三十分在北京举行", False),
        ("हिन्दी में निर्देश दिए गए हैं कि", False),  # half of the characters are marks
        ("a" * 4 + "1" * 16, False),
        ("a" * 4 + "1" * 17, True),
    ],
)
def test_text_mostly_of_symbols_is_found(text, expected):
    assert is_mostly_symbols(text, 0.8) == expected
    assert not is_mostly_symbols(text, 1.0)
    assert not is_mostly_symbols("हिन्दी में निर्देश दिए गए हैं कि यहाँ", 0.2), "vowel signs are letters"


@pytest.mark.parametrize(
    ("piece", "n", "expected"),
    [
        ("no ", 16, True),
        ("no ", 15, False),  # under 48 bytes
        ("a", 48, True),
        ("ха", 12, True),
        ("哈", 16, True),
        ("😂a", 12, True),
        ("dog cat ", 6, True),
        ("add to cart ", 6, True),
        ("add to cart ", 5, False),
        ("la la lo ", 6, True),
        ("a piece of text that is just about sixty-four characters long. ", 6, True),
        ("- ", 60, False),  # no letters
        ("_", 200, False),
        ("0 ", 60, False),
    ],
)
@pytest.mark.parametrize("before", [0, 1, 33, 69])
def test_repetition_is_found_at_any_position(piece, n, expected, before):
    around = ("The quick brown fox jumps over the lazy dog, which is asleep under a tree."[:before], "; then an end")
    assert repeats_itself(around[0] + piece * n + around[1], most=5) == expected


@pytest.mark.parametrize("row", ["_", "- ", "0 ", "." * 40 + "!" + "?" * 20])
def test_rows_without_letters_are_fast_and_do_not_hide_repetition(row):
    for before in (60, 81, 129):
        around = (row * before)[:before] * 9
        assert repeats_itself(around + "no " * 17, most=5) and repeats_itself(around + "add to cart " * 6, most=5)
        assert not repeats_itself(around + "add to cart " * 4, most=5)
    text, start = (row * 16_000)[:16_000], time.process_time()
    assert not repeats_itself(text, most=5)
    assert time.process_time() - start < 0.3


def test_frequent_words_in_a_long_sentence_are_not_repetition():
    text = " ".join(f"the part of the {n} and the whole of the {n + 1}" for n in range(60))
    assert not repeats_itself(text, most=3)
