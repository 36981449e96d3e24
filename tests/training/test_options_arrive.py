"""Each option of some sections arrives where it does what it says: a table of another value, and what it changes."""

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from nmt.data.batching.batches import Batch
from nmt.data.batching.plan import Position
from nmt.data.prepare import prepare
from nmt.data.stored.corpus import Prepared
from nmt.models.build import build_model
from nmt.recipe.options import Recipe, ValidConfig
from nmt.recipe.regularize_options import NoiseConfig, RegularizeConfig
from nmt.recipe.training_options import BatchConfig, OptimConfig
from nmt.training import due
from nmt.training.engine import Engine
from nmt.training.feed import Feed, Portion
from nmt.training.losses import objective
from nmt.training.out_of_memory import Work
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision
from nmt.training.state import TrainState
from nmt.training.validate import Validation

FP32 = Precision("fp32", "", "cpu")


class Row(NamedTuple):
    """An option, another value of it than it has beside `others`, and what is seen then: the name of it, and its value.

    others: further options of the section.
    """

    option: str
    value: object
    what: str
    expected: object
    others: Mapping[str, object] = MappingProxyType({})


def check(row, seen):
    """Whether the value changes what is seen to what is expected. seen: makes it of the options of the section."""
    found = getattr(seen(**{**row.others, row.option: row.value}), row.what)
    assert found == (pytest.approx(row.expected) if isinstance(row.expected, float) else row.expected)
    assert found != getattr(seen(**row.others), row.what), "it was so before"


def ids(row):
    return f"{row.option}-{row.what}-{'-'.join(map(str, row.others.values()))}"


# -- optim -------------------------------------------------------------------------------------------------------------

UPDATE, N_UPDATE, D_MODEL = 80, 100, 16  # the update that is made, of how many
ADAMS = ("adam", "adamw", "muon", "schedulefree")  # under muon adamw is the second optimizer
MUON = {"name": "muon", "schedule": "constant", "warmup": 0}
FLAT = {"schedule": "constant", "warmup": 0}
OPTIM = [
    Row("name", "adamw", "kinds", ["AdamW"]),
    Row("name", "muon", "kinds", ["Muon", "AdamW"]),
    Row("name", "schedulefree", "kinds", ["AdamWScheduleFree"]),
    *(Row("betas", [0.7, 0.8], "betas", (0.7, 0.8), {"name": name}) for name in ADAMS),
    *(Row("eps", 1e-6, "eps", 1e-6, {"name": name}) for name in ADAMS),
    *(Row("lr", 0.03, "rate", 0.03, {**FLAT, "name": name}) for name in ADAMS),
    *(Row("weight_decay", 1e-5, "weight_decay", {0.0, 1e-5}, {"name": name}) for name in ADAMS),
    Row("muon_lr", 0.3, "muon_rate", 0.3, MUON),
    Row("muon_momentum", 0.5, "momentum", 0.5, MUON),
    Row("weight_decay", 0.2, "muon_weight_decay", {0.2}, MUON),
    Row("schedule", "constant", "rate", 1e-3, {"schedule": "linear", "warmup": 0}),
    Row("schedule", "inverse_sqrt", "rate", 1e-3 * (20 / 80) ** 0.5, {"schedule": "linear", "warmup": 20}),
    Row("warmup", 160, "rate", 0.5e-3, FLAT),
    Row("lr_mul", 3.0, "rate", 3 / D_MODEL**0.5 / 80**0.5, {"schedule": "noam", "warmup": 10}),
    Row("end_factor", 0.5, "rate", 1e-3 * (1 - 0.5 * 79 / 99), {"schedule": "linear", "warmup": 0}),
    Row("decay_share", 0.8, "rate", 1e-3 * (1 - 0.75**0.5), {"schedule": "wsd", "warmup": 0}),
    *(Row("rate_of", {"encoder.*": 0.1}, "rate_in_encoder", 1e-4, {**FLAT, "name": name}) for name in ADAMS),
    Row("rate_of", {"encoder.*": 0.1}, "muon_rate_in_encoder", 0.002, MUON),
    Row("clip", 0.5, "norm_that_steps", 0.5, FLAT),
]


