"""Faults that happen to nmt-translate: kills, signals, failing and full disks, helpers, journals, files, streams.

Each function lets one happen in a `Lab` and returns what then did not hold; [] is a fault survived.
"""

import contextlib
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from fault_process import Ended, nobody, processes_of, wrong_end
from fault_sweep import NAMING, calls_in, expect, small_disk
from translating_lab import Lab

SIGNALS = ("SIGTERM", "SIGINT")


def calls_of(lab: Lab, *, old: bool) -> Counter[str]:
    """How often it makes each call when nothing goes wrong. old: where it replaces other files."""
    trace = lab.folder / "talk" / "calls"
    flags = lab.clear(old=old)
    lab.translate(*flags).attach("-e", f"trace={','.join(NAMING)},write", trace=trace).go().wait()
    return calls_in(trace)


# -- kills and errors at calls -----------------------------------------------------------------------------------------


def killed_at(lab: Lab, *, call: str, n: int, old: bool) -> list[str]:
    """SIGKILL on entering the n-th call of a kind, where there are that many: how often a bar is written is chance."""
    flags = lab.clear(old=old)
    inject = ("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={n}")
    ended = lab.translate(*flags).attach(*inject).go().wait()
    codes = (137, 0) if call == "write" else (137,)
    return expect(ended, *codes) + lab.after_fault(ended, old=old) + lab.after_rerun(*flags)


def killed_at_random(lab: Lab, *, seed: int) -> list[str]:
    """SIGKILL three times, at any moment of its life: what was answered stays answered."""
    draw = random.Random(seed)
    old = draw.random() < 0.5
    flags = lab.clear(old=old)
    wrong: list[str] = []
    n_line = 0
    for _ in range(3):
        child = lab.translate(*flags).go()
        time.sleep(draw.uniform(0, lab.seconds))
        child.send(signal.SIGKILL)
        ended = child.wait()
        wrong += lab.after_fault(ended, old=old)
        if ended.code == 0:
            break
        if lab.journal.exists() and (there := lab.n_answered()) < n_line:
            wrong.append(f"T6 the journal had the answers to {n_line} lines, and has {there}")
        n_line = lab.n_answered()
    return wrong + lab.after_rerun(*flags)


def failing_at(lab: Lab, *, call: str, error: str, n: int) -> list[str]:
    """The n-th call of a kind fails."""
    flags = lab.clear(old=True)
    inject = ("-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={n}")
    ended = lab.translate(*flags).attach(*inject).go().wait()
    untidy = call in ("unlink", "unlinkat")  # what cannot be deleted waits for the next
    return expect(ended, 0, 1) + lab.after_fault(ended, old=True, untidy=untidy) + lab.after_rerun(*flags)


def unreadable(lab: Lab, *, n: int) -> list[str]:
    """The disk cannot read the input from its n-th read on: it is named."""
    lab.clear()
    strace = ("-P", str(lab.source), "-e", "trace=read", "-e", f"inject=read:error=EIO:when={n}+")
    ended = lab.translate().attach(*strace).go().wait()
    return expect(ended, 1, 2, said="corpus/in") + lab.after_fault(ended) + lab.after_rerun()


# -- signals and helpers -----------------------------------------------------------------------------------------------


def signalled(lab: Lab, *, name: str, seed: int) -> list[str]:
    """A signal at any moment of its life."""
    old = seed % 2 == 1
    flags = lab.clear(old=old)
    child = lab.translate(*flags).go()
    lab.wait_for_answers(child)
    time.sleep(random.Random(seed).uniform(0, lab.seconds))
    child.send(getattr(signal, name))
    ended = child.wait()
    wrong = [] if ended.code == 0 else expect(ended, 128 + getattr(signal, name))
    return wrong + lab.after_fault(ended, old=old) + lab.after_rerun(*flags)


def helper_lost(lab: Lab, *, seed: int) -> list[str]:
    """The process that helps is killed at any moment of its life: it is named, or was not needed any more."""
    ended = _to_helper(lab, seed, (signal.SIGKILL, 0.0))
    wrong = [] if ended.code == 0 else expect(ended, 1, said="worker")
    return wrong + lab.after_fault(ended) + lab.after_rerun()


