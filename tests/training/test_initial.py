"""Fine-tuning: weights of another run, frozen parameters, and learning rates by parameter."""

import re
import shutil

import pytest
import torch
from witness import CPU, engine_of, folder_of, log_of, state_of, stop_at, tensors

from nmt.data.letters import BYTE_LETTERS
from nmt.data.subword_kinds import PieceTable, SubwordsFile
from nmt.data.subwords import N_SPECIAL, Subwords
from nmt.errors import RecipeError, RunError
from nmt.models.build import build_model
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.training_options import OptimConfig
from nmt.run import Run
from nmt.training.initial import copy_weights, start_embeddings
from nmt.training.launch import launch
from nmt.training.optim import Optimizers, freeze, rate_factors

SIZE = {"d_model": 8, "d_inner": 12, "n_enc_layer": 1, "n_dec_layer": 1, "n_head": 2}
UNTIED = {"emb_src_trg_weight_sharing": False, "trg_emb_prj_weight_sharing": False}
BYTES = list(BYTE_LETTERS)


def codec(*pieces, merges=()):
    return PieceTable(vocab=[*BYTES, *pieces], merges=list(merges))


def small_model(subwords, seed=0, **options):
    torch.manual_seed(seed)
    return build_model(ModelConfig(**{**SIZE, **options}), subwords.src.n_vocab, subwords.trg.n_vocab)


def subwords_of(codec, **options):
    return Subwords(SubwordsFile(codecs=[codec], **options))


def test_rows_follow_their_subwords_even_if_vocabularies_are_equally_large():
    subwords, other_subwords = subwords_of(codec("ab", "cd", "new")), subwords_of(codec("old", "ab", "cd"))
    model, other = small_model(subwords, 0), small_model(other_subwords, 1)
    fates = copy_weights(model, subwords, other, other_subwords)
    why = f"{subwords.src.size - 1} of {subwords.src.size} subwords, 1 start as the mean of their parts there"
    assert fates["grown"] == {"encoder.src_word_emb.weight": why}
    rows, other_rows, first = model.output_weight, other.output_weight, N_SPECIAL + 256
    torch.testing.assert_close(rows[:first], other_rows[:first], rtol=0, atol=0)  # control symbols and bytes
    assert torch.equal(rows[first], other_rows[first + 1]) and torch.equal(rows[first + 1], other_rows[first + 2])
    # The other vocabulary cuts the new subword into three bytes.
    torch.testing.assert_close(rows[first + 2], other_rows[other_subwords.src.cut("new")].mean(0))
    assert len(other_subwords.src.cut("new")) == 3


def test_new_row_is_the_mean_of_the_pieces_it_replaces():
    other_subwords = subwords_of(codec("ab", "abc", merges=[("a", "b"), ("ab", "c")]))
    merges = [("a", "b"), ("ab", "c"), ("abc", "ab")]
    subwords = subwords_of(codec("ab", "abc", "abcab", merges=merges), symbols=("abd",))
    model, other = small_model(subwords, 0, **UNTIED), small_model(other_subwords, 1, **UNTIED)
    fates = copy_weights(model, subwords, other, other_subwords)
    assert len(fates["grown"]) == 3
    first = N_SPECIAL + 256
    for matrix, other_matrix in zip(
        (*model.embeddings, model.trg_word_prj), (*other.embeddings, other.trg_word_prj), strict=True
    ):
        torch.testing.assert_close(matrix.weight[: first + 2], other_matrix.weight[: first + 2], rtol=0, atol=0)
        torch.testing.assert_close(matrix.weight[first + 2], other_matrix.weight[[first + 1, first]].mean(0))
        (d,) = other_subwords.src.cut("d")
        torch.testing.assert_close(matrix.weight[first + 3], other_matrix.weight[[first, d]].mean(0))


