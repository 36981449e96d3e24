"""Only validations that measured the same are compared: for what is best, for patience, and for what is kept."""

import json

import pytest
from witness import StopAt

from nmt import checkpoint
from nmt.data.corpus import Prepared
from nmt.evaluation.metrics import METRICS, Metric, Score
from nmt.run import Run
from nmt.training.launch import launch
from nmt.training.precision import Precision
from nmt.training.state import TrainState
from nmt.training.validate import Validation, Validator, score_of

ONE = {"pairs": {"pairs": 1}, "translations": {"sentences": 1, "beam": 1}}
NOW = {"pairs": {"pairs": 50}, "translations": {"sentences": 50, "beam": 1}}
BEAM = {"pairs": {"pairs": 50}, "translations": {"sentences": 50, "beam": 4}}


def entry(update, loss, conditions=None):
    return {"update": update, "loss": loss, "bleu": 10 - loss, **({"how": conditions} if conditions else {})}


@pytest.mark.parametrize("metric, conditions, best, is_over", [
    ("loss", ONE, 4, False), ("bleu", ONE, 4, False),
    ("loss", BEAM, 2, True), ("bleu", BEAM, 4, False),  # a beam leaves the loss alone
    ("loss", None, 2, True), ("bleu", None, 2, True),  # an earlier version did not say how
])  # fmt: skip
def test_what_was_measured_otherwise_is_neither_best_nor_waited_for(metric, conditions, best, is_over):
    history = [entry(2, 1.0, conditions), entry(4, 2.0, NOW), entry(6, 3.0, NOW)]
    state = TrainState(6, history=history, conditions=NOW)
    assert state.best_update(metric) == best
    assert state.out_of_patience(metric, 2) == (best == 2) == is_over
    assert TrainState.from_json(state.to_json(metric), packed=False).history == history


def test_what_the_numbers_of_a_set_rest_on(recipe_of):
    def conditions(data=None, **options):
        recipe = recipe_of(data=data or {}, **options)
        return Validation(recipe, Prepared.open(recipe.data_folder), Precision("fp32", "", "cpu")).first.conditions

    usual = conditions()
    assert usual["pairs"] == {"pairs": 12} and usual["translations"]["sentences"] == 12
    assert conditions(valid={"max_tokens": 40, "every": 3, "patience": 2}) == usual
    assert conditions(valid={"max_sentences": 5})["pairs"] == usual["pairs"]
    assert conditions(valid={"max_sentences": 5})["translations"] == {**usual["translations"], "sentences": 5}
    assert conditions(valid={"beam": 3})["translations"] == {**usual["translations"], "beam": 3}
    assert conditions(decode={"alpha": 0.5})["translations"] == {**usual["translations"], "alpha": 0.5}
    assert conditions(valid={"translate": False, "metric": "loss"}) == {"pairs": usual["pairs"]}


@pytest.fixture
def lucky(monkeypatch):
    """In here a model is measured as better than it will ever be."""

    def measured(*_):
        return {"loss": 0.001, "perplexity": 1.001, "accuracy": 1.0}

    with monkeypatch.context() as patch:
        patch.setattr(Validator, "_forced", measured)
        yield patch.undo


def test_the_best_by_another_metric_stays_until_one_is_measured_by_this(recipe_of, lucky, capsys):
    """The first validation is by far the best."""
    train = {"updates": 12, "keep_last": 1, "save_every": 1, "average": "none"}
    loss = recipe_of(train=train, valid={"every": 4, "translate": False, "metric": "loss"})
    bleu = recipe_of(train=train, valid={"every": 4, "translate": True, "metric": "bleu"})
    run = Run(loss.run_folder)
    assert launch(loss, StopAt(5)) == "stopped"
    lucky()
    assert run.updates() == [4, 5]
    for n in (0, 1):  # it is known of what is saved meanwhile, too
        capsys.readouterr()
        assert launch(bleu, StopAt(n)) == "stopped"
        assert "valid.metric bleu yet. update-00000004, the best of before, stays" in capsys.readouterr().err
        assert run.updates()[0] == 4 and len(run.updates()) == 2
    assert launch(bleu) == "done"
    state = checkpoint.verify(run.checkpoint(12))
    assert state["best_update"] in (8, 12) and run.updates() == sorted({state["best_update"], 12})


