"""Everything that a checkpoint must remember, at once: many stops in a chain, updates that were skipped, averages."""

import hashlib
import itertools
import json
import math
import re
import shutil

import pytest
import torch
from witness import StopAt, pairs_of, plan_of, real, witness

from nmt import checkpoint
from nmt.data.batches import read_ahead
from nmt.data.corpus import Prepared
from nmt.data.plan import Position
from nmt.errors import RunError
from nmt.run import Run
from nmt.training import launch as room
from nmt.training.budget import bound_to_length
from nmt.training.launch import launch
from nmt.training.precision import Precision
from nmt.training.state import dropout_seed
from nmt.training.validate import final_update

NEVER = {"every": 10_000, "translate": False, "metric": "loss"}


def contents(recipe):
    """All that the last checkpoint holds but for clocks and stops: SHA-256 of each tensor file, and the state."""
    run = Run(recipe.run_folder)
    folder = run.checkpoint(run.updates()[-1])
    state = checkpoint.verify(folder)
    for told in ("seconds", "wall_seconds", "measure_seconds", "save_seconds", "stops"):
        del state[told]  # how long things took, and where the run was stopped
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors")}
    return files, state


def logged(recipe, kind, what):
    """{update: number} of the log, each update at most once."""
    lines = [json.loads(line) for line in Run(recipe.run_folder).log_file.read_bytes().split(b"\n") if line]
    found = [(line["update"], line[what]) for line in lines if line["kind"] == kind]
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.fixture
def models(monkeypatch):
    """Every model that a run makes, in order."""
    make, made = room.new_model, []

    def watched(*args):
        made.append(make(*args))
        return made[-1]

    monkeypatch.setattr(room, "new_model", watched)
    return made


def storages(model):
    source, target = model.embeddings
    return {source.weight.data_ptr(), target.weight.data_ptr(), model.output_weight.data_ptr()}