def test_parameter_that_does_not_fit_is_reported_and_keeps_its_value():
    subwords = subwords_of(codec("ab"))
    model, other = small_model(subwords, 0, d_inner=20, n_dec_layer=2), small_model(subwords, 1, n_enc_layer=2)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    fates = copy_weights(model, subwords, other, subwords)
    skipped = fates["skipped"]
    assert skipped["encoder.layer_stack.0.pos_ffn.w_1.weight"] == "12 x 8 there, 20 x 8 here"
    assert skipped["decoder.layer_stack.1.slf_attn.fc.weight"] == "not in that run"
    assert "encoder.layer_stack.1.slf_attn.fc.weight" in fates["unused"]
    other_params = dict(other.named_parameters())
    for name, param in model.named_parameters():
        assert torch.equal(param, before[name] if name in skipped else other_params[name]), name


def test_run_starts_from_the_weights_of_another_and_nothing_else(recipe_of, uninterrupted, capsys):
    for name, origin, update in (
        ("b", folder_of(uninterrupted, 12), 12),
        ("c", uninterrupted.run_folder, None),
    ):
        child = recipe_of(name, train={"updates": 2, "init_from": str(origin)}, optim={"lr": 1e-30}, seed=9)
        capsys.readouterr()
        assert launch(child) == "done"
        weights, state = tensors(child, 2), state_of(child, 2)
        assert all(torch.equal(tensor, weights[key]) for key, tensor in tensors(uninterrupted, update).items())
        assert (state["update"], state["epoch"], len(state["history"])) == (2, 0, 1)
        err = capsys.readouterr().err
        assert re.search(r"first weights from \S+whole, \S+:\n  loaded   \d+ parameters, [\d,]+ numbers\n", err)
        (line,) = log_of(child, "init")
        assert "options" not in line and "warning" not in err
        assert len(line["loaded"]) == len(dict(Run(child.run_folder).load_model(CPU)[0].named_parameters()))


def test_options_that_change_what_the_weights_compute_give_a_warning(recipe_of, uninterrupted, capsys):
    changed = {"n_head": 4, "position": "rotary", "rotary_enc_attn": True, "dropout": 0.1}
    child = recipe_of("child", train={"updates": 2, "init_from": str(uninterrupted.run_folder)}, model=changed)
    capsys.readouterr()
    launch(child)
    warning = "warning: these model options differ, so the copied weights may compute something else: "
    listed = "n_head: 2 there, 4 here; model.position: sinusoid there, rotary here; model.rotary_enc_attn: False there"
    assert f"  {warning}model.{listed}, True here\n" in capsys.readouterr().err
    (line,) = log_of(child, "init")
    expected = {"n_head": [2, 4], "position": ["sinusoid", "rotary"], "rotary_enc_attn": [False, True]}
    assert line["options"] == expected and not line["skipped"] and not line["unused"]


def test_run_resumes_after_its_parent_was_deleted(recipe_of, tmp_path):
    parent = recipe_of("parent", train={"updates": 2})
    launch(parent)
    child = recipe_of("child", train={"updates": 4, "init_from": str(parent.run_folder)})
    assert launch(child, stop_at(1)) == "stopped"
    shutil.rmtree(parent.run_folder)
    assert launch(child, stop_at(1)) == "stopped"
    without = recipe_of("child", train={"updates": 4})  # without the option
    assert launch(without) == launch(child) == "done"
    assert Run(child.run_folder).recipe().train.init_from == str(parent.run_folder)  # its origin stays recorded
    with pytest.raises(RunError, match=r"train\.init_from was '\S+parent', now '\S+other'"):
        launch(recipe_of("child", train={"updates": 4, "init_from": str(tmp_path / "other")}))
    with pytest.raises(RunError, match=r"train\.init_from: \S+parent is not a run"):
        launch(recipe_of("new", train={"updates": 4, "init_from": str(parent.run_folder)}))


def test_invalid_origin_is_refused(recipe_of, tmp_path):
    launch(recipe_of("wide", train={"updates": 3}, model={"d_model": 24, "d_inner": 40}))
    launch(recipe_of("run", train={"updates": 3}))
    launch(recipe_of("begun", train={"updates": 3}))
    for folder in ("checkpoints", "model"):
        shutil.rmtree(tmp_path / "begun" / folder)
    for name, origin, complaint in (
        ("run", "run", r"train\.init_from was '', now"),
        ("child", "nowhere/at/all", "is not a run"),
        ("child", "begun", "begun: no checkpoint to load"),
        ("child", "run/checkpoints/update-00000004", "no checkpoint 'update-00000004'; there are: .*update-00000003"),
        ("child", "wide", "no parameter of .* fits"),
    ):
        with pytest.raises(RunError, match=complaint):
            launch(recipe_of(name, train={"init_from": str(tmp_path / origin)}))
        assert (tmp_path / "child").exists() == (origin == "wide")  # other mistakes are found before it is created


