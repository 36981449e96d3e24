"""What nmt-train --verify says of a run folder."""

import pytest
import torch
from made_run import HASTY, make_run

from nmt import checkpoint
from nmt.cli.train import main


@pytest.fixture
def run(tmp_path):
    """A run folder with two checkpoints and a chosen model, of a recipe without data."""
    made = make_run(tmp_path / "run", HASTY)
    made.data_file.write_text(f'{{"subwords": "{made.subwords().sha256}"}}\n', encoding="utf-8")
    weights = checkpoint.load_tensors(made.model_folder, checkpoint.MODEL)
    moments = {f"{name}|exp_avg": tensor for name, tensor in weights.items()}
    tensors = {checkpoint.MODEL: weights, checkpoint.OPTIMIZER: {**moments, f"{min(weights)}|step": torch.ones(())}}
    for update in (7, 10):
        checkpoint.save(made.checkpoint(update), tensors, {"update": update})
    return made


def verified(run, capsys):
    code = main(["--verify", str(run.folder)])
    return code, [line.split("\t") for line in capsys.readouterr().out.split("\n")[:-1]]


def rewrite(folder, name, tensors):
    """Damage that hashes do not show: the file is another one, and the manifest agrees."""
    kept = {file: checkpoint.load_tensors(folder, file) for file in (checkpoint.MODEL, checkpoint.OPTIMIZER)}
    checkpoint.save(folder, {**kept, name: tensors}, checkpoint.verify(folder))


def test_verify_says_what_is_whole_and_what_is_damaged_and_why(run, capsys):
    whole = [["update-00000007", "7", "whole"], ["update-00000010", "10", "whole"], ["model", "7", "whole"]]
    assert verified(run, capsys) == (0, whole)
    name = min(checkpoint.load_tensors(run.checkpoint(10), checkpoint.OPTIMIZER))
    for wrong in ({name: torch.zeros(3)}, {"nobody|exp_avg": torch.zeros(())}):
        rewrite(run.checkpoint(10), checkpoint.OPTIMIZER, wrong)
        code, lines = verified(run, capsys)
        assert code == 2 and "fits no parameter" in lines[1][2] and [lines[0], lines[2]] == [whole[0], whole[2]]
    (run.checkpoint(7) / checkpoint.OPTIMIZER).write_bytes(b"")
    rewrite(run.checkpoint(10), checkpoint.MODEL, {"other": torch.zeros(3)})
    (run.model_folder / checkpoint.MANIFEST).unlink()
    code, lines = verified(run, capsys)
    assert code == 2
    assert [line[:2] for line in lines] == [["update-00000007", "7"], ["update-00000010", "10"], ["model", "?"]]
    assert "0 bytes, the manifest says" in lines[0][2]
    assert "do not fit the recipe's model" in lines[1][2]
    assert lines[2][2].startswith("damaged: ") and "missing" in lines[2][2]


@pytest.mark.parametrize("text", ["[]", "null", '"subwords"', "{}", "{"])
def test_verify_sees_that_the_record_of_the_data_is_damaged(run, capsys, text):
    run.data_file.write_text(text + "\n", encoding="utf-8")
    assert main(["--verify", str(run.folder)]) == 2
    said = capsys.readouterr().err
    assert str(run.data_file) in said and "internal error" not in said
