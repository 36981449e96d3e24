"""Requests for single lines, hard-wrapped lines, and files of phrases."""

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
from nmt.recipe.decode_options import DecodeConfig

TAGS = ("<2en>", "<2fr>", "<bt>", "<news>")
MADE_OF = {**OPTIONS, "decode.tags": "[news]"}
JSONL = ("--input-format", "jsonl")


def read(line: str, input_format: str = "text", **files: str) -> Request:
    terms = terms_of(argparse.Namespace(**{"terms": None, "avoid": None, "keep": None, **files}))
    args = argparse.Namespace(input_format=input_format, score=None)
    return read_request(line, args, terms, DecodeConfig(), check_tags=lambda _: None)[0]


def as_json(*lines):
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@pytest.fixture
def phrase_file(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "phrases"
        path.write_bytes(text.encode())
        return str(path)

    return write


def test_tsv_and_jsonl_input_express_every_field_of_a_request():
    assert read("a b\tThe ", "tsv") == Request("a b", prefix="The ")
    assert read("a b", "tsv") == read("a b\t", "tsv") == Request("a b")
    with pytest.raises(DataError, match="3 columns"):
        read("a\tb\tc", "tsv")
    fields = {"source": "a\nb", "prefix": "T", "required": ["x y"], "avoided": ["z", "é"]}
    assert read(json.dumps(fields), "jsonl") == Request("a\nb", "T", ("x y",), ("z", "é"))
    assert read("  ", "jsonl") == Request("")
    for line_end, kept in (("\n", ""), ("\r\n", ""), ("\n\n", "\n")):
        assert read(json.dumps({"source": f"a{line_end}"}), "jsonl").source == f"a{kept}"
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
        ('{"source": "a", "required": "b"}', "required: expected a list of texts, found 'b'"),
        ('{"source": "a", "avoided": [""]}', "'' is not a valid phrase"),
        ('{"source": "a", "required": ["\\u200b"]}', "'\\u200b' is not a valid phrase"),  # no model writes it
        ('{"source": "a", "required": [" b"]}', "or white space around it"),
        ('{"source": "a", "required": ["b\\nc"]}', "without line feed"),
        ('{"source": "a", "prefix": "b\\r"}', "'b\\r' is not a prefix: no translation has a line feed"),
    ],
)
def test_invalid_request_is_refused(line, complaint):
    with pytest.raises(DataError, match=re.escape(complaint)):
        read(line, "jsonl")


def test_terms_and_avoided_phrases_depend_on_words_of_the_source(phrase_file):
    terms = phrase_file("York\tYork city\nNew York\tBig Apple\nHund\tdog\nhund\tdoggy\nHund\tdog\n")
    assert read("von New York nach York", terms=terms).required == ("Big Apple", "York city")
    assert read("New York", terms=terms).required == ("Big Apple",)
    assert read("Hunde in Yorkshire", terms=terms).required == ()
    with pytest.raises(
        DataError, match=r"phrases:3: the term 'Hund' has the translation 'hound' here, but 'dog' in an earlier"
    ):
        read("a", terms=phrase_file("Hund\tdog\nhund\tdoggy\nHund\thound\n"))
    for text in ("a\n", "a\tb\tc\n", "a\t\n", "\tb\n", "\n"):
        with pytest.raises(DataError, match=r"phrases:2: expected two columns"):
            read("a", terms=phrase_file("x\ty\n" + text))
    avoid = phrase_file("damn\nBank\tbench\nBank\tbank\n")
    assert read("die Bank", avoid=avoid).avoided == ("damn", "bench", "bank")
    assert read("das Geld", avoid=avoid).avoided == ("damn",)


