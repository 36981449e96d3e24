"""Values of `auto`: chosen once, with a printed reason, and remembered by the run."""

from types import SimpleNamespace

import pytest
import torch
from witness import saved_by, stop_at

from nmt.data.plan import Position
from nmt.data.prepare import prepare
from nmt.errors import MachineError, RecipeError, RunError
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe
from nmt.recipe.training_options import BatchConfig
from nmt.run import Run
from nmt.training import resolve as resolve_module
from nmt.training.feed import Feed
from nmt.training.launch import launch
from nmt.training.materials import Trial, open_data
from nmt.training.parallel import Ranks
from nmt.training.resolve import LEAST, largest_that_fits, most_tokens, resolve, warmup_of
from tests.training.conftest import make_recipe, write_pairs


def resolved(recipe, begun=None, ranks=None):
    data, messages = open_data(recipe), []
    result = resolve(recipe, data, begun, ranks or Ranks(), messages.append)
    return result, messages


# -- pure functions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("true_limit", [10, 512, 513, 700, 5000, 65_536, 99_999, 10**9])
def test_largest_size_that_fits_is_found_within_an_eighth_in_few_tries(true_limit):
    tried = []

    def fits(n):
        tried.append(n)
        return n <= true_limit

    found = largest_that_fits(fits, 512, 100_000)
    if true_limit < 512:
        assert found == 0 and tried == [512]
    else:
        assert found <= min(true_limit, 100_000) <= found * 9 / 8 + 1
    assert len(tried) < 16 and max(tried) <= 100_000


def test_batch_is_no_larger_than_is_useful():
    assert most_tokens(BatchConfig(tokens_per_update=25_000), 10**8, 8) == 3125
    assert most_tokens(BatchConfig(tokens_per_update=1000), 10**8, 8) == LEAST
    assert most_tokens(BatchConfig(), 400_000, 1) == 4000
    assert most_tokens(BatchConfig(per_update=2), 400_000, 2) == 2000


AUTO_SIZE = {"architecture": "transformer", "preset": "auto"}  # replaces the sizes of the recipe


# -- recipes -------------------------------------------------------------------------------------------------------


def test_preset_follows_from_the_corpus_and_explicit_options_win(recipe_of):
    recipe, messages = resolved(recipe_of(model={"preset": "auto", "d_inner": 96, "dropout": 0.15}))
    assert recipe.model.preset == "tiny" and recipe.model.d_inner == 96 and recipe.model.dropout == 0.15
    assert "300 pairs" in messages[0] and "-> tiny" in messages[0]


@pytest.mark.parametrize(
    ("updates", "preset", "dropout"),
    [
        ({"tiny": 90_000, "small": 30_000, "base": 5000}, "base", 0.2),
        ({"tiny": 9000, "small": 3000, "base": 500}, "small", 0.12),
        ({"tiny": 3000, "small": 900}, "tiny", 0.12),  # base is not tried
        ({"tiny": 900}, "tiny", 0.1),
    ],
)
def test_time_budget_limits_the_preset_to_what_it_can_train(recipe_of, monkeypatch, updates, preset, dropout):
    recipe = recipe_of(model=AUTO_SIZE, train={"time_budget": "20m"})
    monkeypatch.setattr(resolve_module, "preset_for", lambda _: ("base", 0.2))
    monkeypatch.setattr(resolve_module, "_room", lambda sized, *_: (n := updates[sized.model.preset], n / 250))
    found, messages = resolved(recipe)
    assert (found.model.preset, found.model.dropout) == (preset, dropout)
    assert f"in 20m about {updates[preset]:,} updates, {updates[preset] / 250:,.1f} epochs -> {preset}" in messages[0]
    found, _ = resolved(recipe_of(model={**AUTO_SIZE, "dropout": 0.4}, train={"time_budget": "20m"}))
    assert (found.model.preset, found.model.dropout) == (preset, 0.4)


def test_preset_that_contradicts_the_recipe_is_not_tried(recipe_of, monkeypatch):
    recipe = recipe_of(model=AUTO_SIZE, decode={"align_layer": 3}, train={"time_budget": "20m"})
    monkeypatch.setattr(resolve_module, "preset_for", lambda _: ("base", 0.2))
    monkeypatch.setattr(resolve_module, "_room", lambda sized, *_: (10, 0.1))
    assert resolved(recipe)[0].model.preset == "small"  # tiny has two layers
    monkeypatch.setattr(resolve_module, "preset_for", lambda _: ("tiny", 0.2))
    with pytest.raises(RecipeError, match=r"decode\.align_layer: 3"):
        resolved(recipe)