def helper_starved(lab: Lab, *, seed: int) -> list[str]:
    """The process that helps gets no time for a while: it is waited for."""
    return lab.at_the_end(_to_helper(lab, seed, (signal.SIGSTOP, 1.0), (signal.SIGCONT, 0.0)))


def _to_helper(lab: Lab, seed: int, *signals: tuple[int, float]) -> Ended:
    """Translate with a helper, and send it signals from any moment on, each followed by some seconds of nothing."""
    lab.clear()
    child = lab.translate(n=2).go()
    helpers: list[int] = []
    while child.runs() and not helpers:
        helpers = [pid for pid in processes_of(child.pid) if pid != child.pid]
        time.sleep(0.001)
    child.send(signal.SIGSTOP)  # or all would be done before the helper has started, which takes seconds
    draw = random.Random(seed)
    time.sleep(draw.choice((1.0, 5.0)))
    child.send(signal.SIGCONT)
    time.sleep(draw.uniform(0, lab.seconds / 2))
    for number, pause in signals:
        with contextlib.suppress(ProcessLookupError):
            for pid in helpers[:1]:
                os.kill(pid, number)
        time.sleep(pause)
    return child.wait()


# -- journals, files and disks -----------------------------------------------------------------------------------------


def _held(lab: Lab, meanwhile: Callable[[], object]) -> Ended:
    """Stop a command that has some answers, do something, and let it go on."""
    lab.clear()
    child = lab.translate().go()
    lab.wait_for_answers(child)
    child.send(signal.SIGSTOP)
    meanwhile()
    child.send(signal.SIGCONT)
    return child.wait()


def _stopped(lab: Lab) -> None:
    """Leave the journal of a command that was killed with some answers."""
    lab.clear()
    child = lab.translate().go()
    lab.wait_for_answers(child, 60)
    child.send(signal.SIGKILL)
    child.wait()


def _cut(share: float) -> Callable[[bytes, random.Random], bytes]:
    return lambda raw, draw: raw[: int(share * len(raw))]


def _flipped(raw: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(raw))
    return raw[:place] + bytes([raw[place] ^ 1 << draw.randrange(8)]) + raw[place + 1 :]


DAMAGE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "emptied": _cut(0.0),
    "cut in its head": _cut(0.02),
    "cut": _cut(0.6),
    "without its last byte": lambda raw, draw: raw[:-1],
    "with zeros behind": lambda raw, draw: raw + bytes(4096),
    "of another program": lambda raw, draw: b"what somebody wrote\n" * 99,
    **{f"with a bit flipped {n}": _flipped for n in range(12)},
}


def journal_damaged(lab: Lab, *, how: str) -> list[str]:
    """The journal of a command that was killed is damaged: what is whole of it is used, and nothing else."""
    _stopped(lab)
    lab.journal.write_bytes(DAMAGE[how](lab.journal.read_bytes(), random.Random(how)))
    return lab.after_rerun()


def journal_removed(lab: Lab) -> list[str]:
    """The journal is deleted while the command works: at the end nobody misses it."""
    return lab.at_the_end(_held(lab, lab.journal.unlink))


def two_at_once(lab: Lab) -> list[str]:
    """A second command for the same output is refused, and the first goes on."""
    refused: list[Ended] = []
    first = _held(lab, lambda: refused.append(lab.translate(talk="second").go().wait()))
    return expect(refused[0], 1, 2, said="in use") + lab.at_the_end(first)


def folder_moved(lab: Lab) -> list[str]:
    """The folder of the output is moved away."""
    away = lab.folder / "talk" / "away"
    ended = _held(lab, lambda: lab.disk.rename(away))
    wrong = expect(ended, 1, 2, said="disk")
    shutil.rmtree(away)
    lab.disk.mkdir()
    return wrong + lab.after_rerun()


def output_appears(lab: Lab) -> list[str]:
    """Somebody writes a file of the output's name meanwhile."""
    ended = _held(lab, lambda: lab.out.write_bytes(b"mine"))
    if lab.out.read_bytes() != b"mine":
        return ["the file of somebody else is gone"]
    wrong = expect(ended, 1, 2, said="disk/out")
    lab.out.unlink()
    return wrong + lab.after_fault(ended) + lab.after_rerun()


def _rewrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