def test_kept_phrases_are_required_as_often_as_the_source_has_them():
    boundaries = (True, True)
    assert read("{x} und {y} und {x}", keep=r"\{\w+\}").required_phrases == [
        RequiredPhrase("{x}", 2, boundaries),
        RequiredPhrase("{y}", 1, boundaries),
    ]
    assert read("A1 und A1-B2", keep=r"A1-B2|A1").required_phrases == [
        RequiredPhrase("A1", 2, boundaries),
        RequiredPhrase("A1-B2", 1, boundaries),
    ]
    with pytest.raises(NmtError, match="not a regular expression"):
        read("a", keep="(")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipe_is_read_like_a_file(translate, tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")

    def terms_flags(text):
        threading.Thread(target=lambda: pipe.write_text(text), daemon=True).start()
        return "--terms", pipe

    assert "old ship" in translate(*terms_flags("ship\told ship\n"), source=b"the ship\n")[0][0]
    assert f"{pipe}:1: expected two columns" in translate(*terms_flags("ship\n"), source=b"the ship\n", code=2)[1]


def test_translation_meets_its_request_or_is_flagged_unmet(translate, tmp_path):
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


def test_lines_before_an_invalid_one_are_translated(translate):
    lines, err = translate(*JSONL, source=b'{"source": "the ship"}\nthe ship\n', code=2)
    assert len(lines) == 1 and "<stdin>:2: not JSON" in err
    required = as_json({"source": "May"}, {"source": "May", "required": ["ship"]})
    _, err = translate(*JSONL, "--decode.samples", 2, source=required, code=2)
    assert "<stdin>:2: required phrases need beam search" in err


def test_lines_within_a_source_are_translated_separately_and_rejoined(translate, objects):
    source_lines = ["the ship", "", "the old ship left", "in May"]
    outputs, _ = translate(source="".join(f"{line}\n" for line in source_lines).encode())
    request = as_json({"source": "\n".join(source_lines)})
    (line,), _ = translate(*JSONL, "--format", "jsonl", source=request)
    reply = json.loads(line)
    assert (reply["source"], reply["output"]) == ("\n".join(source_lines), "\n".join(outputs))
    assert len(reply["tokens"]) == len(reply["token_log_probs"]) == len(reply["alignment"])
    for flags in ((), ("--format", "tsv")):
        (line,), _ = translate(*JSONL, *flags, source=request)
        assert line.split("\t")[-1] == " ".join(outputs)
    (reply,) = objects(*JSONL, source=as_json({"source": "a\nship", "required": ["ship"]}))
    assert "unmet" not in reply["flags"]  # its place among the lines is unknown


def test_unknown_keys_are_passed_on_to_the_output(translate):
    request = as_json({"id": "a7", "source": "the ship", "meta": {"page": 3, "half\ud800": 1}, "score": "mine"})
    (line,), err = translate(*JSONL, "--format", "jsonl", source=request)
    record = json.loads(line)
    assert (record["id"], record["meta"], record["source"]) == ("a7", {"page": 3, "half?": 1}, "the ship")
    assert record["score"] < 0 and "note: unknown keys of <stdin>, copied to the output: id, meta\n" in err
    (line,), _ = translate(*JSONL, "--format", "pairs", source=request)
    assert json.loads(line)["id"] == "a7"
    assert translate(*JSONL, source=request)[0] == [record["output"]]


SHIP = "the old ship"
OVERRIDES = [
    {},
    {"trg_lang": "fr"},
    {"tags": ["bt"]},
    {"tags": []},
    {"trg_lang": "fr", "tags": ["news", "bt"], "prefix": "a"},
]
LINES = [{"source": SHIP, **override} for override in OVERRIDES]
EXPECTED_TAGS = [["<2en>", "<news>"], ["<2fr>", "<news>"], ["<2en>", "<bt>"], ["<2en>"], ["<2fr>", "<news>", "<bt>"]]


def tags_of(record):
    """Return the tags that the model read."""
    return [piece for piece in record["source_tokens"] if piece in TAGS]


def test_language_and_tags_of_a_line_override_those_of_the_command(objects):
    records = objects(*JSONL, source=as_json(*LINES))
    assert [tags_of(record) for record in records] == EXPECTED_TAGS
    assert [tags_of(record) for record in objects(*JSONL, "--trg-lang", "fr", source=as_json(*LINES[:2]))] == [
        EXPECTED_TAGS[1]
    ] * 2
    scores = [record["score"] for record in objects(*JSONL, source=as_json(*LINES[:4], *LINES[:4]))]
    assert scores[:4] == scores[4:] and len(set(scores)) == 4
    separate_scores = [objects(*JSONL, source=as_json(line))[0]["score"] for line in LINES[:4]]
    assert scores[:4] == pytest.approx(separate_scores, rel=1e-5)
    long_line = {"source": "The old ship left. It left in May.", "trg_lang": "fr"}  # its pieces have its tags
    (record,) = objects(*JSONL, "--decode.split", "every", source=as_json(long_line))
    assert tags_of(record) == EXPECTED_TAGS[1] * 2


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"trg_lang": "it"}, "trg_lang: it, but the model translates into en, fr: choose one of them."),
        ({"tags": ["web"]}, "tags: the model was not trained with the tag web (it knows bt, news)."),
        ({"tags": ["2fr"]}, "tags: the model was not trained with the tag 2fr"),
        ({"tags": "bt"}, "tags: expected a list of texts, found 'bt'"),
        ({"tags": ["bt", "bt"]}, "tags: a tag occurs twice, ['bt', 'bt']"),
        ({"trg_lang": ""}, "trg_lang: expected a language code, found ''"),
    ],
)
def test_unknown_language_or_tag_is_refused_with_its_line(translate, line, complaint):
    _, err = translate(*JSONL, source=as_json({"source": SHIP}, {"source": SHIP, **line}), code=2)
    assert f"<stdin>:2: {complaint}" in err


