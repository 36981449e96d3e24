"""The recurrent models through training: they learn, resume to the bit, and give each piece of the engine its due."""

import itertools

import pytest
import torch
from witness import StopAt

from nmt.checkpoint import weights_of
from nmt.data.corpus import Prepared
from nmt.run import Run
from nmt.training.launch import launch
from nmt.training.selftest import selftest

SHAPES = [
    {"architecture": "seq2seq", "cell": "gru"},
    {"architecture": "peeky", "n_rnn_layer": 2},
    {"architecture": "attention", "attn_score": "general", "enc_direction": "both", "variational_dropout": True},
    {"architecture": "attention", "attn_score": "additive", "input_feeding": True},
]


@pytest.fixture
def recurrent(recipe_of):
    def make(run, options, **sections):
        recipe = recipe_of(run, valid={"translate": False, "metric": "loss"}, **sections)
        tree = recipe.model_dump()
        tree["model"] = {"d_model": 16, "d_emb": 8, "dropout": 0.2, **options}
        return type(recipe).model_validate(tree)

    return make


def weights(recipe):
    model, _ = Run(recipe.run_folder).load_model("cpu", f"update-{recipe.train.updates:08}")
    return weights_of(model)


@pytest.mark.parametrize(("options", "optimizer"), [*((shape, "adam") for shape in SHAPES), (SHAPES[2], "muon")])
def test_a_resumed_run_is_the_uninterrupted_one(recurrent, options, optimizer):
    more = {"optim": {"name": optimizer}, "regularize": {"src_word_dropout": 0.1}}
    whole, parts = (
        recurrent(run, options, train={"updates": 5, "save_every": 3}, **more) for run in ("whole", "parts")
    )
    assert launch(whole) == "done"
    assert launch(parts, StopAt(3)) == "stopped"
    assert launch(parts) == "done"
    one, other = weights(whole), weights(parts)
    assert one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize("options", SHAPES[3:])
def test_what_regularises_a_transformer_regularises_them(recurrent, options):
    seen = []
    for number, strengths in enumerate(({}, {"r_drop": 1.0}, {"simcut": 1.0}, {"trg_word_dropout": 0.2})):
        recipe = recurrent(f"run{number}", options, train={"updates": 2, "save_every": 2}, regularize=strengths)
        assert launch(recipe) == "done"
        seen.append(torch.cat([weight.flatten() for weight in weights(recipe).values()]))
    assert not any(one.equal(other) for one, other in itertools.combinations(seen, 2))


@pytest.mark.parametrize("options", [SHAPES[0], SHAPES[2]])
def test_a_handful_of_pairs_is_learnt_by_heart_and_found_again(recurrent, options):
    recipe = recurrent("run", {**options, "d_model": 256, "d_emb": 128}, optim={"lr": 2e-2})
    for passed, said in selftest(recipe):
        assert passed, said


def test_embeddings_begin_as_a_dictionary(recurrent):
    options = {**SHAPES[2], "d_emb": 32, "emb_init": "cooccurrence"}
    recipe = recurrent("run", options, train={"updates": 1, "save_every": 1}, optim={"lr": 1e-9})
    assert launch(recipe) == "done"
    model, _ = Run(recipe.run_folder).load_model("cpu", "update-00000001")
    subwords = Prepared.open(recipe.data_folder).subwords
    (hund, dog), (source, target) = (subwords.trg.encode([text])[0][-1] for text in ("Hund", "dog")), model.embeddings
    assert torch.cosine_similarity(source.weight[hund], target.weight[dog], dim=0) > 0.6
