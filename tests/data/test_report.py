"""The report: what it counts is what a slow and simple count finds, and what it shows of hostile text is text."""

import itertools
import json
import os
import random
import re
import sys
import tomllib
import unicodedata
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from nmt.data import blocks, duplicates
from nmt.data.duplicates import PAIR, count_duplicates
from nmt.data.leaks import Keys, Leaks
from nmt.data.lines import read_lines
from nmt.data.manifest import read_manifest, write_manifest
from nmt.data.prepare import prepare
from nmt.data.report_page import page, refuse_foreign_page
from nmt.data.report_text import Block
from nmt.data.show import show_pairs
from nmt.errors import DataError
from nmt.recipe.data_options import CorpusFiles, ValidationSet
from tests.data.awkward import AWKWARD
from tests.data.test_prepare import NO_FILTERS, SRC, TRG, recipe_in, write

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "evaluation"))


def report_of(folder, src=SRC, trg=TRG, **how):
    prepare(recipe_in(folder, src, trg, **how), folder / "out", talk=lambda line: None)
    return json.loads((folder / "out" / "report.json").read_text(encoding="utf-8"))


# -- leaks -------------------------------------------------------------------------------------------------------------


def leaks(held_out, training):
    """The counts of `rows` for one test set. Both: lists of (src, trg)."""

    def of(pairs):
        return Keys.of(*map(Block, zip(*pairs, strict=True)))

    found = Leaks({"test": of(held_out)})
    for n, pair in enumerate(training):  # one by one, as blocks come
        found.look(of([pair]), np.array([n]))
    (row,) = found.rows()
    return {
        level: tuple(row[level][part] for part in ("src", "trg", "pair")) for level in ("exact", "near", "numberless")
    }


@pytest.mark.parametrize(
    ("src", "exact", "near", "numberless"),
    [
        ("  The cat, 12 years old. ", 1, 1, 1),
        ("the cat: 12 YEARS old!", 0, 1, 1),
        ("Ｔｈｅ cat ⑫ years old", 0, 1, 1),
        ("The cat, 134 years old.", 0, 0, 1),
        ("The cat, 1,2 years old.", 0, 0, 0),
        ("The dog, 12 years old.", 0, 0, 0),
    ],
)
def test_a_line_is_found_again_at_the_level_at_which_it_is_alike(src, exact, near, numberless):
    found = leaks([("The cat, 12 years old.", "Die Katze, 12 Jahre.")], [("x", "y"), (src, "Die Katze, 12 Jahre.")])
    assert found == {"exact": (exact, 1, exact), "near": (near, 1, near), "numberless": (numberless, 1, numberless)}


def test_nothing_and_mere_punctuation_are_like_nothing():
    assert leaks([("", "..."), ("!", "?")], [("", "..."), ("?", "!")])["near"] == (0, 0, 0)


def test_numbers_with_other_marks_between_them_are_others():
    assert leaks([("1/11", "a")], [("11/1", "a"), ("1/1/1", "a"), ("111", "a")])["near"] == (0, 1, 0)
    assert leaks([("1/11", "a")], [("1-11", "a")])["near"] == (1, 1, 1)


def test_sides_are_not_exchangeable_and_the_first_training_pair_is_named():
    assert leaks([("a", "b")], [("b", "a")])["exact"] == (0, 0, 0)
    found = Leaks({"test": Keys.of(Block(["q", "a"]), Block(["q", "b"]))})
    found.look(Keys.of(Block(["a", "x", "a"]), Block(["b", "x", "b"])), np.array([7, 8, 9]))
    found.look(Keys.of(Block(["a"]), Block(["b"])), np.array([10]))
    assert found.places("test", ("exact", "pair")).tolist() == [-1, 7] and found.n_source == 3


def test_test_lines_are_looked_for_among_the_validation_lines_too():
    def of(*lines):
        return Keys.of(Block(lines), Block(lines))

    found = Leaks({"valid": of("a", "b"), "valid-2": of("c"), "test": of("a", "c", "d", "e")})
    found.look(of("a", "d"), np.array([0, 1]))
    assert [(row["split"], row["in"], row["exact"]["pair"]) for row in found.rows()] == [
        ("valid", "train", 1),
        ("valid-2", "train", 0),
        ("test", "train", 2),
        ("test", "valid", 2),
        ("test", "train or valid", 3),
    ]


