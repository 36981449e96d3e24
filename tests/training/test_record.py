"""The log of a run that was killed, resumed and unheard has every line once."""

import errno
import json
import os

import pytest

from nmt.training import log as record
from nmt.training.log import Record


@pytest.fixture
def log(tmp_path):
    made = Record(tmp_path / "log.jsonl", n_update=30)
    yield made
    made.close()


def lines(log):
    return [json.loads(line) for line in log.path.read_bytes().split(b"\n") if line]


def test_what_the_checkpoint_does_not_know_of_is_taken_back(log):
    for kind, update in [("start", 0), ("train", 10), ("valid", 10), ("train", 20), ("valid", 20), ("train", 25)]:
        log.write(kind, update)
    log.write("final", 20)
    with log.path.open("ab") as file:
        file.write(b'[]\n{"kind": 3}\n{"kind": "tra')
    log.go_on(20, [10])
    assert [(line["kind"], line["update"]) for line in lines(log)] == [
        ("start", 0), ("train", 10), ("valid", 10), ("train", 20),
    ]  # fmt: skip
    log.write("valid", 20)
    assert lines(log)[-1] == {"kind": "valid", "update": 20}


def test_taking_back_replaces_the_log_in_one_step_and_only_if_it_must(log, monkeypatch):
    def fail(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    log.write("train", 10)
    log.write("train", 20)
    before = log.path.read_bytes()
    monkeypatch.setattr(os, "replace", fail)
    log.go_on(20, [])
    with pytest.raises(OSError, match="No space left"):
        log.go_on(10, [])
    assert log.path.read_bytes() == before


def test_a_new_run_begins_a_new_log(log):
    log.write("train", 10)
    log.begin()
    assert lines(log) == []


class Gone:
    """A terminal that is not there any more."""

    encoding = "utf-8"

    def write(self, _text):
        raise OSError(errno.EIO, "Input/output error")

    def flush(self):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_run_goes_on_when_nobody_can_hear_it(tmp_path, monkeypatch):
    monkeypatch.setattr(record.sys, "stderr", Gone())
    made = Record(tmp_path / "log.jsonl", n_update=3)
    made.say("hello")
    made.progress(1, loss="3")
    made.bar.refresh()
    made.close()


def test_the_log_of_another_run_that_took_the_place_is_not_written_to(log):
    log.write("train", 1)
    away = log.path.rename(log.path.with_name("away.jsonl"))
    log.path.touch()
    log.write("train", 2)
    assert lines(log) == [] and away.read_bytes().count(b"\n") == 2
