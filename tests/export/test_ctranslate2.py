"""An exported model is the same model, in every architecture that CTranslate2 has boxes for, or refused by name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nmt import checkpoint
from nmt.cli.export import main
from nmt.data.subwords import PAD, Codec, Subwords
from nmt.errors import MachineError, RunError
from nmt.export import ctranslate2 as room
from nmt.export.parity import compare
from nmt.models.build import build_model
from nmt.recipe.reader import read_recipe, write_recipe
from nmt.run import Run

pytest.importorskip("ctranslate2")

LINES = ["the old ship left in May", "in May", "the ship", "old", "für Übung", "x" * 90]
SMALL = {
    "name": "tiny", "model.d_model": "32", "model.d_inner": "48", "model.n_head": "4", "model.n_enc_layer": "2",
    "model.n_dec_layer": "2", "subwords.vocab_size": "300",
}  # fmt: skip


@pytest.fixture(scope="module")
def subwords():
    return Subwords.train(lambda: LINES, lambda: LINES, read_recipe(None, list(SMALL.items())).subwords, 1)


def made(subwords, **options):
    """A model with weights large enough for its parts to matter, and its recipe."""
    recipe = read_recipe(None, [*SMALL.items(), *((f"model.{name}", str(value)) for name, value in options.items())])
    torch.manual_seed(1)
    model = build_model(recipe.model, subwords.src.n_vocab, subwords.trg.n_vocab, PAD).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif "emb" not in name and "prj" not in name:
                parameter.mul_(2.0)
    return model, recipe


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "pre"},
        {"norm": "pre", "norm_kind": "rms", "ffn": "swiglu"},
        {"ffn": "gelu", "scale_emb_or_prj": "emb"},
        {"position": "rotary"},
        {"position": "learned", "n_position": 7},
        {"n_position": 5},  # sinusoids go on beyond the table
        {"n_kv_head": 2},
        {"n_kv_head": 1, "attn_bias": "true"},
        {"d_k": 16, "d_v": 16},
        {"ffn_bias": "false"},
        {"trg_emb_prj_weight_sharing": "false", "emb_src_trg_weight_sharing": "false"},
    ],
    ids=str,
)
def test_an_exported_model_is_the_same_model(subwords, tmp_path, options):
    model, recipe = made(subwords, **options)
    room.export(model, recipe.model, subwords, tmp_path / "out", None)
    found = compare(model, subwords, tmp_path / "out", LINES, exact=True)
    assert found.n_same == found.n_line == len(LINES)
    assert found.worst < 1e-4


def test_a_subword_that_looks_like_a_control_symbol_keeps_a_name_of_its_own(subwords):
    known = subwords.src
    codec = Codec([*known.vocab, "<s", "<s>"], [*known.merges, ("<", "s"), ("<s", ">")])
    names = room.entries(codec)
    assert names[codec.size - 1] == " <s>" and names[1] == "<s>"
    assert len(set(names)) == len(names) == codec.n_vocab


def test_another_model_is_noticed(subwords, tmp_path):
    model, recipe = made(subwords)
    room.export(model, recipe.model, subwords, tmp_path / "out", None)
    with torch.no_grad():
        model.decoder.layer_stack[1].enc_attn.w_vs.weight.mul_(1.5)
    with pytest.raises(RunError, match="another one"):
        compare(model, subwords, tmp_path / "out", LINES, exact=True)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"lexical_attn": "true"}, "model.lexical_attn"),
        ({"prj_transform": "true"}, "model.prj_transform"),
        ({"position": "rotary", "rotary_enc_attn": "true"}, "model.rotary_enc_attn"),
        ({"qk_norm": "true"}, "model.qk_norm"),
        ({"ffn": "relu2"}, "model.ffn: relu2"),
        ({"d_k": 16}, "model.d_k"),
    ],
)
def test_what_has_no_place_there_is_refused_by_name(subwords, tmp_path, options, name):
    model, recipe = made(subwords, **options)
    with pytest.raises(RunError, match=name):
        room.export(model, recipe.model, subwords, tmp_path / "out", None)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def folder(subwords, tmp_path):
    model, recipe = made(subwords)
    run = Run(tmp_path / "run")
    run.folder.mkdir()
    write_recipe(recipe, run.recipe_file)
    subwords.save(run.subwords_file)
    checkpoint.save(run.model_folder, {checkpoint.MODEL: checkpoint.weights_of(model)}, {"update": 1})
    (tmp_path / "lines").write_text("\n".join(LINES), encoding="utf-8")
    return str(run.folder)


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_the_command_writes_a_model_that_was_compared(folder, tmp_path, capsys, quantization):
    flags = ["--to", "ctranslate2", "--output", str(tmp_path / "out"), "--lines", str(tmp_path / "lines")]
    flags += ["--quantization", quantization] if quantization else []
    assert main([folder, *flags]) == 0
    assert f"of {len(LINES)} lines translated alike" in capsys.readouterr().err
    assert (tmp_path / "out" / "model.bin").is_file()
    assert main([folder, *flags]) == 2 and "--overwrite" in capsys.readouterr().err
    assert main([folder, *flags, "--overwrite"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines", "out", "run"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--output", "OUT/no/such", "--lines", "OUT/lines"], "cannot be written"),
        (["--output", "OUT/run", "--lines", "OUT/lines", "--overwrite"], "no exported model"),
        (["--output", "OUT/out", "--lines", "OUT/none"], "no such file"),
        (["--output", "OUT/out"], "--lines FILE"),
        (["--output", "OUT/out", "--lines", "OUT/lines", "--checkpoint", "update-1"], "no checkpoint"),
    ],
)
def test_what_cannot_be_done_is_said_and_leaves_nothing(folder, tmp_path, capsys, flags, message):
    before = sorted(tmp_path.rglob("*"))
    assert main([folder, "--to", "ctranslate2", *(flag.replace("OUT", str(tmp_path)) for flag in flags)]) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_that_differs_is_not_written(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(room, "_ffn", lambda spec, ffn, right=room._ffn: (right(spec, ffn), spec.linear_1.bias.fill(1)))
    flags = ["--to", "ctranslate2", "--output", str(tmp_path / "out"), "--lines", str(tmp_path / "lines")]
    assert main([folder, *flags]) == 2
    assert "another one" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines", "run"]


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ctranslate2", None)
    with pytest.raises(MachineError, match=r"pip install 'nmt\[ctranslate2\]'"):
        room.library()


def test_the_benchmark_of_translation_runs(folder, tmp_path):
    """On a minute model: that it measures well cannot be tested."""
    script = Path(__file__).parents[2] / "tools" / "bench_decoding.py"
    flags = ["--input", str(tmp_path / "lines"), "--ref", str(tmp_path / "lines"), "--rounds", "1"]
    command = [sys.executable, str(script), folder, *flags, "--ours", "fp32", "--theirs", "float32"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"nmt fp32, 1 x 1 +\d+ +\d+ +\d+\.\d% +\d+\.\d\d", done.stdout), done.stdout
    assert re.search(r"nmt fp32, \d x \d: \d+\.\d\dx ct2 float32, \d x \d", done.stdout), done.stdout