@pytest.fixture
def of_optim(recipe_of):
    """of_optim(option=value, ...) -> what an update's optimizers are, and what they step with."""

    def seen(**options):
        recipe = recipe_of(optim={"lr": 1e-3, "clip": 0.0, **options}, train={"updates": N_UPDATE})
        torch.manual_seed(0)
        model = build_model(recipe.model, 320, 320)
        engine = Engine(model, recipe, precision=FP32, ranks=Ranks())
        norms = []
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        last, _ = engine.optimizers.parts[-1]
        last.register_step_pre_hook(
            lambda *_: norms.append(float(torch.stack([p.grad.norm() for p in model.parameters()]).norm()))
        )
        engine.step(due.rate_factor(TrainState(UPDATE - 1), recipe, 0.0), UPDATE)
        optimizers = [optimizer for optimizer, _ in engine.optimizers.parts]
        names = {param: name for name, param in model.named_parameters()}
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        rates = {names[param]: group["lr"] for group in groups for param in group["params"]}
        first = optimizers[0]
        return SimpleNamespace(
            kinds=[type(optimizer).__name__ for optimizer in optimizers],
            betas=tuple(last.param_groups[0]["betas"]),
            eps=last.param_groups[0]["eps"],
            rate=rates["decoder.layer_norm.weight"],
            rate_in_encoder=rates["encoder.layer_norm.weight"],
            weight_decay={group["weight_decay"] for group in last.param_groups},
            muon_rate=rates["decoder.layer_stack.0.pos_ffn.w_1.weight"],
            muon_rate_in_encoder=rates["encoder.layer_stack.0.pos_ffn.w_1.weight"],
            muon_weight_decay={group["weight_decay"] for group in first.param_groups},
            momentum=first.param_groups[0].get("momentum"),
            norm_that_steps=norms[0],
        )

    return seen


@pytest.mark.parametrize("row", OPTIM, ids=ids)
def test_an_option_of_optim_arrives(row, of_optim):
    check(row, of_optim)


# -- valid -------------------------------------------------------------------------------------------------------------

PATIENT = {"metric": "loss", "patience": 3}
VALID = [
    Row("every", 7, "next_validation", 77),
    Row("metric", "loss", "best", 50, {"metric": "bleu"}),
    Row("metric", "loss", "over", "", {"metric": "bleu", "patience": 3}),
    Row("metric", "accuracy", "over", "patience", PATIENT),
    Row("patience", 2, "over", "patience", PATIENT),
    Row("beam", 3, "beam", 3),
    Row("max_sentences", 5, "n_translated", 5),
    Row("translate", False, "names", ("loss", "perplexity", "accuracy"), {"metric": "loss"}),
    Row("max_tokens", 1, "n_batch", 12),  # so many pairs there are
    Row("max_tokens", 1, "max_tokens_of_translations", 1),
]
HISTORY = [
    {"update": 10 * number, "loss": loss, "bleu": bleu, "accuracy": accuracy}
    for number, (loss, bleu, accuracy) in enumerate(
        [(9, 5, 0.9), (8, 6, 0.1), (7, 1, 0.1), (6, 1, 0.1), (5, 1, 0.1), (6, 1, 0.1), (6, 1, 0.1)], start=1
    )
]


@pytest.fixture
def of_valid(recipe_of):
    """of_valid(option=value, ...) -> when and how a model is measured, and what follows from what was measured."""

    def seen(**options):
        recipe = recipe_of(valid=options, train={"updates": 1000})
        data = Prepared.open(recipe.data_folder)
        first = Validation(recipe, data, FP32).first
        state = TrainState(70, history=HISTORY)
        later = (TrainState(update, history=HISTORY) for update in range(71, 200))
        return SimpleNamespace(
            next_validation=next(s.update for s in later if due.validation_is_due(s, recipe, 0.0)),
            best=state.best_update(recipe.valid.metric),
            over=due.why_over(state, recipe, 0.0),
            beam=first.decode.beam,
            n_translated=len(first.src),
            names=first.names,
            n_batch=len(first.batches),
            max_tokens_of_translations=first.decode.max_tokens,
        )

    return seen


@pytest.mark.parametrize("row", VALID, ids=ids)
def test_an_option_of_valid_arrives(row, of_valid):
    check(row, of_valid)


# -- batch -------------------------------------------------------------------------------------------------------------

BATCH = [
    Row("max_tokens", 1, "n_pair_in_batch", {1}),
    Row("per_update", 3, "n_batch", 3),
    Row("tokens_per_update", 10**6, "n_update_in_epoch", 1, {"per_update": 1}),
    Row("pool", 1, "n_pair_in_batch", {1}),
    Row("packed", True, "packed", True, {"max_tokens": 257}),
    Row("split_rate", 0.9, "as_prepared", False),
    Row("bpe_dropout", 0.9, "as_prepared", False),
    Row("unigram_alpha", 0.1, "as_prepared", False, {"unigram_alpha": 1e3}),  # which leaves what is likeliest
]
NOISE = [
    Row("upper", 1.0, "as_prepared", False),
    Row("title", 1.0, "src_as_prepared", False),
    Row("lower", 1.0, "src_as_prepared", False),
    Row("typo", 1.0, "src_as_prepared", False),
]


