"""Reading and writing of recipes: YAML and overrides to a `Recipe`, and a `Recipe` to YAML with every option."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from pydantic import BaseModel, ValidationError

from nmt.errors import RecipeError, described
from nmt.files import RECIPE, SEEDS, check_is_run, refuse_links_out, shipped, write_durably
from nmt.recipe.complaints import GONE, GONE_VALUES, line_of, unknown_option, validation_complaints
from nmt.recipe.fields import option_named, sections
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.options import Recipe
from nmt.recipe.places import NAMES_A_CORPUS, SUBWORDS, Origin, is_of_run, is_prepared
from nmt.recipe.yaml_marks import MAX_BYTES, as_yaml, parse, with_trg

Overrides = Sequence[tuple[str, str]]

_RESOLVED = "# The whole truth of this run: every option, resolved.\n"  # identifies stored recipes: never change it


def read_recipe(path: Path | str | None, overrides: Overrides = (), given_by: str = "command line") -> Recipe:
    """Read a recipe from a file, and apply overrides (dotted name, value as YAML) before validation.

    path: a recipe, or a run or folder of prepared data with one; None for a recipe of overrides and defaults alone.
    given_by: name of the origin of the overrides in messages; "" for options of a Python program, which have none.
    Raises RecipeError with all complaints at once, in the order of the lines.
    """
    if path is None:
        return _read(b"{}", "", overrides, given_by)
    path = Path(path)
    path = inside if (inside := path / RECIPE).is_file() else path
    if path.parts[:1] == ("recipes",):  # a recipe of the package
        path = shipped(str(path))
    folder = path.parent
    if is_prepared(folder) or is_of_run(folder) or (folder / SUBWORDS).is_file():  # nmt made it
        refuse_links_out(folder)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        if (path / SEEDS).is_file():
            check_is_run(path)  # raises the error of several runs
        raise RecipeError(f"{path}: cannot read the recipe: {error.strerror} (expected a YAML file)") from None
    origin = Origin(path, frozenset(name for name, _ in overrides))
    recipe = _read(content, str(path), overrides, given_by).with_origin(origin)
    # The path of a local COMET model becomes absolute, since the run folder is elsewhere.
    for title, option in (("valid", "comet"), ("decode", "qe")):
        name = getattr(getattr(recipe, title), option)
        model = origin.find(f"{title}.{option}", name, Path.exists).absolute()
        if name and model.exists():
            recipe = recipe.with_options(**{title: {option: str(model)}})
    return recipe


def changed(recipe: Recipe, overrides: Overrides) -> Recipe:
    """Return a recipe with overrides of a Python program applied. Raises RecipeError, as `read_recipe` does."""
    return _read(recipe_text(recipe).encode("utf-8"), "the recipe", overrides, given_by="").with_origin(recipe.origin)


def _read(content: bytes, source: str, overrides: Overrides, given_by: str) -> Recipe:
    """Validate YAML with overrides applied. source: the file of the content, or its name in messages; "": none."""
    document = parse(content)
    value, lines, complaints = document.value, document.lines, document.faults
    if not isinstance(value, dict) and not source.endswith((".yaml", ".yml")):
        raise RecipeError(
            f"{source} is not a recipe (a YAML file). To start from text files: nmt-preprocess --train SRC TRG "
            "--valid SRC TRG --langs SRC TRG --out DIR"
        )
    value = {} if value is None else value
    if isinstance(value, dict):
        if content.startswith(_RESOLVED.encode()):
            _pass_over_gone(value)
        value |= {title: {} for title, _ in sections() if title in value and value[title] is None}  # only comments
        data = value.get("data")
        for _, option, last in (name.split(".") for name, _ in overrides if name.count(".") == 2):
            if isinstance(data, dict) and isinstance(data.get(option), list) and last in NAMES_A_CORPUS:
                del data[option]  # a newly named corpus replaces the list
        for name, text in overrides:
            try:
                name = _override(value, name, text)
            except RecipeError as error:
                complaints.append((None, name, str(error)))
                continue
            lines = {old: line for old, line in lines.items() if not f"{old}.".startswith(f"{name}.")} | {name: None}
    if value or not complaints:  # text that is not YAML gets no further complaints about missing options
        try:
            recipe = Recipe.model_validate(value)
        except ValidationError as error:
            known = {name for _, name, _ in complaints}
            for name, text in validation_complaints(error):
                if name not in known:
                    complaints.append((line_of(name, text, lines), name, text))
    messages = dict[str, None]()  # those of overrides first, then by line
    for line, name, text in sorted(complaints, key=lambda complaint: complaint[0] or 0):
        place = given_by if line is None or not source else f"{source}:{line}"
        messages[": ".join(part for part in (place, name, text) if part)] = None
    if messages:
        raise RecipeError("\n".join(messages))
    return recipe


def overrides_of(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Convert options of a Python program to overrides. options: values by dotted name, or mappings by section. None
    stands for no override. Raises RecipeError for a value of a type that no option has."""
    titles, flat = dict(sections()), dict[str, Any]()
    for name, value in options.items():
        inside = isinstance(value, Mapping) and name in titles
        flat |= {f"{name}.{option}": item for option, item in value.items()} if inside else {name: value}
    overrides = []
    for name, value in flat.items():
        try:
            if value is not None:  # text stays without quotes, as the options that take any text expect it
                is_text = isinstance(value, (str, PurePath))
                text = str(value) if is_text else json.dumps(value, ensure_ascii=False, default=_plain)
                overrides.append((with_trg(name), text))
        except (AttributeError, TypeError, ValueError, RuntimeError):
            raise RecipeError(f"{name}: {described(value)} is not a value of an option.") from None
    return overrides


