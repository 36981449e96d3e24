"""nmt-translate with a model that was trained with data.protect: every format, and what is said at the end."""

import io
import json
import sys

import pytest
from made_run import OPTIONS, make_run

import nmt
from nmt.cli.translate import main

SOURCE = 'the ship <b class="x">left</b> in 2014\n\nsee http://a.org/b\n⟨url1⟩ and 5\npart AB-1234'.encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    options = {**OPTIONS, "subwords.vocab_size": "330", "data.protect": "[url, number, tag, '/[A-Z]{2}-[0-9]{4}/']"}
    return str(make_run(tmp_path_factory.mktemp("runs") / "tiny", options).folder)


@pytest.fixture
def translate(folder, monkeypatch, capsysbinary):
    def call(*flags):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SOURCE), encoding="ascii"))
        assert main([folder, *map(str, flags)]) == 0
        out, err = capsysbinary.readouterr()
        return out.decode("utf-8").split("\n")[:-1], err.decode("utf-8")

    return call


def test_every_format_has_the_restored_text_and_the_end_counts_what_is_wrong(translate, folder):
    texts, err = translate()
    objects = [json.loads(line) for line in translate("--format", "jsonl")[0]]
    assert [one["output"] for one in objects] == texts
    assert [line.split("\t")[-1] for line in translate("--format", "tsv")[0]] == texts
    assert [one.text for one in nmt.load(folder).translate(SOURCE.decode().split("\n"))] == texts
    n_best = translate("--decode.n_best", 3)[0]
    assert n_best[0].split(" ||| ")[1] == texts[0]
    assert objects[0]["items"] == [{"tag1": '<b class="x">', "tag2": "</b>", "number1": "2014"}]
    assert objects[1]["items"] == [{}] and objects[3]["items"] == [{"number1": "5"}]
    assert objects[4]["items"] == [{"pattern1": "AB-1234"}] and objects[4]["source_tokens"][-2] == "⟨pattern1⟩"
    assert ("missing" in objects[4]["flags"]) == ("AB-1234" not in texts[4])
    assert "⟨tag1⟩" in objects[0]["source_tokens"] and objects[0]["source"] == SOURCE.decode().split("\n")[0]
    for name in ("missing", "doubled"):
        n = sum(name in one["flags"] for one in objects)
        assert (f"{name} {n}" in err) == bool(n)
    assert any("missing" in one["flags"] for one in objects)  # the weights are drawn by chance


def test_given_translations_say_the_same(translate, tmp_path):
    texts, _ = translate("--format", "jsonl")
    lines = [json.loads(line) for line in texts]
    given = tmp_path / "given"
    given.write_bytes("".join(f"{one['source']}\n" for one in lines).encode())
    scored = [json.loads(line) for line in translate("--format", "jsonl", "--score", given)[0]]
    for one, other in zip(scored, lines, strict=True):
        assert one["items"] == other["items"] and one["source_tokens"][:-1] == one["tokens"][:-1]
        assert "⟨url1⟩" not in one["tokens"] or "http" in one["output"]


def test_pictures_show_what_the_model_read(translate, tmp_path):
    translate("--attention", tmp_path / "a.html", "--output", tmp_path / "o")
    assert json.dumps("⟨tag1⟩")[1:-1] in (tmp_path / "a.html").read_text("utf-8")
