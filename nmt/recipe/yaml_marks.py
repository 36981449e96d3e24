"""A strict YAML reader that keeps line numbers, and a writer of values. Independent of the options.

Scalars follow the YAML 1.2 core schema: `no`, `on` and `1:30` are text, `1e-4` is a number. Anchors, aliases, tags and
duplicate keys are refused, and size and depth are bounded.
"""

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml
from pydantic import BaseModel

MAX_BYTES = 1_000_000
MAX_DEPTH = 20

_INT = re.compile(r"[-+]?[0-9]{1,39}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS = {"": None, "~": None, "null": None, "true": True, "false": False}
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_YAML_1_1_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


@dataclass
class Document:
    """Parsed YAML: its value, the line of each dotted name, counted from 1, and its faults.

    A line is None for a value from the command line. A fault is its line, its dotted name or "", and the message.
    """

    value: Any = None
    lines: dict[str, int | None] = field(default_factory=dict)
    faults: list[tuple[int | None, str, str]] = field(default_factory=list)


def with_trg(name: str) -> str:
    """Return the name of an option or flag with trg, our spelling, in place of tgt."""
    return re.sub(r"(?<![A-Za-z])tgt(?![A-Za-z])", "trg", name)


def parse(content: bytes | str) -> Document:
    """Read one YAML document; tgt in a key means trg. Errors in the content go to `faults` and raise nothing."""
    document, line = Document(), 1
    if len(content) > MAX_BYTES:
        document.faults.append((1, "", f"larger than {MAX_BYTES:,} bytes (expected a recipe)"))
        return document
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        if (root := _composed(text)) is not None:
            document.value = _value(root, "", document)
        return document
    except UnicodeDecodeError as error:
        line += error.object.count(b"\n", 0, error.start)
        message = f"byte {error.object[error.start]:#04x} is not UTF-8 (save the file as UTF-8)"
    except (ValueError, OverflowError) as error:
        message = f"not YAML: {error}"
    except yaml.reader.ReaderError as error:
        line += text.count("\n", 0, error.position)
        message = f"character U+{ord(text[error.position]):04X} is not allowed in YAML"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line += mark.line if mark else 0
        context = f"{error.context}, " if error.context else ""
        tabs = " (indent with spaces, not tabs)" if "\\t" in (error.problem or "") else ""
        message = f"{error.problem}" if isinstance(error, _Refused) else f"not YAML: {context}{error.problem}{tabs}"
    document.faults.append((line, "", message))
    return document


def scalar(text: str) -> Any:
    """Parse an unquoted scalar: None, a bool, an int, a float or text. `.inf` and `.nan` are text."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def quoted(text: str) -> str:
    """Return text as a scalar, quoted if need be, that every YAML reader reads as this text."""
    if _PLAIN.fullmatch(text) and text.lower() not in _YAML_1_1_WORDS:
        return text
    escaped = (json.dumps(c, ensure_ascii=False)[1:-1] if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(escaped)}"'


def as_yaml(value: Any) -> str:
    """Return a value as YAML on one line; of a model, such as a corpus, the fields that are not None."""
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{quoted(key)}: {as_yaml(item)}' for key, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_yaml, value))}]"
    return json.dumps(value)


class _Refused(yaml.MarkedYAMLError):
    """Raised for features of YAML that a recipe may not use."""


class _Composer(yaml.SafeLoader):
    """PyYAML's composer that refuses aliases, anchors, tags and deep nesting before it builds anything from them."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        message = None
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None or event.tag is not None:
            message = "anchors, aliases and tags (&, * and !) are not allowed; text that begins with one needs quotes"
        elif self.depth >= MAX_DEPTH:
            message = f"nested deeper than {MAX_DEPTH}"
        if message:
            raise _Refused(None, None, message, event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


@lru_cache(maxsize=4)
def _composed(text: str) -> yaml.Node | None:
    """Return the nodes of a text, not to be modified. Cached, since a command reads its recipe several times."""
    return _Composer(text).get_single_node()


def _value(node: yaml.Node, name: str, document: Document) -> Any:
    """Return the value of a node, and add its lines and faults to the document."""
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key, child in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                document.faults.append((line, name, "a mapping or list as a key (expected a name)"))
                continue
            renamed = with_trg(key.value)
            full = f"{name}.{renamed}" if name else renamed
            if renamed in mapping:
                document.faults.append((line, full, f"written twice (first in line {document.lines[full]}; keep one)"))
                continue
            document.lines[full] = line
            mapping[renamed] = _value(child, full, document)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        items = {f"{name}.{n}".lstrip("."): child for n, child in enumerate(node.value)}
        document.lines |= {full: child.start_mark.line + 1 for full, child in items.items()}
        return [_value(child, full, document) for full, child in items.items()]
    assert isinstance(node, yaml.ScalarNode)
    return scalar(node.value) if node.style is None else node.value  # quoted text stays text
