"""Options of search that were stored in a run's recipe, and what training notes for translation."""

import json
import statistics
from pathlib import Path

import pytest
from test_resume import StopAtUpdate, digest_of_model

from nmt.recipe.reader import OPTIONS, store
from nmt.run import USUAL_RATIOS, USUAL_SRC_LEN, Run
from nmt.training.launch import launch

CHOSEN = {"beam": 3, "length_penalty": "average", "alpha": 0.4}


def in_force(run):
    return {name: getattr(run.recipe().decode, name) for name in OPTIONS}


def test_training_goes_on_bit_for_bit_after_storing_and_keeps_what_was_stored(recipe_of, capsys):
    options = {"valid": {"beam": 2, "every": 5}, "train": {"updates": 8, "log_every": 1}}  # a beam uses the penalty
    whole, halves = (Run(recipe_of(name).run_folder) for name in ("whole", "halves"))
    launch(recipe_of("whole", **options))
    assert launch(recipe_of("halves", **options), StopAtUpdate(halves, 4)) == "stopped"
    store(halves.recipe_file, CHOSEN, {"metric": "bleu"})
    launch(recipe_of("halves", **options))
    assert digest_of_model(halves) == digest_of_model(whole)
    assert in_force(halves) == CHOSEN
    launch(recipe_of("halves", **options))  # finished: nothing to do, and nothing undone
    assert in_force(halves) == CHOSEN
    assert "already trained" in capsys.readouterr().err
    launch(recipe_of("halves", **options, decode={"beam": 4}))
    assert in_force(halves) == {"beam": 4, "length_penalty": "wu", "alpha": 1.0}


def test_a_run_knows_how_long_the_source_lines_of_its_training_are(recipe_of):
    recipe = recipe_of(train={"updates": 2})
    launch(recipe)
    run = Run(recipe.run_folder)
    with open(recipe.data.train[0].src, encoding="utf-8", newline="\n") as file:
        lines = file.read().split("\n")[:-1]
    lengths = sorted(map(len, run.subwords().src.encode(lines)))
    assert sum(length > run.usual_src_len() for length in lengths) <= len(lengths) / 100
    assert sum(length >= run.usual_src_len() for length in lengths) >= len(lengths) / 100


def test_a_run_knows_the_usual_ratio_of_lengths_by_target_language(recipe_of):
    recipe = recipe_of(train={"updates": 2})
    launch(recipe)
    sides = (recipe.data.train[0].src, recipe.data.train[0].trg)
    lines = [Path(side).read_text(encoding="utf-8").split("\n")[:-1] for side in sides]
    median = statistics.median(len(trg) / len(src) for src, trg in zip(*lines, strict=True))
    assert Run(recipe.run_folder).usual_ratios() == {recipe.data.trg_lang: pytest.approx(median, rel=0.02)}


def test_a_run_that_was_begun_before_that_was_noted_goes_on(recipe_of):
    run, recipe = Run(recipe_of().run_folder), recipe_of(train={"updates": 3, "log_every": 1})
    assert launch(recipe, StopAtUpdate(run, 2)) == "stopped"
    known = json.loads(run.data_file.read_bytes())
    del known[USUAL_SRC_LEN], known[USUAL_RATIOS]
    run.data_file.write_bytes(json.dumps(known).encode() + b"\n")
    assert run.usual_src_len() is None and run.usual_ratios() == {}
    assert launch(recipe) == "done"