def test_stops_within_an_epoch_and_at_its_end_leave_no_trace_in_any_file_or_line(recipe_of, monkeypatch, models):
    # A loss scale that doubles every fourth update, as in fp16, which a CPU has not.
    doubling = {"init_scale": 4.0, "growth_interval": 4}
    monkeypatch.setattr(Precision, "scaler", lambda self: torch.amp.GradScaler("cpu", **doubling))
    batch = {"max_tokens": 400}
    options = {"train": {"ema": 0.9, "log_every": 1, "updates": 15}, "batch": batch, "optim": {"schedule": "cosine"}}
    options["valid"] = {"every": 8}  # not where it would be asked whether to stop
    whole, chain = recipe_of("whole", **options), recipe_of("chain", **options)
    assert whole.batch.per_update > 1 and whole.model.dropout > 0
    plan = plan_of(whole)
    n_first, n_second = len(plan.updates(0)), len(plan.updates(1))
    assert launch(whole) == "done"
    updates, places = [], []
    for update in (2, 3, 5, n_first, n_first + 1, n_first + n_second):
        # Asked in every update, and while a validation is going on.
        assert (
            launch(chain, lambda last=update - 1: max(logged(chain, "train", "loss"), default=0) >= last) == "stopped"
        )
        _, state = contents(chain)
        updates.append(state["update"])
        places.append((state["epoch"], state["update_in_epoch"]))
    assert updates == [2, 3, 5, n_first, n_first + 1, n_first + n_second]
    assert places == [(0, 2), (0, 3), (0, 5), (1, 0), (1, 1), (2, 0)]
    assert launch(chain) == "done"
    files, state = contents(whole)
    assert (files, state) == contents(chain)
    assert files.keys() == {checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.EMA}
    assert state["scaler"]["scale"] == 4.0 * 2 ** (15 // 4) and len(state["history"]) == 2
    for kind, names in {"train": ("loss", "learning_rate", "gradient_norm"), "valid": ("loss", "bleu")}.items():
        for name in names:
            assert logged(whole, kind, name) == logged(chain, kind, name)
    assert len(logged(chain, "train", "loss")) == 15
    # One matrix in three places: in the new model, in each resumed one, in what translates, and in the file.
    models.append(Run(chain.run_folder).load_model(torch.device("cpu"))[0])
    assert [len(storages(model)) for model in models] == [1] * 9
    weights = checkpoint.load_tensors(Run(chain.run_folder).checkpoint(15), checkpoint.MODEL)
    assert sum(weight.shape == models[0].output_weight.shape for weight in weights.values()) == 1


def test_a_line_of_the_log_tells_of_the_same_updates_wherever_the_run_was_stopped(recipe_of):
    options = {"train": {"updates": 16, "log_every": 4, "save_every": 3}, "valid": NEVER}
    whole, chain = recipe_of("whole", **options), recipe_of("chain", **options)
    launch(whole)
    for n in (0, 1, 2, 6):  # after updates 1, 3, 6 and 13
        assert launch(chain, StopAt(n)) == "stopped"
    launch(chain)
    for name in ("loss", "gradient_norm", "learning_rate"):
        assert logged(whole, "train", name) == logged(chain, "train", name)
    assert list(logged(whole, "train", "loss")) == [4, 8, 12, 16]
    assert min(logged(chain, "train", "tokens_per_second").values()) > 0


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
    plan, pairs = plan_of(whole), pairs_of(whole)
    # Two pairs whose batches come to nothing, in the second and the fifth update of the run, and later once an epoch.
    (second, *_), (fifth, *_) = plan.updates(0)[1], plan.updates(0)[4]
    bad = [pairs[second[0]][0], pairs[fifth[0]][0]]
    assert all([src for src, _ in pairs].count(one) == 1 for one in bad)

    def spoil(sources, hidden):
        return hidden * math.nan if hidden.requires_grad and any(real(src)[:-1] in bad for src in sources) else hidden

    make, seen = room.new_model, []
    monkeypatch.setattr(room, "new_model", lambda *args: witness(make(*args), seen, spoil))
    assert launch(whole) == "done"
    for n in (0, 2, 3, 5):  # some of which come after a skipped one
        assert launch(chain, StopAt(n)) == "stopped"
    assert launch(chain) == "done"
    found = logged(whole, "train", "learning_rate")
    assert list(found) == list(range(1, 17))
    assert found == pytest.approx({u: RATES[schedule](u) for u in found}, rel=1e-12)
    assert logged(chain, "train", "learning_rate") == found
    assert contents(whole) == contents(chain)
    _, state = contents(whole)
    position, made = (state["epoch"], state["update_in_epoch"]), state["update"] + state["n_skipped"]
    assert state["n_skipped"] >= 3
    assert sum(len(plan.updates(epoch)) for epoch in range(position[0])) + position[1] == made


def test_the_moving_average_is_the_formula_over_the_weights_of_every_update(recipe_of, models):
    recipe = recipe_of(train={"ema": 0.4, "updates": 12, "save_every": 1, "keep_last": 99}, valid=NEVER)
    make_first = room.new_model  # the weights before the first update follow from the seed
    launch(recipe)
    run = Run(recipe.run_folder)
    first = make_first(recipe, Prepared.open(recipe.data_folder), torch.device("cpu"))
    average = {name: weight.double() for name, weight in checkpoint.weights_of(first).items()}
    for u in range(1, 13):
        weights = checkpoint.load_tensors(run.checkpoint(u), checkpoint.MODEL)
        decay = min(0.4, (1 + u) / (10 + u))
        for name, weight in weights.items():
            average[name] = decay * average[name] + (1 - decay) * weight.double()
        found = checkpoint.load_tensors(run.checkpoint(u), checkpoint.EMA)
        assert found.keys() == weights.keys()
        for name, weight in found.items():
            torch.testing.assert_close(weight.double(), average[name], rtol=0, atol=1e-6)
    assert any((found[name] - weight).abs().max() > 1e-3 for name, weight in weights.items())


def test_how_far_ahead_batches_are_made_changes_nothing(recipe_of, monkeypatch):
    found = []
    for depth in (1, 2, 9):
        monkeypatch.setattr(read_ahead, "__defaults__", (depth,))
        recipe = recipe_of(
            f"depth{depth}", batch={"bpe_dropout": 0.2, "max_tokens": 400}, train={"updates": 8}, valid=NEVER
        )
        launch(recipe)
        found.append(contents(recipe))
    assert found[0] == found[1] == found[2]


def test_no_two_batches_of_a_run_have_the_same_dropout():
    places = itertools.product(range(3), range(20), range(4))
    seeds = {dropout_seed(7, Position(epoch, update), index) for epoch, update, index in places}
    assert len(seeds) == 3 * 20 * 4
    assert dropout_seed(8, Position(), 0) not in seeds


# A run that had ended goes on where the recipe asks for another end and no update depends on where that is.


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
    assert launch(of_length(recipe, 10**6, time_budget="60s"), clock=clock) == "time"
    reached = final_update(Run(recipe.run_folder))
    for number, (updates, budget, wanted) in enumerate(
        (
            (reached + 6, "", rf"now update {reached + 6}, about [\d.]+ s from here"),
            (10**6, "2h", "now time budget 2h, about 1 h 59 min from here"),
            (reached - 1, "", "already behind it, only the model is chosen anew"),
        )
    ):
        again = f"{recipe.run_folder}-{number}"
        shutil.copytree(recipe.run_folder, again)
        capsys.readouterr()
        launch(of_length(recipe, updates, time_budget=budget, out=again), StopAt(0))
        had = rf"this run had finished \(time budget 60s, update {reached}, BLEU [\d.]+\); its end is "
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


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_what_its_time_ended_goes_on_with_more_of_it(recipe_of, schedule, capsys):
    recipe, reached = recipe_of(**{**OPTIONS, "optim": {"schedule": schedule, "warmup": 1}}), []
    many = 10**6
    for updates, budget, outcome in (
        (many, "40s", "time"),
        (many, "40s", "done"),
        (many, "70s", "time"),
        (LONG, "", "done"),
    ):
        clock = map(float, itertools.count()).__next__  # each look at it takes a second
        assert launch(of_length(recipe, updates, time_budget=budget), clock=clock) == outcome
        reached.append(final_update(Run(recipe.run_folder)))
    assert reached[0] == reached[1] < reached[2] < reached[3] == LONG
    assert (f"the learning rate ({schedule}) rises" in capsys.readouterr().err) == (schedule != "constant")
    lines = map(json.loads, Run(recipe.run_folder).log_file.open())
    rate = {line["update"]: line["learning_rate"] for line in lines if line["kind"] == "train"}
    if schedule == "linear":
        assert rate[reached[0]] < rate[reached[0] + 1] > rate[reached[2]], rate


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
