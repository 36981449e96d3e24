"""Lines that ask for something, hard-wrapped lines, and files of phrases."""

import argparse
import json
import os
import random
import re
import threading

import pytest
from made_run import OPTIONS, make_run

import nmt
from nmt.cli.translate_input import read_request, terms_of, unwrapped, windows
from nmt.decoding.phrases import RequiredPhrase
from nmt.decoding.request import Request
from nmt.errors import DataError, NmtError, RecipeError

TAGS = ("<2en>", "<2fr>", "<bt>", "<news>")
MADE_OF = {**OPTIONS, "decode.tags": "[news]"}
JSONL = ("--input-format", "jsonl")


def read(line: str, input_format: str = "text", **files: str) -> Request:
    terms = terms_of(argparse.Namespace(**{"terms": None, "avoid": None, "keep": None, **files}))
    return read_request(line, input_format, terms)[0]


def as_json(*lines):
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "phrases"
        path.write_bytes(text.encode())
        return str(path)

    return write


def test_columns_and_objects_say_all_that_can_be_asked():
    assert read("a b\tThe ", "tsv") == Request("a b", prefix="The ")
    assert read("a b", "tsv") == read("a b\t", "tsv") == Request("a b")
    with pytest.raises(DataError, match="3 columns"):
        read("a\tb\tc", "tsv")
    asked = {"source": "a\nb", "prefix": "T", "required": ["x y"], "avoided": ["z", "é"]}
    assert read(json.dumps(asked), "jsonl") == Request("a\nb", "T", ("x y",), ("z", "é"))
    assert read("  ", "jsonl") == Request("")
    for end, left in (("\n", ""), ("\r\n", ""), ("\n\n", "\n")):
        assert read(json.dumps({"source": f"a{end}"}), "jsonl").source == f"a{left}"
    assert read('{"source": "half \\ud83d"}', "jsonl") == Request("half ?")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("source", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('["source"]', "expected an object"),
        ('{"prefix": "a"}', "expected an object"),
        ('{"source": "a", "source": "b"}', "not JSON (a key occurs twice)"),
        ('{"source": "a", "weight": NaN}', "not JSON (NaN is no finite number)"),
        ('{"source": "a", "weight": [1e999]}', "not JSON (1e999 is no finite number)"),
        ('{"source": 5}', "found {'source': 5}"),
        ('{"source": "a", "prefx": "b"}', "unknown key 'prefx': did you mean prefix?"),
        ('{"source": "a", "required": "b"}', "required: expected a list of texts, found 'b'"),
        ('{"source": "a", "avoided": [""]}', "'' is not a valid phrase"),
        ('{"source": "a", "required": [" b"]}', "or white space around it"),
        ('{"source": "a", "required": ["b\\nc"]}', "without line feed"),
        ('{"source": "a", "prefix": "b\\r"}', "'b\\r' is not a prefix: no translation has a line feed"),
    ],
)
def test_what_is_no_request_is_refused(line, complaint):
    with pytest.raises(DataError, match=re.escape(complaint)):
        read(line, "jsonl")


def test_terms_are_required_where_the_source_has_them_as_words_and_avoided_phrases_may_depend_on_it(written):
    terms = written("York\tYork city\nNew York\tBig Apple\nHund\tdog\nhund\tdoggy\nHund\tdog\n")
    assert read("von New York nach York", terms=terms).required == ("Big Apple", "York city")
    assert read("New York", terms=terms).required == ("Big Apple",)
    assert read("Hunde in Yorkshire", terms=terms).required == ()
    with pytest.raises(DataError, match=r"phrases:3: the term 'Hund' is 'hound' here, and 'dog' in line 1"):
        read("a", terms=written("Hund\tdog\nhund\tdoggy\nHund\thound\n"))
    for text in ("a\n", "a\tb\tc\n", "a\t\n", "\tb\n", "\n"):
        with pytest.raises(DataError, match=r"phrases:2: expected two columns"):
            read("a", terms=written("x\ty\n" + text))
    avoid = written("damn\nBank\tbench\nBank\tbank\n")
    assert read("die Bank", avoid=avoid).avoided == ("damn", "bench", "bank")
    assert read("das Geld", avoid=avoid).avoided == ("damn",)


