"""Pictures and numbers of docs/attention.md are those that the package gives."""

import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path

from draw_attention import PICTURES, missing

PAGE = Path(__file__).parents[1] / "docs" / "attention.md"


def test_the_page_about_attention_shows_every_picture_that_is_drawn_and_no_other():
    shown = re.findall(r"\]\(attention/(.*?)\)", PAGE.read_text(encoding="utf-8"))
    drawn = sorted(f"{name}.svg" for name in PICTURES)
    assert sorted(shown) == drawn == sorted(path.name for path in (PAGE.parent / "attention").iterdir())


def test_the_numbers_on_the_page_about_attention_are_measured():
    """Those that are quick: python tools/draw_attention.py --check docs/attention.md looks at all, in a minute."""
    page = PAGE.read_text(encoding="utf-8")
    _, table = PICTURES["masks"]()
    assert missing(table, page) == [] != missing(table.replace("1", "7"), page)


def test_every_step_of_the_ways_in_contributing_exists():
    text = (PAGE.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    steps = re.findall(r"^(\d+)\. (`.*)$", text, re.MULTILINE)
    assert [int(number) for number, _ in steps] == [*range(1, 16), *range(1, 14)]
    for _, step in steps:
        for module, names in re.findall(r"`([\w/]+)\.py`((?:[:,] `[\w.]+`)*)", step):
            for name in re.findall("`(.*?)`", names):
                assert attrgetter(name)(import_module(f"nmt.{module.replace('/', '.')}"))