@pytest.mark.parametrize("n_rank", [1, 4])
@pytest.mark.parametrize("batch", [{}, {"per_update": 3}, {"tokens_per_update": 360, "per_update": 1}])
def test_epochs_that_fit_into_the_time_budget_follow_from_the_plan(recipe_of, monkeypatch, batch, n_rank):
    monkeypatch.setattr(Trial, "seconds", lambda *_: 3.0)  # of three batches
    monkeypatch.setattr(Ranks, "on_main", lambda _, work: work())
    recipe = recipe_of(batch=batch, train={"updates": 10**6, "time_budget": "50m"})
    n_update, n_epoch = resolve_module._room(recipe, open_data(recipe), Ranks(0, n_rank))
    plan = Feed(recipe, open_data(recipe), Ranks()).plan
    n_batch = [len(update) for update in plan.updates(0)]
    rounds = max(1, sum(n_batch) / len(n_batch) / n_rank)
    assert n_update == pytest.approx(2400 / rounds, rel=0.35 if "tokens_per_update" in batch else 0.03)
    assert n_epoch == pytest.approx(n_update / plan.n_update(0), rel=0.25)
    by_epochs = recipe.with_options(train={"epochs": 3})
    assert resolve_module._room(by_epochs, open_data(recipe), Ranks())[1] == 3


def test_error_names_an_option_that_contradicts_the_preset(recipe_of):
    assert recipe_of(model={"preset": "auto", "n_head": 3, "d_model": 48})  # they fit any preset
    recipe = recipe_of().model_copy(update={"model": ModelConfig(preset="auto", n_head=48)})
    with pytest.raises(RecipeError, match=r"model\.n_head: 48 heads do not divide"):
        resolved(recipe)


# -- batches -------------------------------------------------------------------------------------------------------


def test_resumed_run_keeps_the_values_that_auto_had(recipe_of, capsys, monkeypatch):
    sections = {"model": {"preset": "auto"}, "batch": {"max_tokens": "auto", "per_update": 1}, "train": {"updates": 6}}
    assert launch(recipe_of(**sections), stop_at(3)) == "stopped"
    run = Run(recipe_of().run_folder)
    known = run.recipe()
    assert known.batch.max_tokens == LEAST and known.model.preset == "tiny"
    err = capsys.readouterr().err
    assert f"batch.max_tokens: auto: {LEAST:,}: " in err and "model.preset: auto: 300 pairs" in err
    # The run resumes as it began, whatever `auto` would choose now.
    monkeypatch.setattr(resolve_module, "preset_for", None)
    monkeypatch.setattr(resolve_module, "most_tokens", None)
    assert launch(recipe_of(**sections)) == "done"
    assert run.recipe() == known
    with pytest.raises(RunError, match=r"batch\.max_tokens was 512, now 513"):
        launch(recipe_of(**{**sections, "batch": {"max_tokens": 513, "per_update": 1}}))


def on_gpu(limit, ranks):
    """Return the choice for a GPU whose memory holds `limit` tokens."""
    trial = SimpleNamespace(device="cuda", longest=lambda n: n, close=lambda: None, longest_side=9)
    trial.fits = lambda n: n <= limit
    return resolve_module._largest_on_gpu(trial, 10**6, ranks)


def test_batch_on_gpus_fits_the_smallest_of_them(monkeypatch):
    assert 1500 < 1.15 * on_gpu(2000, Ranks()) <= 2000
    monkeypatch.setattr(Ranks, "all_gather", lambda self, number: [number, 600])
    assert on_gpu(2000, Ranks(1, 2)) == 600
    with pytest.raises(MachineError, match="not even a batch of 512 tokens"):
        on_gpu(100, Ranks())


