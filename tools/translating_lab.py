"""Where nmt-translate is broken on purpose: a tiny model, some hundred lines, and what must hold after a fault.

`translating_faults.py` has the faults; how commands are forked, killed and watched is in `fault_process.py`.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fault_corpus import RECIPE, write_corpus
from fault_process import Child, Ended, last_words, preload, preload_commands, wrong_end

from nmt.cli import preprocess, train, translate
from nmt.cli.translating.journal import known
from nmt.errors import RunError
from nmt.files import sha256_of

N_LINE = 120
RUN = "run"
FLAGS = (
    *("--device", "cpu", "--threads", "1", "--format", "jsonl"),
    *("--decode.window", "20", "--decode.n_best", "2", "--decode.beam", "2"),
)
FILES = ("--output", "disk/out", "--alignments", "disk/links", "--scores", "disk/scores.json")
OLD = ("--decode.max_len_b", "1")  # what was made before was made with it
_PATIENCE = 30.0


@dataclass
class Lab:
    """A folder with a run, lines to translate, and what is made of them when nothing goes wrong.

    whole: SHA-256 of each file of that; old: of what was made before with other options. text: what comes out where
    stdout is asked for. seconds: it takes.
    """

    folder: Path
    whole: dict[str, str] = field(default_factory=dict)
    old: dict[str, str] = field(default_factory=dict)
    text: bytes = b""
    seconds: float = 0.0

    @property
    def disk(self) -> Path:
        """The folder that faults happen to."""
        return self.folder / "disk"

    @property
    def out(self) -> Path:
        return self.disk / "out"

    @property
    def journal(self) -> Path:
        return self.disk / "out.journal"

    @property
    def source(self) -> Path:
        return self.folder / "corpus" / "in"

    def build(self) -> None:
        """Make the run, and learn what is right."""
        for name in ("corpus", "disk", "talk", "kept"):
            (self.folder / name).mkdir()
        write_corpus(self.folder / "corpus", 560)
        (self.folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
        few = ["--train.out", RUN, "--train.updates", "20", "--valid.every", "20"]
        preload_commands()
        self._must(self._child(lambda: preprocess.main(["recipe.yaml"])).go().wait())
        self._must(self._child(lambda: train.main(["recipe.yaml", *few])).go().wait())
        self.write_lines()
        self._must(self._child(self._translate_and_tell_modules).go().wait())
        preload((self.folder / "talk" / "modules").read_text(encoding="utf-8").split())
        self.old = self.there()
        shutil.copytree(self.disk, self.folder / "kept" / "old")
        self.clear()
        begin = time.monotonic()
        self._must(self.translate().go().wait())
        self.seconds = time.monotonic() - begin
        self.whole = self.there()
        if any(self.whole[name] == self.old[name] for name in self.whole):
            raise RunError("the options that differ make no difference")
        self._must(self.stream().go().wait())
        self.text = self.streamed()

    def write_lines(self) -> None:
        """Write the lines and their references, or write them again as they were: some blank, some twice."""
        for name, language in (("in", "de"), ("ref", "en")):
            lines = (self.folder / "corpus" / f"train.{language}").read_text(encoding="utf-8").split("\n")[:N_LINE]
            lines[9::17] = [""] * len(lines[9::17])
            lines[5::23] = lines[4::23][: len(lines[5::23])]
            (self.folder / "corpus" / name).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _must(self, ended: Ended) -> None:
        if ended.code:
            raise RunError(f"what nothing should go wrong in went wrong: {ended.said}")

    # -- commands --------------------------------------------------------------------------------------------------

    def _child(self, body: Callable[[], int], user: int = 0, talk: str = "talk") -> Child:
        def inside() -> int:
            os.chdir(self.folder)
            if user:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            return body()

        return Child(inside, self.folder / "talk" / talk, {"TOKENIZERS_PARALLELISM": "false"})

    def _translate_and_tell_modules(self) -> int:
        code = translate.main([*self._flags(), *OLD])
        Path("talk", "modules").write_text("\n".join(sorted(sys.modules)), encoding="utf-8")
        return code

    def _flags(self) -> list[str]:
        return [RUN, "--input", "corpus/in", "--ref", "corpus/ref", *FILES, *FLAGS]

    def translate(self, *flags: str, n: int = 1, user: int = 0, talk: str = "talk") -> Child:
        """nmt-translate from a file to files, not begun yet. n: 2 for a helper, 1 for none."""
        return self._child(lambda: translate.main([*self._flags(), "--workers", str(n), *flags]), user, talk)

    def stream(self, source: int | None = None, target: int | None = None, other: int | None = None) -> Child:
        """nmt-translate from stdin to stdout, not begun yet; or from and to open files.

        other: the other end of a pipe, which it is not to have.
        """

        def body() -> int:
            if other is not None:
                os.close(other)
            os.dup2(os.open(self.source, os.O_RDONLY) if source is None else source, 0)
            wanted = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(self.folder / "talk" / "stdout", wanted) if target is None else target, 1)
            sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
            sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
            return translate.main([RUN, *FLAGS, "--workers", "1"])

        return self._child(body)

    def streamed(self) -> bytes:
        """What has come to stdout."""
        return (self.folder / "talk" / "stdout").read_bytes()

    def clear(self, *, old: bool = False) -> tuple[str, ...]:
        """Leave nothing there, or the files of before, and the lines as they were. Returns the flags to give."""
        shutil.rmtree(self.disk, ignore_errors=True)
        self.disk.mkdir()
        if old:
            shutil.copytree(self.folder / "kept" / "old", self.disk, dirs_exist_ok=True)
        return ("--overwrite",) if old else ()

    def wait_for_answers(self, child: Child, n_line: int = 1) -> None:
        """Wait until the journal has so many. Raises RunError if it never does, for then nothing is tried."""
        until = time.monotonic() + _PATIENCE
        while self.n_answered() < n_line:
            if not child.runs() or time.monotonic() > until:
                raise RunError(f"there were no {n_line} answers to wait for: {last_words(child.wait().said)}")
            time.sleep(0.001)

    def n_answered(self) -> int:
        """Lines that the journal has the answers to."""
        found = known(self.journal)
        return found.n_line if found and found.fit is not None else 0

    # -- what must hold --------------------------------------------------------------------------------------------

    def after_fault(self, ended: Ended, *, old: bool = False, untidy: bool = False) -> list[str]:
        """What does not hold after a fault. old: files were there before. untidy: it could not tidy up."""
        wrong, there = wrong_end(ended), self.there()
        for name, whole in self.whole.items():
            before = self.old[name] if old else None
            if there.get(name) not in (before, whole):
                wrong.append(f"T1 {name} is neither whole nor {'the old one' if old else 'absent'}")
        if ended.code == 0 and there != self.whole:
            wrong.append(f"T2 exit code 0, and not all is there: {sorted(there)}")
        if ended.code not in (0, 137) and ended.code < 128 and "nmt-translate: error:" not in ended.said:
            wrong.append(f"T3 no message: {last_words(ended.said)}")
        may_stay = {*self.whole, *(["out.journal"] if ended.code else [])}
        if ended.code != 137 and not untidy and (left := sorted(set(self._names()) - may_stay)):
            wrong.append(f"T4 left behind: {left}")
        return wrong

    def after_rerun(self, *flags: str) -> list[str]:
        """Give the command again, if it did not finish; what does not hold then."""
        if self.there() == self.whole and not self.journal.exists():
            return []
        n_line = self.n_answered()
        ended = self.translate(*flags).go().wait()
        wrong = self.at_the_end(ended)
        if n_line and f"has the answers to {n_line} lines" not in ended.said:
            wrong.append(f"T6 the answers to {n_line} lines were there, and were not used: {last_words(ended.said)}")
        return wrong

    def at_the_end(self, ended: Ended) -> list[str]:
        """What does not hold after a command that was to end well."""
        wrong = wrong_end(ended)
        if ended.code:
            return [*wrong, f"T5 it does not finish: exit code {ended.code}: {last_words(ended.said)}"]
        there = self.there()
        if differing := sorted(name for name in self.whole if there.get(name) != self.whole[name]):
            wrong.append(f"T5 other bytes than where nothing went wrong: {differing}")
        if left := sorted(set(self._names()) - {*self.whole, "out.journal.unused"}):
            wrong.append(f"T4 left behind: {left}")
        return wrong

    def after_stream(self, ended: Ended) -> list[str]:
        """What does not hold of a stream that was ended before its time: it is the beginning, in whole lines."""
        wrong, found = wrong_end(ended), self.streamed()
        if not self.text.startswith(found) or (found and not found.endswith(b"\n")):
            wrong.append(f"T1 what came out is not the beginning of the whole, in whole lines: {found[-80:]!r}")
        return wrong

    def there(self) -> dict[str, str]:
        """SHA-256 of each file that the command is to write."""
        names = ("out", "links", "scores.json")
        return {name: sha256_of(self.disk / name) for name in names if (self.disk / name).is_file()}

    def _names(self) -> list[str]:
        return [path.name for path in self.disk.iterdir()] if self.disk.is_dir() else []
