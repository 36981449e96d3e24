"""--check predicts the cost of a recipe, --selftest tests that its model learns; neither leaves files behind."""

import sys
from types import SimpleNamespace

import pytest
import torch

from nmt.cli.train import main
from nmt.decoding.translator import Translator
from nmt.errors import MachineError, RecipeError, RunError
from nmt.masks import PackedMask
from nmt.models.transformer import Models
from nmt.recipe.reader import write_recipe
from nmt.run import Run
from nmt.training import check as check_module
from nmt.training.check import Findings, check, likely_troubles, selftest, table
from nmt.training.launch import launch
from nmt.training.materials import Trial, open_data
from nmt.training.precision import Precision
from nmt.training.validate import Validator

HEALTHY = SimpleNamespace(
    n_param=1000, n_pair=29_000, n_token=400_000, padding=0.03,
    n_update=30, n_update_in_epoch=20, seconds=1.0, tokens=4000.0, n_failed=0,
    n_valid=3, valid_seconds=0.5, valid_fits=True, measuring=2.0, checkpoint=10**6, disk=5 * 10**6, disk_left=10**9,
    peak=10**8, room=10**10, device="cpu", precision=Precision("fp32", "", "cpu"), compile="no (on a CPU it is slower)",
)  # fmt: skip


def healthy_but(**changes):
    return SimpleNamespace(**{**vars(HEALTHY), **changes})


# Large enough to learn sixteen pairs in a moment.
ABLE = {"model": {"d_model": 64, "d_inner": 128, "n_head": 4, "scale_emb_or_prj": "emb"}, "optim": {"lr": 1e-2}}
PACKED = {"packed": True, "max_tokens": 300}


@pytest.fixture(autouse=True)
def few_updates(monkeypatch):
    monkeypatch.setattr(check_module, "N_TIMED", 3)


def files_under(folder):
    return {
        (path.relative_to(folder), path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))
    }


def test_check_prints_predictions_and_leaves_no_files(recipe_of, tmp_path, capsys):
    file = tmp_path / "recipe.yaml"
    write_recipe(recipe_of(train={"ema": 0.9}), file)
    before = files_under(tmp_path)
    assert main([str(file), "--check"]) == 0
    assert files_under(tmp_path) == before
    out, err = capsys.readouterr()
    lines = dict(line.split("  ", 1) for line in out.split("\n") if "  " in line and not line.startswith("  "))
    rows = {name: value.strip() for name, value in lines.items()}
    assert {"parameters", "memory peak", "speed", "padding", "first validation", "epoch", "end", "disk"} <= set(rows)
    assert rows["corpus"].startswith("300 pairs") and "update 10: " in rows["first validation"]
    assert "likely trouble" in out and "trying" in err and "trying" not in out


@pytest.mark.parametrize(("option", "extra"), [("train.wandb", "wandb"), ("train.tensorboard", "tensorboard")])
def test_missing_package_is_reported_before_the_run_folder_exists(recipe_of, monkeypatch, option, extra):
    monkeypatch.setitem(sys.modules, extra, None)
    recipe = recipe_of(train={extra: True})
    for begin in (launch, lambda recipe: check(recipe, lambda _: None)):
        with pytest.raises(MachineError, match=rf"^{option}: .* pip install '{extra}>="):
            begin(recipe)
    assert not recipe.run_folder.exists()


def test_check_of_a_running_run_uses_its_resolved_auto_values(recipe_of, monkeypatch):
    recipe = recipe_of(batch={"max_tokens": "auto", "per_update": 1}, train={"updates": 3})
    launch(recipe)
    before = files_under(recipe.run_folder)
    monkeypatch.setattr("nmt.training.resolve.most_tokens", None)  # not called: the run has resolved it
    with Run(recipe.run_folder).lock():
        assert any(line.startswith("speed") for line in check(recipe, lambda _: None))
    assert {name for name, *_ in files_under(recipe.run_folder)} == {name for name, *_ in before}


def troubles_of(recipe):
    lines = check(recipe, lambda _: None)
    return lines[lines.index("likely trouble") + 1 :]


