"""Placeholders: items are found, replaced and restored, and no text changes by it."""

import json
import time
import unicodedata
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nmt.data.corpus import Prepared, show_pairs
from nmt.data.placeholders import (
    CHARACTERS,
    came_back,
    in_names,
    items_in,
    names_of,
    protected,
    protected_like,
    protected_pair,
    renumbered,
    restored,
)
from nmt.data.prepare import prepare
from nmt.data.subwords import Subwords
from nmt.errors import DataError, RecipeError
from nmt.recipe.data_options import KINDS, PER_KIND, SubwordsConfig
from nmt.recipe.reader import read_recipe
from tests.data.awkward import AWKWARD
from tests.data.test_prepare import NO_FILTERS, recipe_in
from tests.learnt import learnt_subwords

LOOKALIKES = ["⟨url1⟩ ⟨tag2⟩", "<url1>5</url1>", "url1 http://⟨url1⟩.org", "\ue000\ufdd0\uffff\U0010fffe", "5 km²5"]
PARTS = st.sampled_from(
    ["http://a.org/b?c=1", "me@a-b.org", "<b>", "</b>", "5", "12 km", "⟨url1⟩", " ", ".", "a", "ü", "AB-1234", "<<a>>"]
)
OWN_PATTERNS = (r"/[A-Z]{2}-\d{4,6}\b/", r"/(?i:c|d)\w{0,3}:\d/", "/<<.{1,40}?>>/")
PROTECT = (*KINDS, *OWN_PATTERNS)
TEXT = st.one_of(st.text(max_size=40), st.lists(PARTS, max_size=12).map("".join))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Siehe http://a.org/b?c=(1), dort.", [("url", "http://a.org/b?c=(1")]),
        ("見るhttps://a.org/x。次", [("url", "https://a.org/x")]),
        ("an me@a-b.org, oder <me@b.co.uk>", [("email", "me@a-b.org"), ("email", "me@b.co.uk")]),
        ('<a href="http://x.y/5">5</a>', [("tag", '<a href="http://x.y/5">'), ("number", "5"), ("tag", "</a>")]),
        ("a < b und b > c, 1<2", [("number", "1"), ("number", "2")]),
        ("<br/>Hallo<br />", [("tag", "<br/>"), ("tag", "<br />")]),
        ("5 km in 2 h, 30km/h", [("number", "5 km"), ("number", "2 h"), ("number", "30km/h")]),
        ("Am 5. Mai 2014", [("number", "5"), ("number", "2014")]),
        # Formats that differ between languages are left to the model.
        ("1.250 Euro, 3,5 kg, 12 500 Leute, 17:30 Uhr, 24.12.2020", []),
        ("A380, 5th, x5, 5x, 10m2", []),
        ("5 Meter, 3 tage", [("number", "5"), ("number", "3")]),
        ("see www.example.com, or a-b.co.uk/x?y=1.", [("host", "www.example.com"), ("host", "a-b.co.uk/x?y=1")]),
        ("Das Ende.Der Anfang, z.B. d.h. e.g. me@a.com", [("email", "me@a.com")]),
        ("@max_1, #Tag2024! not C#, &#x;", [("mention", "@max_1"), ("mention", "#Tag2024")]),
        (
            "/usr/bin/env, ~/a/b.txt and C:\\a\\b.exe, and/or km/h",
            [("path", "/usr/bin/env"), ("path", "~/a/b.txt"), ("path", "C:\\a\\b.exe")],
        ),
        ("👍🏽 👨‍👩‍👧 🇩🇪 ❤️", [("emoji", "👍🏽"), ("emoji", "👨‍👩‍👧"), ("emoji", "🇩🇪"), ("emoji", "❤️")]),
        ("在2024年有5人", [("number", "2024"), ("number", "5")]),
    ],
)
def test_items_are_found(text, expected):
    assert list(items_in(text, KINDS)) == expected
    assert list(items_in(text, ())) == []


# Beginnings of items that never end, to be repeated: the worst case for backtracking.
UNFINISHED = {
    "tag": "<|<a|<a |<a:|</a /|<a>",
    "url": "http://|http://.|ftp://a|ftp://a.)",
    "email": "ä|_|é.|a|1|a.|a-|a@|a@a.|a@a-|ä@a|a@b.c.|@",
    "host": "www.|a.|aa.|aa.com/|www.a/|-|a-.com.",
    "mention": "@|#|@a|#a|&#|@ä",
    "path": "/|/a|~/|./|../|C:\\|a/|.|/a/.|C:\\a\\",
    "emoji": "😀|\u200d|😀\u200d|🏽|🇩|❤\ufe0f",
    "number": "1|1 |1.|9,9|5 k|1km/|\u00a01",
    # At the limit of backtracking for own patterns.
    r"/(?:a|aa|aaa){7}b/": "a",
    r"/\w{1,49}\w{1,99}?@/": "a|a.",
}


