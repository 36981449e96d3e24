"""The recipe that nmt-preprocess writes beside the data: short, with comments, to be edited.

It says what differs from the defaults and what is most often changed. The run folder has every option, resolved.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from nmt.errors import RunError
from nmt.files import write_durably
from nmt.recipe.fields import json_schema
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.options import Recipe
from nmt.recipe.reader import as_yaml

SCHEMA = "schema.json"
_HEAD = f"""\
# yaml-language-server: $schema={SCHEMA}
# To be edited. What is not here has its default: nmt-train --help-all lists all options.
"""
_COLUMN = 32  # where comments begin, unless the value is longer
_COMMENTS = {
    "data": "another value here or in subwords: nmt-preprocess THIS FILE --overwrite",
    "data.out": "not looked at while this file lies beside the data",
    "subwords.vocab_size": "4000 for 20,000 pairs, 8000 for 100,000, 32000 for millions",
    "subwords.vocab_from": "the subwords are those of this run, data or file",
    "model.preset": "tiny, small, base or big; auto: by the size of the corpus",
    "model.dropout": "0.1 for a large corpus, 0.3 for a small one",
    "batch.max_tokens": "smaller if memory is short; auto: what fits a GPU",
    "optim.lr": "peak learning rate; lower it if the loss jumps",
    "optim.muon_lr": "the same for the matrices, most of the weights",
    "optim.warmup": "updates until the rate is at its peak; auto: 10 to 200",
    "optim.schedule": "auto: linear with a time budget, else inverse_sqrt",
    "train.updates": "the latest end",
    "train.time_budget": "the end by the clock: 20m, 2h, 1d",
    "train.init_from": "the first weights are those of this run",
    "train.save_every": "updates between two checkpoints",
    "train.precision": "fp32, bf16 or fp16; auto: by the device",
    "valid.every": "updates between two validations; auto: about ten",
    "valid.metric": "it decides which model is best",
    "valid.patience": "validations without a new best until training stops; 0: any number",
    "decode.beam": "hypotheses a sentence in nmt-translate; 1 is greedy",
}
# Written though they have their defaults.
_SHOWN = ("subwords.vocab_size", "model.preset", "model.dropout", "batch.max_tokens", "train.updates", "valid.every")


def write_draft(recipe: Recipe, path: Path) -> None:
    """Write the recipe, and beside it the schema for editors. Reading it gives an equal recipe."""
    write_durably(path, draft_text(recipe).encode("utf-8"))
    write_durably(path.with_name(SCHEMA), json_schema().encode("utf-8"))


def draft_text(recipe: Recipe) -> str:
    """The recipe as YAML, less what has its default."""
    lines = [f"{line:{_COLUMN}}  # {_COMMENTS[name]}" if name in _COMMENTS else line for line, name in _lines(recipe)]
    return _HEAD + "\n".join(lines) + "\n"


def _lines(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The lines and the option or section that each is of."""
    for section in type(recipe).model_fields:
        options = getattr(recipe, section)
        if not isinstance(options, BaseModel):
            if options != type(recipe).model_fields[section].default:
                yield f"{section}: {as_yaml(options)}", section
            continue
        inside = list(_of_section(section, options))
        if inside:
            yield f"{section}:", section
            yield from inside


def _of_section(section: str, options: BaseModel) -> Iterator[tuple[str, str]]:
    usual: BaseModel = type(options)()
    left_out = set[str]()
    if isinstance(options, ModelConfig):  # whose defaults depend on a few options, which are then always written
        leading = ("architecture", "trg_emb_prj_weight_sharing")
        of_these = ModelConfig.model_validate({name: getattr(options, name) for name in (*leading, "preset")})
        usual = of_these.model_copy(update={name: getattr(usual, name) for name in leading})
        left_out = options.undecided | options.useless
    for name in sorted(type(options).model_fields, key=lambda name: name != "preset"):  # the rest as declared
        full, value = f"{section}.{name}", getattr(options, name)
        if name in left_out or (value == getattr(usual, name) and full not in _SHOWN):
            continue
        if isinstance(value, list) and value and isinstance(value[0], BaseModel):
            yield f"  {name}:", ""
            yield from ((f"    - {_short(part)}", "") for part in value)
        else:
            yield f"  {name}: {_short(value)}", full
    if section == "train" and not getattr(options, "time_budget", ""):
        yield "  # time_budget: 20m", "train.time_budget"


def _short(value: Any) -> str:
    """A value on one line; a corpus less what has its default."""
    if not isinstance(value, BaseModel):
        return as_yaml(value)
    fields = type(value).model_fields.items()
    usual = {name: field.get_default(call_default_factory=True, validated_data={}) for name, field in fields}
    told = (f"{name}: {as_yaml(getattr(value, name))}" for name in usual if getattr(value, name) != usual[name])
    return f"{{{', '.join(told)}}}"


