"""Recipes in and out: a YAML file and overrides become a `Recipe`, a `Recipe` becomes a YAML file that says it all."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from pydantic import BaseModel, ValidationError

from nmt.errors import RecipeError, shown
from nmt.files import SEEDS, refuse_links_out, shipped, write_durably
from nmt.languages import canonical
from nmt.recipe.complaints import (
    GONE_VALUES,
    WITHOUT_EFFECT,
    Complaint,
    in_order,
    of_validation,
    unknown,
    with_trg,
    without_numbers,
)
from nmt.recipe.fields import option_named, sections
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.options import Recipe
from nmt.recipe.places import NAMES_A_CORPUS, Origin, is_made
from nmt.recipe.yaml_marks import MAX_BYTES, as_yaml, parse

Overrides = Sequence[tuple[str, str]]

_RESOLVED = "# The whole truth of this run: every option, resolved.\n"
_NO_RECIPE = (
    "{} is no recipe (a YAML file). To start from text files: nmt-preprocess --train SRC TRG --valid SRC TRG --langs "
    "SRC TRG --out DIR"
)


def read_recipe(path: Path | str | None, overrides: Overrides = ()) -> Recipe:
    """The recipe in a file, with overrides (dotted name, value as YAML) laid over it before anything is checked.

    path: a recipe, or a run or folder of prepared data that has one; None for a recipe of overrides and defaults alone.
    Raises RecipeError with all complaints at once, in the order of the lines.
    """
    if path is None:
        return _read(b"", "the command line", overrides)
    path = Path(path)
    path = inside if (inside := path / "recipe.yaml").is_file() else path
    if path.parts[:1] == ("recipes",):  # one of those that come with the package
        path = shipped(str(path))
    if is_made(path.parent):
        refuse_links_out(path.parent)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        if (path / SEEDS).is_file():
            raise RecipeError(
                f"{path} has several runs: name one, {path}/seed-N, or the recipe with --seeds."
            ) from None
        raise RecipeError(f"{path}: cannot read the recipe: {error.strerror} (expected a YAML file)") from None
    origin = Origin(path, frozenset(name for name, _ in overrides))
    recipe = _read(content, str(path), overrides, path).coming_from(origin)
    for title, option in (("valid", "comet"), ("decode", "qe")):  # a model here is to be found by the run, too
        section = getattr(recipe, title)
        place = origin.find(f"{title}.{option}", name := getattr(section, option), Path.exists).absolute()
        if name and place.exists():
            recipe = recipe.model_copy(update={title: section.model_copy(update={option: str(place)})})
    return recipe


def changed(recipe: Recipe, overrides: Overrides) -> Recipe:
    """A recipe with overrides laid over it. Raises RecipeError, as `read_recipe` does."""
    return _read(recipe_text(recipe).encode("utf-8"), "the recipe", overrides).coming_from(recipe.origin)


def _read(content: bytes, source: str, overrides: Overrides, path: Path | None = None) -> Recipe:
    """source: what the content is of. path: its file, if it is of one."""
    document = parse(content, with_trg)
    value, complaints = document.value, list[Complaint](document.faults)
    if path is not None and not isinstance(value, dict):
        is_empty = value is None and not complaints
        if is_empty and not overrides:
            raise RecipeError(f"{path}: the recipe is empty (expected name: and data:, docs/data.md)")
        if not is_empty and path.suffix not in (".yaml", ".yml"):
            raise RecipeError(_NO_RECIPE.format(path))
    value = {} if value is None else value
    lines: dict[str, int | None] = dict(document.lines)
    is_stored = content.startswith(_RESOLVED.encode())
    if isinstance(value, dict):
        pass_over_gone(value, is_stored=is_stored)
        value |= {title: {} for title, _ in sections() if title in value and value[title] is None}  # over comments
        data = value.get("data")
        for _, option, last in (name.split(".") for name, _ in overrides if name.count(".") == 2):
            if isinstance(data, dict) and isinstance(data.get(option), list) and last in NAMES_A_CORPUS:
                del data[option]  # a corpus is named anew
        for name, text in overrides:
            try:
                name = _override(value, name, text)
            except RecipeError as error:
                complaints.append((None, name, str(error)))
                continue
            lines = {old: line for old, line in lines.items() if not f"{old}.".startswith(f"{name}.")} | {name: None}
    if value or not complaints:  # what is not YAML at all lacks options, too, which is no news
        try:
            recipe = Recipe.model_validate(value, context=is_stored)
        except ValidationError as error:
            known = {name for _, name, _ in complaints}
            complaints += [(_line(*one, lines), *one) for one in of_validation(error) if one[0] not in known]
    if complaints:
        raise RecipeError(in_order(complaints, source))
    return recipe


def overrides_of(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Options of a Python program as overrides: by dotted name, or in a mapping under the title of their section.

    None says nothing. Raises RecipeError for a value that no option has.
    """
    titles, flat = dict(sections()), dict[str, Any]()
    for name, value in options.items():
        inside = isinstance(value, Mapping) and name in titles
        flat |= {f"{name}.{option}": one for option, one in value.items()} if inside else {name: value}
    found = []
    for name, value in flat.items():
        try:
            if value is not None:  # texts as they are, which is how the options that take any text read them
                is_text = isinstance(value, (str, PurePath))
                found.append((name, str(value) if is_text else json.dumps(value, ensure_ascii=False, default=_plain)))
        except (AttributeError, TypeError, ValueError, RuntimeError):
            what = f"{shown(value)} of type {type(value).__name__}"
            raise RecipeError(f"{name}: {what} is no value of an option.") from None
    return found


