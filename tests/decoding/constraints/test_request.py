"""What a line asks of its translation, where it asks for much."""

import re

import pytest

from nmt.decoding import request as module
from nmt.decoding.phrases import Wanted, occurrences
from nmt.decoding.request import Kept, Request, Terms


def asking(n):
    """A line of n numbers, all of which stay as they are."""
    return Terms(kept=re.compile(r"\d+"))(Request(" ".join(f"a {1000 + i}" for i in range(n))))


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


def test_the_work_to_know_what_is_wanted_grows_by_what_is_kept_and_not_by_its_square(monkeypatch):
    n_look = 0

    def looking(*given):
        nonlocal n_look
        n_look += 1
        return occurrences(*given)

    monkeypatch.setattr(module, "occurrences", looking)
    assert len(asking(300).wanted) == 300
    assert n_look == 300


def test_a_piece_of_a_line_does_not_look_at_all_that_is_kept_in_the_others():
    whole, n_look = asking(1000), 0

    class Place(int):
        """A place in the source that counts how often it is looked at."""

        def _looked(self, other, compared):
            nonlocal n_look
            n_look += 1
            return compared(int(self), int(other))

        def __lt__(self, other):
            return self._looked(other, int.__lt__)

        def __le__(self, other):
            return self._looked(other, int.__le__)

        def __gt__(self, other):
            return self._looked(other, int.__gt__)

        def __ge__(self, other):
            return self._looked(other, int.__ge__)

    counting = Request(whole.source, kept=tuple(Kept(one.text, Place(one.start), one.end) for one in whole.kept))
    size = 7 * 10  # "a 1000 " ten times
    pieces = [counting.of_piece(whole.source[at : at + size], at, False) for at in range(0, len(whole.source), size)]
    assert [one.text for piece in pieces for one in piece.kept] == [one.text for one in whole.kept]
    assert n_look <= 100 * 2 * 11  # two searches by halves for each piece


def test_what_is_kept_stands_in_the_order_of_the_source_whoever_asked_for_it():
    line = "a 1 b 2"
    twice = Terms(kept=re.compile("[ab]"))(Terms(kept=re.compile(r"\d"))(Request(line)))
    assert [one.text for one in twice.kept] == ["a", "1", "b", "2"]
    assert [one.text for one in twice.of_piece("b 2", 4, False).kept] == ["b", "2"]
