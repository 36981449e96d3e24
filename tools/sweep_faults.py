"""Inject faults into the three commands, and check that nothing is lost: python tools/sweep_faults.py [--short]

Each command first does a tiny job undisturbed. Then the faults are injected, one at a time:

    kill       SIGKILL at every call that names, syncs or removes a file, at writes, and at random moments
    disk       EIO, ENOSPC and EDQUOT from those calls
    damage     SIGKILL, and then a flipped bit in a checkpoint or journal, or a lost last byte
    signal     SIGTERM, SIGINT, SIGHUP at random moments
    twice      a second command for the same files while the first one works
    full       a disk with room for a share of the output (needs the right to mount)
    read-only  a folder without write permission (needs the right to become another user)

After each fault every output is whole, old or absent (F1); exit code 0 means that all outputs exist (F2); an error has
a message and no traceback (F3); no process is left and no other file changed (F4); and the same command finishes with
the same bytes and no leftovers (F5). Prints for each class the numbers of faults tried and survived, and a command to
repeat each failure. Needs Linux and strace.
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

from fault_process import Child, Ended, failures_of, has_strace, last_lines, nobody, preload, preload_commands
from tqdm import tqdm

from nmt import checkpoint
from nmt.cli import preprocess, train, translate
from nmt.errors import NmtError, RunError
from nmt.files import sha256_of
from nmt.run import Run

# System calls that change or sync names and lengths of files. Python and Rust use different ones.
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
VARYING = ("seconds", "tokens_per_second", "rss_mb")  # fields of the log that differ between equal runs
SHORT = {
    "preprocess": ("kill old renameat2 1", "disk EDQUOT write 5", "signal SIGTERM 1", "twice"),
    "train": ("kill fsync 18", "disk EIO rename 5", "signal SIGINT 2", "damage 1", "full 0.5"),
    "translate": ("kill old fsync 2", "disk ENOSPC write 5", "damage 2", "twice"),
}


def write_corpus(folder: Path) -> None:
    """Write training pairs and six validation pairs, always the same."""
    for name, n_pair, seed in (("train", 280, 1), ("valid", 6, 2)):
        rng = random.Random(seed)
        lines = [[rng.choice(WORDS) for _ in range(rng.randint(2, 9))] for _ in range(n_pair)]
        for side, language in enumerate(("de", "en")):
            text = "".join(" ".join(word[side] for word in line) + "\n" for line in lines)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")


def digest(folder: Path) -> str:
    """Return SHA-256 over the names and contents of the files in a folder."""
    contents = sorted((path.name, sha256_of(path)) for path in folder.iterdir() if path.is_file())
    return hashlib.sha256(repr(contents).encode()).hexdigest()


def prepared(disk: Path) -> dict[str, str]:
    """Return the digest of the prepared folder, if it exists."""
    return {"out": digest(disk / "out")} if (disk / "out").is_dir() else {}


def trained(disk: Path) -> dict[str, str]:
    """Return digests of the committed checkpoints and the model. A damaged one has its error as digest."""
    run, digests = Run(disk / "out"), {}
    folders = [run.checkpoint(update) for update in run.updates()]
    for folder in [*folders, *([run.model_folder] if run.model_folder.is_dir() else [])]:
        try:
            checkpoint.verify(folder)
            files = json.loads((folder / checkpoint.MANIFEST).read_bytes())["files"]
            tensors = {name: entry["sha256"] for name, entry in files.items() if name != checkpoint.STATE}
            digests[folder.name] = repr(sorted(tensors.items()))
        except RunError as error:
            digests[folder.name] = str(error)
    return digests


def translated(disk: Path) -> dict[str, str]:
    """Return digests of the files that nmt-translate writes."""
    names = ("out", "links", "scores.json")
    return {name: sha256_of(disk / name) for name in names if (disk / name).is_file()}


@dataclass
class Job:
    """A command with a tiny job, and its outputs without faults.

    units: returns {name: digest} of the outputs on the disk. whole: outputs at the end. old: outputs of an earlier
    command with `old_flags`, which are replaced. intermediate: outputs allowed on the way. damaged: files to damage.
    """

    folder: Path
    name: str
    main: Callable[[list[str]], int]
    argv: list[str]
    units: Callable[[Path], dict[str, str]]
    old_flags: tuple[str, ...] = ()
    damaged: str = ""
    whole: dict[str, str] = field(default_factory=dict)
    old: dict[str, str] = field(default_factory=dict)
    intermediate: dict[str, str] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    outside: dict[str, tuple[int, int]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def disk(self) -> Path:
        """Folder of the outputs, which the faults affect."""
        return self.folder / "disk"

    def start(self, *flags: str, user: int = 0, output: str = "talk") -> Child:
        """Return the command in a fork that waits."""

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

        return Child(body, self.folder / "talk" / output, {"TOKENIZERS_PARALLELISM": "false"})

    def clear(self, *, old: bool = False) -> tuple[str, ...]:
        """Empty the disk, or restore the old outputs. Returns the flags of the next command."""
        for path in self.disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if old:
            shutil.copytree(self.folder / "kept" / self.name, self.disk, dirs_exist_ok=True)
        return ("--overwrite",) if old else ()

    def record(self) -> "Job":
        """Do the job undisturbed, and record its outputs."""
        self.clear()
        if self.old_flags:
            require_success(self.start(*self.old_flags).go().wait())
            self.old = self.units(self.disk)
            shutil.copytree(self.disk, self.folder / "kept" / self.name)
            self.clear()
        require_success(self.start().go().wait())
        preload((self.folder / "talk" / "modules").read_text(encoding="utf-8").split())
        self.clear()
        begin = time.monotonic()
        require_success(self.start().go().wait())
        self.seconds = time.monotonic() - begin
        self.whole, self.paths, self.log = self.units(self.disk), self.list_paths(), self.read_log()
        self.outside = self.stat_outside()
        assert self.whole and self.whole != self.old
        return self

    def list_paths(self) -> list[str]:
        return sorted(str(path.relative_to(self.disk)) for path in self.disk.rglob("*"))

    def stat_outside(self) -> dict[str, tuple[int, int]]:
        """Return size and time of every file that the job must not touch."""
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        parts = {path: path.relative_to(self.folder).parts[0] for path in paths}
        outside = [path for path in paths if parts[path] not in ("disk", "talk")]
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in outside}

    def read_log(self) -> list[str]:
        """Return the lines of a training log without the fields that vary."""
        file = self.disk / "out" / "log.jsonl"
        lines = map(json.loads, file.read_text(encoding="utf-8").splitlines()) if file.is_file() else ()
        return [str({k: v for k, v in line.items() if k not in VARYING}) for line in lines if line["kind"] != "time"]

    def after_fault(self, ended: Ended, *codes: int, old: bool = False) -> list[str]:
        """Return the failures after a fault. codes: allowed exit codes; none: all."""
        failures, units = failures_of(ended), self.units(self.disk)
        if codes and ended.code not in codes:
            failures.append(f"exit code {ended.code}, expected one of {codes}: {last_lines(ended.output)}")
        for name, unit in units.items():
            before = self.old if old else {}
            if unit not in (self.whole.get(name), before.get(name), self.intermediate.get(name)):
                failures.append(f"F1 {name} is neither whole nor absent: {unit[:200]}")
        if ended.code == 0 and units != self.whole:
            failures.append(f"F2 exit code 0, and not all is there: {sorted(units)}")
        if 0 < ended.code < 128 and f"nmt-{self.name}: error:" not in ended.output:
            failures.append(f"F3 no message: {last_lines(ended.output)}")
        if self.stat_outside() != self.outside:
            failures.append("F4 another file was changed")
        return failures

    def repeat(self, *flags: str) -> list[str]:
        """Run the command again, with --overwrite if its outputs are complete. Returns the failures."""
        if self.whole == self.units(self.disk) and self.name != "train":
            flags = ("--overwrite",)
        return self.after_success(self.start(*flags).go().wait())

    def after_success(self, ended: Ended) -> list[str]:
        """Return the failures after a command that must succeed."""
        if ended.code:
            return [f"F5 it does not finish: exit code {ended.code}: {last_lines(ended.output)}"]
        failures, units = self.after_fault(ended, 0), self.units(self.disk)
        failures += [f"F5 {name} has other bytes" for name in self.whole if units.get(name) != self.whole[name]]
        leftovers = sorted(set(self.list_paths()) - set(self.paths) - {"out.journal.unused"})
        if leftovers := [name for name in leftovers if "damaged-" not in name]:  # damaged checkpoints are kept
            failures.append(f"F5 left over: {leftovers}")
        return failures + (["F5 the log is another one"] if self.read_log() != self.log else [])


def require_success(ended: Ended) -> None:
    """Raise RunError if a command without faults failed."""
    if ended.code:
        raise RunError(f"a command without faults failed: {ended.output}")


# -- faults: each is injected into a job, and returns the failures -----------------------------------------------------


def at_call(job: Job, *, action: str, call: str, n: int, old: bool) -> list[str]:
    """Kill the process at the n-th call of a kind, or let the call fail. With a progress bar it may never happen."""
    flags = job.clear(old=old)
    ended = job.start(*flags).attach("-e", f"trace={call}", "-e", f"inject={call}:{action}:when={n}").go().wait()
    return job.after_fault(ended, *((0, 137) if "KILL" in action else (0, 1)), old=old) + job.repeat(*flags)


def at_random(job: Job, *, name: str, seed: int) -> list[str]:
    """Send a signal at a random moment; SIGKILL to three commands in a row."""
    rng, old = random.Random(seed), bool(job.old) and seed % 2 == 1
    flags, failures = job.clear(old=old), list[str]()
    number = getattr(signal, name)
    for _ in range(3 if number == signal.SIGKILL else 1):
        child = job.start(*flags).go()
        time.sleep(rng.uniform(0, job.seconds))
        child.send(number)
        ended = child.wait()
        failures += job.after_fault(ended, 0, 128 + number, old=old)
        if ended.code == 0:
            break
    return failures + job.repeat(*flags)


def damage(job: Job, *, seed: int) -> list[str]:
    """Flip a bit of a file after a kill, or cut off its last byte. The next command must use only intact files."""
    rng = random.Random(seed)
    job.clear()
    child = job.start().go()
    while child.runs() and len(list(job.disk.glob(job.damaged))) < 2 + 6 * (job.name == "train"):
        if job.name == "translate" and any(path.stat().st_size > 2000 for path in job.disk.glob(job.damaged)):
            break
    child.send(signal.SIGKILL)
    child.wait()
    files = sorted(path for path in job.disk.glob(job.damaged) if path.stat().st_size)
    newest = [path for path in files if path.parent == files[-1].parent]
    file = rng.choice(newest)
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content if seed % 2 else content[:-1])
    return job.repeat()


def twice(job: Job) -> list[str]:
    """Start a second command for the same files. It must be refused, and the first must continue."""
    job.clear()
    first = job.start().go()
    while first.runs() and not job.list_paths():
        time.sleep(0.001)
    time.sleep(job.seconds / 4)
    first.send(signal.SIGSTOP)
    second = job.start(output="second").go().wait()
    first.send(signal.SIGCONT)
    failures = [] if second.code in (1, 2) else [f"the second ended with {second.code}: {last_lines(second.output)}"]
    return failures + job.after_success(first.wait())


def read_only(job: Job) -> list[str]:
    """Run the command without write permission for its folder. It must fail before any work."""
    job.clear()
    failures = job.after_fault(job.start(user=nobody()).go().wait(), 1, 2)
    return failures + job.repeat()


def full(job: Job, *, share: float) -> list[str]:
    """Run the command on a disk that is too small, then on a larger one."""
    job.clear()
    require_success(job.start().go().wait())
    n_byte = sum(-(-path.stat().st_size // 4096) * 4096 for path in job.disk.rglob("*") if path.is_file())
    job.clear()

    def mount(*options: str) -> None:
        subprocess.run(["mount", *options, job.disk], check=True)

    mount("-t", "tmpfs", "-o", f"size={max(4096, int(share * n_byte) // 4096 * 4096)}", "nmt-faults")
    try:
        failures = job.after_fault(job.start().go().wait(), 1)
        mount("-o", f"remount,size={max(1 << 24, 20 * n_byte)}")
        return failures + job.repeat()
    finally:
        subprocess.run(["umount", "-l", job.disk], check=True)


def faults(job: Job, counts: Counter[str]) -> Iterator[tuple[str, Callable[[Job], list[str]]]]:
    """Yield (name, fault) of all faults for a job. counts: numbers of its calls."""
    for old in (False, True)[: 1 + bool(job.old)]:
        prefix = "old " if old else ""
        for call in (*NAMING, "write"):
            for n in spread(counts[call], 40 if call != "write" else 20):
                yield f"kill {prefix}{call} {n}", partial(at_call, action="signal=KILL", call=call, n=n, old=old)
            for error in ("EIO", "ENOSPC", "EDQUOT"):
                for n in spread(counts[call], 10):
                    fault = partial(at_call, action=f"error={error}", call=call, n=n, old=old)
                    yield f"disk {prefix}{error} {call} {n}", fault
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


def spread(n: int, limit: int) -> list[int]:
    """Return 1 to n, or `limit` of these numbers, evenly spread and with both ends."""
    return sorted({1 + round(i * (n - 1) / max(1, limit - 1)) for i in range(min(n, limit))}) if n else []


# -- the sweep ---------------------------------------------------------------------------------------------------------


def jobs(folder: Path, names: list[str]) -> Iterator[Job]:
    """Make a corpus, prepared data and a run, and yield each job with its recorded outputs."""
    for name in ("corpus", "disk", "talk", "kept"):
        (folder / name).mkdir()
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    write_corpus(folder / "corpus")
    preload_commands()
    new_job = partial(Job, folder)
    require_success(new_job("preprocess", preprocess.main, ["recipe.yaml"], prepared).start().go().wait())
    save_all = ["recipe.yaml", "--train.save_every", "1", "--train.keep_last", "1000"]
    require_success(new_job("train", train.main, save_all, trained).start().go().wait())
    (folder / "out").symlink_to("run")  # `trained` reads the folder out
    intermediate = trained(folder)
    (folder / "out").unlink()
    files = ["--input", "corpus/train.de", "--output", "disk/out", "--alignments", "disk/links"]
    search = ["--device", "cpu", "--threads", "1", "--decode.beam", "2", "--decode.window", "40"]
    scores = ["--ref", "corpus/train.en", "--scores", "disk/scores.json"]
    shorter, fewer = ("--decode.max_len_b", "1"), ("--subwords.vocab_size", "300")
    all_jobs = [
        new_job("preprocess", preprocess.main, ["recipe.yaml", "--data.out", "disk/out"], prepared, old_flags=fewer),
        new_job("train", train.main, ["recipe.yaml", "--train.out", "disk/out"], trained, intermediate=intermediate),
        new_job("translate", translate.main, ["run", *files, *scores, *search], translated, old_flags=shorter),
    ]
    damaged = {"train": "out/checkpoints/update-*/*", "translate": "out.journal"}
    for job in all_jobs:
        if job.name in names:
            job.damaged = damaged.get(job.name, "")
            yield job.record()


def calls_of(job: Job) -> Counter[str]:
    """Count the system calls of a job."""
    trace = job.folder / "talk" / "calls"
    job.clear()
    job.start().attach("-e", f"trace={','.join(NAMING)},write", trace=trace).go().wait()
    lines = trace.read_text(encoding="utf-8").split("\n")
    return Counter(line.split()[1].partition("(")[0] for line in lines if "(" in line)


def sweep(job: Job, args: argparse.Namespace) -> bool:
    """Inject faults into a job, and print the results. Returns whether it survived all."""
    counts = Counter(dict.fromkeys((*NAMING, "write"), 40)) if args.short else calls_of(job)
    selected = [(name, fault) for name, fault in faults(job, counts) if name.startswith(args.only)][:: args.every]
    if args.short:
        selected = [(name, fault) for name, fault in selected if name in SHORT[job.name]]
        assert len(selected) == len(SHORT[job.name]), [name for name, _ in selected]
    tried, survived = Counter[str](), Counter[str]()
    progress = tqdm(selected, unit="fault", dynamic_ncols=True, file=sys.stderr)
    with progress as bar, contextlib.suppress(KeyboardInterrupt):
        for name, fault in bar:
            bar.set_postfix_str(name)
            try:
                failures = fault(job)
            except NmtError as error:
                failures = [str(error)]
            tried[name.split()[0]] += 1
            survived[name.split()[0]] += not failures
            for failure in failures:
                tqdm.write(f"FAILED nmt-{job.name}: {name}: {failure}")
            if failures:
                tqdm.write(f"  again: python tools/sweep_faults.py {job.name} --only '{name}'")
    for kind in tried:
        print(f"nmt-{job.name:11} {kind:10} {tried[kind]:5} tried {survived[kind]:5} survived")
    return bool(tried) and tried == survived and tried.total() == len(selected)


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
    # A shell that starts this in the background ignores SIGINT, and the commands would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # In memory: the sweep tests the order of the calls, not the disk.
    with tempfile.TemporaryDirectory(
        prefix="nmt-faults-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as folder:
        os.chmod(folder, 0o755)  # for another user
        results = [sweep(job, args) for job in jobs(Path(folder), args.command or list(SHORT))]
    if not nobody():
        print("not tried, for want of rights: full disks, folders that may not be written")
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
