"""A resumed run is the uninterrupted run, bit for bit; and nothing that only watches changes it."""

import hashlib
import json
import shutil

import pytest
from witness import StopAt, plan_of

from nmt import checkpoint
from nmt.data import plan as plan_module
from nmt.errors import RunError
from nmt.files import sha256_of
from nmt.models import base
from nmt.run import Run
from nmt.training import state as state_module
from nmt.training.launch import launch
from nmt.training.validate import final_update
from tests.training.conftest import make_recipe

# Two epochs of six updates.
SHORT = {
    "batch": {"max_tokens": 400},
    "train": {"updates": 12, "save_every": 3, "log_every": 1},
    "valid": {"every": 4},
}


def in_short(sections):
    """SHORT with other sections, option by option."""
    mixed = dict(SHORT)
    for name, options in sections.items():
        mixed[name] = {**SHORT.get(name, {}), **options} if isinstance(options, dict) else options
    return mixed


@pytest.fixture
def short_of(recipe_of):
    """short_of(run name, section={option: value}, ...) -> Recipe of a run of twelve updates."""
    return lambda run="run", **sections: recipe_of(run, **in_short(sections))


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """A short run that nothing happened to. Read only."""
    recipe = make_recipe(corpus, tmp_path_factory.mktemp("uninterrupted") / "whole", **SHORT)
    assert launch(recipe) == "done"
    return Run(recipe.run_folder)


@pytest.fixture
def finished(whole, short_of):
    """The recipe of a copy of that run."""
    recipe = short_of()
    shutil.copytree(whole.folder, recipe.run_folder)
    return recipe


class StopAtUpdate:
    """Wants to stop at an update of a run that logs each one. Not the next after a validation, which asks, too."""

    def __init__(self, run, update):
        self.run, self.update = run, update

    def __call__(self):
        return self.run.log_file.exists() and f'"train", "update": {self.update - 1},' in self.run.log_file.read_text(
            "utf-8"
        )


def kinds_of(run):
    """The kinds of the lines of a log, but for those that each process ends with."""
    kinds = [json.loads(line)["kind"] for line in run.log_file.read_bytes().split(b"\n") if line]
    return [kind for kind in kinds if kind != "time"]


def digest_of_model(run):
    """SHA-256 of the weights of the model that translates."""
    checkpoint.verify(run.model_folder)
    return sha256_of(run.model_folder / checkpoint.MODEL)


def digest(run, update):
    """SHA-256 over all tensors of model, optimizer and moving average."""
    folder = run.checkpoint(update)
    whole = hashlib.sha256()
    for name in (checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.EMA):
        if not (folder / name).exists():
            continue
        for key, tensor in sorted(checkpoint.load_tensors(folder, name).items()):
            whole.update(key.encode() + tensor.numpy().tobytes())
    return whole.hexdigest()


def losses(run):
    lines = [json.loads(line) for line in run.log_file.read_bytes().split(b"\n") if line]
    return {line["update"]: line["loss"] for line in lines if line["kind"] == "valid"}


VARIANTS = {
    "adam": {},
    "muon": {"model": {"emb_init": "cooccurrence"}, "optim": {"name": "muon", "muon_lr": 3e-3}},
    "schedule-free": {"optim": {"name": "schedulefree"}},
    "upstream's model, and its moving average": {
        "model": {"norm": "post"},
        "optim": {"schedule": "noam"},
        "train": {"ema": 0.9},
    },
    "bf16": {"train": {"precision": "bf16"}},
    "packed": {
        "model": {"attn_dropout": 0.0},
        "batch": {"packed": True, "max_tokens": 357, "bpe_dropout": 0.2},
    },
    "merges left out, and noise": {
        "batch": {"bpe_dropout": 0.2},
        "regularize": {"noise": {"upper": 0.3, "typo": 0.3}},
    },
    "regularisers": {
        "regularize": {
            "r_drop": 5.0,
            "r_drop_from": 0.2,
            "src_word_dropout": 0.1,
            "trg_word_dropout": 0.2,
            "layer_drop": 0.4,
            "layer_drop_from": 0.4,
        }
    },
}


def assert_same_end(run, whole):
    """Both have the same weights, the same optimizer and the same validations."""
    assert digest(run, 12) == digest(whole, 12)
    histories = [checkpoint.verify(one.checkpoint(12))["history"] for one in (run, whole)]
    assert histories[0] == histories[1] and [entry["update"] for entry in histories[0]] == [4, 8, 12]


