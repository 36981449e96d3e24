"""Lines of the input and files of phrases, read as requests."""

import argparse
import json

import pytest

from nmt.cli.translating.requests import request_reader
from nmt.decoding.constraints.phrases import Wanted
from nmt.decoding.constraints.request import Kept, Request
from nmt.errors import DataError, NmtError


def read(line: str, input_format: str = "text", **files: str) -> Request:
    args = argparse.Namespace(**{"input_format": input_format, "terms": None, "avoid": None, "keep": None, **files})
    return request_reader(args)(line, "in:7")


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "phrases"
        path.write_bytes(text.encode())
        return str(path)

    return write


def test_a_line_of_text_is_only_text():
    assert read('{"source": "a"}\tb') == Request('{"source": "a"}\tb')


def test_columns_are_the_source_and_how_its_translation_begins():
    assert read("a b\tThe ", "tsv") == Request("a b", prefix="The ")
    assert read("a b", "tsv") == read("a b\t", "tsv") == Request("a b")
    with pytest.raises(DataError, match="in:7: 3 columns"):
        read("a\tb\tc", "tsv")
    with pytest.raises(DataError, match=r"in:7: 'b.rc' is no prefix"):
        read("a\tb\rc", "tsv")


def test_an_object_says_all_that_can_be_asked():
    asked = {"source": "a\nb", "prefix": "T", "required": ["x y"], "avoided": ["z", "é"]}
    assert read(json.dumps(asked), "jsonl") == Request("a b", "T", ("x y",), ("z", "é"))
    assert read("  ", "jsonl") == Request("")
    assert [read(json.dumps({"source": f"a{end}"}), "jsonl").source for end in ("\n", "\r\n", "\n\n")] == [
        "a",
        "a",
        "a ",
    ]
    assert read('{"source": "half \\ud83d"}', "jsonl") == Request("half ?")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("source", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('["source"]', "expected an object"),
        ('{"prefix": "a"}', "expected an object"),
        ('{"source": "a", "source": "b"}', "the key 'source' twice"),
        ('{"source": 5}', "found {'source': 5}"),
        ('{"source": "a", "prefx": "b"}', "unknown key 'prefx'"),
        ('{"source": "a", "prefix": null}', "prefix: expected a text, found None"),
        ('{"source": "a", "required": "b"}', "required: expected a list of texts, found 'b'"),
        ('{"source": "a", "avoided": [1]}', "avoided: expected a list of texts"),
        ('{"source": "a", "avoided": [""]}', "'' is no phrase"),
        ('{"source": "a", "required": [" b"]}', "no white space around it"),
        ('{"source": "a", "required": ["b\\nc"]}', "no line feed"),
        ('{"source": "a", "avoided": ["b\\rc"]}', "or carriage return"),
        ('{"source": "a", "prefix": "b\\n"}', "'b\\n' is no prefix: no translation has a line feed"),
        ('{"source": "a", "prefix": "b\\rc"}', "is no prefix"),
    ],
)
def test_what_is_no_request_is_refused_with_its_place(line, complaint):
    with pytest.raises(DataError, match=r"^in:7: ") as error:
        read(line, "jsonl")
    assert complaint in str(error.value)


def test_terms_are_required_where_the_source_has_them_as_words_and_longer_ones_come_first(written):
    terms = written("York\tYork city\nNew York\tBig Apple\nHund\tdog\n")
    assert read("von New York nach York", terms=terms).required == ("Big Apple", "York city")
    assert read("New York", terms=terms).required == ("Big Apple",)
    assert read("Hunde in Yorkshire", terms=terms).required == ()


def test_avoided_phrases_may_depend_on_the_source(written):
    avoid = written("damn\nBank\tbench\n")
    assert read("die Bank", avoid=avoid).avoided == ("damn", "bench")
    assert read("das Geld", avoid=avoid).avoided == ("damn",)


def test_what_is_kept_is_wanted_as_it_is_and_as_often_as_the_source_has_it():
    assert read("{x} und {y} und {x}", keep=r"\{\w+\}").wanted == [
        Wanted("{x}", 2, (True, True)),
        Wanted("{y}", 1, (True, True)),
    ]
    assert read("A1 und A1-B2", keep=r"A1-B2|A1").wanted == [
        Wanted("A1", 2, (True, True)),
        Wanted("A1-B2", 1, (True, True)),
    ]
    with pytest.raises(NmtError, match="no regular expression"):
        read("a", keep="(")


def test_what_is_kept_has_what_stands_before_it_in_its_word_and_may_have_another_ending():
    assert read("der A380 ", keep=r"\d+\s").kept == (Kept("A380", 4, 8),)
    assert read("1990er, {x}s", keep=r"\d+|\{x\}").kept == (
        Kept("1990", 0, 4, (False, True)),
        Kept("{x}", 8, 11, (False, True)),
    )
    assert read("Ту154", keep=r"\d+").kept == (Kept("154", 2, 5, (True, False)),)
    assert [one.text for one in read("AB12", keep=r"\d").kept] == ["AB1", "2"]
    kept = read("A380 und 1990er", keep=r"\d+")
    assert kept.unmet("A380 and 1990s") == [] and kept.unmet("380 and 1990") == ["A380"]


def test_what_is_kept_is_not_glued_to_a_word_that_it_stands_apart_from_in_the_source():
    kept = read("Ein {name} läuft.", keep=r"\{\w+\}")
    for text in ("A{name} runs.", "A {name}runs.", "A {name}2.", "Á{name}"):
        assert kept.unmet(text) == ["{name}"]
    for text in ("A {name} runs.", "{name}", "({name}), yes", "“{name}”"):
        assert kept.unmet(text) == []
    within = read("Das{name}-Rad", keep=r"\{\w+\}")
    assert within.unmet("The{name}") == [] and within.unmet("{name}bike") == ["{name}"]


@pytest.mark.parametrize("text", ["a\n", "a\tb\tc\n", "a\t\n", "\tb\n", "\n"])
def test_a_line_that_is_no_pair_of_terms_is_named(written, text):
    with pytest.raises(DataError, match=r"phrases:2: expected two columns"):
        read("a", terms=written("x\ty\n" + text))


def test_two_translations_of_one_term_are_refused_with_their_lines(written):
    with pytest.raises(DataError, match=r"phrases:4: the term 'Hund' is 'hound' here, and 'dog' in line 1"):
        read("a", terms=written("Hund\tdog\nhund\tdoggy\nHund\tdog\nHund\thound\n"))
    assert read("Hund", terms=written("Hund\tdog\nhund\tdoggy\nHund\tdog\n")).required == ("dog",)
    assert read("Hund", avoid=written("Hund\tdog\nHund\thound\n")).avoided == ("dog", "hound")


def test_a_phrase_that_no_line_can_have_is_refused_with_its_place(written):
    with pytest.raises(DataError, match=r"phrases:1: 'a.rb' is no phrase"):
        read("a", avoid=written("a\rb\n"))


def test_an_empty_file_of_phrases_is_refused(written):
    with pytest.raises(DataError, match="no phrases"):
        read("a", avoid=written(""))
