"""A resumed run equals the uninterrupted run bit for bit; logging and validation change nothing."""

import itertools
import math
import re
import shutil

import pytest
import torch
from witness import digest, engine_of, log_of, logged, plan_of, saved_by, state_of, stop_at, stop_at_update, tensors

from nmt import checkpoint
from nmt.data.plan import VERSION, Position
from nmt.errors import RunError
from nmt.models.transformer import Models
from nmt.run import Run
from nmt.training.engine import Engine
from nmt.training.launch import launch
from nmt.training.precision import Precision
from nmt.training.state import dropout_seed
from nmt.training.validate import Validation

NO_VALIDATION = {"every": 10_000, "translate": False, "metric": "loss"}
LOSS_ONLY = {"every": 4, "translate": False, "metric": "loss"}

NOISE = {"upper": 0.3, "typo": 0.3}
RECURRENT = {"architecture": "attention", "d_model": 16, "d_emb": 8, "dropout": 0.2}
VARIANTS = {
    "muon": {"model": {"emb_init": "cooccurrence"}, "optim": {"name": "muon", "muon_lr": 3e-3}},
    "upstream's model": {"model": {"norm": "post"}, "optim": {"schedule": "noam"}, "train": {"ema": 0.9}},
    "packed": {
        "model": {"attn_dropout": 0.0},
        "batch": {"packed": True, "max_tokens": 357, "bpe_dropout": 0.2},
        "train": {"precision": "bf16"},
    },
    "regularisers": {
        "batch": {"bpe_dropout": 0.2},
        "regularize": {"r_drop": 5.0, "src_word_dropout": 0.1, "trg_word_dropout": 0.2, "noise": NOISE},
    },
    "seq2seq": {"model": {**RECURRENT, "architecture": "seq2seq", "cell": "gru"}},
    "attention": {
        "model": {**RECURRENT, "attn_score": "additive", "input_feeding": True, "enc_direction": "both"},
        "optim": {"name": "muon"},
        "regularize": {"src_word_dropout": 0.1},
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_resumed_run_equals_uninterrupted_run(short_of, variant):
    sections = {"valid": LOSS_ONLY, **VARIANTS[variant]}
    uninterrupted, resumed = (short_of(run, **sections) for run in ("undisturbed", "chain"))
    assert launch(uninterrupted) == "done"
    assert uninterrupted.batch.per_update > 1 and uninterrupted.model.dropout > 0
    for update, epoch in ((2, 0), (10, 1)):
        assert launch(resumed, stop_at_update(resumed, update)) == "stopped"
        state = state_of(resumed, update)
        assert state["epoch"] == epoch and state["update_in_epoch"] > 0
    assert launch(resumed) == "done"
    assert saved_by(resumed) == saved_by(uninterrupted)


def test_stops_within_an_epoch_and_at_its_end_leave_no_trace(recipe_of, monkeypatch):
    # A loss scale that doubles every fourth update, as in fp16, which a CPU does not have.
    doubling = {"init_scale": 4.0, "growth_interval": 4}
    monkeypatch.setattr(Precision, "scaler", lambda self: torch.amp.GradScaler("cpu", **doubling))
    options = {"train": {"ema": 0.9, "log_every": 1, "updates": 15}, "optim": {"schedule": "cosine"}}
    options |= {"batch": {"max_tokens": 400}, "valid": {"every": 8}}  # not at an update where the run stops
    uninterrupted, resumed = recipe_of("whole", **options), recipe_of("chain", **options)
    plan = plan_of(uninterrupted)
    n_first, n_second = plan.n_update(0), plan.n_update(1)
    assert launch(uninterrupted) == "done"
    updates, positions = (2, 5, n_first, n_first + 1, n_first + n_second), []
    for update in updates:
        assert launch(resumed, stop_at_update(resumed, update)) == "stopped"
        state = state_of(resumed, update)
        positions.append((state["epoch"], state["update_in_epoch"]))
    assert positions == [(0, 2), (0, 5), (1, 0), (1, 1), (2, 0)]
    assert launch(resumed) == "done"
    assert saved_by(uninterrupted) == saved_by(resumed)
    state = state_of(resumed, 15)
    assert state["scaler"]["scale"] == 4.0 * 2 ** (15 // 4) and len(state["history"]) == 2
    for kind, names in {"train": ("loss", "learning_rate", "gradient_norm"), "valid": ("loss", "bleu")}.items():
        for name in names:
            assert logged(uninterrupted, kind, name) == logged(resumed, kind, name)
    assert len(logged(resumed, "train", "loss")) == 15


def test_stop_in_the_last_validation_leaves_no_trace_in_the_log(recipe_of, monkeypatch):
    options = {
        "optim": {"lr": 1e-12},
        "train": {"log_every": 50},
        "valid": {"every": 2, "patience": 1, "metric": "loss"},
    }
    uninterrupted, resumed = recipe_of("whole", **options), recipe_of("chain", **options)
    assert launch(uninterrupted) == "patience"
    measure, calls = Validation.measure, []
    monkeypatch.setattr(Validation, "measure", lambda *args: calls.append(args) or measure(*args))
    assert launch(resumed, lambda: len(calls) == 2) == "stopped"
    assert launch(resumed) == "patience"
    for name in ("loss", "learning_rate", "gradient_norm"):
        assert logged(resumed, "train", name) == logged(uninterrupted, "train", name) != {}
    assert digest(resumed) == digest(uninterrupted)


RATES = {
    "noam": lambda u: 2.0 * 16**-0.5 * min(u**-0.5, u * 5**-1.5),
    "cosine": lambda u: 3e-3 * (u / 5 if u < 5 else 0.5 + 0.5 * math.cos(math.pi * (u - 5) / (16 - 5))),
}


@pytest.mark.parametrize("schedule", RATES)
def test_learning_rate_equals_its_formula_despite_resumes_and_skipped_updates(recipe_of, monkeypatch, schedule):
    options = {"optim": {"schedule": schedule}, "train": {"log_every": 1, "updates": 16}, "valid": NO_VALIDATION}
    options["batch"] = {"max_tokens": 400}
    uninterrupted, resumed = recipe_of("whole", **options), recipe_of("chain", **options)
    plan = plan_of(uninterrupted)
    spoilt_seeds, backward = {dropout_seed(3, Position(0, update), 0) for update in (1, 4)}, Engine.backward

    def spoilt_backward(engine, work, *rest, **kwargs):
        backward(engine, work, *rest, **kwargs)
        if work[0].seed in spoilt_seeds:
            next(engine.model.parameters()).grad[0, 0] = math.nan

    monkeypatch.setattr(Engine, "backward", spoilt_backward)
    assert launch(uninterrupted) == "done"
    for n in (2, 3):  # after a skipped update
        assert launch(resumed, stop_at(n)) == "stopped"
    assert launch(resumed) == "done"
    rates = logged(uninterrupted, "train", "learning_rate")
    assert rates == pytest.approx({u: RATES[schedule](u) for u in range(1, 17)}, rel=1e-12)
    assert logged(resumed, "train", "learning_rate") == rates and saved_by(uninterrupted) == saved_by(resumed)
    state = state_of(uninterrupted, 16)
    assert state["n_skipped"] == 2
    assert sum(plan.n_update(epoch) for epoch in range(state["epoch"])) + state["update_in_epoch"] == 18


def test_moving_average_equals_its_formula(recipe_of):
    recipe = recipe_of(train={"ema": 0.4, "updates": 12, "save_every": 1, "keep_last": 99}, valid=NO_VALIDATION)
    launch(recipe)
    # The weights before the first update follow from the seed.
    first = engine_of(recipe)[1].model
    average = {name: weight.double() for name, weight in checkpoint.weights_of(first).items()}
    for u in range(1, 13):
        weights = tensors(recipe, u)
        decay = min(0.4, (1 + u) / (10 + u))
        average = {name: decay * average[name] + (1 - decay) * weight.double() for name, weight in weights.items()}
        found = tensors(recipe, u, checkpoint.EMA)
        assert found.keys() == weights.keys()
        for name, weight in found.items():
            torch.testing.assert_close(weight.double(), average[name], rtol=0, atol=1e-6)
    assert any((found[name] - weight).abs().max() > 1e-3 for name, weight in weights.items())


def test_epoch_that_another_version_planned_begins_anew(recipe_of, monkeypatch, capfd):
    recipe = recipe_of("run")
    launch(recipe, stop_at(4))
    assert "other batches" not in capfd.readouterr().err
    monkeypatch.setattr("nmt.training.state.VERSION", VERSION + 1)
    launch(recipe, stop_at(2))
    state = state_of(recipe, 8)
    assert (state["update"], state["epoch"], state["update_in_epoch"]) == (8, 0, 3)
    assert "this version forms other batches: epoch 0, counted from 0, starts again" in capfd.readouterr().err


def test_weights_depend_on_the_seed_but_not_on_logging_or_validation(short_of, uninterrupted):
    digests = {}
    for run, sections in {
        "watched": {"train": {"save_every": 2}, "valid": {"every": 3, "beam": 2}},
        "unwatched": {"train": {"log_every": 1000, "save_every": 1000}, "valid": NO_VALIDATION},
        "other-seed": {"seed": 4},
    }.items():
        launch(short_of(run, **sections))
        digests[run] = digest(short_of(run), 12)
    assert digest(uninterrupted, 12) == digests["watched"] == digests["unwatched"] != digests["other-seed"]


def test_damaged_final_model_is_chosen_again(finished, uninterrupted):
    run = Run(finished.run_folder)
    (run.model_folder / checkpoint.MODEL).write_bytes(b"")
    launch(finished)
    assert saved_by(finished) == saved_by(uninterrupted)
    assert [line["kind"] for line in log_of(finished)] == [line["kind"] for line in log_of(uninterrupted)]


def test_damaged_checkpoint_is_left_out_of_the_average(short_of, capsys):
    recipe = short_of()
    launch(recipe, stop_at_update(recipe, 11))
    (Run(recipe.run_folder).checkpoint(9) / checkpoint.MODEL).write_bytes(b"")
    launch(recipe)
    assert "skipped a checkpoint: " in capsys.readouterr().err
    assert state_of(recipe)["update"] == 12


def test_run_stopped_while_its_final_model_is_chosen_resumes(short_of):
    recipe = short_of()
    run = Run(recipe.run_folder)
    assert launch(recipe, lambda: run.checkpoint(12).exists()) == "stopped"
    assert not run.model_folder.exists()
    assert launch(recipe) == "done"
    assert state_of(recipe)["update"] == 12


def test_second_process_on_a_run_folder_is_refused(recipe_of):
    recipe = recipe_of()
    with Run(recipe.run_folder).lock(), pytest.raises(RunError, match=r"is in use by process \d+ on \S+ since"):
        launch(recipe)


def test_activation_checkpointing_changes_nothing_even_from_halfway(short_of, uninterrupted, monkeypatch):
    layers, original = [], Models.checkpoint
    monkeypatch.setattr(Models, "checkpoint", lambda layer, *a, **k: layers.append(layer) or original(layer, *a, **k))
    recipe = short_of()
    assert launch(recipe, stop_at_update(recipe, 6)) == "stopped"
    assert not layers
    launch(short_of(train={"checkpoint_activations": True}))
    assert len(set(layers)) == 2  # one of the encoder and one of the decoder
    assert saved_by(recipe) == saved_by(uninterrupted)


# A finished run continues to another end if no update depends on where the end is.


SHORT, LONG = 10, 15  # SHORT is a multiple of neither save_every nor valid.every
OPTIONS = {
    "batch": {"max_tokens": 400},
    "train": {"save_every": 3, "log_every": 1, "ema": 0.9, "average": "best", "keep_best": 2, "keep_last": 3},
    "valid": {"every": 4},
}


def with_end(recipe, updates, **train):
    return recipe.with_options(train={"updates": updates, **train})


def test_extended_run_equals_a_run_begun_for_longer(recipe_of, capsys):
    longer, extended = (
        recipe_of(name, **{**OPTIONS, "optim": {"schedule": "inverse_sqrt"}}) for name in ("whole", "chain")
    )
    launch(with_end(longer, LONG))
    for updates in (5, SHORT, LONG):
        assert launch(with_end(extended, updates)) == "done"
        assert state_of(extended)["update"] == updates
    assert saved_by(extended) == saved_by(longer)
    capsys.readouterr()
    launch(with_end(extended, LONG))
    assert f"already trained to update {LONG}; nothing to do" in capsys.readouterr().err


def test_extended_run_prints_its_new_end(recipe_of, capsys):
    recipe = recipe_of(**{**OPTIONS, "optim": {"schedule": "constant"}})
    clock = map(float, itertools.count()).__next__  # each reading takes a second
    assert launch(with_end(recipe, 10**6, time_budget="60s"), clock=clock) == "time"
    reached = state_of(recipe)["update"]
    for number, (updates, budget, new_end) in enumerate(
        (
            (reached + 6, "", r"about [\d.]+ s from now"),
            (10**6, "2h", "about 1 h 59 min from now"),
            (reached - 1, "", "already reached, so only the final model is chosen again"),
        )
    ):
        again = f"{recipe.run_folder}-{number}"
        shutil.copytree(recipe.run_folder, again)
        capsys.readouterr()
        launch(with_end(recipe, updates, time_budget=budget, out=again), stop_at(0))
        assert re.search(f"this run had finished; its new end is {new_end}\n", capsys.readouterr().err)


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_run_ended_by_its_time_budget_continues_with_a_larger_one(recipe_of, schedule):
    recipe, reached = recipe_of(**{**OPTIONS, "optim": {"schedule": schedule, "warmup": 1}}), []
    unlimited = 10**6
    ends = ((unlimited, "40s", "time"), (unlimited, "40s", "done"), (unlimited, "60s", "time"), (LONG, "", "done"))
    for updates, budget, outcome in ends:
        clock = map(float, itertools.count()).__next__  # each reading takes a second
        assert launch(with_end(recipe, updates, time_budget=budget), clock=clock) == outcome
        reached.append(state_of(recipe)["update"])
    assert reached[0] == reached[1] < reached[2] < reached[3] == LONG
    rates = logged(recipe, "train", "learning_rate")
    if schedule == "linear":
        assert rates[reached[0]] < rates[reached[0] + 1] > rates[reached[2]], rates


def test_new_end_is_refused_with_reason_if_the_schedule_depends_on_it(recipe_of):
    recipe = recipe_of(**{**OPTIONS, "optim": {"schedule": "linear", "warmup": 1}})
    launch(with_end(recipe, 3))
    for changed in (with_end(recipe, 4), with_end(recipe, 2), with_end(recipe, 3, time_budget="5m")):
        with pytest.raises(
            RunError, match=r"train\.\w+ was .* is fixed: it is the basis of optim\.schedule\. To resume"
        ):
            launch(changed)


def test_model_without_checkpoints_is_not_overwritten(finished):
    run = Run(finished.run_folder)
    shutil.rmtree(run.checkpoints)
    before = run.log_file.read_bytes(), digest(finished)
    assert launch(finished) == "done"  # nothing to do
    with pytest.raises(RunError, match=r"no checkpoint is intact, so .* --train\.init_from "):
        launch(with_end(finished, 14))
    assert (run.log_file.read_bytes(), digest(finished)) == before
