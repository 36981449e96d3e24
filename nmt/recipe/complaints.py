"""Error messages about a recipe, one line each: file and line, dotted name, found, expected, nearest name."""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence

from pydantic import ValidationError

from nmt.recipe.fields import all_fields, option_named, sections

# Short flags, without a section, by command: flag, option, and the placeholder of its value.
SHORT: dict[str, tuple[tuple[str, str, str], ...]] = {
    "nmt-preprocess": (
        ("--vocab-size", "subwords.vocab_size", "N"), ("--updates", "train.updates", "N"),
        ("--epochs", "train.epochs", "N"), ("--time-budget", "train.time_budget", "TIME"),
        ("--out", "data.out", "DIR"), ("--valid-size", "data.valid_size", "N"),
        ("--vocab-from", "subwords.vocab_from", "RUN"),
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
        ("--seed", "decode.seed", "N"), ("--trg-lang", "decode.trg_lang", "LANG"),
    ),
}  # fmt: skip

# Names of our options in other toolkits, and common guesses. Of several options the first that a command has is meant.
_FOREIGN_NAMES = {
    "train.updates": "max_steps max_update max_updates train_steps after after_batches",
    "train.epochs": "epoch n_epoch n_epochs max_epoch max_epochs num_epochs num_train_epochs after_epochs",
    "train.time_budget": "max_time max_seconds",
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
    "batch.max_tokens decode.max_tokens": "batch_size mini_batch",
    "batch.per_update": "accumulate accum_count update_freq gradient_accumulation_steps",
    "model.preset": "arch",
    "model.d_model": "embedding_dim hidden_size rnn_size",
    "model.d_inner": "ffn_dim transformer_ff",
    "model.n_enc_layer": "layers n_layers n_layer encoder_layers enc_layers",
    "model.n_dec_layer": "decoder_layers dec_layers",
    "model.n_head": "heads n_heads",
    "subwords.vocab_size": "bpe vocab",
    "data.trg_lang decode.trg_lang": "target_lang",
    "decode.beam": "beam_size num_beams",
    "decode.n_best": "nbest nbest_size",
    "decode.alpha": "lenpen length_penalty_alpha normalize",
    "input-format=wrapped": "unwrap",
}
OTHER_NAMES = {word: tuple(ours.split()) for ours, words in _FOREIGN_NAMES.items() for word in words.split()}

_WHOLE_RUN = "leave it out: an option applies to the whole run; for a change, start a second run with train.init_from"
_COMPARE = "compare values of --decode.beam and --decode.alpha by --ref"
_BY_FACTOR = "leave it out: data.max_ratio bounds the same ratio by a factor"
_SPLIT = "split the input of nmt-translate yourself; nmt-preprocess has --data.workers"
# Options and flags of earlier versions, without dashes, and what to use instead.
GONE = {
    "engine": "translate with an exported model in CTranslate2's own Python package: docs/export.md",
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
    "decode.shortlist": "leave it out: every search uses the whole vocabulary",
    "decode.coverage": "leave it out: hypotheses are ranked by score and length penalty alone",
    "regularize.layer_drop": "leave it out: all layers take part in every update",
    **dict.fromkeys(("regularize.layer_drop_from", "regularize.word_dropout_from"), _WHOLE_RUN),
    "decode.diversity": "leave it out, and use decode.samples for more diverse translations",
    "decode.align_when": "leave it out, and name the layer: decode.align_layer",
    "batch.split_rate": "leave it out, and use batch.bpe_dropout",
}
# Removed values: (option, value), and the value that replaces it in the recipe of a run, which still translates.
GONE_VALUES = {("optim.name", "schedulefree"): "adamw", ("decode.mbr", "bleu"): "chrf"}


