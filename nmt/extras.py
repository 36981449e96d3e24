"""Installed packages: the version of nmt, and the optional packages, with the error if one is missing."""

import functools
import importlib.util
import os
import re
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from nmt.errors import Unavailable

# For each extra of pyproject.toml: the modules that are imported, and the requirement of each for pip.
EXTRAS = {
    "comet": {"comet": "unbabel-comet>=2.2.7", "pkg_resources": "setuptools<81", "pyarrow": "pyarrow<26"},
    "ctranslate2": {"ctranslate2": "ctranslate2>=4.5"},
    "huggingface": {"transformers": "transformers>=5.0"},
    "langid": {"py3langid": "py3langid>=0.4"},
    "plots": {"matplotlib": "matplotlib>=3.8"},
    "sentencepiece": {"sentencepiece": "sentencepiece>=0.2", "google.protobuf": "protobuf>=4.21"},
    "tensorboard": {"tensorboard": "tensorboard>=2.16"},
    "wandb": {"wandb": "wandb>=0.18"},
}
_CLONE = Path(__file__).resolve().parents[1]
_SECONDS = 1.0  # timeout of git, which takes hundredths


def version() -> str:
    """Return the version of nmt."""
    try:
        return metadata.version("nmt-toolkit")
    except metadata.PackageNotFoundError:
        return "not installed"


@functools.cache
def version_and_commit(clone: Path = _CLONE) -> str:
    """Return the version; for a clone with its commit and a mark for changed files: 0.1.0+g1a2b3c4d5e6f.dirty."""
    if not (clone / ".git").exists():  # as after an installation by pip
        return version()
    import subprocess  # not at the top, since --help does not need it

    # `git describe --dirty` would lock the index in spite of --no-optional-locks, and leave the lock if it is killed.
    status = ("status", "--porcelain=v2", "--branch", "--untracked-files=no")
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        completed = subprocess.run(
            ("git", "-C", str(clone), "--no-optional-locks", *status),
            env=env, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return version()
    commit = re.match(r"# branch\.oid ([0-9a-f]{12})", completed.stdout)  # None if there is none yet
    mark = ".dirty" if re.search(r"^[^#]", completed.stdout, re.MULTILINE) else ""
    return f"{version()}+g{commit[1]}{mark}" if commit else version()


def require(extra: str, wanted_by: str, instead: str = "") -> None:
    """Raise Unavailable if a package of an extra is not installed. Imports nothing.

    wanted_by: an option or a file. instead: an alternative.
    """
    with suppress(ModuleNotFoundError):  # of the parent package of a module
        if all(importlib.util.find_spec(module) for module in EXTRAS[extra]):
            return
    packages = " ".join(f"'{requirement}'" for requirement in EXTRAS[extra].values())
    raise Unavailable(f"{wanted_by}: a package is needed that is not installed: pip install {packages}{instead}.")


def incomplete(error: ImportError) -> str:
    """Return the message for a missing package that nmt always needs."""
    return (
        f"nmt is installed without a package that it needs: no module {error.name}. Install it again with its "
        "dependencies: pip install . in its folder."
    )
