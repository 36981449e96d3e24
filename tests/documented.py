"""Fields that docs/reference.md lists, for the tests that compare them with the code."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"


def documented(title: str) -> dict[str, dict[str, str]]:
    """{heading within the chapter, "" before the first: {field: its condition in italics, or "always"}}."""
    chapter = re.split(r"^## ", PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2], flags=re.MULTILINE)[0]
    found: dict[str, dict[str, str]] = {}
    heading = ""
    for line in chapter.split("\n"):
        if line.startswith("### "):
            heading = line[4:].strip("`")
        elif line.startswith("- `"):
            names, meaning = line.split(": ", 1)
            condition = re.match(r"\*(.+?)\*: ", meaning)
            fields = dict.fromkeys(re.findall(r"`(\w+)`", names), condition[1] if condition else "always")
            found.setdefault(heading, {}).update(fields)
    return found