def seconds_to_find(text, kinds):
    """CPU time of this thread, the best of three."""
    times = []
    for _ in range(3):
        start = time.thread_time()
        for _ in items_in(text, kinds):
            pass
        times.append(time.thread_time() - start)
    return min(times)


@pytest.mark.parametrize("kind", UNFINISHED)
def test_items_are_found_in_linear_time(kind):
    for part in UNFINISHED[kind].split("|"):
        for kinds in ((kind,), KINDS):
            short, long = (seconds_to_find((part * n)[:n], kinds) for n in (4_000, 16_000))
            assert long < 8 * short + 0.05, f"{part}: four times the text takes four times as long, and never sixteen"


@settings(max_examples=150, deadline=None)
@given(TEXT)
@example("<b>" * 30 + "5")
def test_restoring_protected_text_gives_the_original(text):
    with_placeholders, items = protected(text, PROTECT)
    assert restored(with_placeholders, items) == text
    assert (with_placeholders == text) == (not items)
    surrogates = {letter for letter in with_placeholders if unicodedata.category(letter) == "Cs"}
    assert surrogates <= {CHARACTERS[name] for name in items}
    part, part_items = renumbered(with_placeholders[1:], items)
    assert restored(part, part_items) == restored(with_placeholders[1:], items)
    assert set(part_items) == {name for name in names_of(PROTECT) if CHARACTERS[name] in part}


def test_own_patterns_take_precedence_over_kinds():
    found = list(items_in("<<b>> AB-1234, AB-1234x, Cat:5, 7 <b>", PROTECT))
    by_pattern = [("pattern", "<<b>>"), ("pattern", "AB-1234"), ("pattern", "Cat:5")]
    assert found == [*by_pattern, ("number", "7"), ("tag", "<b>")]
    assert in_names(protected("AB-1234 <b> AB-12345", PROTECT)[0]) == "⟨pattern1⟩ ⟨tag1⟩ ⟨pattern2⟩"
    assert protected_pair("Teil AB-1234", "part AB-1235", OWN_PATTERNS)[2] is False


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        *((pattern, "also matches the empty text") for pattern in ("a?", "a|")),
        *((pattern, "is not a usable regular expression") for pattern in ("[a", "a)(b", "(?i)a", "[[a]", "(a)\\1")),
        *((pattern, "names a group or refers") for pattern in ("([A-Z])(a)\\2", "(a)?(?(1)b|c)", "(?P<url>a)")),
        ("a" * 201, "at most 200 characters"),
    ],
)
def test_unsafe_patterns_are_refused_with_their_line(tmp_path, pattern, complaint):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"name: x\ndata:\n  protect: [url, '/{pattern}/']\n", encoding="utf-8")
    with pytest.raises(RecipeError, match=rf"r\.yaml:3: data\.protect: .*{complaint}"):
        read_recipe(recipe, [])


def test_items_beyond_the_limit_of_a_kind_stay_text():
    text, items = protected("7 " * 3 + "<b>" * (PER_KIND + 2), KINDS)
    assert list(items)[-1] == f"tag{PER_KIND}" and text.endswith("<b><b>")


@pytest.fixture(scope="module")
def subwords():
    lines = ["the cat sat on the mat", "die Katze saß"] * 9
    config = SubwordsConfig(vocab_size=400, normalize="none", whitespace="kept", symbols=("<name>",))
    return learnt_subwords(lines, lines, config, protect=PROTECT)


@settings(max_examples=150, deadline=None)
@given(TEXT)
def test_protected_text_survives_encoding_and_decoding(subwords, text):
    codec = subwords.src
    (plain,) = codec.encode([text])
    assert not any(map(codec.placeholder_of.get, plain)) and codec.decode(plain) == codec.decode(plain, {}) == text
    with_placeholders, items = protected(text, PROTECT)
    (ids,) = codec.encode([with_placeholders])
    assert [name for i in ids if (name := codec.placeholder_of.get(i))] == [
        name for letter in with_placeholders for name in items if letter == CHARACTERS[name]
    ]
    assert codec.decode(ids, items) == text and codec.decode(ids) == in_names(with_placeholders)
    assert max(ids) < codec.n_text


