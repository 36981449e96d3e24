"""A resumed run is the uninterrupted run, bit for bit, wherever it was stopped; watching changes nothing."""

import itertools
import math
import re
import shutil

import pytest
import torch
from witness import digest, engine_of, left_by, log_of, logged, plan_of, state_of, stop_at, stop_at_update, tensors

from nmt import checkpoint
from nmt.data import plan as plan_module
from nmt.data.plan import Position
from nmt.errors import RunError
from nmt.models import base
from nmt.run import Run
from nmt.training.engine import Engine
from nmt.training.launch import launch
from nmt.training.precision import Precision
from nmt.training.state import dropout_seed
from nmt.training.validate import Validation

NEVER = {"every": 10_000, "translate": False, "metric": "loss"}
FORCED = {"every": 4, "translate": False, "metric": "loss"}

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
def test_resumes_in_a_chain_end_at_the_same_bits(short_of, variant):
    sections = {"valid": FORCED, **VARIANTS[variant]}
    undisturbed, chain = (short_of(run, **sections) for run in ("undisturbed", "chain"))
    assert launch(undisturbed) == "done"
    assert undisturbed.batch.per_update > 1 and undisturbed.model.dropout > 0
    for update, epoch in ((2, 0), (10, 1)):
        assert launch(chain, stop_at_update(chain, update)) == "stopped"
        state = state_of(chain, update)
        assert state["epoch"] == epoch and state["update_in_epoch"] > 0
    assert launch(chain) == "done"
    assert left_by(chain) == left_by(undisturbed)


