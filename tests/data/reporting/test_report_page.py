"""The page of the report and the summary: they hold whatever there is, hostile text is text, and nothing is loaded."""

import re
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nmt.data.manifest import read_manifest, write_manifest
from nmt.data.prepare import prepare
from nmt.data.report_words import page, percent, refuse_foreign_page, table
from nmt.errors import DataError
from tests.data.reporting.test_report import report_of
from tests.data.test_prepare import SRC, TRG, recipe_in

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "evaluation"))

HOSTILE = [
    '<script>alert(1)</script> "quoted" \' & {{style}}',
    "</li></ul><img src=x onerror=alert(1)>",
    "\u202egnp.exe",
]


class Tags(HTMLParser):
    """The tags of a page in order, and what is open at the end."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, *sorted(name for name, _ in attrs)))
        if tag not in ("meta", "rect", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag != "rect":
            assert self.open.pop() == tag


@pytest.fixture
def facts(tmp_path):
    src, trg = [*SRC, *(line * 9 for line in HOSTILE)], [*TRG, "x", "x", "x"]
    return report_of(tmp_path, src, trg, valid=([*SRC[:9], HOSTILE[0]], [*TRG[:9], HOSTILE[1]]))


def test_nothing_in_a_text_is_markup(facts, tmp_path):
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    found = Tags(text)
    assert found.open == [] and not {"script", "img", "a", "link"} & {tag for tag, *_ in found.tags}
    assert "\u202e" not in text and "\\u202e" in text and "{{style}}" in text
    assert not [name for _, *names in found.tags for name in names if name.startswith("on") or name in ("src", "href")]
    tags = Tags(page(facts, "x", ("i", "j"))).tags
    assert Tags(page(facts, "<b>x</b>", ("<i>", "&"))).tags == tags


def test_the_page_needs_nothing_from_anywhere(facts, tmp_path):
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|@import|url\(", text)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]["nmt"]
    (pattern,) = [one for one in patterns if "report" in one]
    assert sorted(path.suffix for path in (ROOT / "nmt").glob(pattern) if path.suffix != ".py") == [".css", ".html"]


def test_the_page_is_a_file_of_the_folder_and_an_old_folder_is_as_good_without(tmp_path):
    recipe, out = recipe_in(tmp_path), tmp_path / "out"
    prepare(recipe, out)
    manifest = read_manifest(out)
    assert "report.html" in manifest["files"]
    (out / "report.html").unlink()
    with pytest.raises(DataError, match=r"report\.html"):
        prepare(recipe, out)
    content = {key: manifest[key] for key in manifest if key not in ("made_by", "format", "files")}
    write_manifest(out, content, [name for name in manifest["files"] if name != "report.html"])
    said = []
    prepare(recipe, out, talk=said.append)
    assert "nothing to do" in said[-1]


MANY = {
    "corpora": [{"name": f"{k}.de", "read": 10, "kept": 10, "dropped": {}} for k in range(40)],
    "usual_ratio": {f"{k}.de": {"median": 1.0, "low": 0.5, "high": 2.0} for k in range(40)},
    "alarms": [{"found": f"alarm {k}", "advice": "mend it"} for k in range(40)],
    "warnings": [f"odd {k}" for k in range(40)],
}


def test_the_summary_is_one_screen_however_many_corpora_there_are(facts):
    few, many = table(facts), table({**facts, **MANY})
    assert len(few) < 30 and len(many) < 60
    for what in ("corpora", "notes", "alarms", "warnings"):
        (line,) = [line for line in many if line.endswith(f" more {what}: see the report")]
        assert 40 - 8 <= int(line.split()[1]) <= 40
    assert not any(" more " in line for line in few)


def test_the_summary_shows_the_corpora_that_lost_most(facts):
    corpora = [{**one, "dropped": {"too long": k}, "kept": 10 - k} for k, one in enumerate(MANY["corpora"][:10])]
    shown = [line for line in table({**facts, "corpora": corpora}) if "(too long" in line]
    assert [line.partition(":")[0] for line in shown] == [f"  {k}.de" for k in range(2, 10)]


def test_only_a_page_of_ours_is_written_over(tmp_path):
    for name, content in (("thesis.html", b"<p>mine"), ("empty.html", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=name):
            refuse_foreign_page(tmp_path / name)
    with pytest.raises(DataError, match="folder"):
        refuse_foreign_page(tmp_path)
    refuse_foreign_page(tmp_path / "new.html")
    prepare(recipe_in(tmp_path), tmp_path / "out")
    refuse_foreign_page(tmp_path / "out" / "report.html")


def test_the_page_fits_a_phone_and_a_browser_has_nothing_to_complain_of(facts, tmp_path):
    import browser
    from browser import Browser

    if not (browser.DRIVER and browser.BROWSER):
        pytest.skip("no chromedriver or no chromium: apt-get install chromium chromium-driver")
    with Browser(width=360, height=700, dark=True) as shown:
        shown.open(tmp_path / "out" / "report.html")
        assert shown.complaints() == []
        assert shown.run("return document.documentElement.scrollWidth") == 360
        assert any(HOSTILE[0][:20] in text for text in shown.texts("li p"))
        assert shown.run(_CUT_OFF) == []
        ground = shown.run("return getComputedStyle(document.body).backgroundColor")
        assert max(map(int, re.findall(r"\d+", ground)[:3])) < 60


_CUT_OFF = """
for (const one of document.querySelectorAll("details")) one.open = true;
return [...document.querySelectorAll(".wide")].filter((one) => one.scrollWidth > one.clientWidth)
  .map((one) => one.textContent.slice(0, 40));
