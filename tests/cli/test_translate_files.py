"""The files of nmt-translate: which may be which, where they end up, and what is said of an input that is none."""

import os

import pytest
from made_run import SOURCE


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
        (["--score", "ref", "--gold-alignments", "gold", "--alignments", "gold"], "--alignments and --gold-alignments"),
    ],
)
def test_a_file_is_not_written_twice_nor_written_and_read(translate, files, monkeypatch, flags, named):
    monkeypatch.chdir(files)
    (files / "gold").write_bytes(b"\n" * 6)
    (files / "link").symlink_to("x")
    _, err = translate("--input", "in", "--overwrite", *flags, code=2)
    assert f"{named} are the same file. Name two." in err
    assert (files / "in").read_bytes() == (files / "ref").read_bytes() == SOURCE
    assert sorted(os.listdir(files)) == ["gold", "in", "link", "ref"]


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


def test_pairs_are_a_format_of_what_is_written_alone(translate):
    assert "invalid choice: 'pairs'" in translate("--input-format", "pairs", code=2)[1]
