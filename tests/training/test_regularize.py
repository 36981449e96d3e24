"""Regularisers: each equals its formula, starts at its share of the run, and changes nothing before."""

import pytest
import torch
from witness import digest, logged

from nmt.data.subwords import BOS, EOS, PAD
from nmt.models.base import DROPPED
from nmt.models.build import build_model
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.training_options import RegularizeConfig
from nmt.training.engine import Objective, drop_words
from nmt.training.launch import launch
from tests.training.test_loss import assert_same, by_definition

V = 24


def objective_of(*, dropout=0.3, smoothing=0.1, **options):
    torch.manual_seed(3)
    sizes = {"d_model": 16, "d_inner": 24, "n_enc_layer": 2, "n_dec_layer": 2, "n_head": 4}
    model = build_model(ModelConfig(**sizes, dropout=dropout, norm="pre"), V, V).double().train()
    return Objective(model, smoothing, RegularizeConfig(**options))


def example():
    """Return four pairs of uneven length: (4, 7), (4, 6), (4, 6)."""
    generator = torch.Generator().manual_seed(11)
    src_seq, words = (torch.randint(EOS + 1, V, (4, n), generator=generator) for n in (7, 5))
    trg_seq, gold = torch.cat([torch.full((4, 1), BOS), words], 1), torch.cat([words, torch.full((4, 1), EOS)], 1)
    for row, (n_src, n_trg) in enumerate([(7, 6), (4, 3), (6, 1), (2, 5)]):
        src_seq[row, n_src - 1], gold[row, n_trg - 1] = EOS, EOS
        src_seq[row, n_src:], trg_seq[row, n_trg:], gold[row, n_trg:] = PAD, PAD, PAD
    return src_seq, trg_seq, gold


def assert_loss(found, expected, model):
    assert_same(found, expected, list(model.parameters()), bound=1e-10)


def test_r_drop_equals_its_formula():
    objective, (src_seq, trg_seq, gold) = objective_of(r_drop=5.0), example()
    torch.manual_seed(1)
    loss, reported = objective(src_seq, trg_seq, gold)
    torch.manual_seed(1)
    first, second = objective.model(src_seq.repeat(2, 1), trg_seq.repeat(2, 1)).chunk(2)
    expected, ce = by_definition(first, second, gold, ce=(1, 1), kl=(2.5, 2.5))
    assert not torch.allclose(first, second)
    torch.testing.assert_close(reported, ce.detach() / 2, rtol=0, atol=1e-10)
    assert_loss(loss, expected / 2, objective.model)


def test_simcut_equals_its_formula_and_has_a_gradient_through_both_passes():
    objective, (src_seq, trg_seq, gold) = objective_of(simcut=3.0, simcut_p=0.4), example()
    torch.manual_seed(1)
    loss, reported = objective(src_seq, trg_seq, gold)
    torch.manual_seed(1)
    src_cut, trg_cut = drop_words(src_seq, 0.4), drop_words(trg_seq, 0.4)
    assert (src_cut != src_seq).any() and (trg_cut != trg_seq).any()
    whole, cut = objective.model(torch.cat([src_seq, src_cut]), torch.cat([trg_seq, trg_cut])).chunk(2)
    expected, ce = by_definition(whole, cut, gold, ce=(1, 0), kl=(3.0, 0))
    torch.testing.assert_close(reported, ce.detach(), rtol=0, atol=1e-10)
    assert_loss(loss, expected, objective.model)


def test_words_are_dropped_only_on_the_chosen_side():
    src_seq, trg_seq, gold = example()
    for side in ("src", "trg"):
        objective = objective_of(dropout=0.0, **{f"{side}_word_dropout": 0.4})
        torch.manual_seed(1)
        loss, reported = objective(src_seq, trg_seq, gold)
        torch.manual_seed(1)
        src, trg = (drop_words(src_seq, 0.4), trg_seq) if side == "src" else (src_seq, drop_words(trg_seq, 0.4))
        logits = objective.model(src, trg)
        expected, _ = by_definition(logits, logits, gold, ce=(1, 0), kl=(0, 0))
        torch.testing.assert_close(reported, expected.detach(), rtol=0, atol=1e-10)
        assert_loss(loss, expected, objective.model)


@pytest.mark.parametrize("options", [{"src_word_dropout": 0.9}, {"simcut": 1.0, "simcut_p": 0.9}])
def test_source_tags_are_never_dropped(options, monkeypatch):
    src_seq, trg_seq = torch.full((9, 20), 5), torch.full((9, 20), 5)
    src_seq[:, 0] = 7
    gold, sources = trg_seq.clone(), []
    objective = objective_of(**options)
    objective.model.first_tag = 7
    decode = objective.model.decode_hidden
    monkeypatch.setattr(objective.model, "decode_hidden", lambda src, *rest: sources.append(src) or decode(src, *rest))
    objective(src_seq, trg_seq, gold)
    assert (sources[0][:, 0] == 7).all() and (sources[0] == DROPPED).any()


def test_regulariser_changes_no_bit_of_a_run_before_it_starts(recipe_of):
    """Half of 10 updates have passed before the sixth, whose loss is the first to differ."""
    train = {"updates": 10, "log_every": 1, "save_every": 5, "average": "none"}
    sections = {"train": train, "valid": {"translate": False, "metric": "loss"}}
    results = []
    for name, options in (("without", {}), ("with", {"r_drop": 5.0, "r_drop_from": 0.5})):
        recipe = recipe_of(name, **sections, regularize=options)
        launch(recipe)
        results.append((list(logged(recipe, "train", "loss").values()), digest(recipe, 5)))
    (expected, before), (losses, after) = results
    assert losses[:5] == expected[:5] and losses[5] != expected[5] and after == before
    assert [RegularizeConfig(simcut=3.0, simcut_from=0.2).at(share).simcut for share in (0.19, 0.2)] == [0.0, 3.0]


@pytest.mark.parametrize("options", [{"simcut": 3.0, "simcut_p": 1 - 1e-9}, {"r_drop": 5.0}])
def test_losses_of_the_halves_of_a_batch_add_up(options):
    """With every word cut out and no dropout nothing is random."""
    objective, batch = objective_of(dropout=0.0, **options), example()
    whole, reported = objective(*batch)
    halves = [objective(*(x[rows] for x in batch)) for rows in (slice(0, 1), slice(1, 4))]
    torch.testing.assert_close(reported, halves[0][1] + halves[1][1], rtol=0, atol=1e-10)
    assert_loss(whole, halves[0][0] + halves[1][0], objective.model)
    if "simcut" in options:
        assert whole > reported + 1e-3
