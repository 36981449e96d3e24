"""Options that are each allowed, but not together.

Every complaint begins with the dotted name to change and names the other options that take part by their dotted
names too: the reader finds the line by the first, and stays silent when one of the others is itself mistaken.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nmt.recipe.model_options import ModelConfig
    from nmt.recipe.options import DataConfig, Recipe
    from nmt.recipe.training_options import OptimConfig, TrainConfig


def find_contradictions(recipe: "Recipe") -> list[str]:
    """Everything in a recipe that cannot be meant, as "dotted.name: what is wrong and what to do"."""
    return [
        *_of_data(recipe.data),
        *_of_model(recipe.model, joint=recipe.subwords.joint),
        *_of_packing(recipe),
        *_of_optim(recipe.optim, updates=recipe.train.updates),
        *_of_train(recipe.train),
        *_of_translation(recipe),
    ]


def _of_data(data: "DataConfig") -> Iterator[str]:
    if data.generate is None:
        return
    for name, given in (
        ("train", bool(data.train)),
        ("valid", data.valid is not None),
        ("test", data.test is not None),
    ):
        if given:
            yield f"data.{name}: files are given, but data.generate makes the corpus (remove one of the two)"


def _of_model(model: "ModelConfig", *, joint: bool) -> Iterator[str]:
    if model.emb_src_trg_weight_sharing and not joint:
        yield (
            "model.emb_src_trg_weight_sharing: source and target cannot share embeddings when their vocabularies "
            "differ, and subwords.joint is false (set this to false, or subwords.joint to true)"
        )
    if model.scale_emb_or_prj != "none" and not model.trg_emb_prj_weight_sharing:
        yield (
            f"model.scale_emb_or_prj: {model.scale_emb_or_prj} has no effect when model.trg_emb_prj_weight_sharing is "
            "false (remove it, or write none)"
        )
    if model.prj_transform and not model.trg_emb_prj_weight_sharing:
        yield (
            "model.prj_transform: a projection that model.trg_emb_prj_weight_sharing: false sets free needs no further "
            "matrix before it (set this to false)"
        )
    if model.d_model % model.n_head and (model.d_k is None or model.d_v is None):
        yield (
            f"model.n_head: {model.n_head} heads do not divide model.d_model, which is {model.d_model} (change one of "
            "them, or give both model.d_k and model.d_v)"
        )
    if model.n_kv_head is not None and model.n_head % model.n_kv_head:
        yield f"model.n_kv_head: {model.n_kv_head} does not divide model.n_head, which is {model.n_head}"
    d_k = model.d_k if model.d_k is not None else model.d_model // model.n_head
    if model.position == "rotary" and d_k % 2:
        yield f"model.position: rotary turns pairs, but model.d_k (or model.d_model / model.n_head) is {d_k}, odd"
    if model.rotary_enc_attn and model.position != "rotary":
        yield (
            "model.rotary_enc_attn: rotary positions are wanted over the source, but model.position is "
            f"{model.position} (set that to rotary, or this to false)"
        )
    if model.position == "sinusoid" and model.d_model % 2:
        yield f"model.position: sinusoid takes a sine and a cosine each, but model.d_model is {model.d_model}, odd"


def _of_packing(recipe: "Recipe") -> Iterator[str]:
    model, batch = recipe.model, recipe.batch
    if recipe.train.cuda_graphs and not (recipe.train.compile and batch.packed):
        yield "train.cuda_graphs: needs train.compile and batch.packed (set both to true, or this to false)"
    if not batch.packed:
        return
    if batch.split_rate:
        yield "batch.packed: batch.split_rate makes pairs longer than they were planned with (set one of the two to 0)"
    if batch.max_tokens <= recipe.data.max_len:
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


def _of_optim(optim: "OptimConfig", *, updates: int) -> Iterator[str]:
    if optim.schedule in ("linear", "cosine") and optim.warmup > updates:
        yield (
            f"optim.warmup: {optim.warmup} updates of warm-up are more than train.updates, {updates}, so that "
            f"optim.schedule {optim.schedule} never comes to its decay"
        )
    if optim.name == "muon" and optim.schedule == "noam":
        yield (
            "optim.schedule: noam computes the rate itself, but optim.name muon has two rates, optim.lr and "
            "optim.muon_lr (choose another schedule)"
        )


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


def _of_translation(recipe: "Recipe") -> Iterator[str]:
    if recipe.valid.metric in ("bleu", "chrf") and not recipe.valid.translate:
        yield f"valid.metric: {recipe.valid.metric} needs valid.translate, which is false (or use loss or accuracy)"
    if recipe.decode.n_best > recipe.decode.beam:
        yield f"decode.n_best: {recipe.decode.n_best} is more than decode.beam, which is {recipe.decode.beam}"
