"""Mistakes of users, their messages and exit codes, as a table."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made_run import HASTY, make_run

from nmt.cli import export, preprocess, train, translate
from nmt.errors import MachineError, NmtError, Unavailable

ROOT = Path(__file__).parents[2]
FILES = "--train t.de t.en --valid v.de v.en --langs de en --out"
NAME = "name: x"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Text files, and the run q."""
    made = tmp_path_factory.mktemp("messages")
    for name, n in (("t", 60), ("v", 20)):
        for side in ("de", "en"):
            lines = "".join(f"{name} {side} is {chr(97 + i % 26)}{i // 26}\n" for i in range(n))
            (made / f"{name}.{side}").write_text(lines, encoding="utf-8")
    (made / "large.en").write_text("A line of text.\n" * 70_000, encoding="utf-8")
    (made / "colon.en").write_text("Note: this is: text\n", encoding="utf-8")
    (made / "empty.yaml").write_text("# nothing yet\n", encoding="utf-8")
    (made / "x.yaml").write_text(NAME, encoding="utf-8")
    (made / "lone.yaml").write_text("just text\n", encoding="utf-8")
    (made / "no lines").write_text("", encoding="utf-8")
    (made / "blank").write_text("\n \n", encoding="utf-8")
    make_run(made / "q", HASTY)
    return made


def in_words(pattern):
    return re.escape(pattern).replace(r"…", ".*")


@pytest.mark.parametrize(
    ("main", "given", "code", "told"),
    [
        pytest.param(preprocess, f"{FILES} /proc/nope", 2, "/proc/nope: cannot be made: nothing can be written to /pr",
                     marks=linux),
        pytest.param(translate, "q --input t.de --out /proc/x.txt", 2, "/proc/x.txt: cannot be written: /proc is no",
                     marks=linux),
        (translate, "q --input t.de --out nowhere/x.txt", 2, "nowhere/x.txt: cannot be written"),
        (preprocess, "t.en", 2, "t.en is no recipe (a YAML file). To start from text files: nmt-preprocess --train"),
        (preprocess, "large.en", 2, "large.en is no recipe (a YAML file)"),
        (train, "colon.en", 2, "colon.en is no recipe (a YAML file)"),
        (train, "lone.yaml", 2, "lone.yaml:1: expected a mapping of sections and options"),
        (train, "empty.yaml", 2, "empty.yaml: the recipe is empty (expected name: and data:"),
        (train, "x.yaml", 2, "no prepared data at prepared/x: tried …/prepared/x. Make it: nmt-preprocess x.yaml"),
        (train, "x.yaml --train.epochs 3", 2, "--train.epochs: the end is given in updates: --updates N"),
        (train, "x.yaml --time-budget 3", 2, "like 90s, 20m, 1h30m or 2d, found \"3\" (did you mean 3m?)"),
        (train, "x.yaml --subwords.vocab_size many", 2,
         "expected a whole number >= 264, <= 1,000,000, found \"many\""),
        (train, "x.yaml --model.d_model 256 --model.n_head 3 --model.position rotary", 2,
         "3 heads do not divide model.d_model, which is 256 (take one of 1, 2, 4, 8, 16, 32, 64"),
        (train, "nowhere.yaml", 2, "nowhere.yaml: cannot read the recipe: No such file"),
        (translate, "q --input t.de --device cuda:99", 2, "cuda:99: cannot be used"),
        (translate, "q --attention a.html --input empty", 2, "empty"),
        (translate, "nowhere", 2, "nowhere is not a run folder"),
        (export, "x.yaml --to safetensors --out y", 2, "x.yaml is not a run folder"),
    ],
)  # fmt: skip
def test_a_mistake_has_one_message_and_its_exit_code(folder, monkeypatch, capsys, main, given, code, told):
    monkeypatch.chdir(folder)
    assert main.main(given.split()) == code
    said = capsys.readouterr().err
    errors = [line for line in said.split("\n") if "error: " in line]
    assert len(errors) == 1 and re.search(in_words(told), errors[0]), said
    assert "Traceback" not in said


def test_fp16_on_a_cpu_is_refused_before_a_folder_is_made(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert preprocess.main([*FILES.split(), "data", "--vocab-size", "280"]) == 0
    assert "on average: try --vocab-size 500" in capsys.readouterr().err
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert train.main(["data", "--precision", "fp16"]) == 2
    said = capsys.readouterr().err
    assert said == "nmt-train: error: train.precision: fp16 needs a GPU; on a CPU use auto, bf16 or fp32.\n"
    assert not Path("runs").exists()


@pytest.mark.parametrize("command", ["translate"])
def test_an_installation_without_its_packages_says_so(command, tmp_path):
    (tmp_path / "pydantic.py").write_text("raise ModuleNotFoundError(\"No module named 'pydantic'\", name='pydantic')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from nmt.cli.entry import {command} as c; sys.exit(c())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    told = f"nmt-{command}: error: nmt is installed without what it needs: no module pydantic. Install it again"
    assert done.returncode == 2 and done.stderr.startswith(told) and "Traceback" not in done.stderr


def test_exit_codes_are_those_of_the_documented_table():
    page = (ROOT / "docs/reference.md").read_text(encoding="utf-8").partition("## Exit codes")[2].partition("## ")[0]
    rows = dict(line.strip("| ").split(" | ", 1) for line in page.split("\n") if line.startswith("| "))
    assert list(rows) == ["code", "0", "1", "2", "3", "130, 143", "141"]
    assert (NmtError.exit_code, Unavailable.exit_code, MachineError.exit_code) == (2, 2, 1)
    assert "internal error" in rows["1"] and "GPU" in rows["2"] and "alarms" in rows["3"]


def test_a_hub_that_cannot_be_reached_is_asked_once(folder, monkeypatch):
    text = "name: x\ndata: {train: {dataset: a/b, split: train, src_column: a, trg_column: b}, "
    text += "valid: {src: v.de, trg: v.en}}\n"
    (folder / "hub.yaml").write_text(text, encoding="utf-8")
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    begin = time.monotonic()
    command = [sys.executable, "-m", "nmt.cli.preprocess", "hub.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and time.monotonic() - begin < 180
    (line,) = done.stderr.splitlines()
    assert "dataset a/b train: cannot be loaded (the hub http://127.0.0.1:9 cannot be reached" in line
