"""Recipes in and out: a YAML file and overrides become a `Recipe`, a `Recipe` becomes a YAML file that says it all."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from pydantic import BaseModel, ValidationError

from nmt.errors import RecipeError
from nmt.files import refuse_links_out, write_durably
from nmt.recipe.complaints import GONE, GONE_VALUES, Complaint, in_order, of_validation, option_at, unknown, with_trg
from nmt.recipe.fields import option_named, sections
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.options import Recipe
from nmt.recipe.places import Origin, is_made
from nmt.recipe.yaml_marks import MAX_BYTES, Mark, parse, quoted

Overrides = Sequence[tuple[str, str]]

_RESOLVED = "# The whole truth of this run: every option, resolved.\n"
_NAMES_A_CORPUS = ("src", "trg", "file", "dataset")
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
    if is_made(path.parent):
        refuse_links_out(path.parent)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RecipeError(f"{path}: cannot read the recipe: {error.strerror} (expected a YAML file)") from None
    origin = Origin(path, frozenset(name for name, _ in overrides))
    return _read(content, str(path), overrides, path).coming_from(origin)


def changed(recipe: Recipe, overrides: Overrides) -> Recipe:
    """A recipe with overrides laid over it. Raises RecipeError, as `read_recipe` does."""
    content = (_RESOLVED + recipe_text(recipe)).encode("utf-8")
    return _read(content, "the recipe", overrides).coming_from(recipe.origin)


def _read(content: bytes, source: str, overrides: Overrides, path: Path | None = None) -> Recipe:
    """source: what the content is of. path: its file, if it is of one."""
    document = parse(content)
    complaints = [Complaint(*fault) for fault in document.faults]
    places: dict[str, Mark | None] = dict(document.marks)
    value = {} if document.value is None else document.value
    if path is not None and not isinstance(document.value, dict):
        is_empty = document.value is None and not complaints
        if is_empty and not overrides:
            raise RecipeError(f"{path}: the recipe is empty (expected name: and data:, docs/data.md)")
        if not is_empty and path.suffix not in (".yaml", ".yml"):
            raise RecipeError(_NO_RECIPE.format(path))
    complaints += _say_trg(value, places)
    is_stored = content.startswith(_RESOLVED.encode())
    pass_over_gone(value, is_stored=is_stored)
    # Languages that were not known by their codes have been written down as they were told: such recipes stay readable.
    known_languages = languages_in(value) if is_stored else frozenset()
    if isinstance(value, dict):
        for title, _ in sections():
            if title in value and value[title] is None:  # a title over nothing, or over comments
                value[title] = {}
        anew = {place for place, _, last in (name.rpartition(".") for name, _ in overrides) if last in _NAMES_A_CORPUS}
        for name, text in overrides:
            complaints.extend(_override(value, places, name, text, anew))
    recipe = None
    if not complaints or value:  # what is not YAML at all lacks options, too, which is no news
        recipe, found = _validate(value, known_languages)
        known = {complaint.name for complaint in complaints}
        complaints += [Complaint(_place(name, text, places), name, text) for name, text in found if name not in known]
    if recipe is None or complaints:
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
    return [(name, _as_written(name, value)) for name, value in flat.items() if value is not None]


def _as_written(name: str, value: Any) -> str:
    """A value as a flag says it: texts as they are, which is how the options that take any text read them."""
    if isinstance(value, (str, PurePath)):
        return str(value)
    try:  # paths inside, and numbers of numpy
        return json.dumps(
            value, ensure_ascii=False, default=lambda one: one.item() if hasattr(one, "item") else _path(one)
        )
    except (TypeError, ValueError, RuntimeError):
        raise RecipeError(f"{name}: {value!r:.60} of type {type(value).__name__} is no value of an option.") from None


def _path(value: Any) -> str:
    if not isinstance(value, PurePath):
        raise TypeError
    return str(value)


def load_resolved(path: Path | str) -> Recipe:
    """The recipe that `write_recipe` wrote."""
    return read_recipe(path)


def write_recipe(recipe: Recipe, path: Path | str) -> None:
    """Write a recipe with every option spelled out, whole or not at all. Reading it gives an equal recipe."""
    write_durably(Path(path), (_RESOLVED + recipe_text(recipe)).encode("utf-8"))


def recipe_text(recipe: Recipe) -> str:
    """A recipe as YAML, every option spelled out."""
    return "\n".join(_lines(recipe)) + "\n"


def _say_trg(value: Any, places: dict[str, Mark | None], inside: str = "") -> Iterator[Complaint]:
    """Rename options that are written with tgt for trg, in place, in a recipe's raw value and in its places."""
    if isinstance(value, list):
        for n, part in enumerate(value):
            yield from _say_trg(part, places, f"{inside}{n}.")
    if not isinstance(value, dict):
        return
    for key in list(value):
        ours = with_trg(key)
        if ours != key and option_named(inside + ours) and not option_named(inside + key):
            if ours in value:
                yield Complaint(places[inside + key], inside + key, f"written twice, as {ours}, too (keep one)")
            value[ours] = value.pop(key)
            for old in [old for old in places if f"{old}.".startswith(f"{inside}{key}.")]:
                places[inside + ours + old.removeprefix(inside + key)] = places.pop(old)
            key = ours
        yield from _say_trg(value[key], places, f"{inside}{key}.")