def test_stops_within_an_epoch_and_at_its_end_leave_no_trace_in_any_file_or_line(recipe_of, monkeypatch):
    # A loss scale that doubles every fourth update, as in fp16, which a CPU has not.
    doubling = {"init_scale": 4.0, "growth_interval": 4}
    monkeypatch.setattr(Precision, "scaler", lambda self: torch.amp.GradScaler("cpu", **doubling))
    options = {"train": {"ema": 0.9, "log_every": 1, "updates": 15}, "optim": {"schedule": "cosine"}}
    options |= {"batch": {"max_tokens": 400}, "valid": {"every": 8}}  # not where it would be asked whether to stop
    whole, chain = recipe_of("whole", **options), recipe_of("chain", **options)
    plan = plan_of(whole)
    n_first, n_second = len(plan.updates(0)), len(plan.updates(1))
    assert launch(whole) == "done"
    updates, places = (2, 5, n_first, n_first + 1, n_first + n_second), []
    for update in updates:
        assert launch(chain, stop_at_update(chain, update)) == "stopped"
        state = state_of(chain, update)
        places.append((state["epoch"], state["update_in_epoch"]))
    assert places == [(0, 2), (0, 5), (1, 0), (1, 1), (2, 0)]
    assert launch(chain) == "done"
    assert left_by(whole) == left_by(chain)
    state = state_of(chain, 15)
    assert state["scaler"]["scale"] == 4.0 * 2 ** (15 // 4) and len(state["history"]) == 2
    for kind, names in {"train": ("loss", "learning_rate", "gradient_norm"), "valid": ("loss", "bleu")}.items():
        for name in names:
            assert logged(whole, kind, name) == logged(chain, kind, name)
    assert len(logged(chain, "train", "loss")) == 15


def test_a_stop_in_the_validation_that_ends_training_leaves_no_trace_in_the_log(recipe_of, monkeypatch):
    options = {
        "optim": {"lr": 1e-12},
        "train": {"log_every": 50},
        "valid": {"every": 2, "patience": 1, "metric": "loss"},
    }
    whole, chain = recipe_of("whole", **options), recipe_of("chain", **options)
    assert launch(whole) == "patience"
    measure, asked = Validation.measure, []
    monkeypatch.setattr(Validation, "measure", lambda *args: asked.append(args) or measure(*args))
    assert launch(chain, lambda: len(asked) == 2) == "stopped"
    assert launch(chain) == "patience"
    for name in ("loss", "learning_rate", "gradient_norm"):
        assert logged(chain, "train", name) == logged(whole, "train", name) != {}
    assert digest(chain) == digest(whole)


RATES = {
    "noam": lambda u: 2.0 * 16**-0.5 * min(u**-0.5, u * 5**-1.5),
    "cosine": lambda u: 3e-3 * (u / 5 if u < 5 else 0.5 + 0.5 * math.cos(math.pi * (u - 5) / (16 - 5))),
}


@pytest.mark.parametrize("schedule", RATES)
def test_the_rate_of_an_update_is_the_formula_after_a_resume_and_after_skipped_updates(
    recipe_of, monkeypatch, schedule
):
    options = {"optim": {"schedule": schedule}, "train": {"log_every": 1, "updates": 16}, "valid": NEVER}
    options["batch"] = {"max_tokens": 400}
    whole, chain = recipe_of("whole", **options), recipe_of("chain", **options)
    plan = plan_of(whole)
    bad, backward = {dropout_seed(3, Position(0, update), 0) for update in (1, 4)}, Engine.backward

    def spoiling(engine, work, *rest, **more):
        backward(engine, work, *rest, **more)
        if work[0].seed in bad:
            next(engine.model.parameters()).grad[0, 0] = math.nan

    monkeypatch.setattr(Engine, "backward", spoiling)
    assert launch(whole) == "done"
    for n in (2, 3):  # after a skipped one
        assert launch(chain, stop_at(n)) == "stopped"
    assert launch(chain) == "done"
    found = logged(whole, "train", "learning_rate")
    assert found == pytest.approx({u: RATES[schedule](u) for u in range(1, 17)}, rel=1e-12)
    assert logged(chain, "train", "learning_rate") == found and left_by(whole) == left_by(chain)
    state = state_of(whole, 16)
    assert state["n_skipped"] == 2
    assert sum(len(plan.updates(epoch)) for epoch in range(state["epoch"])) + state["update_in_epoch"] == 18


def test_the_moving_average_is_the_formula_over_the_weights_of_every_update(recipe_of):
    recipe = recipe_of(train={"ema": 0.4, "updates": 12, "save_every": 1, "keep_last": 99}, valid=NEVER)
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


def test_an_epoch_that_an_earlier_version_began_in_other_batches_begins_anew(recipe_of, monkeypatch, capfd):
    recipe = recipe_of("run")
    launch(recipe, stop_at(4))
    assert "other batches" not in capfd.readouterr().err
    monkeypatch.setattr(plan_module, "VERSION", plan_module.VERSION + 1)
    launch(recipe, stop_at(2))
    state = state_of(recipe, 8)
    assert (state["update"], state["epoch"], state["update_in_epoch"]) == (8, 0, 3)
    assert "this version forms other batches: epoch 0, counted from 0, starts again" in capfd.readouterr().err


def test_watching_changes_nothing_and_the_seed_changes_everything(short_of, whole):
    found = {}
    for run, sections in {
        "watched": {"train": {"save_every": 2}, "valid": {"every": 3, "beam": 2}},
        "unwatched": {"train": {"log_every": 1000, "save_every": 1000}, "valid": NEVER},
        "other-seed": {"seed": 4},
    }.items():
        launch(short_of(run, **sections))
        found[run] = digest(short_of(run), 12)
    assert digest(whole, 12) == found["watched"] == found["unwatched"] != found["other-seed"]


def test_a_model_that_was_damaged_is_chosen_again(finished, whole):
    run = Run(finished.run_folder)
    (run.model_folder / checkpoint.MODEL).write_bytes(b"")
    launch(finished)
    assert left_by(finished) == left_by(whole)
    assert [line["kind"] for line in log_of(finished)] == [line["kind"] for line in log_of(whole)]


def test_a_checkpoint_that_was_damaged_meanwhile_is_in_no_average(short_of, capsys):
    recipe = short_of()
    launch(recipe, stop_at_update(recipe, 11))
    (Run(recipe.run_folder).checkpoint(9) / checkpoint.MODEL).write_bytes(b"")
    launch(recipe)
    assert "skipped a damaged checkpoint: " in capsys.readouterr().err
    assert state_of(recipe)["update"] == 12


def test_a_stop_while_the_final_model_is_chosen_is_no_end(short_of):
    recipe = short_of()
    run = Run(recipe.run_folder)
    assert launch(recipe, lambda: run.checkpoint(12).exists()) == "stopped"
    assert not run.model_folder.exists()
    assert launch(recipe) == "done"
    assert state_of(recipe)["update"] == 12


def test_a_second_process_on_the_folder_is_refused(recipe_of):
    recipe = recipe_of()
    with Run(recipe.run_folder).lock(), pytest.raises(RunError, match=r"is in use by process \d+ on \S+ since"):
        launch(recipe)


def test_activations_computed_twice_leave_a_run_as_it_was_and_may_be_switched_on_halfway(short_of, whole, monkeypatch):
    layers, once = [], base.checkpoint
    monkeypatch.setattr(base, "checkpoint", lambda layer, *a, **k: layers.append(layer) or once(layer, *a, **k))
    recipe = short_of()
    assert launch(recipe, stop_at_update(recipe, 6)) == "stopped"
    assert not layers
    launch(short_of(train={"checkpoint_activations": True}))
    assert len(set(layers)) == 2  # that of the encoder and that of the decoder
    assert left_by(recipe) == left_by(whole)


# A run that had ended goes on where the recipe asks for another end and no update depends on where that is.


SHORT, LONG = 10, 15  # the first a multiple of neither of these
OPTIONS = {
    "batch": {"max_tokens": 400},
    "train": {"save_every": 3, "log_every": 1, "ema": 0.9, "average": "best", "keep_best": 2, "keep_last": 3},
    "valid": {"every": 4},
}


def of_length(recipe, updates, **train):
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"updates": updates, **train})})


