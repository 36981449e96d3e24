"""A corpus that was encoded before is not encoded again, and nobody can tell from what is written."""

import json
import random
import shutil

import pytest

from nmt.data import encode, keep
from nmt.data.block_work import Task
from nmt.data.corpus import Prepared
from nmt.data.prepare import prepare
from nmt.recipe.data_options import SubwordsConfig, TrainingCorpus
from tests.data.test_prepare import SRC, TRG, bytes_of, flipped, recipe_in, write

MAX_LEN = 40


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(keep, "N_PAIR", 25)
    monkeypatch.setattr(encode, "BLOCK", 30)


@pytest.fixture
def encoded(monkeypatch):
    """How many pairs were encoded."""
    n_pair, original = [], Task.encode

    def counting(self, task):
        answer = original(self, task)
        n_pair.append(len(answer["fits"]))
        return answer

    monkeypatch.setattr(Task, "encode", counting)
    return lambda: (sum(n_pair), n_pair.clear())[0]


def corpus(folder, name, n=60, seed=0, **options):
    """Lines that no other corpus has, a few of them too long, which only the pieces tell."""
    rng = random.Random(f"{name} {seed}")
    src = [f"{SRC[k]} {name}" + " ?!" * rng.choice([0, 0, 0, 1, 40]) for k in range(n)]
    trg = [f"{TRG[k]} {name} {'and so on ' * rng.choice([0, 1, 2])}" for k in range(n)]
    files = {"src": write(folder / f"{name}{seed}.de", src), "trg": write(folder / f"{name}{seed}.en", trg)}
    return TrainingCorpus(**files, **options)


def recipe_of(folder, *corpora, vocab=None, **options):
    recipe = recipe_in(
        folder, valid=(SRC[:5], TRG[:5]), train=list(corpora), **{"max_ratio": 50, "max_len": MAX_LEN, **options}
    )
    subwords = SubwordsConfig(vocab_size=320, vocab_from=str(vocab) if vocab else "")
    return recipe.model_copy(update={"subwords": subwords})


def content(folder):
    """All bytes but of the recipe, which names the folder."""
    return {name: digest for name, digest in bytes_of(folder).items() if name != "recipe.yaml"}


@pytest.fixture
def first(tmp_path):
    """A folder of two corpora, and a copy of its subwords alone."""
    return first_of(tmp_path, corpus(tmp_path, "a"), corpus(tmp_path, "b"))


def first_of(folder, *corpora):
    prepare(recipe_of(folder, *corpora), folder / "first")
    (folder / "vocab").mkdir()
    (folder / "vocab" / "subwords.json").write_bytes((folder / "first" / "subwords.json").read_bytes())
    return folder / "first"


def again(folder, encoded, *corpora, vocab=None, **options):
    """Prepare in place of the first folder and anew: how many pairs were encoded, and what was told."""
    vocab = vocab or folder / "vocab"
    shutil.rmtree(folder / "new", ignore_errors=True)
    prepare(recipe_of(folder, *corpora, vocab=vocab, **options), folder / "new", talk=lambda line: None)
    told = []
    encoded()
    prepare(recipe_of(folder, *corpora, vocab=vocab, **options), folder / "first", overwrite=True, talk=told.append)
    assert content(folder / "first") == content(folder / "new")
    Prepared.open(folder / "first")
    return encoded(), "\n".join(told)


def n_too_long(folder):
    return json.loads((folder / "report.json").read_text())["dropped"]["too long"]["count"]


@pytest.mark.parametrize("order", ["cab", "acb", "abc", "ba"])
def test_corpora_that_were_encoded_before_are_not_encoded_again_wherever_they_stand(tmp_path, first, encoded, order):
    n_pair, told = again(tmp_path, encoded, *(corpus(tmp_path, name) for name in order))
    assert n_pair == 60 * order.count("c")
    assert told.count("taken over from") == len(order.replace("c", ""))
    assert n_too_long(first) > 5, "what is dropped then was not looked at now"


def test_only_the_corpora_that_changed_are_encoded_anew(tmp_path, first, encoded):
    n_pair, told = again(tmp_path, encoded, corpus(tmp_path, "a"), corpus(tmp_path, "b", n=59))
    assert n_pair == 59 and told.count("taken over") == 1
    filtered = corpus(tmp_path, "a", max_ratio=1.2)
    n_pair, told = again(tmp_path, encoded, filtered, corpus(tmp_path, "b", n=59))
    assert 0 < n_pair < 60 and told.count("taken over") == 1