def test_what_is_kept_is_wanted_as_it_is_and_as_often_as_the_source_has_it():
    room = (True, True)
    assert read("{x} und {y} und {x}", keep=r"\{\w+\}").required_phrases == [
        RequiredPhrase("{x}", 2, room),
        RequiredPhrase("{y}", 1, room),
    ]
    assert read("A1 und A1-B2", keep=r"A1-B2|A1").required_phrases == [
        RequiredPhrase("A1", 2, room),
        RequiredPhrase("A1-B2", 1, room),
    ]
    with pytest.raises(NmtError, match="not a regular expression"):
        read("a", keep="(")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_read_as_a_file(translate, tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")

    def terms(text):
        threading.Thread(target=lambda: pipe.write_text(text), daemon=True).start()
        return "--terms", pipe

    assert "old ship" in translate(*terms("ship\told ship\n"), source=b"the ship\n")[0][0]
    assert f"{pipe}:1: expected two columns" in translate(*terms("ship\n"), source=b"the ship\n", code=2)[1]


def test_what_is_asked_of_a_line_is_in_its_translation_or_said_to_be_missing(translate, tmp_path):
    (tmp_path / "terms").write_bytes(b"ship\told ship\n")
    (tmp_path / "avoid").write_bytes(b"left\nleft\n")
    source = b"the ship\tin M\n\nthe {x} left\n"
    flags = ["--input-format", "tsv", "--terms", tmp_path / "terms", "--avoid", tmp_path / "avoid", "--keep", "{.}"]
    first, blank, last = translate(*flags, "--trg-lang", "en", "--decode.max_len_b", 30, source=source)[0]
    assert first.startswith("in M") and "old ship" in first and not blank
    assert "{x}" in last and "left" not in last
    impossible = as_json({"source": "the ship", "required": ["left"], "avoided": ["left"]}, {"source": "a"})
    lines, err = translate(*JSONL, "--format", "jsonl", source=impossible)
    assert ["unmet" in json.loads(line)["flags"] for line in lines] == [True, False]
    assert json.loads(lines[0])["source"] == "the ship" and "unmet 1" in err


def test_lines_before_a_bad_one_are_answered(translate):
    lines, err = translate(*JSONL, source=b'{"source": "the ship"}\nthe ship\n', code=2)
    assert len(lines) == 1 and "<stdin>:2: not JSON" in err
    required = as_json({"source": "May"}, {"source": "May", "required": ["ship"]})
    _, err = translate(*JSONL, "--decode.samples", 2, source=required, code=2)
    assert "<stdin>:2: required phrases need beam search" in err


def test_lines_of_a_text_are_translated_apart_and_joined_by_its_line_feeds(translate, objects):
    apart = ["the ship", "", "the old ship left", "in May"]
    outputs, _ = translate(source="".join(f"{line}\n" for line in apart).encode())
    whole = as_json({"source": "\n".join(apart)})
    (line,), err = translate(*JSONL, "--format", "jsonl", source=whole)
    told = json.loads(line)
    assert (told["source"], told["output"]) == ("\n".join(apart), "\n".join(outputs))
    assert "in pieces" not in err and len(told["tokens"]) == len(told["token_log_probs"]) == len(told["alignment"])
    for flags in ((), ("--format", "tsv")):
        (line,), _ = translate(*JSONL, *flags, source=whole)
        assert line.split("\t")[-1] == " ".join(outputs)
    (told,) = objects(*JSONL, source=as_json({"source": "a\nship", "required": ["ship"]}))
    assert "unmet" not in told["flags"]  # nobody knows in which line it belongs


def test_keys_that_are_not_ours_go_on_to_the_answer(translate):
    given = as_json({"id": "a7", "source": "the ship", "meta": {"page": 3, "half\ud800": 1}, "score": "mine"})
    (line,), err = translate(*JSONL, "--format", "jsonl", source=given)
    told = json.loads(line)
    assert (told["id"], told["meta"], told["source"]) == ("a7", {"page": 3, "half?": 1}, "the ship")
    assert told["score"] < 0 and "note: unknown keys of <stdin>, copied to the output: id, meta, score" in err
    (line,), _ = translate(*JSONL, "--format", "pairs", source=given)
    assert json.loads(line)["id"] == "a7"
    assert translate(*JSONL, source=given)[0] == [told["output"]]


SHIP = "the old ship"
OWN = [
    {},
    {"trg_lang": "fr"},
    {"tags": ["bt"]},
    {"tags": []},
    {"trg_lang": "fr", "tags": ["news", "bt"], "prefix": "a"},
]
LINES = [{"source": SHIP, **own} for own in OWN]
READ = [["<2en>", "<news>"], ["<2fr>", "<news>"], ["<2en>", "<bt>"], ["<2en>"], ["<2fr>", "<news>", "<bt>"]]


def tags_of(told):
    """The tags that the model read."""
    return [piece for piece in told["source_tokens"] if piece in TAGS]


def test_what_a_line_says_of_itself_comes_before_what_is_said_of_all(objects):
    found = objects(*JSONL, source=as_json(*LINES))
    assert [tags_of(one) for one in found] == READ
    assert [tags_of(one) for one in objects(*JSONL, "--trg-lang", "fr", source=as_json(*LINES[:2]))] == [READ[1]] * 2
    scores = [one["score"] for one in objects(*JSONL, source=as_json(*LINES[:4], *LINES[:4]))]
    assert scores[:4] == scores[4:] and len(set(scores)) == 4
    alone = [objects(*JSONL, source=as_json(line))[0]["score"] for line in LINES[:4]]
    assert scores[:4] == pytest.approx(alone, rel=1e-5)
    long = {"source": "The old ship left. It left in May.", "trg_lang": "fr"}  # of which the pieces have its tags
    (one,) = objects(*JSONL, "--decode.split", "every", source=as_json(long))
    assert tags_of(one) == READ[1] * 2


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"trg_lang": "it"}, "trg_lang: it, but the model translates into en, fr: choose one of those."),
        ({"tags": ["web"]}, "tags: the model was not trained with the tag web (it knows bt, news)."),
        ({"tags": ["2fr"]}, "tags: the model was not trained with the tag 2fr"),
        ({"tags": "bt"}, "tags: expected a list of texts, found 'bt'"),
        ({"tags": ["bt", "bt"]}, "tags: a tag occurs twice, ['bt', 'bt']"),
        ({"trg_lang": ""}, "trg_lang: expected a language code, found ''"),
    ],
)
def test_what_the_model_does_not_know_is_refused_with_its_line(translate, line, complaint):
    _, err = translate(*JSONL, source=as_json({"source": SHIP}, {"source": SHIP, **line}), code=2)
    assert f"<stdin>:2: {complaint}" in err


