"""A strict YAML reader that remembers where everything stood. It knows no option.

YAML's traps are closed: scalars are those of the YAML 1.2 core schema (`no`, `on` and `1:30` are text, `1e-4` is a
number), anchors, aliases, tags and duplicate keys are refused, and size and depth are bounded.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml

MAX_BYTES = 1_000_000
MAX_DEPTH = 20

_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_CONSTANTS = {"": None, "~": None, "null": None, "true": True, "false": False}
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_YAML_1_1_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


@dataclass(frozen=True)
class Mark:
    """A place in a file, counted from 1."""

    line: int
    column: int = 1


@dataclass
class Document:
    """Parsed YAML: its value, the place of each dotted name, and its faults.

    faults: (place, dotted name or "", what is wrong).
    """

    value: Any = None
    marks: dict[str, Mark] = field(default_factory=dict)
    faults: list[tuple[Mark, str, str]] = field(default_factory=list)


def parse(content: bytes | str) -> Document:
    """Read one YAML document. Never raises for what is in it: that is in `faults`."""
    document = Document()
    if len(content) > MAX_BYTES:
        document.faults.append((Mark(1), "", f"larger than {MAX_BYTES:,} bytes (expected a recipe)"))
        return document
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        assert isinstance(content, bytes)
        line = content.count(b"\n", 0, error.start) + 1
        document.faults.append(
            (Mark(line), "", f"byte {content[error.start]:#04x} is not UTF-8 (save the file as UTF-8)")
        )
        return document
    try:
        root = _composed(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        document.faults.append((_mark(mark) if mark else Mark(1), "", _in_words(error)))
        return document
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        document.faults.append((Mark(line), "", f"character U+{ord(text[error.position]):04X} is not allowed in YAML"))
        return document
    if root is not None:
        document.value = _value(root, "", document)
    return document


def scalar(text: str) -> Any:
    """Parse an unquoted scalar: None, a bool, an int, a float or text. Raises ValueError for inf and nan."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) <= 40 and _INT.fullmatch(text):
        return int(text)
    if _NOT_FINITE.fullmatch(text) or (_FLOAT.fullmatch(text) and not math.isfinite(float(text))):
        raise ValueError(f"{text[:40]} is not a finite number")
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def quoted(text: str) -> str:
    """Text as a YAML scalar that every YAML reader takes for this text."""
    if _PLAIN.fullmatch(text) and text.lower() not in _YAML_1_1_WORDS:
        return text
    escaped = (json.dumps(c, ensure_ascii=False)[1:-1] if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(escaped)}"'


class _Composer(yaml.SafeLoader):
    """PyYAML's composer that stops at aliases, anchors, tags and depth before it builds anything from them."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        peek: Callable[[], Any] = self.peek_event
        event = peek()
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise yaml.composer.ComposerError(
                None, None, "anchors and aliases (& and *) are not allowed", event.start_mark
            )
        if event.tag is not None:
            raise yaml.composer.ComposerError(None, None, f"tags ({event.tag}) are not allowed", event.start_mark)
        if self._depth >= MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {MAX_DEPTH}", event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


@lru_cache(maxsize=4)
def _composed(text: str) -> yaml.Node | None:
    """The tree of a text, which nobody changes: one command reads the recipe of its run several times."""
    return _Composer(text).get_single_node()


def _value(node: yaml.Node, name: str, document: Document) -> Any:
    """The value of a node; its marks and faults go into the document."""
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key, child in node.value:
            _put(found, key, child, name, document)
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_marked(child, _dotted(name, str(n)), child, document) for n, child in enumerate(node.value)]
    assert isinstance(node, yaml.ScalarNode)
    if node.style is not None:  # quoted
        return node.value
    try:
        return scalar(node.value)
    except ValueError as error:
        document.faults.append((_mark(node.start_mark), name, f"{error}"))
        return 0


def _put(found: dict[str, Any], key: yaml.Node, child: yaml.Node, name: str, document: Document) -> None:
    place = _mark(key.start_mark)
    if not isinstance(key, yaml.ScalarNode):
        document.faults.append((place, name, "a mapping or list as a key (expected a name)"))
        return
    full = _dotted(name, key.value)
    if key.value in found:
        first = document.marks[full].line
        document.faults.append((place, full, f"written twice (first in line {first}; keep one)"))
        return
    found[key.value] = _marked(child, full, key, document)


def _marked(node: yaml.Node, name: str, place: yaml.Node, document: Document) -> Any:
    document.marks[name] = _mark(place.start_mark)
    return _value(node, name, document)


def _dotted(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _mark(mark: Any) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)


def _in_words(error: yaml.MarkedYAMLError) -> str:
    """PyYAML's complaint on one line."""
    if isinstance(error, yaml.composer.ComposerError) and error.context is None:
        return error.problem or "not YAML"
    return f"not YAML: {' '.join(_parts(error))}"


def _parts(error: yaml.MarkedYAMLError) -> Iterator[str]:
    if error.context:
        yield error.context + ","
    yield error.problem or "something is wrong here"
    if error.problem and "\\t" in error.problem:
        yield "(indent with spaces, not tabs)"
