"""A strict YAML reader that remembers the line of everything, and a writer of values. They know no option.

YAML's traps are closed: scalars are those of the YAML 1.2 core schema (`no`, `on` and `1:30` are text, `1e-4` is a
number), anchors, aliases, tags and duplicate keys are refused, and size and depth are bounded.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml
from pydantic import BaseModel

MAX_BYTES = 1_000_000
MAX_DEPTH = 20

_INT = re.compile(r"[-+]?[0-9]{1,39}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_CONSTANTS = {"": None, "~": None, "null": None, "true": True, "false": False}
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_YAML_1_1_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


@dataclass
class Document:
    """Parsed YAML: its value, the line of each dotted name, from 1, and its faults.

    faults: (line, dotted name or "", what is wrong).
    """

    value: Any = None
    lines: dict[str, int] = field(default_factory=dict)
    faults: list[tuple[int, str, str]] = field(default_factory=list)


def parse(content: bytes | str, rename: Callable[[str], str] = str) -> Document:
    """Read one YAML document. Never raises for what is in it: that is in `faults`. rename: says what a key means."""
    document, line = Document(), 1
    if len(content) > MAX_BYTES:
        document.faults.append((1, "", f"larger than {MAX_BYTES:,} bytes (expected a recipe)"))
        return document
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        if (root := _composed(text)) is not None:
            document.value = _value(root, "", document, rename)
        return document
    except UnicodeDecodeError as error:
        line += error.object.count(b"\n", 0, error.start)
        wrong = f"byte {error.object[error.start]:#04x} is not UTF-8 (save the file as UTF-8)"
    except (ValueError, OverflowError) as error:
        escape = re.search(r"\\U(?!000|0010)", text)  # beyond U+10FFFF
        line += text.count("\n", 0, escape.start()) if escape else 0
        wrong = f"not YAML: {error}"
    except yaml.reader.ReaderError as error:
        line += text.count("\n", 0, error.position)
        wrong = f"character U+{ord(text[error.position]):04X} is not allowed in YAML"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line += mark.line if mark else 0
        context = f"{error.context}, " if error.context else ""
        tabs = " (indent with spaces, not tabs)" if "\\t" in (error.problem or "") else ""
        wrong = f"{error.problem}" if isinstance(error, _Refused) else f"not YAML: {context}{error.problem}{tabs}"
    document.faults.append((line, "", wrong))
    return document


def scalar(text: str) -> Any:
    """Parse an unquoted scalar: None, a bool, an int, a float or text. Raises ValueError for inf and nan."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text)
    number = float(text) if _FLOAT.fullmatch(text) else None
    if _NOT_FINITE.fullmatch(text) or (number is not None and not math.isfinite(number)):
        raise ValueError(f"{text[:40]} is not a finite number")
    return text if number is None else number


def quoted(text: str) -> str:
    """Text as a YAML scalar that every YAML reader takes for this text."""
    if _PLAIN.fullmatch(text) and text.lower() not in _YAML_1_1_WORDS:
        return text
    escaped = (json.dumps(c, ensure_ascii=False)[1:-1] if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(escaped)}"'


def as_yaml(value: Any) -> str:
    """A value on one line; of a corpus what is given."""
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{quoted(key)}: {as_yaml(part)}' for key, part in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_yaml, value))}]"
    return json.dumps(value)


class _Refused(yaml.MarkedYAMLError):
    """YAML that a recipe does not need."""


class _Composer(yaml.SafeLoader):
    """PyYAML's composer that stops at aliases, anchors, tags and depth before it builds anything from them."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        wrong = None
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            wrong = "anchors and aliases (& and *) are not allowed"
        elif event.tag is not None:
            wrong = f"tags ({event.tag}) are not allowed"
        elif self.depth >= MAX_DEPTH:
            wrong = f"nested deeper than {MAX_DEPTH}"
        if wrong:
            raise _Refused(None, None, wrong, event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


@lru_cache(maxsize=4)
def _composed(text: str) -> yaml.Node | None:
    """The tree of a text, which nobody changes: one command reads the recipe of its run several times."""
    return _Composer(text).get_single_node()


def _value(node: yaml.Node, name: str, document: Document, rename: Callable[[str], str]) -> Any:
    """The value of a node; its lines and faults go into the document."""
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key, child in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                document.faults.append((line, name, "a mapping or list as a key (expected a name)"))
                continue
            meant = rename(key.value)
            full = f"{name}.{meant}" if name else meant
            if meant in found:
                first = document.lines[full]
                document.faults.append((line, full, f"written twice (first in line {first}; keep one)"))
                continue
            document.lines[full] = line
            found[meant] = _value(child, full, document, rename)
        return found
    if isinstance(node, yaml.SequenceNode):
        parts = {f"{name}.{n}".lstrip("."): child for n, child in enumerate(node.value)}
        document.lines |= {full: child.start_mark.line + 1 for full, child in parts.items()}
        return [_value(child, full, document, rename) for full, child in parts.items()]
    assert isinstance(node, yaml.ScalarNode)
    if node.style is not None:  # quoted
        return node.value
    try:
        return scalar(node.value)
    except ValueError as error:
        document.faults.append((node.start_mark.line + 1, name, str(error)))
        return 0