def test_where_no_language_is_the_usual_one_each_line_has_to_say_it_and_one_language_has_its_name(
    translate, objects, tmp_path
):
    run = str(make_run(tmp_path / "open", {**OPTIONS, "data.trg_lang": "x-none"}, TAGS).folder)
    (one,) = objects(*JSONL, source=as_json(LINES[1]), run=run)
    assert tags_of(one) == ["<2fr>"]
    _, err = translate(*JSONL, source=as_json(LINES[1], LINES[0]), run=run, code=2)
    assert "<stdin>:2: decode.trg_lang: not given, and the model translates into en, fr" in err
    assert "error: decode.trg_lang: not given" in translate(run=run, code=2)[1]
    blank = objects(*JSONL, source=as_json({"source": " ", "trg_lang": "it"}))  # which the model does not see
    assert blank[0]["flags"] == ["blank"]
    run = str(make_run(tmp_path / "plain").folder)
    one, two = objects(*JSONL, source=as_json(LINES[0], {"source": SHIP, "trg_lang": "en", "tags": []}), run=run)
    assert one["score"] == two["score"]
    assert "<stdin>:1: tags: bt is no tag" in translate(*JSONL, source=as_json(LINES[2]), run=run, code=2)[1]


def test_given_translations_are_scored_with_what_their_lines_say_and_so_it_is_in_python(
    translate, objects, folder, tmp_path
):
    (tmp_path / "given").write_text("ship\n" * 5, encoding="utf-8")
    flags = (*JSONL, "--score", tmp_path / "given")
    found = objects(*flags, source=as_json(*LINES[:4], LINES[1]))
    assert [tags_of(one) for one in found] == [*READ[:4], READ[1]]
    scores = [one["log_prob"] for one in found]
    assert scores[1] == scores[4] and len(set(scores)) == 4
    _, err = translate(*flags, source=as_json(*LINES), code=2)
    assert "<stdin>:5: prefix, required and avoided have no effect with --score" in err
    model = nmt.load(folder, device="cpu")
    requests = [SHIP, Request(SHIP, trg_lang="fr"), Request(SHIP, tags=("bt",)), Request(SHIP, tags=())]
    assert [one.log_prob for one in model.score(requests, ["ship"] * 4)] == pytest.approx(scores[:4], abs=1e-5)
    assert model.score([SHIP], ["ship"], trg_lang="fr")[0].log_prob == pytest.approx(scores[1], abs=1e-5)
    pieces = [model.subwords.src.pieces(one.src_ids) for one in model.translate(requests)]
    assert [[piece for piece in its if piece in TAGS] for its in pieces] == READ[:4]
    with pytest.raises(RecipeError, match="trg_lang: it, but the model translates into en, fr"):
        list(model.translate([Request(SHIP, trg_lang="it")]))
    with pytest.raises(RecipeError, match=r"decode\.tags: web is no tag .* knows bt"):
        model.translate([SHIP], tags=["web"])


