"""Recurrent models in the same commands: translation, scoring, attention, export, and refusals with a reason."""

import json

import pytest
import torch
from made_run import OPTIONS, SOURCE, make_run

from nmt.cli.export import main as export

COMMON = {name: value for name, value in OPTIONS.items() if name.partition(".")[0] != "model"}
SHAPES = {
    "seq2seq": {"model.cell": "gru", "model.enc_direction": "backward"},
    "peeky": {"model.n_rnn_layer": "2", "model.d_emb": "8"},
    "attention": {"model.attn_score": "additive", "model.enc_direction": "both", "model.input_feeding": "true"},
}
TARGETS = "old ship\n\nin May\nthe\n\nleft\n"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    options = {
        name: {**COMMON, "model.architecture": name, "model.d_model": "16", **shape} for name, shape in SHAPES.items()
    }
    return {name: str(make_run(folder / name, options.get(name, OPTIONS)).folder) for name in (*SHAPES, "transformer")}


@pytest.mark.parametrize("name", SHAPES)
def test_recurrent_models_support_every_decoding_mode_and_export(translate, objects, folders, tmp_path, name):
    run = folders[name]
    lines, _ = translate(run=run)
    assert [bool(line) for line in lines] == [bool(line.strip()) for line in SOURCE.decode().split("\n")]
    assert translate("--decode.max_tokens", 1, run=run)[0] == lines  # one by one
    for decode_flags in (
        ["--decode.beam", 4, "--decode.n_best", 2],
        ["--mbr", 4],
        ["--decode.precision", "bf16"],
        ["--decode.min_len_b", 2, "--decode.no_repeat", 2],
    ):
        assert len(translate(*decode_flags, run=run)[0]) >= 6
    for record in objects(run=run):
        assert sum(record["token_log_probs"]) == pytest.approx(record["log_prob"], abs=1e-4)  # forced = searched
        assert ("word_alignment" in record) == (name == "attention")
    (tmp_path / "lines").write_bytes(SOURCE + b"\n")
    flags = ["--output", str(tmp_path / "out"), "--lines", str(tmp_path / "lines")]
    assert export([run, "--to", "safetensors", *flags]) == 0
    assert translate(run=str(tmp_path / "out"))[0] == lines


def test_ensemble_of_different_architectures_averages_probabilities(translate, folders, tmp_path):
    (tmp_path / "given").write_text(TARGETS, encoding="utf-8")
    names = ("attention", "seq2seq", "transformer")

    def probabilities(first, *more):
        flags = (*(folders[name] for name in more), "--score", tmp_path / "given", "--format", "jsonl")
        lines, _ = translate(*flags, run=folders[first])
        return torch.tensor([value for line in lines for value in json.loads(line)["token_log_probs"]]).exp()

    mean = torch.stack([probabilities(name) for name in names]).mean(0)
    assert torch.allclose(probabilities(*names), mean, rtol=1e-3, atol=0)


def test_attention_of_a_recurrent_model_is_drawn_and_aligned(translate, folders, tmp_path):
    run = folders["attention"]
    for name, signature in (("a.png", b"\x89PNG"), ("a.html", b"<!")):
        translate("--attention", tmp_path / name, run=run)
        assert (tmp_path / name).read_bytes().startswith(signature)
    assert '"kinds":{"cross":{"layers":1,"heads":1}}' in (tmp_path / "a.html").read_text("utf-8").replace(" ", "")
    translate("--alignments", tmp_path / "links", "--output", tmp_path / "out", run=run)
    assert (tmp_path / "links").read_text(encoding="utf-8").count("\n") == 6
    for flags, message in ((["--layer", 2], "there is no layer 2"), (["--attention-of", "encoder"], "only cross")):
        assert message in translate("--attention", tmp_path / "b.png", *flags, run=run, code=2)[1]


@pytest.mark.parametrize("flag", ["--attention", "--alignments"])
def test_attention_output_of_a_model_without_attention_is_refused(translate, folders, tmp_path, flag):
    lines, err = translate(flag, tmp_path / "a.png", run=folders["peeky"], code=2)
    assert not lines and "this model has no attention to the source" in err
    assert not list(tmp_path.iterdir())