def test_lines_must_name_their_language_if_there_is_no_default(translate, objects, tmp_path):
    run = str(make_run(tmp_path / "open", {**OPTIONS, "data.trg_lang": "x-none"}, TAGS).folder)
    (record,) = objects(*JSONL, source=as_json(LINES[1]), run=run)
    assert tags_of(record) == ["<2fr>"]
    _, err = translate(*JSONL, source=as_json(LINES[1], LINES[0]), run=run, code=2)
    assert "<stdin>:2: trg_lang: not given, and the model translates into en, fr" in err
    assert "error: trg_lang: not given" in translate(run=run, code=2)[1]
    blank = objects(*JSONL, source=as_json({"source": " ", "trg_lang": "it"}))  # the model does not see it
    assert blank[0]["flags"] == ["blank"]
    run = str(make_run(tmp_path / "plain").folder)
    first, second = objects(*JSONL, source=as_json(LINES[0], {"source": SHIP, "trg_lang": "en", "tags": []}), run=run)
    assert first["score"] == second["score"]
    assert (
        "<stdin>:1: tags: the model was not trained with the tag bt"
        in translate(*JSONL, source=as_json(LINES[2]), run=run, code=2)[1]
    )


def test_forced_scoring_uses_options_of_lines_in_command_and_python(translate, objects, folder, tmp_path):
    (tmp_path / "given").write_text("ship\n" * 5, encoding="utf-8")
    flags = (*JSONL, "--score", tmp_path / "given")
    records = objects(*flags, source=as_json(*LINES[:4], LINES[1]))
    assert [tags_of(record) for record in records] == [*EXPECTED_TAGS[:4], EXPECTED_TAGS[1]]
    scores = [record["log_prob"] for record in records]
    assert scores[1] == scores[4] and len(set(scores)) == 4
    _, err = translate(*flags, source=as_json(*LINES), code=2)
    assert "<stdin>:5: prefix, required and avoided have no effect with --score" in err
    model = nmt.load(folder, device="cpu")
    requests = [SHIP, Request(SHIP, trg_lang="fr"), Request(SHIP, tags=("bt",)), Request(SHIP, tags=())]
    assert [score.log_prob for score in model.score(requests, ["ship"] * 4)] == pytest.approx(scores[:4], abs=1e-5)
    assert model.score([SHIP], ["ship"], trg_lang="fr")[0].log_prob == pytest.approx(scores[1], abs=1e-5)
    pieces = [model.subwords.src.pieces(translation.src_ids) for translation in model.translate(requests)]
    assert [[piece for piece in line_pieces if piece in TAGS] for line_pieces in pieces] == EXPECTED_TAGS[:4]
    with pytest.raises(RecipeError, match="trg_lang: it, but the model translates into en, fr"):
        list(model.translate([Request(SHIP, trg_lang="it")]))
    with pytest.raises(RecipeError, match=r"tags: the model was not trained with the tag web \(it knows bt"):
        model.translate([SHIP], tags=["web"])


def unwrap_lines(text: str) -> list[str]:
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
def test_wrapped_lines_are_joined_up_to_a_sentence_end_or_blank_line(wrapped, lines):
    assert unwrap_lines(wrapped) == lines


def test_unwrapping_loses_no_character_and_keeps_anomalies_of_lines():
    draw = random.Random(3)
    for _ in range(300):
        text = "".join(draw.choices("ab. \n\n日。", k=draw.randint(0, 60)))
        assert "".join("".join(unwrap_lines(text)).split()) == "".join(text.split())
    assert list(unwrapped([("a", {}), ("was.", {"cut": "x"}), ("c", {})])) == [("a was.", {"cut": "x"}), ("c", {})]


def test_lines_that_have_arrived_are_handed_over_at_a_pause():
    resume = threading.Event()

    def typed():
        yield from "ab"
        assert resume.wait(20)
        yield "c"

    found = windows(typed(), 1000, patience=0.3)
    assert next(found) == ["a", "b"]
    resume.set()
    assert list(found) == [["c"]]
    assert list(windows(range(10), 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]  # a fast input comes in full windows
