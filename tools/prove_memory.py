"""Does the memory of nmt-preprocess stay where it is? python tools/prove_memory.py [SRC TRG] [--pairs 1000000 10000000]

Makes corpora of --pairs pairs from the pairs of a corpus, prepares each in a process of its own, and prints seconds,
pairs a second, bytes on the disk for each pair, and the peak of the memory: of that process and its helpers together,
as Linux tells it every tenth of a second (shared pages are counted once, by their share). The median of some runs
counts, for what a helper has in memory when it is told is chance. Then it opens what was prepared as nmt-train does and
prints how long it takes until the first batch is there, with words as they are stored and cut anew, and the memory of
that.

A pair is made of two pairs drawn by a seed, put together side by side, with all numbers in it drawn anew, the same on
both sides: so hardly any pair comes twice, and sentences of the corpus are still sentences. Without files it takes
canlaw-en-fr in the folder that NMT_DATA names. Exits 1 if the peak grows by more than a tenth from the first size to
the last, or is over 2 GiB.
"""

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from preparing import CORPUS, command, pairs_of

from nmt.errors import DataError, NmtError

_MOST_READ = 200_000  # pairs of the corpus that others are made from
_LONGEST = 300  # characters of a pair's sides that are put together
_MOST_GROWTH = 1.10
_MOST_BYTES = 2 << 30
_PATIENCE = 0.1
_NUMBER = re.compile(r"\d+")
_N_VALID = 1000

_BEGIN = """
import json, sys, time
from nmt.data.corpus import Prepared
from nmt.data.plan import Position
from nmt.recipe.reader import read_recipe
from nmt.kernels.allocator import keep_freed_blocks
from nmt.training.feed import Feed
from nmt.training.parallel import Ranks
keep_freed_blocks(in_large_pages=True)
begin = time.perf_counter()
data = Prepared.open(sys.argv[1])
opened = time.perf_counter()
rate = ("batch.bpe_dropout", sys.argv[2])
portions = Feed(read_recipe(None, [("name", "memory"), rate]), data, Ranks()).begin(Position())
next(portions)
done = time.perf_counter()
print(json.dumps({"open": opened - begin, "first batch": done - begin}))
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="source and target, plain or compressed")
    parser.add_argument("--pairs", type=int, nargs="+", default=[1_000_000, 10_000_000], metavar="N", help="sizes")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="preparations of each size; the median counts")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--folder", metavar="DIR", help="where to write: a corpus of the largest size, and its data")
    args = parser.parse_args(argv)
    if len(args.files) not in (0, 2):
        parser.error(f"{len(args.files)} files: expected a source and a target")
    if not Path("/proc/self/smaps_rollup").exists():
        print("prove_memory: error: only Linux tells what is asked here: no /proc/self/smaps_rollup", file=sys.stderr)
        return 2
    try:
        files = args.files or CORPUS
        pairs = pairs_of(files, _MOST_READ)
        short = [(a, b) for a, b in pairs if a and b and len(a) + len(b) <= _LONGEST]
        if not short:
            raise DataError(f"{' and '.join(files)}: no pair with text on both sides, {_LONGEST} characters at most.")
    except NmtError as error:
        print(f"prove_memory: error: {error}", file=sys.stderr)
        return error.exit_code
    peaks = []
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        for n_pair in args.pairs:
            peaks.append(_one(folder, short, n_pair, args.workers, args.runs))
    growth = peaks[-1] / peaks[0]
    print(f"peak memory grows by {growth - 1:.1%} from {args.pairs[0]:,} to {args.pairs[-1]:,} pairs")
    return int(growth > _MOST_GROWTH or max(peaks) > _MOST_BYTES)


def made(pairs: Sequence[tuple[str, str]], n_pair: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Pairs put together from two others each, with other numbers."""
    rng = random.Random(seed)
    for _ in range(n_pair):
        one, other = rng.choice(pairs), rng.choice(pairs)
        change = rng.randrange(1, 1000)

        def anew(found: re.Match[str], change: int = change) -> str:
            return str((int(found[0][:6]) + change) % 1000)

        src, trg = (_NUMBER.sub(anew, f"{a} {b}") for a, b in zip(one, other, strict=True))
        yield src, trg


def _one(folder: Path, pairs: Sequence[tuple[str, str]], n_pair: int, n_worker: int, n_run: int) -> float:
    """The median peak of some preparations."""
    files = {f"{split}.{side}": folder / f"{split}.{side}" for split in ("train", "valid") for side in ("src", "trg")}
    for split, n, seed in (("train", n_pair, 1), ("valid", _N_VALID, 2)):
        with files[f"{split}.src"].open("wb") as src_file, files[f"{split}.trg"].open("wb") as trg_file:
            for src, trg in made(pairs, n, seed):
                src_file.write(src.encode("utf-8") + b"\n")
                trg_file.write(trg.encode("utf-8") + b"\n")
    n_byte = sum(path.stat().st_size for path in files.values())
    texts = {
        split: json.dumps({"src": str(files[f"{split}.src"]), "trg": str(files[f"{split}.trg"])})
        for split in ("train", "valid")
    }
    overrides = [("name", "memory"), ("data.train", texts["train"]), ("data.valid", texts["valid"])]
    overrides += [("data.src_lang", "en"), ("data.trg_lang", "fr"), ("data.workers", str(n_worker))]
    out = folder / "prepared"
    peaks = []
    for _ in range(n_run):
        shutil.rmtree(out, ignore_errors=True)
        begin = time.perf_counter()
        stages, peak, disk = _watched(command(out, overrides), folder)
        seconds = time.perf_counter() - begin
        peaks.append(peak)
        told = ", ".join(f"{stage} {value:.1f}" for stage, value in stages.items())
        print(
            f"{n_pair:>12,} pairs, {n_byte:,} bytes of text: {seconds:.0f} s, {n_pair / seconds:,.0f} pairs/s, "
            f"peak {peak / 2**20:,.0f} MiB\n{'':14}{told}",
            flush=True,
        )
    size = sum(path.stat().st_size for path in out.iterdir())
    print(
        f"{'':14}bytes a pair: {n_byte / n_pair:.0f} of text, {(disk - n_byte) / n_pair:.0f} on the disk at most while "
        f"it works, {size / n_pair:.0f} in the prepared folder"
    )
    for rate in ("0.0", "0.1"):
        begun, memory, _ = _watched([sys.executable, "-c", _BEGIN, str(out), rate], folder)
        told = ", ".join(f"{what} after {value:.1f} s" for what, value in begun.items())
        print(f"{'':14}training, bpe_dropout {rate}: {told}, peak {memory / 2**20:,.0f} MiB", flush=True)
    return statistics.median(peaks)


def _watched(arguments: list[str], folder: Path) -> tuple[dict[str, float], int, int]:
    """Return the JSON that a command prints, its peak memory with its children's, and the peak of bytes in a folder."""
    # Into files: nobody reads a pipe meanwhile, and a long run has more to say than a pipe holds.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(arguments, stdout=out, stderr=err)
        peak = most = 0
        while process.poll() is None:
            peak = max(peak, sum(_memory(pid) for pid in _family(process.pid)))
            most = max(most, _size(folder))
            time.sleep(_PATIENCE)
        said, complaint = (_all_of(file) for file in (out, err))
    if process.returncode:
        sys.exit(f"prove_memory: error: a run failed:\n{complaint[-2000:]}")
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return found, peak, most


def _all_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8")


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return []
    return [pid, *(one for child in children for one in _family(int(child)))]


def _memory(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _size(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total


if __name__ == "__main__":
    raise SystemExit(main())
