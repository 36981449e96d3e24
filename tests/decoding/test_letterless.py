"""Lines without a letter are copied, and emoji at the ends of a line stay where they are."""

import pytest
from fake_model import CopyModel
from small_search import subwords_of

from nmt.decoding.long_lines import is_letterless, without_emoji
from nmt.decoding.request import Request
from nmt.decoding.translator import Translator
from nmt.recipe.decode_options import DecodeConfig


@pytest.fixture(scope="module")
def translator():
    subwords = subwords_of("ein Hund läuft", "zwei Hunde laufen 😀 ... 12", n=300)
    return Translator(CopyModel(subwords.trg.n_vocab, seed=3), subwords, DecodeConfig(beam=2), languages=("de", "en"))


@pytest.mark.parametrize(
    ("text", "languages", "copied"),
    [
        *(
            (text, ("", ""), True)
            for text in ("...", "***", "—", "😀", "→", "!!!", "|---|---|", "[ ]", "№", "👩‍👩‍👧 ❤️")
        ),
        *((text, ("de", "en"), True) for text in ("12:30", "€ 5", "555-1234", "2024", "3,14", "1.")),
        *((text, ("src", "trg"), False) for text in ("12:30", "2024")),
        ("2024", ("de", "hi"), True),
        ("2024", ("en", "mr"), False),
        ("२०२४", ("hi", "en"), False),
        ("Ⅳ", ("de", "en"), True),
        *((text, ("de", "en"), False) for text in ("a", "5 km", "ツ", "(c)", "क्")),
    ],
)
def test_line_without_letters_is_copied(text, languages, copied):
    assert is_letterless(text, *languages) == copied


def test_copied_lines_never_reach_the_model(translator):
    lines = ["...", "ein Hund läuft", " 😀 ", "12:30", ""]
    n_step = len(translator.model.rows_of_step)
    found = list(translator.translate([lines[n] for n in (0, 2, 3, 4)]))
    assert [translation.text for translation in found] == ["...", " 😀 ", "12:30", ""]
    assert not any(translation.hypotheses for translation in found) and len(translator.model.rows_of_step) == n_step
    assert next(translator.translate([Request("...", required=("Hund",))])).hypotheses


def test_line_without_translatable_pieces_is_copied(translator):
    (found,) = translator.translate([Request("\u200b\n...", prefix="Hund")])
    assert found.text.endswith("\n...") and not found.hypotheses


@pytest.mark.parametrize("line", ["ein Hund läuft 😀", "❤️ ein Hund läuft", "👩‍👩‍👧 ein Hund läuft  👍🏽 😀 "])
def test_emoji_at_the_ends_of_a_line_are_restored(translator, line):
    text = without_emoji(line)
    assert text == "ein Hund läuft"
    plain, found = translator.translate([text, line])
    assert found.text == line.replace(text, plain.text)
    assert found.src_ids == plain.src_ids and found.score == plain.score