def test_the_date_task_of_the_book_leaks_as_much_as_is_known():
    corpora = Path(os.environ.get("NMT_DATA", "/nowhere"))
    if not (corpora / "dates.train.src.gz").exists():
        pytest.skip("NMT_DATA names no folder with the dates")
    keys = {}
    for split in ("train", "valid", "test"):
        sides = (list(read_lines(corpora / f"dates.{split}.{side}.gz")) for side in ("src", "tgt"))
        keys[split] = Keys.of(*map(Block, sides))
    found = Leaks({split: keys[split] for split in ("valid", "test")})
    found.look(keys["train"], np.arange(44_000))
    assert found.rows()[-1]["in"] == "train or valid" and found.rows()[-1]["exact"]["pair"] == 1405


def test_a_prepared_folder_tells_what_leaks_with_places_on_both_sides(tmp_path):
    valid = ([SRC[3], "neu", SRC[5].upper()], [TRG[3], "new", TRG[5]])
    found = report_of(tmp_path, valid=valid)
    (row,) = found["leaks"]["rows"]
    assert (row["split"], row["in"], row["lines"]) == ("valid", "train", 3)
    assert row["exact"] == {"src": 1, "trg": 2, "pair": 1} and row["near"] == {"src": 2, "trg": 2, "pair": 2}
    places = [(each["level"], each["place"], each["train_place"]) for each in found["leaks"]["examples"]]
    de, train = tmp_path / "v.de", tmp_path / "t.de"
    assert places == [("exact", f"{de}:1", f"{train}:4"), ("near", f"{de}:3", f"{train}:6")]
    assert found["leaks"]["examples"][1]["train_src"] == SRC[5] and found["source_in_valid_or_test"] == 1
    assert any("2 of 3 valid pairs" in text for text in found["alarms"])


def test_places_are_of_the_right_file_where_a_set_has_several(tmp_path):
    known = [(SRC[k], TRG[k]) for k in (3, 8, 9)]
    several = {}
    for name, pairs in {"one": [("neu", "new"), known[0]], "two": [known[1], ("x", "y")], "three": known[2:]}.items():
        for lang, lines in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
            several[name, lang] = write(tmp_path / f"{name}.{lang}", lines)
    names = {lang: [several[name, lang] for name in ("one", "two")] for lang in ("de", "en")}
    rows = [f"{src}\t{trg}" for src, trg in [("a", "b"), ("neu", "new"), (SRC[40], TRG[40])]]
    valid = [
        ValidationSet(src=names["de"], trg=names["en"]),
        ValidationSet(file=write(tmp_path / "four.tsv", rows), src_column="a", trg_column="b", name="tsv"),
    ]
    test = CorpusFiles(
        src=[several["three", "de"], *names["de"][::-1]], trg=[several["three", "en"], *names["en"][::-1]]
    )
    recipe = recipe_in(tmp_path, test=test)
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"valid": valid})})
    prepare(recipe, tmp_path / "out", talk=lambda line: None)
    found = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    for each in found["leaks"]["examples"]:
        file, _, line = each["place"].rpartition(":")
        text = Path(file).read_text(encoding="utf-8").split("\n")[int(line) - 1]
        assert text == (f"{each['src']}\t{each['trg']}" if file.endswith("tsv") else each["src"])
    places = [Path(each["place"]).name for each in found["leaks"]["examples"]]
    assert places == ["one.de:2", "two.de:1", "four.tsv:3", "three.de:1", "two.de:1", "one.de:2"]
    splits = [(one["split"], Path(one["src"]).name, one["pairs"]) for one in found["alignment"]]
    assert splits == [
        *[("valid", "one.de", 2), ("valid", "two.de", 2), ("valid-tsv", "four.tsv", 2)],
        *[("test", "three.de", 1), ("test", "two.de", 2), ("test", "one.de", 2), ("train", "t.de", 200)],
    ]


# -- repetitions and shapes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [1 << 22, 40])
def test_repetitions_are_those_of_a_slow_count_however_little_memory_there_is(tmp_path, monkeypatch, share):
    monkeypatch.setattr(duplicates, "_SHARE", share)
    monkeypatch.setattr(duplicates, "_READ", 17)
    draw = random.Random(1)
    pairs = [(draw.randrange(40), draw.randrange(5)) for _ in range(300)]
    scrambled = [(a * 0x9E3779B97F4A7C15 % 2**64, b) for a, b in pairs]
    (tmp_path / "pairs").write_bytes(np.array(scrambled, PAIR).tobytes())
    found = count_duplicates(tmp_path / "pairs")
    times = Counter(pairs)
    assert found["pairs"] == 300 - len(times)
    assert found["sources"] == sum(n > 1 for n in Counter(a for a, _ in times).values())
    assert found["targets"] == sum(n > 1 for n in Counter(b for _, b in times).values())
    best = sorted(((pairs.index(pair), n) for pair, n in times.items()), key=lambda each: (-each[1], each[0]))
    assert found["most"] == best[:5]


