"""Options of batches, optimizers, training and regularisation that are each allowed, but not together."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nmt.recipe.model_options import ModelConfig
    from nmt.recipe.options import Recipe
    from nmt.recipe.regularize_options import RegularizeConfig
    from nmt.recipe.training_options import BatchConfig, OptimConfig, TrainConfig

# Adam divides what it is given by its own size, so that a decay in the gradient is not scaled by the rate but competes
# with the loss (Loshchilov and Hutter 2019, "Decoupled weight decay regularization"): 0.1 leaves a model at the
# frequencies of words.
MOST_COUPLED_DECAY = 0.01


def find_training_contradictions(recipe: "Recipe") -> Iterator[str]:
    """What in the options of training cannot be meant, as `contradictions.find_contradictions` says it."""
    yield from _of_batch(recipe.batch)
    yield from _of_packing(recipe)
    yield from _of_optim(recipe.optim, recipe.train)
    yield from _of_train(recipe.train)
    yield from _of_regularize(recipe.regularize, recipe.model, graphs=recipe.train.cuda_graphs)


def _of_batch(batch: "BatchConfig") -> Iterator[str]:
    if batch.tokens_per_update and batch.per_update > 1:
        yield (
            f"batch.per_update: {batch.per_update} batches are asked for, but batch.tokens_per_update, "
            f"{batch.tokens_per_update}, decides how many make an update (remove one of the two)"
        )


def _of_packing(recipe: "Recipe") -> Iterator[str]:
    model, batch = recipe.model, recipe.batch
    if recipe.train.cuda_graphs and not (recipe.train.compile and batch.packed):
        yield "train.cuda_graphs: needs train.compile and batch.packed (set both to true, or this to false)"
    if not batch.packed:
        return
    if recipe.regularize.noise.shares():
        yield "batch.packed: regularize.noise makes pairs longer than they were planned with (set one of the two to 0)"
    if batch.max_tokens == "auto":
        yield "batch.packed: all its rows have one length, batch.max_tokens, which must be a number, not auto"
    elif batch.max_tokens <= recipe.data.max_len:
        yield (
            f"batch.packed: a pair of data.max_len, which is {recipe.data.max_len}, and its end do not fit a row of "
            f"batch.max_tokens, which is {batch.max_tokens} (raise the latter)"
        )
    if model.dropout if model.attn_dropout is None else model.attn_dropout:
        yield "batch.packed: its attention kernel knows no dropout (set model.attn_dropout to 0)"
    if model.lexical_attn:
        yield "batch.packed: its attention kernel is not made for model.lexical_attn (set one of the two to false)"
    if model.d_k != model.d_v:
        yield "batch.packed: its attention kernel wants model.d_k and model.d_v equal"
    elif (d_k := model.d_k or model.d_model // model.n_head) % 8 or d_k > 256:
        yield (
            f"batch.packed: its attention kernel wants heads whose width is a multiple of 8 up to 256, but model.d_k "
            f"(or model.d_model / model.n_head) is {d_k} (choose another model.n_head)"
        )


def _of_optim(optim: "OptimConfig", train: "TrainConfig") -> Iterator[str]:
    if optim.warmup == "auto":
        pass  # which fits
    elif optim.schedule in ("linear", "cosine", "wsd") and optim.warmup > train.updates:
        yield (
            f"optim.warmup: {optim.warmup} updates of warm-up are more than train.updates, {train.updates}, so that "
            f"optim.schedule {optim.schedule} never comes to its decay"
        )
    elif (
        optim.schedule == "wsd"
        and not train.time_budget
        and optim.warmup > round((1 - optim.decay_share) * train.updates)
    ):
        yield (
            f"optim.decay_share: the decay over {optim.decay_share} of train.updates, {train.updates}, begins within "
            f"the optim.warmup of {optim.warmup} updates (lower one of them)"
        )
    if optim.name == "muon" and optim.schedule == "noam":
        yield (
            "optim.schedule: noam computes the rate itself, but optim.name muon has two rates, optim.lr and "
            "optim.muon_lr (choose another schedule)"
        )
    if optim.name == "adam" and optim.weight_decay > MOST_COUPLED_DECAY:
        yield (
            f"optim.weight_decay: {optim.weight_decay} is added to the gradient by optim.name adam, and so much "
            "outweighs it: the model would not learn (write adamw, whose decay stands apart from the gradient)"
        )
    if optim.name == "schedulefree":
        yield from _of_schedule_free(optim, train)


def _of_schedule_free(optim: "OptimConfig", train: "TrainConfig") -> Iterator[str]:
    if optim.schedule not in ("constant", "auto"):
        yield (
            f"optim.schedule: {optim.schedule} lowers the rate, but optim.name schedulefree averages weights in its "
            "place (write constant; optim.warmup stays)"
        )
    if train.ema:
        yield (
            "train.ema: the weights that optim.name schedulefree keeps and translates with are an average already "
            "(set this to 0)"
        )
    if not optim.betas[0]:
        yield "optim.betas: optim.name schedulefree takes gradients between two weights, so the first must be above 0"


def _of_train(train: "TrainConfig") -> Iterator[str]:
    for kind, n_kept in (("last", train.keep_last), ("best", train.keep_best)):
        if train.average == kind and n_kept == 1:
            yield (
                f"train.average: {kind} averages the checkpoints that train.keep_{kind} keeps, which is one (keep "
                "more, or write none)"
            )
    if train.parallel == "fsdp" and train.compile:
        yield (
            "train.parallel: fsdp gathers weights in the middle of what train.compile makes one piece of (use ddp, or "
            "set train.compile to false)"
        )
    if train.precision == "fp16" and train.device == "cpu":
        yield "train.precision: fp16 needs a GPU, but train.device is cpu (use auto, bf16 or fp32)"


def _of_regularize(regularize: "RegularizeConfig", model: "ModelConfig", *, graphs: bool) -> Iterator[str]:
    if (total := sum(regularize.noise.shares().values())) > 1:
        yield f"regularize.noise: a pair has one kind of noise at most, but the shares add up to {total:g} (lower some)"
    if regularize.layer_drop and graphs:
        yield "regularize.layer_drop: train.cuda_graphs replays all layers (set one of the two to 0 or false)"
    if regularize.r_drop and regularize.simcut:
        yield (
            "regularize.r_drop: regularize.simcut compares two passes with different dropout already, one of them with "
            "words cut out (set one of the two to 0)"
        )
    word_dropout = max(regularize.src_word_dropout, regularize.trg_word_dropout)
    dropouts = (model.dropout, model.emb_dropout, model.attn_dropout, model.act_dropout, word_dropout)
    if regularize.r_drop and not any(dropouts):
        yield "regularize.r_drop: without model.dropout both passes are the same (raise that, or set this to 0)"
    for begin, share, name, strength in (
        ("r_drop_from", regularize.r_drop_from, "r_drop", regularize.r_drop),
        ("simcut_from", regularize.simcut_from, "simcut", regularize.simcut),
        ("word_dropout_from", regularize.word_dropout_from, "src_word_dropout", word_dropout),
        ("layer_drop_from", regularize.layer_drop_from, "layer_drop", regularize.layer_drop),
    ):
        if share and not strength:
            yield f"regularize.{begin}: nothing is switched on, as regularize.{name} is 0 (raise that, or remove this)"