def test_a_vocabulary_with_placeholders_saves_and_loads(subwords, tmp_path):
    subwords.save(tmp_path / "subwords.json")
    loaded = Subwords.load(tmp_path / "subwords.json")
    assert loaded.sha256 == subwords.sha256 and loaded.src.protects == PROTECT
    lines = [*AWKWARD, *(protected(line, KINDS)[0] for line in LOOKALIKES)]
    assert loaded.src.encode(lines) == subwords.src.encode(lines)
    assert loaded.src.pieces(loaded.src.encode([CHARACTERS["url1"]])[0]) == ["▁", "⟨url1⟩"]
    text = (tmp_path / "subwords.json").read_text("utf-8")
    for old, new, complaint in (
        ('"url1"', '"url999"', "no name of a placeholder"),
        ('"/<<.{1,40}?>>/"', '["/a/"]', r"patterns\.\d .*valid string"),
        ('"/<<.{1,40}?>>/"', '"url"', "at most 200 characters between slashes"),
        ('"pattern1"', '"emoji11"', "patterns without placeholders"),
    ):
        assert text.count(old) == 1
        (tmp_path / "other.json").write_text(text.replace(old, new), "utf-8")
        with pytest.raises(DataError, match=complaint):
            Subwords.load(tmp_path / "other.json")


def test_a_pair_gets_placeholders_only_if_both_sides_have_the_same_items():
    src, trg, alike = protected_pair("um 5 bei http://a.b, um 7", "at 7 see http://a.b, at 5", KINDS)
    assert alike and in_names(src) == "um ⟨number1⟩ bei ⟨url1⟩, um ⟨number2⟩"
    assert in_names(trg) == "at ⟨number2⟩ see ⟨url1⟩, at ⟨number1⟩"
    assert protected_pair("<b> <b>", "<b>", KINDS) == ("<b> <b>", "<b>", False)
    assert protected_pair("5 Hunde", "five dogs", KINDS) == ("5 Hunde", "five dogs", False)
    assert protected_pair("5 Hunde", "five dogs", ["url"]) == ("5 Hunde", "five dogs", True)
    src, trg, alike = protected_pair("7 " * 3 + "</b>" * 2, "</b>" * 2 + "7 " * 3, ["tag"])
    assert in_names(trg) == "⟨tag1⟩⟨tag2⟩7 7 7 "
    _, items = protected("um 5 oder 5 bei <b>", KINDS)
    target = protected_like("<b> 5, 5, 5 and 8", items, KINDS)
    assert in_names(target) == "⟨tag1⟩ ⟨number1⟩, ⟨number2⟩, 5 and 8"


@pytest.mark.parametrize(
    ("source", "written", "text", "missing", "doubled"),
    [
        ("5 <b>", ["tag1", "number1"], "", [], []),
        ("5 <b>", ["tag1"], "five", ["5"], []),
        ("5 <b>", ["tag1"], "the 5", [], []),  # written as text
        ("5 <b>", ["tag1", "number1", "number1"], "", [], ["5"]),
        ("5 <b>", ["tag1", "number1"], "5", [], ["5"]),
        ("5 <b>", ["tag1", "number1", "number2"], "9", [], ["⟨number2⟩"]),
        ("<b> <b>", ["tag2", "tag2"], "", [], []),  # equal items are interchangeable
    ],
)
def test_missing_and_repeated_items_are_reported(source, written, text, missing, doubled):
    assert came_back(source, written, text, protected(source, KINDS)[1], KINDS) == (missing, doubled)


SRC = [f"Hund {'aus' if n % 2 else 'in'} Stadt {'abc'[n % 3]}" for n in range(60)]
TRG = [f"dog {'from' if n % 2 else 'in'} town {'abc'[n % 3]}" for n in range(60)]
ITEMS = ["<b>Hund</b>0", "Hund am 1", "http://a.org/2 hier", "Hund 3", *LOOKALIKES]
OTHERS = ["0<b>dog</b>", "on the 1 dog", "here http://a.org/2", "a dog", *LOOKALIKES]


def prepared(folder, src=SRC, trg=TRG, vocab_size=300, **options):
    """Prepare these pairs as both training and validation data."""
    folder.mkdir()
    recipe = recipe_in(folder, src, trg, (src, trg), vocab_size, out=str(folder / "out"), **NO_FILTERS, **options)
    prepare(recipe, folder / "out", talk=lambda _: None)
    return Prepared.open(folder / "out")


