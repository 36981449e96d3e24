"""Other names of options: short flags, words of other toolkits, tgt for trg, and names of earlier versions."""

import re
from typing import Any

# Flags without their section, by command: flag, option, and what its value is called.
SHORT: dict[str, tuple[tuple[str, str, str], ...]] = {
    "nmt-preprocess": (
        ("--vocab-size", "subwords.vocab_size", "N"),
        ("--updates", "train.updates", "N"),
        ("--time-budget", "train.time_budget", "TIME"),
    ),
    "nmt-train": (
        ("--out", "train.out", "DIR"),
        ("--updates", "train.updates", "N"),
        ("--time-budget", "train.time_budget", "TIME"),
        ("--lr", "optim.lr", "RATE"),
        ("--batch-tokens", "batch.max_tokens", "N"),
        ("--patience", "valid.patience", "N"),
        ("--precision", "train.precision", "KIND"),
        ("--device", "train.device", "DEVICE"),
        ("--threads", "train.threads", "N"),
        ("--init-from", "train.init_from", "RUN"),
    ),
    "nmt-translate": (
        ("--beam", "decode.beam", "N"),
        ("--n-best", "decode.n_best", "N"),
        ("--alpha", "decode.alpha", "A"),
        ("--batch-tokens", "decode.max_tokens", "N"),
        ("--precision", "decode.precision", "KIND"),
        ("--seed", "decode.seed", "N"),
    ),
}

# What counts passes over the data elsewhere; here the end is told in updates.
EPOCHS = {
    "epoch",
    "epochs",
    "n_epoch",
    "n_epochs",
    "max_epoch",
    "max_epochs",
    "num_epochs",
    "num_train_epochs",
    "after_epochs",
}

# What other toolkits, and people, call our options. Of several the first that a command knows is meant.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(EPOCHS, ("train.updates",)),
    "learning_rate": ("optim.lr",),
    "learn_rate": ("optim.lr",),
    "initial_learning_rate": ("optim.lr",),
    "optimizer": ("optim.name",),
    "scheduler": ("optim.schedule",),
    "lr_scheduler": ("optim.schedule",),
    "lr_scheduler_type": ("optim.schedule",),
    "decay_method": ("optim.schedule",),
    "warmup_steps": ("optim.warmup",),
    "warmup_updates": ("optim.warmup",),
    "n_warmup_steps": ("optim.warmup",),
    "lr_warmup": ("optim.warmup",),
    "clip_norm": ("optim.clip",),
    "max_grad_norm": ("optim.clip",),
    "max_steps": ("train.updates",),
    "max_update": ("train.updates",),
    "max_updates": ("train.updates",),
    "train_steps": ("train.updates",),
    "after": ("train.updates",),
    "after_batches": ("train.updates",),
    "max_time": ("train.time_budget",),
    "max_seconds": ("train.time_budget",),
    "smoothing": ("train.label_smoothing",),
    "amp": ("train.precision",),
    "fp16": ("train.precision", "decode.precision"),
    "bf16": ("train.precision", "decode.precision"),
    "cpu": ("train.device", "device"),
    "gpu": ("train.device", "device"),
    "save_dir": ("train.out", "output"),
    "save_model": ("train.out", "output"),
    "output_dir": ("train.out", "output"),
    "model_dir": ("train.out",),
    "save_interval": ("train.save_every",),
    "save_steps": ("train.save_every",),
    "save_freq": ("train.save_every",),
    "finetune_from_model": ("train.init_from",),
    "pretrained_model": ("train.init_from",),
    "load_model": ("train.init_from",),
    "early_stopping": ("valid.patience",),
    "early_stopping_patience": ("valid.patience",),
    "valid_steps": ("valid.every",),
    "valid_freq": ("valid.every",),
    "eval_steps": ("valid.every",),
    "validate_interval": ("valid.every",),
    "checkpoint_interval": ("valid.every",),
    "max_tokens": ("batch.max_tokens", "decode.max_tokens"),
    "batch_size": ("batch.max_tokens", "decode.max_tokens"),
    "per_device_train_batch_size": ("batch.max_tokens",),
    "mini_batch": ("batch.max_tokens", "decode.max_tokens"),
    "mini_batch_words": ("batch.max_tokens",),
    "accumulate": ("batch.per_update",),
    "accum_count": ("batch.per_update",),
    "update_freq": ("batch.per_update",),
    "gradient_accumulation_steps": ("batch.per_update",),
    "arch": ("model.preset",),
    "embedding_dim": ("model.d_model",),
    "hidden_size": ("model.d_model",),
    "rnn_size": ("model.d_model",),
    "ffn_dim": ("model.d_inner",),
    "transformer_ff": ("model.d_inner",),
    "layers": ("model.n_enc_layer",),
    "n_layers": ("model.n_enc_layer",),
    "n_layer": ("model.n_enc_layer",),
    "encoder_layers": ("model.n_enc_layer",),
    "enc_layers": ("model.n_enc_layer",),
    "decoder_layers": ("model.n_dec_layer",),
    "dec_layers": ("model.n_dec_layer",),
    "heads": ("model.n_head",),
    "n_heads": ("model.n_head",),
    "bpe": ("subwords.vocab_size",),
    "vocab": ("subwords.vocab_size",),
    "source_lang": ("data.src_lang",),
    "target_lang": ("data.trg_lang", "decode.trg_lang"),
    "beam_size": ("decode.beam",),
    "num_beams": ("decode.beam",),
    "nbest": ("decode.n_best",),
    "nbest_size": ("decode.n_best",),
    "lenpen": ("decode.alpha",),
    "length_penalty_alpha": ("decode.alpha",),
    "normalize": ("decode.alpha",),
}

_ONE_MACHINE = "nmt-preprocess works on one machine, with as many processes as --data.workers says"
# Options and flags of earlier versions, without dashes: the values that did nothing, and what to use instead.
# With such a value an option of a recipe is passed over, so that recipes of earlier runs open; any other is refused.
GONE: dict[str, tuple[tuple[Any, ...], str]] = {
    "engine": ((), "a model that nmt-export wrote is translated with by CTranslate2's own Python: docs/export.md"),
    "data.generate": (
        (None,),
        "in a clone of the repository python tools/make_dates.py OUT writes the corpus (name its files in data.train, "
        "data.valid and data.test)",
    ),
    **dict.fromkeys(("rank", "ranks", "rank-timeout"), ((), _ONE_MACHINE)),
    "gold-alignments": ((), "write word alignments with --alignments, and compare them with another tool"),
    "tune-alignment": ((), "name the layer and the head: --decode.align_layer and --decode.align_head"),
    "decode.shortlist": ((0,), "set it to 0: every search looks among all subwords"),
    "batch.split_rate": ((0,), "set it to 0, and use batch.bpe_dropout"),
}


def with_trg(name: str) -> str:
    """A name of an option or flag in which tgt stands for trg, as we write it."""
    return re.sub(r"(?<![A-Za-z])tgt(?![A-Za-z])", "trg", name)
