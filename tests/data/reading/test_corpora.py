"""Several training corpora in one folder: whose the pairs are is known; how often each is visited is the recipe's."""

import json

import pytest

from nmt.data.corpus import Prepared
from nmt.data.manifest import MANIFEST
from nmt.data.prepare import prepare


@pytest.fixture
def report(at):
    """Of three corpora: of the first one pair is dropped for its text, of the second one for its length in subwords."""
    texts = {"a": ["eins", "", "drei"], "b": ["vier", "fünf " * 30, "sechs", "sieben"], "c": ["acht", "neun"]}
    for name, lines in texts.items():
        at.write(f"{name}.src", "".join(f"{line}\n" for line in lines))
        at.write(f"{name}.trg", "".join(f"{line}\n" for line in lines).upper())
    train = [
        {"src": f"{name}.src", "trg": f"{name}.trg", "weight": w} for name, w in zip("abc", (1, 2, 0.5), strict=True)
    ]
    return at.prepare(train, valid={"src": "c.src", "trg": "c.trg"}, vocab_size=300, max_len=20)


def changed(report, at, **data):
    recipe = report.recipe.model_copy(update={"data": report.recipe.data.model_copy(update=data)})
    said = []
    prepare(recipe, at.folder / "out", overwrite="train" in data and "temperature" not in data, talk=said.append)
    return said


def test_the_folder_knows_which_pairs_are_of_which_corpus(report, at):
    data = Prepared.open(at.folder / "out")
    assert data.sizes == [2, 3, 2]
    assert [each["name"] for each in data.manifest["corpora"]] == ["a.src", "b.src", "c.src"]
    src, _ = data.train.pairs(range(data.train.n_pair))
    found = [data.subwords.src.decode(ids) for ids in src]
    assert found == ["eins", "drei", "vier", "sechs", "sieben", "acht", "neun"]


def test_a_corpus_of_several_files_is_one_corpus_and_other_weights_need_no_new_preparation(report, at):
    first, *others = report.recipe.data.train
    heavier = [corpus.model_copy(update={"weight": 7.0}) for corpus in report.recipe.data.train]
    assert "nothing to do" in changed(report, at, train=heavier, temperature=3.0)[0]
    both = first.model_copy(update={"src": ["a.src", "c.src"], "trg": ["a.trg", "c.trg"]})
    changed(report, at, train=[both, others[0]])
    assert Prepared.open(at.folder / "out").sizes == [4, 3]


def test_an_old_folder_is_one_corpus(report, at):
    path = at.folder / "out" / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    del manifest["corpora"]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    assert Prepared.open(at.folder / "out").sizes == [7]
