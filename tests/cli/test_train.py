"""What nmt-train does about signals, and what --verify says of a run folder."""

import os
import signal
import sys

import pytest
import torch

from nmt import checkpoint
from nmt.cli.begin import Stop
from nmt.cli.train import main
from nmt.data.subwords import Subwords
from nmt.models.build import build_model
from nmt.recipe.options import Recipe
from nmt.recipe.reader import write_recipe
from nmt.run import Run

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")


@pytest.fixture
def handlers():
    """The handlers of signals that a terminal gives, whatever the tests were started by; afterwards put back."""
    numbers = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, n)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@posix
@pytest.mark.parametrize("name", ["SIGINT", "SIGUSR1"])
def test_a_signal_is_remembered_and_told(handlers, capfd, name):
    with Stop(["SIGINT", "SIGUSR1"], "saving first") as stop, stop.finishing():
        assert not stop() and stop.exit_code == 0
        os.kill(os.getpid(), getattr(signal, name))
        assert stop() and stop.exit_code == 128 + getattr(signal, name)
    assert f"{name}: saving first" in capfd.readouterr().err


@posix
def test_a_second_ctrl_c_stops_at_once_and_a_second_sigterm_does_not(handlers):
    with pytest.raises(KeyboardInterrupt), Stop() as stop, stop.finishing():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.exit_code == 143
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


@posix
def test_what_nohup_wants_ignored_stays_ignored(handlers):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Stop(["SIGHUP"]) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
    assert not stop()


@pytest.fixture
def run(tmp_path):
    """A run folder with two checkpoints and a chosen model, of a recipe without data."""
    model = {"d_model": 16, "d_inner": 16, "n_enc_layer": 1, "n_dec_layer": 1, "n_head": 2}
    recipe = Recipe.model_validate({"name": "tiny", "model": model, "subwords": {"vocab_size": 300}})
    made = Run(tmp_path / "run")
    made.folder.mkdir()
    write_recipe(recipe, made.recipe_file)
    subwords = Subwords.train(lambda: ["a small text"], lambda: ["another one"], recipe.subwords)
    subwords.save(made.subwords_file)
    made.data_file.write_text(f'{{"subwords": "{subwords.sha256}"}}\n', encoding="utf-8")
    weights = checkpoint.weights_of(build_model(recipe.model, subwords.src.n_vocab, subwords.trg.n_vocab, 0))
    moments = {f"{name}|exp_avg": tensor for name, tensor in weights.items()}
    tensors = {checkpoint.MODEL: weights, checkpoint.OPTIMIZER: {**moments, f"{min(weights)}|step": torch.ones(())}}
    for update in (5, 10):
        checkpoint.save(made.checkpoint(update), tensors, {"update": update})
    checkpoint.save(made.model_folder, {checkpoint.MODEL: weights}, {"update": 10})
    return made


def verified(run, capsys):
    code = main(["--verify", str(run.folder)])
    return code, [line.split("\t") for line in capsys.readouterr().out.split("\n")[:-1]]


def test_verify_says_what_is_whole(run, capsys):
    code, lines = verified(run, capsys)
    assert code == 0
    assert lines == [["update-00000005", "5", "whole"], ["update-00000010", "10", "whole"], ["model", "10", "whole"]]


def rewrite(folder, name, tensors):
    """Damage that hashes do not show: the file is another one, and the manifest agrees."""
    kept = {
        file: checkpoint.load_tensors(folder, file)
        for file in (checkpoint.MODEL, checkpoint.OPTIMIZER)
        if (folder / file).exists()
    }
    checkpoint.save(folder, {**kept, name: tensors}, checkpoint.verify(folder))


def test_verify_says_what_is_damaged_and_why(run, capsys):
    (run.checkpoint(5) / checkpoint.OPTIMIZER).write_bytes(b"")
    rewrite(run.checkpoint(10), checkpoint.MODEL, {"other": torch.zeros(3)})
    (run.model_folder / checkpoint.MANIFEST).unlink()
    code, lines = verified(run, capsys)
    assert code == 2
    assert [line[:2] for line in lines] == [["update-00000005", "5"], ["update-00000010", "10"], ["model", "?"]]
    assert "0 bytes, the manifest says" in lines[0][2]
    assert "do not fit the recipe's model" in lines[1][2]
    assert lines[2][2].startswith("damaged: ") and "missing" in lines[2][2]


def test_verify_sees_an_optimizer_of_another_model(run, capsys):
    name = min(checkpoint.load_tensors(run.checkpoint(10), checkpoint.OPTIMIZER))
    rewrite(run.checkpoint(10), checkpoint.OPTIMIZER, {name: torch.zeros(3)})
    code, lines = verified(run, capsys)
    assert code == 2 and "fits no parameter" in lines[1][2] and lines[0][2] == "whole"


@pytest.mark.parametrize("text", ["[]", "null", '"subwords"', "{}", "{"])
def test_verify_sees_that_the_record_of_the_data_is_damaged(run, capsys, text):
    run.data_file.write_text(text + "\n", encoding="utf-8")
    assert main(["--verify", str(run.folder)]) == 2
    said = capsys.readouterr().err
    assert str(run.data_file) in said and "internal error" not in said
