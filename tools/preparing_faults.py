"""Faults that happen to nmt-preprocess: kills, signals, failing and full disks, helpers, folders and files that change.

Each function lets one happen in a `Lab` and returns what then did not hold; [] is a fault survived.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from fault_process import Child, Ended, nobody, processes_of
from fault_sweep import NAMING, calls_in, expect, small_disk
from preparing_lab import FLAGS, Lab

SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")
BUILDING = ".out.preparing-*"
FIRST_BLOCK = f"{BUILDING}/blocks.*"  # it has hashed its files, and reads them again


def calls_of(lab: Lab, *, old: bool) -> Counter[str]:
    """How often it makes each call when nothing goes wrong. old: where it replaces other data."""
    trace = lab.folder / "talk" / "calls"
    flags = lab.clear(old=old)
    lab.prepare(*flags).attach("-e", f"trace={','.join(NAMING)},write", trace=trace).go().wait()
    return calls_in(trace)


# -- kills and errors at calls -----------------------------------------------------------------------------------------


def killed_at(lab: Lab, *, call: str, n: int, old: bool, n_worker: int = 1) -> list[str]:
    """SIGKILL on entering the n-th call of a kind; of the calls of a helper, too, if there are any."""
    flags = lab.clear(old=old)
    inject = ("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={n}")
    ended = lab.prepare(*flags, n=n_worker).attach(*inject).go().wait()
    # A helper may have been the first to make so many, or nobody made them.
    codes = (0, 1, 137) if n_worker > 1 else (137,)
    return expect(ended, *codes) + lab.after_fault(ended, old=old) + lab.after_rerun(*flags)


def killed_at_random(lab: Lab, *, seed: int) -> list[str]:
    """SIGKILL three times, at any moment of its life."""
    draw = random.Random(seed)
    old, n = draw.random() < 0.5, draw.choice((1, 2))
    flags = lab.clear(old=old)
    wrong: list[str] = []
    for _ in range(3):
        child = lab.prepare(*flags, n=n).go()
        time.sleep(draw.uniform(0, n * lab.seconds))
        child.send(signal.SIGKILL)
        ended = child.wait()
        wrong += lab.after_fault(ended, old=old)
        if ended.code == 0:
            break
    return wrong + lab.after_rerun(*flags)


def failing_at(lab: Lab, *, call: str, error: str, n: int, n_worker: int = 1) -> list[str]:
    """The n-th call of a kind fails."""
    flags = lab.clear(old=True)
    inject = ("-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={n}")
    ended = lab.prepare(*flags, n=n_worker).attach(*inject).go().wait()
    untidy = call in ("unlink", "unlinkat", "rmdir")  # what cannot be deleted waits for the next
    return expect(ended, 0, 1) + lab.after_fault(ended, old=True, untidy=untidy) + lab.after_rerun(*flags)


def unreadable(lab: Lab, *, n: int) -> list[str]:
    """The disk cannot read an input file from its n-th read on: it is named."""
    lab.clear()
    file = lab.folder / "corpus" / "train.en"
    strace = ("-P", str(file), "-e", "trace=read", "-e", f"inject=read:error=EIO:when={n}+")
    ended = lab.prepare().attach(*strace).go().wait()
    return expect(ended, 1, 2, said="train.en") + lab.after_fault(ended) + lab.after_rerun()


# -- signals and helpers -----------------------------------------------------------------------------------------------


def _stopped_by(name: str, ended: Ended) -> list[str]:
    return [] if ended.code == 0 else expect(ended, 128 + getattr(signal, name))


def signalled(lab: Lab, *, name: str, seed: int) -> list[str]:
    """A signal at any moment of its life."""
    draw = random.Random(seed)
    old, n = seed % 4 < 2, 1 + seed % 2
    flags = lab.clear(old=old)
    child = lab.prepare(*flags, n=n).go()
    lab.wait_for(child, BUILDING)
    time.sleep(draw.uniform(0, n * lab.seconds))
    child.send(getattr(signal, name))
    ended = child.wait()
    return _stopped_by(name, ended) + lab.after_fault(ended, old=old) + lab.after_rerun(*flags)


def signalled_for_real(lab: Lab, *, name: str) -> list[str]:
    """A signal as a terminal sends it, to a whole group of processes that were started and not forked."""
    lab.clear()
    talk = lab.folder / "talk" / "real"
    command = [sys.executable, "-m", "nmt.cli.preprocess", "recipe.yaml", *FLAGS]
    with talk.open("wb") as file:
        process = subprocess.Popen(command, cwd=lab.folder, stdout=file, stderr=file, start_new_session=True)
        while process.poll() is None and not list(lab.out.parent.glob(FIRST_BLOCK)):
            time.sleep(0.001)
        os.killpg(process.pid, getattr(signal, name))
        code = process.wait(60)
    ended = Ended(code, talk.read_text(encoding="utf-8"), processes_of(process.pid))
    return _stopped_by(name, ended) + lab.after_fault(ended) + lab.after_rerun()


def helper_killed(lab: Lab, *, seed: int) -> list[str]:
    """One of the processes that work on blocks is killed at any moment of its life."""
    child = _send_to_helper(lab, seed, (signal.SIGKILL, 0.0))
    ended = child.wait()
    wrong = [] if ended.code == 0 else expect(ended, 1, said="a process that worked on a part of the data ended")
    return wrong + lab.after_fault(ended) + lab.after_rerun()


def helper_starved(lab: Lab, *, seed: int) -> list[str]:
    """One of the processes that work on blocks gets no time for a while: it is waited for."""
    child = _send_to_helper(lab, seed, (signal.SIGSTOP, 0.7), (signal.SIGCONT, 0.0))
    return lab.at_the_end(child.wait())


def _send_to_helper(lab: Lab, seed: int, *signals: tuple[int, float]) -> Child:
    """Prepare, and send signals to a helper from any moment on, each followed by some seconds of nothing."""
    lab.clear()
    child = lab.prepare(n=2).go()
    there = lab.helpers(child)
    time.sleep(random.Random(seed).uniform(0, 2 * lab.seconds))
    for number, pause in signals:
        with contextlib.suppress(ProcessLookupError):
            for pid in there[:1]:
                os.kill(pid, number)
        time.sleep(pause)
    return child


def signalled_while_starved(lab: Lab) -> list[str]:
    """A signal, while a helper gets no time."""
    lab.clear()
    child = lab.prepare(n=2).go()
    for pid in lab.helpers(child):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(0.3)
    child.send(signal.SIGTERM)
    ended = child.wait()
    return expect(ended, 128 + signal.SIGTERM) + lab.after_fault(ended) + lab.after_rerun()


# -- folders, disks and files ------------------------------------------------------------------------------------------


def _held_at(lab: Lab, child: Child, pattern: str, meanwhile: Callable[[Path], object]) -> Ended:
    """Stop a command where something of this name has appeared, do something, and let it go on."""
    if found := lab.wait_for(child, pattern):
        child.send(signal.SIGSTOP)
        meanwhile(found[0])
        child.send(signal.SIGCONT)
    return child.wait()


def two_at_once(lab: Lab, *, old: bool = False) -> list[str]:
    """A second command for the same folder is refused, and the first goes on."""
    flags = lab.clear(old=old)
    refused: list[Ended] = []
    first = lab.prepare(*flags).go()

    def second(_: Path) -> None:
        refused.append(lab.prepare(*flags, talk="second").go().wait())

    ended = _held_at(lab, first, FIRST_BLOCK, second)
    wrong = expect(refused[0], 2, said="another nmt-preprocess is making it (process")
    return wrong + lab.at_the_end(ended)


def two_in_a_race(lab: Lab, *, seed: int) -> list[str]:
    """Two commands for the same folder within a moment: one or the other is refused, or finds it done."""
    draw = random.Random(seed)
    flags = lab.clear(old=seed % 2 == 0)
    children = [lab.prepare(*flags, talk=talk) for talk in ("talk", "second")]
    for child in children:
        child.go()
        time.sleep(draw.uniform(0, 0.03))
    ended = [child.wait() for child in children]
    wrong = [text for each in ended if each.code for text in expect(each, 2, said="another nmt-preprocess")]
    if all(each.code for each in ended):
        wrong.append("both were refused")
    return wrong + lab.at_the_end(min(ended, key=lambda each: each.code))


def building_removed(lab: Lab) -> list[str]:
    """The folder in which it works is deleted."""
    lab.clear()
    ended = _held_at(lab, lab.prepare().go(), FIRST_BLOCK, lambda found: shutil.rmtree(found.parent))
    return expect(ended, 1, 2) + lab.after_fault(ended) + lab.after_rerun()


def all_removed(lab: Lab) -> list[str]:
    """The folder that all is in is moved away."""
    lab.clear()
    away = lab.folder / "talk" / "away"
    ended = _held_at(lab, lab.prepare().go(), FIRST_BLOCK, lambda _: lab.out.parent.rename(away))
    shutil.rmtree(away)
    lab.out.parent.mkdir(exist_ok=True)
    return expect(ended, 1, 2) + lab.after_fault(ended) + lab.after_rerun()


def filled_meanwhile(lab: Lab) -> list[str]:
    """Somebody puts a file where the folder is to be: it is not touched."""
    lab.clear()
    mine = lab.out / "mine"

    def fill(_: Path) -> None:
        lab.out.mkdir()
        mine.write_bytes(b"mine")

    ended = _held_at(lab, lab.prepare().go(), FIRST_BLOCK, fill)
    wrong = expect(ended, 2, said="something came there meanwhile")
    if not mine.exists() or mine.read_bytes() != b"mine":
        return [*wrong, "the file of somebody else is gone"]
    shutil.rmtree(lab.out)
    return wrong + lab.after_fault(ended) + lab.after_rerun()


def _rewrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


CHANGES: dict[str, Callable[[Path], object]] = {
    "shorter": lambda path: _rewrite(path, path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: _rewrite(path, b""),
    "longer": lambda path: _rewrite(path, path.read_bytes() + b"one more\n"),
    "other words": lambda path: _rewrite(path, path.read_bytes().replace(b"red", b"der")),
    "replaced": lambda path: shutil.copyfile(path, path.with_name("new")).rename(path),
    "removed": Path.unlink,
    "unreadable": lambda path: _rewrite(path, b"\xff\xfe" + path.read_bytes()),
}


def input_changed(lab: Lab, *, how: str) -> list[str]:
    """A file changes between its hashing and the end of its reading: refused by name."""
    lab.clear()
    file = lab.folder / "corpus" / "train.en"
    ended = _held_at(lab, lab.prepare().go(), FIRST_BLOCK, lambda _: CHANGES[how](file))
    lab.write_corpus()
    return expect(ended, 2, said="train") + lab.after_fault(ended) + lab.after_rerun()


def read_only_before(lab: Lab) -> list[str]:
    """A folder that may not be written to: refused before any work."""
    lab.clear()
    ended = lab.prepare(user=nobody()).go().wait()
    return expect(ended, 2, said="Permission denied") + lab.after_fault(ended) + lab.after_rerun()


def read_only_meanwhile(lab: Lab) -> list[str]:
    """The folder above loses its permission while it works."""
    lab.clear()
    parent = lab.out.parent
    os.chown(parent, nobody(), nobody())
    ended = _held_at(lab, lab.prepare(user=nobody()).go(), FIRST_BLOCK, lambda _: parent.chmod(0o555))
    wrong = expect(ended, 2, said="Permission denied") + lab.after_fault(ended, untidy=True)
    parent.chmod(0o755)
    again = lab.prepare(user=nobody()).go().wait()
    return wrong + lab.at_the_end(again)


def full_disk(lab: Lab, *, share: float, old: bool) -> list[str]:
    """The disk has room for so much of what it needs; then there is more."""
    need = _bytes_needed(lab)
    lab.clear()
    with small_disk(lab.out.parent, 1 << 24) as grow:
        there = 0
        if old:
            shutil.copytree(lab.folder / "kept" / "old", lab.out)
            there = shutil.disk_usage(lab.out.parent).used
        grow(there + int(share * need))
        flags = ("--overwrite",) if old else ()
        ended = lab.prepare(*flags).go().wait()
        wrong = expect(ended, 1, said="No space left") + lab.after_fault(ended, old=old)
        grow(1 << 24)
        wrong += lab.after_rerun(*flags)
    return wrong


_NEEDED: dict[Path, int] = {}


def _bytes_needed(lab: Lab) -> int:
    """What it takes of a disk at most."""
    if lab.folder not in _NEEDED:
        lab.clear()
        most = 0
        with small_disk(lab.out.parent, 1 << 24):
            child = lab.prepare().go()
            while child.runs():
                most = max(most, shutil.disk_usage(lab.out.parent).used)
            child.wait()
        _NEEDED[lab.folder] = most
    return _NEEDED[lab.folder]
