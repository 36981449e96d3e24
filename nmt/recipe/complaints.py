"""Error messages about a recipe, one line each: place, dotted name, found, expected, nearest name."""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from nmt.recipe.fields import all_fields, sections

# What is wrong with a recipe: the line in its file, None for the command line; the dotted name; and what it is.
Complaint = tuple[int | None, str, str]

# Flags without their section, by command: flag, option, and what its value is called.
SHORT: dict[str, tuple[tuple[str, str, str], ...]] = {
    "nmt-preprocess": (
        ("--vocab-size", "subwords.vocab_size", "N"), ("--updates", "train.updates", "N"),
        ("--epochs", "train.epochs", "N"), ("--time-budget", "train.time_budget", "TIME"),
    ),
    "nmt-train": (
        ("--out", "train.out", "DIR"), ("--updates", "train.updates", "N"), ("--epochs", "train.epochs", "N"),
        ("--time-budget", "train.time_budget", "TIME"), ("--lr", "optim.lr", "RATE"),
        ("--batch-tokens", "batch.max_tokens", "N"), ("--patience", "valid.patience", "N"),
        ("--precision", "train.precision", "KIND"), ("--device", "train.device", "DEVICE"),
        ("--threads", "train.threads", "N"), ("--init-from", "train.init_from", "RUN"),
    ),
    "nmt-translate": (
        ("--beam", "decode.beam", "N"), ("--n-best", "decode.n_best", "N"), ("--alpha", "decode.alpha", "A"),
        ("--batch-tokens", "decode.max_tokens", "N"), ("--precision", "decode.precision", "KIND"),
        ("--seed", "decode.seed", "N"),
    ),
}  # fmt: skip

# What other toolkits, and people, call our options. Of several options the first that a command knows is meant.
_CALLED = {
    "train.updates": "max_steps max_update max_updates train_steps after after_batches",
    "train.epochs": "epoch n_epoch n_epochs max_epoch max_epochs num_epochs num_train_epochs after_epochs",
    "train.time_budget": "max_time max_seconds",
    "train.label_smoothing": "smoothing",
    "train.precision": "amp",
    "train.precision decode.precision": "fp16 bf16",
    "train.device device": "cpu gpu",
    "train.out": "model_dir",
    "train.out output": "save_dir save_model output_dir",
    "train.save_every": "save_interval save_steps save_freq",
    "train.init_from": "finetune_from_model pretrained_model load_model",
    "optim.lr": "learning_rate learn_rate initial_learning_rate",
    "optim.name": "optimizer",
    "optim.schedule": "scheduler lr_scheduler lr_scheduler_type decay_method",
    "optim.warmup": "warmup_steps warmup_updates n_warmup_steps lr_warmup",
    "optim.clip": "clip_norm max_grad_norm",
    "valid.patience": "early_stopping early_stopping_patience",
    "valid.every": "valid_steps valid_freq eval_steps validate_interval checkpoint_interval",
    "batch.max_tokens": "per_device_train_batch_size mini_batch_words",
    "batch.max_tokens decode.max_tokens": "max_tokens batch_size mini_batch",
    "batch.per_update": "accumulate accum_count update_freq gradient_accumulation_steps",
    "model.preset": "arch",
    "model.d_model": "embedding_dim hidden_size rnn_size",
    "model.d_inner": "ffn_dim transformer_ff",
    "model.n_enc_layer": "layers n_layers n_layer encoder_layers enc_layers",
    "model.n_dec_layer": "decoder_layers dec_layers",
    "model.n_head": "heads n_heads",
    "subwords.vocab_size": "bpe vocab",
    "data.src_lang": "source_lang",
    "data.trg_lang decode.trg_lang": "target_lang",
    "decode.beam": "beam_size num_beams",
    "decode.n_best": "nbest nbest_size",
    "decode.alpha": "lenpen length_penalty_alpha normalize",
    "input-format=wrapped": "unwrap",
}
OTHER_NAMES = {word: tuple(ours.split()) for ours, words in _CALLED.items() for word in words.split()}

