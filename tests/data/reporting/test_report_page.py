"""HTML page and summary of the report: complete, hostile text escaped, nothing loaded from outside."""

import re
import tomllib
from pathlib import Path

import pytest

from nmt.data.manifest import read_manifest, write_manifest
from nmt.data.prepare import prepare
from nmt.data.report import page, percent, refuse_foreign_page, table
from nmt.errors import DataError
from tests.data.reporting.test_report import report_of
from tests.data.test_prepare import SRC, TRG, recipe_in
from tests.evaluation.browser import Browser, Tags, needs_browser

ROOT = Path(__file__).parents[3]
HOSTILE = [
    '<script>alert(1)</script> "quoted" \' & {{style}}',
    "</li></ul><img src=x onerror=alert(1)>",
    "\u202egnp.exe",
]


@pytest.fixture
def facts(tmp_path):
    src, trg = [*SRC, *(line * 9 for line in HOSTILE)], [*TRG, "x", "x", "x"]
    return report_of(tmp_path, src, trg, valid=([*SRC[:9], HOSTILE[0]], [*TRG[:9], HOSTILE[1]]))


def test_the_page_escapes_all_text_and_loads_nothing(facts, tmp_path):
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    tags = Tags(text).tags
    assert not {"script", "img", "a", "link"} & {tag for tag, *_ in tags}
    assert "\u202e" not in text and "\\u202e" in text and "{{style}}" in text
    assert not [name for _, *names in tags for name in names if name.startswith("on") or name in ("src", "href")]
    assert Tags(page(facts, "<b>x</b>", ("<i>", "&"))).tags == Tags(page(facts, "x", ("i", "j"))).tags
    assert not re.search(r"https?://|@import|url\(", text)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]["nmt"]
    (pattern,) = [pattern for pattern in patterns if "report" in pattern]
    assert sorted(path.suffix for path in (ROOT / "nmt").glob(pattern) if path.suffix != ".py") == [".css", ".html"]


def test_the_page_shows_pairs_files_and_a_verdict(tmp_path):
    report_of(tmp_path)
    html = (tmp_path / "out" / "report.html").read_text("utf-8")
    texts = ("No alarm.", "10 pairs, drawn at random", "The longest pairs", "SHA-256", "t.de", "Made by nmt-preprocess")
    assert [text for text in texts if text not in html] == []


def test_a_missing_page_is_an_error_only_if_the_manifest_lists_it(tmp_path):
    recipe, out = recipe_in(tmp_path), tmp_path / "out"
    prepare(recipe, out)
    manifest = read_manifest(out)
    assert "report.html" in manifest["files"]
    (out / "report.html").unlink()
    with pytest.raises(DataError, match=r"report\.html"):
        prepare(recipe, out)
    content = {key: manifest[key] for key in manifest if key not in ("made_by", "format", "files")}
    write_manifest(out, content, [name for name in manifest["files"] if name != "report.html"])
    messages = []
    prepare(recipe, out, talk=messages.append)
    assert "nothing to do" in messages[-1]


def test_only_pages_written_by_nmt_are_overwritten(tmp_path):
    for name, content in (("thesis.html", b"<p>mine"), ("empty.html", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=name):
            refuse_foreign_page(tmp_path / name)
    with pytest.raises(DataError, match="folder"):
        refuse_foreign_page(tmp_path)
    refuse_foreign_page(tmp_path / "new.html")


MANY = {
    "corpora": [{"name": f"{k}.de", "read": 100, "kept": 100 - k, "dropped": {"too long": k}} for k in range(40)],
    "usual_ratio": {f"{k}.de": {"median": 1.0, "low": 0.5, "high": 2.0} for k in range(40)},
    "alarms": [{"found": f"alarm {k}", "advice": "mend it"} for k in range(40)],
    "warnings": [f"odd {k}" for k in range(40)],
}


def test_the_summary_lists_the_corpora_with_most_drops_first_and_alarms_last(facts):
    stretch = {"first": 3, "last": 70, "offset": 1}
    shifted = [{**facts["alignment"][0], "stretches": [stretch] * 40}, *facts["alignment"][1:]]
    few, many = table(facts), table({**facts, **MANY, "alignment": shifted})
    assert len(few) < 30
    shown = [line.partition(":")[0] for line in many if "(too long" in line]
    assert shown == [f"  {k}.de" for k in range(39, -1, -1)]
    assert many[-80] == "  ALARM: alarm 0. mend it" and many[-40] == "  warning: odd 0"
    assert "misaligned lines: in 0 of 2 pairs of files; 1 could be judged" in few
    assert "misaligned lines: in 1 of 2 pairs of files; 1 could be judged" in many
    assert sum("lines 3 to 70" in line for line in many) == 10
    assert "  ... 30 more stretches of these files: see report.json" in many


@needs_browser
def test_the_page_fits_a_phone_without_browser_errors(facts, tmp_path):
    with Browser(width=360, height=700, dark=True) as browser:
        browser.open(tmp_path / "out" / "report.html")
        assert browser.complaints() == []
        assert browser.run("return document.documentElement.scrollWidth") == 360
        assert any(HOSTILE[0][:20] in text for text in browser.texts("li p"))
        background = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert max(map(int, re.findall(r"\d+", background)[:3])) < 60
        corpora = [{**corpus, "name": f"{'n' * 200}{corpus['name']}"} for corpus in MANY["corpora"]]
        html = page({**facts, **MANY, "corpora": corpora}, "n" * 200, ("de", "en"))
        (tmp_path / "many.html").write_text(html, encoding="utf-8")
        browser.open(tmp_path / "many.html")
        assert [k for k in range(40) if f"n{k}.de" not in browser.texts("pre")[0]] == []
        assert browser.run("return document.documentElement.scrollWidth") == 360


@pytest.mark.parametrize(
    ("n", "total", "expected"),
    [(0, 9, "0 %"), (1, 10**8, "< 0.1 %"), (49_924, 50_000, "99.8 %"), (99_999, 100_000, "> 99.9 %"), (5, 5, "100 %")],
)
def test_percentages_are_rounded_but_never_to_0_or_100(n, total, expected):
    assert percent(n, total) == expected
