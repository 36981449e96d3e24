"""Filters of training pairs: the reason for which each drops a pair, their order, and the report."""

from pathlib import Path

import pytest

from nmt.data.filters import OPTIONS, REASONS, CorpusFacts, UsualRatio, filters_of, oddities, reason_to_drop
from nmt.data.formats import Text
from nmt.data.report import DataReport, table
from nmt.data.sources import Source
from nmt.recipe.data_options import FilterConfig

OFF = {name: type(field.default)(0) for name, field in FilterConfig.model_fields.items()}
RATIO = UsualRatio(median=1.0, low=0.25, high=4.0)


def drop_reason(src, trg, *, max_len=10, **options):
    return reason_to_drop(src, trg, filters_of(CorpusFacts(FilterConfig(**options), max_len, ("de", "en"), RATIO)))


@pytest.mark.parametrize(
    ("src", "trg", "expected"),
    [
        ("ein Hund", "a dog", None),
        ("", "a dog", "empty side"),
        ("ein Hund", " \t\u3000\u2028", "empty side"),
        ("a dog", " a dog ", "identical sides"),
        ("A dog", "a dog", None),
        ("xy" * 320, "yx" * 320, "repeats itself"),
        ("x" * 641, "y" * 640, "too long"),
        ("ä" * 321, "y" * 640, "too long"),
        ("\x00 собака стоит на улице", "a\ufffddog", "control characters"),
    ],
)
def test_reason_is_that_of_the_first_filter_that_rejects_the_pair(src, trg, expected):
    assert drop_reason(src, trg) == expected


REJECTED = {
    "max_ratio": ("length ratio", "Ja.", "an answer of many words, and quite a long one"),
    "drop_identical": ("identical sides", "OK", "OK"),
    "drop_control": ("control characters", "ein\x00Hund", "a dog"),
    "drop_damaged": ("damaged text", "fÃ¼r dich", "for you"),
    "min_script": ("another script", "Hunde bellen laut", "собаки громко лают"),
    "max_symbols": ("mostly symbols", "12 34 56 78 90 12 34 56 78 90", "12 34 56 78 90 12 34 56 78 91"),
    "max_repeats": ("repeats itself", "Hunde bellen laut und lange in der Nacht", "dogs " * 12),
}


@pytest.mark.parametrize("option", REJECTED)
def test_each_filter_can_be_turned_off_and_rejects_only_its_example(option):
    alone = {**OFF, option: FilterConfig.model_fields[option].default}
    for other, (reason, *pair) in REJECTED.items():
        assert drop_reason(*pair, max_len=100, **alone) == (reason if other == option else None)
        assert drop_reason(*pair, max_len=100, **OFF) is None


def test_side_of_unknown_language_may_be_in_any_script():
    filters = filters_of(CorpusFacts(FilterConfig(), 10, ("src", "el")))
    assert reason_to_drop("dogs are barking", "собаки громко лают", filters) == "another script"
    assert reason_to_drop("dogs are barking", "σκύλοι", filters) is None


def test_odd_characters_of_a_line_are_named():
    for text in ("plain", "tab\tand no-break\u00a0space"):
        assert oddities(text) == []
    for text in ("a\rb", "a\u2028b", "NUL\x00"):
        assert oddities(text) == ["control"]
    assert oddities("\ufeffBOM\x0b") == ["bom_inside", "control"]


def test_report_names_the_first_five_lines_of_each_reason():
    report = DataReport(n_read=9)
    a, b = (Source("train", Text(name, Path(name)), Text("a.en", Path("a.en"))) for name in ("a.de", "b.de"))
    for line in range(1, 8):
        report.drop("length ratio", 1, [(line, ())], a)
    report.drop("empty side", 1, [(2, ())], b)
    report.n_kept = 1
    assert report.as_dict()["dropped"]["length ratio"] == {"count": 7, "first": [f"a.de:{n}" for n in range(1, 6)]}
    lines = "\n".join(table(report.as_dict()))
    assert "9 read, 8 dropped, 1 kept" in lines and "a.de:1, 2, 3, 4, 5\n" in lines + "\n" and "b.de:2" in lines


def test_docs_have_a_row_for_each_reason_in_the_order_of_the_filters():
    docs = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[-1].removesuffix(" |") for line in docs.partition("\n## Filters\n")[2].split("\n")]
    documented = [row for row in rows if row in REASONS]
    assert list(dict.fromkeys(documented)) == list(REASONS)


def test_every_option_of_a_filter_has_a_reason():
    assert set(OPTIONS.values()) - {"max_len", "train.min_score or best_share"} == FilterConfig.model_fields.keys()
