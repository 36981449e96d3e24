"""Optional packages: requirements equal those of pyproject.toml, and errors show the pip command."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nmt import extras
from nmt.errors import MachineError
from nmt.extras import EXTRAS, require, version, version_and_commit

ROOT = Path(__file__).parents[1]


def test_pip_requirements_equal_those_of_pyproject():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {extra: list(packages.values()) for extra, packages in EXTRAS.items()} == {
        extra: packages for extra, packages in declared.items() if extra not in ("bench", "test")
    }


def test_no_text_recommends_the_package_index_for_nmt():
    """There the name belongs to another project."""
    paths = {path for folder in ("docs", "nmt", "tools") for path in (ROOT / folder).rglob("*.*")}
    texts = {path: path.read_text(encoding="utf-8") for path in paths if path.suffix in (".md", ".py", ".sh")}
    assert [path for path, text in texts.items() if re.search(r"pip install ['\"]?nmt\b", text)] == []


@pytest.mark.parametrize("gone", ["google.protobuf", "sentencepiece"])
def test_package_that_cannot_be_imported_counts_as_missing(monkeypatch, gone):
    monkeypatch.setitem(EXTRAS, "some", {"json.decoder": "json>=1"})
    monkeypatch.setitem(EXTRAS, "none", {"nowhere.at.all": "nowhere>=1"})
    require("some", "an option")
    with pytest.raises(MachineError, match=r": pip install 'nowhere>=1', or do without\.$"):
        require("none", "an option", ", or do without")
    monkeypatch.setitem(sys.modules, gone, None)
    with pytest.raises(MachineError, match=r"^an option: .*: pip install 'sentencepiece>=\S+' 'protobuf>=\S+'\.$"):
        require("sentencepiece", "an option")


def test_version_names_the_commit_of_a_clone_and_marks_changed_code(tmp_path, monkeypatch):
    if not shutil.which("git"):
        pytest.skip("no git")
    (tmp_path / "nmt").mkdir()
    code = tmp_path / "nmt" / "a.py"
    assert version_of(tmp_path) == version()  # not a clone

    def git(*args):
        user = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(["git", "-C", tmp_path, *user, *args], check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    assert version_of(tmp_path) == version()  # no commit yet
    code.write_text("1\n", encoding="utf-8")
    git("add", ".")
    git("commit", "-qm", "a")
    clean = f"{version()}+g{git('rev-parse', 'HEAD')[:12]}"
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # as in a hook of another repository
    index = tmp_path / ".git" / "index"
    os.utime(code, (1, 1))  # with which git status, or git describe, would write the index anew
    before = index.stat()
    assert version_of(tmp_path) == clean
    assert (index.stat().st_ino, index.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)  # not locked
    code.write_text("2 \n", encoding="utf-8")
    assert version_of(tmp_path) == f"{clean}.dirty"
    monkeypatch.setattr(extras, "_SECONDS", 0.0)
    assert version_of(tmp_path) == version()  # git took too long
    monkeypatch.setenv("PATH", "")
    assert version_of(tmp_path) == version()


def version_of(clone):
    return version_and_commit.__wrapped__(clone)