def test_batch_fits_unless_memory_runs_out(recipe_of, monkeypatch):
    recipe = recipe_of()
    trial = Trial(recipe, open_data(recipe), torch.device("cpu"))
    assert trial.fits(trial.longest(500))

    def run_out(*_args, **_options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    def limited(src_seq, *rest, objective=trial.engine.objective, **options):
        return objective(src_seq, *rest, **options) if src_seq.numel() <= 256 else run_out()

    with monkeypatch.context() as context:
        context.setattr(trial.engine, "objective", limited)
        assert not trial.fits(trial.longest(500))
        assert trial.fits(trial.longest(250))
    with monkeypatch.context() as context:
        context.setattr(trial.engine, "step", run_out)
        assert not trial.fits(trial.longest(500))
    assert trial.fits(trial.longest(500))


# -- schedule and warm-up ------------------------------------------------------------------------------------------

AUTO_PACE = {
    "optim": {"schedule": "auto", "warmup": "auto"},
    "valid": {"every": "auto", "translate": False, "metric": "loss"},
}


@pytest.mark.parametrize(("n_update", "warmup"), [(1, 1), (8, 8), (112, 10), (1000, 50), (4000, 200), (10**6, 200)])
def test_warm_up_is_a_twentieth_of_the_run_within_limits(n_update, warmup):
    assert warmup_of(n_update) == warmup


def test_schedule_and_warm_up_follow_from_the_number_of_updates(recipe_of):
    found, messages = resolved(recipe_of(**AUTO_PACE, train={"updates": 1000}))
    assert (found.optim.schedule, found.optim.warmup, found.valid.every) == ("inverse_sqrt", 50, 100)
    assert "optim.warmup: auto: 50 of about 1,000 updates" in messages[0]


def test_time_budget_gives_an_annealing_schedule_and_a_warm_up_by_speed(recipe_of, monkeypatch):
    monkeypatch.setattr(Trial, "seconds", lambda *_: 3.0)  # of three batches
    found, messages = resolved(recipe_of(**AUTO_PACE, train={"updates": 10**6, "time_budget": "50m"}))
    assert (found.optim.schedule, found.optim.warmup, found.valid.every) == ("linear", 60, "auto")
    assert "60 of about 1,200 updates that train.time_budget, 50m, has room for" in messages[0]
    again, _ = resolved(recipe_of(**AUTO_PACE, train={"updates": 10**6, "time_budget": "50m"}), begun=found)
    assert again.optim == found.optim


# -- epochs --------------------------------------------------------------------------------------------------------


def by_epochs(recipe, n_epoch):
    """Return the recipe with a number of epochs in place of updates."""
    tree = recipe.model_dump(exclude_unset=True)
    del tree["train"]["updates"]
    return Recipe.model_validate({**tree, "train": {**tree["train"], "epochs": n_epoch}})


@pytest.fixture(scope="module")
def weighted(tmp_path_factory):
    """Recipe sections of two prepared corpora, one of which has weight 1.7."""
    folder = tmp_path_factory.mktemp("weighted")
    pairs = [write_pairs(folder, "one", 200, 1), {**write_pairs(folder, "two", 90, 2), "weight": 1.7}]
    valid, out = write_pairs(folder, "valid", 12, 3), str(folder / "prepared")
    data = {"src_lang": "de", "trg_lang": "en", "train": pairs, "valid": valid, "out": out, "max_ratio": 9.0}
    corpus = {"data": data, "subwords": {"vocab_size": 320}}
    prepare(make_recipe(corpus, folder / "run"), folder / "prepared", talk=lambda line: None)
    return corpus


PACKED = {"batch": {"packed": True, "max_tokens": 300, "per_update": 1}, "model": {"attn_dropout": 0.0}}


@pytest.mark.parametrize(
    ("options", "has_two"),
    [
        ({}, False), ({}, True), (PACKED, True), ({"batch": {"tokens_per_update": 500, "per_update": 1}}, True),
        ({"batch": {"bpe_dropout": 0.3}}, False), ({"batch": {"max_tokens": "auto", "per_update": 1}}, False),
    ],
)  # fmt: skip
def test_epochs_resolve_to_the_updates_that_training_has_in_them(recipe_of, weighted, options, has_two):
    recipe = by_epochs(recipe_of(**(weighted if has_two else {}), **options, valid={"every": "auto"}), 3)
    found, messages = resolved(recipe)
    positions = (portion.position for portion in Feed(found, open_data(found), Ranks()).begin(Position()))
    n_update = next(number for number, position in enumerate(positions) if position == Position(3, 0))
    assert (found.train.updates, found.train.epochs, found.valid.every) == (n_update, 3, n_update // 10)
    assert messages[-1] == f"train.epochs: 3: {n_update} updates"


def test_updates_end_a_run_before_its_epochs_if_they_are_fewer(recipe_of, capsys):
    recipe = recipe_of(train={"updates": 7, "epochs": 5})
    assert launch(recipe) == "done"
    assert "train.epochs: 5: train.updates, 7, ends the run first" in (err := capsys.readouterr().err)
    assert "finished (done): 7 updates" in err
    kept = Run(recipe.run_folder).recipe()
    assert (kept.train.updates, kept.train.epochs) == (7, 5)
    # The recipe in the run folder still has the updates.
    again = read_recipe(recipe.run_folder, [("train.epochs", "6")])
    assert resolved(again, kept)[0].train.updates == 7


def test_finished_run_continues_for_more_epochs(short_of, capsys):
    assert launch(by_epochs(uninterrupted := short_of("whole"), 2)) == "done"
    assert "finished (done): 12 updates" in capsys.readouterr().err
    assert launch(by_epochs(extended := short_of("parts"), 1)) == "done"
    assert launch(read_recipe(extended.run_folder, [("train.epochs", "2")])) == "done"
    assert "this run had finished; its new end is about" in capsys.readouterr().err
    assert saved_by(extended) == saved_by(uninterrupted)
    assert launch(read_recipe(extended.run_folder)) == launch(by_epochs(extended, 2)) == "done"
    assert capsys.readouterr().err.count("already trained to update 12") == 2
    linear = by_epochs(short_of("linear", optim={"schedule": "linear"}), 1)
    assert launch(linear) == "done"
    with pytest.raises(RunError, match=r"train\.updates was 6, now 12\. The length of the run is fixed"):
        launch(read_recipe(linear.run_folder, [("train.epochs", "2")]))