@pytest.mark.parametrize("n_before, best", [(1, {8, 12}), (None, {4})])
def test_a_run_that_goes_on_with_another_part_of_the_set_compares_anew(recipe_of, lucky, capsys, n_before, best):
    usual = {
        "valid": {"every": 4, "translate": False, "metric": "loss"},
        "train": {"updates": 12, "keep_last": 1, "save_every": 3, "average": "none"},
    }
    valid = recipe_of().data.valid[0].model_dump(exclude_none=True)
    before, now = (recipe_of(data={"valid": {**valid, "max_sentences": n}}, **usual) for n in (n_before, None))
    run = Run(now.run_folder)
    assert launch(before, StopAt(5)) == "stopped"
    lucky()
    capsys.readouterr()
    assert launch(now, StopAt(1)) == "stopped"
    said = "loss is measured otherwise than when it was last: pairs 1 before and 12 now. 1 earlier validations"
    assert (said in capsys.readouterr().err) == (n_before == 1)
    assert 4 in run.updates()  # as long as nothing is known that is better
    assert launch(now) == "done"
    state = checkpoint.verify(run.checkpoint(12))
    assert state["best_update"] in best and run.updates() == sorted({state["best_update"], 12})
    assert [one["how"]["pairs"]["pairs"] for one in state["history"]] == [n_before or 12, 12, 12]
    assert checkpoint.verify(run.model_folder)["candidates"]["last"]["loss"] > 0.001


def test_a_finished_run_that_is_asked_to_choose_otherwise_does(recipe_of, capsys):
    usual = {"valid": {"every": 4, "translate": False, "metric": "loss"}}
    averaged, plain = (recipe_of(**usual, train={"updates": 8, "average": name}) for name in ("last", "none"))
    run = Run(averaged.run_folder)

    def candidates():
        return {name.split()[0] for name in checkpoint.verify(run.model_folder)["candidates"]}

    assert launch(averaged) == "done" and candidates() == {"last", "average"}
    assert launch(plain) == "done" and candidates() == {"last"}
    capsys.readouterr()
    assert launch(plain) == "done" and "nothing to do" in capsys.readouterr().err


def test_the_log_tells_of_the_updates_before_a_validation_that_ends_training(recipe_of):
    recipe = recipe_of(
        optim={"lr": 1e-12},
        train={"updates": 100, "log_every": 10},
        valid={"every": 7, "patience": 2, "metric": "accuracy", "translate": False},
    )
    assert launch(recipe) == "patience"
    lines = map(json.loads, Run(recipe.run_folder).log_file.read_text(encoding="utf-8").splitlines())
    assert [line["update"] for line in lines if line["kind"] == "train"] == [10, 20, 21]


def test_a_metric_of_the_table_decides_what_is_best(recipe_of, monkeypatch):
    """One that looks at the sources, and of which less is better."""

    def off(texts, n_bootstrap):
        apart = sum(abs(len(a) - len(b)) for a, b in zip(texts.sources, texts.hypotheses, strict=True))
        return Score("off", apart, "v1", None, None, "")

    monkeypatch.setitem(METRICS, "off", Metric("OFF", off, higher_is_better=False))
    recipe = recipe_of(train={"updates": 4}, valid={"every": 2})
    recipe = recipe.model_copy(update={"valid": recipe.valid.model_copy(update={"metric": "off"})})
    launch(recipe)
    history = checkpoint.read_json(Run(recipe.run_folder).checkpoint(4) / checkpoint.STATE)["history"]
    state = TrainState(4, history=history)
    assert state.best_update("off") == min(history, key=lambda entry: entry["off"])["update"]
    assert score_of("off", history[0]["off"]) == f"OFF {history[0]['off']:.2f}" and "ter" not in history[0]
