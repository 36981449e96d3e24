"""The recipe that nmt-preprocess writes beside the data, and the engines that nmt-export can write its model for.

The recipe is short, has comments, and is meant to be edited. It holds the options that differ from their defaults and
those that are changed most often. The run folder has every option, resolved.
"""

from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from nmt.errors import RunError
from nmt.files import write_durably
from nmt.recipe.fields import json_schema, option_named
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.options import Recipe
from nmt.recipe.yaml_marks import as_yaml

SCHEMA = "schema.json"
_HEAD = f"""\
# yaml-language-server: $schema={SCHEMA}
# To be edited. What is not here has its default: nmt-train --help-all lists all options.
"""
_COLUMN = 32  # where comments begin, unless the value is longer
_WIDTH = 110  # of lines with a comment
# Advice in place of the help on an option.
_COMMENTS = {
    "data": "another value here or in subwords: nmt-preprocess THIS FILE --overwrite",
    "data.out": "ignored while this file is in the data folder",
    "subwords.vocab_size": "4000 for 20,000 pairs, 8000 for 100,000, 32000 for millions",
    "model.preset": "tiny, small, base or big; auto: by corpus and time budget",
    "model.dropout": "0.1 for a large corpus, 0.3 for a small one",
    "batch.max_tokens": "smaller if memory is short; auto: what fits a GPU",
    "optim.lr": "peak learning rate; lower it if the loss jumps",
    "train.updates": "end after this many updates, at the latest",
}
# Options that are written even with their default values.
_ALWAYS = ("subwords.vocab_size", "model.preset", "model.dropout", "batch.max_tokens", "train.updates", "valid.every")


def write_draft(recipe: Recipe, path: Path) -> None:
    """Write the recipe, and the JSON Schema for editors beside it. Reading the file gives an equal recipe."""
    write_durably(path, draft_text(recipe).encode("utf-8"))
    write_durably(path.with_name(SCHEMA), json_schema().encode("utf-8"))


def draft_text(recipe: Recipe) -> str:
    """Return the recipe as YAML, mostly without options that have their defaults, with a comment on each option."""
    lines = list[str]()

    def add(line: str, name: str) -> None:
        option = option_named(name)
        comment = _COMMENTS.get(name) or (option.help.split(". ")[0].removesuffix(".") if option else "")
        commented = f"{line:{_COLUMN}}  # {comment}"
        lines.append(commented if comment and len(commented) <= _WIDTH else line)

    for section, options in recipe:
        if not isinstance(options, BaseModel):
            if options != type(recipe).model_fields[section].default:
                add(f"{section}: {as_yaml(options)}", section)
            continue
        defaults: BaseModel = type(options)()
        left_out = set[str]()
        if isinstance(options, ModelConfig):  # the defaults of the model depend on a few of its options
            leading = ("architecture", "trg_emb_prj_weight_sharing")
            dependent = ModelConfig.model_validate({name: getattr(options, name) for name in (*leading, "preset")})
            defaults = dependent.model_copy(update={name: getattr(defaults, name) for name in leading})
            left_out = options.undecided | options.useless
        names = [
            name
            for name, value in options
            if name not in left_out and (value != getattr(defaults, name) or f"{section}.{name}" in _ALWAYS)
        ]
        if names:
            add(f"{section}:", section)
        for name in sorted(names, key=lambda name: name != "preset"):
            value = getattr(options, name)
            if isinstance(value, list) and value and isinstance(value[0], BaseModel):
                lines += [f"  {name}:", *(f"    - {_short(part)}" for part in value)]
            else:
                add(f"  {name}: {_short(value)}", f"{section}.{name}")
        if section == "train" and not recipe.train.time_budget:
            add("  # time_budget: 20m", "train.time_budget")
    return _HEAD + "\n".join(lines) + "\n"


def _short(value: Any) -> str:
    """Return a value as YAML on one line; a corpus without options that have their defaults."""
    return as_yaml(value.model_dump(exclude_defaults=True) if isinstance(value, BaseModel) else value)


