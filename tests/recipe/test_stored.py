import json

import pytest

from nmt.errors import RecipeError
from nmt.recipe.options import Recipe
from nmt.recipe.reader import OPTIONS, RECORD, differences, kept, load_resolved, store, write_recipe

CHOSEN = {"beam": 8, "length_penalty": "average", "alpha": 1.4}
OTHER = {"beam": 2, "length_penalty": "none", "alpha": 1.0}


@pytest.fixture
def recipe():
    return Recipe.model_validate({"name": "tiny", "decode": {"alpha": 0.7, "n_best": 2}, "data": {"max_len": 99}})


@pytest.fixture
def file(tmp_path, recipe):
    write_recipe(recipe, tmp_path / "recipe.yaml")
    return tmp_path / "recipe.yaml"


def changed(file, recipe):
    return differences(recipe.model_dump(), load_resolved(file).model_dump())


def test_only_what_was_chosen_changes_and_the_record_says_what_was(file, recipe):
    before = file.read_bytes().split(b"\n")
    store(file, CHOSEN, {"metric": "bleu"})
    assert changed(file, recipe) == {
        "decode.beam": (5, 8),
        "decode.length_penalty": ("wu", "average"),
        "decode.alpha": (0.7, 1.4),
    }
    after = file.read_bytes().split(b"\n")
    assert len(after) == len(before) and sum(a != b for a, b in zip(after, before, strict=True)) == 3
    record = json.loads((file.parent / RECORD).read_bytes())
    assert record == {
        "before": {"beam": 5, "length_penalty": "wu", "alpha": 0.7},
        "stored": CHOSEN,
        "metric": "bleu",
    }
    assert sorted(path.name for path in file.parent.iterdir()) == [RECORD, file.name]


def test_the_record_remembers_what_training_began_with(file):
    store(file, CHOSEN, {})
    store(file, OTHER, {})
    assert json.loads((file.parent / RECORD).read_bytes()) == {
        "before": {"beam": 5, "length_penalty": "wu", "alpha": 0.7},
        "stored": OTHER,
    }


def test_a_recipe_that_would_contradict_itself_is_not_written(file, recipe):
    with pytest.raises(RecipeError, match=r"decode\.n_best"):
        store(file, {**OTHER, "beam": 1}, {})
    assert not changed(file, recipe) and not (file.parent / RECORD).exists()


def test_a_run_that_goes_on_keeps_what_was_stored(file, recipe):
    store(file, CHOSEN, {})
    longer = recipe.model_copy(update={"train": recipe.train.model_copy(update={"updates": 77})})
    found = kept(longer, file)
    assert {name: getattr(found.decode, name) for name in OPTIONS} == CHOSEN
    assert found.train.updates == 77 and found.decode.n_best == 2
    assert (file.parent / RECORD).exists()


def test_a_recipe_that_changed_its_mind_wins(file, recipe):
    store(file, CHOSEN, {})
    other = recipe.model_copy(update={"decode": recipe.decode.model_copy(update={"beam": 3})})
    assert kept(other, file) == other
    assert not (file.parent / RECORD).exists()


@pytest.mark.parametrize("record", [b"", b"{}", b"[1]\n", b'{"before": {"beam": 5}, "stored": {}}\n', b"\xff"])
def test_a_damaged_record_keeps_nothing_and_stops_nothing(file, recipe, record):
    store(file, CHOSEN, {})
    (file.parent / RECORD).write_bytes(record)
    assert kept(recipe, file) == recipe


def test_a_record_that_the_recipe_does_not_follow_is_of_no_force(file, recipe):
    store(file, CHOSEN, {})
    write_recipe(recipe, file)  # killed between the two, or edited since
    assert kept(recipe, file) == recipe


def test_without_a_record_nothing_is_kept(file, recipe):
    assert kept(recipe, file) is recipe
