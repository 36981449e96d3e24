"""Files that are none, that change while they are read, that others compressed, and names that nobody expects."""

import bz2
import io
import os
import signal
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import pyarrow as pa
import pytest

from nmt.cli.preprocess import main
from nmt.data import prepare as preparing
from nmt.data.prepare import prepare
from nmt.errors import DataError
from nmt.recipe.data_options import DataConfig, SubwordsConfig, TrainingCorpus, ValidationSet
from nmt.recipe.options import Recipe

KEYS = {"src_column": "de", "trg_column": "en"}
DE, EN = b"ein Hund\nzwei Hunde\n", b"a dog\ntwo dogs\n"


@pytest.fixture
def at(tmp_path, monkeypatch):
    """A folder with a.de and a.en, and at.prepare(train, **data), which returns what was said."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.de").write_bytes(DE)
    (tmp_path / "a.en").write_bytes(EN)

    def run(train=None, *, valid=None, **data):
        both = {"src": "a.de", "trg": "a.en"}
        config = DataConfig(
            train=[TrainingCorpus(**(train or both))],
            valid=[ValidationSet(**(valid or both))],
            alarms="warn",
            workers=1,
            **data,
        )
        said = []
        recipe = Recipe(name="test", data=config, subwords=SubwordsConfig(vocab_size=264))
        prepare(recipe, tmp_path / "out", talk=said.append)
        return said

    def refused(pattern, train=None, **more):
        with pytest.raises(DataError, match=pattern) as error:
            run(train, **more)
        assert not list(tmp_path.glob(".*")) and not (tmp_path / "out").exists()
        return str(error.value)

    return SimpleNamespace(prepare=run, refused=refused, folder=tmp_path)


def zipped(content):
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr("a", content)
    return file.getvalue()


@pytest.mark.parametrize(("pack", "kind"), [(bz2.compress, "bzip2"), (zipped, "zip")])
@pytest.mark.parametrize("name", ["b.txt", "b.tsv"])
def test_what_others_compressed_is_refused_by_its_kind(at, pack, kind, name):
    (at.folder / name).write_bytes(pack(DE))
    columns = {"file": name, "src_column": 1, "trg_column": 2} if name == "b.tsv" else {"src": name, "trg": "a.en"}
    at.refused(rf"{name}: compressed by {kind}, which is not read", columns)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["pipe.de", "pipe.parquet", "pipe.arrow", "pipe.jsonl"])
def test_a_pipe_is_refused_and_not_waited_for(at, name):
    os.mkfifo(name)
    both = {"src": name, "trg": "a.en"} if name == "pipe.de" else {"file": name, **KEYS}

    def too_long(*_):
        raise AssertionError("it is waited for")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(5)
    try:
        for where in ({"train": both}, {"valid": both}):
            at.refused(rf"{name}: a pipe or device", **where)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("filters", [{}, {"drop_duplicates": True}, {"max_ratio_spread": 6}])
@pytest.mark.parametrize(
    "change", [lambda old: old + old, lambda old: old[:9], lambda old: old.replace(b"i", b"I")], ids=["+", "-", "other"]
)
@pytest.mark.parametrize("sides", [("a.de",), ("a.de", "a.en")])
def test_files_that_change_between_two_readings_are_refused(at, monkeypatch, filters, change, sides):
    def survey(*args):
        found = real(*args)
        for name in sides:
            (at.folder / name).write_bytes(change((at.folder / name).read_bytes()))
        return found

    (at.folder / "v.de").write_bytes(DE)
    (at.folder / "v.en").write_bytes(EN)
    real = preparing.survey
    monkeypatch.setattr(preparing, "survey", survey)
    at.refused("changed while (it was|they were) read", valid={"src": "v.de", "trg": "v.en"}, **filters)


CUT = """
import os, sys
from pathlib import Path
from nmt.data.formats import Reading
from nmt.data.forms import read_rows
from nmt.errors import DataError
path = Path(sys.argv[1])
rows = read_rows(path, ("de", "en"), Reading("refuse", "refuse", 2000))
next(rows)
os.truncate(path, path.stat().st_size // 3)
try:
    list(rows)
except DataError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a file that is open cannot be cut there")
@pytest.mark.parametrize("write", [pa.ipc.new_file, pa.ipc.new_stream])
def test_a_table_that_is_cut_while_it_is_read_is_refused(tmp_path, write):
    path = tmp_path / "a.arrow"
    rows = pa.table(
        {"de": [f"ein Hund {n} {'x' * 500}" for n in range(6000)], "en": [f"a dog {n}" for n in range(6000)]}
    )
    with write(str(path), rows.schema) as writer:
        writer.write_table(rows, max_chunksize=1000)
    done = subprocess.run([sys.executable, "-c", CUT, str(path)], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().startswith(f"{path}: neither Parquet nor Arrow, or damaged (")


@pytest.mark.parametrize("name", ["line\nfeed.de", "c: colon, comma.de", "a*.de", "[ab].de", " 'quoted\" #.de"])
def test_a_name_is_a_name_whatever_is_in_it(at, name):
    (at.folder / name).write_bytes(DE)
    said = at.prepare({"src": name, "trg": "a.en"})
    assert any("2 read, 0 dropped, 2 kept" in line for line in said)


def test_a_message_about_a_name_is_one_line(at):
    assert "\n" not in at.refused("no file line", {"src": "line\nfeed.none", "trg": "a.en"})


@pytest.mark.skipif(sys.platform != "linux", reason="names are text elsewhere")
@pytest.mark.parametrize(
    "more", [[], ["--data.train.src", "f\udcff.de", "--data.train.trg", "a.en"]], ids=["pattern", "name"]
)
def test_a_name_that_is_not_utf8_is_refused(at, more, capsys):
    for name, content in ((b"f\xff.de", DE), (b"f\xff.en", EN)):
        with open(name, "wb") as file:
            file.write(content)
    names = ["--train", "f*.de", "f*.en", "--valid", "a.de", "a.en", "--langs", "de", "en", "--out", "out"]
    assert main([*names, *more]) == 2
    said = capsys.readouterr().err
    assert r"data.train: 'f\udcff.de': a name that is not UTF-8" in said and "Traceback" not in said


def test_a_file_that_is_both_sides_is_told_of(at):
    said = at.prepare(valid={"src": "a.de", "trg": "a.de"})
    assert "WARNING: valid: a.de is source and target: nothing is translated there" in said
    assert not any("WARNING: train" in line for line in said)
