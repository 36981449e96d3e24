"""The recipe that nmt-preprocess writes beside the data: short, with comments, to be edited.

It says what differs from the defaults and what is most often changed. The run folder has every option, resolved.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

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
    "batch.max_tokens": "smaller if memory is short; auto: measured on this machine",
    "optim.lr": "peak learning rate; lower it if the loss jumps",
    "optim.muon_lr": "the same for the matrices, most of the weights",
    "optim.warmup": "updates until the rate is at its peak; auto: 10 to 200",
    "optim.schedule": "auto: linear with a time budget, else inverse_sqrt",
    "train.updates": "the latest end",
    "train.time_budget": "the end by the clock: 20m, 2h, 1d",
    "train.init_from": "the first weights are those of this run",
    "train.save_every": "updates between two checkpoints",
    "train.precision": "fp32, bf16 or fp16; auto: measured",
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
