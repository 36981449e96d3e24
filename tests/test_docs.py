"""Pictures and numbers of docs/attention.md match the package; code named in CONTRIBUTING.md exists."""

import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path

from draw_attention import PICTURES, missing

PAGE = Path(__file__).parents[1] / "docs" / "attention.md"


def test_attention_page_shows_exactly_the_drawn_pictures():
    shown = re.findall(r"\]\(attention/(.*?)\)", PAGE.read_text(encoding="utf-8"))
    drawn = sorted(f"{name}.svg" for name in PICTURES)
    assert sorted(shown) == drawn == sorted(path.name for path in (PAGE.parent / "attention").iterdir())


def test_numbers_on_the_attention_page_are_measured():
    """Only the quick ones: python tools/draw_attention.py --check docs/attention.md checks all in a minute."""
    page = PAGE.read_text(encoding="utf-8")
    _, table = PICTURES["masks"]()
    assert missing(table, page) == [] != missing(table.replace("1", "7"), page)


def test_code_named_in_contributing_exists():
    text = (PAGE.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    steps = re.findall(r"^(\d+)\. (`.*)$", text, re.MULTILINE)
    assert [int(number) for number, _ in steps] == [*range(1, 16), *range(1, 14)]
    for _, step in steps:
        for module, names in re.findall(r"`([\w/]+)\.py`((?:[:,] `[\w.]+`)*)", step):
            for name in re.findall("`(.*?)`", names):
                assert attrgetter(name)(import_module(f"nmt.{module.replace('/', '.')}"))
