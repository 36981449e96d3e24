"""What nmt-preprocess answers to bad input: the exit code, the words, and whether anything is left."""

import os
import sys

import pytest

from nmt.cli.preprocess import main
from nmt.data.corpus import Prepared

DE, EN = b"ein Hund\nzwei Hunde\n", b"a dog\ntwo dogs\n"
LONG = b"a" * 50_000


def prepared(tmp_path, monkeypatch, capsys, src, trg, *flags):
    """The exit code and what was said of a corpus of two files; None stands for a file that is not there."""
    monkeypatch.chdir(tmp_path)
    for name, content in (("v.de", DE), ("v.en", EN), ("a.de", src), ("a.en", trg)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    files = ["--train", "a.de", "a.en", "--valid", "v.de", "v.en", "--langs", "de", "en", "--out", "out"]
    code = main([*files, "--data.workers", "1", "--subwords.vocab_size", "264", *flags])
    said = capsys.readouterr()
    assert said.out == "" and "Traceback" not in said.err
    return code, said.err


@pytest.mark.parametrize(
    ("src", "trg", "flags", "words"),
    [
        (None, EN, [], "data.train: no file a.de: tried"),
        (DE, EN + b"x\n", [], "a.de has 2 lines but a.en has 3"),
        (DE + b"\n", EN, [], "a.de has 3 lines but a.en has 2"),  # though what is more is blank
        (DE + b"x", EN, [], "a.de has 3 lines but a.en has 2"),
        (b"", b"", [], "no lines in a.de and a.en"),
        (DE.decode().encode("utf-16"), EN, [], "a.de: looks like UTF-16"),
        (DE + b"f\xfcr\n", EN + b"for\n", [], "a.de:3: invalid UTF-8 at byte 2 (0xFC)"),
        (DE, EN, ["--data.out", "v.de"], "v.de: "),
        (DE, EN, ["--data.out", "v.de/out"], "v.de"),
        (DE, EN, ["--data.max_ratio", "-1"], "data.max_ratio"),
        (DE, EN, ["--data.max_ratio", ".nan"], "data.max_ratio"),
        (DE, EN, ["--data.max_ratoi", "4"], "--data.max_ratoi"),
    ],
)
def test_a_mistake_is_told_with_code_two_and_nothing_is_left(tmp_path, monkeypatch, capsys, src, trg, flags, words):
    code, said = prepared(tmp_path, monkeypatch, capsys, src, trg, *flags)
    assert code == 2 and words in said and "nmt-preprocess: error: " in said
    assert {path.name for path in tmp_path.iterdir()} <= {"a.de", "a.en", "v.de", "v.en"}


def test_a_corpus_of_which_nothing_is_left_is_an_alarm(tmp_path, monkeypatch, capsys):
    code, said = prepared(tmp_path, monkeypatch, capsys, b"\n \n", EN)
    assert code == 3 and "2: 2 dropped for empty side (a.de:1, 2)" in said and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("src", "trg", "flags", "n_kept", "words"),
    [
        (DE[:-1], EN[:-1], [], 2, "2 read"),
        (DE.replace(b"\n", b"\r\n"), EN, [], 2, "2 lines ended with a carriage return"),
        ("a\rb\x0bc\x0cd\u2028e\u2029f\u0085g\n".encode() + DE, b"a to g\n" + EN, [], 3, "3 read"),
        (b"a\x1cb\x1dc\x1ed\n" + DE, b"a to d\n" + EN, [], 2, "control characters  a.de:1"),
        (b"a\x1cb\x1dc\x1ed\n" + DE, b"a to d\n" + EN, ["--data.drop_control", "false"], 3, "3 read"),
        (b"\xef\xbb\xbf" + DE, EN, [], 2, "byte order mark"),
        (b"f\xfcr\n" + DE, b"for\n" + EN, ["--data.bad_utf8", "drop"], 2, "bad UTF-8           a.de:1"),
        (b"a\x00b\n" + DE, b"x y\n" + EN, [], 2, "control characters  a.de:1"),
        (b"\n" + DE, b"x\n" + EN, [], 2, "empty side          a.de:1"),
        (LONG + b"\n" + DE, LONG.upper() + b"\n" + EN, [], 2, "too long            a.de:1"),
        (b"ja\n" + DE, b"yes, and a good deal more than that is said\n" + EN, [], 2, "length ratio        a.de:1"),
        ("</s> <pad> <s> ▁a b@@ c￨d\n".encode() + DE, "<unk> ▁x y@@ z￨w\n".encode() + EN, [], 3, "3 read"),
        ("😀\n".encode() + DE, "🎉\n".encode() + EN, [], 3, "3 read"),
    ],
)
def test_what_is_only_odd_is_kept_or_dropped_and_counted(tmp_path, monkeypatch, capsys, src, trg, flags, n_kept, words):
    code, said = prepared(tmp_path, monkeypatch, capsys, src, trg, "--accept-alarms", *flags)
    assert code == 0 and words in said and "nmt-preprocess: error" not in said
    assert Prepared.open(tmp_path / "out").train.n_pair == n_kept


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may read and write everything")
def test_what_is_not_ours_to_read_or_to_write_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "closed").mkdir(mode=0o500)
    code, said = prepared(tmp_path, monkeypatch, capsys, DE, EN, "--data.out", "closed/out")
    assert code == 2 and "closed" in said
    (tmp_path / "a.de").chmod(0)
    assert main(["--train", "a.de", "a.en", "--valid", "v.de", "v.en", "--langs", "de", "en", "--out", "out"]) == 2
    assert "a.de: cannot be read (Permission denied)" in capsys.readouterr().err
