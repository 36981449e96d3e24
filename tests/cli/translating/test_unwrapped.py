"""Hard-wrapped lines become whole sentences, and phrases come from pipes."""

import argparse
import os
import random
import threading
from pathlib import Path

import pytest

from nmt.cli.translating.files import phrases_of_pipes
from nmt.cli.translating.reading import unwrapped
from nmt.data.text.lines import complaint_about


def joined(text: str) -> list[str]:
    return [line for line, _ in unwrapped((line, {}) for line in text.split("\n"))]


@pytest.mark.parametrize(
    ("wrapped", "lines"),
    [
        ("Tom hat vor\ndrei Jahren begonnen.\nEr spielt.", ["Tom hat vor drei Jahren begonnen.", "Er spielt."]),
        ("A title\n\nWe met Dr.\nSmith at\n  noon. ", ["A title", "", "We met Dr. Smith at noon."]),
        ("今日は\n晴れです。\n行く", ["今日は晴れです。", "行く"]),
        ("\n\na\n", ["", "", "a", ""]),
        ("", [""]),
    ],
)
def test_lines_are_joined_up_to_the_end_of_a_sentence_or_a_blank_line(wrapped, lines):
    assert joined(wrapped) == lines


def test_no_character_is_lost():
    draw = random.Random(3)
    for _ in range(300):
        text = "".join(draw.choices("ab. \n\n日。", k=draw.randint(0, 60)))
        assert "".join("".join(joined(text)).split()) == "".join(text.split())


def test_what_is_odd_about_a_line_is_odd_about_the_whole():
    assert list(unwrapped([("a", {}), ("was.", {"cut": "x"}), ("c", {})])) == [("a was.", {"cut": "x"}), ("c", {})]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_phrases_of_a_pipe_are_read_as_those_of_a_file(tmp_path):
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_text("x\n")
    threading.Thread(target=lambda: pipe.write_text("Hund\tdog\n"), daemon=True).start()
    args = argparse.Namespace(terms=str(pipe), avoid=str(file))
    with phrases_of_pipes(args):
        assert [Path(args.terms).read_text() for _ in range(2)] == ["Hund\tdog\n"] * 2
        assert args.avoid == str(file)
    assert not Path(args.terms).exists()


@pytest.mark.parametrize(
    ("text", "is_wrong"), [("a\rb\rc\r", True), ("a\rb\n", False), ("a\r\nb\r\n", False), ("a\r", False)]
)
def test_carriage_returns_alone_are_named(tmp_path, text, is_wrong):
    path = tmp_path / "text"
    path.write_bytes(text.encode())
    found = complaint_about(path)
    assert ("tr '\\r' '\\n'" in found) if is_wrong else found is None