def test_lengths_ratios_scripts_and_subwords_are_those_of_the_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "N_PAIR", 7)
    src, trg = [*SRC, "", "x" * 300, "Ωμέγα 日本 !"], [*TRG, "a", "y", "Ω"]
    found = report_of(tmp_path, src, trg, max_len=200, **{**NO_FILTERS, "max_ratio": 4.0})
    for side, lines in (("src", src), ("trg", trg)):
        of = found["lengths"][side]
        bounds = [*of["from"], float("inf")]
        expected = [sum(a <= len(line) < b for line in lines) for a, b in itertools.pairwise(bounds)]
        assert of["read"] == expected and sum(of["kept"]) == found["kept"] == len(lines) - 2
    assert sum(found["ratios"]["read"]) == len(src) - 1
    kept = "".join([*SRC, src[-1]])
    assert found["scripts"]["src"]["Latin"] == sum(c.isascii() and c.isalpha() for c in kept)
    assert found["scripts"]["src"]["Greek"] == 5 and found["scripts"]["src"]["Chinese characters"] == 2
    assert found["scripts"]["src"]["white space"] == kept.count(" ")
    assert found["subwords"]["src"]["words"] == len(" ".join([*SRC, src[-1]]).split())
    use = found["subwords"]["joint"]
    assert use["size"] == 317 and 0 < use["occur"] < 317 and use["most_frequent"][0][1] >= use["most_frequent"][1][1]
    assert sum(found["subwords"][side]["pieces"] for side in ("src", "trg")) >= sum(n for _, n in use["most_frequent"])


def test_dropped_pairs_are_shown_cut_to_a_length(tmp_path):
    found = report_of(tmp_path, [*SRC, "x" * 3000, "OK"], [*TRG, "y", "OK"])
    (long,) = found["examples"]["length ratio"]
    assert long["place"].endswith("t.de:201") and 100 < len(long["src"]) <= 200 and long["trg"] == "y"
    assert found["examples"]["identical sides"] == [{"place": f"{tmp_path / 't.de'}:202", "src": "OK", "trg": "OK"}]


def test_a_shift_is_an_alarm_that_names_file_and_line(tmp_path):
    from tests.data.test_shift import corpus

    src, trg = corpus(600)
    trg.insert(300, trg[5])
    found = report_of(tmp_path, src, trg[:600], max_ratio=50.0)
    assert any("SHIFTED LINES" in text and "t.de:30" in text and "n+1" in text for text in found["alarms"])


def test_a_shift_in_the_second_file_of_a_validation_set_is_found_there(tmp_path):
    from tests.data.test_shift import corpus

    src, trg = corpus(600)
    moved = [*trg[:300], trg[5], *trg[300:599]]
    sides = [[write(tmp_path / f"{n}.{k}", lines) for n in range(2)] for k, lines in enumerate((src, trg))]
    write(Path(sides[1][1]), moved)
    recipe = recipe_in(tmp_path)
    valid = [ValidationSet(src=sides[0], trg=sides[1])]
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"valid": valid})})
    prepare(recipe, tmp_path / "out", talk=lambda line: None)
    (alarm,) = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["alarms"]
    assert re.match(rf"SHIFTED LINES: {re.escape(sides[0][1])}:30\d: from line 30\d to the end, ", alarm)


# -- the page ----------------------------------------------------------------------------------------------------------

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
        if tag not in ("meta", "rect"):
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
        ground = shown.run("return getComputedStyle(document.body).backgroundColor")
        assert max(map(int, re.findall(r"\d+", ground)[:3])) < 60


# -- what is stored, shown ---------------------------------------------------------------------------------------------


def test_shown_pairs_are_the_stored_ones_decoded(tmp_path):
    lines = [line for line in AWKWARD if line.strip() and not line.startswith("\ufeff") and len(line) < 100] * 2
    prepare(recipe_in(tmp_path, lines, lines, **NO_FILTERS), tmp_path / "out")
    shown = list(show_pairs(tmp_path / "out", 1000))
    texts = [line.removeprefix("  src text    ") for line in shown if line.startswith("  src text    ")]
    assert texts == [unicodedata.normalize("NFC", line) for line in lines]
    assert (
        list(show_pairs(tmp_path / "out", 5))
        == list(show_pairs(tmp_path / "out", 5))
        != list(show_pairs(tmp_path / "out", 6))
    )
    assert len(list(show_pairs(tmp_path / "out", 5))) == 5 * 7
