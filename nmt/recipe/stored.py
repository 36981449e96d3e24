"""Options of translation that were chosen on validation data and stored in a run's recipe, and the records beside it.

RUN/decoding.json says what the recipe said before and what the choice rests on. Training that goes on writes the recipe
that it is given; the record lets it keep what was stored, unless that recipe has changed its mind.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmt.errors import RecipeError
from nmt.files import parse_json, write_durably
from nmt.recipe.contradictions import find_contradictions
from nmt.recipe.options import Recipe
from nmt.recipe.reader import load_resolved, write_recipe

RECORD = "decoding.json"
OPTIONS = ("beam", "length_penalty", "alpha")


def store(recipe_file: Path, chosen: Mapping[str, Any], evidence: Mapping[str, Any]) -> None:
    """Write the chosen options into the recipe of a run, the rest as it is, and their record beside it.

    chosen: a value for each of OPTIONS. evidence: what else the record shall say. Raises RecipeError where the recipe
    would contradict itself.
    """
    recipe = load_resolved(recipe_file)
    changed = _with(recipe, chosen)
    if complaints := find_contradictions(changed):
        raise RecipeError(f"{recipe_file}: with what was chosen it would contradict itself: {'; '.join(complaints)}")
    record_file, now = recipe_file.with_name(RECORD), _options(recipe)
    earlier = _read(record_file)
    before = earlier["before"] if earlier and earlier["stored"] == now else now
    record = {"before": before, "stored": {option: chosen[option] for option in OPTIONS}, **evidence}
    # The record first: one that the recipe does not follow is known to be of no force.
    write_durably(record_file, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode("utf-8"))
    write_recipe(changed, recipe_file)


def kept(recipe: Recipe, recipe_file: Path) -> Recipe:
    """The recipe to write for a run that goes on with `recipe`: with the options that were stored, where those are in
    force and the recipe still says what it said before; the recipe itself otherwise, and then the record goes."""
    there = load_resolved(recipe_file) if recipe_file.is_file() else None
    record_file = recipe_file.with_name(RECORD)
    record = _read(record_file)
    if record and there and _options(there) == record["stored"]:
        found = _with(recipe, record["stored"])
        if _options(recipe) == record["before"] and not find_contradictions(found):
            return found
    record_file.unlink(missing_ok=True)
    return recipe


def _with(recipe: Recipe, options: Mapping[str, Any]) -> Recipe:
    decode = recipe.decode.model_copy(update=dict(options))
    return recipe.model_copy(update={"decode": decode})


def _options(recipe: Recipe) -> dict[str, Any]:
    return {name: getattr(recipe.decode, name) for name in OPTIONS}


def _read(record_file: Path) -> dict[str, Any] | None:
    """The record; None where there is none, or none that can be read: no run depends on it."""
    try:
        found = parse_json(record_file.read_bytes())
    except (OSError, ValueError):
        return None
    sound = isinstance(found, dict) and all(
        isinstance(found.get(key), dict) and set(found[key]) == set(OPTIONS) for key in ("before", "stored")
    )
    return found if sound else None
