"""Durable writes, and strict JSON."""

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from nmt.files import parse_json, sync_folder, with_shipped, write_durably
from nmt.recipe.reader import read_recipe
from tests.disk import full_disk

ROOT = Path(__file__).parents[1]


def fail_with(number):
    return Mock(side_effect=OSError(number, os.strerror(number)))


def test_sync_ignores_missing_support_but_not_io_errors(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", fail_with(errno.EINVAL))
    sync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", fail_with(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failed_write_leaves_only_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    write_durably(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail_with(errno.ENOSPC))
        with pytest.raises(OSError, match="No space left"):
            write_durably(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    write_durably(path, b"new")
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("n_byte", [1, 100_000])  # below and above the size of a buffer
def test_full_disk_error_names_the_file(tmp_path, n_byte):
    path = tmp_path / "file"
    with full_disk(), pytest.raises(OSError, match="large") as caught:
        write_durably(path, b"x" * n_byte)
    assert caught.value.filename == str(path) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", [
    '{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', '{"a": 1, "a": 1}', "[" * 100_000, "{", "", "\ud800",
])  # fmt: skip
def test_only_strict_json_is_parsed(text):
    with pytest.raises(ValueError):
        parse_json(text.encode("utf-8", "surrogatepass"))
    assert parse_json('{"a": [1, 2.5, "é", null]}'.encode()) == {"a": [1, 2.5, "é", None]}


def test_shipped_pages_and_recipes_are_found_from_any_folder(tmp_path, monkeypatch):
    message = "docs/faq.md: no such file (docs/data.md); see recipes/README.md, or mine/docs/data.md, docs/none.md."
    monkeypatch.chdir(ROOT)
    assert with_shipped(message) == message
    monkeypatch.chdir(tmp_path)
    expected = message.replace("(docs", f"({ROOT}/docs").replace("see ", f"see {ROOT}/")
    assert with_shipped(message) == expected
    assert read_recipe("recipes/multi30k.de-en.yaml").name == "multi30k.de-en"
