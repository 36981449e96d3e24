"""Fields that docs/reference.md lists, for the tests that compare them with the code."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"


def documented(title: str) -> dict[str, dict[str, str]]:
    """{heading within the chapter, "" before the first: {field: its condition in italics, or "always"}}."""
    chapter = re.split(r"^## ", PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2], flags=re.MULTILINE)[0]
    fields_of: dict[str, dict[str, str]] = {}
    heading = ""
    for line in chapter.split("\n"):
        if line.startswith("### "):
            heading = line[4:].strip("`")
        elif line.startswith("- `"):
            names, meaning = line.split(": ", 1)
            condition = re.match(r"\*(.+?)\*: ", meaning)
            fields = dict.fromkeys(re.findall(r"`(\w+)`", names), condition[1] if condition else "always")
            fields_of.setdefault(heading, {}).update(fields)
    return fields_of
