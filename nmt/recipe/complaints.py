"""Error messages about a recipe, one line each: place, dotted name, found, expected, nearest name."""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from nmt.recipe.fields import all_fields, sections
from nmt.recipe.yaml_marks import Mark

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
_EPOCHS = "epoch epochs n_epoch n_epochs max_epoch max_epochs num_epochs num_train_epochs after_epochs"
EPOCHS = set(_EPOCHS.split())
# What other toolkits, and people, call our options. Of several options the first that a command knows is meant.
_CALLED = {
    "train.updates": f"{_EPOCHS} max_steps max_update max_updates train_steps after after_batches",
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
    **dict.fromkeys(
        ("rank", "ranks", "workers"), ((), "split what nmt-translate reads; nmt-preprocess has --data.workers")
    ),
    "with-attention": ((), "--attention FILE.html has the weights of all layers and heads"),
    "examples": ((), "put the files side by side: paste -d '\\n' IN OUT REF"),
    "rank-timeout": ((), _ONE_MACHINE),
    "gold-alignments": ((), "write word alignments with --alignments, and compare them with another tool"),
    **dict.fromkeys(
        ("tune-decoding", "tune-beams", "tune-metric", "store"),
        ((), "compare values of --decode.beam and --decode.alpha by --ref"),
    ),
    "tune-alignment": ((), "name the layer and the head: --decode.align_layer and --decode.align_head"),
    "decode.shortlist": ((0,), "set it to 0: every search looks among all subwords"),
    "decode.coverage": ((0, 0.0), "set it to 0: hypotheses are ranked by score and length penalty alone"),
    "batch.split_rate": ((0,), "set it to 0, and use batch.bpe_dropout"),
}
# A value that is gone: (option, value), and what the recipe of a run is read with, which translates as it did.
GONE_VALUES = {("optim.name", "schedulefree"): "adamw"}


def with_trg(name: str) -> str:
    """A name of an option or flag in which tgt stands for trg, as we write it."""
    return re.sub(r"(?<![A-Za-z])tgt(?![A-Za-z])", "trg", name)


class Complaint(NamedTuple):
    """One thing that is wrong. place: a Mark in the file, or None for the command line."""

    place: Mark | None
    name: str
    text: str


def in_order(complaints: Iterable[Complaint], file: str) -> str:
    """All complaints as the user reads them, those of the command line first, then by line."""
    lines = []
    for place, name, text in sorted(complaints, key=lambda one: one.place or Mark(0, 0)):
        where = "command line" if place is None else f"{file}:{place.line}"
        lines.append(": ".join(part for part in (where, name, text) if part))
    return "\n".join(dict.fromkeys(lines))


def of_validation(error: ValidationError) -> Iterator[tuple[str, str]]:
    """(dotted name, what is wrong) for each thing that pydantic found; several for contradictions."""
    for found in error.errors(include_url=False):
        name = ".".join(map(str, option_at(found["loc"], found["type"])))
        if found["type"] == "value_error" and not name:
            for line in str(found["ctx"]["error"]).split("\n"):
                dotted, _, text = line.partition(": ")
                yield dotted, text
        elif found["type"] == "language":
            yield name, found["msg"]
        elif found["type"] == "extra_forbidden":
            yield name, unknown(name)
        elif found["type"] == "missing":
            yield name, f"missing (expected {_expected(name)})"
        else:
            expected = _expected(name)
            article = "a " if expected.startswith(("whole number", "number")) else ""
            yield (
                name,
                f"expected {article}{expected}, found {describe(found['input'])}{_hint(expected, found['input'])}",
            )


def option_at(loc: tuple[int | str, ...], kind: str) -> tuple[int | str, ...]:
    """The place of an option, less what pydantic adds to it where an option takes two kinds of values."""
    known = {field.name for field in all_fields()}
    inside = next((n for n, part in enumerate(loc) if str(part).startswith("list[")), None)
    if inside is not None:  # of an option that takes one or a list
        return loc[:inside]
    if kind != "extra_forbidden" and _without_numbers(".".join(map(str, loc[:-1]))) in known:
        inner = _without_numbers(".".join(map(str, loc))) in known
        return loc if inner or isinstance(loc[-1], int) else loc[:-1]
    return loc


def unknown(name: str) -> str:
    """The complaint about a dotted name that no option has."""
    return f"is gone; {GONE[name][1]}" if name in GONE else f"unknown option{_nearest(name)}"


def describe(value: Any) -> str:
    """A value that was found, in a few words."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {_short(value)!r}"
    return (
        f"a mapping {{{_short(', '.join(map(str, value)))}}}" if isinstance(value, dict) else f"a list of {len(value)}"
    )


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _expected(name: str) -> str:
    """Return the values that an option takes, in words."""
    plain = _without_numbers(name)
    if not plain:
        return "a mapping of sections and options"
    for field in all_fields():
        if field.name == plain:
            return field.kind
    if plain in dict(sections()):
        return "a section, a mapping of options"
    return _expected(plain.rpartition(".")[0]) if "." in plain else "another value"  # a part of an option's value


def _hint(expected: str, found: Any) -> str:
    """Return a hint for the commonest mistakes."""
    if expected.startswith("text like 90s") and (number := re.fullmatch(r"([1-9][0-9]*)( ?min(ute)?s?)?", str(found))):
        return f" (did you mean {number[1]}m?)"
    if expected.startswith("whole number") and isinstance(found, float) and found.is_integer():
        return f" (write {found:.0f})"
    if expected.startswith("true or false") and isinstance(found, str):
        truth = dict.fromkeys(("yes", "on", "y", "true"), "true") | dict.fromkeys(("no", "off", "n", "false"), "false")
        return f" (write {truth[found.lower()]})" if found.lower() in truth else ""
    if expected.startswith("text") and isinstance(found, (int, float)):
        return " (write it in quotes)"
    bare = found.replace("_", "").replace(",", "").strip() if isinstance(found, str) else ""
    return f" (write {bare})" if "number" in expected and bare.isdigit() else ""


def _nearest(name: str) -> str:
    """The known name that was probably meant, or the names that are known there, in brackets."""
    plain = _without_numbers(name)
    place, section = name.rpartition(".")[0], plain.rpartition(".")[0]
    inner = {f.name.rpartition(".")[2] for f in all_fields() if f.inner and f.name.rpartition(".")[0] == section}
    if close := difflib.get_close_matches(name.rpartition(".")[2].lower(), sorted(inner), n=1, cutoff=0.7):
        return f" (did you mean {place}.{close[0]}?)"  # a part of an option's value, like the others beside it
    known = [field.name for field in all_fields() if not field.inner]
    known += [title for title, _ in sections() if title]
    if found := nearest(plain, known):
        return f" (did you mean {' or '.join(found)}?)"
    here = [full.rpartition(".")[2] for full in known if full.rpartition(".")[0] == section]
    return f" (known here: {', '.join(here)})" if here else ""


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Return the known dotted names that were probably meant by an unknown one.

    That with the same word elsewhere (there may be several), another toolkit's word, or a near spelling; or none.
    """
    section, _, word = name.rpartition(".")
    word = _plain_word(word)
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
    return difflib.get_close_matches(name, known, n=1, cutoff=0.8)


def _last_word(full: str) -> str:
    return _plain_word(full.rpartition(".")[2])


def _plain_word(word: str) -> str:
    return word.lower().replace("-", "_")  # as flags have it


def _without_numbers(name: str) -> str:
    """data.train.0.src -> data.train.src"""
    return ".".join(part for part in name.split(".") if not part.isdigit())