def validation_complaints(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Yield (dotted name, message) for each of pydantic's errors, and for each line of an error of contradictions."""
    known = {*(field.name for field in all_fields()), *dict(sections())}
    for fault in error.errors(include_url=False):
        loc, kind = fault["loc"], fault["type"]
        # The longest prefix that is an option: pydantic appends the branch of a union to the name.
        names = (".".join(map(str, loc[:n])) for n in range(len(loc), -1, -1))
        name = next(name for name in names if without_numbers(name) in known)
        if kind == "value_error" and not name:  # from `find_contradictions`
            for line in str(fault["ctx"]["error"]).split("\n"):
                dotted, _, text = line.partition(": ")
                yield dotted, text
        elif kind == "value_error":
            yield name, str(fault["ctx"]["error"])
        elif kind == "extra_forbidden":
            name = ".".join(map(str, loc))
            yield name, unknown_option(name)
        elif kind == "missing":
            yield name, f"missing (expected {_expected(name)})"
        elif isinstance(fault["input"], str) and (instead := GONE_VALUES.get((name, fault["input"]))):
            yield name, f"{fault['input']} is gone; write {instead}"
        else:
            expected, value, hint = _expected(name), fault["input"], ""
            article = "a " if expected.startswith(("whole number", "number")) else ""
            shown = "nothing" if value is None else json.dumps(value, ensure_ascii=False, default=str)
            shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
            if expected.startswith("text like 90s") and str(value).isdecimal() and int(value):
                hint = f" (did you mean {value}m?)"
            elif expected.startswith("text") and isinstance(value, (int, float)):
                hint = " (write it in quotes)"
            yield name, f"expected {article}{expected}, found {shown}{hint}"


def line_of(name: str, text: str, lines: Mapping[str, int | None]) -> int | None:
    """Return the line of a complaint: that of its option, of another option in the text, of its section, or 1."""
    others = (word.strip("(),;") for word in text.split() if "." in word)
    parents = (name.rsplit(".", n)[0] for n in range(1, name.count(".") + 1))
    candidates = (name, without_numbers(name), *others, *parents)
    return next((lines[candidate] for candidate in candidates if candidate in lines), 1)


def unknown_option(name: str) -> str:
    """Return the message about an unknown dotted name, with the nearest names or else the options of the section."""
    plain, parent = without_numbers(name), name.rpartition(".")[0]
    section = plain.rpartition(".")[0]
    if plain in GONE:
        return f"is gone; {GONE[plain]}"
    names = [field.name for field in all_fields() if not field.inner or field.name.rpartition(".")[0] == section]
    known = [*names, *filter(None, dict(sections()))]
    if meant := [full.replace(f"{section}.", f"{parent}.", 1) for full in nearest(plain, known)]:
        return f"unknown option (did you mean {' or '.join(meant)}?)"  # with the number in a list
    options = [full.rpartition(".")[2] for full in known if full.rpartition(".")[0] == section]
    return f"unknown option (known here: {', '.join(options)})" if options else "unknown option"


def _expected(name: str) -> str:
    """Return a description of the values that an option or a section takes."""
    if option := option_named(without_numbers(name)):
        return option.kind
    return "a section, a mapping of options" if name else "a mapping of sections and options"


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Return the known dotted names that an unknown one probably means; an empty list without any.

    These are the options with the same last word, or else the option with the nearest word, ours or another toolkit's,
    or with the nearest spelling.
    """
    section, word = name.rpartition(".")[0], _last_word(name)
    if same_word := [full for full in known if _last_word(full) == word]:
        return same_word
    option_of = {
        other: options[0]
        for other, names in OTHER_NAMES.items()
        if (options := [option for option in names if option.split("=")[0] in known])
    }
    siblings_last = sorted(known, key=lambda full: full.rpartition(".")[0] == section)
    option_of |= {_last_word(full): full for full in siblings_last}
    close = [option_of[word] for word in difflib.get_close_matches(word, option_of, n=1, cutoff=0.7)]
    return close or difflib.get_close_matches(name, known, n=1, cutoff=0.87)


def _last_word(full: str) -> str:
    """Return the last part of a dotted name in small letters, with _ for the - of flags."""
    return full.rpartition(".")[2].lower().replace("-", "_")


def without_numbers(name: str) -> str:
    """Return a dotted name without list indices: data.train.src for data.train.0.src."""
    return ".".join(part for part in name.split(".") if not part.isdigit())
