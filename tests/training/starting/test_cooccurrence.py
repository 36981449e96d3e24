"""First embeddings: the singular vectors they are said to be, translations near each other, the size of noise."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from nmt.training import initial
from nmt.training.initial import cooccurrence_embeddings, start_embeddings
from nmt.training.launch import launch
from nmt.training.materials import new_model, open_data


class Pairs:
    """A corpus in memory: word i of the source has the translation i + n_word."""

    def __init__(self, n_pair=400, n_word=30, seed=0):
        self.n_pair, self.n_word = n_pair, n_word
        draw = np.random.default_rng(seed)
        self.src = [draw.integers(0, n_word, draw.integers(2, 7)) for _ in range(n_pair)]

    def pairs(self, indices):
        asked = [self.src[i] for i in indices]
        return asked, [row + self.n_word for row in asked]


def nearest(rows):
    likeness = normalize(rows, dim=1) @ normalize(rows, dim=1).T
    return likeness.fill_diagonal_(-1).argmax(dim=1)


def test_a_word_begins_next_to_its_translation():
    corpus = Pairs()
    rows = cooccurrence_embeddings(corpus, 60, 16, trg_offset=0, seed=1)
    assert torch.equal(nearest(rows), (torch.arange(60) + 30) % 60)


def test_sides_that_share_no_ids_are_told_apart():
    corpus = Pairs()
    shared = cooccurrence_embeddings(corpus, 60, 16, trg_offset=0, seed=1)
    corpus.n_word = 0  # the same words on both sides, which the offset makes two
    corpus_rows = cooccurrence_embeddings(corpus, 60, 16, trg_offset=30, seed=1)
    torch.testing.assert_close(corpus_rows, shared)


def test_the_vectors_are_those_of_the_exact_decomposition():
    corpus = Pairs()
    ids, pairs = initial._occurrences(corpus, 0)
    dense = torch.zeros(60, corpus.n_pair)
    dense[ids, pairs] = 1.0
    dense = dense / (dense.sum(1, keepdim=True) * dense.sum(0, keepdim=True)).sqrt()
    occurrence = initial._Occurrence(ids, pairs, 60)
    torch.testing.assert_close(occurrence.times(torch.eye(corpus.n_pair)), dense)
    torch.testing.assert_close(occurrence.transposed_times(torch.eye(60)), dense.T.contiguous())
    found = initial._singular_vectors(occurrence, 12, torch.Generator().manual_seed(0))
    vectors, values, _ = torch.linalg.svd(dense)
    exact = vectors[:, :12] * values[:12].sqrt()
    torch.testing.assert_close(found @ found.T, exact @ exact.T, rtol=0, atol=1e-3)
    torch.testing.assert_close(values[0], torch.tensor(1.0))  # the one that is left out


@pytest.mark.parametrize("width", [16, 200])
def test_the_size_is_that_of_a_normal_initialisation_and_the_unseen_are_noise(width):
    rows = cooccurrence_embeddings(Pairs(), 80, width, trg_offset=0, seed=1)
    assert rows.shape == (80, width) and bool(torch.isfinite(rows).all())
    torch.testing.assert_close(rows.norm(dim=1).mean(), torch.tensor(1.0), rtol=0, atol=0.1)
    unseen = normalize(rows[60:], dim=1)
    assert (unseen @ unseen.T).fill_diagonal_(0).abs().mean() < 0.35
    assert len(rows.unique(dim=0)) == 80


def test_the_seed_decides_and_the_most_pairs_are_kept_to(monkeypatch):
    corpus = Pairs()
    one = cooccurrence_embeddings(corpus, 60, 16, trg_offset=0, seed=1)
    assert torch.equal(one, cooccurrence_embeddings(corpus, 60, 16, trg_offset=0, seed=1))
    assert not torch.equal(one, cooccurrence_embeddings(corpus, 60, 16, trg_offset=0, seed=2))
    monkeypatch.setattr(initial, "MAX_PAIRS", 100)
    _, pairs = initial._occurrences(corpus, 0)
    assert pairs.max() == 99
    few = Pairs()
    few.src = few.src[::4]
    few.n_pair = 100
    assert np.array_equal(initial._occurrences(few, 0)[0], initial._occurrences(corpus, 0)[0])


@pytest.mark.parametrize("shared", [True, False])
def test_training_begins_from_them_and_the_output_layer_too(recipe_of, shared):
    recipe = recipe_of("run", model={"emb_init": "cooccurrence", "emb_src_trg_weight_sharing": shared})
    data = open_data(recipe)
    model = new_model(recipe, data, torch.device("cpu"))
    said = start_embeddings(model, data, recipe.seed)
    assert "300 pairs" in said
    source, target = model.embeddings
    assert (source.weight is target.weight) is shared
    assert model.trg_word_prj.weight is target.weight
    word = {side: data.subwords.trg.encode([text])[0][-1] for side, text in (("de", "Hund"), ("en", "dog"))}
    near = torch.cosine_similarity(source.weight[word["de"]], target.weight, dim=1)
    assert near[word["en"]] > 0.6


def test_a_resumed_run_does_not_begin_again(recipe_of, capsys):
    recipe = recipe_of("run", model={"emb_init": "cooccurrence"}, train={"updates": 6})
    assert launch(recipe, iter([False] * 2 + [True] * 9).__next__) == "stopped"
    assert "co-occurrence in 300 pairs" in capsys.readouterr().err
    assert launch(recipe) == "done"
    assert "co-occurrence" not in capsys.readouterr().err