def rows(corpus, numbers):
    return [[row.tolist() for row in side] for side in corpus.pairs(numbers)]


def test_pairs_without_items_are_prepared_as_without_data_protect(tmp_path):
    """The vocabulary of text and the ids are the same, even beside pairs with items."""
    plain, protect = prepared(tmp_path / "a"), ("url", "number", "tag")
    mixed = prepared(tmp_path / "b", [*ITEMS, *SRC], [*OTHERS, *TRG], vocab_from=str(plain.folder), protect=protect)
    assert mixed.subwords.src.table.vocab == plain.subwords.src.table.vocab
    assert rows(mixed.train, range(len(ITEMS), len(ITEMS + SRC))) == rows(plain.train, range(len(SRC)))
    assert mixed.settings["data"]["protect"] == ["tag", "url", "number"]


def test_references_stay_unchanged_and_the_report_counts_items(tmp_path):
    data = prepared(tmp_path / "b", ITEMS, OTHERS, vocab_size=380, protect=KINDS)
    assert data.valid.texts() == (ITEMS, OTHERS)
    shown = "\n".join(show_pairs(data.folder, len(ITEMS)))
    assert "src text    ⟨tag1⟩Hund⟨tag2⟩⟨number1⟩" in shown and "trg text    ⟨number1⟩⟨tag1⟩dog⟨tag2⟩" in shown
    facts = json.loads((data.folder / "report.json").read_text("utf-8"))
    (unlike,) = [n for n, pair in enumerate(zip(ITEMS, OTHERS, strict=True)) if not protected_pair(*pair, KINDS)[2]]
    assert facts["notes"]["unlike_items"] == 1
    assert facts["noted"]["unlike_items"] == [f"{tmp_path / 'b' / 't.de'}:{unlike + 1}"]
    n_with = sum(any(items_in(line, KINDS)) for n, line in enumerate(ITEMS) if n != unlike)
    assert facts["notes"]["protected"] == n_with
    lines = range(len(ITEMS))
    assert rows(data.train, lines) == rows(data.valid, lines), "a validation pair has the ids of the same training pair"


OPTIONS = [("name", "x"), ("subwords.vocab_size", "400")]


@pytest.mark.parametrize(
    ("written", "expected"), [("[number, url]", ("url", "number")), ("[/b/, url, /a/]", ("url", "/b/", "/a/"))]
)
def test_protect_is_sorted_by_kind_with_own_patterns_last(written, expected):
    assert read_recipe(None, [*OPTIONS, ("data.protect", written)]).data.protect == expected


@pytest.mark.parametrize(
    ("protect", "options", "complaint"),
    [
        ("[urls]", [], r"data\.protect"),
        ("[{a: b}]", [], r"data\.protect"),
        ("[url, url]", [], r"data\.protect: url occurs twice"),
        ("[url]", [("subwords.symbols", '["⟨url1⟩"]')], r"⟨url1⟩ is reserved for placeholders of data\.protect"),
        ("[url, tag]", [("subwords.vocab_size", "283")], "make it 284 or more"),
    ],
)
def test_invalid_protect_options_are_refused(protect, options, complaint):
    with pytest.raises(RecipeError, match=complaint):
        read_recipe(None, [*OPTIONS, ("data.protect", protect), *options])


def test_reused_subwords_must_have_all_their_placeholders_requested(tmp_path):
    url = prepared(tmp_path / "a", protect=("url",))
    old = url.subwords.src
    new = prepared(tmp_path / "b", vocab_from=str(url.folder), protect=("tag", "url")).subwords.src
    assert new.placeholders == (*old.placeholders, *names_of(["tag"]))
    assert Counter(new.vocab) - Counter(old.vocab) == Counter(new.vocab[-PER_KIND:])
    with pytest.raises(DataError, match=r"data\.protect: url is missing"):
        prepared(tmp_path / "c", vocab_from=str(url.folder))
    own = prepared(tmp_path / "d", vocab_from=str(url.folder), protect=("url", "/a-b/"))
    both = prepared(tmp_path / "e", vocab_from=str(own.folder), protect=("url", "/x-y/", "/a-b/"))
    assert own.subwords.src.vocab == both.subwords.src.vocab
    assert both.subwords.src.protects == ("url", "/x-y/", "/a-b/")
    with pytest.raises(DataError, match=r"data\.protect: /x-y/ is missing"):
        prepared(tmp_path / "f", vocab_from=str(both.folder), protect=("url", "/a-b/"))
