"""The files of nmt-translate: which may be which, where they end up, and what is said of an input that is none."""

import os
import stat
import sys

import pytest
from made_run import SOURCE

from nmt.cli.translate import main


@pytest.fixture
def files(tmp_path):
    """An input, and references of as many lines."""
    (tmp_path / "in").write_bytes(SOURCE)
    (tmp_path / "ref").write_bytes(SOURCE)
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--output", "x", "--scores", "x", "--ref", "ref"], "--scores and --output"),
        (["--output", "x.html", "--attention", "x.html"], "--attention and --output"),
        (["--alignments", "x", "--scores", "./x", "--ref", "ref"], "--alignments and --scores"),
        (["--output", "x", "--alignments", "link"], "--alignments and --output"),
        (["--output", "in"], "--output and --input"),
        (["--ref", "ref", "--scores", "ref"], "--scores and --ref"),
    ],
)
def test_a_file_is_not_written_twice_nor_written_and_read(translate, files, monkeypatch, flags, named):
    monkeypatch.chdir(files)
    (files / "link").symlink_to("x")
    _, err = translate("--input", "in", "--overwrite", *flags, code=2)
    assert f"{named} are the same file. Name two." in err
    assert (files / "in").read_bytes() == (files / "ref").read_bytes() == SOURCE
    assert sorted(os.listdir(files)) == ["in", "link", "ref"]


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_a_device_or_a_pipe_is_no_file_that_may_be_replaced(translate, files, overwrite):
    os.mkfifo(files / "pipe")
    (files / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        _, err = translate("--input", files / "in", "--output", files / name, *overwrite, code=2)
        assert "is no file, but a device or a pipe. Leave --output out for stdout" in err
        _, err = translate("--ref", files / "ref", "--scores", files / name, *overwrite, code=2)
        assert "is no file, but a device or a pipe. Name a file." in err
    assert stat.S_ISFIFO(os.stat(files / "pipe").st_mode) and (files / "link").is_symlink()


def test_what_a_link_leads_to_is_replaced_and_the_link_stays(translate, files):
    (files / "there").mkdir()
    (files / "there" / "old").write_bytes(b"old\n")
    for link, target in (("out", "there/old"), ("words", "there/new")):
        (files / link).symlink_to(target)
    assert "exists already" in translate("--input", files / "in", "--output", files / "out", code=2)[1]
    flags = ("--output", files / "out", "--alignments", files / "words", "--overwrite")
    translate("--input", files / "in", *flags)
    wanted, _ = translate()
    assert (files / "there" / "old").read_bytes().decode() == "".join(line + "\n" for line in wanted)
    assert (files / "there" / "new").read_bytes().count(b"\n") == 6
    assert (files / "out").is_symlink() and (files / "words").is_symlink()
    assert sorted(os.listdir(files / "there")) == ["new", "old"]


def test_odd_ends_of_lines_and_a_mark_at_the_start_are_told_once(translate, files):
    (files / "odd").write_bytes(b"\xef\xbb\xbfthe ship\r\n\r\nin May\r\n")
    for flags in ("--decode.window", 1), ("--output", files / "out"):
        _, err = translate("--input", files / "odd", *flags)
        assert err.count("carriage return") == 1
        assert f"note: 3 lines of {files / 'odd'} ended with a carriage return, which was removed" in err
        assert f"note: {files / 'odd'} began with a byte order mark, which was removed" in err
    assert "note: 3 lines of <stdin>" in translate(source=b"a\r\nb\r\nc\r\n")[1]
    wanted, _ = translate(source=b"the ship\nin May\n")
    lines, err = translate(source="\ufeffthe ship\n\ufeffin May\n".encode())
    assert lines == wanted and "note: 1 lines of <stdin> had a byte order mark within, which was removed" in err
    assert "carriage" not in translate()[1] and "mark" not in translate()[1]


def test_lines_that_an_input_has_not_are_told_before_the_work(translate, files):
    out, err = translate("--input", files / "in", "--attention", files / "a.html", "--lines", "1,99", code=2)
    assert not out and f"--lines 99: nothing to draw there: {files / 'in'} has 6 lines" in err


@pytest.mark.parametrize(("stream", "advice"), [("stdin", "--input"), ("stdout", "--output")])
def test_a_stream_that_is_closed_is_named(folder, monkeypatch, capsys, stream, advice):
    monkeypatch.setattr(sys, stream, None)
    assert main([folder]) == 2
    err = capsys.readouterr().err
    assert f"{stream} is closed" in err and f"with {advice}." in err


def test_closed_streams_are_not_missed_where_files_are_named(folder, files, translate, monkeypatch):
    wanted, _ = translate()
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(sys, "stdout", None)
    assert main([folder, "--input", str(files / "in"), "--output", str(files / "out")]) == 0
    assert (files / "out").read_bytes().decode() == "".join(line + "\n" for line in wanted)