@pytest.mark.parametrize("variant", VARIANTS)
def test_three_resumes_in_a_chain_end_at_the_same_bits(short_of, variant):
    sections = {"valid": {"translate": False, "metric": "loss"}, **VARIANTS[variant]}
    undisturbed, chain = (short_of(run, **sections) for run in ("undisturbed", "chain"))
    assert launch(undisturbed) == "done"
    assert undisturbed.batch.per_update > 1 and undisturbed.model.dropout > 0
    one, other = Run(undisturbed.run_folder), Run(chain.run_folder)
    for update, epoch in ((2, 0), (3, 0), (10, 1)):
        assert launch(chain, StopAtUpdate(other, update)) == "stopped"
        state = checkpoint.verify(other.checkpoint(update))
        assert state["epoch"] == epoch and state["update_in_epoch"] > 0
    assert launch(chain) == "done"
    assert_same_end(other, one)
    assert losses(one) == losses(other)


def test_a_stop_exactly_at_the_end_of_an_epoch_goes_on_with_the_next(short_of, whole):
    recipe = short_of()
    run, first_epoch = Run(recipe.run_folder), len(plan_of(recipe).updates(0))
    assert launch(recipe, StopAtUpdate(run, first_epoch)) == "stopped"
    state = checkpoint.verify(run.checkpoint(first_epoch))
    assert (state["epoch"], state["update_in_epoch"]) == (1, 0)
    launch(recipe)
    assert_same_end(run, whole)


def test_an_epoch_that_an_earlier_version_began_in_other_batches_begins_anew(recipe_of, monkeypatch, capfd):
    recipe = recipe_of("run")
    launch(recipe, StopAt(4))
    assert "other batches" not in capfd.readouterr().err
    monkeypatch.setattr(plan_module, "VERSION", plan_module.VERSION + 1)
    launch(recipe, StopAt(2))
    state = checkpoint.verify(Run(recipe.run_folder).checkpoint(8))
    assert (state["update"], state["epoch"], state["update_in_epoch"]) == (8, 0, 3)
    assert "this version makes other batches: epoch 0, counted from 0, begins anew" in capfd.readouterr().err


@pytest.mark.parametrize("variant, anew", [("adam", False), ("packed", True)])
def test_an_epoch_of_padded_batches_goes_on_where_only_packed_ones_became_others(recipe_of, monkeypatch, variant, anew):
    recipe = recipe_of("run", **VARIANTS[variant])
    with monkeypatch.context() as earlier:
        earlier.setattr(state_module, "VERSION", 2)
        launch(recipe, StopAt(4))
    launch(recipe, StopAt(2))
    state = checkpoint.verify(Run(recipe.run_folder).checkpoint(8))
    assert (state["epoch"], state["update_in_epoch"], state["plan"]) == (0, 3 if anew else 8, plan_module.VERSION)


def test_a_stop_in_the_middle_of_a_validation_is_made_up_for(short_of, whole):
    recipe = short_of()
    run = Run(recipe.run_folder)
    # The fourth update is validated; the fifth and sixth question are asked during that.
    assert launch(recipe, StopAt(5)) == "stopped"
    state = checkpoint.verify(run.checkpoint(4))
    assert (state["update"], state["history"]) == (4, [])
    launch(recipe)
    assert_same_end(run, whole)


def test_watching_changes_nothing_and_the_seed_changes_everything(short_of, whole):
    found = {}
    for run, sections in {
        "watched": {"train": {"save_every": 2}, "valid": {"every": 3, "beam": 2}},
        "unwatched": {
            "train": {"log_every": 1000, "save_every": 1000},
            "valid": {"every": 1000, "translate": False, "metric": "loss"},
        },
        "other seed": {"seed": 4},
    }.items():
        recipe = short_of(run.replace(" ", "-"), **sections)
        launch(recipe)
        found[run] = digest(Run(recipe.run_folder), 12)
    assert digest(whole, 12) == found["watched"] == found["unwatched"]
    assert digest(whole, 12) != found["other seed"]


def test_changed_options_are_refused_by_name_and_harmless_ones_are_not(short_of):
    launch(short_of(), StopAt(2))
    with pytest.raises(RunError, match=r"optim\.lr was 0\.003, now 0\.004"):
        launch(short_of(optim={"lr": 4e-3}))
    with pytest.raises(RunError, match=r"model\.dropout was 0\.2, now 0\.1; seed was 3, now 5"):
        launch(short_of(model={"dropout": 0.1}, seed=5))
    assert launch(short_of(train={"log_every": 9}, decode={"beam": 2})) == "done"


def test_what_a_stop_saved_leaves_no_trace_in_what_is_kept_and_averaged(short_of, whole):
    recipe = short_of()
    run = Run(recipe.run_folder)
    assert launch(recipe, StopAtUpdate(run, 11)) == "stopped"
    assert run.updates()[-1] == 11  # between the saves of 9 and 12
    launch(recipe)
    assert run.updates() == whole.updates()
    assert digest_of_model(run) == digest_of_model(whole)