_WHOLE_RUN = "leave it out: what is on is on for the whole run; a second run may go on by train.init_from"
_COMPARE = "compare values of --decode.beam and --decode.alpha by --ref"
_BY_FACTOR = "leave it out: data.max_ratio bounds the same ratio by a factor"
_SPLIT = "split what nmt-translate reads; nmt-preprocess has --data.workers"
# Options and flags of earlier versions, without dashes, and what to use instead.
GONE = {
    "engine": "a model that nmt-export wrote is translated with by CTranslate2's own Python: docs/export.md",
    "data.generate": "in a clone of the repository python tools/make_dates.py OUT writes the corpus (name its files in "
    "data.train, data.valid and data.test)",
    **dict.fromkeys(("rank", "ranks", "workers"), _SPLIT),
    "show-scores": "--format tsv and --format jsonl have the score of each translation",
    "with-attention": "--attention FILE.html has the weights of all layers and heads",
    "examples": "put the files side by side: paste -d '\\n' IN OUT REF",
    "rank-timeout": "nmt-preprocess works on one machine, with as many processes as --data.workers says",
    "gold-alignments": "write word alignments with --alignments, and compare them with another tool",
    **dict.fromkeys(("tune-decoding", "tune-beams", "tune-metric", "store"), _COMPARE),
    "tune-alignment": "name the layer and the head: --decode.align_layer and --decode.align_head",
    **dict.fromkeys(("data.max_ratio_spread", "data.train.max_ratio_spread"), _BY_FACTOR),
    "decode.shortlist": "leave it out: every search looks among all subwords",
    "decode.coverage": "leave it out: hypotheses are ranked by score and length penalty alone",
    "regularize.layer_drop": "leave it out: all layers take part in every update",
    **dict.fromkeys(("regularize.layer_drop_from", "regularize.word_dropout_from"), _WHOLE_RUN),
    "decode.diversity": "leave it out, and use decode.samples for translations that differ more",
    "decode.align_when": "leave it out, and name the layer: decode.align_layer",
    "batch.split_rate": "leave it out, and use batch.bpe_dropout",
}
# Values of the options among them that did nothing: with these they are passed over, so that earlier recipes open.
_OTHER_VALUES = {"data.generate": None, "decode.align_when": "written"}
WITHOUT_EFFECT: dict[str, Any] = dict.fromkeys([name for name in GONE if "." in name], 0) | _OTHER_VALUES
# A value that is gone: (option, value), and what stands for it in the recipe of a run, which still translates.
GONE_VALUES = {("optim.name", "schedulefree"): "adamw", ("decode.mbr", "bleu"): "chrf"}


def with_trg(name: str) -> str:
    """A name of an option or flag in which tgt stands for trg, as we write it."""
    return re.sub(r"(?<![A-Za-z])tgt(?![A-Za-z])", "trg", name)


def in_order(complaints: Iterable[Complaint], file: str) -> str:
    """All complaints as the user reads them, those of the command line first, then by line."""
    told = []
    for line, name, text in sorted(complaints, key=lambda one: one[0] or 0):
        where = "command line" if line is None else f"{file}:{line}"
        told.append(": ".join(part for part in (where, name, text) if part))
    return "\n".join(dict.fromkeys(told))


def of_validation(error: ValidationError) -> Iterator[tuple[str, str]]:
    """(dotted name, what is wrong) for each thing that pydantic found; several for contradictions."""
    known = {*(field.name for field in all_fields()), *dict(sections())}
    for found in error.errors(include_url=False):
        loc, kind = found["loc"], found["type"]
        # The option, less what pydantic adds to its name where one takes two kinds of values.
        names = (".".join(map(str, loc[:n])) for n in range(len(loc), -1, -1))
        name = next(name for name in names if without_numbers(name) in known)
        if kind == "value_error" and not name:  # from `find_contradictions`
            for line in str(found["ctx"]["error"]).split("\n"):
                dotted, _, text = line.partition(": ")
                yield dotted, text
        elif kind == "value_error":
            yield name, str(found["ctx"]["error"])
        elif kind == "extra_forbidden":
            name = ".".join(map(str, loc))
            yield name, unknown(name)
        elif kind == "missing":
            yield name, f"missing (expected {_expected(name)})"
        elif isinstance(found["input"], str) and (instead := GONE_VALUES.get((name, found["input"]))):
            yield name, f"{found['input']} is gone; write {instead}"
        else:
            expected, value = _expected(name), found["input"]
            article = "a " if expected.startswith(("whole number", "number")) else ""
            shown = "nothing" if value is None else json.dumps(value, ensure_ascii=False, default=str)
            shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
            yield name, f"expected {article}{expected}, found {shown}{_hint(expected, value)}"


