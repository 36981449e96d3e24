"""Faults that happen to a training process: kills, signals, failing disks, full disks, folders that change under it.

Each function lets one happen in a `Lab` and returns what then did not hold; [] is a fault survived.
"""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fault_lab import Lab, digests
from fault_process import Child, Ended, last_words, nobody
from fault_sweep import NAMING, Fault, calls_in, expect, small_disk, spread

from nmt import checkpoint

FILES = (checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.EMA, checkpoint.STATE, checkpoint.MANIFEST)


def calls_of(lab: Lab) -> Counter[str]:
    """How often a run that nothing goes wrong in makes each call."""
    trace = lab.folder / "talk" / "calls"
    lab.clear()
    lab.train().attach("-e", f"trace={','.join(NAMING)},write", trace=trace).go().wait()
    return calls_in(trace)


def faults(counts: Counter[str]) -> Iterator[Fault]:
    """All faults that happen to processes. counts: of the calls of a run."""
    for call in NAMING:
        for n in range(1, counts[call] + 1):
            yield Fault("kill", f"kill {call} {n}", partial(killed_at, call=call, n=n))
    for n in spread(counts["write"], 20):
        yield Fault("kill", f"kill write {n}", partial(killed_at, call="write", n=n))
    for seed in ("caught-up", "damaged"):
        for call in ("rename", "renameat2", "fsync", "unlinkat"):
            for n in range(1, 9):
                happen = partial(killed_again, seed=seed, call=call, n=n)
                yield Fault("kill resumed", f"kill resumed {seed} {call} {n}", happen)
    for n in range(20):
        yield Fault("kill at random", f"kill at random {n}", partial(killed_at_random, seed=n))
    for call in ("fsync", "rename", "renameat", "ftruncate", "mkdir", "unlinkat", "write"):
        for error in ("EIO", "ENOSPC"):
            for n in spread(counts[call], 10):
                happen = partial(failing_at, call=call, error=error, n=n)
                yield Fault("disk fails", f"disk fails {error} {call} {n}", happen)
    for file in FILES:
        yield Fault("disk fails", f"disk fails EIO read {file}", partial(unreadable, file=file))
    yield from _signals()
    yield Fault("folder", "folder in use", two_at_once)
    yield Fault("folder", "folder removed", partial(folder_gone, again=False))
    yield Fault("folder", "folder replaced", partial(folder_gone, again=True))
    if nobody():
        yield Fault("folder", "folder read-only before", read_only_before)
        yield Fault("folder", "folder read-only meanwhile", read_only_meanwhile)
        yield Fault("disk full", "disk full before", no_room)
        for free in (0.0, 0.3, 0.6, 0.9):
            yield Fault("disk full", f"disk full but for {free}", partial(full_disk, free=free))
    for what in ("kill", "leave"):
        for rank in (0, 1):
            for when in ("step", "validation", "save"):
                happen = partial(rank_lost, rank=rank, what=what, when=when)
                yield Fault("rank lost", f"rank lost {what} {rank} {when}", happen)


def _signals() -> Iterator[Fault]:
    for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"):
        for when in ("training", "validation", "saving", "late"):
            yield Fault("signal", f"signal {name} {when}", partial(signalled, name=name, when=when))
    for name in ("SIGTERM", "SIGINT"):
        for when in ("training", "validation", "saving"):
            happen = partial(signalled, name=name, when=when, twice=True)
            yield Fault("signal", f"signal {name} twice {when}", happen)
        yield Fault("signal", f"signal {name} to its own process", partial(signalled_for_real, name=name))


# -- kills and errors at calls -----------------------------------------------------------------------------------------


def killed_at(lab: Lab, *, call: str, n: int) -> list[str]:
    """SIGKILL on entering the n-th call of a kind, where there are that many: how often a bar is written is chance."""
    lab.clear()
    ended = lab.train().attach("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={n}").go().wait()
    codes = (137, 0) if call == "write" else (137,)
    return expect(ended, *codes) + lab.after_fault(ended) + lab.after_rerun()


def killed_again(lab: Lab, *, seed: str, call: str, n: int) -> list[str]:
    """SIGKILL in a run that goes on from a state that needs repair: a checkpoint is replaced, or a damaged one is."""
    if seed == "caught-up":  # by a stop in the validation of update 20, which is made up for later
        lab.clear()
        lab.train(stop_after=21).go().wait()
    else:
        newest, _ = lab.stopped()
        (newest / checkpoint.MODEL).write_bytes(b"")
    ended = lab.train().attach("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={n}").go().wait()
    excused = [checkpoint.name_of(lab.run.updates()[-1])] if seed == "damaged" else []
    # A call that is not made so often is no fault: then the run went through.
    return (expect(ended, 137) if ended.code else []) + lab.after_fault(ended, excused=excused) + lab.after_rerun()


def killed_at_random(lab: Lab, *, seed: int) -> list[str]:
    """SIGKILL five times in one run, at any moment of its life."""
    draw = random.Random(seed)
    lab.clear()
    wrong: list[str] = []
    for _ in range(5):
        child = lab.train().go()
        time.sleep(draw.uniform(0.05, 1.5))
        child.send(signal.SIGKILL)
        ended = child.wait()
        if ended.code == 0:
            break
        wrong += lab.after_fault(ended)
    return wrong + lab.after_rerun()


