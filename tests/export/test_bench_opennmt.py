"""OpenNMT-py with our weights is our model before it is timed, and what it cannot hold or is not there is said.

Where it is not installed the tests that need it are skipped: NMT_OPENNMT names the folder that it was installed into.
"""

import importlib.util
import os
import re
import sys
from pathlib import Path

import bench_decoding
import bench_opennmt
import pytest
import torch
from tiny import LINES, PECULIAR, made, saved

import nmt
from nmt.data.vocabulary.subwords import EOS
from nmt.decoding.translator import Translator
from nmt.errors import MachineError, RunError
from nmt.export.parity import greedy, greedy_config
from nmt.recipe.model_options import ModelConfig


@pytest.fixture
def folder():
    """The folder that OpenNMT-py was installed into."""
    if named := os.environ.get("NMT_OPENNMT"):
        return Path(named)
    if not (found := importlib.util.find_spec("onmt")):
        pytest.skip(f"NMT_OPENNMT names no folder that was filled by {bench_opennmt.INSTALL}")
    return Path(found.origin).parents[1]


@pytest.fixture
def not_it(tmp_path, monkeypatch):
    """A folder with a package of that name, to write into, and no other one that was imported before."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "onmt"]:
        monkeypatch.delitem(sys.modules, name)
    package = tmp_path / "site" / "onmt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "translate.py").write_text("", encoding="utf-8")
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "onmt"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale_emb_or_prj": "emb"},
        {"scale_emb_or_prj": "none", "ffn": "gelu"},
        {"norm_kind": "rms", "ffn": "swiglu"},
        {"position": "rotary"},
        {"position": "learned", "n_position": 7},
        {"n_position": 5},  # sinusoids go on beyond the table
        {"n_kv_head": 2},
        {"n_kv_head": 1, "enc_n_kv_head": 2, "attn_bias": "true"},
        {"n_kv_head": 1, "enc_n_kv_head": 4},
        {"ffn_bias": "false"},
        {"trg_emb_prj_weight_sharing": "false", "emb_src_trg_weight_sharing": "false"},
    ],
    ids=str,
)
def test_it_is_the_same_model_and_finds_the_same_translations(subwords, tmp_path, folder, options):
    model = nmt.load(saved(tmp_path / "run", subwords, *made(subwords, norm="pre", **options)).folder, device="cpu")
    translate = bench_opennmt.translate_with(model, folder, beam=1, device="cpu")
    sources = subwords.src.encode(LINES)
    assert translate(sources, 30) == greedy(Translator(model.model, subwords, greedy_config(30)), sources)


def test_translations_end_where_ours_do(subwords, tmp_path, folder):
    model, recipe = made(subwords, norm="pre", trg_emb_prj_weight_sharing="false", emb_src_trg_weight_sharing="false")
    with torch.no_grad():
        model.trg_word_prj.weight[EOS] = 0.2 * model.decoder.layer_norm.bias  # so that some end before the limit
    sources = subwords.src.encode(LINES)
    found = greedy(Translator(model, subwords, greedy_config(30)), sources)
    assert len({len(ids) for ids in found}) > 2
    loaded = nmt.load(saved(tmp_path / "run", subwords, model, recipe).folder, device="cpu")
    assert bench_opennmt.translate_with(loaded, folder, beam=1, device="cpu")(sources, 30) == found


def test_another_model_is_not_timed(subwords, tmp_path, folder, monkeypatch):
    model = nmt.load(saved(tmp_path / "run", subwords, *made(subwords, norm="pre")).folder, device="cpu")
    monkeypatch.setattr(bench_opennmt, "_ACTIVATION", {"relu": "gelu"})
    with pytest.raises(RunError, match=r"another model: log-probabilities are up to .*leave --onmt out"):
        bench_opennmt.translate_with(model, folder, beam=1, device="cpu")


def command(run, folder, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("\n".join(LINES), encoding="utf-8")
    flags = ["--input", str(lines), "--ref", str(lines), "--rounds", "1", "--cores", "1", "--lines", "3", "--beam", "2"]
    contenders = ["--ours", "fp32", "--theirs", "--ct2-batch", "3", "64", "--onmt", str(folder)]
    return [bench_decoding.__file__, str(run.folder), *flags, *contenders]


def test_the_benchmark_of_translation_has_it_as_a_contender(subwords, tmp_path, folder, monkeypatch, capsys):
    run = saved(tmp_path / "run", subwords, *made(subwords, norm="pre"))
    monkeypatch.setattr(sys, "argv", command(run, folder, tmp_path))
    bench_decoding.main()
    said = capsys.readouterr().out
    assert re.search(r"^onmt fp32, 1 x 1 +\d+ +\d+ +\d+ +\d+\.\d% +\d+\.\d\d +(3|64)$", said, re.MULTILINE), said
    assert re.search(r"^nmt fp32, 1 x 1: \d+\.\d\dx onmt fp32, 1 x 1$", said, re.MULTILINE), said


def test_a_folder_without_it_is_answered_with_the_line_for_pip(run, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", command(run, tmp_path / "none", tmp_path))
    with pytest.raises(SystemExit, match=r"^bench_decoding: error: --onmt \S+none: no OpenNMT-py .*: pip [^\n]+$"):
        bench_decoding.main()


@pytest.mark.parametrize(
    ("options", "name"),
    [({"norm": "post"}, "model.norm: post"), *PECULIAR, ({"d_v": 16}, "model.d_v")],
    ids=str,
)
def test_what_has_no_place_there_is_refused_by_name(subwords, tmp_path, not_it, monkeypatch, options, name):
    run = saved(tmp_path / "run", subwords, *made(subwords, **{"norm": "pre", **options}))
    monkeypatch.setattr(sys, "argv", command(run, not_it.parent, tmp_path))
    with pytest.raises(
        SystemExit, match=rf"^bench_decoding: error: OpenNMT-py has no place for {name}[^,:\n]*: leave[^\n]+$"
    ):
        bench_decoding.main()


def test_recurrent_models_are_refused():
    assert list(bench_opennmt.obstacles(ModelConfig(architecture="seq2seq"))) == ["model.architecture: seq2seq"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("import spacy, fasttext, ahocorasick, nowhere_at_all", "cannot be imported .*nowhere_at_all"),
        ("__version__ = '3.0.4'", r"OpenNMT-py 3\.0\.4 was found, not 3\.5\.1"),
    ],
)
def test_one_that_cannot_be_used_is_said_to_be_so_and_leaves_nothing_behind(not_it, written, said):
    (not_it / "__init__.py").write_text(written, encoding="utf-8")
    before = list(sys.path)
    with pytest.raises(
        MachineError, match=rf"^--onmt \S+: .*{said}.*: pip install --no-deps --target FOLDER OpenNMT-py=="
    ):
        bench_opennmt.library(not_it.parent)
    assert sys.path == before
    stand_ins = [name for name in ("spacy", "fasttext", "ahocorasick") if name in sys.modules]
    assert all(sys.modules[name].__spec__ for name in stand_ins)  # real ones have it
