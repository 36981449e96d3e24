"""Each reason for suspicion, by a table of positive and negative examples."""

import pytest

from nmt.decoding.beam import Hypothesis
from nmt.decoding.evidence import Evidence
from nmt.decoding.request import Request
from nmt.decoding.suspicion import (
    is_copied,
    is_in_foreign_script,
    is_out_of_ratio,
    is_repeated,
    lost,
    reasons,
)
from nmt.decoding.translator import Translation
from nmt.recipe.options import Recipe


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ("Ein Hund.", "A dog dog dog dog dog.", True),
        ("Ein Hund.", "the end of the end of the end of the end of the end", True),
        ("Ein Hund.", "A dog . . . . . . . . . . .", True),
        ("Ein Hund.", "aaaaaaaaaaaaaaaa", True),
        ("犬", "犬犬犬犬犬犬犬犬犬犬犬", True),
        ("Nein, nein, nein!", "No, no, no!", False),
        ("haha haha haha haha", "haha haha haha haha", False),  # repeated in the source
        ("haha haha haha haha", "haha " * 20, True),  # but less often there
        ("Er lachte.", "Hahahaha, he laughed.", True),
        ("Er sagte nein.", "He said no, No no… no.", True),
        ("anderer", "other other other other.", True),
        ("enrolled", "matriculados matriculados matriculados", True),
        ("seitdem", "seit since since.", True),
        ("stark", "strong strong.", True),
        ("Verspätung", "Vers Vers.", True),
        ("苹果", "苹果苹果苹果。", True),
        ("सेब", "सेब-सेब, सेब", True),
        ("谢谢你", "Thank you, thank you", False),
        ("danke", "谢谢", False),
        ("verschieden", "いろいろ", False),
        ("Der Film war sehr, sehr gut.", "The film was very, very good.", False),
        ("Der Film war ausgezeichnet.", "The film was very, very good.", False),
        ("Bora Bora ist schön.", "Bora Bora is nice.", False),
        ("Ein Hund.", "A dog and a cat and a bird.", False),
        ("x", "1000000", False),
        ("...........", "...........", False),
    ],
)
def test_repetition_is_detected(source, output, expected):
    assert is_repeated(source, output) is expected


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ("Das ist ein Haus", "Das ist ein Haus", True),
        ("Das  ist ein Haus ", "Das ist ein Haus", True),
        ("New York", "New York", False),
        ("Das ist ein Haus", "This is a house", False),
        ("日本" * 20, "日本" * 20, True),
    ],
)
def test_copied_source_is_detected(source, output, expected):
    assert is_copied(source, output) is expected


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ("Um 17:30 am 24.12.", "At 5:30 pm on 24 December", []),
        ("Zwei von 3", "Two of three", []),  # small numbers may become words
        ("30 und 44 <b>Ja</b>", "30 and more", ["</b>", "<b>", "44"]),
        ("<b>Ja</b> <b>", "<b>Yes</b>", ["<b>"]),
        ("Siehe https://a.org/b?c=1.", "See https://a.org/b?c=1.", []),
        ("Siehe https://a.org/b?c=12.", "See our page.", ["https://a.org/b?c=12"]),
        ("an me@a-b.org", "to me", ["me@a-b.org"]),
        ("Siehe www.example.com.", "See example.", ["www.example.com"]),
        ("Frag @max unter #bahn auf example.org", "Ask max", ["#bahn", "@max", "example.org"]),
        ("Öffne /etc/hosts und C:\\a\\b.txt", "Open hosts", ["/etc/hosts", "C:\\a\\b.txt"]),
        ("Das ist gut 😆. Ja.", "That is good. Yes.", ["😆"]),
        ("Das ist gut 😆", "😆 That is good", []),
        ("<b>Ja</b>", "<b>Yes", ["</b>"]),
        ("a < b und b > c", "a < b and b > c", []),
    ],
)
def test_lost_items_are_reported(source, output, expected):
    assert lost(source, output) == expected