def test_a_run_that_goes_on_after_its_end_is_the_one_that_was_begun_for_longer(recipe_of, capsys):
    whole, chain = (
        recipe_of(name, **{**OPTIONS, "optim": {"schedule": "inverse_sqrt"}}) for name in ("whole", "chain")
    )
    launch(of_length(whole, LONG))
    for updates in (5, SHORT, LONG):
        assert launch(of_length(chain, updates)) == "done"
        assert state_of(chain)["update"] == updates
    assert left_by(chain) == left_by(whole)
    capsys.readouterr()
    launch(of_length(chain, LONG))
    assert f"already trained to update {LONG}; nothing to do" in capsys.readouterr().err


def test_a_run_that_had_finished_says_so_and_where_its_end_is_now(recipe_of, capsys):
    recipe = recipe_of(**{**OPTIONS, "optim": {"schedule": "constant"}})
    clock = map(float, itertools.count()).__next__  # each look at it takes a second
    assert launch(of_length(recipe, 10**6, time_budget="60s"), clock=clock) == "time"
    reached = state_of(recipe)["update"]
    for number, (updates, budget, wanted) in enumerate(
        (
            (reached + 6, "", rf"now update {reached + 6}, about [\d.]+ s from now"),
            (10**6, "2h", "now time budget 2h, about 1 h 59 min from now"),
            (reached - 1, "", "already reached, so only the final model is chosen again"),
        )
    ):
        again = f"{recipe.run_folder}-{number}"
        shutil.copytree(recipe.run_folder, again)
        capsys.readouterr()
        launch(of_length(recipe, updates, time_budget=budget, out=again), stop_at(0))
        had = rf"this run had finished \(time budget 60s, update {reached}, BLEU [\d.]+\); its end is "
        assert re.search(had + wanted + "\n", capsys.readouterr().err)


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_what_its_time_ended_goes_on_with_more_of_it(recipe_of, schedule, capsys):
    recipe, reached = recipe_of(**{**OPTIONS, "optim": {"schedule": schedule, "warmup": 1}}), []
    many = 10**6
    ends = ((many, "40s", "time"), (many, "40s", "done"), (many, "70s", "time"), (LONG, "", "done"))
    for updates, budget, outcome in ends:
        clock = map(float, itertools.count()).__next__  # each look at it takes a second
        assert launch(of_length(recipe, updates, time_budget=budget), clock=clock) == outcome
        reached.append(state_of(recipe)["update"])
    assert reached[0] == reached[1] < reached[2] < reached[3] == LONG
    assert (f"the learning rate ({schedule}) rises" in capsys.readouterr().err) == (schedule != "constant")
    rate = logged(recipe, "train", "learning_rate")
    if schedule == "linear":
        assert rate[reached[0]] < rate[reached[0] + 1] > rate[reached[2]], rate


def test_where_updates_go_by_the_length_of_the_run_that_stays_and_the_words_say_why(recipe_of):
    recipe = recipe_of(**{**OPTIONS, "optim": {"schedule": "linear", "warmup": 1}})
    launch(of_length(recipe, 3))
    for other in (of_length(recipe, 4), of_length(recipe, 2), of_length(recipe, 3, time_budget="5m")):
        with pytest.raises(
            RunError, match=r"train\.\w+ was .* is fixed: it is the basis of optim\.schedule\. To resume"
        ):
            launch(other)


def test_a_model_without_a_checkpoint_is_not_trained_from_the_start_over_it(finished):
    run = Run(finished.run_folder)
    shutil.rmtree(run.checkpoints)
    before = run.log_file.read_bytes(), digest(finished)
    assert launch(finished) == "done"  # nothing to do
    with pytest.raises(RunError, match=r"has a model but no checkpoint, so .* --train\.init_from "):
        launch(of_length(finished, 14))
    assert (run.log_file.read_bytes(), digest(finished)) == before
