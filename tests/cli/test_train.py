"""What nmt-train --verify says of a run folder."""

import pytest
import torch

from nmt import checkpoint
from nmt.cli.train import main
from nmt.data.subwords import Subwords
from nmt.models.build import build_model
from nmt.recipe.options import Recipe
from nmt.recipe.reader import write_recipe
from nmt.run import Run


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