def failing_at(lab: Lab, *, call: str, error: str, n: int) -> list[str]:
    """The n-th call of a kind fails."""
    lab.clear()
    ended = lab.train().attach("-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={n}").go().wait()
    wrong = [] if ended.code in (0, 1) else [f"exit code {ended.code}, expected 1: {last_words(ended.said)}"]
    if ended.code and "nmt-train: error:" not in ended.said:
        wrong.append(f"no message: {last_words(ended.said)}")
    return wrong + lab.after_fault(ended) + lab.after_rerun()


def unreadable(lab: Lab, *, file: str) -> list[str]:
    """The disk cannot read a file of the newest checkpoint: it is passed over."""
    newest, before = lab.stopped()
    strace = ("-P", str(newest / file), "-e", "trace=read", "-e", "inject=read:error=EIO:when=1+")
    ended = lab.train().attach(*strace).go().wait()
    return lab.passed_over(ended, newest, before) + lab.at_the_end(ended)


# -- signals -----------------------------------------------------------------------------------------------------------


def _until(lab: Lab, child: Child, kind: str, update: int) -> None:
    """Wait for a line of the log, or one later than that."""
    until = time.monotonic() + 60
    while child.runs() and time.monotonic() < until:
        found, at = lab.last_logged()
        if at > update or (at == update and found == kind):
            return
        time.sleep(0.001)


