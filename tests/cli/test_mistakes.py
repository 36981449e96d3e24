"""User mistakes and bad input: messages, exit codes, and no files left behind."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made_run import FAST_OPTIONS, make_run

from nmt.cli import export, preprocess, train, translate
from nmt.data.corpus import Prepared
from nmt.errors import MachineError, NmtError, Unavailable

ROOT = Path(__file__).parents[2]
DE, EN = b"ein Hund\nzwei Hunde\n", b"a dog\ntwo dogs\n"
FILE_FLAGS = "--train t.de t.en --valid v.de v.en --langs de en --out"
TEXTS = {
    "large.en": "A line of text.\n" * 70_000,
    "colon.en": "Note: this is: text\n",
    "empty.yaml": "# nothing yet\n",
    "x.yaml": "name: x",
    "own.yaml": "name: own\ndata: {train: {src: t.de, trg: t.en}, valid: {src: v.de, trg: v.en}}\n",
    "lone.yaml": "just text\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of text files and recipes, with the run q."""
    root = tmp_path_factory.mktemp("mistakes")
    for name, n in (("t", 60), ("v", 20)):
        for side in ("de", "en"):
            lines = "".join(f"{name} {side} is {chr(97 + i % 26)}{i // 26}\n" for i in range(n))
            (root / f"{name}.{side}").write_text(lines, encoding="utf-8")
    for name, text in TEXTS.items():
        (root / name).write_text(text, encoding="utf-8")
    make_run(root / "q", FAST_OPTIONS)
    return root


@pytest.mark.parametrize(
    ("main", "given", "told"),
    [
        (preprocess, "", "neither a recipe nor --train, --langs. Expected"),
        (preprocess, f"{FILE_FLAGS} /proc/nope", "/proc/nope: cannot be created: /proc is not writable"),
        (preprocess, "t.en", "t.en is not a recipe (a YAML file). To start from text files: nmt-preprocess --train"),
        (preprocess, "large.en", "large.en is not a recipe (a YAML file)"),
        (preprocess, f"{FILE_FLAGS} x --langs de jp", "data.trg_lang: 'jp' is not a language code (did you mean "),
        (preprocess, "own.yaml --langs de no", "--langs: for use without a recipe"),
        (preprocess, "none.yaml", "none.yaml"),
        (preprocess, "own.yaml --data.valid.src none.de", "no file none.de: tried"),
        (preprocess, "own.yaml --data.valid.src t.de", "t.de has 60 lines but v.en has 20"),
        (preprocess, "own.yaml --data.out x.yaml", "expected a folder"),
        (preprocess, "own.yaml --report x.html", "--report needs --check"),
        (preprocess, "own.yaml --check --report t.de", "t.de: is not a report"),
        (preprocess, "own.yaml --check --show 3", "argument --show: not allowed with argument --check"),
        (preprocess, "own.yaml --show 3", "no such folder of prepared data"),
        (train, "colon.en", "colon.en is not a recipe (a YAML file)"),
        (train, "lone.yaml", "lone.yaml:1: expected a mapping of sections and options"),
        (train, "empty.yaml", "empty.yaml:1: name: missing (expected text of"),
        (train, "x.yaml --max-epoch 3", "--max-epoch: unknown option (did you mean --epochs?)"),
        (train, "x.yaml --time-budget 3", "like 90s, 20m, 1h30m or 2d, found \"3\" (did you mean 3m?)"),
        (train, "x.yaml --subwords.vocab_size many", 'a whole number >= 264, <= 1,000,000, found "many"'),
        (train, "x.yaml --model.d_model 256 --model.n_head 3 --model.position rotary",
         "3 heads do not divide model.d_model, which is 256 (take one of 1, 2, 4, 8, 16, 32, 64"),
        (train, "nowhere.yaml", "nowhere.yaml: cannot read the recipe: No such file"),
        (translate, "q --input t.de --out /proc/x.txt", "/proc/x.txt: cannot be written: /proc is no"),
        (translate, "q --input pairs.tmx.gz", "pairs.tmx.gz: the name says that it holds pairs or records, but plain"),
        (translate, "q --input t.de --ref pairs.csv", "pairs.csv: the name says that it holds pairs"),
        (export, "x.yaml --to safetensors --out y", "x.yaml is not a run folder"),
    ],
)  # fmt: skip
def test_user_mistake_gives_one_message_and_exit_code_2(folder, monkeypatch, capsys, main, given, told):
    if "/proc" in given and not sys.platform.startswith("linux"):
        pytest.skip("needs /proc")
    monkeypatch.chdir(folder)
    assert main.main(given.split()) == 2
    err = capsys.readouterr().err
    (error,) = [line for line in err.split("\n") if "error: " in line]
    assert re.search(re.escape(told).replace("…", ".*"), error) and "Traceback" not in err


