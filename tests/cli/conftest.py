"""What the tests of nmt-translate share: a run, and the command on it."""

import io
import sys

import pytest
from made_run import OPTIONS, SOURCE, make_run

from nmt.cli.translate import main


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory) -> str:
    """Of the options that the module names as MADE_OF, if it does."""
    return str(make_run(tmp_path_factory.mktemp("runs") / "tiny", getattr(request.module, "MADE_OF", OPTIONS)).folder)


@pytest.fixture
def translate(folder, monkeypatch, capsysbinary):
    def call(*flags: object, source: bytes = SOURCE, code: int = 0, run: str = folder) -> tuple[list[str], str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(source), encoding="ascii"))
        found = main([run, *map(str, flags)])
        out, err = capsysbinary.readouterr()
        assert found == code, err.decode()
        assert not out or out.endswith(b"\n")
        return out.decode("utf-8").split("\n")[:-1], err.decode("utf-8")

    return call
