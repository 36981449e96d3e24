"""Export of a stripped run folder: smaller, with the same translations."""

from functools import partial

import pytest
import safetensors.torch
import torch
from tiny import LINES, make_model, save_model

import nmt
from nmt.cli.export import is_exported
from nmt.errors import RunError
from nmt.export.parity import BF16, FP16, SAME, compare, export, translate_and_score
from nmt.recipe.draft import PRECISIONS
from nmt.run import Run

TOLERANCE = {"fp32": SAME, "fp16": FP16, "bf16": BF16}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_stripped_run_translates_alike_and_is_smaller(run, subwords, tmp_path, precision):
    export(run, None, tmp_path / "out", precision)
    weights = safetensors.torch.load_file(tmp_path / "out" / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {getattr(torch, PRECISIONS[precision])}
    model, read = (nmt.load(folder, device="cpu").model for folder in (run.folder, tmp_path / "out"))
    exported = partial(translate_and_score, read)
    found = compare(model, subwords, exported, LINES, TOLERANCE[precision], most=40)
    assert (found.worst == 0.0) == (precision == "fp32")
    size = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert size < sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())


def test_weights_too_large_for_fp16_are_refused(subwords, tmp_path):
    model, recipe = make_model(subwords)
    with torch.no_grad():
        model.encoder.layer_stack[0].pos_ffn.w_1.weight[0, 0] = 1e5
    run = save_model(tmp_path / "large", subwords, model, recipe)
    with pytest.raises(RunError, match=r"pos_ffn\.w_1\.weight .* too large for fp16: take bf16"):
        export(run, None, tmp_path / "out", "fp16")
    export(run, None, tmp_path / "out", "bf16")


def test_a_resumable_run_is_not_taken_for_an_export(run, tmp_path):
    run.data_file.write_text('{"usual_src_len": 17}\n', encoding="utf-8")
    export(run, None, tmp_path / "out", "bf16")
    assert is_exported(tmp_path / "out", "safetensors") and not is_exported(run.folder, "safetensors")
    assert Run(tmp_path / "out").usual_src_len() == 17


def test_facts_of_the_training_data_that_a_run_ignores_are_not_exported(run, tmp_path):
    run.data_file.write_text("[]\n", encoding="utf-8")
    export(run, None, tmp_path / "out", "bf16")
    assert Run(tmp_path / "out").data_file.read_text(encoding="utf-8") == "{}\n"
