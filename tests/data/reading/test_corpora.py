"""Several training corpora in one folder: whose the pairs are is known; how often each is visited is the recipe's."""

import json

import pytest

from nmt.data.corpus import Prepared
from nmt.data.manifest import MANIFEST
from nmt.data.prepare import prepare
from nmt.errors import DataError
from nmt.recipe.options import Recipe


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def recipe(tmp_path):
    """Three corpora; of the first one pair is dropped for its text, of the second one for its length in subwords."""
    texts = {
        "a": ["eins", "", "drei"],
        "b": ["vier", "fünf " * 30, "sechs", "sieben"],
        "c": ["acht", "neun"],
    }
    train = [
        {
            "src": write(tmp_path / f"{name}.src", lines),
            "trg": write(tmp_path / f"{name}.trg", [line.upper() for line in lines]),
            "weight": weight,
        }
        for (name, lines), weight in zip(texts.items(), (1, 2, 0.5), strict=True)
    ]
    valid = {"src": train[2]["src"], "trg": train[2]["trg"]}
    data = {"train": train, "valid": valid, "out": str(tmp_path / "out"), "max_len": 20, "alarms": "warn", "workers": 1}
    return Recipe.model_validate({"name": "test", "data": data, "subwords": {"vocab_size": 300}})


def made(recipe, **data):
    changed = recipe.model_copy(update={"data": recipe.data.model_copy(update=data)})
    said = []
    prepare(changed, changed.data_folder, talk=said.append)
    return Prepared.open(changed.data_folder), said


def test_the_folder_knows_which_pairs_are_of_which_corpus(recipe):
    data, _ = made(recipe)
    assert data.sizes == [2, 3, 2]
    assert [each["name"].rpartition("/")[2] for each in data.manifest["corpora"]] == ["a.src", "b.src", "c.src"]
    src, _ = data.train.pairs(range(data.train.n_pair))
    found = [data.subwords.src.decode(ids) for ids in src]
    assert found == ["eins", "drei", "vier", "sechs", "sieben", "acht", "neun"]


def test_a_corpus_of_several_files_is_one_corpus(recipe):
    first, *others = recipe.data.train
    both = first.model_copy(update={"src": [first.src, others[1].src], "trg": [first.trg, others[1].trg]})
    data, _ = made(recipe, train=[both, others[0]])
    assert data.sizes == [4, 3]


def test_another_weight_or_temperature_needs_no_new_preparation(recipe):
    made(recipe)
    heavier = [corpus.model_copy(update={"weight": 7.0}) for corpus in recipe.data.train]
    _, said = made(recipe, train=heavier, temperature=3.0)
    assert "nothing to do" in said[0]


def test_a_folder_made_before_corpora_were_told_apart_is_one_corpus(recipe):
    data, _ = made(recipe)
    path = recipe.data_folder / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    del manifest["corpora"]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    assert Prepared.open(recipe.data_folder).sizes == [data.train.n_pair]


@pytest.mark.parametrize("corpora", [[], [{"n_pair": 6}], [{"n_pair": 8}, {"n_pair": -1}], [{"n_pair": True}], "all"])
def test_corpora_that_are_not_those_of_the_pairs_are_refused(recipe, corpora):
    made(recipe)
    path = recipe.data_folder / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**manifest, "corpora": corpora}), encoding="utf-8")
    with pytest.raises(DataError, match="damaged"):
        Prepared.open(recipe.data_folder)
