"""What is wrong with a recipe, in words: one line each: place, dotted name, found, expected, nearest name."""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from nmt.recipe.fields import all_fields, sections
from nmt.recipe.names import GONE, OTHER_NAMES
from nmt.recipe.yaml_marks import Mark


@dataclass(frozen=True)
class Complaint:
    """One thing that is wrong. place: a Mark in the file, or None for the command line."""

    place: Mark | None
    name: str
    text: str

    def line(self, file: str) -> str:
        """The complaint as the user reads it."""
        where = "command line" if self.place is None else f"{file}:{self.place.line}"
        return ": ".join(part for part in (where, self.name, self.text) if part)


def in_order(complaints: Iterable[Complaint], file: str) -> str:
    """All complaints, those of the command line first, then by line."""

    def order(complaint: Complaint) -> tuple[int, int]:
        return (complaint.place.line, complaint.place.column) if complaint.place else (0, 0)

    return "\n".join(dict.fromkeys(complaint.line(file) for complaint in sorted(complaints, key=order)))


def of_validation(error: ValidationError) -> Iterator[tuple[str, str]]:
    """(dotted name, what is wrong) for each thing that pydantic found; several for contradictions."""
    for found in error.errors(include_url=False):
        name = ".".join(map(str, option_at(found["loc"], found["type"])))
        if found["type"] == "value_error" and not name:
            for line in str(found["ctx"]["error"]).split("\n"):
                dotted, _, text = line.partition(": ")
                yield dotted, text
        elif found["type"] == "language":
            yield name, found["msg"]
        elif found["type"] == "extra_forbidden":
            yield name, unknown(name)
        elif found["type"] == "missing":
            yield name, f"missing (expected {_expected(name)})"
        else:
            expected = _expected(name)
            article = "a " if expected.startswith(("whole number", "number")) else ""
            yield (
                name,
                f"expected {article}{expected}, found {describe(found['input'])}{_hint(expected, found['input'])}",
            )


def option_at(loc: tuple[int | str, ...], kind: str) -> tuple[int | str, ...]:
    """The place of an option, less what pydantic adds to it where an option takes two kinds of values."""
    known = {field.name for field in all_fields()}
    inside = next((n for n, part in enumerate(loc) if str(part).startswith("list[")), None)
    if inside is not None:  # of an option that takes one or a list
        return loc[:inside]
    if kind != "extra_forbidden" and _without_numbers(".".join(map(str, loc[:-1]))) in known:
        inner = _without_numbers(".".join(map(str, loc))) in known
        return loc if inner or isinstance(loc[-1], int) else loc[:-1]
    return loc


def unknown(name: str) -> str:
    """The complaint about a dotted name that no option has."""
    return f"is gone; {GONE[name][1]}" if name in GONE else f"unknown option{_nearest(name)}"


def describe(value: Any) -> str:
    """A value that was found, in a few words."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {_short(value)!r}"
    if isinstance(value, dict):
        return f"a mapping {{{_short(', '.join(map(str, value)))}}}"
    return f"a list of {len(value)}" if isinstance(value, (list, tuple)) else type(value).__name__


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _expected(name: str) -> str:
    """What an option takes, in words."""
    plain = _without_numbers(name)
    if not plain:
        return "a mapping of sections and options"
    for field in all_fields():
        if field.name == plain:
            return field.kind
    if plain in dict(sections()):
        return "a section, a mapping of options"
    return _expected(plain.rpartition(".")[0]) if "." in plain else "another value"  # a part of an option's value


def _hint(expected: str, found: Any) -> str:
    """How to mend the commonest mistakes."""
    if expected.startswith("text like 90s") and (number := re.fullmatch(r"([1-9][0-9]*)( ?min(ute)?s?)?", str(found))):
        return f" (did you mean {number[1]}m?)"
    if expected.startswith("whole number") and isinstance(found, float) and found.is_integer():
        return f" (write {found:.0f})"
    if expected.startswith("true or false") and isinstance(found, str):
        truth = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}.get(
            found.lower()
        )
        truth = truth or (found.lower() if found.lower() in ("true", "false") else None)
        return f" (write {truth})" if truth else ""
    if expected.startswith("text") and isinstance(found, (int, float)):
        return " (write it in quotes)"
    if "number" in expected and isinstance(found, str):
        bare = found.replace("_", "").replace(",", "").strip()
        return f" (write {bare})" if bare.isdigit() else ""
    return ""


def _nearest(name: str) -> str:
    """The known name that was probably meant, or the names that are known there, in brackets."""
    plain = _without_numbers(name)
    place, section = name.rpartition(".")[0], plain.rpartition(".")[0]
    inner = {f.name.rpartition(".")[2] for f in all_fields() if f.inner and f.name.rpartition(".")[0] == section}
    if close := difflib.get_close_matches(name.rpartition(".")[2].lower(), sorted(inner), n=1, cutoff=0.7):
        return f" (did you mean {place}.{close[0]}?)"  # a part of an option's value, like the others beside it
    known = [field.name for field in all_fields() if not field.inner]
    known += [title for title, _ in sections() if title]
    if found := nearest(plain, known):
        return f" (did you mean {' or '.join(found)}?)"
    here = [full.rpartition(".")[2] for full in known if full.rpartition(".")[0] == section]
    return f" (known here: {', '.join(here)})" if here else ""


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Which of the known dotted names was probably meant by one that is not known.

    That with the same word elsewhere (there may be several), another toolkit's word, or a near spelling; or none.
    """
    section, _, word = name.rpartition(".")
    word = _plain_word(word)
    others = {other: full[0] for other, names in OTHER_NAMES.items() if (full := [n for n in names if n in known])}
    if not section and word in others:
        return [others[word]]
    if same_word := [full for full in known if _last_word(full) == word]:
        return same_word
    here = {_last_word(full): full for full in known if full.rpartition(".")[0] == section}
    anywhere = {_last_word(full): full for full in known}
    for names, cutoff in ((here, 0.7), (others, 0.8), (anywhere, 0.7)):
        if close := difflib.get_close_matches(word, names, n=1, cutoff=cutoff):
            return [names[close[0]]]
    return difflib.get_close_matches(name, known, n=1, cutoff=0.8)


def _last_word(full: str) -> str:
    return _plain_word(full.rpartition(".")[2])


def _plain_word(word: str) -> str:
    return word.lower().replace("-", "_")  # as flags have it


def _without_numbers(name: str) -> str:
    """data.train.0.src -> data.train.src"""
    return ".".join(part for part in name.split(".") if not part.isdigit())
