"""nmt-train --verify and --prepare."""

import os
import signal

import pytest
from made_run import FAST_OPTIONS, make_run

from nmt import checkpoint
from nmt.cli.preprocess import main as preprocess
from nmt.cli.train import main
from nmt.data import prepare as prepare_module
from tests.training.conftest import write_pairs


@pytest.fixture
def run(tmp_path):
    """A run folder with two checkpoints and a chosen model, of a recipe without data."""
    tiny_run = make_run(tmp_path / "run", FAST_OPTIONS)
    tiny_run.data_file.write_text(f'{{"subwords": "{tiny_run.subwords().sha256}"}}\n', encoding="utf-8")
    weights = checkpoint.load_tensors(tiny_run.model_folder, checkpoint.MODEL)
    moments = {f"{name}|exp_avg": tensor for name, tensor in weights.items()}
    for update in (7, 10):
        tensors = {checkpoint.MODEL: weights, checkpoint.OPTIMIZER: moments}
        checkpoint.save(tiny_run.checkpoint(update), tensors, {"update": update})
    return tiny_run


def run_verify(run, capsys):
    code = main(["--verify", str(run.folder)])
    return code, [line.split("\t") for line in capsys.readouterr().out.split("\n")[:-1]]


def test_verify_reports_whole_and_damaged_checkpoints_with_the_reason(run, capsys):
    whole = [["update-00000007", "7", "whole"], ["update-00000010", "10", "whole"], ["model", "7", "whole"]]
    assert run_verify(run, capsys) == (0, whole)
    (run.checkpoint(7) / checkpoint.OPTIMIZER).write_bytes(b"")
    (run.checkpoint(10) / checkpoint.STATE).unlink()
    (run.model_folder / checkpoint.MANIFEST).unlink()
    code, lines = run_verify(run, capsys)
    assert code == 2
    assert [line[:2] for line in lines] == [["update-00000007", "7"], ["update-00000010", "10"], ["model", "?"]]
    assert "its size or SHA-256 differs" in lines[0][2]
    assert "state.json: missing" in lines[1][2]
    assert lines[2][2].startswith("damaged: ") and "missing" in lines[2][2]


@pytest.mark.parametrize("text", ["[]", "null", '"subwords"', "{}", "{"])
def test_verify_reports_a_damaged_data_record(run, capsys, text):
    run.data_file.write_text(text + "\n", encoding="utf-8")
    assert main(["--verify", str(run.folder)]) == 2
    err = capsys.readouterr().err
    assert str(run.data_file) in err and "internal error" not in err


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Arguments for a short run in the current folder, on two corpora that are not prepared."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    train, valid = write_pairs(tmp_path / "corpus", "train", 300, 1), write_pairs(tmp_path / "corpus", "valid", 12, 2)
    data = f"{{src_lang: de, trg_lang: en, max_ratio: 9.0, train: {train}, valid: {valid}}}"
    text = f"name: x\ndata: {data}\nsubwords: {{vocab_size: 320}}\nmodel: {{preset: tiny}}\n"
    (tmp_path / "x.yaml").write_text(f"{text}valid: {{translate: false, metric: loss}}\n", encoding="utf-8")
    return ["x.yaml", "--updates", "2", "--device", "cpu"]


def test_prepare_makes_the_data_of_nmt_preprocess_only_if_missing(recipe, tmp_path, capsys):
    assert main(recipe) == 2
    assert "Make it: nmt-preprocess x.yaml, or nmt-train --prepare;" in capsys.readouterr().err
    assert preprocess(["x.yaml", "--data.out", "other"]) == 0
    expected = capsys.readouterr().err.replace("other", "prepared/x").partition("the model can be exported")[0]
    assert main([*recipe, "--prepare"]) == 0
    assert capsys.readouterr().err.startswith(expected)
    train_file = tmp_path / "prepared/x/train.arrow"
    assert train_file.read_bytes() == (tmp_path / "other/train.arrow").read_bytes()
    before = train_file.stat()
    assert main([*recipe, "--prepare"]) == 0
    assert capsys.readouterr().err == "runs/x: already trained to update 2; nothing to do.\n"
    assert train_file.stat() == before
    # Accepting an alarm of the data does not make it another run.
    assert main([*recipe, "--prepare", "--data.alarms", "warn"]) == 0


def test_failed_prepare_leaves_no_data_and_no_run(recipe, tmp_path, monkeypatch, capsys):
    leak = [f"--data.valid.{side}={tmp_path}/corpus/train.{code}" for side, code in (("src", "de"), ("trg", "en"))]
    assert main([*recipe, *leak, "--prepare"]) == 3
    assert "are in the training pairs" in capsys.readouterr().err
    with monkeypatch.context() as context:
        context.setattr(prepare_module, "count_words_of", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        assert main([*recipe, "--prepare"]) == 128 + signal.SIGTERM
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "_exit", lambda code: None)
    assert main([*recipe, "--prepare"]) == 2
    assert "several processes cannot prepare it: run nmt-preprocess first" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists() and [path.name for path in tmp_path.glob("prepared/*")] == ["x.report.html"]


@pytest.mark.parametrize("flag", ["--prepare", "--time-budget=20m", "--train.updates=5"])
def test_verify_refuses_flags_without_effect(run, capsys, flag):
    assert main(["--verify", flag, str(run.folder)]) == 2
    name = {"--time-budget=20m": "--train.time_budget"}.get(flag, flag.partition("=")[0])
    assert f"so {name} has no effect: leave it out" in capsys.readouterr().err
