"""Lookup of the names in a recipe.

Beside the recipe, then in the current folder. A recipe in a run or in prepared data was written by a command that was
given somewhere else, mostly two folders above it (prepared/NAME, runs/NAME), so it is looked for there, too. What the
command line names is looked for in the current folder first. What is nowhere is made in the current folder.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmt.files import parse_json

MANIFEST = "manifest.json"  # in a folder of prepared data
RUN_DATA = "data.json"  # in a run: digests of the data and subwords that it was trained with
DATA_AT = "folder"  # key of RUN_DATA: where that data was
_ABOVE = 2
NAMES_A_CORPUS = ("src", "trg", "file", "dataset")
_FOUND = (*NAMES_A_CORPUS, "translated_by", "scores")  # what is looked for in a mapping of a corpus


def is_prepared(folder: Path) -> bool:
    """Return whether the folder has prepared data in it."""
    return (folder / MANIFEST).is_file()


def is_of_run(folder: Path) -> bool:
    """Return whether a run was begun in the folder: others have a data.json, too."""
    return (folder / RUN_DATA).is_file() and ((folder / "subwords.json").is_file() or "subwords" in told_of_run(folder))


def told_of_run(folder: Path) -> dict[str, Any]:
    """Return what `RUN_DATA` of a run says; nothing where that cannot be read."""
    try:
        told = parse_json((folder / RUN_DATA).read_bytes())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def is_made(folder: Path) -> bool:
    """Return whether nmt made the folder: prepared data, a run, or a copy of the files that translation needs."""
    return is_prepared(folder) or is_of_run(folder) or (folder / "subwords.json").is_file()


@dataclass(frozen=True)
class Origin:
    """Origin of a recipe: its file, None without one, and the options that the command line gave.

    Recipes that say the same are equal, wherever they come from.
    """

    file: Path | None = field(default=None, compare=False)
    given: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def prepared(self) -> Path | None:
        """The folder of prepared data that the recipe lies in."""
        folder = self.file.parent if self.file else None
        return folder if folder and is_prepared(folder) and (folder / "subwords.json").is_file() else None

    @property
    def run(self) -> Path | None:
        """The run folder that the recipe lies in."""
        return self.file.parent if self.file and is_of_run(self.file.parent) else None

    def folders(self, option: str) -> list[Path]:
        """The folders in which what an option names is looked for, in this order."""
        here, beside = Path(), [self.file.parent] if self.file else []
        for above in beside[0].resolve().parents[:_ABOVE] if self.prepared or self.run else ():
            beside.append(here if above == Path.cwd() else above)
            if beside[-1] == here:  # what lies above the current folder belongs to other work
                break
        # The command line gave the option, or a file in one of the mappings that it holds.
        inside = (name for name in self.given if name.startswith(f"{option}."))
        is_given = option in self.given or any(name.rpartition(".")[2] in _FOUND for name in inside)
        found: dict[Path, Path] = {}
        for folder in [here, *beside] if is_given else [*beside, here]:
            found.setdefault(folder.absolute(), folder)
        return list(found.values())

    def places(self, option: str, name: str) -> list[Path]:
        """The paths that `find` tries."""
        return list(dict.fromkeys(folder / name for folder in self.folders(option)))

    def find(self, option: str, name: str, is_there: Callable[[Path], bool]) -> Path:
        """The first place of a name where what it names is; where it is nowhere, its place in the current folder."""
        return next((place for place in self.places(option, name) if is_there(place)), Path(name))

    def tried(self, option: str, name: str) -> str:
        """The same for a message."""
        return f"tried {' and '.join(str(place.absolute()) for place in self.places(option, name))}"

    def data_of_run(self) -> Path | None:
        """Return where the data of the run was that the recipe lies in, if it is still there."""
        place = told_of_run(self.run).get(DATA_AT) if self.run else None
        return Path(place) if isinstance(place, str) and is_prepared(Path(place)) else None
