"""All that a command writes to stdout is there, or an error says that it is not."""

import errno
import io
import os
import sys
from contextlib import contextmanager

import pytest
from disk import full_disk
from made_run import SOURCE

from nmt.cli.begin import write_stdout
from nmt.cli.translate import main


@contextmanager
def unbuffered(path):
    """stdout as PYTHONUNBUFFERED makes it, into a file."""
    before = sys.stdout
    with io.TextIOWrapper(io.FileIO(path, "w"), encoding="utf-8", write_through=True) as sys.stdout:
        try:
            yield
        finally:
            sys.stdout = before


def test_what_did_not_fit_is_an_error_that_names_stdout(tmp_path):
    with pytest.raises(OSError, match="<stdout>"), unbuffered(tmp_path / "out"), full_disk(8):
        write_stdout("für alle\n")
    assert (tmp_path / "out").read_bytes() == "für all".encode()


def test_a_stream_that_takes_little_at_a_time_gets_everything(monkeypatch):
    class Slow(io.RawIOBase):
        taken = b""

        def writable(self):
            return True

        def write(self, data):
            self.taken += bytes(data[:7])
            return min(7, len(data))

    slow = Slow()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(slow, encoding="ascii", write_through=True))
    write_stdout("für alle, die lesen\n" * 20)
    assert slow.taken.decode("utf-8") == "für alle, die lesen\n" * 20


def test_a_stream_that_takes_text_only_gets_it_and_none_gets_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stdout", text := io.StringIO())
    write_stdout("für\n")
    assert text.getvalue() == "für\n"
    monkeypatch.setattr(sys, "stdout", None)
    write_stdout("für\n")


def test_translations_that_did_not_fit_are_no_success(folder, tmp_path, capsys):
    (tmp_path / "in").write_bytes(SOURCE)
    with unbuffered(tmp_path / "out"), full_disk(100):
        assert main([folder, "-i", str(tmp_path / "in"), "--format", "jsonl"]) == 1
    assert (tmp_path / "out").stat().st_size == 100
    assert f"<stdout>: {os.strerror(errno.EFBIG)}" in capsys.readouterr().err
