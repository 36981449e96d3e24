"""Which training pairs are dropped, and the account of them."""

import pytest

from nmt.data.clean import Seen, oddities, reason_to_drop
from nmt.data.report import DataReport
from nmt.recipe.data_options import DataConfig

CONFIG = DataConfig(max_len=10, max_ratio=2.0)


@pytest.mark.parametrize(
    ("src", "trg", "reason"),
    [
        ("ein Hund", "a dog", None),
        (None, "a dog", "bad UTF-8"),
        ("ein Hund", None, "bad UTF-8"),
        ("", "a dog", "empty side"),
        ("ein Hund", " \t\u3000\u2028", "empty side"),
        ("a dog", " a dog ", "identical sides"),
        ("x" * 640, "y" * 640, None),
        ("x" * 641, "y" * 640, "too long"),
        ("Ja.", "x" * 39, None),  # a ratio of 13, but short
        ("Ja.", "x" * 40, "length ratio"),
        ("x" * 40, "x y " * 20, None),
        ("x" * 40, "x y " * 21, "length ratio"),
        ("日本" * 10, "x" * 31, None),  # bytes count, not characters
    ],
)
def test_the_reason_follows_from_the_text(src, trg, reason):
    assert reason_to_drop(src, trg, CONFIG) == reason


def test_identical_sides_may_be_kept():
    assert reason_to_drop("OK", "OK", DataConfig(drop_identical=False)) is None


def test_a_pair_is_a_duplicate_the_second_time_only():
    seen = Seen()
    assert [seen.has(*pair) for pair in (("a", "b"), ("a", "c"), ("a", "b"), ("b", "a"))] == [False, False, True, False]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("plain", ()),
        ("tab\tand no-break\u00a0space", ()),
        ("a\rb", ("control",)),
        ("a\u2028b", ("control",)),
        ("NUL\x00", ("control",)),
        ("\ufeffBOM\x0b", ("bom_inside", "control")),
    ],
)
def test_oddities_of_a_line(text, found):
    assert oddities(text) == found


def test_the_report_names_the_first_five_places_of_each_reason():
    report = DataReport(n_read=9)
    for line in range(1, 8):
        report.drop("length ratio", f"a.de:{line}")
    report.drop("empty side", "b.de:2")
    report.n_kept = 1
    assert report.as_dict()["dropped"]["length ratio"] == {"count": 7, "first": [f"a.de:{n}" for n in range(1, 6)]}
    table = "\n".join(report.table())
    assert "9 read, 8 dropped, 1 kept" in table and "a.de:1, 2, 3, 4, 5\n" in table + "\n" and "b.de:2" in table
