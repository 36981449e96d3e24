"""Faults of what lies on the disk: a checkpoint whose files were cut, flipped, deleted, swapped or edited.

Every damage must be seen by resuming, by nmt-train --verify and by nmt-translate; the newest whole checkpoint is used,
and that is said.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fault_kinds import FILES
from fault_lab import Lab
from fault_process import last_words
from fault_sweep import Fault

from nmt import checkpoint

Damage = Callable[[Path], None]


def faults() -> Iterator[Fault]:
    """All damages, each to the newest checkpoint of a run that was stopped."""
    for file in FILES:
        for where in ("nothing", "1 byte", "half", "all but 1 byte"):
            yield _fault(f"{file} cut to {where}", partial(_cut, file=file, where=where))
        for n in range(20):
            yield _fault(f"{file} bit {n}", partial(_flip, file=file, seed=n))
        yield _fault(f"{file} deleted", partial(_delete, file=file))
        yield _fault(f"{file} of the one before", partial(_swap, files=[file]))
        yield _fault(f"{file} a link", partial(_link, file=file))
    yield _fault("all files of the one before", partial(_swap, files=list(FILES)))
    yield _fault("all files deleted", _empty)
    for name, edit in EDITS.items():
        yield _fault(f"manifest {name}", partial(_edit, edit=edit))


def _fault(name: str, damage: Damage) -> Fault:
    return Fault("damage", f"damage {name}", partial(damaged, damage=damage))


def damaged(lab: Lab, *, damage: Damage) -> list[str]:
    """Damage the newest checkpoint of a stopped run; what is not seen, or not said, or ends otherwise."""
    newest, before = lab.stopped()
    damage(newest)
    wrong = []
    found = lab.verify()
    if found.code != 2 or f"{newest.name}\t" not in found.said or "damaged: " not in found.said:
        wrong.append(f"--verify does not see it: exit code {found.code}: {last_words(found.said)}")
    if "exit code 2" not in (answer := lab.translate("--checkpoint", newest.name)):
        wrong.append(f"nmt-translate uses it: {last_words(answer)}")
    ended = lab.train().go().wait()
    return wrong + lab.passed_over(ended, newest, before) + lab.at_the_end(ended)


def _cut(folder: Path, *, file: str, where: str) -> None:
    content = (folder / file).read_bytes()
    size = {"nothing": 0, "1 byte": 1, "half": len(content) // 2, "all but 1 byte": len(content) - 1}[where]
    (folder / file).write_bytes(content[:size])


def _flip(folder: Path, *, file: str, seed: int) -> None:
    content = bytearray((folder / file).read_bytes())
    bit = random.Random(f"{file} {seed}").randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    (folder / file).write_bytes(content)


def _delete(folder: Path, *, file: str) -> None:
    (folder / file).unlink()


def _swap(folder: Path, *, files: list[str]) -> None:
    before = sorted(path for path in folder.parent.iterdir() if path.name < folder.name)[-1]
    for file in files:
        shutil.copyfile(before / file, folder / file)


def _link(folder: Path, *, file: str) -> None:
    (folder / file).rename(folder / "elsewhere")
    (folder / file).symlink_to("elsewhere")


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _edit(folder: Path, *, edit: Callable[[str], str]) -> None:
    path = folder / checkpoint.MANIFEST
    path.write_text(edit(path.read_text(encoding="utf-8")), encoding="utf-8")


def _changed(**entries: object) -> Callable[[str], str]:
    return lambda text: json.dumps({**json.loads(text), **entries})


def _without(name: str) -> Callable[[str], str]:
    return lambda text: json.dumps(
        {**json.loads(text), "files": {k: v for k, v in json.loads(text)["files"].items() if k != name}}
    )


EDITS: dict[str, Callable[[str], str]] = {
    "is a list": lambda _: "[]",
    "lists nothing": _changed(files={}),
    "lists a path outside": _changed(files={"../model.safetensors": {"size": 1, "sha256": ""}}),
    "lists no sizes": _changed(files={"model.safetensors": {}, "state.json": {}}),
    "lists text": _changed(files={"model.safetensors": "x", "state.json": "y"}),
    "has no format": _changed(format=None),
    "has format 0": _changed(format=0),
    "has format 2": _changed(format=2),
    "leaves out the optimizer": _without(checkpoint.OPTIMIZER),
    "leaves out the average": _without(checkpoint.EMA),
    "leaves out the state": _without(checkpoint.STATE),
    "says NaN": lambda text: text.replace('"size": ', '"size": NaN, "was": ', 1),
    "says a thing twice": lambda text: text.replace('"format"', '"format": 1, "format"', 1),
    "is nested deeply": lambda _: "[" * 100_000,
    "is huge": lambda text: text + " " * (2 << 20),
}