# Engines that a model can be exported to, and the options of a recipe that they have no place for.


_OF_HUGGINGFACE = ("relu", "gelu", "relu2")
_OF_CTRANSLATE2 = ("relu", "gelu", "swiglu")
# Values with which either engine takes a model, by the option that it would refuse.
_PORTABLE = {
    "model.architecture": "transformer",
    **dict.fromkeys(("model.lexical_attn", "model.prj_transform", "model.rotary_enc_attn", "model.qk_norm"), "false"),
    **dict.fromkeys(("model.n_kv_head", "model.enc_n_kv_head", "model.d_k", "model.d_v"), "null"),
    "model.enc_conv": "0",
    "model.ffn": "relu",
    "model.position": "sinusoid",
    "model.norm_kind": "layer",
    "subwords.joint": "true",
    "subwords.kind": "bpe",
    "subwords.symbols": "[]",
    "data.protect": "[]",
}


def unsupported(recipe: Recipe) -> dict[str, list[str]]:
    """Options that each engine cannot hold, with their values, by engine; an empty list where it takes the model."""
    if recipe.model.architecture != "transformer":
        odd = [f"model.architecture: {recipe.model.architecture}"]
        return {"ctranslate2": odd, "huggingface": odd}
    return {"ctranslate2": list(of_ctranslate2(recipe.model)), "huggingface": list(of_huggingface(recipe))}


def refuse_unsupported(engine: str, found: Iterable[str]) -> None:
    """Raise RunError, with what to train with instead, if anything is unsupported."""
    if told := list(found):
        raise RunError(
            f"{engine} has no place for {', '.join(told)}, so this model cannot be exported to it. Train with "
            f"{portable_flags(told)} for that. --to safetensors takes any model."
        )


def portable_options(found: list[str]) -> list[tuple[str, str]]:
    """The options to train with instead of some that `unsupported` found."""
    names = dict.fromkeys(one.split()[0].rstrip(":") for one in found)
    return [(name, _PORTABLE[name]) for name in names if name in _PORTABLE]


def portable_flags(found: list[str]) -> str:
    """The same as flags of a command."""
    return " ".join(f"--{name} {value}" for name, value in portable_options(found))


def exports_note(recipe: Recipe) -> str:
    """Engines that take the model of a recipe, and the flags that make it one for the others."""
    found = unsupported(recipe)
    taken = ", ".join(["nmt", *(engine for engine, its in found.items() if not its)])
    missing = [one for its in found.values() for one in its]
    more = f"; for {' and '.join(e for e, its in found.items() if its)}: {portable_flags(missing)}" if missing else ""
    return f"{taken}{more}"


def of_ctranslate2(config: ModelConfig) -> Iterator[str]:
    """Options whose models CTranslate2 has no boxes for, each with its value."""
    for name in ("lexical_attn", "prj_transform", "rotary_enc_attn", "qk_norm", "enc_conv"):
        if getattr(config, name):
            yield f"model.{name}"
    if config.ffn not in _OF_CTRANSLATE2:
        yield f"model.ffn: {config.ffn}"
    if config.d_k != config.d_v:
        yield "model.d_k other than model.d_v"


def of_huggingface(recipe: Recipe) -> Iterator[str]:
    """Options whose models no architecture there holds exactly, each with its value."""
    config, subwords = recipe.model, recipe.subwords
    width = config.d_model // config.n_head
    yield from (f"model.{name}" for name in ("rotary_enc_attn", "lexical_attn", "qk_norm") if getattr(config, name))
    for is_odd, told in (
        (config.enc_conv, "model.enc_conv"),
        (config.position == "rotary", "model.position: rotary"),
        (config.norm_kind != "layer", f"model.norm_kind: {config.norm_kind}"),
        (config.ffn not in _OF_HUGGINGFACE, f"model.ffn: {config.ffn}"),
        (config.n_kv_head not in (None, config.n_head), "model.n_kv_head other than model.n_head"),
        (config.enc_n_kv_head not in (None, config.n_head), "model.enc_n_kv_head other than model.n_head"),
        (config.d_k not in (None, width), "model.d_k other than model.d_model / model.n_head"),
        (config.d_v not in (None, width), "model.d_v other than model.d_model / model.n_head"),
        (not subwords.joint, "subwords.joint: false (a tokenizer there has one vocabulary)"),
        (subwords.kind == "unigram", "subwords.kind: unigram (control symbols would be found in text there)"),
        (subwords.kind == "sentencepiece", "subwords.kind: sentencepiece (it says itself how text is cut)"),
        (subwords.symbols, "subwords.symbols (a tokenizer there has other words for what touches them)"),
        (recipe.data.protect, "data.protect (nothing there puts items back)"),
    ):
        if is_odd:
            yield told


PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}  # our names, and torch's