def _plain(value: Any) -> Any:
    """Convert a path or a numpy number to a value of JSON."""
    return str(value) if isinstance(value, PurePath) else value.item()


def write_recipe(recipe: Recipe, path: Path | str) -> None:
    """Write a recipe with every option spelled out, atomically. Reading it gives an equal recipe."""
    write_durably(Path(path), recipe_text(recipe).encode("utf-8"))


def recipe_text(recipe: Recipe) -> str:
    """Return a recipe as YAML with every option spelled out, after the first line that marks a stored recipe."""
    return _RESOLVED + "\n".join(_lines(recipe)) + "\n"


def _pass_over_gone(part: Any, section: str = "") -> None:
    """Remove options and replace values of earlier versions in the raw recipe of a run, or a part of it, in place.

    Options of data, decode and regularize may have any value: its data exist already, and translation goes without
    them. Others must be off.
    """
    is_passed_over = section.partition(".")[0] in ("data", "decode", "regularize")
    for option, value in [*part.items()] if isinstance(part, dict) else ():
        name = f"{section}.{option}".removeprefix(".")
        if name in GONE and (is_passed_over or not value):
            del part[option]
        elif isinstance(value, str):
            part[option] = GONE_VALUES.get((name, value), value)
        for item in value if isinstance(value, list) else [value]:
            _pass_over_gone(item, name)


def _override(value: dict[str, Any], name: str, text: str) -> str:
    """Apply one override to the recipe's raw value, in place, and return its name with the index in a list.

    Raises RecipeError for an unknown option, faulty YAML, and an index that does not exist or is missing.
    """
    if not (option := option_named(name)):
        raise RecipeError("name an option, not a section" if name in dict(sections()) else unknown_option(name))
    new: Any = text
    if not option.is_text:
        document = parse(text)
        if document.faults:
            raise RecipeError(document.faults[0][2])
        new = document.value
    target: Any = value
    parent, _, last = name.rpartition(".")
    for part in parent.split(".") if parent else ():
        if part.isdecimal():
            items = target if isinstance(target, list) else [target]  # one mapping stands for a list of one
            if int(part) >= len(items):
                raise RecipeError(f"out of range, the list has {len(items)}")
            target = items[int(part)]
        elif isinstance(target, dict):
            if target.get(part) in (None, []):
                target[part] = {}
            target = target[part]
    if isinstance(target, list) and target:
        if len(target) > 1:
            raise RecipeError(f"{parent} is a list of {len(target)}: say which, as {parent}.0.{last}")
        target, name = target[0], f"{parent}.0.{last}"
    if isinstance(target, dict):  # validation reports anything else, with its own line
        target[last] = new
    return name


def _lines(model: BaseModel, indent: str = "") -> Iterator[str]:
    # An option that a preset has yet to set is left out: once written, it would count as the user's choice.
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
    """Return the options with different values in two resolved recipes, in order: {dotted name: (old, new)}."""
    changes: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys((*old, *new)):
        name = f"{prefix}{key}"
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            changes |= differences(a, b, f"{name}.")
        elif json.dumps(a, sort_keys=True) != json.dumps(b, sort_keys=True):
            changes[name] = (a, b)
    return changes
