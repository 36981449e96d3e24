"""Several training corpora in one folder: the manifest records their sizes, the recipe their weights."""

import pytest

from nmt.data.corpus import Prepared
from nmt.data.prepare import prepare


@pytest.fixture
def report(at):
    """Report of three corpora: `a` loses a pair to an empty source, `b` one to its length in subwords."""
    texts = {"a": ["eins", "", "drei"], "b": ["vier", "fünf " * 30, "sechs", "sieben"], "c": ["acht", "neun"]}
    for name, lines in texts.items():
        at.write(f"{name}.src", "".join(f"{line}\n" for line in lines))
        at.write(f"{name}.trg", "".join(f"{line}\n" for line in lines).upper())
    train = [
        {"src": f"{name}.src", "trg": f"{name}.trg", "weight": w} for name, w in zip("abc", (1, 2, 0.5), strict=True)
    ]
    return at.prepare(train, valid={"src": "c.src", "trg": "c.trg"}, vocab_size=300, max_len=20)


def prepare_again(report, at, **data):
    recipe = report.recipe.with_options(data=data)
    messages = []
    prepare(recipe, at.folder / "out", overwrite="train" in data and "temperature" not in data, talk=messages.append)
    return messages


def test_pairs_are_stored_in_the_order_of_their_corpora(report, at):
    data = Prepared.open(at.folder / "out")
    assert data.sizes == [2, 3, 2]
    assert [corpus["name"] for corpus in data.manifest["corpora"]] == ["a.src", "b.src", "c.src"]
    src, _ = data.train.pairs(range(data.train.n_pair))
    texts = [data.subwords.src.decode(ids) for ids in src]
    assert texts == ["eins", "drei", "vier", "sechs", "sieben", "acht", "neun"]


def test_a_corpus_may_have_several_files_and_new_weights_need_no_preprocessing(report, at):
    first, *others = report.recipe.data.train
    heavier = [corpus.model_copy(update={"weight": 7.0}) for corpus in report.recipe.data.train]
    assert "nothing to do" in prepare_again(report, at, train=heavier, temperature=3.0)[0]
    merged = first.model_copy(update={"src": ["a.src", "c.src"], "trg": ["a.trg", "c.trg"]})
    prepare_again(report, at, train=[merged, others[0]])
    assert Prepared.open(at.folder / "out").sizes == [4, 3]
