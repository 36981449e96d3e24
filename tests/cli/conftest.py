"""Fixtures for the tests of nmt-translate: a run folder, and the command on it."""

import io
import json
import sys

import pytest
from made_run import OPTIONS, SOURCE, make_run

from nmt.cli.translate import main


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory) -> str:
    """A run folder with the options MADE_OF and the TAGS of the test module, where it defines them."""
    options, tags = getattr(request.module, "MADE_OF", OPTIONS), getattr(request.module, "TAGS", ())
    return str(make_run(tmp_path_factory.mktemp("runs") / "tiny", options, tags).folder)


@pytest.fixture
def translate(folder, monkeypatch, capsysbinary):
    def call(*flags: object, source: bytes = SOURCE, code: int = 0, run: str = folder) -> tuple[list[str], str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(source), encoding="ascii"))
        exit_code = main([run, *map(str, flags)])
        out, err = capsysbinary.readouterr()
        assert exit_code == code, err.decode()
        assert not out or out.endswith(b"\n")
        assert b"Traceback" not in err or code == 1
        return out.decode("utf-8").split("\n")[:-1], err.decode("utf-8")

    return call


@pytest.fixture
def objects(translate):
    """Parsed output of --format jsonl, one object per line."""

    def call(*flags: object, **options: object) -> list[dict]:
        return [json.loads(line) for line in translate("--format", "jsonl", *flags, **options)[0]]

    return call
