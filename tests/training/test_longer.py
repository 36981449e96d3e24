"""A run that had ended goes on where the recipe asks for another end and no update depends on where that is."""

import hashlib
import itertools
import re
import shutil

import pytest
from witness import StopAt

from nmt import checkpoint
from nmt.errors import RunError
from nmt.run import Run
from nmt.training.budget import bound_to_length
from nmt.training.finish import final_update
from nmt.training.launch import launch

SHORT, LONG = 10, 15  # the first a multiple of neither of these
OPTIONS = {
    "batch": {"max_tokens": 400},
    "train": {"save_every": 3, "log_every": 1, "ema": 0.9, "average": "best", "keep_best": 2, "keep_last": 3},
    "valid": {"every": 4},
}
CLOCKS = ("seconds", "wall_seconds", "measure_seconds", "save_seconds", "stops")


def of_length(recipe, updates, **train):
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"updates": updates, **train})})


def left_by(recipe):
    """All that a finished run leaves but for clocks, and the log: of each folder its tensors and its state."""
    run, found = Run(recipe.run_folder), {}
    for folder in [run.model_folder, *map(run.checkpoint, run.updates())]:
        state = {name: told for name, told in checkpoint.verify(folder).items() if name not in CLOCKS}
        files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.safetensors")}
        found[folder.name] = (files, state)
    return found


@pytest.mark.parametrize("optim", [{}, {"schedule": "inverse_sqrt"}, {"schedule": "constant", "name": "muon"}])
def test_a_run_that_goes_on_after_its_end_is_the_one_that_was_begun_for_longer(recipe_of, optim, capsys):
    whole, chain = (recipe_of(name, **{**OPTIONS, "optim": optim}) for name in ("whole", "chain"))
    launch(of_length(whole, LONG))
    for updates in (5, SHORT, LONG):
        assert launch(of_length(chain, updates)) == "done"
        assert final_update(Run(chain.run_folder)) == updates
    assert left_by(of_length(chain, LONG)) == left_by(of_length(whole, LONG))
    capsys.readouterr()
    launch(of_length(chain, LONG))
    assert f"already trained to update {LONG}; nothing to do" in capsys.readouterr().err


def test_a_run_that_had_finished_says_so_and_where_its_end_is_now(recipe_of, capsys):
    recipe = recipe_of(**{**OPTIONS, "optim": {"schedule": "constant"}})
    clock = map(float, itertools.count()).__next__  # each look at it takes a second
    assert launch(of_length(recipe, 10**6, time_budget="40s"), clock=clock) == "time"
    reached = final_update(Run(recipe.run_folder))
    for number, (updates, budget, wanted) in enumerate(
        (
            (LONG, "", rf"now update {LONG}, about [\d.]+ s from here"),
            (10**6, "2h", "now time budget 2h, about 1 h 59 min from here"),
            (reached - 1, "", "already behind it, only the model is chosen anew"),
        )
    ):
        again = f"{recipe.run_folder}-{number}"
        shutil.copytree(recipe.run_folder, again)
        capsys.readouterr()
        launch(of_length(recipe, updates, time_budget=budget, out=again), StopAt(0))
        had = rf"this run had finished \(time budget 40s, update {reached}, BLEU [\d.]+\); its end is "
        assert re.search(had + wanted + "\n", capsys.readouterr().err)


def test_it_goes_on_too_where_it_was_stopped_before_anything_was_saved(recipe_of):
    whole, chain = recipe_of("whole", **OPTIONS), recipe_of("chain", **OPTIONS)
    launch(of_length(whole, LONG))
    launch(of_length(chain, SHORT))
    longer, run = of_length(chain, LONG), Run(chain.run_folder)
    assert not run.goes_on()
    assert launch(longer, StopAt(0)) == "stopped" and run.goes_on()
    assert launch(longer) == "done" and not run.goes_on()
    assert left_by(longer) == left_by(of_length(whole, LONG))


