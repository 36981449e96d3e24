"""nmt.prepare and nmt.train: the commands called from Python, in a process that continues afterwards."""

import os
import random
import re
import runpy
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import nmt
from nmt import ops
from nmt.cli import preprocess, train
from nmt.training.engine import Engine

WORDS = ["the", "old", "ship", "left", "in", "May", "with", "a", "red", "sail", "and", "no", "wind", "at", "all"]
TINY = {
    "model": {"d_model": 16, "d_inner": 16, "n_head": 2, "n_enc_layer": 1, "n_dec_layer": 1, "dropout": 0.1},
    "subwords": {"vocab_size": 280},
    "train": {"updates": 4, "save_every": 2, "precision": "fp32"},
    "optim": {"warmup": 2},
}


def write_texts(folder, n=60):
    """Write two parallel files of n lines each, and return their paths."""
    draw = random.Random(0)
    lines = [" ".join(draw.choices(WORDS, k=6)) for _ in range(n)]
    for side, change in (("de", str), ("en", str.upper)):
        (folder / side).write_text("".join(f"{change(line)}\n" for line in lines), encoding="utf-8")
    return folder / "de", folder / "en"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A recipe as a dict, with existing corpus files."""
    folder = tmp_path_factory.mktemp("corpus")
    src, trg = write_texts(folder)
    corpus = {"src": src, "trg": str(trg)}
    data = {"src_lang": "de", "trg_lang": "en", "train": [corpus], "valid": corpus, "alarms": "warn"}
    return {"name": "tiny", **TINY, "data": {**data, "out": folder / "prepared"}}


@pytest.fixture(scope="module")
def prepared(recipe):
    return nmt.prepare(recipe)


def process_state():
    precision = torch.backends.mkldnn.matmul.fp32_precision
    signals = {name: signal.getsignal(name) for name in signal.valid_signals() if name not in (9, 19)}
    threads = {thread for thread in threading.enumerate() if not thread.daemon}
    random_state = random.getstate(), torch.get_rng_state().tolist()
    switch = sys.modules.get("nmt.kernels.switch")  # absent where there are no kernels
    return torch.get_num_threads(), precision, switch and switch.takes(torch.ones(1)), signals, random_state, threads


def test_python_api_equals_the_commands_and_keeps_process_state(prepared, tmp_path):
    ops.use_kernels(False)
    torch.manual_seed(3)
    before = process_state()
    run = nmt.train(prepared, train={"out": tmp_path / "python", "threads": 1})
    assert process_state() == before
    assert train.main([str(prepared), "--out", str(tmp_path / "command"), "--train.threads", "1"]) == 0
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (run, tmp_path / "command")]
    assert weights[0] == weights[1]
    assert nmt.train(run, train={"updates": 6}) == run  # training continues
    assert len(nmt.load(run).translate(["the old ship"])) == 1


def test_prepare_of_two_files_equals_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    src, trg = write_texts(tmp_path, 400)
    data = {"alarms": "warn", "valid_size": 20, "out": "python"}
    folder = nmt.prepare((src, trg), langs=("de", "en"), subwords={"vocab_size": 280}, data=data)
    flags = "--langs de en --out shells --subwords.vocab_size 280 --data.alarms warn --data.valid_size 20"
    assert preprocess.main(["--train", str(src), str(trg), *flags.split()]) == 0
    recipes = [(tmp_path / name / "recipe.yaml").read_text(encoding="utf-8") for name in (folder, "shells")]
    assert recipes[0].replace("python", "shells") == recipes[1]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
def test_options_that_the_prepared_recipe_lacks_are_named(recipe, prepared, capsys):
    for options, note in (({}, ""), ({"optim": {"lr": 0.125}}, "recipe.yaml has other values of optim.lr: pass")):
        capsys.readouterr()
        assert nmt.prepare(recipe, **options) == prepared
        assert note in (err := capsys.readouterr().err) and ("has other values" in err) == bool(note)


def test_ctrl_c_saves_a_checkpoint_then_raises_keyboard_interrupt(prepared, tmp_path, monkeypatch):
    sent = []

    def step(*args, real=Engine.step, **options):
        if not sent:
            sent.append(os.kill(os.getpid(), signal.SIGINT))
        return real(*args, **options)

    monkeypatch.setattr(Engine, "step", step)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        nmt.train(prepared, train={"out": tmp_path / "run"})
    assert signal.getsignal(signal.SIGINT) is handler
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: nmt.train(5), "^recipe: expected the path of a recipe or folder, or a dict, found 5 of type int"),
        (lambda r: nmt.prepare(None), "^recipe: expected the path"),
        (lambda r: nmt.train("no.yaml"), "no.yaml: cannot read the recipe"),
        (lambda r: nmt.train(r, trian={"updates": 5}), r"^trian: unknown option \(did you mean train\?\)"),
        (lambda r: nmt.train(r, train={"update": 5}), r"^train.update: unknown .*\(did you mean train.updates"),
        (lambda r: nmt.train(r, train={"updates": -5}), "^train.updates: expected a whole number"),
        (
            lambda r: nmt.train(r, train={"updates": {5}}),
            r"^train.updates: \{5\} of type set is not a value of an option",
        ),
        (lambda r: nmt.prepare("corpus.csv"), "^langs: expected the languages of the two sides"),
        (lambda r: nmt.prepare([3], langs=("de", "en")), "^recipe: with langs a corpus is expected"),
        (lambda r: nmt.prepare("corpus.csv", langs=("de", 5)), "^langs: expected the languages of the two sides"),
        (lambda r: nmt.train({**r, "data": {**r["data"], "out": "nowhere"}}), "nowhere"),
    ],
)
def test_user_mistake_raises_nmt_error_worded_for_python(recipe, call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(nmt.NmtError, match=message) as error:
        call(recipe)
    assert "command line" not in str(error.value)


def test_alarm_raises_alarm_error_and_prepares_nothing(recipe, tmp_path):
    with pytest.raises(nmt.AlarmError):
        nmt.prepare(recipe, data={"out": tmp_path / "data", "alarms": "stop"})
    assert not (tmp_path / "data").exists()


def test_readme_example_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    src, trg = (path.read_text(encoding="utf-8").split("\n") for path in write_texts(tmp_path, 1500))
    pairs = "".join(f"{source},{target}\n" for source, target in zip(src, trg, strict=True) if source)
    (tmp_path / "corpus.csv").write_text(f"de,en\n{pairs}", encoding="utf-8")
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(import nmt\n.*?)```", readme, re.DOTALL)
    full_training = 'train={"time_budget": "20m"}'
    assert full_training in example
    quick_training = 'model={"preset": "tiny"}, optim={"warmup": 1}, train={"updates": 2}'
    (tmp_path / "example.py").write_text(example.replace(full_training, quick_training), encoding="utf-8")
    runpy.run_path("example.py")


def test_package_and_prepare_import_without_torch():
    code = "import nmt, sys; nmt.prepare, nmt.train, nmt.AlarmError, dir(nmt); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=100).returncode == 0
