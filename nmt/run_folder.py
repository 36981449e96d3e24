"""Which folders are run folders: told without torch, so that a mistake in a name is answered at once.

What lies in one, and what can be done with it, is in `run.py`.
"""

from pathlib import Path

from nmt.errors import RunError
from nmt.files import refuse_links_out

RECIPE = "recipe.yaml"


def is_run(folder: Path) -> bool:
    """Whether a run was started in this folder."""
    return (folder / RECIPE).is_file()


def check_is_run(folder: Path) -> None:
    """Raise RunError where no run was started, NmtError for a file of it that is a link out of the folder."""
    if is_run(folder):
        refuse_links_out(folder)
        return
    if folder.is_file() and is_run(folder.parent):
        raise RunError(f"{folder} is a file: name the run folder that it is in, {folder.parent}")
    raise RunError(
        f"{folder} is not a run folder: there is no {RECIPE} in it. Name the folder that nmt-train wrote, runs/NAME."
    )
