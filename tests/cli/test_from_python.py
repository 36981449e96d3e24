"""nmt.prepare and nmt.train: the commands from Python, in a process that goes on afterwards."""

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


def texts(folder, n=60):
    """The names of two files with n lines each."""
    draw = random.Random(0)
    lines = [" ".join(draw.choices(WORDS, k=6)) for _ in range(n)]
    for side, change in (("de", str), ("en", str.upper)):
        (folder / side).write_text("".join(f"{change(line)}\n" for line in lines), encoding="utf-8")
    return folder / "de", folder / "en"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A recipe as a dict, of files that are there."""
    folder = tmp_path_factory.mktemp("corpus")
    src, trg = texts(folder)
    corpus = {"src": src, "trg": str(trg)}
    data = {"src_lang": "de", "trg_lang": "en", "train": [corpus], "valid": corpus, "alarms": "warn"}
    return {"name": "tiny", **TINY, "data": {**data, "out": folder / "prepared"}}


@pytest.fixture(scope="module")
def prepared(recipe):
    return nmt.prepare(recipe)


def state_of_process():
    products = torch.backends.mkldnn.matmul.fp32_precision
    signals = {name: signal.getsignal(name) for name in signal.valid_signals() if name not in (9, 19)}
    threads = {one for one in threading.enumerate() if not one.daemon}
    drawn = random.getstate(), torch.get_rng_state().tolist()
    switch = sys.modules.get("nmt.kernels.switch")  # absent where there are no kernels
    return torch.get_num_threads(), products, switch and switch.takes(torch.ones(1)), signals, drawn, threads


def test_python_prepares_and_trains_what_the_commands_do_and_leaves_the_process_as_it_was(prepared, tmp_path):
    ops.use_kernels(False)
    torch.manual_seed(3)
    before = state_of_process()
    run = nmt.train(prepared, train={"out": tmp_path / "python", "threads": 1})
    assert state_of_process() == before
    assert train.main([str(prepared), "--out", str(tmp_path / "command"), "--train.threads", "1"]) == 0
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (run, tmp_path / "command")]
    assert weights[0] == weights[1]
    assert nmt.train(run, train={"updates": 6}) == run  # it goes on
    assert len(nmt.load(run).translate(["the old ship"])) == 1


def test_a_pair_of_files_is_prepared_as_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    src, trg = texts(tmp_path, 400)
    data = {"alarms": "warn", "valid_size": 20, "out": "python"}
    found = nmt.prepare((src, trg), langs=("de", "en"), subwords={"vocab_size": 280}, data=data)
    flags = "--langs de en --out shells --subwords.vocab_size 280 --data.alarms warn --data.valid_size 20"
    assert preprocess.main(["--train", str(src), str(trg), *flags.split()]) == 0
    recipes = [(tmp_path / name / "recipe.yaml").read_text(encoding="utf-8") for name in (found, "shells")]
    assert recipes[0].replace("python", "shells") == recipes[1]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
def test_ctrl_c_saves_and_is_a_keyboard_interrupt_then(prepared, tmp_path, monkeypatch):
    sent = []

    def step(*args, real=Engine.step, **options):
        if not sent:
            sent.append(os.kill(os.getpid(), signal.SIGINT))
        return real(*args, **options)

    monkeypatch.setattr(Engine, "step", step)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        nmt.train(prepared, train={"out": tmp_path / "run"})
    assert signal.getsignal(signal.SIGINT) is before
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: nmt.train(5), "^recipe: expected the path of a recipe or of a folder.* found 5 of type int"),
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
def test_a_mistake_of_the_user_is_an_error_of_ours_in_words_of_python(recipe, call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(nmt.NmtError, match=message) as found:
        call(recipe)
    assert "command line" not in str(found.value)


def test_alarms_are_an_error_of_their_own_and_nothing_is_prepared(recipe, tmp_path):
    with pytest.raises(nmt.AlarmError):
        nmt.prepare(recipe, data={"out": tmp_path / "data", "alarms": "stop"})
    assert not (tmp_path / "data").exists()


def test_the_example_of_the_readme_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    src, trg = (path.read_text(encoding="utf-8").split("\n") for path in texts(tmp_path, 1500))
    pairs = "".join(f"{one},{other}\n" for one, other in zip(src, trg, strict=True) if one)
    (tmp_path / "corpus.csv").write_text(f"de,en\n{pairs}", encoding="utf-8")
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(import nmt\n.*?)```", readme, re.DOTALL)
    long = 'train={"time_budget": "20m"}'
    assert long in example
    quick = 'model={"preset": "tiny"}, optim={"warmup": 1}, train={"updates": 2}'
    (tmp_path / "example.py").write_text(example.replace(long, quick), encoding="utf-8")
    runpy.run_path("example.py")


def test_the_package_and_preparation_are_there_without_torch():
    code = "import nmt, sys; nmt.prepare, nmt.train, nmt.AlarmError, dir(nmt); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=100).returncode == 0
