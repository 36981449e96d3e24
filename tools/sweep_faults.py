"""Break the three commands on purpose, and check that nothing is lost: python tools/sweep_faults.py [--short]

Each command does a tiny job once undisturbed. Then faults happen to it, one at a time:

    kill       SIGKILL at every call that names, syncs or removes a file, at writes, and at random moments
    disk       EIO, ENOSPC and EDQUOT from those calls
    damage     SIGKILL, and then a bit of a checkpoint or journal flips, or its end is cut off
    signal     SIGTERM, SIGINT, SIGHUP at random moments
    twice      a second command for the same files while the first one works
    full       a disk with room for a share of what is written (needs the right to mount)
    read-only  a folder that may not be written to (needs the right to become another user)

After each one what is there is whole, old or absent (F1), exit code 0 means that all is there (F2), an error has a
message and no traceback (F3), no process is left and no other file is changed (F4), and the same command ends at the
same bytes with nothing left over (F5). Prints for each class how many faults were tried and survived, and how to
repeat what failed. Needs Linux and strace.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fault_process import Child, Ended, has_strace, last_words, nobody, preload, preload_commands, wrong_end
from tqdm import tqdm

from nmt import checkpoint
from nmt.cli import preprocess, train, translate
from nmt.errors import NmtError, RunError
from nmt.files import sha256_of
from nmt.run import Run

# Every call that gives, takes or makes sure a name or a length; Python and Rust use different ones for the same.
NAMING = ("rename", "renameat", "renameat2", "fsync", "unlink", "unlinkat", "rmdir", "ftruncate", "mkdir")
RECIPE = """\
name: tiny
seed: 3
data:
  src_lang: de
  trg_lang: en
  train: [{src: corpus/train.de, trg: corpus/train.en}]
  valid: {src: corpus/valid.de, trg: corpus/valid.en}
  max_ratio: 9.0