def _plain(value: Any) -> Any:
    """A path or a number of numpy as JSON has it."""
    return str(value) if isinstance(value, PurePath) else value.item()


def write_recipe(recipe: Recipe, path: Path | str) -> None:
    """Write a recipe with every option spelled out, whole or not at all. Reading it gives an equal recipe."""
    write_durably(Path(path), recipe_text(recipe).encode("utf-8"))


def recipe_text(recipe: Recipe) -> str:
    """A recipe as YAML, every option spelled out, below the line by which a stored one is known."""
    return _RESOLVED + "\n".join(_lines(recipe)) + "\n"


def pass_over_gone(value: Any, *, is_stored: bool = False) -> None:
    """Remove options of earlier versions from a recipe's raw value, in place, where their value did nothing.

    is_stored: it is that of a run, which opens whatever it said: its data are made, and lines are translated without.
    """
    for name, without_effect in WITHOUT_EFFECT.items():
        title, _, option = name.rpartition(".")
        is_passed_over = is_stored and title.partition(".")[0] in ("data", "decode", "regularize")
        section = value
        for part in title.split("."):
            section = section.get(part) if isinstance(section, dict) else None
        for each in section if isinstance(section, list) else [section]:
            if isinstance(each, dict) and option in each and (is_passed_over or each[option] in (without_effect, None)):
                del each[option]
    for (name, gone), instead in GONE_VALUES.items() if is_stored and isinstance(value, dict) else ():
        title, _, option = name.partition(".")
        if isinstance(value.get(title), dict) and value[title].get(option) == gone:
            value[title][option] = instead


def _override(value: dict[str, Any], name: str, text: str) -> str:
    """Lay one override over the recipe's raw value, in place, and return the name with its number in a list.

    Raises RecipeError for what cannot be laid over.
    """
    if not (option := option_named(name)):
        raise RecipeError("name an option, not a section" if name in dict(sections()) else unknown(name))
    new: Any = text
    if name.endswith(("src_lang", "trg_lang")) and text:
        new = canonical(text)  # in a stored recipe, too, which may have others
    elif not option.is_text:
        document = parse(text)
        if document.faults:
            raise RecipeError(document.faults[0][2])
        new = document.value
    here: Any = value
    place, _, last = name.rpartition(".")
    for part in place.split(".") if place else ():
        if part.isdecimal():
            inside = here if isinstance(here, list) else [here]  # one mapping is as good as a list of it
            if int(part) >= len(inside):
                raise RecipeError(f"there is no such place, the list is of {len(inside)}")
            here = inside[int(part)]
        elif isinstance(here, dict):
            if here.get(part) in (None, []):
                here[part] = {}
            here = here[part]
    if isinstance(here, list):
        if len(here) > 1:
            raise RecipeError(f"{place} is a list of {len(here)}: say which, as {place}.0.{last}")
        here, name = here[0], f"{place}.0.{last}"
    if isinstance(here, dict):  # what stands in the file instead of a mapping is complained about where it stands
        here[last] = new
    return name


def _line(name: str, text: str, lines: Mapping[str, int | None]) -> int | None:
    """Return the line of a complaint: the option's, that of another it names, its section's, or the first."""
    for known in (name, without_numbers(name), *(word.strip("(),;") for word in text.split() if "." in word)):
        if known in lines:
            return lines[known]
    while "." in name:
        name = name.rpartition(".")[0]
        if name in lines:
            return lines[name]
    return 1


def _lines(model: BaseModel, indent: str = "") -> Iterator[str]:
    # What a preset will decide is no truth yet, and written down it would be taken for the user's wish.
    left_out = model.undecided | model.useless if isinstance(model, ModelConfig) else set()
    for name, value in model:
        if name in left_out:
            continue
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            yield f"{indent}{name}:"
            yield from (f"{indent}  - {as_yaml(part)}" for part in value)
        else:
            yield f"{indent}{name}: {as_yaml(value)}"


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Options that two resolved recipes set differently: {dotted name: (old, new)}, in the order of the options."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys((*old, *new)):
        name = f"{prefix}{key}"
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found |= differences(a, b, f"{name}.")
        elif json.dumps(a, sort_keys=True) != json.dumps(b, sort_keys=True):
            found[name] = (a, b)
    return found
