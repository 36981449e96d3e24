"""nmt-export: writes only a model that passed the comparison, and replaces only an export of the same kind."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from tiny import LINES, SMALL, make_model, save_model

from nmt.cli.export import is_exported, main
from nmt.cli.preprocess import OWN_CORPUS
from nmt.export import ctranslate2, huggingface, parity
from nmt.recipe.draft import portable_options, unsupported
from nmt.recipe.reader import read_recipe
from tests.learnt import learnt_subwords

ROOT = Path(__file__).parents[2]

PACKAGE = {"ctranslate2": "ctranslate2", "huggingface": "transformers", "safetensors": "safetensors"}
FILES = {
    "ctranslate2": {"model.bin", "config.json", "shared_vocabulary.json", "recipe.yaml", "subwords.json"},
    "huggingface": {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    },
    "safetensors": {
        "recipe.yaml", "subwords.json", "model/model.safetensors", "model/state.json", "model/manifest.json",
    },
}  # fmt: skip


def test_the_default_width_may_be_given_explicitly():
    recipe = read_recipe(None, [("name", "x"), ("model.d_model", "64"), ("model.n_head", "4"), ("model.d_k", "16")])
    assert not any("d_k" in obstacle for obstacles in unsupported(recipe).values() for obstacle in obstacles)


@pytest.fixture
def export(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(parity.compare, "__defaults__", (30,))  # tokens: the model never ends a translation by itself

    def call(to, *flags, code=0, output="out", lines=True):
        args = ["--to", to, "--output", str(tmp_path / output), *flags]
        assert main([str(run.folder), *args, *(["--lines", str(tmp_path / "lines")] if lines else [])]) == code
        err = capsys.readouterr().err
        assert "Traceback" not in err
        return err

    return call


@pytest.mark.parametrize("to", PACKAGE)
def test_the_command_writes_model_and_card_and_overwrites_its_own_output(export, run, tmp_path, monkeypatch, to):
    pytest.importorskip(PACKAGE[to])
    monkeypatch.setattr("nmt.cli.export.N_LINE", 1)  # of the validation set
    (run.folder / "README.md").write_text("the card", encoding="utf-8")
    assert f"{len(LINES)} of {len(LINES)} lines have the same greedy translation" in export(to)
    written = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")}
    assert written == {*FILES[to], "README.md"}
    assert (tmp_path / "out" / "README.md").read_text(encoding="utf-8") == "the card"
    assert "--overwrite" in export(to, code=2)
    export(to, "--overwrite")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines", "out", "run"]


def test_other_checkpoints_have_no_card_and_translations_of_nmt_score_are_replaced(export, run, tmp_path):
    (run.folder / "README.md").write_text("the card", encoding="utf-8")
    export("safetensors", "--checkpoint", "update-00000007")
    assert not (tmp_path / "out" / "README.md").exists()
    (tmp_path / "out" / "translations").mkdir()
    export("safetensors", "--overwrite")


def test_a_quantised_model_is_compared_less_strictly(export, tmp_path):
    pytest.importorskip("ctranslate2")
    assert f"of {len(LINES)} lines have the same greedy translation" in export("ctranslate2", "--quantization", "int8")
    assert is_exported(tmp_path / "out", "ctranslate2")


@pytest.mark.parametrize("to", PACKAGE)
def test_overwrite_never_replaces_a_run(export, run, tmp_path, to):
    """Not even where the export is a run folder, too."""
    pytest.importorskip(PACKAGE[to])
    assert f"not a model exported for {to}" in export(to, "--overwrite", code=2, output="run")
    assert run.updates() == [7]


@pytest.mark.parametrize("to", PACKAGE)
def test_overwrite_keeps_folders_with_files_of_others(export, tmp_path, to):
    pytest.importorskip(PACKAGE[to])
    export(to)
    (tmp_path / "out" / "thesis.txt").write_text("years", encoding="utf-8")
    (tmp_path / "file").write_text("years", encoding="utf-8")
    for name in ("out", "file"):
        assert "not replaced, because it is not a model" in export(to, "--overwrite", code=2, output=name)
    assert (tmp_path / "out" / "thesis.txt").exists() and (tmp_path / "file").is_file()


@pytest.mark.parametrize(
    ("to", "flags", "message"),
    [
        ("ctranslate2", ["--output", "no/such"], "cannot be written"),
        ("safetensors", ["--lines", "none"], "No such file"),
        ("safetensors", ["--checkpoint", "update-1"], "no checkpoint"),
        ("safetensors", ["--quantization", "int8"], "--quantization needs --to ctranslate2"),
        ("huggingface", ["--precision", "fp16"], "--precision needs --to safetensors"),
    ],
)
def test_impossible_exports_are_refused_and_leave_nothing(export, tmp_path, monkeypatch, to, flags, message):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert message in export(to, *flags, code=2, lines="--lines" not in flags)
    assert sorted(tmp_path.rglob("*")) == before


def test_signal_leaves_no_unfinished_export(export, tmp_path, monkeypatch):
    def interrupted(run, checkpoint, folder, precision):
        folder.mkdir()
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("nmt.export.parity.export", interrupted)
    export("safetensors", code=128 + signal.SIGTERM)
    assert not list(tmp_path.glob(".*.tmp"))


def test_missing_or_overlong_lines_to_compare_on_are_refused(export, tmp_path):
    assert "--lines FILE" in export("safetensors", code=2, lines=False)
    (tmp_path / "lines").write_text("x y " * 2000, encoding="utf-8")
    assert "all lines to compare have more than" in export("safetensors", code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines", "run"]


@pytest.mark.parametrize(
    ("to", "exporter", "name"), [("ctranslate2", ctranslate2, "_array"), ("huggingface", huggingface, "_scaled")]
)
def test_a_model_that_translates_differently_is_not_written(export, tmp_path, monkeypatch, to, exporter, name):
    pytest.importorskip(PACKAGE[to])
    correct = getattr(exporter, name)
    wrong = {
        "_array": lambda tensor: correct(tensor) * (1.1 if tensor.dim() == 1 else 1.0),
        "_scaled": lambda *args: {name: tensor + 0.1 for name, tensor in correct(*args).items()},
    }
    monkeypatch.setattr(exporter, name, wrong[name])
    assert "the exported model " in export(to, code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines", "run"]


REFUSED = {
    "ctranslate2": [
        "lexical_attn: true", "prj_transform: true", "rotary_enc_attn: true", "qk_norm: true", "enc_conv: 3",
        "ffn: relu2", "d_k: 16",
    ],
    "huggingface": [
        "lexical_attn: true", "rotary_enc_attn: true", "qk_norm: true", "enc_conv: 3", "position: rotary",
        "norm_kind: rms", "ffn: swiglu", "n_kv_head: 2", "enc_n_kv_head: 1", "d_k: 16", "d_v: 16",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("to", "option"), [(to, option) for to, options in REFUSED.items() for option in options])
def test_options_that_an_engine_lacks_are_refused_by_name(to, option):
    name, _, value = option.partition(": ")
    rotary = [("model.position", "rotary")] if name == "rotary_enc_attn" else []
    found = unsupported(read_recipe(None, [*SMALL.items(), *rotary, (f"model.{name}", value)]))[to]
    assert [obstacle for obstacle in found if obstacle.startswith(f"model.{name}")]


@pytest.mark.parametrize(("d_k", "d_v"), [("null", "16"), ("16", "null"), ("16", "12")])
def test_options_recommended_by_a_refusal_make_export_possible(d_k, d_v):
    options = [*SMALL.items(), ("model.d_k", d_k), ("model.d_v", d_v)]
    found = unsupported(read_recipe(None, options))["ctranslate2"]
    assert found and not unsupported(read_recipe(None, [*options, *portable_options(found)]))["ctranslate2"]


def test_the_page_names_every_option_that_may_be_refused():
    unusual = {
        "model.position": "rotary", "model.rotary_enc_attn": "true", "model.lexical_attn": "true",
        "model.qk_norm": "true", "model.enc_conv": "3", "model.norm_kind": "rms", "model.ffn": "swiglu",
        "model.n_kv_head": "1", "model.enc_n_kv_head": "1", "model.d_k": "16", "model.d_v": "12",
        "model.prj_transform": "true", "model.scale_emb_or_prj": "emb", "subwords.kind": "unigram",
        "subwords.symbols": "[<x>]", "data.protect": "[url]",
    }  # fmt: skip
    recipe = read_recipe(None, list({**SMALL, **unusual}.items()))
    obstacles_of = unsupported(recipe)
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    for to, obstacles in obstacles_of.items():
        (row,) = [line for line in page.split("\n") if line.startswith(f"| `{to}` | ") and "pip install" in line]
        names = [re.split(r"[ :]", obstacle)[0].split(".")[1] for obstacle in obstacles]
        assert len(names) >= 6 and [name for name in names if not re.search(rf"[`.]{name}[`:]", row)] == []


def test_options_recommended_by_the_page_make_export_possible():
    """Together with the options that `nmt-preprocess --train ...` writes."""
    text = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    options = [dict(re.findall(r"--(model\.\w+) (\w+)", line)) for line in text.split("\n")]
    recommended = max(options, key=len)
    assert len(recommended) == 4
    recipe = read_recipe(None, [*OWN_CORPUS, ("name", "own"), *recommended.items()])
    assert unsupported(recipe) == {"ctranslate2": [], "huggingface": []}


@pytest.mark.parametrize("to", PACKAGE)
def test_a_model_with_tags_is_compared_for_each_tag(tmp_path, capsys, monkeypatch, to):
    monkeypatch.setattr(parity.compare, "__defaults__", (10,))
    corpora = [{"src": "a", "trg": "b"}, {"src": "a", "trg": "c", "trg_lang": "fr", "tags": ["bt"]}]
    recipe = read_recipe(None, [*SMALL.items(), ("data.trg_lang", "de"), ("data.train", json.dumps(corpora))])
    subwords = learnt_subwords(LINES, LINES, recipe.subwords, tags=["<2de>", "<2fr>", "<bt>"])
    run = save_model(tmp_path / "run", subwords, make_model(subwords)[0], recipe)
    (tmp_path / "lines").write_text("\n".join(LINES), encoding="utf-8")
    args = ["--to", to, "--output", str(tmp_path / "out"), "--lines", str(tmp_path / "lines")]
    assert main([str(run.folder), *args]) == 0
    err = capsys.readouterr().err
    assert "<2de>: 6 of 6 lines" in err and "<2fr> <bt>: 6 of 6 lines" in err


@pytest.mark.parametrize("to", ["ctranslate2", "huggingface"])
def test_unsupported_options_are_refused_before_packages_are_imported(tmp_path, subwords, capsys, monkeypatch, to):
    monkeypatch.setitem(sys.modules, PACKAGE[to], None)
    run = save_model(tmp_path / "run", subwords, *make_model(subwords, lexical_attn="true", qk_norm="true"))
    assert main([str(run.folder), "--to", to, "--output", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert "--model.lexical_attn false" in err and "--model.qk_norm false" in err and "pip" not in err
    flags = [*SMALL.items(), ("model.lexical_attn", "true"), ("model.position", "rotary"), ("subwords.kind", "unigram")]
    found = [obstacle for obstacles in unsupported(read_recipe(None, flags)).values() for obstacle in obstacles]
    assert unsupported(read_recipe(None, [*flags, *portable_options(found)])) == {"ctranslate2": [], "huggingface": []}