def joined(text: str) -> list[str]:
    return [line for line, _ in unwrapped((line, {}) for line in text.split("\n"))]


@pytest.mark.parametrize(
    ("wrapped", "lines"),
    [
        ("Tom hat vor\ndrei Jahren begonnen.\nEr spielt.", ["Tom hat vor drei Jahren begonnen.", "Er spielt."]),
        ("A title\n\nWe met Dr.\nSmith at\n  noon. ", ["A title", "", "We met Dr. Smith at noon."]),
        ("今日は\n晴れです。\n行く", ["今日は晴れです。", "行く"]),
        ("\n\na\n", ["", "", "a", ""]),
        ("the inter-\nnational UN-\nCharter of 1939-\n1945", ["the international UN-Charter of 1939-1945"]),
        ("Vor-\nund Nachteile - \nso\u00ad\nmit", ["Vor- und Nachteile - somit"]),
        ("We need:\n- eggs\n  and milk\n* salt\n• oil", ["We need:", "- eggs and milk", "* salt", "• oil"]),
        ("Do this:\n1. read\nit\n2) go", ["Do this:", "1. read it", "2) go"]),
        ("Wir kamen am\n3. Mai an", ["Wir kamen am 3. Mai an"]),
        ("am\n1. Mai an", ["am 1. Mai an"]),
        ("", [""]),
    ],
)
def test_lines_are_joined_up_to_the_end_of_a_sentence_or_a_blank_line(wrapped, lines):
    assert joined(wrapped) == lines


def test_no_character_is_lost_and_what_is_odd_about_a_line_is_odd_about_the_whole():
    draw = random.Random(3)
    for _ in range(300):
        text = "".join(draw.choices("ab. \n\n日。", k=draw.randint(0, 60)))
        assert "".join("".join(joined(text)).split()) == "".join(text.split())
    assert list(unwrapped([("a", {}), ("was.", {"cut": "x"}), ("c", {})])) == [("a was.", {"cut": "x"}), ("c", {})]


def test_what_has_arrived_is_handed_over_when_the_input_pauses():
    go_on = threading.Event()

    def typed():
        yield from "ab"
        assert go_on.wait(20)
        yield "c"

    found = windows(typed(), 1000, patience=0.3)
    assert next(found) == ["a", "b"]
    go_on.set()
    assert list(found) == [["c"]]
    assert list(windows(range(10), 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]  # a fast input comes in full windows
