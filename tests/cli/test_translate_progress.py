import sys

from nmt.cli import translate_progress
from nmt.cli.translate_progress import Bar


def test_what_is_done_soon_shows_no_bar_even_if_something_is_said(capsys):
    with Bar("translating", 10, 0, shown=True) as bar:
        Bar.write("a warning", file=sys.stderr)
        bar.update(10)
    assert capsys.readouterr().err == "a warning\n"


def test_lines_that_were_there_before_are_counted_and_are_no_speed(capsys, monkeypatch):
    monkeypatch.setattr(translate_progress, "_DELAY", 1e-9)
    with Bar("translating", 10, 6, shown=True) as bar:
        bar.unpause()
        bar.update(2)
        assert bar.format_dict["n"] == 8 and bar.format_dict["initial"] == 6
    assert "8/10" in capsys.readouterr().err