def test_fp16_on_a_cpu_is_refused_before_a_run_folder_is_made(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert preprocess.main([*FILE_FLAGS.split(), "data", "--vocab-size", "280"]) == 0
    capsys.readouterr()
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert train.main(["data", "--precision", "fp16"]) == 2
    err = capsys.readouterr().err
    assert err == "nmt-train: error: train.precision: fp16 needs a GPU; on a CPU use auto, bf16 or fp32.\n"
    assert not Path("runs").exists()


def run_preprocess(tmp_path, monkeypatch, capsys, src, trg, *flags):
    """Prepare a corpus of two files, and return the exit code and stderr. None instead of content: no such file."""
    monkeypatch.chdir(tmp_path)
    for name, content in (("v.de", DE), ("v.en", EN), ("t.de", src), ("t.en", trg)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    code = preprocess.main([*FILE_FLAGS.split(), "out", "--data.workers", "1", "--subwords.vocab_size", "264", *flags])
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err
    return code, captured.err


@pytest.mark.parametrize(
    ("src", "trg", "flags", "words"),
    [
        (None, EN, [], "data.train: no file t.de: tried"),
        (DE + b"\n", EN, [], "t.de has 3 lines but t.en has 2"),  # though the extra line is blank
        (DE + b"x", EN, [], "t.de has 3 lines but t.en has 2"),
        (b"", b"", [], "no lines in t.de and t.en"),
        (b"\n \n", EN, [], "2: 2 dropped for empty side (t.de:1, 2)"),  # raises an alarm
        (DE + b"f\xfcr\n", EN + b"for\n", [], "t.de:3: invalid UTF-8 at byte 2 (0xFC)"),
        (DE, EN, ["--data.out", "v.de/out"], "v.de"),
        (DE, EN, ["--data.max_ratio", ".nan"], "data.max_ratio"),
        (DE, EN, ["--data.max_ratoi", "4"], "--data.max_ratoi"),
    ],
)
def test_unusable_corpus_is_refused_and_nothing_is_left(tmp_path, monkeypatch, capsys, src, trg, flags, words):
    code, err = run_preprocess(tmp_path, monkeypatch, capsys, src, trg, *flags)
    assert code == (3 if "dropped" in words else 2) and words in err and "nmt-preprocess: error: " in err
    remaining = {path.name for path in tmp_path.iterdir()}
    assert remaining - {"out.report.html"} <= {"t.de", "t.en", "v.de", "v.en"}


@pytest.mark.parametrize(
    ("src", "trg", "flags", "n_kept", "words"),
    [
        (DE[:-1], EN[:-1], [], 2, "2 read"),
        (DE.replace(b"\n", b"\r\n"), EN, [], 2, "2 lines ended with a carriage return"),
        ("a\rb\x0bc\x0cd\u2028e\u2029f\u0085g\n".encode() + DE, b"a to g\n" + EN, [], 3, "3 read"),
        (b"a\x1cb\x1dc\x1ed\n" + DE, b"a to d\n" + EN, [], 2, "control characters  t.de:1"),
        (b"a\x1cb\x1dc\x1ed\n" + DE, b"a to d\n" + EN, ["--data.drop_control", "false"], 3, "3 read"),
        (b"\xef\xbb\xbf" + DE, EN, [], 2, "byte order mark"),
        (b"f\xfcr\n" + DE, b"for\n" + EN, ["--data.bad_utf8", "drop"], 2, "bad UTF-8           t.de:1"),
        (b"\n" + DE, b"x\n" + EN, [], 2, "empty side          t.de:1"),
        (b"ja\n" + DE, b"yes, and a good deal more than that is said\n" + EN, [], 2, "length ratio        t.de:1"),
    ],
)
def test_odd_lines_are_kept_or_dropped_and_counted(tmp_path, monkeypatch, capsys, src, trg, flags, n_kept, words):
    code, err = run_preprocess(tmp_path, monkeypatch, capsys, src, trg, "--accept-alarms", *flags)
    assert code == 0 and words in err and "nmt-preprocess: error" not in err
    assert Prepared.open(tmp_path / "out").train.n_pair == n_kept


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may read and write everything")
def test_unreadable_and_unwritable_files_are_reported(tmp_path, monkeypatch, capsys):
    (tmp_path / "closed").mkdir(mode=0o500)
    code, err = run_preprocess(tmp_path, monkeypatch, capsys, DE, EN, "--data.out", "closed/out")
    assert code == 2 and "closed" in err
    (tmp_path / "t.de").chmod(0)
    assert preprocess.main([*FILE_FLAGS.split(), "out"]) == 2
    assert "t.de: cannot be read (Permission denied)" in capsys.readouterr().err


def test_missing_dependency_is_named_in_the_error(tmp_path):
    (tmp_path / "pydantic.py").write_text("raise ModuleNotFoundError(\"No module named 'pydantic'\", name='pydantic')")
    command = [sys.executable, "-c", "import sys; from nmt.cli.begin import translate; sys.exit(translate())"]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    message = (
        "nmt-translate: error: nmt is installed without a package that it needs: no module pydantic. Install it again"
    )
    assert result.returncode == 2 and result.stderr.startswith(message) and "Traceback" not in result.stderr


def test_exit_codes_match_the_documented_table():
    page = (ROOT / "docs/reference.md").read_text(encoding="utf-8").partition("## Exit codes")[2].partition("## ")[0]
    rows = dict(line.strip("| ").split(" | ", 1) for line in page.split("\n") if line.startswith("| "))
    assert list(rows) == ["code", "0", "1", "2", "3", "130, 143", "141"]
    assert (NmtError.exit_code, Unavailable.exit_code, MachineError.exit_code) == (2, 2, 1)
    assert "internal error" in rows["1"] and "GPU" in rows["2"] and "alarms" in rows["3"]


def test_unreachable_hub_is_asked_only_once(folder, monkeypatch):
    text = "name: x\ndata: {train: {dataset: a/b, split: train, src_column: a, trg_column: b}, "
    (folder / "hub.yaml").write_text(text + "valid: {src: v.de, trg: v.en}}\n", encoding="utf-8")
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    command = [sys.executable, "-m", "nmt.cli.preprocess", "hub.yaml"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and time.monotonic() - start < 180
    (line,) = result.stderr.splitlines()
    assert "dataset a/b train: cannot be loaded (the hub http://127.0.0.1:9 cannot be reached" in line
