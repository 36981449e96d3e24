"""Lines of the input and files of phrases, read as requests."""

import argparse
import json
import re

import pytest

from nmt.cli.translate_input import reader_of, terms_of
from nmt.decoding.phrases import Wanted
from nmt.decoding.request import Request
from nmt.errors import DataError, NmtError


def read(line: str, input_format: str = "text", **files: str) -> Request:
    terms = terms_of(argparse.Namespace(**{"terms": None, "avoid": None, "keep": None, **files}))
    request, _ = reader_of(input_format)(line)
    return terms(request) if terms else request


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "phrases"
        path.write_bytes(text.encode())
        return str(path)

    return write


def test_columns_are_the_source_and_how_its_translation_begins():
    assert read("a b\tThe ", "tsv") == Request("a b", prefix="The ")
    assert read("a b", "tsv") == read("a b\t", "tsv") == Request("a b")
    with pytest.raises(DataError, match="3 columns"):
        read("a\tb\tc", "tsv")
    with pytest.raises(DataError, match=r"'b.rc' is no prefix"):
        read("a\tb\rc", "tsv")


def test_an_object_says_all_that_can_be_asked():
    asked = {"source": "a\nb", "prefix": "T", "required": ["x y"], "avoided": ["z", "é"]}
    assert read(json.dumps(asked), "jsonl") == Request("a\nb", "T", ("x y",), ("z", "é"))
    assert read("  ", "jsonl") == Request("")
    assert [read(json.dumps({"source": f"a{end}"}), "jsonl").source for end in ("\n", "\r\n", "\n\n")] == [
        "a",
        "a",
        "a\n",
    ]
    assert read('{"source": "half \\ud83d"}', "jsonl") == Request("half ?")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("source", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('["source"]', "expected an object"),
        ('{"prefix": "a"}', "expected an object"),
        ('{"source": "a", "source": "b"}', "a key occurs twice in ['source', 'source']"),
        ('{"source": 5}', "found {'source': 5}"),
        ('{"source": "a", "prefx": "b"}', "unknown key 'prefx'"),
        ('{"source": "a", "prefix": null}', "prefix: expected a text, found None"),
        ('{"source": "a", "required": "b"}', "required: expected a list of texts, found one, 'b'"),
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
    with pytest.raises(DataError, match=re.escape(complaint)):
        read(line, "jsonl")


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


@pytest.mark.parametrize("text", ["a\n", "a\tb\tc\n", "a\t\n", "\tb\n", "\n"])
def test_a_line_that_is_no_pair_of_terms_is_named(written, text):
    with pytest.raises(DataError, match=r"phrases:2: expected two columns"):
        read("a", terms=written("x\ty\n" + text))


def test_two_translations_of_one_term_are_refused_with_their_lines(written):
    with pytest.raises(DataError, match=r"phrases:4: the term 'Hund' is 'hound' here, and 'dog' in line 1"):
        read("a", terms=written("Hund\tdog\nhund\tdoggy\nHund\tdog\nHund\thound\n"))
    assert read("Hund", terms=written("Hund\tdog\nhund\tdoggy\nHund\tdog\n")).required == ("dog",)
    assert read("Hund", avoid=written("Hund\tdog\nHund\thound\n")).avoided == ("dog", "hound")


def objects(*found):
    return "".join(json.dumps(one) + "\n" for one in found).encode()


def test_lines_of_a_text_are_translated_apart_and_joined_by_its_line_feeds(translate):
    apart = ["the ship", "", "the old ship left", "in May"]
    outputs, _ = translate(source="".join(f"{line}\n" for line in apart).encode())
    given = ("--input-format", "jsonl", "--format", "jsonl")
    (line,), err = translate(*given, source=objects({"source": "\n".join(apart)}))
    told = json.loads(line)
    assert (told["source"], told["output"]) == ("\n".join(apart), "\n".join(outputs))
    assert "in pieces" not in err and len(told["tokens"]) == len(told["token_log_probs"]) == len(told["alignment"])
    for flags in ((), ("--format", "tsv")):
        (line,), _ = translate("--input-format", "jsonl", *flags, source=objects({"source": "\n".join(apart)}))
        assert line.split("\t")[-1] == " ".join(outputs)
    short = ("--decode.max_src_len", 16)
    (line,), _ = translate(*given, *short, source=objects({"source": "The old ship left. In May.\nA ship."}))
    wanted, _ = translate(*short, source=b"The old ship left. In May.\nA ship.")
    assert json.loads(line)["output"] == "\n".join(wanted)
    (line,), _ = translate(*given, source=objects({"source": "a\nship", "required": ["ship"]}))
    assert "unmet" not in json.loads(line)["flags"]  # nobody knows in which line it belongs


def test_keys_that_are_not_ours_go_on_to_the_answer(translate):
    given = objects({"id": "a7", "source": "the ship", "meta": {"page": 3, "half\ud800": 1}, "score": "mine"})
    (line,), err = translate("--input-format", "jsonl", "--format", "jsonl", source=given)
    told = json.loads(line)
    assert (told["id"], told["meta"], told["source"]) == ("a7", {"page": 3, "half?": 1}, "the ship") and told[
        "score"
    ] < 0
    assert "note: keys of <stdin> that only the answers get: id, meta, score" in err
    (line,), _ = translate("--input-format", "jsonl", "--format", "pairs", source=given)
    assert json.loads(line)["id"] == "a7"
    (line,), _ = translate("--input-format", "jsonl", source=given)
    assert line == told["output"]


def test_n_best_lists_as_moses_has_them_count_from_0_and_have_four_fields(translate):
    ours, _ = translate("--decode.n_best", 2)
    lines, _ = translate("--decode.n_best", 2, "--format", "moses")
    for line, other in zip(lines, ours, strict=True):
        number, text, feature, score = line.split(" ||| ")
        wanted = other.split(" ||| ")
        assert [str(int(number) + 1), text, score] == wanted
        assert feature.startswith("F0= ") and float(feature[4:]) <= 0
