"""Lookup of the files and folders that a recipe names.

A name is looked up beside the recipe, then in the current folder; a name from the command line in the reverse order.
For a recipe in a run or in prepared data the two folders above are searched, too, since the command that wrote it
mostly ran there (prepared/NAME, runs/NAME). A name without a match means a path in the current folder.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmt.files import parse_json

MANIFEST = "manifest.json"  # in a folder of prepared data
RUN_DATA = "data.json"  # in a run: digests of the data and subwords that it was trained with
SUBWORDS = "subwords.json"  # in both
DATA_AT = "folder"  # key of RUN_DATA: the folder of that data
_N_PARENT = 2  # folders above a run or prepared data that are searched
NAMES_A_CORPUS = ("src", "trg", "file", "dataset")
_PATH_OPTIONS = (*NAMES_A_CORPUS, "translated_by", "scores")  # options of a corpus whose values are looked up


def is_prepared(folder: Path) -> bool:
    """Return whether the folder holds prepared data."""
    return (folder / MANIFEST).is_file()


def is_of_run(folder: Path) -> bool:
    """Return whether a run was begun in the folder. A data.json alone is no proof: other programs write one, too."""
    return (folder / RUN_DATA).is_file() and ((folder / SUBWORDS).is_file() or "subwords" in read_run_data(folder))


def has_runs(folder: Path) -> bool:
    """Return whether a run was begun in the folder, or one for each seed."""
    return is_of_run(folder) or any(map(is_of_run, folder.glob("seed-*")))


def read_run_data(folder: Path) -> dict[str, Any]:
    """Return the content of `RUN_DATA` of a run; an empty dict if it cannot be read."""
    try:
        content = parse_json((folder / RUN_DATA).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@dataclass(frozen=True)
class Origin:
    """Origin of a recipe, ignored if recipes are compared: its file, or None, and the options on the command line."""

    file: Path | None = field(default=None, compare=False)
    given: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def prepared(self) -> Path | None:
        """Folder of prepared data that holds the recipe, or None."""
        folder = self.file.parent if self.file else None
        return folder if folder and is_prepared(folder) and (folder / SUBWORDS).is_file() else None

    @property
    def run(self) -> Path | None:
        """Run folder that holds the recipe, or None."""
        return self.file.parent if self.file and is_of_run(self.file.parent) else None

    def folders(self, option: str) -> list[Path]:
        """Return the folders to search for the value of an option, in this order."""
        current, candidates = Path(), [self.file.parent] if self.file else []
        for parent in candidates[0].resolve().parents[:_N_PARENT] if self.prepared or self.run else ():
            if parent == Path.cwd():  # folders above it belong to other work
                break
            candidates.append(parent)
        # The command line gave the option, or a file in one of the mappings that it holds.
        inner = (name for name in self.given if name.startswith(f"{option}."))
        is_given = option in self.given or any(name.rpartition(".")[2] in _PATH_OPTIONS for name in inner)
        folders: dict[Path, Path] = {}
        for folder in [current, *candidates] if is_given else [*candidates, current]:
            folders.setdefault(folder.absolute(), folder)
        return list(folders.values())

    def places(self, option: str, name: str) -> list[Path]:
        """Return the paths that `find` tries, in this order."""
        return list(dict.fromkeys(folder / name for folder in self.folders(option)))

    def find(self, option: str, name: str, exists: Callable[[Path], bool]) -> Path:
        """Return the first path for a name that exists; without any, the path in the current folder."""
        return next((path for path in self.places(option, name) if exists(path)), Path(name))

    def tried(self, option: str, name: str) -> str:
        """Return the paths that `find` tries, in words for an error message."""
        return f"tried {' and '.join(str(path.absolute()) for path in self.places(option, name))}"

    def data_of_run(self) -> Path | None:
        """Return the data folder of the run that holds the recipe, if that data still exists."""
        folder = read_run_data(self.run).get(DATA_AT) if self.run else None
        return Path(folder) if isinstance(folder, str) and is_prepared(Path(folder)) else None
