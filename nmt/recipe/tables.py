"""The option tables of recipes/README.md and the JSON Schema for editors, made from the models in options.py."""

import json
from collections.abc import Iterator

from nmt.recipe.fields import all_fields, sections
from nmt.recipe.options import Recipe
from nmt.recipe.presets import PRESETS


def option_tables() -> str:
    """Markdown: a table of options per section, then the presets."""
    return "\n".join([*_options(), *_presets()]) + "\n"


def json_schema() -> str:
    """The JSON Schema of a recipe. What it cannot say, contradictions, is refused when the recipe is read."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Recipe.model_json_schema(mode="validation"),
    }
    schema["title"] = "nmt recipe"
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _options() -> Iterator[str]:
    for section, about in sections():
        yield f"## `{section}`" if section else "## The experiment"
        yield ""
        yield about
        yield ""
        yield "| option | type | default | meaning |"
        yield "|---|---|---|---|"
        for field in all_fields():
            if field.section == section and not field.inner:
                yield f"| `{field.name}` | {_cell(field.kind)} | {_cell(field.default)} | {_cell(field.help)} |"
        yield ""


def _presets() -> Iterator[str]:
    names = list(dict.fromkeys(name for sizes in PRESETS.values() for name in sizes))
    yield "## Presets"
    yield ""
    yield "What `model.preset` stands for; an option written beside it wins."
    yield ""
    yield f"| preset | {' | '.join(f'`{name}`' for name in names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for preset, sizes in PRESETS.items():
        yield f"| `{preset}` | {' | '.join(str(sizes.get(name, '')) for name in names)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