@pytest.mark.parametrize(
    ("source", "output", "languages", "expected"),
    [
        ("I want to drink water.", "Я хочу выпить воды.", ("en", "de"), True),
        ("I want to drink water.", "Я хочу выпить воды.", ("en", "ru"), False),
        ("Das ist der Hund meines Freundes.", "这是我朋友的狗，它很可爱。", ("de", "en"), True),
        ("这是我朋友的狗", "これはともだちのいぬです", ("zh", "en"), True),
        ("I want to drink water.", "Я хочу выпить воды.", ("en", "tlh"), False),  # a language of unknown script
        ("I want to drink water.", "Я хочу выпить воды.", (), False),
        ("Er sagte: «Всё хорошо»", "«Всё хорошо»", ("de", "en"), False),  # the source has this script, at least in part
        ("Всё хорошо", "Всё хорошо", ("de", "en"), False),
        ("Ein Winkel α", "Angle αβγ", ("de", "en"), False),
    ],
)
def test_output_in_a_foreign_script_is_detected(source, output, languages, expected):
    assert is_in_foreign_script(source, output, languages) is expected


LONG = "word " * 20


@pytest.mark.parametrize(
    ("source", "output", "max_ratio", "usual_ratios", "expected"),
    [
        (LONG, "x", 4.0, (1.0, None), True),
        ("x", LONG, 4.0, (1.0, None), True),
        ("Ja.", "Certainly, I will.", 4.0, (1.0, None), False),  # short lines are exempt, as in training
        (LONG, "word " * 6, 4.0, (1.0, None), False),
        (LONG, "word " * 6, 4.0, (1.3,), True),
        (LONG, "字" * 8, 4.0, (0.3,), False),
        (LONG, "", 0.0, (1.0, None), False),
        # Without a learnt ratio, it must be odd in characters and in bytes: three bytes per letter are no reason.
        (LONG, "က" * 140, 4.0, (None,), False),
        (LONG, "字" * 20, 4.0, (None,), False),
        (LONG, "字" * 8, 4.0, (None,), True),
    ],
)
def test_unusual_length_ratio_is_detected(source, output, max_ratio, usual_ratios, expected):
    for usual in usual_ratios:
        assert is_out_of_ratio(source, output, max_ratio, usual) is expected


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ("Ein Hund.", "", ["empty"]),
        ("Ein Hund.", " \u200b\u00a0", ["empty"]),
        ("Ein Hund.", ".", []),
        (" \u200b", "", []),
        ("12 Hunde.", "", ["empty", "lost"]),
        ("Zwei Hunde laufen über 12 Felder.", "Two dogs run across 12 fields.", []),
        ("Am 12. Mai", "the" + " the" * 12, ["repeated", "lost", "ratio"]),
        ("Das ist ein Haus", "Das ist ein Haus", ["copied"]),
    ],
)
def test_reasons_list_every_suspicion(source, output, expected):
    assert reasons(source, output, 4.0) == expected


@pytest.mark.parametrize(
    ("finished", "log_prob", "output", "expected"),
    [
        (True, -2.9, "Two dogs, 12 cats.", []),
        (True, -3.1, "Two dogs, 12 cats.", ["low"]),  # three subwords, the end among them
        (False, -0.1, "Two dogs, 12 cats.", ["cap"]),
        (False, -9.9, "Two dogs.", ["cap", "lost", "low"]),
    ],
)
def test_reasons_combine_text_and_search(finished, log_prob, output, expected):
    translation = Translation(output, [output], [Hypothesis([3, 4], log_prob, 99.0, finished)], [3])

    def reasons_of(low_score):
        recipe = Recipe(name="x", decode={"low_score": low_score})
        return Evidence(None, recipe, {}).reasons(Request("Zwei Hunde, 12 Katzen."), translation)

    assert reasons_of(-1.0) == expected
    assert "low" not in reasons_of(0.0)


@pytest.mark.parametrize("code", ["zh", "zho", "Chinese"])
def test_usual_ratio_is_found_by_any_name_of_the_language(code):
    recipe = Recipe(name="x", data={"src_lang": "en", "trg_lang": "de", "max_ratio": 4.0})
    translation = Translation("字" * 8, ["字" * 8], [Hypothesis([3], -0.1, -0.1, True)], [3])
    flags = Evidence(None, recipe, {"zh": 0.3}).reasons(Request(LONG, trg_lang=code), translation)
    assert "ratio" not in flags and "ratio" in Evidence(None, recipe, {}).reasons(Request(LONG), translation)


@pytest.mark.parametrize("unit", ["x", "ab", "1", "a@", "<"])
def test_long_lines_are_checked_in_linear_time(unit):
    """Nothing is timed: quadratic time would take days."""
    assert "ratio" in reasons(unit * 200_000, "short", 4.0)
    assert "repeated" in reasons("short", unit * 200_000, 4.0)
