"""Damage is seen, and good text of any script is not taken for it."""

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


def test_control_characters():
    assert all(map(has_control, CONTROL)) and not any(map(has_control, NO_CONTROL))


WORDS = [
    "für Größe", "déjà vu à Noël", "año, corazón", "“quoted” – it’s…", "naïve™", "не знаю", "Россия", "Ελλάδα",
    "السلام عليكم", "שלום לכם", "नमस्ते", "สวัสดี", "你好世界", "こんにちは", "안녕하세요", "FRANÇAIS",
    "ÉTAT", "FÜR", "São Paulo", "Việt Nam", "bağ", "Öl", "20°C",
]  # fmt: skip


def read_as(encoding, text):
    """UTF-8 as another encoding. Bytes that it does not use are passed through by the programs that do this."""
    return "".join(bytes([b]).decode(encoding, "ignore") or chr(b) for b in text.encode())


def is_cyrillic(text):
    return all("\u0400" <= letter <= "\u04ff" or not letter.isalpha() for letter in text)


# Only Cyrillic text is read as Cyrillic in earnest.
READ_AS = [(encoding, text) for encoding in ("latin-1", "cp1252") for text in WORDS]
READ_AS += [("cp1251", text) for text in filter(is_cyrillic, WORDS)]


@pytest.mark.parametrize(("encoding", "text"), READ_AS)
def test_utf8_that_was_read_as_another_encoding_is_damaged(encoding, text):
    read = read_as(encoding, text)
    assert is_damaged(f"before {read} after") and not is_damaged(f"before {text} after")
    assert is_damaged("lost \ufffd one") and not is_damaged("question ? mark")


# What may stand right after a word, and right before it.
AFTER = [
    "", "…", "!", "”", "’", "»", "›", "“", "–", "—", "™", "®", "€", "€ 5", "²", "ª", "º", "†", "\u00a0É", "…E", "–E",
]  # fmt: skip
BEFORE = ["", "“", "«", "‹", "„", "¿", "€", "–"]


@pytest.mark.parametrize("lines", [PORTUGUESE, VIETNAMESE, TURKISH])
def test_no_word_of_languages_with_such_letters_is_damaged_in_small_letters_and_capitals(lines):
    words = [*lines.split("\n"), *lines.split(), "“Ã”", "«Â»", "Ã–", "Â…"]
    every = [word for one in words for word in (one, one.upper(), one.capitalize(), one.strip(",.;:!?"))]
    assert not [
        one
        for word in every
        for one in (before + word + after for before in BEFORE for after in AFTER)
        if is_damaged(one)
    ]


@pytest.mark.parametrize("lines", [PORTUGUESE, VIETNAMESE, TURKISH])
@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_nearly_all_of_their_sentences_are_damaged_where_they_were_read_as_another_encoding(lines, encoding):
    whole = [line for line in lines.split("\n") if not line.isascii()]
    assert sum(is_damaged(read_as(encoding, line)) for line in whole) >= 0.8 * len(whole)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("12 34 56 78 90 12 34 56 78 90", True),
        ("-----===== ***** .......... |||||", True),
        ("😂😂😂😂😂😂😂😂😂😂😂😂😂😂😂😂😂😂😂😂", True),
        ("12.5 % 13.7 % 1,234.00 9,876.00 kg", True),
        ("1995-09-29 12:30:59", False),  # 19 characters: too short to tell
        ("1995-09-29             12:30:59", False),  # spaces are no characters
        ("On 1995-09-29 at 12:30:59 GMT", False),
        ("１２３４５６７８９０１２３４５６７８９０", True),
        ("二〇二四年一月五日上午十时三十分在北京举行", False),
        ("हिन्दी में निर्देश दिए गए हैं कि", False),  # half of it are marks
        ("a" * 4 + "1" * 16, False),
        ("a" * 4 + "1" * 17, True),
    ],
)
def test_symbols_are_most_of_a_text(text, found):
    assert is_mostly_symbols(text, 0.8) == found
    assert not is_mostly_symbols(text, 1.0)
    assert not is_mostly_symbols("हिन्दी में निर्देश दिए गए हैं कि यहाँ", 0.2), "vowel signs are letters"


@pytest.mark.parametrize(
    ("piece", "n", "found"),
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
def test_a_text_repeats_itself_wherever_that_begins(piece, n, found, before):
    around = ("The quick brown fox jumps over the lazy dog, which is asleep under a tree."[:before], "; then an end")
    assert repeats_itself(around[0] + piece * n + around[1], most=5) == found


@pytest.mark.parametrize("row", ["_", "- ", "0 ", "." * 40 + "!" + "?" * 20])
def test_a_row_without_letters_takes_no_time_and_what_follows_it_is_looked_at(row):
    for before in (60, 81, 129):
        around = (row * before)[:before] * 9
        assert repeats_itself(around + "no " * 17, most=5) and repeats_itself(around + "add to cart " * 6, most=5)
        assert not repeats_itself(around + "add to cart " * 4, most=5)
    text, start = (row * 16_000)[:16_000], time.process_time()
    assert not repeats_itself(text, most=5)
    assert time.process_time() - start < 0.3


def test_a_long_sentence_of_frequent_words_does_not_repeat_itself():
    text = " ".join(f"the part of the {n} and the whole of the {n + 1}" for n in range(60))
    assert not repeats_itself(text, most=3)
