"""nmt-train --seeds: a run for each seed, one summary, and a folder that loads as an ensemble."""

import json
import statistics

import pytest
from witness import digest

import nmt
from nmt.cli.train import main
from nmt.recipe.reader import write_recipe
from nmt.run import Run
from nmt.training.launch import launch
from tests.training.conftest import SHORT, make_recipe


@pytest.fixture(scope="module")
def seeds(corpus, tmp_path_factory):
    """Folder of three short runs with seeds 1, 2 and 5; their recipe is in its parent folder."""
    folder = tmp_path_factory.mktemp("seeds")
    recipe = make_recipe(corpus, folder / "runs", **SHORT)
    write_recipe(recipe, folder / "recipe.yaml")
    assert main([str(folder / "recipe.yaml"), "--seeds", "1", "2", "5"]) == 0
    return recipe.run_folder


def test_run_of_each_seed_equals_the_run_alone(seeds, short_of):
    alone = short_of(seed=5)
    launch(alone)
    assert digest(alone, 12) == digest(short_of(train={"out": str(seeds / "seed-5")}), 12)


def test_all_runs_use_the_auto_values_of_the_first(corpus, tmp_path, monkeypatch):
    # With a time budget `auto` depends on the load of the machine.
    presets = iter(["tiny", "small"])
    monkeypatch.setattr("nmt.training.resolve.preset_for", lambda _: (next(presets), 0.1))
    recipe = make_recipe(corpus, tmp_path / "runs", **SHORT | {"model": {"preset": "auto", "d_model": 32}})
    write_recipe(recipe, tmp_path / "recipe.yaml")
    for seeds in (["7"], ["1", "2", "7"]):
        assert main([str(tmp_path / "recipe.yaml"), "--seeds", *seeds]) == 0
    first, *others = (Run(recipe.run_folder / f"seed-{seed}").recipe().model for seed in (7, 1, 2))
    assert first.preset == "tiny" and others == [first, first]


def test_summary_has_the_scores_of_the_chosen_models(seeds, capsys):
    summary = json.loads((seeds / "seeds.json").read_text(encoding="utf-8"))
    assert list(summary["runs"]) == ["seed-1", "seed-2", "seed-5"]
    values = []
    for name, entry in summary["runs"].items():
        state = json.loads((seeds / name / "model" / "state.json").read_text(encoding="utf-8"))
        assert entry == {"chosen": state["chosen"], **state["candidates"][state["chosen"]]}
        values.append(entry["chrf"])
    assert summary["mean"]["chrf"] == pytest.approx(statistics.mean(values))
    assert summary["standard_deviation"]["chrf"] == pytest.approx(statistics.stdev(values))
    assert (seeds / "report.html").read_text(encoding="utf-8").count('"name":"seed-') == 3
    before = (seeds / "seeds.json").read_bytes()
    assert main([str(seeds.parent / "recipe.yaml"), "--seeds", "1", "2", "5"]) == 0  # nothing is left to do
    out, err = capsys.readouterr()
    assert err.count("already trained") == 3 and "standard deviation" in out
    assert (seeds / "seeds.json").read_bytes() == before
    assert main([str(seeds), "--verify"]) == 2 and "name one of them" in capsys.readouterr().err
    assert main([str(seeds.parent / "recipe.yaml"), "--seeds", "2"]) == 0  # the others stay in the summary
    assert (seeds / "seeds.json").read_bytes() == before
    capsys.readouterr()
    assert main([str(seeds)]) == 2 and "a run for each seed" in capsys.readouterr().err


def test_runs_that_differ_in_more_than_the_seed_give_a_warning(corpus, tmp_path, capsys):
    recipe = make_recipe(corpus, tmp_path / "runs", **SHORT)
    write_recipe(recipe, tmp_path / "recipe.yaml")
    command = [str(tmp_path / "recipe.yaml"), "--seeds"]
    assert main([*command, "1", "2"]) == 0 and "warning: these runs" not in capsys.readouterr().err
    assert main([*command, "3", "--lr", "1e-3"]) == 0
    assert "warning: these runs differ in more options than the seed: optim.lr" in capsys.readouterr().err


def test_folder_of_seeds_loads_as_an_ensemble(seeds):
    ensemble = nmt.load(seeds)
    named = nmt.load([seeds / f"seed-{seed}" for seed in (1, 2, 5)])
    line = ["ein Mann läuft"]
    assert ensemble.translate(line)[0].score == named.translate(line)[0].score
    assert "Ensemble" in type(ensemble.model).__name__


def test_folder_of_a_single_run_and_wrong_seeds_are_refused(finished, tmp_path, capsys):
    write_recipe(finished, tmp_path / "recipe.yaml")
    assert main([str(tmp_path / "recipe.yaml"), "--seeds", "1", "2"]) == 2
    assert "is a run of a single seed" in capsys.readouterr().err
    assert main([str(tmp_path / "recipe.yaml"), "--seeds", "one"]) == 2
    assert "'one' is not a whole number from 0; RECIPE comes before --seeds" in capsys.readouterr().err