# What happens to the input, and whether it happens to the file that was opened, and not only to its name.
CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "shorter": (lambda path: _rewrite(path, path.read_bytes()[: path.stat().st_size // 2]), True),
    "longer": (lambda path: _rewrite(path, path.read_bytes() + b"Hund\n"), True),
    "other words": (lambda path: _rewrite(path, path.read_bytes().replace(b"Hund", b"Ball")), True),
    "replaced": (lambda path: shutil.copyfile(path, path.with_name("new")).rename(path), False),
    "removed": (Path.unlink, False),
}


def input_changed(lab: Lab, *, how: str) -> list[str]:
    """The input changes while it is read: refused, or read as it was."""
    change, to_the_file = CHANGES[how]
    ended = _held(lab, lambda: change(lab.source))
    lab.write_lines()
    wrong = expect(ended, 2, said="changed while it was read") if to_the_file else expect(ended, 0)
    return wrong + lab.after_fault(ended) + lab.after_rerun()


def read_only_before(lab: Lab) -> list[str]:
    """A folder that may not be written to: refused before any work."""
    lab.clear()
    ended = lab.translate(user=nobody()).go().wait()
    return expect(ended, 1, 2, said="not yours to write to") + lab.after_fault(ended) + lab.after_rerun()


def full_disk(lab: Lab, *, share: float, old: bool) -> list[str]:
    """The disk has room for so much of what it needs; then there is more."""
    lab.clear()
    need, page = 0, os.sysconf("SC_PAGESIZE")
    for path in (lab.folder / "kept" / "old").iterdir():  # about as large as the new ones
        need += -(-path.stat().st_size // page) * page
    with small_disk(lab.disk, 1 << 24) as grow:
        if old:
            shutil.copytree(lab.folder / "kept" / "old", lab.disk, dirs_exist_ok=True)
        # A page at least: no size at all is no limit at all.
        grow(shutil.disk_usage(lab.disk).used + max(page, int(share * need) // page * page))
        flags = ("--overwrite",) if old else ()
        ended = lab.translate(*flags).go().wait()
        wrong = expect(ended, 1, said="No space left") + lab.after_fault(ended, old=old)
        grow(1 << 24)
        wrong += lab.after_rerun(*flags)
    return wrong


# -- streams -----------------------------------------------------------------------------------------------------------


def stream_killed(lab: Lab, *, seed: int) -> list[str]:
    """SIGKILL at any moment: what came out is the beginning."""
    child = lab.stream().go()
    time.sleep(random.Random(seed).uniform(0, lab.seconds))
    child.send(signal.SIGKILL)
    ended = child.wait()
    return expect(ended, 0, 137) + lab.after_stream(ended)


def stream_signalled(lab: Lab, *, name: str, seed: int) -> list[str]:
    """A signal at any moment: what is in work is finished, and then it ends."""
    child = lab.stream().go()
    time.sleep(random.Random(seed).uniform(0, lab.seconds))
    child.send(getattr(signal, name))
    ended = child.wait()
    wrong = [] if ended.code == 0 else expect(ended, 128 + getattr(signal, name))
    return wrong + lab.after_stream(ended)


def stream_to(lab: Lab, *, name: str, code: int, said: str) -> list[str]:
    """stdout takes nothing more."""
    if name == "a closed pipe":
        reader, target = os.pipe()
        child = lab.stream(target=target, other=reader)
        os.close(reader)
    else:
        target = os.open(name, os.O_WRONLY)
        child = lab.stream(target=target)
    os.close(target)
    ended = child.go().wait()
    wrong = expect(ended, code, said=said) + wrong_end(ended)
    return wrong + ([] if said or not ended.said else [f"it said: {ended.said[-200:]}"])


def stream_ends_early(lab: Lab, *, share: float) -> list[str]:
    """stdin ends early, perhaps within a line: the whole lines before it have their translations."""
    source, typed = os.pipe()
    raw = lab.source.read_bytes()
    part = raw[: int(share * len(raw))]
    child = lab.stream(source=source, other=typed)
    os.close(source)
    child.go()
    os.write(typed, part)  # less than a pipe holds
    os.close(typed)
    ended = child.wait()
    n_line = part.count(b"\n")
    wanted, found = lab.text.split(b"\n")[:n_line], lab.streamed().split(b"\n")
    is_whole = len(found) == n_line + 1 + (not part.endswith(b"\n") and bool(part))
    return expect(ended, 0) + wrong_end(ended) + ([] if found[:n_line] == wanted and is_whole else ["T5 other lines"])
