"""Hard-wrapped lines become whole sentences, and phrases come from pipes."""

import argparse
import gzip
import io
import os
import random
import threading
from pathlib import Path

import pytest

from nmt.cli.translate_input import files_of_pipes, unwrapped
from nmt.data.lines import read_lines, read_stream
from nmt.errors import DataError


def joined(text: str) -> list[str]:
    return [line for line, _ in unwrapped((line, {}) for line in text.split("\n"))]


@pytest.mark.parametrize(
    ("wrapped", "lines"),
    [
        ("Tom hat vor\ndrei Jahren begonnen.\nEr spielt.", ["Tom hat vor drei Jahren begonnen.", "Er spielt."]),
        ("A title\n\nWe met Dr.\nSmith at\n  noon. ", ["A title", "", "We met Dr. Smith at noon."]),
        ("今日は\n晴れです。\n行く", ["今日は晴れです。", "行く"]),
        ("\n\na\n", ["", "", "a", ""]),
        ("the inter-\nnational UN-\nCharter of 1939-\n1945", ["the international UN-Charter of 1939-1945"]),
        ("Vor-\nund Nachteile - \nso\u00ad\nmit", ["Vor- und Nachteile - somit"]),
        ("We need:\n- eggs\n  and milk\n* salt\n• oil", ["We need:", "- eggs and milk", "* salt", "• oil"]),
        ("Do this:\n1. read\nit\n2. go\n\nam\n3. Mai", ["Do this:", "1. read it", "2. go", "", "am", "3. Mai"]),
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
def test_a_pipe_is_read_as_a_file(tmp_path):
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_text("x\n")
    threading.Thread(target=lambda: pipe.write_text("Hund\tdog\n"), daemon=True).start()
    args = argparse.Namespace(terms=str(pipe), avoid=str(file), ref=[str(file)], **dict.fromkeys(["input", "score"]))
    with files_of_pipes(args):
        assert [Path(args.terms).read_text() for _ in range(2)] == ["Hund\tdog\n"] * 2
        assert (Path(args.terms).name, args.avoid, args.ref) == ("pipe", str(file), [str(file)])
    assert not Path(args.terms).exists()


@pytest.mark.parametrize(
    ("text", "is_wrong"),
    [
        ("a\rb\rc\r", True),
        ("a\rb", True),
        ("x" * 9_000 + "\rb", True),
        ("x" * 9_000 + "\rb\n", False),
        ("a\rb\n", False),
        ("a\r\nb\r\n", False),
        ("a\r", False),
    ],
)
def test_carriage_returns_alone_are_named(tmp_path, text, is_wrong):
    plain, packed = tmp_path / "text", tmp_path / "text.gz"
    plain.write_bytes(text.encode())
    packed.write_bytes(gzip.compress(text.encode()))
    stream = io.BufferedReader(io.BytesIO(text.encode()))
    for read in (lambda: read_lines(plain), lambda: read_lines(packed), lambda: read_stream(stream, "<stdin>")):
        if is_wrong:
            with pytest.raises(DataError, match=r"tr '\\r' '\\n'"):
                list(read())
        else:
            assert len(list(read())) == text.count("\n") or 1
