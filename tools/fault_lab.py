"""Where training is broken on purpose: a tiny run, and what must hold after a fault.

`sweep_faults.py` says which faults there are; how commands are forked, killed and watched is in `fault_process.py`.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fault_corpus import RECIPE, write_corpus
from fault_process import Child, Ended, last_words, preload, preload_commands, wrong_end

from nmt import checkpoint
from nmt.cli import preprocess, train, train_job, translate
from nmt.errors import RunError
from nmt.run import Run

UNTIMED = ("seconds", "tokens_per_second", "rss_mb")  # of a line of the log: what two equal runs may differ in


class _StopAt:
    """Stands in for the signals where a run is to stop at a place and not at a moment."""

    exit_code = 128 + signal.SIGTERM

    def __init__(self, stop_after: int, leave_after: int) -> None:
        self.n, self.stop_after, self.leave_after = 0, stop_after, leave_after

    def __call__(self) -> bool:
        self.n += 1
        if self.n == self.leave_after:
            os._exit(0)
        return 0 < self.stop_after <= self.n


@dataclass
class Lab:
    """A folder with a corpus, its prepared data, a recipe, and the run that nothing went wrong in."""

    folder: Path
    updates: int
    log: list[str] = field(default_factory=list)  # of the whole run, without times
    bytes_of: dict[str, dict[str, str]] = field(default_factory=dict)  # checkpoint or 'model' -> file -> SHA-256
    output_of: dict[str, str] = field(default_factory=dict)  # checkpoint or 'model' -> its translations
    outside: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def is_short(self) -> bool:
        """Whether it is the run of the short form."""
        return self.updates < 60

    @property
    def run(self) -> Run:
        """The run folder that faults happen to."""
        return Run(self.folder / "runs" / "here")

    def build(self) -> None:
        """Make corpus and data, and the whole run with every checkpoint kept, and learn what is right."""
        for name in ("corpus", "runs", "talk"):
            (self.folder / name).mkdir()
        recipe = RECIPE.replace("updates: 60", f"updates: {self.updates}")
        if self.is_short:
            recipe = recipe.replace("per_update: 2", "per_update: 1")
        (self.folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
        write_corpus(self.folder / "corpus", 280 if self.is_short else 560)
        preload_commands()
        self._must(self.child(lambda: preprocess.main(["recipe.yaml"])).go().wait())
        self._must(self.child(self._train_and_tell_modules).go().wait())
        preload((self.folder / "talk" / "modules").read_text(encoding="utf-8").split())
        reference = Run(self.folder / "runs" / "reference")
        epoch = checkpoint.verify(reference.checkpoint(self.updates))["epoch"]
        assert epoch >= max(1, self.updates // 30), f"{epoch} epoch ends in {self.updates} updates"
        self.bytes_of = {folder.name: digests(folder) for folder in map(reference.checkpoint, reference.updates())}
        self._must(self.train().go().wait())
        self.bytes_of["model"] = digests(self.run.model_folder)
        self.output_of["model"] = self.translate()
        self.log = self.log_lines()
        self.outside = self._outside()

    def _train_and_tell_modules(self) -> int:
        always = ["--train.out", "runs/reference", "--train.save_every", "1", "--train.keep_last", "1000"]
        code = train.main(["recipe.yaml", *always])
        Path("talk", "modules").write_text("\n".join(sorted(sys.modules)), encoding="utf-8")
        return code

    def _must(self, ended: Ended) -> None:
        if ended.code:
            raise RunError(f"the run that nothing should go wrong in went wrong: {ended.said}")

    # -- commands --------------------------------------------------------------------------------------------------

    def child(self, body: Callable[[], int], environment: dict[str, str] | None = None, talk: str = "talk") -> Child:
        """A command that works in the lab's folder."""

        def inside() -> int:
            os.chdir(self.folder)
            return body()

        return Child(inside, self.folder / "talk" / talk, environment)

    def train(
        self,
        *flags: str,
        user: int = 0,
        stop_after: int = 0,
        leave_after: int = 0,
        talk: str = "talk",
        environment: dict[str, str] | None = None,
    ) -> Child:
        """nmt-train on the lab's recipe, not begun yet; as another user, if one is named.

        stop_after: it stops as by a signal when it asks for the so-manieth time, which it does once an update and in
        validations. leave_after: it leaves then, with exit code 0 and no word.
        """

        def body() -> int:
            if stop_after or leave_after:
                vars(train_job).update(StopSignal=partial(_StopAt, stop_after, leave_after))
            if user:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            return train.main(["recipe.yaml", *flags])

        return self.child(body, environment, talk)

    def _reference_output(self, name: str) -> str:
        """What a checkpoint of the run that nothing went wrong in, or its model, answers."""
        if name not in self.output_of:
            self.output_of[name] = self.translate("--checkpoint", name, run="runs/reference")
        return self.output_of[name]

    def translate(self, *flags: str, run: str = "runs/here") -> str:
        """What nmt-translate answers to the validation sources."""
        always = [run, "-i", "corpus/valid.de", "--device", "cpu", "--threads", "1"]
        ended = self.child(lambda: translate.main([*always, *flags])).go().wait()
        return ended.said if ended.code == 0 else f"exit code {ended.code}: {ended.said}"

    def stopped(self) -> tuple[Path, Path]:
        """Put a run there that was stopped at its twelfth update. Returns its newest checkpoint and the one before."""
        kept = self.folder / "talk" / "stopped"
        self.clear()
        if kept.exists():
            shutil.copytree(kept, self.run.folder)
        else:
            self.train(stop_after=12).go().wait()
            shutil.copytree(self.run.folder, kept)
        before, newest = self.run.updates()[-2:]
        return self.run.checkpoint(newest), self.run.checkpoint(before)

    def verify(self) -> Ended:
        """nmt-train --verify."""
        return self.child(lambda: train.main(["--verify", "runs/here"])).go().wait()

    def clear(self) -> None:
        """Remove the run."""
        shutil.rmtree(self.run.folder, ignore_errors=True)

    # -- what must hold --------------------------------------------------------------------------------------------

    def log_lines(self) -> list[str]:
        """The whole lines of the log, without what depends on the clock."""
        told = (line for line in self._lines() if line["kind"] != "time")  # where the time of each process went
        return [json.dumps({k: v for k, v in line.items() if k not in UNTIMED}) for line in told]

    def _lines(self) -> Iterator[dict[str, Any]]:
        if self.run.log_file.exists():
            for line in self.run.log_file.read_bytes().split(b"\n"):
                with contextlib.suppress(ValueError):
                    yield json.loads(line)

    def last_logged(self) -> tuple[str, int]:
        """Kind and update of the last line of the log."""
        found = [(str(line["kind"]), int(line["update"])) for line in self._lines()]
        return found[-1] if found else ("", 0)

    def after_fault(self, ended: Ended, *, excused: Sequence[str] = ()) -> list[str]:
        """What does not hold after a fault. excused: checkpoints that the fault itself has damaged."""
        run, wrong = self.run, wrong_end(ended)
        names = [checkpoint.name_of(update) for update in run.updates()]
        for name in names:
            if name in excused:
                continue
            try:
                state = checkpoint.verify(run.checkpoints / name)
            except RunError as error:
                wrong.append(f"O1 a committed checkpoint is not whole: {error}")
                continue
            if digests(run.checkpoints / name) != self.bytes_of.get(name):
                wrong.append(f"O3 {name} has other bytes than in the run that nothing went wrong in")
            known = {line["update"] for line in self._lines() if line["kind"] == "valid"}
            if lost := [entry["update"] for entry in state["history"] if entry["update"] not in known]:
                wrong.append(f"O8 {name} remembers validations that are not in the log: {lost}")
        newest, acknowledged = max(run.updates(), default=0), (max(0, self.last_logged()[1] - 1) // 5) * 5
        if run.folder.exists() and newest < acknowledged and not excused:
            wrong.append(f"O2 update {acknowledged} was saved, by the log; the newest checkpoint is {newest}")
        if self._outside() != self.outside:
            wrong.append("O5 a file outside the run folder was changed")
        done = (run.model_folder / checkpoint.MANIFEST).exists()
        if ended.code == 0 and not done:
            wrong.append("O6 exit code 0, and the run is not finished")
        if names and not excused:
            state = checkpoint.verify(run.checkpoints / names[-1])
            best = checkpoint.name_of(state["best_update"] or 0)
            chosen = "model" if done else best if best in names else names[-1]
            answers = self.translate().split("\n")
            notes = [line for line in answers if "training has not ended" in line]
            if "\n".join(line for line in answers if line not in notes) != self._reference_output(chosen):
                wrong.append(f"O9 nmt-translate does not answer as {chosen} did")
            if [note.rpartition(" ")[2] for note in notes] != ([] if done else [chosen]):
                wrong.append(f"O9 nmt-translate does not say that {chosen} translates: {notes}")
        return wrong

    def passed_over(self, ended: Ended, damaged: Path, used: Path) -> list[str]:
        """What a run did not say of a checkpoint that it could not use, and of the one that it used in its place."""
        wrong = []
        if f"passed over a damaged checkpoint: {damaged.relative_to(self.folder)}" not in ended.said:
            wrong.append(f"{damaged.name} is not named: {last_words(ended.said)}")
        if f"going on from {used.name}" not in ended.said:
            wrong.append(f"training did not go on from {used.name}: {last_words(ended.said)}")
        return wrong

    def after_rerun(self, *flags: str) -> list[str]:
        """Give the command again; what does not hold then."""
        return self.at_the_end(self.train(*flags).go().wait())

    def at_the_end(self, ended: Ended) -> list[str]:
        """What does not hold after a run that was to end well."""
        run, wrong = self.run, wrong_end(ended)
        if ended.code:
            return [*wrong, f"O3 the same command does not finish: exit code {ended.code}: {last_words(ended.said)}"]
        last = {self.updates - 10, self.updates - 5, self.updates}
        if not last <= set(run.updates()) or len(run.updates()) > 4:
            wrong.append(f"O3 the checkpoints at the end are {run.updates()}")
        for folder in [*map(run.checkpoint, run.updates()), run.model_folder]:
            try:
                checkpoint.verify(folder)
                if digests(folder) != self.bytes_of.get(folder.name):
                    wrong.append(f"O3 {folder.name} has other bytes than in the run that nothing went wrong in")
            except RunError as error:
                wrong.append(f"O1 {error}")
        if left := [str(path) for path in run.folder.rglob(".*") if path.name.endswith(".tmp")]:
            wrong.append(f"O4 left behind: {left}")
        if self._outside() != self.outside:
            wrong.append("O5 a file outside the run folder was changed")
        if self.log_lines() != self.log:
            wrong.append("O8 the log is not that of the run that nothing went wrong in")
        if self.translate() != self.output_of["model"]:
            wrong.append("O9 nmt-translate answers otherwise")
        return wrong

    def _outside(self) -> dict[str, tuple[int, int]]:
        """Size and time of every file of the lab that is not the run's."""
        found = {}
        for path in self.folder.rglob("*"):
            parts = path.relative_to(self.folder).parts
            if parts[0] not in ("runs", "talk", "disk") and path.is_file():
                found[str(path)] = (path.stat().st_size, path.stat().st_mtime_ns)
        return found


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the tensor files of a checkpoint, as its manifest has them."""
    files = json.loads((folder / checkpoint.MANIFEST).read_bytes())["files"]
    return {name: entry["sha256"] for name, entry in files.items() if name != checkpoint.STATE}
