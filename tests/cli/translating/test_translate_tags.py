"""Lines that say of themselves into which language they are to be translated, and what kind of text they are."""

import io
import json
import sys

import pytest
from made_run import OPTIONS, make_run

import nmt
from nmt.cli.translate import main
from nmt.decoding.request import Request
from nmt.errors import RecipeError

TAGS = ("<2en>", "<2fr>", "<bt>", "<news>")
SHIP = "the old ship"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(make_run(tmp_path_factory.mktemp("runs") / "tagged", {**OPTIONS, "decode.tags": "[news]"}, TAGS).folder)


@pytest.fixture
def translate(folder, monkeypatch, capsysbinary):
    def call(lines, *flags, code=0, run=folder, jsonl=True):
        source = "".join((json.dumps(line) if jsonl else line) + "\n" for line in lines)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(source.encode()), encoding="ascii"))
        how = ["--input-format", "jsonl"] if jsonl else []
        found = main([run, "--format", "jsonl", *how, *map(str, flags)])
        out, err = capsysbinary.readouterr()
        assert found == code, err.decode()
        return [json.loads(line) for line in out.decode().split("\n")[:-1]], err.decode()

    return call


def told(record):
    """The tags that the model read."""
    return [piece for piece in record["source_tokens"] if piece in TAGS]


LINES = [
    {"source": SHIP},
    {"source": SHIP, "trg_lang": "fr"},
    {"source": SHIP, "tags": ["bt"]},
    {"source": SHIP, "tags": []},
    {"source": SHIP, "trg_lang": "fr", "tags": ["news", "bt"], "prefix": "a"},
]
READ = [["<2en>", "<news>"], ["<2fr>", "<news>"], ["<2en>", "<bt>"], ["<2en>"], ["<2fr>", "<news>", "<bt>"]]


def test_what_a_line_says_of_itself_comes_before_what_is_said_of_all(translate):
    found, _ = translate(LINES)
    assert [told(record) for record in found] == READ
    assert [told(record) for record in translate(LINES[:2], "--trg-lang", "fr")[0]] == [READ[1]] * 2


def test_the_same_text_with_other_tags_is_another_line(translate):
    found, _ = translate([*LINES[:4], *LINES[:4]])
    scores = [record["score"] for record in found]
    assert scores[:4] == scores[4:] and len(set(scores)) == 4
    alone = [translate([line])[0][0]["score"] for line in LINES[:4]]
    assert scores[:4] == pytest.approx(alone, rel=1e-5)


def test_the_pieces_of_a_long_line_have_its_tags(translate):
    line = {"source": "The old ship left. It left in May.", "trg_lang": "fr"}
    (record,), _ = translate([line], "--decode.split", "every")
    assert told(record) == ["<2fr>", "<news>"] * 2


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"trg_lang": "it"}, "trg_lang: it, but the model translates into en, fr: choose one of those."),
        ({"tags": ["web"]}, "tags: web is no tag that the model was trained with (it knows bt, news)."),
        ({"tags": ["2fr"]}, "tags: 2fr is no tag"),
        ({"tags": "bt"}, "tags: expected a list of texts, found one, 'bt'"),
        ({"tags": ["bt", "bt"]}, "tags: one occurs twice, ['bt', 'bt']"),
        ({"trg_lang": ""}, "trg_lang: expected the code of a language, found ''"),
    ],
)
def test_what_the_model_does_not_know_is_refused_with_its_line(translate, line, complaint):
    _, err = translate([{"source": SHIP}, {"source": SHIP, **line}], code=2)
    assert f"<stdin>:2: {complaint}" in err
    assert translate([{"source": " ", "trg_lang": "it"}])[0][0]["flags"] == ["blank"]


def test_where_no_language_is_the_usual_one_each_line_has_to_say_it(translate, tmp_path):
    run = str(make_run(tmp_path / "open", {**OPTIONS, "data.trg_lang": "x-none"}, TAGS).folder)
    found, _ = translate([{"source": SHIP, "trg_lang": "fr"}], run=run)
    assert told(found[0]) == ["<2fr>"]
    _, err = translate([{"source": SHIP, "trg_lang": "fr"}, {"source": SHIP}], run=run, code=2)
    assert "<stdin>:2: decode.trg_lang: not given, and the model translates into en, fr" in err
    _, err = translate([SHIP], run=run, jsonl=False, code=2)
    assert "error: decode.trg_lang: not given" in err


def test_a_model_of_one_language_knows_its_name(translate, tmp_path):
    run = str(make_run(tmp_path / "plain").folder)
    lines = [{"source": SHIP}, {"source": SHIP, "trg_lang": "en", "tags": []}]
    one, two = (record["score"] for record in translate(lines, run=run)[0])
    assert one == two
    assert "<stdin>:1: tags: bt is no tag" in translate([{"source": SHIP, "tags": ["bt"]}], run=run, code=2)[1]


def test_given_translations_are_scored_with_what_their_lines_say(translate, folder, tmp_path):
    (tmp_path / "given").write_text("ship\n" * 5, encoding="utf-8")
    lines = [*LINES[:4], {"source": SHIP, "trg_lang": "fr"}]
    found, _ = translate(lines, "--score", tmp_path / "given")
    assert [told(record) for record in found] == [*READ[:4], READ[1]]
    scores = [record["log_prob"] for record in found]
    assert scores[1] == scores[4] and len(set(scores)) == 4
    model = nmt.load(folder, device="cpu")
    requests = [SHIP, Request(SHIP, trg_lang="fr"), Request(SHIP, tags=("bt",)), Request(SHIP, tags=())]
    assert [one.log_prob for one in model.score(requests, ["ship"] * 4)] == pytest.approx(scores[:4], abs=1e-5)
    assert model.score([SHIP], ["ship"], trg_lang="fr")[0].log_prob == pytest.approx(scores[1], abs=1e-5)
    _, err = translate([*LINES], "--score", tmp_path / "given", code=2)
    assert "<stdin>:5: --score translates nothing, so prefix, required and avoided have nothing to do" in err
    _, err = translate([{"source": SHIP, "trg_lang": "it"}] * 5, "--score", tmp_path / "given", code=2)
    assert "<stdin>:1: trg_lang: it, but the model translates into en, fr" in err


def test_from_python_it_is_the_same(folder):
    model = nmt.load(folder, device="cpu")
    codec = model.subwords.src

    def read(*requests):
        return [[piece for piece in codec.pieces(one.src_ids) if piece in TAGS] for one in model.translate(requests)]

    assert read(SHIP, Request(SHIP, trg_lang="fr"), Request(SHIP, tags=())) == [READ[0], READ[1], READ[3]]
    with pytest.raises(RecipeError, match="trg_lang: it, but the model translates into en, fr"):
        read(Request(SHIP, trg_lang="it"))
