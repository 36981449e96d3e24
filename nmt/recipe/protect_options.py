"""The option of the items that a translation keeps as they are: which kinds a model is trained to keep."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from nmt.recipe.section import Section

Kind = Literal["tag", "url", "email", "number", "host", "mention", "path", "emoji"]
KINDS: tuple[Kind, ...] = get_args(Kind)  # looked for in this order; new ones come last, as placeholders are numbered
PER_KIND = 10  # this many items of a kind in a line have placeholders; further ones stay text


def _in_order(value: Any) -> Any:
    """A list of kinds as a tuple in the order of KINDS, so that two recipes that mean the same say the same."""
    if isinstance(value, list | tuple) and set(value) <= set(KINDS) and len(set(value)) == len(value):
        return tuple(kind for kind in KINDS if kind in value)
    return tuple(value) if isinstance(value, list) else value


class ProtectConfig(Section):
    """What stands before the model as a placeholder, and is put back after it."""

    protect: Annotated[tuple[Kind, ...], BeforeValidator(_in_order, json_schema_input_type=list[Kind])] = Field(
        (),
        description="Items that translations keep as they are: url, email, number (digits, with a unit), tag (XML, "
        "HTML), host (www.example.com), mention (@name, #name), path (/usr/bin), emoji. Placeholders stand for them, "
        "in training where both sides have the same ones; see docs/subwords.md.",
    )
