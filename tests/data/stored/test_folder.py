"""Locks of folders that are being made, and what is removed of those that were not finished."""

import errno

import pytest

from nmt.data import manifest as room
from nmt.data.manifest import beside, building, remove_abandoned
from nmt.errors import DataError


def no_locks(_handle):
    raise OSError(errno.ENOLCK, "No locks available")


def test_what_is_being_made_is_not_removed_and_what_was_left_is(tmp_path):
    left = tmp_path / ".out.preparing-00000000"
    left.mkdir()
    with beside(tmp_path / "out") as made:
        remove_abandoned(tmp_path / "out")
        assert made.is_dir() and not left.exists()


def test_on_a_disk_without_locks_nothing_of_others_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "lock_file", no_locks)
    with beside(tmp_path / "out") as made:
        remove_abandoned(tmp_path / "out")
        assert made.is_dir()


def test_on_a_disk_without_locks_a_folder_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "lock_file", no_locks)
    with building(tmp_path / "out", replace=None) as made:
        (made / "file").write_bytes(b"whole")
    assert (tmp_path / "out" / "file").read_bytes() == b"whole"


def test_of_two_that_make_a_folder_the_second_is_refused(tmp_path):
    with (
        building(tmp_path / "out", replace=None),
        pytest.raises(DataError, match="another nmt-preprocess is making it"),
        building(tmp_path / "out", replace=None),
    ):
        pass
