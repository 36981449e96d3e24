"""Where nmt-preprocess is broken on purpose: a tiny corpus cut into many blocks, and what must hold after a fault.

`preparing_faults.py` has the faults; how commands are forked, killed and watched is in `fault_process.py`.
"""

import contextlib
import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from fault_corpus import RECIPE, write_corpus
from fault_process import Child, Ended, last_words, preload, processes_of, wrong_end

from nmt.cli import preprocess
from nmt.data.blockwise import blocks, keep
from nmt.errors import DataError
from nmt.files import sha256_of

N_PAIR, N_BLOCK = 900, 100
FLAGS = (
    "--data.out",
    "disk/out",
    "--data.workers",
    "2",
    "--data.drop_duplicates",
    "true",
    "--data.max_ratio_spread",
    "9",
)
OLD = ("--subwords.vocab_size", "300")  # what the data was made with that is there before
_PATIENCE = 30.0


@dataclass
class Lab:
    """A folder with a corpus, and the data that is prepared from it when nothing goes wrong.

    whole: SHA-256 of each file of that; old: of what was prepared before with other options. seconds: it takes.
    """

    folder: Path
    whole: dict[str, str] = field(default_factory=dict)
    old: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def out(self) -> Path:
        """The data folder that faults happen to."""
        return self.folder / "disk" / "out"

    def build(self) -> None:
        """Make the corpus, and learn what is right."""
        for name in ("corpus", "disk", "talk", "kept"):
            (self.folder / name).mkdir()
        (self.folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
        self.write_corpus()
        self._must(self.prepare(*OLD, tells_modules=True))
        preload((self.folder / "talk" / "modules").read_text(encoding="utf-8").split())
        self.old = self._there()
        shutil.copytree(self.out, self.folder / "kept" / "old")
        self.clear()
        begin = time.monotonic()
        self._must(self.prepare())
        self.seconds = time.monotonic() - begin
        self.whole = self._there()
        if self.whole == self.old:
            raise DataError("the options that differ make no difference")

    def write_corpus(self) -> None:
        """Write the text, or write it again as it was."""
        write_corpus(self.folder / "corpus", N_PAIR)

    def _must(self, child: Child) -> None:
        ended = child.go().wait()
        if ended.code:
            raise DataError(f"what nothing should go wrong in went wrong: {ended.said}")

    # -- commands --------------------------------------------------------------------------------------------------

    def prepare(self, *flags: str, n: int = 1, user: int = 0, talk: str = "talk", tells_modules: bool = False) -> Child:
        """nmt-preprocess on the lab's recipe, not begun yet. n: 2 for helpers, 1 for none."""

        def body() -> int:
            os.chdir(self.folder)
            if n > 1:
                vars(keep).update(_WORTHWHILE=N_BLOCK)  # so few pairs are not, else
            vars(blocks).update(N_PAIR=N_BLOCK)
            if user:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            code = preprocess.main(["recipe.yaml", *FLAGS, *flags])
            if tells_modules:
                Path("talk", "modules").write_text("\n".join(sorted(sys.modules)), encoding="utf-8")
            return code

        return Child(body, self.folder / "talk" / talk)

    def clear(self, *, old: bool = False) -> tuple[str, ...]:
        """Leave nothing there, or the data of before, and the corpus as it was. Returns the flags to prepare with."""
        shutil.rmtree(self.folder / "disk", ignore_errors=True)
        (self.folder / "disk").mkdir()
        if old:
            shutil.copytree(self.folder / "kept" / "old", self.out)
        return ("--overwrite",) if old else ()

    def wait_for(self, child: Child, pattern: str) -> list[Path]:
        """What appears beside the data folder under a name like this; [] if the command ends before."""
        until = time.monotonic() + _PATIENCE
        while child.runs() and time.monotonic() < until:
            if found := list(self.out.parent.glob(pattern)):
                return found
        return []

    def helpers(self, child: Child) -> list[int]:
        """The processes that a command has started, as soon as there is one."""
        until = time.monotonic() + _PATIENCE
        while child.runs() and time.monotonic() < until:
            # Not before it is a program of its own: until then its parent waits for it.
            if found := [pid for pid in processes_of(child.pid) if pid != child.pid and _is_helper(pid)]:
                return found
            time.sleep(0.001)
        return []

    # -- what must hold --------------------------------------------------------------------------------------------

    def after_fault(self, ended: Ended, *, old: bool = False, untidy: bool = False) -> list[str]:
        """What does not hold after a fault. old: data was there before. untidy: it could not tidy up."""
        wrong, there = wrong_end(ended), self._there()
        before = self.old if old else {}
        if there not in (before, self.whole):
            what = "the old data nor the new" if old else "whole nor absent"
            wrong.append(f"P1 what is there is neither {what}: {sorted(there)}")
        if ended.code == 0 and there != self.whole:
            wrong.append("P2 exit code 0, and the data is not there")
        if ended.code not in (0, 137) and "nmt-preprocess: error:" not in ended.said and ended.code < 128:
            wrong.append(f"P3 no message: {last_words(ended.said)}")
        if ended.code != 137 and not untidy and (left := self._left()):
            wrong.append(f"P4 left behind: {left}")
        return wrong

    def after_rerun(self, *flags: str) -> list[str]:
        """Give the command again; what does not hold then."""
        return self.at_the_end(self.prepare(*flags).go().wait())

    def at_the_end(self, ended: Ended) -> list[str]:
        """What does not hold after a command that was to end well."""
        wrong = wrong_end(ended)
        if ended.code:
            return [*wrong, f"P5 it does not finish: exit code {ended.code}: {last_words(ended.said)}"]
        there = self._there()
        if differing := sorted(name for name in {*there, *self.whole} if there.get(name) != self.whole.get(name)):
            wrong.append(f"P5 other bytes than where nothing went wrong: {differing}")
        if left := self._left():
            wrong.append(f"P4 left behind: {left}")
        return wrong

    def _there(self) -> dict[str, str]:
        """SHA-256 of each file of the data folder; {} if there is none."""
        paths = self.out.iterdir() if self.out.is_dir() else ()
        return {path.name: sha256_of(path) for path in paths}

    def _left(self) -> list[str]:
        """What is beside the data folder."""
        parent = self.out.parent
        return sorted(path.name for path in parent.iterdir() if path != self.out) if parent.is_dir() else []


def _is_helper(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"block_work" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