def test_a_kill_between_saving_and_deleting_leaves_no_more_than_was_asked_for(finished):
    run = Run(finished.run_folder)
    shutil.rmtree(run.model_folder)
    kept, old = run.updates(), run.checkpoint(3)
    state = {**checkpoint.verify(run.checkpoint(12)), "update": 3}
    checkpoint.save(old, {name: {} for name in (checkpoint.MODEL, checkpoint.OPTIMIZER)}, state)
    launch(finished)
    assert run.updates() == kept and not old.exists()


def test_a_model_that_was_damaged_is_chosen_again(finished):
    run = Run(finished.run_folder)
    digest, kinds = digest_of_model(run), kinds_of(run)
    (run.model_folder / checkpoint.MODEL).write_bytes(b"")
    launch(finished)
    assert (digest_of_model(run), kinds_of(run)) == (digest, kinds)
    assert kinds[-1] == "final"


def test_a_checkpoint_that_was_damaged_meanwhile_is_in_no_average(short_of, capsys):
    recipe = short_of()
    run = Run(recipe.run_folder)
    launch(recipe, StopAtUpdate(run, 11))
    (run.checkpoint(9) / checkpoint.MODEL).write_bytes(b"")
    launch(recipe)
    assert "left out a damaged checkpoint: " in capsys.readouterr().err
    assert final_update(run) == 12


def test_a_stop_while_the_final_model_is_chosen_is_no_end(short_of):
    recipe = short_of()
    run = Run(recipe.run_folder)
    assert launch(recipe, lambda: run.checkpoint(12).exists()) == "stopped"
    assert not run.model_folder.exists()
    assert launch(recipe) == "done"
    assert final_update(run) == 12


def test_a_finished_run_whose_checkpoints_were_deleted_is_not_begun_anew(finished, capsys):
    shutil.rmtree(Run(finished.run_folder).checkpoints)
    assert launch(finished) == "done"
    assert "nothing to do" in capsys.readouterr().err


def test_a_finished_run_has_nothing_to_do(finished, capsys):
    before = {path: path.stat().st_mtime_ns for path in Run(finished.run_folder).checkpoints.rglob("*")}
    assert launch(finished) == "done"
    assert "nothing to do" in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in Run(finished.run_folder).checkpoints.rglob("*")}


def test_a_second_process_on_the_folder_is_refused(recipe_of):
    recipe = recipe_of()
    with Run(recipe.run_folder).lock(), pytest.raises(RunError, match=r"is in use by process \d+ on \S+ since"):
        launch(recipe)


def test_a_damaged_checkpoint_is_passed_over_and_named(short_of, whole, capsys):
    recipe = short_of()
    run = Run(recipe.run_folder)
    launch(recipe, StopAtUpdate(run, 10))
    file = run.checkpoint(10) / checkpoint.MODEL
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    assert launch(recipe) == "done"
    assert f"passed over a damaged checkpoint: {file}" in capsys.readouterr().err
    assert_same_end(run, whole)


def test_when_no_checkpoint_is_whole_training_refuses_to_start_over(recipe_of):
    recipe = recipe_of()
    launch(recipe, StopAt(3))
    run = Run(recipe.run_folder)
    for update in run.updates():
        (run.checkpoint(update) / checkpoint.STATE).write_text("{}", encoding="utf-8")
    with pytest.raises(RunError, match="no checkpoint is whole"):
        launch(recipe)


def test_a_folder_of_somebody_else_is_left_alone(recipe_of):
    recipe = recipe_of()
    recipe.run_folder.mkdir()
    (recipe.run_folder / "thesis.tex").write_text("x", encoding="utf-8")
    with pytest.raises(RunError, match="is no run of ours"):
        launch(recipe)


def test_the_log_of_a_resumed_run_has_every_line_once(short_of):
    recipe = short_of(train={"log_every": 2})
    launch(recipe, StopAt(4))
    with Run(recipe.run_folder).log_file.open("ab") as file:
        file.write(
            b'{"kind": "train", "update": 10, "loss": 1}\n{"kind": "tra'
        )  # written after the checkpoint, then killed
    launch(recipe)
    lines = [json.loads(line) for line in Run(recipe.run_folder).log_file.read_bytes().split(b"\n") if line]
    updates = [line["update"] for line in lines if line["kind"] == "train"]
    assert updates == [2, 4, 6, 8, 10, 12]


def test_activations_computed_twice_leave_a_run_as_it_was_and_may_be_switched_on_halfway(short_of, whole, monkeypatch):
    layers = []
    checkpoint_of = base.checkpoint
    monkeypatch.setattr(
        base, "checkpoint", lambda layer, *a, **k: layers.append(layer) or checkpoint_of(layer, *a, **k)
    )
    recipe = short_of()
    run = Run(recipe.run_folder)
    assert launch(recipe, StopAtUpdate(run, 6)) == "stopped"
    assert not layers
    launch(short_of(train={"checkpoint_activations": True}))
    assert len(set(layers)) == 2  # that of the encoder and that of the decoder
    assert_same_end(run, whole)
