"""The recurrent models by the same commands: translated, scored, looked at, exported, or refused with a reason."""

import io
import json
import re
import sys

import pytest
import torch
from made_run import OPTIONS, SOURCE, make_run

from nmt.cli.export import main as export
from nmt.cli.translate import main as translate_main

COMMON = {name: value for name, value in OPTIONS.items() if name.partition(".")[0] != "model"}
ARCHITECTURES = ("seq2seq", "peeky", "attention")
SHAPES = {
    "seq2seq": {"model.cell": "gru", "model.enc_direction": "backward"},
    "peeky": {"model.n_rnn_layer": "2", "model.d_emb": "8"},
    "attention": {"model.attn_score": "additive", "model.enc_direction": "both", "model.input_feeding": "true"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    found = {}
    for name in ARCHITECTURES:
        options = {**COMMON, "model.architecture": name, "model.d_model": "16", **SHAPES[name]}
        found[name] = str(make_run(tmp_path_factory.mktemp("runs") / name, options).folder)
    found["transformer"] = str(make_run(tmp_path_factory.mktemp("runs") / "transformer").folder)
    return found


@pytest.fixture
def translate(monkeypatch, capsysbinary):
    def call(*parts, code=0):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SOURCE), encoding="ascii"))
        found = translate_main([str(part) for part in parts])
        out, err = capsysbinary.readouterr()
        assert found == code, err.decode()
        assert b"Traceback" not in err
        return out.decode().split("\n")[:-1], err.decode()

    return call


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_way_of_translating_works(translate, folders, tmp_path, name):
    lines, _ = translate(folders[name])
    assert [bool(line) for line in lines] == [bool(line.strip()) for line in SOURCE.decode().split("\n")]
    assert translate(folders[name], "--decode.max_tokens", 1)[0] == lines  # one by one
    for more in (
        ["--decode.beam", 4, "--decode.n_best", 2],
        ["--mbr", 4],
        ["--decode.samples", 3],
        ["--decode.precision", "bf16"],
        ["--decode.min_len_b", 2, "--decode.no_repeat", 2],
    ):
        assert len(translate(folders[name], *more)[0]) >= 6
    (tmp_path / "out").write_text("old ship\n\nin May\nthe\n\nleft\n", encoding="utf-8")
    assert len(translate(folders[name], "--score", tmp_path / "out")[0]) == 6
    for line in translate(folders[name], "--format", "jsonl")[0]:
        one = json.loads(line)
        assert sum(one["token_log_probs"]) == pytest.approx(one["log_prob"], abs=1e-4)  # forced = searched
        assert ("word_alignment" in one) == (name == "attention")


def test_models_of_different_families_translate_together(translate, folders, tmp_path):
    (tmp_path / "out").write_text("old ship\n\nin May\nthe\n\nleft\n", encoding="utf-8")

    def probabilities(*names):
        lines, _ = translate(*(folders[name] for name in names), "--score", tmp_path / "out", "--format", "jsonl")
        return torch.tensor([value for line in lines for value in json.loads(line)["token_log_probs"]]).exp()

    names = ("attention", "seq2seq", "transformer")
    mean = torch.stack([probabilities(name) for name in names]).mean(0)
    assert torch.allclose(probabilities(*names), mean, rtol=1e-3, atol=0)
    assert len(translate(*(folders[name] for name in names))[0]) == 6


def test_attention_of_a_recurrent_model_is_seen(translate, folders, tmp_path):
    pictures = {}
    for name in ("a.png", "a.svg", "a.html"):
        translate(folders["attention"], "--attention", tmp_path / name)
        pictures[name] = (tmp_path / name).read_bytes()
    assert pictures["a.png"].startswith(b"\x89PNG") and b"<svg" in pictures["a.svg"]
    page = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', pictures["a.html"].decode(), re.DOTALL
    )
    shown = json.loads(page.group(1))
    assert shown["kinds"] == {"cross": {"layers": 1, "heads": 1}}
    sources = [line.split() for line in SOURCE.decode().split("\n") if line.strip()]
    assert [one["src"]["texts"][:-1] for one in shown["sentences"]] == sources[: len(shown["sentences"])] != []
    translate(folders["attention"], "--alignments", tmp_path / "links", "--output", tmp_path / "out")
    assert len((tmp_path / "links").read_text(encoding="utf-8").split("\n")) == 7
    _, said = translate(folders["attention"], "--attention", tmp_path / "b.png", "--layer", 2, code=2)
    assert "there is no layer 2" in said
    _, said = translate(folders["attention"], "--attention", tmp_path / "b.png", "--attention-of", "encoder", code=2)
    assert "cross" in said


@pytest.mark.parametrize("flags", [["--attention", "a.png"], ["--alignments", "a"]])
def test_what_a_model_without_attention_cannot_show_is_refused_before_the_work(translate, folders, tmp_path, flags):
    parts = [tmp_path / part if part.startswith("a") else part for part in flags]
    lines, said = translate(folders["peeky"], *parts, code=2)
    assert not lines and "no word that this model writes looks at the source" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_it_is_exported_for_ourselves(translate, folders, tmp_path, name):
    (tmp_path / "lines").write_bytes(SOURCE + b"\n")
    flags = ["--output", str(tmp_path / "out"), "--lines", str(tmp_path / "lines")]
    assert export([folders[name], "--to", "safetensors", *flags]) == 0
    assert translate(tmp_path / "out")[0] == translate(folders[name])[0]