def unsupported(recipe: Recipe) -> dict[str, list[str]]:
    """Return, by engine of nmt-export, the options that it does not support; an empty list if it takes the model."""
    model, subwords = recipe.model, recipe.subwords
    ct2, hf, both = ("ctranslate2",), ("huggingface",), ("ctranslate2", "huggingface")
    if model.architecture != "transformer":
        return {engine: [f"model.architecture: {model.architecture}"] for engine in both}
    width = model.d_model // model.n_head
    rows: tuple[tuple[tuple[str, ...], object, str], ...] = (
        (both, model.lexical_attn, "model.lexical_attn"),
        (ct2, model.prj_transform, "model.prj_transform"),
        (both, model.rotary_enc_attn, "model.rotary_enc_attn"),
        (both, model.qk_norm, "model.qk_norm"),
        (both, model.enc_conv, "model.enc_conv"),
        (hf, model.position == "rotary", "model.position: rotary"),
        (hf, model.norm_kind != "layer", f"model.norm_kind: {model.norm_kind}"),
        (ct2, model.ffn == "relu2", "model.ffn: relu2"),
        (hf, model.ffn == "swiglu", "model.ffn: swiglu"),
        (hf, model.n_kv_head not in (None, model.n_head), "model.n_kv_head other than model.n_head"),
        (hf, model.enc_n_kv_head not in (None, model.n_head), "model.enc_n_kv_head other than model.n_head"),
        (ct2, model.d_k and model.d_k != (model.d_v or width), "model.d_k other than model.d_v"),
        (ct2, model.d_v and model.d_v != (model.d_k or width), "model.d_v other than model.d_k"),
        (hf, model.d_k not in (None, width), "model.d_k other than model.d_model / model.n_head"),
        (hf, model.d_v not in (None, width), "model.d_v other than model.d_model / model.n_head"),
        (hf, not subwords.joint, "subwords.joint: false (a tokenizer there has one vocabulary)"),
        (hf, subwords.kind == "unigram", "subwords.kind: unigram (control symbols would be found in text there)"),
        (hf, subwords.kind == "sentencepiece", "subwords.kind: sentencepiece (its model decides the segmentation)"),
        (hf, subwords.symbols, "subwords.symbols (a tokenizer there matches them by other rules)"),
        (hf, recipe.data.protect, "data.protect (placeholders are not replaced there)"),
    )
    return {engine: [option for engines, is_used, option in rows if is_used and engine in engines] for engine in both}


def refuse_unsupported(engine: str, recipe: Recipe) -> None:
    """Raise RunError, with the flags to train with instead, if an engine does not support the model of a recipe."""
    if options := unsupported(recipe).get(engine):
        raise RunError(
            f"{engine} has no place for {', '.join(options)}, so this model cannot be exported to it. Train with "
            f"{_portable_flags(options)} for that. --to safetensors takes any model."
        )


def portable_options(options: list[str]) -> list[tuple[str, str]]:
    """Return replacements of options that `unsupported` lists: their defaults, which both engines support."""
    names, defaults = dict.fromkeys(option.split()[0].rstrip(":") for option in options), Recipe(name="defaults")
    return [(name, as_yaml(attrgetter(name)(defaults))) for name in names]


def _portable_flags(options: list[str]) -> str:
    return " ".join(f"--{name} {value}" for name, value in portable_options(options))


def exports_note(recipe: Recipe) -> str:
    """Return the engines that support the model of a recipe, and the flags that make it fit the others."""
    by_engine = unsupported(recipe)
    supporting = ", ".join(["nmt", *(engine for engine, options in by_engine.items() if not options)])
    rejected = [option for options in by_engine.values() for option in options]
    refusing = " and ".join(engine for engine, options in by_engine.items() if options)
    return f"{supporting}; for {refusing}: {_portable_flags(rejected)}" if refusing else supporting


PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}  # our names, and torch's