def test_an_end_that_is_past_is_one(recipe_of):
    recipe = recipe_of(**OPTIONS)
    assert launch(of_length(recipe, LONG), StopAt(6)) == "stopped"
    run = Run(recipe.run_folder)
    reached = run.updates()[-1]
    assert launch(of_length(recipe, reached - 1)) == "done"
    assert final_update(run) == reached
    assert launch(of_length(recipe, LONG)) == "done"
    assert final_update(run) == LONG


def test_what_its_time_ended_goes_on_with_more_of_it(recipe_of):
    recipe, reached = recipe_of(**{**OPTIONS, "optim": {"schedule": "constant"}}), []
    for budget, outcome in (("40s", "time"), ("40s", "done"), ("1000s", "done")):
        clock = map(float, itertools.count()).__next__  # each look at it takes a second
        assert launch(of_length(recipe, LONG, time_budget=budget), clock=clock) == outcome
        reached.append(final_update(Run(recipe.run_folder)))
    assert reached[0] == reached[1] < reached[2] == LONG


def test_what_patience_ended_goes_on_with_more_of_it(recipe_of):
    options = {**OPTIONS, "valid": {"every": 1, "translate": False, "metric": "loss", "patience": 1}}
    options["optim"] = {"schedule": "constant", "lr": 1.0, "warmup": 1}
    recipe = of_length(recipe_of(**options), SHORT)
    assert launch(recipe) == "patience"
    first = final_update(Run(recipe.run_folder))
    assert first is not None and first < SHORT
    assert launch(recipe) == "done"  # nothing to do
    assert final_update(Run(recipe.run_folder)) == first
    patient = recipe.model_copy(update={"valid": recipe.valid.model_copy(update={"patience": 0})})
    assert launch(patient) == "done"
    assert final_update(Run(recipe.run_folder)) == SHORT


@pytest.mark.parametrize(
    ("sections", "bound"),
    [
        ({"optim": {"schedule": "cosine", "warmup": 1}}, "optim.schedule"),
        ({"optim": {"schedule": "linear", "warmup": 1}}, "optim.schedule"),
        (
            {"optim": {"schedule": "wsd", "warmup": 1}, "regularize": {"layer_drop": 0.1, "layer_drop_from": 0.5}},
            "optim.schedule and regularize.layer_drop",
        ),
        ({"regularize": {"r_drop": 1.0, "r_drop_from": 0.1}}, "regularize.r_drop"),
        ({"regularize": {"src_word_dropout": 0.1, "word_dropout_from": 0.1}}, "regularize.src_word_dropout"),
    ],
)
def test_where_updates_go_by_the_length_of_the_run_that_stays_and_the_words_say_why(recipe_of, sections, bound):
    recipe = recipe_of(**{**OPTIONS, **sections})
    launch(of_length(recipe, 3))
    for other in (of_length(recipe, 4), of_length(recipe, 2), of_length(recipe, 3, time_budget="5m")):
        with pytest.raises(RunError, match=rf"train\.\w+ was .* stays, since it is what {bound} goes by\. To go on"):
            launch(other)


@pytest.mark.parametrize("regularize", [{}, {"r_drop": 1.0}])
def test_what_is_on_from_the_start_goes_by_no_length(recipe_of, regularize):
    assert bound_to_length(recipe_of(regularize=regularize)) == []


def test_a_model_without_a_checkpoint_is_not_trained_from_the_start_over_it(recipe_of):
    recipe = recipe_of(**OPTIONS)
    launch(of_length(recipe, 2))
    run = Run(recipe.run_folder)
    shutil.rmtree(run.checkpoints)
    before = run.log_file.read_bytes(), left_by(recipe)
    with pytest.raises(RunError, match=r"has a model and no checkpoint, so .* --train\.init_from with this folder"):
        launch(of_length(recipe, 4))
    assert (run.log_file.read_bytes(), left_by(recipe)) == before
