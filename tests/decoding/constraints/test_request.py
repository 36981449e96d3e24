"""What a line asks of its translation, where it asks for much."""

import re

import pytest

from nmt.decoding.phrases import Wanted, occurrences
from nmt.decoding.request import Request, Terms


@pytest.mark.parametrize("pattern", [r"\d+", r"\w", r"[ab]+", r"\S+", r"12|1|2", r"日?\w", r"a.", r".+"])
def test_each_part_is_wanted_as_often_as_it_stands_in_all_that_is_kept(pattern):
    for source in ("a1 12 1 b12 121", "ab a b aab 日a 日b", "- a-b 1-2 --", "12", "1 12 a12b 1日2 12"):
        request = Terms(kept=re.compile(pattern))(Request(source))
        wanted = []
        for text in dict.fromkeys(one.text for one in request.kept):
            sides = zip(*(one.opened for one in request.kept if one.text == text), strict=True)
            room = tuple(not any(side) for side in sides)
            n = sum(len(list(occurrences(text, one.text, room))) for one in request.kept)
            wanted.append(Wanted(text, n, room))
        assert request.wanted == wanted


@pytest.mark.parametrize(
    ("source", "output", "unmet"),
    [
        ("Hallo %s, du", "Hello %s, you", []),
        ("Hallo %s, du", "Callo%%s, you", ["%s"]),
        ("Hallo %s, du", "Callo%s, you", ["%s"]),
        ("auf {{link}}.", "on {{{link}}.", ["{{link}}"]),
        ("auf {{link}}.", "on ({{link}}).", []),
        ("auf {{link}}.", "on {{link}}}.", ["{{link}}"]),
        ("%%s und %s%s", "%s%s and %%s", []),  # in the source it does not stand free itself
    ],
)
def test_what_is_kept_stands_free_where_it_does_in_the_source(source, output, unmet):
    request = Terms(kept=re.compile(r"\{+\w+\}+|%(\d+\$)?[sd]|__\w+__"))(Request(source))
    assert request.unmet(output) == unmet
