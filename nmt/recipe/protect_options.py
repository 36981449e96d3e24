"""The option of the items that a translation keeps as they are: which kinds a model is trained to keep."""

import re
import warnings
from collections.abc import Sequence
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from nmt.recipe.section import Section

Kind = Literal["tag", "url", "email", "number", "host", "mention", "path", "emoji"]
KINDS: tuple[Kind, ...] = get_args(Kind)  # looked for in this order; new ones come last, as placeholders are numbered
PATTERN = "pattern"  # the kind of what patterns of one's own find, all of them
PER_KIND = 10  # this many items of a kind in a line have placeholders; further ones stay text
OwnPattern = Annotated[str, Field(pattern="^/.+/$")]
_MOST_PATTERNS, _MOST_WAYS, _MOST_CHARACTERS = 8, 5_000, 500


def _in_order(value: Any) -> Any:
    """A list as a tuple, kinds in the order of KINDS before patterns: two recipes that mean the same say the same."""
    if not isinstance(value, list | tuple):
        return value
    return tuple(sorted(value, key=lambda one: KINDS.index(one) if one in KINDS else len(KINDS)))


def kind_of(one: str) -> str:
    """Return the kind of the placeholders for a kind or pattern of data.protect."""
    return PATTERN if one.startswith("/") else one


def patterns_of(protect: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns among the kinds and patterns of data.protect."""
    return tuple(one for one in protect if kind_of(one) == PATTERN)


def complaint_about_patterns(patterns: Sequence[Any]) -> str | None:
    """Return why patterns of data.protect are refused."""
    if len(patterns) > _MOST_PATTERNS:
        return f"{len(patterns)} patterns, of which {_MOST_PATTERNS} may be (join some with |)"
    for one in patterns:
        if not isinstance(one, str) or not re.fullmatch("/.{1,200}/", one):
            return "a pattern is no text of at most 200 characters between slashes"
        if complaint := _complaint_about(one[1:-1]):
            return f"{one} {complaint}"
    return None


def _complaint_about(pattern: str) -> str | None:
    try:
        with warnings.catch_warnings(action="error"):
            parsed = parser.parse(pattern)
            n_way, n_character = _effort(parsed)
            re.compile(f"(?P<{PATTERN}>{pattern})")  # as a part of a larger one
    except (re.error, OverflowError, RecursionError, Warning) as error:
        return f"is no regular expression that can be used ({error})"
    if parsed.state.groupdict:
        return "has a named group (write it as (?:...))"
    if not parsed.getwidth()[0]:
        return "also matches where nothing stands (make one of its parts necessary)"
    if n_way > _MOST_WAYS or n_character > _MOST_CHARACTERS:
        return (
            "could take long to look for: it may match in too many ways (give repeats an end, as {1,20} in place of +, "
            "and no repeats in repeats)"
        )
    return None


def _effort(parsed: Any) -> tuple[int, int]:
    """Return bounds on the ways in which a parsed expression can match at one place, and on its characters."""
    n_way, n_character = 1, 0
    for code, what in parsed:
        match code.name:
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                least, most, inside = what
                way, character = _effort(inside)
                character *= most
                most = min(int(most), _MOST_CHARACTERS + 1)
                way = sum(way**n for n in range(min(least, most), most + 1))
            case "BRANCH":
                branches = [_effort(one) for one in what[1]]
                way, character = sum(one[0] for one in branches), max(one[1] for one in branches)
            case "SUBPATTERN" | "ASSERT" | "ASSERT_NOT":
                way, character = _effort(what[-1])
            case "ATOMIC_GROUP":
                way, character = _effort(what)
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN" | "AT":
                way, character = 1, 1
            case _:
                raise re.error("it refers to a group")
        n_way = min(n_way * way, _MOST_WAYS + 1)
        n_character += character
    return n_way, n_character


class ProtectConfig(Section):
    """What stands before the model as a placeholder, and is put back after it."""

    protect: Annotated[
        tuple[Kind | OwnPattern, ...], BeforeValidator(_in_order, json_schema_input_type=list[Kind | OwnPattern])
    ] = Field(
        (),
        description="Items that translations keep as they are: url, email, number (digits, with a unit), tag (XML, "
        "HTML), host (www.example.com), mention (@name, #name), path (/usr/bin), emoji, and what regular "
        "expressions between slashes find ('/[A-Z]{2}-[0-9]{4}/'). Placeholders stand for them, in training where both "
        "sides have the same ones; see docs/subwords.md.",
    )
