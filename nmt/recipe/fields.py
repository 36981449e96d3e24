"""List of the options: name, kind, default and help of each as text, from the models in options.py.

`--help-all`, tools/option_tables.py and the "expected …" of error messages are generated from this list.
"""

import functools
import itertools
import json
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nmt.recipe.options import Recipe
from nmt.recipe.yaml_marks import as_yaml

_PLAIN_KINDS = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "null"}
# Descriptions of bounds by their names in pydantic.
_BOUNDS = {"ge": ">= {:,}", "gt": "> {:,}", "le": "<= {:,}", "lt": "< {:,}"}
_BOUNDS |= {"max_length": "of at most {} characters", "pattern": "matching {}"}


@dataclass(frozen=True)
class Field:
    """One option. inner: part of another option's value, like `data.valid.src`."""

    name: str
    section: str
    kind: str
    default: str
    help: str
    is_text: bool
    inner: bool


@functools.cache
def all_fields() -> tuple[Field, ...]:
    """Return all options of a recipe: those outside sections first, then in the order of their declaration."""
    return tuple(sorted(_walk(Recipe), key=lambda field: field.section != ""))  # a stable sort


def option_named(name: str) -> Field | None:
    """Return the option with a dotted name, or None. The name may have a list index, as `data.train.0.src` does."""
    plain = re.sub(r"^(\w+\.\w+)\.[0-9]+\.", r"\1.", name)
    return next((field for field in all_fields() if field.name == plain), None)


def sections() -> list[tuple[str, str]]:
    """Return (name, one-line description) of each section. The name "" stands for the options outside any section."""
    named = [(name, info.description or "") for name, info in Recipe.model_fields.items() if _model_in(info.annotation)]
    return [("", "The experiment itself."), *named]


def _walk(model: type[BaseModel], prefix: str = "") -> Iterator[Field]:
    for name, info in model.model_fields.items():
        inner = _model_in(info.annotation)
        if model is Recipe and inner:
            yield from _walk(inner, f"{name}.")
            continue
        kind = _kind(info.annotation, info.metadata)
        if info.examples:  # clearer than a pattern
            kind = f"text like {', '.join(info.examples[:-1])} or {info.examples[-1]}"
        default = None if info.is_required() else info.get_default(call_default_factory=True, validated_data={})
        yield Field(
            name=prefix + name,
            section=prefix.partition(".")[0],
            kind=kind,
            default="required" if info.is_required() else "empty" if default in (None, "") else as_yaml(default),
            help=" ".join((info.description or "").split()),
            is_text=kind.startswith("text") and get_origin(info.annotation) is not list,
            inner=prefix.count(".") > 1,
        )
        if inner:
            yield from _walk(inner, f"{prefix}{name}.")


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model in the type of a field: the type itself, or a part of its list or union. None without one."""
    parts = get_args(annotation)
    if isinstance(annotation, type) and not parts and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in parts if (model := _model_in(part))), None)


def _kind(annotation: Any, metadata: list[Any]) -> str:
    """Describe a type and its bounds: "whole number >= 1", "adam | adamw | muon", "two numbers"."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(parts[0], [*parts[1:], *metadata])
    if origin in (Union, types.UnionType):
        return " | ".join(_kind(part, metadata) for part in parts if types.GenericAlias(list, part) not in parts)
    if origin is Literal:
        return " | ".join(str(part) for part in parts)
    if origin is tuple:
        return f"list{'' if parts[-1] is Ellipsis else f' of {len(parts)}'}: {_kind(parts[0], [])}"
    if origin is list:
        return f"{_kind(parts[0], [])}, or a list of them"
    if origin is dict:
        return f"mapping of names to {_kind(parts[1], [])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"mapping {{{', '.join(annotation.model_fields)}}}"
    return " ".join([_PLAIN_KINDS[annotation], ", ".join(_bounds(metadata))]).rstrip()


def _bounds(metadata: list[Any]) -> Iterator[str]:
    groups = (item.metadata if isinstance(item, FieldInfo) else [item] for item in metadata)
    for constraint in itertools.chain.from_iterable(groups):
        for name, words in _BOUNDS.items():
            if (bound := getattr(constraint, name, None)) is not None:
                yield words.format(bound)


def json_schema() -> str:
    """Return the JSON Schema of a recipe. It cannot express contradictions: the reader refuses those."""
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    schema = draft | Recipe.model_json_schema(mode="validation") | {"title": "nmt recipe"}
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