def test_recipe_may_be_corrected_before_the_first_checkpoint(recipe_of, monkeypatch):
    for sections in ({"optim": {"rate_of": {"encodr.*": 0.5}}}, {"train": {"freeze": ["encodr.*"]}}):
        with (
            monkeypatch.context() as patched,
            pytest.raises(RecipeError, match=r"'encodr\.\*' matches no parameter .* Close names: encoder\.\*"),
        ):
            patched.setattr("nmt.training.launch.first_weights", None)  # slow: the error comes before it
            launch(recipe_of(**sections))
    assert launch(recipe_of(train={"freeze": ["encoder.layer_stack.*"], "updates": 2})) == "done"


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_frozen_parameters_get_no_gradient_decay_or_state(recipe_of, optimizer):
    subwords = subwords_of(codec("ab"))
    config = OptimConfig(name=optimizer, schedule="constant", lr=0.1, weight_decay=0.5)
    src = torch.randint(3, 250, (3, 6), generator=torch.Generator().manual_seed(1))
    grads, moved = [], []
    for patterns in ([], ["encoder.*", "*norm*"]):
        model = small_model(subwords, 0, dropout=0.0)
        freeze(model, patterns)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizers = Optimizers(model, config)
        optimizers.set_rate(1.0, absolute=False)
        loss = model(src, src).square().mean()
        loss.backward()
        grads.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        optimizers.apply_update(torch.amp.GradScaler("cpu", enabled=False), loss=loss.detach(), clip=0.0)
        moved.append({name for name, p in model.named_parameters() if not torch.equal(p, before[name])})
        with_state = {key.split("|")[0] for key in optimizers.state()}
        assert with_state == set(grads[-1])
    frozen = {name for name in grads[0] if name.startswith("encoder.") or "norm" in name}
    assert frozen and grads[0].keys() - grads[1].keys() == frozen
    assert all(torch.equal(grads[0][name], grad) for name, grad in grads[1].items())
    assert moved[0] > moved[1] and moved[1] == set(grads[1])


def test_first_matching_pattern_gives_the_rate_factor():
    model = small_model(subwords_of(codec("ab")))
    factors = rate_factors(model, {"decoder.*norm*": 0.5, "decoder.*": 0.1})
    for name, param in model.named_parameters(remove_duplicate=False):
        factor = 0.5 if name.startswith("decoder.") and "norm" in name else 0.1 if name.startswith("decoder.") else 1.0
        if "emb" not in name and "prj" not in name:
            assert factors.get(param, 1.0) == factor, name
    with pytest.raises(RecipeError, match=r"optim\.rate_of: 'decoder\.layers\*' matches no parameter"):
        rate_factors(model, {"decoder.layers*": 0.5})


@pytest.mark.parametrize("shared", [True, False])
def test_embeddings_and_output_layer_start_from_cooccurrences(recipe_of, shared):
    recipe = recipe_of("run", model={"emb_init": "cooccurrence", "emb_src_trg_weight_sharing": shared})
    data, engine = engine_of(recipe)
    model = engine.model
    start_embeddings(model, data, recipe.seed)
    source, target = model.embeddings
    assert (source.weight is target.weight) is shared
    assert model.trg_word_prj.weight is target.weight
    words = {"Hund": "dog", "rot": "red", "groß": "big", "zwei": "two", "Haus": "house"}
    src = [ids[-1] for ids in data.subwords.src.encode(words)]
    trg = [ids[-1] for ids in data.subwords.trg.encode(words.values())]
    cosine = torch.cosine_similarity(source.weight[src].unsqueeze(1), target.weight[trg], dim=2)
    assert cosine.argmax(1).tolist() == [*range(5)] and cosine.diag().min() > 0.6  # words are near their translations
