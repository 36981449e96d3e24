"""A stripped run folder: less of it, and the same translations."""

import pytest
import safetensors.torch
import torch
from tiny import LINES, made, saved

import nmt
from nmt.cli.translate import main
from nmt.errors import RunError
from nmt.export.parity import BF16, FP16, SAME, Ours, compare
from nmt.export.safetensors import export, is_exported, read
from nmt.recipe.exports import PRECISIONS
from nmt.run import Run

TOLERANCE = {"fp32": SAME, "fp16": FP16, "bf16": BF16}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_stripped_run_is_the_same_model_in_less_space(run, subwords, tmp_path, precision):
    export(run, None, tmp_path / "out", precision)
    weights = safetensors.torch.load_file(tmp_path / "out" / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {getattr(torch, PRECISIONS[precision])}
    model = nmt.load(run.folder, device="cpu").model
    found = compare(model, subwords, Ours(read(tmp_path / "out"), subwords), LINES, TOLERANCE[precision], most=40)
    assert (found.worst == 0.0) == (precision == "fp32")
    size = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert size < sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())


def test_python_and_the_command_take_it_for_a_run(run, tmp_path, capsysbinary):
    export(run, None, tmp_path / "out", "fp32")
    (tmp_path / "short").write_text("in May\nthe ship\n", encoding="utf-8")
    said = []
    for folder in (run.folder, tmp_path / "out"):
        flags = ["--decode.max_len_b", "5", "--show-scores", "--device", "cpu"]
        assert main([str(folder), "--input", str(tmp_path / "short"), *flags]) == 0
        said.append(capsysbinary.readouterr().out)
    assert said[0] == said[1] and said[0].count(b"\n") == 2
    a, b = (nmt.load(folder, device="cpu").score(["in May"], ["May"]) for folder in (run.folder, tmp_path / "out"))
    assert a == b


def test_numbers_that_fp16_cannot_hold_are_refused(subwords, tmp_path):
    model, recipe = made(subwords)
    with torch.no_grad():
        model.encoder.layer_stack[0].pos_ffn.w_1.weight[0, 0] = 1e5
    run = saved(tmp_path / "large", subwords, model, recipe)
    with pytest.raises(RunError, match=r"pos_ffn\.w_1\.weight .* too large for fp16: take bf16"):
        export(run, None, tmp_path / "out", "fp16")
    export(run, None, tmp_path / "out", "bf16")


def test_a_run_that_may_go_on_is_none_of_them(run, tmp_path):
    run.data_file.write_text('{"usual_src_len": 17}\n', encoding="utf-8")
    export(run, None, tmp_path / "out", "bf16")
    assert is_exported(tmp_path / "out") and not is_exported(run.folder)
    assert Run(tmp_path / "out").usual_src_len() == 17
    run.data_file.unlink()