subwords: {vocab_size: 320}
model: {d_model: 16, d_inner: 32, n_enc_layer: 1, n_dec_layer: 1, n_head: 2, dropout: 0.1, norm: pre}
batch: {max_tokens: 120}
optim: {lr: 3.0e-3, schedule: constant, warmup: 5, clip: 1.0}
train: {out: run, updates: 20, save_every: 5, log_every: 1, ema: 0.9, precision: fp32, device: cpu, threads: 1}
valid: {every: 10, max_tokens: 400, max_sentences: 3}
decode: {max_len_a: 1.0, max_len_b: 5}
"""
WORDS = [("ein", "a"), ("der", "the"), ("Mann", "man"), ("Hund", "dog"), ("rot", "red"), ("groß", "big")]
UNTIMED = ("seconds", "tokens_per_second", "rss_mb")  # of a line of the log: what two equal runs may differ in
SHORT = {
    "preprocess": ("kill old renameat2 1", "disk EDQUOT write 5", "signal SIGTERM 1", "twice"),
    "train": ("kill fsync 18", "disk EIO rename 5", "signal SIGINT 2", "damage 1", "full 0.5"),
    "translate": ("kill old fsync 2", "disk ENOSPC write 5", "damage 2", "twice"),
}


def write_corpus(folder: Path) -> None:
    """Write training pairs, and six to validate on; always the same."""
    for name, n, seed in (("train", 280, 1), ("valid", 6, 2)):
        draw = random.Random(seed)
        lines = [[draw.choice(WORDS) for _ in range(draw.randint(2, 9))] for _ in range(n)]
        for side, language in enumerate(("de", "en")):
            text = "".join(" ".join(word[side] for word in line) + "\n" for line in lines)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")


def digest(folder: Path) -> str:
    """SHA-256 over the names and contents of the files in a folder."""
    named = sorted((path.name, sha256_of(path)) for path in folder.iterdir() if path.is_file())
    return hashlib.sha256(repr(named).encode()).hexdigest()


def prepared(disk: Path) -> dict[str, str]:
    """The prepared folder: it is there whole or not at all."""
    return {"out": digest(disk / "out")} if (disk / "out").is_dir() else {}


def trained(disk: Path) -> dict[str, str]:
    """Each committed checkpoint, and the model. One that is not whole has its error for a digest."""
    run, found = Run(disk / "out"), {}
    folders = [run.checkpoint(update) for update in run.updates()]
    for folder in [*folders, *([run.model_folder] if run.model_folder.is_dir() else [])]:
        try:
            checkpoint.verify(folder)
            files = json.loads((folder / checkpoint.MANIFEST).read_bytes())["files"]
            tensors = {name: entry["sha256"] for name, entry in files.items() if name != checkpoint.STATE}
            found[folder.name] = repr(sorted(tensors.items()))
        except RunError as error:
            found[folder.name] = str(error)
    return found


def translated(disk: Path) -> dict[str, str]:
    """Each file that nmt-translate writes."""
    names = ("out", "links", "scores.json")
    return {name: sha256_of(disk / name) for name in names if (disk / name).is_file()}


@dataclass
class Job:
    """One command on one tiny job, and what it makes when nothing goes wrong.

    units: what of it is there whole, as {name: digest}. whole: at the end. old: what was made before with the flags
    `other`, and is to be replaced. passing: what may be there on the way. damaged: files to damage.
    """

    folder: Path
    name: str
    main: Callable[[list[str]], int]
    argv: list[str]
    units: Callable[[Path], dict[str, str]]
    other: tuple[str, ...] = ()
    damaged: str = ""
    whole: dict[str, str] = field(default_factory=dict)
    old: dict[str, str] = field(default_factory=dict)
    passing: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    outside: dict[str, tuple[int, int]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def disk(self) -> Path:
        """The folder that faults happen to."""
        return self.folder / "disk"

    def start(self, *flags: str, user: int = 0, talk: str = "talk") -> Child:
        """The command in a fork, not begun yet."""

        def body() -> int:
            os.chdir(self.folder)
            if user:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            code = self.main([*self.argv, *flags])
            if not user:
                Path("talk", "modules").write_text("\n".join(sorted(sys.modules)), encoding="utf-8")
            return code

        return Child(body, self.folder / "talk" / talk, {"TOKENIZERS_PARALLELISM": "false"})

    def clear(self, *, old: bool = False) -> tuple[str, ...]:
        """Leave nothing there, or what was made before. Returns the flags to give."""
        for path in self.disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if old:
            shutil.copytree(self.folder / "kept" / self.name, self.disk, dirs_exist_ok=True)
        return ("--overwrite",) if old else ()

    def learn(self) -> "Job":
        """Do the job undisturbed, and remember what is right."""
        self.clear()
        if self.other:
            must(self.start(*self.other).go().wait())
            self.old = self.units(self.disk)
            shutil.copytree(self.disk, self.folder / "kept" / self.name)
            self.clear()
        must(self.start().go().wait())
        preload((self.folder / "talk" / "modules").read_text(encoding="utf-8").split())
        self.clear()
        begin = time.monotonic()
        must(self.start().go().wait())
        self.seconds = time.monotonic() - begin
        self.whole, self.names, self.log = self.units(self.disk), self.listed(), self.logged()
        self.outside = self.others()
        assert self.whole and self.whole != self.old
        return self

    def listed(self) -> list[str]:
        """Every file of the disk."""
        return sorted(str(path.relative_to(self.disk)) for path in self.disk.rglob("*"))

    def others(self) -> dict[str, tuple[int, int]]:
        """Size and time of every file that the job is not to touch."""
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        parts = {path: path.relative_to(self.folder).parts[0] for path in paths}
        mine = [path for path in paths if parts[path] not in ("disk", "talk")]
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in mine}

    def logged(self) -> list[str]:
        """The lines of a log of training, without what depends on the clock."""
        file = self.disk / "out" / "log.jsonl"
        lines = map(json.loads, file.read_text(encoding="utf-8").splitlines()) if file.is_file() else ()
        return [str({k: v for k, v in line.items() if k not in UNTIMED}) for line in lines if line["kind"] != "time"]

    def after_fault(self, ended: Ended, *codes: int, old: bool = False) -> list[str]:
        """Return what does not hold after a fault. codes: how it may have ended; none: in any way."""
        wrong, there = wrong_end(ended), self.units(self.disk)
        if codes and ended.code not in codes:
            wrong.append(f"exit code {ended.code}, expected one of {codes}: {last_words(ended.said)}")
        for unit, found in there.items():
            before = self.old if old else {}
            if found not in (self.whole.get(unit), before.get(unit), self.passing.get(unit)):
                wrong.append(f"F1 {unit} is neither whole nor absent: {found[:200]}")
        if ended.code == 0 and there != self.whole:
            wrong.append(f"F2 exit code 0, and not all is there: {sorted(there)}")
        if 0 < ended.code < 128 and f"nmt-{self.name}: error:" not in ended.said:
            wrong.append(f"F3 no message: {last_words(ended.said)}")
        if self.others() != self.outside:
            wrong.append("F4 another file was changed")
        return wrong

    def again(self, *flags: str) -> list[str]:
        """Give the command again, unless all is done; what does not hold then."""
        if self.whole == self.units(self.disk) and self.name != "train":
            flags = ("--overwrite",)
        return self.at_the_end(self.start(*flags).go().wait())

    def at_the_end(self, ended: Ended) -> list[str]:
        """Return what does not hold after a command that was to end well."""
        if ended.code:
            return [f"F5 it does not finish: exit code {ended.code}: {last_words(ended.said)}"]
        wrong, there = self.after_fault(ended, 0), self.units(self.disk)
        wrong += [f"F5 {unit} has other bytes" for unit in self.whole if there.get(unit) != self.whole[unit]]
        left = sorted(set(self.listed()) - set(self.names) - {"out.journal.unused"})
        if left := [name for name in left if "damaged-" not in name]:  # kept aside to be looked at
            wrong.append(f"F5 left over: {left}")
        return wrong + (["F5 the log is another one"] if self.logged() != self.log else [])


def must(ended: Ended) -> None:
    """Raise RunError unless a command that nothing happened to ended well."""
    if ended.code:
        raise RunError(f"what nothing should go wrong in went wrong: {ended.said}")


# -- faults: each happens to a job, and returns what then did not hold -------------------------------------------------


def at_call(job: Job, *, what: str, call: str, n: int, old: bool) -> list[str]:
    """The n-th call of a kind kills the process, or fails. How often a bar is written is chance: it may not come."""
    flags = job.clear(old=old)
    ended = job.start(*flags).attach("-e", f"trace={call}", "-e", f"inject={call}:{what}:when={n}").go().wait()
    return job.after_fault(ended, *((0, 137) if "KILL" in what else (0, 1)), old=old) + job.again(*flags)


def at_random(job: Job, *, name: str, seed: int) -> list[str]:
    """A signal at a random moment; SIGKILL three times over."""
    draw, old = random.Random(seed), bool(job.old) and seed % 2 == 1
    flags, wrong = job.clear(old=old), list[str]()
    number = getattr(signal, name)
    for _ in range(3 if number == signal.SIGKILL else 1):
        child = job.start(*flags).go()
        time.sleep(draw.uniform(0, job.seconds))
        child.send(number)
        ended = child.wait()
        wrong += job.after_fault(ended, 0, 128 + number, old=old)
        if ended.code == 0:
            break
    return wrong + job.again(*flags)


def damage(job: Job, *, seed: int) -> list[str]:
    """A bit of one file flips after a kill, or its last byte is lost: what is whole is used, and nothing else."""
    draw = random.Random(seed)
    job.clear()
    child = job.start().go()
    while child.runs() and len(list(job.disk.glob(job.damaged))) < 2 + 6 * (job.name == "train"):
        if job.name == "translate" and any(path.stat().st_size > 2000 for path in job.disk.glob(job.damaged)):
            break
    child.send(signal.SIGKILL)
    child.wait()
    files = sorted(path for path in job.disk.glob(job.damaged) if path.stat().st_size)
    newest = [path for path in files if path.parent == files[-1].parent]
    file = draw.choice(newest)
    raw = bytearray(file.read_bytes())
    raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    file.write_bytes(raw if seed % 2 else raw[:-1])
    return job.again()


def twice(job: Job) -> list[str]:
    """A second command for the same files is refused, and the first goes on."""
    job.clear()
    first = job.start().go()
    while first.runs() and not job.listed():
        time.sleep(0.001)
    time.sleep(job.seconds / 4)
    first.send(signal.SIGSTOP)
    second = job.start(talk="second").go().wait()
    first.send(signal.SIGCONT)
    wrong = [] if second.code in (1, 2) else [f"the second ended with {second.code}: {last_words(second.said)}"]
    return wrong + job.at_the_end(first.wait())


def read_only(job: Job) -> list[str]:
    """A folder that may not be written to is refused before any work."""
    job.clear()
    wrong = job.after_fault(job.start(user=nobody()).go().wait(), 1, 2)
    return wrong + job.again()


def full(job: Job, *, share: float) -> list[str]:
    """The disk has room for a share of what is needed; then there is more."""
    job.clear()
    must(job.start().go().wait())
    need = sum(-(-path.stat().st_size // 4096) * 4096 for path in job.disk.rglob("*") if path.is_file())
    job.clear()

    def mount(*options: str) -> None:
        subprocess.run(["mount", *options, job.disk], check=True)

    mount("-t", "tmpfs", "-o", f"size={max(4096, int(share * need) // 4096 * 4096)}", "nmt-faults")
    try:
        wrong = job.after_fault(job.start().go().wait(), 1)
        mount("-o", f"remount,size={max(1 << 24, 20 * need)}")
        return wrong + job.again()
    finally:
        subprocess.run(["umount", "-l", job.disk], check=True)


def faults(job: Job, counts: Counter[str]) -> Iterator[tuple[str, Callable[[Job], list[str]]]]:
    """Name and fault of all that can happen to a job. counts: how often it makes each call."""
    for old in (False, True)[: 1 + bool(job.old)]:
        said = "old " if old else ""
        for call in (*NAMING, "write"):
            for n in spread(counts[call], 40 if call != "write" else 20):
                yield f"kill {said}{call} {n}", partial(at_call, what="signal=KILL", call=call, n=n, old=old)
            for error in ("EIO", "ENOSPC", "EDQUOT"):
                for n in spread(counts[call], 10):
                    happen = partial(at_call, what=f"error={error}", call=call, n=n, old=old)
                    yield f"disk {said}{error} {call} {n}", happen
    for n in range(20):
        yield f"kill at random {n}", partial(at_random, name="SIGKILL", seed=n)
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        for n in range(8):
            yield f"signal {name} {n}", partial(at_random, name=name, seed=n)
    if job.damaged:
        for n in range(40):
            yield f"damage {n}", partial(damage, seed=n)
    yield "twice", twice
    if nobody():
        yield "read-only", read_only
        for share in (0.1, 0.3, 0.5, 0.7, 0.9):
            yield f"full {share}", partial(full, share=share)


def spread(n: int, most: int) -> list[int]:
    """1 to n, or `most` of them, evenly spread and with both ends."""
    return sorted({1 + round(i * (n - 1) / max(1, most - 1)) for i in range(min(n, most))}) if n else []


# -- the sweep ---------------------------------------------------------------------------------------------------------


def jobs(folder: Path, names: list[str]) -> Iterator[Job]:
    """Make a corpus, its data and a run, and each job."""
    for name in ("corpus", "disk", "talk", "kept"):
        (folder / name).mkdir()
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    write_corpus(folder / "corpus")
    preload_commands()
    made = partial(Job, folder)
    must(made("preprocess", preprocess.main, ["recipe.yaml"], prepared).start().go().wait())
    always = ["recipe.yaml", "--train.save_every", "1", "--train.keep_last", "1000"]
    must(made("train", train.main, always, trained).start().go().wait())
    (folder / "out").symlink_to("run")  # so that what reads a disk reads the run
    passing = trained(folder)
    (folder / "out").unlink()
    files = ["--input", "corpus/train.de", "--output", "disk/out", "--alignments", "disk/links"]
    search = ["--device", "cpu", "--threads", "1", "--decode.beam", "2", "--decode.window", "40"]
    scores = ["--ref", "corpus/train.en", "--scores", "disk/scores.json"]
    shorter, fewer = ("--decode.max_len_b", "1"), ("--subwords.vocab_size", "300")
    every = [
        made("preprocess", preprocess.main, ["recipe.yaml", "--data.out", "disk/out"], prepared, other=fewer),
        made("train", train.main, ["recipe.yaml", "--train.out", "disk/out"], trained, passing=passing),
        made("translate", translate.main, ["run", *files, *scores, *search], translated, other=shorter),
    ]
    damaged = {"train": "out/checkpoints/update-*/*", "translate": "out.journal"}
    for job in every:
        if job.name in names:
            job.damaged = damaged.get(job.name, "")
            yield job.learn()


def calls_of(job: Job) -> Counter[str]:
    """Count how often a job makes each call."""
    trace = job.folder / "talk" / "calls"
    job.clear()
    job.start().attach("-e", f"trace={','.join(NAMING)},write", trace=trace).go().wait()
    lines = trace.read_text(encoding="utf-8").split("\n")
    return Counter(line.split()[1].partition("(")[0] for line in lines if "(" in line)


def sweep(job: Job, args: argparse.Namespace) -> bool:
    """Let faults happen to a job, and tell. Returns whether all were survived."""
    counts = Counter(dict.fromkeys((*NAMING, "write"), 40)) if args.short else calls_of(job)
    found = [(name, happen) for name, happen in faults(job, counts) if name.startswith(args.only)][:: args.every]
    if args.short:
        found = [(name, happen) for name, happen in found if name in SHORT[job.name]]
        assert len(found) == len(SHORT[job.name]), [name for name, _ in found]
    tried, survived = Counter[str](), Counter[str]()
    with tqdm(found, unit="fault", dynamic_ncols=True, file=sys.stderr) as bar, contextlib.suppress(KeyboardInterrupt):
        for name, happen in bar:
            bar.set_postfix_str(name)
            try:
                wrong = happen(job)
            except NmtError as error:
                wrong = [str(error)]
            tried[name.split()[0]] += 1
            survived[name.split()[0]] += not wrong
            for complaint in wrong:
                tqdm.write(f"FAILED nmt-{job.name}: {name}: {complaint}")
            if wrong:
                tqdm.write(f"  again: python tools/sweep_faults.py {job.name} --only '{name}'")
    for kind in tried:
        print(f"nmt-{job.name:11} {kind:10} {tried[kind]:5} tried {survived[kind]:5} survived")
    return bool(tried) and tried == survived and tried.total() == len(found)


def main() -> int:
    """Entry point. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="*", choices=[*SHORT, []], help="default: all three")
    parser.add_argument("--short", action="store_true", help="a few faults of each class")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose name begins so, like 'kill rename'")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th fault")
    args = parser.parse_args()
    if not has_strace():
        sys.exit("sweep_faults: error: strace is missing, or may not watch other processes")
    # A shell that starts us in the background has SIGINT ignored, and what we break would obey that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # In memory: what is tested is the order of the calls, not the disk.
    with tempfile.TemporaryDirectory(
        prefix="nmt-faults-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as folder:
        os.chmod(folder, 0o755)  # another user must get in
        good = [sweep(job, args) for job in jobs(Path(folder), args.command or list(SHORT))]
    if not nobody():
        print("not tried, for want of rights: full disks, folders that may not be written")
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