@pytest.fixture(scope="module")
def of_unigram(corpus, tmp_path_factory):
    """The part of a recipe that makes the same corpus with unigram subwords, and has made it."""
    folder = tmp_path_factory.mktemp("unigram") / "prepared"
    made = {"data": {**corpus["data"], "out": str(folder)}, "subwords": {"kind": "unigram", "vocab_size": 320}}
    prepare(Recipe.model_validate({"name": "tiny", **made}), folder, talk=lambda _line: None)
    return made


@pytest.fixture
def of_batch(recipe_of, of_unigram):
    """of_batch(option=value, ...) -> what the first update is made of."""

    def seen(**options):
        kind = of_unigram if "unigram_alpha" in options else {}
        noise = {name: options.pop(name) for name in NoiseConfig.model_fields if name in options}
        recipe = recipe_of(batch=options, model={"attn_dropout": 0.0}, regularize={"noise": noise}, **kind)
        data = Prepared.open(recipe.data_folder)
        feed = Feed(recipe, data, Ranks())
        update, _ = feed.plan.at(Position())
        batches = [work.batch for work in next(feed.begin(Position())).work]
        n_gold = sum(batch.n_gold for batch in batches)
        assert feed.n_gold(Portion([Work(batch) for batch in batches], Position(), Position())) == n_gold
        return SimpleNamespace(
            n_batch=len(batches),
            n_pair_in_batch=set(map(len, update)),
            n_update_in_epoch=feed.plan.n_update(0),
            packed=batches[0].src_start is not None,
            src_as_prepared=sum(int(batch.src_seq.ne(0).sum()) for batch in batches)
            == sum(int(data.train.src_len[rows].sum()) + len(rows) for rows in update),
            as_prepared=n_gold == sum(int(data.train.trg_len[rows].sum()) + len(rows) for rows in update),
        )

    return seen


@pytest.mark.parametrize("row", BATCH + NOISE, ids=ids)
def test_an_option_of_batch_arrives(row, of_batch):
    check(row, of_batch)


# -- regularize --------------------------------------------------------------------------------------------------------

SHARE = 0.5  # of the run that has passed
REGULARIZE = [
    Row("r_drop", 4.0, "divergence", (1.0, 1.0)),
    Row("r_drop_from", 0.6, "divergence", None, {"r_drop": 4.0}),
    Row("simcut", 3.0, "divergence", (3.0, 0.0)),
    Row("simcut_from", 0.6, "divergence", None, {"simcut": 3.0}),
    Row("simcut_p", 0.3, "dropped", [0.0, 0.0, 0.3, 0.3], {"simcut": 3.0}),
    Row("src_word_dropout", 0.2, "dropped", [0.2, 0.0]),
    Row("trg_word_dropout", 0.2, "dropped", [0.0, 0.2]),
    Row("word_dropout_from", 0.6, "dropped", [0.0, 0.0], {"src_word_dropout": 0.2, "trg_word_dropout": 0.1}),
    Row("layer_drop", 0.4, "left_out", 0.4),
    Row("layer_drop_from", 0.6, "left_out", 0.0, {"layer_drop": 0.4}),
]


@pytest.fixture
def of_regularize(recipe_of, monkeypatch):
    """of_regularize(option=value, ...) -> what an update in the middle of a run does to its batch."""

    def seen(**options):
        found = SimpleNamespace(divergence=None, dropped=[], left_out=None)

        def watch(name, note):
            call = getattr(objective, name)

            def watched(*args, **known):
                note(args, known)
                return call(*args, **known)

            context.setattr(objective, name, watched)

        recipe = recipe_of(regularize=options)
        engine = Engine(build_model(recipe.model, 320, 320), recipe, precision=FP32, ranks=Ranks())
        batch = Batch(*(torch.full((3, n), 9) for n in (7, 5, 5)), n_gold=15)
        with monkeypatch.context() as context:
            watch("consistency", lambda _, known: vars(found).update(divergence=known["kl"]))
            watch("drop_words", lambda args, _: found.dropped.append(args[1]))
            watch("leave_out", lambda args, _: vars(found).update(left_out=args[1]))
            engine.backward([Work(batch)], 15, share=SHARE)
        return found

    return seen


@pytest.mark.parametrize("row", REGULARIZE, ids=ids)
def test_an_option_of_regularize_arrives(row, of_regularize):
    check(row, of_regularize)


# -- the tables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "table"),
    [
        (OptimConfig, OPTIM),
        (ValidConfig, VALID),
        (BatchConfig, BATCH),
        (RegularizeConfig, REGULARIZE),
        (NoiseConfig, NOISE),
    ],
    ids=["optim", "valid", "batch", "regularize", "noise"],
)
def test_a_table_has_every_option_of_its_section(section, table):
    elsewhere = {"noise", "no_end"}  # a table of its own, and what no sentence here has
    assert {row.option for row in table} == set(section.model_fields) - elsewhere