def test_check_reports_what_training_would_refuse(recipe_of, tmp_path):
    with pytest.raises(RecipeError, match=r"'encodr\.\*' matches no parameter"):
        check(recipe_of(train={"freeze": ["encodr.*"]}), lambda _: None)
    with pytest.raises(RunError, match="nowhere is not a run"):
        check(recipe_of(train={"init_from": str(tmp_path / "nowhere")}), lambda _: None)
    launch(recipe_of(train={"updates": 1}))
    origin = {"init_from": str(tmp_path / "run")}
    with pytest.raises(RunError, match=r"no parameter of .* fits"):
        check(recipe_of("child", train=origin, model={"d_model": 24, "d_inner": 40}), lambda _: None)
    ema_trouble, *_ = troubles_of(recipe_of(train={"updates": 1, "ema": 0.5}))
    assert "training will be refused: " in ema_trouble and "train.ema was 0.0, now 0.5" in ema_trouble
    head_trouble, *_ = troubles_of(recipe_of("child", train=origin, model={"n_head": 4}))
    assert head_trouble.endswith("compute something else: model.n_head: 2 there, 4 here")
    assert not any("refused" in line for line in troubles_of(recipe_of(train={"updates": 1})))
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for out in ("file", "file/below/it"):
        recipe = recipe_of(train={"out": str(tmp_path / out)})
        assert f"refused: {tmp_path}/file is no folder that can be written to" in troubles_of(recipe)[0]
        with pytest.raises(RunError, match="make it a folder that can be written to"):
            launch(recipe)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def test_check_predicts_the_end_of_a_time_budget(recipe_of):
    recipe = recipe_of(train={"updates": 10**6, "time_budget": "20s", "average": "none"})
    rows = dict(table(recipe, healthy_but(n_update=18, n_valid=2)))
    assert rows["end"] == "update 18 (0.9 epochs): when the 20s of train.time_budget are over, 2 validations"
    assert rows["first validation"].startswith("update 10: ")
    rows = dict(table(recipe_of(), HEALTHY))
    assert rows["end"] == "update 30 (1.5 epochs): after 32 s, 3 validations"
    findings = findings_of(recipe)
    assert findings.n_update < 10**6 and findings.n_valid >= -(-findings.n_update // 10)
    assert findings.n_update * findings.seconds <= 20.0


@pytest.mark.parametrize(("owner", "name"), [(Validator, "measure"), (Translator, "translate")])
def test_check_predicts_running_out_of_memory_in_validation(recipe_of, monkeypatch, owner, name):
    def run_out(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(owner, name, run_out)
    assert not findings_of(recipe_of()).valid_fits


def findings_of(recipe):
    data = open_data(recipe)
    return Findings(recipe, data, Trial(recipe, data, torch.device("cpu")))


@pytest.mark.parametrize(
    ("sections", "found", "words"),
    [
        ({}, {"padding": 0.3}, "30% of the batches is padding"),
        ({"batch": PACKED, "model": {"attn_dropout": 0.0}}, {"padding": 0.3}, "30% of the packed rows is empty"),
        ({"optim": {"schedule": "noam", "warmup": 30, "lr": 1e-3}}, {}, "the rate never falls"),
        ({"optim": {"schedule": "noam"}}, {}, "optim.lr: 0.003 has no effect with optim.schedule noam"),
        (
            {"optim": {"warmup": 25}},
            {"n_update": 25},
            "25 updates that train.time_budget has time for: the rate never falls",
        ),
        (
            {"model": {"d_model": 512}},
            {"n_param": 44_615_680, "n_token": 88_848, "n_update": 780},
            "44,615,680 parameters for 88,848 target tokens, 39 epochs of them: model.preset: auto picks at most tiny",
        ),
        ({}, {"n_update_in_epoch": 31}, "before every pair is seen"),
        ({}, {"n_update": 19}, "19 updates that train.time_budget has time for, before every pair is seen"),
        ({}, {"measuring": 9.5}, "validation takes 24% of the time"),
        ({}, {"n_failed": 2}, "memory is too small"),
        ({}, {"valid_fits": False}, "in the largest validation batch: make valid.max_tokens smaller"),
        ({}, {"peak": 95, "room": 100}, "nearly full: make batch.max_tokens smaller, or for a Transformer"),
        ({}, {"disk_left": 10**6}, "too little room"),
        ({}, {"device": "cuda"}, "1.6 to 2.8 times as fast"),
    ],
)
def test_likely_trouble_is_reported(recipe_of, sections, found, words):
    healthy = recipe_of(optim={"lr": 1e-3})
    assert not list(likely_troubles(healthy, HEALTHY))
    (trouble,) = likely_troubles(recipe_of(**sections), healthy_but(**found))
    assert words in trouble


def test_selftest_passes_and_leaves_no_files(recipe_of, tmp_path, capsys):
    file = tmp_path / "recipe.yaml"
    write_recipe(
        recipe_of(
            **{**ABLE, "optim": {"lr": 1e-5}}, train={"label_smoothing": 0.3, "epochs": 2}, batch={"max_tokens": "auto"}
        ),
        file,
    )
    before = files_under(tmp_path)
    assert main([str(file), "--selftest"]) == 0
    assert files_under(tmp_path) == before
    lines = capsys.readouterr().out.rstrip("\n").split("\n")
    assert [line[:6] for line in lines] == ["pass  "] * 4
    assert "(beam 1) finds 16 of 16 targets" in lines[2] and "(beam 5)" in lines[3]


def test_selftest_detects_a_decoder_that_sees_the_future(recipe_of, tmp_path, capsys, monkeypatch):
    """Teacher forcing is then easy, but search, which has no future to see, finds no target."""
    monkeypatch.setattr(
        "nmt.models.transformer.Models.get_subsequent_mask",
        lambda seq: torch.ones(1, seq.size(1), seq.size(1), dtype=torch.bool),
    )
    monkeypatch.setattr(Models, "packed_mask", lambda query, key, causal: PackedMask(query, key, causal=False))
    file = tmp_path / "recipe.yaml"
    write_recipe(recipe_of(**ABLE), file)
    assert main([str(file), "--selftest"]) == 1
    lines = capsys.readouterr().out.rstrip("\n").split("\n")
    assert [line[:6] for line in lines] == ["pass  ", "pass  ", "FAIL  ", "FAIL  "]


def test_failed_selftest_gives_advice(recipe_of, monkeypatch):
    monkeypatch.setattr(check_module, "MOST_UPDATES", 2)
    failures = [text for passed, text in selftest(recipe_of(**ABLE)) if not passed]
    assert (
        failures
        and "Try train.precision: fp32" in failures[0]
        and not any("so look at the search" in text for text in failures)
    )


def test_recurrent_model_passes_the_selftest(recipe_of):
    model = {"architecture": "seq2seq", "cell": "gru", "d_model": 256, "d_emb": 128}
    assert all(passed for passed, _ in selftest(recipe_of(model=model, optim={"lr": 2e-2})))