"""


def test_many_corpora_and_long_names_fit_a_phone(facts, tmp_path):
    import browser
    from browser import Browser

    if not (browser.DRIVER and browser.BROWSER):
        pytest.skip("no chromedriver or no chromium: apt-get install chromium chromium-driver")
    long = "n" * 200
    corpora = [{**one, "name": f"{long}{one['name']}", "dropped": {"too long": 3}} for one in MANY["corpora"]]
    alignment = [{**facts["alignment"][0], "src": f"{long}{k}.de", "trg": f"{long}{k}.en"} for k in range(40)]
    alignment[3] |= {"stretches": [{"first": 20, "last": 99_000_000, "offset": -1, "gain": 99.0}]}
    row = {**facts["leaks"]["rows"][0], "split": f"valid-{'v' * 50}", "lines": 99_000_000}
    row |= {level: dict.fromkeys(("src", "trg", "pair"), 99_000_000) for level in ("exact", "near", "numberless")}
    leaks = {"rows": [row, {**row, "in": "train or valid"}], "examples": []}
    html = page({**facts, **MANY, "corpora": corpora, "alignment": alignment, "leaks": leaks}, long, ("de", "en"))
    (tmp_path / "many.html").write_text(html, encoding="utf-8")
    with Browser(width=390, height=700) as shown:
        shown.open(tmp_path / "many.html")
        rows = shown.texts(".wide tbody tr")
        (first,) = [text for text in rows if "shifted by -1" in text]
        assert not any(".en" in text for text in rows[: rows.index(first)]), "what is wrong comes first"
        assert shown.run("return [...document.querySelectorAll('details')].some((one) => one.open)") is False
        assert shown.run(_CUT_OFF) == []
        assert shown.run("return document.documentElement.scrollWidth") == 390


def test_the_page_shows_pairs_files_and_a_verdict(tmp_path):
    text = (tmp_path / "out" / "report.html").read_text("utf-8") if report_of(tmp_path) else ""
    for told in (
        "No alarm.",
        "10 pairs, drawn at random",
        "The longest pairs",
        "SHA-256",
        "t.de",
        "Made by nmt-preprocess",
    ):
        assert told in text
    assert "e+0" not in text and "e-0" not in text and not re.search(r"\b(\d+) to \1 characters", text)


@pytest.mark.parametrize(
    ("n", "of", "told"),
    [(0, 9, "0 %"), (1, 10**8, "< 0.1 %"), (49_924, 50_000, "99.8 %"), (99_999, 100_000, "> 99.9 %"), (5, 5, "100 %")],
)
def test_shares_are_written_as_people_write_them(n, of, told):
    assert percent(n, of) == told