def test_duplicates_of_a_corpus_that_comes_before_change_what_is_kept(tmp_path, first, encoded):
    lines = (tmp_path / "b0.de").read_text().split("\n")[:3], (tmp_path / "b0.en").read_text().split("\n")[:3]
    same = TrainingCorpus(src=write(tmp_path / "s.de", lines[0]), trg=write(tmp_path / "s.en", lines[1]))
    n_pair, told = again(tmp_path, encoded, same, corpus(tmp_path, "a"), corpus(tmp_path, "b"), drop_duplicates=True)
    assert n_pair == 3 + 57 and told.count("taken over") == 1


@pytest.mark.parametrize("options", [{"max_len": 39}, {"protect": ["number"]}])
def test_another_limit_or_other_placeholders_are_encoded_anew(tmp_path, first, encoded, options):
    n_pair, told = again(tmp_path, encoded, corpus(tmp_path, "a"), corpus(tmp_path, "b"), **options)
    assert n_pair == 120 and "taken over" not in told


def test_a_corpus_with_other_tags_is_encoded_anew(tmp_path, encoded):
    both = corpus(tmp_path, "a", tags=["x"]), corpus(tmp_path, "b", tags=["y"])
    first_of(tmp_path, *both)
    n_pair, told = again(tmp_path, encoded, both[0], corpus(tmp_path, "b", tags=["x", "y"]))
    assert n_pair == 60 and told.count("taken over") == 1


def test_a_new_tag_of_a_new_corpus_leaves_the_rows_of_the_others(tmp_path, first, encoded):
    """As when translated text is added: its tag is an id after those of all pieces."""
    known = corpus(tmp_path, "a"), corpus(tmp_path, "b")
    n_pair, told = again(tmp_path, encoded, *known, corpus(tmp_path, "c", tags=["bt"]))
    assert n_pair == 60 and told.count("taken over") == 2
    assert again(tmp_path, encoded, corpus(tmp_path, "a", tags=["bt"]), known[1])[0] == 60


def test_with_another_vocabulary_all_is_encoded_anew(tmp_path, first, encoded):
    other = recipe_of(tmp_path, corpus(tmp_path, "c"))
    prepare(other, tmp_path / "other")
    (tmp_path / "other" / "manifest.json").unlink()
    n_pair, told = again(tmp_path, encoded, corpus(tmp_path, "a"), corpus(tmp_path, "b"), vocab=tmp_path / "other")
    assert n_pair == 120 and "taken over" not in told


def test_rows_come_from_the_folder_of_the_vocabulary_too(tmp_path, first, encoded):
    recipe, told = recipe_of(tmp_path, corpus(tmp_path, "c"), corpus(tmp_path, "b"), vocab=first), []
    before = bytes_of(first)
    encoded()
    prepare(recipe, tmp_path / "larger", talk=told.append)
    assert encoded() == 60 and f"{tmp_path}/b0.de: the rows of " in "\n".join(told)
    assert bytes_of(first) == before


@pytest.mark.parametrize("damaged", ["train.arrow", "valid.arrow"])
def test_nothing_is_taken_from_a_damaged_folder(tmp_path, first, encoded, damaged):
    flipped(first / damaged)
    n_pair, told = again(tmp_path, encoded, corpus(tmp_path, "a"), corpus(tmp_path, "b"))
    assert n_pair == 120 and f"first: no rows are taken over from there: {first / damaged}: its bytes" in told


def test_a_folder_from_before_there_were_digests_is_read_and_replaced(tmp_path, first, encoded):
    manifest = json.loads((first / "manifest.json").read_text())
    for each in manifest["corpora"]:
        del each["rows"]
    (first / "manifest.json").write_text(json.dumps(manifest))
    told = []
    prepare(recipe_of(tmp_path, corpus(tmp_path, "a"), corpus(tmp_path, "b")), first, talk=told.append)
    assert "nothing to do" in told[-1]
    n_pair, _ = again(tmp_path, encoded, corpus(tmp_path, "a"), corpus(tmp_path, "b"))
    assert n_pair == 120
