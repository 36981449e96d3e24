"""White space and invisible characters: all dresses of a line are one line, and its ends come back."""

import pytest

from nmt.data.text import unified, with_ends_of

LINE = "the 3rd of May 1999"
DRESSES = {
    "spaces around": f"   {LINE}   ",
    "no-break space before": f"\u00a0{LINE}",
    "ideographic space before": f"\u3000{LINE}",
    "tab before": f"\t{LINE}",
    "double spaces": LINE.replace(" ", "  "),
    "no-break spaces": LINE.replace(" ", "\u00a0"),
    "soft hyphen": LINE.replace("May", "M\u00aday"),
    "zero-width space": LINE.replace(" ", " \u200b", 1),
    "zero-width space at an end": f"{LINE}\u200b",
    "byte order mark": f"\ufeff{LINE}",
    "marks of direction": f"\u200e{LINE}\u200f",
    "an embedding": f"\u202b{LINE}\u202c",
    "word joiners": LINE.replace("r", "\u2060r"),
    "joiners": LINE.replace("a", "\u200ca\u200d"),
}


@pytest.mark.parametrize("dress", DRESSES)
def test_all_dresses_of_a_line_are_one_line(dress):
    assert unified(DRESSES[dress]) == LINE


@pytest.mark.parametrize("text", ["می‌خواهم", "क्‍ष", "क्‌ष", "ശ്രീ", "ന്‍", "ක්‍ය", "👩‍👩‍👧", "🏳️‍🌈", "❤️‍🔥", "व्‍यक्‍ति"])
def test_joiners_stay_where_the_script_uses_them(text):
    assert unified(text) == unified(f"a {text} b")[2:-2] == text


def test_what_is_unified_stays_as_it_is():
    for text in [*DRESSES.values(), "", " ", "\u200b", "a\u200c\u200db", "می\u200c\u200c خ"]:
        assert unified(unified(text)) == unified(text)


@pytest.mark.parametrize(
    ("source", "wanted"),
    [("  a ", "  x "), ("\u3000a b", "\u3000x"), ("a\n", "x"), ("a", "x"), ("\ufeff a", "x"), (" ", "x"), ("", "x")],
)
def test_white_space_at_the_ends_comes_back(source, wanted):
    assert with_ends_of(source, "x") == wanted
