"""Pieces are whole characters or single bytes, and no word ends inside a grapheme cluster."""

import random
import unicodedata

import pytest
import regex
from tokenizers import pre_tokenizers

from nmt.data.letters import BYTE_LETTERS, alphabet_of, in_words
from nmt.data.subwords import N_SPECIAL
from nmt.recipe.data_options import SubwordsConfig
from tests.data.awkward import AWKWARD
from tests.learnt import learnt_subwords

TEXT = [
    "हिन्दी में संयुक्ताक्षर, क्षेत्र और ज्ञान", "မြန်မာဘာသာစကား ကျောင်းသား",
    "ภาษาไทยไม่มีช่องว่าง ที่นี่", "می‌خواهم کتاب‌ها را بخوانم", "日本語とカタカナ、漢字",
    "größer naïve e\u0301", "שָׁלוֹם عَرَبِيّ",
] * 10  # fmt: skip
KINDS = ("bpe", "unigram", "word", "char")


def trained(lines=TEXT, size=700, **options):
    return learnt_subwords(lines, lines, SubwordsConfig(vocab_size=size, **options))


CODECS = {kind: trained(kind=kind, whitespace="kept").src for kind in KINDS}


def texts_of_every_script(nth):
    """Yield texts with every code point, or every nth block of them, and random mixtures."""
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    for start in range(0, len(codes), 500 * nth):
        yield "".join(map(chr, codes[start : start + 500]))
    rng = random.Random(1)
    assigned = [chr(code) for code in codes if unicodedata.category(chr(code)) not in ("Cn", "Co")]
    for _ in range(300):
        yield "".join(rng.choice(assigned) if rng.random() < 0.7 else rng.choice(" 'a1.क्") for _ in range(40))


@pytest.mark.parametrize("kind", KINDS)
def test_every_code_point_round_trips_in_whole_characters_or_single_bytes(kind):
    codec = CODECS[kind]
    for raw in codec.raw(range(N_SPECIAL, codec.size)):
        assert len(raw) == 1 or raw.decode("utf-8")
    for text in texts_of_every_script(1 if kind == "bpe" else 20):
        (ids,) = codec.encode([text])
        assert codec.decode(ids) == unicodedata.normalize("NFC", text)


def test_no_word_ends_within_a_grapheme_cluster():
    rng, pre_tokenizer = random.Random(2), in_words()
    marks = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code))[0] == "M"]
    others = [*"a1! ñ漢ไℹ❤👩©'가", *["\u0600", "ൎ", "ำ", "🇩🇪", "👩\u200d👧", "1️⃣", "'s", "می\u200cخ", "가"]]
    texts = ["".join(f"{rng.choice(others)}{rng.choice(['', '', mark])}" for _ in range(6)) for mark in marks]
    for text in [*texts, *TEXT, *AWKWARD]:
        cluster_starts = {match.start() for match in regex.finditer(r"\X", text)}
        words = pre_tokenizer.pre_tokenize_str(text)
        assert "".join(word for word, _ in words) == text
        assert all(start in cluster_starts or text[start].isspace() for _, (start, _) in words), ascii(text)


def test_words_of_scripts_with_marks_become_one_piece():
    for line in TEXT:
        assert len(CODECS["bpe"].encode([line])[0]) <= len(line.split()) + line.count(",") + line.count("、") + 1


def test_numbers_punctuation_and_english_endings_split_as_in_byte_level_bpe():
    text = " It's 1,250 km\u00b2 (don't), I'll go:  x\t२०२४ — «ça»"
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    assert [span for _, span in in_words().pre_tokenize_str(text)] == [
        span for _, span in byte_level.pre_tokenize_str(text)
    ]


def test_alphabet_takes_the_most_frequent_characters_up_to_the_coverage():
    counts = {"a": 100_000, "é": 50, "ü": 50, "漢": 20, "字": 20, "語": 11}
    assert [*alphabet_of(counts, 10)] == ["é", "ü", "字"]  # the others are no more than 5 in 10,000
    assert [*alphabet_of(counts, 1)] == ["é"]
    assert [*alphabet_of(counts, 10, coverage=1.0)] == ["é", "ü", "字", "漢", "語"]


def test_bpe_takes_a_character_that_saves_more_pieces_than_a_merge():
    lines = ["ab cd"] * 30 + ["漢 ab"] * 20 + ["字 cd"] * 10
    codec = trained(lines, size=256 + N_SPECIAL + 5).src
    assert [piece for piece in codec.vocab if piece not in BYTE_LETTERS] == ["漢", " a", " ab", " c", " cd"]
    assert codec.raw(codec.encode(["字"])[0]) == [b" ", b"\xe5", b"\xad", b"\x97"]