def pass_over_gone(value: Any, *, is_stored: bool = False) -> None:
    """Remove options of earlier versions from a recipe's raw value, in place, where their value did nothing.

    is_stored: it is that of a run, which opens whatever it said: its data are made, and lines are translated without.
    """
    for name, (without_effect, _) in GONE.items():
        title, _, option = name.rpartition(".")
        section = value.get(title) if title and isinstance(value, dict) else value
        if not isinstance(section, dict) or option not in section:
            continue
        if section[option] in without_effect or (is_stored and title in ("data", "decode")):
            del section[option]
    for (name, gone), instead in GONE_VALUES.items() if is_stored and isinstance(value, dict) else ():
        title, _, option = name.partition(".")
        if isinstance(value.get(title), dict) and value[title].get(option) == gone:
            value[title][option] = instead


def _override(
    value: dict[str, Any], places: dict[str, Mark | None], name: str, text: str, anew: set[str]
) -> Iterator[Complaint]:
    """Lay one override over the recipe's raw value, in place, and forget where the old value stood.

    anew: names of options whose parts are told from the start, so that a list that is there goes.
    """
    option = option_named(name)
    if option is None:
        yield Complaint(None, name, "name an option, not a section" if name in dict(sections()) else unknown(name))
        return
    new: Any = text
    if not option.is_text:
        document = parse(text)
        if document.faults:
            yield from (Complaint(None, name, fault) for _, _, fault in document.faults)
            return
        new = document.value
    here: Any = value
    place, _, last = name.rpartition(".")
    outer = option_named(place)  # None where a number says which of a list is meant
    for part in place.split(".") if place else ():
        if part.isdecimal():
            inside = here if isinstance(here, list) else [here]  # one mapping is as good as a list of it
            if int(part) >= len(inside):
                yield Complaint(None, name, f"there is no such place, the list is of {len(inside)}")
                return
            here = inside[int(part)]
            continue
        if not isinstance(here, dict):
            break
        if here.get(part) in (None, []) or (isinstance(here[part], list) and outer and place in anew):
            here[part] = {}
        here = here[part]
    if isinstance(here, list) and outer and outer.many:
        if len(here) > 1:
            yield Complaint(None, name, f"{place} is a list of {len(here)}: say which, as {place}.0.{last}")
            return
        here, name = here[0], f"{place}.0.{last}"
    if not isinstance(here, dict):
        return  # what stands in the file instead of a mapping is complained about where it stands
    here[last] = new
    for old in [old for old in places if old == name or old.startswith(f"{name}.")]:
        del places[old]
    places[name] = None


def languages_in(value: Any) -> frozenset[str]:
    """The languages of a recipe's raw value, wherever they are told."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: set[str] = set()
    for key, part in parts:
        found |= {part} if key in ("src_lang", "trg_lang") and isinstance(part, str) else languages_in(part)
    return frozenset(found)


def _validate(value: Any, known_languages: frozenset[str]) -> tuple[Recipe | None, list[tuple[str, str]]]:
    """The recipe, or (dotted name, complaint) pairs. Contradictions are looked for even among other mistakes.

    known_languages: codes that are let through as they are.
    """
    try:
        return Recipe.model_validate(value, context=known_languages), []
    except ValidationError as error:
        found = list(of_validation(error))
        bad = [option_at(issue["loc"], issue["type"]) for issue in error.errors(include_url=False)]
    if not isinstance(value, dict) or () in bad:
        return None, found
    try:  # with the mistaken options left out, the defaults stand in for them
        Recipe.model_validate({"name": "unnamed", **_without(value, bad)}, context=known_languages)
    except ValidationError as error:
        wrong = {name for name, _ in found}
        more = [(name, text) for name, text in of_validation(error) if name not in wrong]
        found += [(name, text) for name, text in more if not any(other in text for other in wrong)]
    return None, found


def _without(value: Any, bad: list[tuple[int | str, ...]], here: tuple[int | str, ...] = ()) -> Any:
    """A raw value less the parts at the given locations."""
    if isinstance(value, dict):
        return {key: _without(part, bad, (*here, key)) for key, part in value.items() if (*here, key) not in bad}
    if isinstance(value, list):  # a place in which all is wrong stays, or the others would get its number
        return [_without(part, bad, (*here, n)) for n, part in enumerate(value)]
    return value


def _place(name: str, text: str, places: dict[str, Mark | None]) -> Mark | None:
    """Return the place of a complaint: the option, another option it names, its section, or the first line."""
    plain = ".".join(part for part in name.split(".") if not part.isdigit())
    for known in (name, plain, *(word.strip("(),;") for word in text.split() if "." in word)):
        if known in places:
            return places[known]
    while "." in name:
        name = name.rpartition(".")[0]
        if name in places:
            return places[name]
    return Mark(1)


def _lines(model: BaseModel, indent: str = "") -> Iterator[str]:
    # What a preset will decide is no truth yet, and written down it would be taken for the user's wish.
    left_out = model.undecided | model.useless if isinstance(model, ModelConfig) else set()
    for name in type(model).model_fields:
        if name in left_out:
            continue
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            yield f"{indent}{name}:"
            yield from (f"{indent}  - {as_yaml(part)}" for part in value)
        else:
            yield f"{indent}{name}: {as_yaml(value)}"


def as_yaml(value: Any) -> str:
    """A value on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{quoted(key)}: {as_yaml(part)}' for key, part in value.items())}}}"
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        told = {name: getattr(value, name) for name in fields}
        parts = (
            f"{name}: {as_yaml(part)}"
            for name, part in told.items()
            if part is not None or fields[name].default is not None
        )
        return f"{{{', '.join(parts)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_yaml, value))}]"
    return repr(value)


# Two resolved recipes, or parts of them, side by side.


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Options that the two set differently: {dotted name: (old, new)}, in the order of the options."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys((*old, *new)):
        name = f"{prefix}{key}"
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found |= differences(a, b, f"{name}.")
        elif json.dumps(a, sort_keys=True) != json.dumps(b, sort_keys=True):
            found[name] = (a, b)
    return found