def unknown(name: str) -> str:
    """The complaint about a dotted name that no option has, with those that were probably meant or are known there."""
    plain, place = without_numbers(name), name.rpartition(".")[0]
    if plain in GONE:
        return f"is gone; {GONE[plain]}"
    section = plain.rpartition(".")[0]
    if meant := nearest(plain, [f.name for f in all_fields() if f.inner and f.name.rpartition(".")[0] == section]):
        return f"unknown option (did you mean {place}.{meant[0].rpartition('.')[2]}?)"  # with the number in a list
    known = [*(field.name for field in all_fields() if not field.inner), *filter(None, dict(sections()))]
    if meant := nearest(plain, known):
        return f"unknown option (did you mean {' or '.join(meant)}?)"
    here = [full.rpartition(".")[2] for full in known if full.rpartition(".")[0] == section]
    return f"unknown option (known here: {', '.join(here)})" if here else "unknown option"


def _expected(name: str) -> str:
    """Return the values that an option takes, in words."""
    plain = without_numbers(name)
    if plain in dict(sections()):
        return "a section, a mapping of options" if plain else "a mapping of sections and options"
    return next(field.kind for field in all_fields() if field.name == plain)


def _hint(expected: str, found: Any) -> str:
    """Return a hint for the commonest mistakes."""
    text = str(found).lower()
    if expected.startswith("text like 90s") and (number := re.fullmatch(r"([1-9][0-9]*)( ?min(ute)?s?)?", text)):
        return f" (did you mean {number[1]}m?)"
    if expected.startswith("whole number") and isinstance(found, float) and found.is_integer():
        return f" (write {found:.0f})"
    if expected.startswith("true or false") and text in ("yes", "on", "y", "no", "off", "n"):
        return f" (write {str(text in ('yes', 'on', 'y')).lower()})"
    if expected.startswith("text") and isinstance(found, (int, float)):
        return " (write it in quotes)"
    bare = re.sub("[_,]", "", text)
    return f" (write {bare})" if "number" in expected and isinstance(found, str) and bare.isdigit() else ""


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Return the known dotted names that were probably meant by an unknown one.

    That with the same word elsewhere (there may be several), another toolkit's word, or a near spelling; or none.
    """
    section, word = name.rpartition(".")[0], _last_word(name)
    others = {
        other: full[0]
        for other, names in OTHER_NAMES.items()
        if (full := [n for n in names if n.split("=")[0] in known])
    }
    if not section and word in others:
        return [others[word]]
    if same_word := [full for full in known if _last_word(full) == word]:
        return same_word
    here = {_last_word(full): full for full in known if full.rpartition(".")[0] == section}
    anywhere = {_last_word(full): full for full in known}
    for names, cutoff in ((here, 0.7), (others, 0.8), (anywhere, 0.7)):
        if close := difflib.get_close_matches(word, names, n=1, cutoff=cutoff):
            return [names[close[0]]]
    return difflib.get_close_matches(name, known, n=1, cutoff=0.85)


def _last_word(full: str) -> str:
    """The last part of a name, as flags have it, too."""
    return full.rpartition(".")[2].lower().replace("-", "_")


def without_numbers(name: str) -> str:
    """A dotted name less its numbers in lists: data.train.src for data.train.0.src."""
    return ".".join(part for part in name.split(".") if not part.isdigit())