def _in(lab: Lab, when: str, child: Child) -> None:
    """Wait until a run is in the middle of something."""
    middle = 20 * (lab.updates // 40) or 20
    if when == "validation":
        _until(lab, child, "train", middle)
    elif when in ("training", "late"):
        _until(lab, child, "train", 7 if when == "training" else lab.updates - 4)
    else:
        until = time.monotonic() + 60
        while child.runs() and time.monotonic() < until and not list(lab.run.checkpoints.glob(".update-*.new.tmp")):
            pass


def signalled(lab: Lab, *, name: str, when: str, twice: bool = False) -> list[str]:
    """A signal, once or twice within a second: the run saves and stops; a second Ctrl-C stops at once."""
    lab.clear()
    number = getattr(signal, name)
    child = lab.train().go()
    _in(lab, when, child)
    child.send(number)
    if twice:
        time.sleep(0.003)
        child.send(number)
    ended = child.wait()
    at_once = twice and name == "SIGINT"
    wrong = expect(ended, 128 + number, said="" if at_once else "stopped and saved at")
    if not at_once and (newest := max(lab.run.updates(), default=0)) != lab.last_logged()[1]:
        wrong.append(f"it stopped at update {lab.last_logged()[1]} and saved {newest}")
    return wrong + lab.after_fault(ended) + lab.after_rerun()


def signalled_for_real(lab: Lab, *, name: str) -> list[str]:
    """A signal to a process that was started and not forked, so that the end of the interpreter is part of it."""
    lab.clear()
    talk = lab.folder / "talk" / "real"
    with talk.open("wb") as file:
        command = [sys.executable, "-m", "nmt.cli.train", "recipe.yaml"]
        process = subprocess.Popen(command, cwd=lab.folder, stdout=file, stderr=file, start_new_session=True)
        while process.poll() is None and lab.last_logged()[1] < 7:
            time.sleep(0.005)
        process.send_signal(getattr(signal, name))
        code = process.wait(60)
    ended = Ended(code, talk.read_text(encoding="utf-8"), [])
    return (
        expect(ended, 128 + getattr(signal, name), said="stopped and saved at")
        + lab.after_fault(ended)
        + lab.after_rerun()
    )


# -- disks and folders -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _small_disk(lab: Lab, size: int) -> Iterator[Callable[[int], None]]:
    """A disk of its own for the run folder."""
    lab.clear()
    lab.run.folder.mkdir()
    with small_disk(lab.run.folder, size) as grow:
        yield grow
    lab.clear()


def _bytes_of_a_checkpoint(lab: Lab) -> int:
    lab.clear()
    lab.train(stop_after=3).go().wait()
    folder = lab.run.checkpoint(lab.run.updates()[-1])
    return sum(max(4096, path.stat().st_size) for path in folder.iterdir())


def no_room(lab: Lab) -> list[str]:
    """A disk for two and a half checkpoints: refused with the numbers, before any work; with more space it trains."""
    one = _bytes_of_a_checkpoint(lab)
    with _small_disk(lab, int(2.5 * one)) as grow:
        ended = lab.train().go().wait()
        wrong = expect(ended, 1, said="free on that disk") + lab.after_fault(ended)
        if lab.run.updates() or lab.run.log_file.exists():
            wrong.append("it began although there is no room")
        grow(10 * one)
        return wrong + lab.after_rerun()


def full_disk(lab: Lab, *, free: float) -> list[str]:
    """Somebody else fills the disk while a run is under way, but for so many checkpoints; then frees it again."""
    one = _bytes_of_a_checkpoint(lab)
    folder = lab.run.folder
    with _small_disk(lab, 12 * one):
        child = lab.train().go()
        _until(lab, child, "train", 7)
        child.send(signal.SIGSTOP)
        ballast = folder / "lock.ballast"
        there = shutil.disk_usage(folder).free
        ballast.write_bytes(bytes(max(0, there - int(free * one))))
        child.send(signal.SIGCONT)
        ended = child.wait()
        wrong = expect(ended, 1, said="No space left" if "log.jsonl" in ended.said else "no space left")
        wrong += lab.after_fault(ended)
        ballast.unlink()
        return wrong + lab.after_rerun()


def two_at_once(lab: Lab) -> list[str]:
    """A second run in the same folder is refused, and the first goes on."""
    lab.clear()
    first = lab.train().go()
    _until(lab, first, "train", 2)
    wrong = expect(lab.train(talk="second").go().wait(), 2, said="is in use by process")
    return wrong + lab.at_the_end(first.wait())


def folder_gone(lab: Lab, *, again: bool) -> list[str]:
    """The folder is moved away, and another run may begin where it was: the first one stops and harms nothing."""
    lab.clear()
    away = lab.run.folder.with_name("away")
    first = lab.train().go()
    _until(lab, first, "train", 7)
    first.send(signal.SIGSTOP)
    lab.run.folder.rename(away)
    wrong = lab.at_the_end(lab.train(talk="second").go().wait()) if again else []
    first.send(signal.SIGCONT)
    ended = first.wait()
    wrong += expect(ended, 1, 2, said="nmt-train: error:")
    shutil.rmtree(away)
    return wrong + ([] if again else lab.after_fault(ended)) + lab.after_rerun()


def read_only_before(lab: Lab) -> list[str]:
    """A folder that may not be written: refused before any work."""
    lab.clear()
    lab.run.folder.mkdir(mode=0o555)
    ended = lab.train(user=nobody()).go().wait()
    wrong = expect(ended, 2, said="cannot be written to") + lab.after_fault(ended)
    lab.run.folder.chmod(0o755)
    return wrong + lab.after_rerun()


def read_only_meanwhile(lab: Lab) -> list[str]:
    """The folder loses its permission while a run is under way."""
    lab.clear()
    lab.run.folder.mkdir()
    os.chown(lab.run.folder, nobody(), nobody())
    child = lab.train(user=nobody()).go()
    _until(lab, child, "train", 7)
    lab.run.checkpoints.chmod(0o555)
    ended = child.wait()
    wrong = expect(ended, 1, said="Permission denied") + lab.after_fault(ended)
    lab.run.checkpoints.chmod(0o755)
    return wrong + lab.after_rerun()


# -- ranks -------------------------------------------------------------------------------------------------------------


def rank_lost(lab: Lab, *, rank: int, what: str, when: str) -> list[str]:
    """One of two processes dies, or leaves with exit code 0: the other ends with an error, and the run can go on."""
    lab.clear()
    leaves = {"step": 7, "validation": 21, "save": 11}[when] if what == "leave" else 0
    pair = _pair(lab, [leaves if r == rank else 0 for r in (0, 1)])
    if what == "kill":
        _in(lab, {"step": "training", "save": "saving"}.get(when, when), pair[0])
        pair[rank].send(signal.SIGKILL)
    ended = [child.wait() for child in pair]
    wrong = (
        [f"the other rank ended with exit code 0: {last_words(ended[1 - rank].said)}"]
        if not ended[1 - rank].code
        else []
    )
    if ended[1 - rank].left or "IT DID NOT END" in ended[1 - rank].said:
        wrong.append("the other rank did not end")
    for update in lab.run.updates():
        checkpoint.verify(lab.run.checkpoint(update))
    again = [child.wait() for child in _pair(lab, [0, 0])]
    if any(each.code for each in again):
        wrong.append(f"the two do not go on: {last_words(again[0].said)}")
    return wrong + _equal_to_two(lab)


def _pair(lab: Lab, leaves: list[int]) -> list[Child]:
    """Two ranks that find each other by the environment, as torchrun would set it. leaves: after so many updates."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    found = []
    for rank, leave_after in enumerate(leaves):
        mine = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank)}
        environment = {**mine, "LOCAL_RANK": str(rank)}
        found.append(lab.train(leave_after=leave_after, talk=f"rank{rank}", environment=environment).go())
    return found


_OF_TWO: dict[Path, dict[str, str]] = {}


def _equal_to_two(lab: Lab) -> list[str]:
    """Whether the last checkpoint has the bytes of a whole run of two."""
    last = lab.run.checkpoint(lab.updates)
    if not last.exists():
        return ["O3 the last checkpoint is missing"]
    mine = digests(last)
    if lab.folder not in _OF_TWO:
        lab.clear()
        for child in _pair(lab, [0, 0]):
            child.wait()
        _OF_TWO[lab.folder] = digests(last)
    return [] if mine == _OF_TWO[lab.folder] else ["O3 other bytes than a run of two that nothing went wrong in"]
