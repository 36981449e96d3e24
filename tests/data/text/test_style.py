"""Notes on input whose casing or spacing differs from the training text."""

from collections import Counter

import pytest

from nmt.data.text import shares_of, style_notes, traits_of

PLAIN = ["Ein Hund läuft.", "Zwei Hunde, ja!", "12"] * 40
LOWER = [line.lower() for line in PLAIN]
CAPITALS = [line.upper() for line in PLAIN]
APART = [line.replace(",", " ,").replace(".", " .").replace("!", " !") for line in PLAIN]
GEORGIAN = ["ეს ჩემი სახლია.", "მე აქ ვცხოვრობ."] * 20


def counted(lines):
    return sum(map(traits_of, lines), Counter())


@pytest.mark.parametrize(
    ("training", "source", "expected"),
    [
        (LOWER, PLAIN, ["100% of the training lines are lower-cased, but 0 of 80 input lines"]),
        (PLAIN, LOWER, ["0% of the training lines are lower-cased, but 80 of 80"]),
        (PLAIN, CAPITALS, ["0% of the training lines are in capitals, but 80 of 80"]),
        (APART, PLAIN, ["punctuation set apart by spaces, but 0 of 80 input lines"]),
        (PLAIN, APART, ["punctuation set apart by spaces, but 80 of 80 input lines"]),
        (PLAIN, PLAIN, []),
        (LOWER, LOWER[:4] + GEORGIAN, []),
        (PLAIN, [*PLAIN[:60], *CAPITALS[:6]], []),
        (PLAIN, CAPITALS[:3], []),
        ([], CAPITALS, []),
    ],
)
def test_input_in_another_style_than_the_training_text_is_noted(training, source, expected):
    notes = list(style_notes(shares_of(training), counted(source)))
    assert len(notes) == len(expected) and all(words in note for words, note in zip(expected, notes, strict=True))
