"""Speed of nmt-preprocess beside SentencePiece on the same text: seconds and lines a second, in turns.

    python tools/bench_preprocessing.py SRC TRG [--turns 3] [--vocab 8000] [--workers 2] [--lines N]

nmt-preprocess does all that it does: it reads and hashes, filters, reports, learns a joint vocabulary of BPE, encodes
and writes, with the default options, a process of its own for each turn. SentencePiece learns BPE of the same size from
both files and encodes both, from Python, in a process of its own too and with as many threads; it neither filters nor
hashes nor reports, and its ids are only counted. In one turn both learn from all lines, in another from as many of them
as `--sample` says, drawn at random. Text is unpacked before, once for both. Names are looked for in the
current folder, then in the one that NMT_DATA names; without any it is canlaw-en-fr there. Needs the extra `bench`.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from nmt.data.lines import read_lines, without_ending, write_lines
from nmt.errors import DataError, NmtError
from nmt.extras import EXTRAS

_N_VALID = 1000
_CORPUS = ("canlaw-en-fr.train.en.gz", "canlaw-en-fr.train.fr.gz")
_WHO, _LEARNT_FROM = ("nmt", "peer"), ("all lines", "a sample")

# A turn of nmt-preprocess, alarms accepted.
_PREPARE = """
import json, sys
from pathlib import Path
from nmt.data.prepare import prepare
from nmt.recipe.reader import read_recipe
folder, overrides = json.loads(sys.argv[1])
stages = {}
prepare(read_recipe(None, overrides), Path(folder), overwrite=True, talk=lambda line: None, stages=stages)
print(json.dumps(stages))
"""

# What a turn of the peer runs. It prints one line of JSON, as ours does: seconds of each stage.
_PEER = """
import json, sys, time
import sentencepiece
files, model, n_thread, n_vocab, sample = json.loads(sys.argv[1])
begin = time.perf_counter()
sentencepiece.SentencePieceTrainer.train(
    input=",".join(files), model_prefix=model, model_type="bpe", vocab_size=n_vocab, character_coverage=1.0,
    num_threads=n_thread, input_sentence_size=sample, shuffle_input_sentence=bool(sample), minloglevel=2,
)
learnt = time.perf_counter()
processor, n_id = sentencepiece.SentencePieceProcessor(model_file=model + ".model"), 0
for name in files:
    with open(name, encoding="utf-8", newline="\\n") as file:
        while lines := file.readlines(1 << 24):
            n_id += sum(map(len, processor.encode([line[:-1] for line in lines], num_threads=n_thread)))
done = time.perf_counter()
print(json.dumps({"learn": learnt - begin, "encode": done - learnt}))
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="source and target, plain or compressed")
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="of each (3)")
    parser.add_argument("--vocab", type=int, default=8000, metavar="N", help="pieces (8000)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes or threads")
    parser.add_argument("--lines", type=int, default=0, metavar="N", help="pairs that are read, the first ones (all)")
    parser.add_argument(
        "--sample", type=int, default=200_000, metavar="N", help="lines of both sides to learn from, too (200,000)"
    )
    args = parser.parse_args(argv)
    if len(args.files) not in (0, 2):
        parser.error(f"{len(args.files)} files: expected a source and a target")
    if subprocess.run([sys.executable, "-c", "import sentencepiece"], capture_output=True, check=False).returncode:
        line = f"pip install '{EXTRAS['sentencepiece']['sentencepiece']}'"
        print(f"bench_preprocessing: error: no package 'sentencepiece': {line}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            n_pair, plain = _unpack([_located(file) for file in args.files or _CORPUS], folder, args.lines)
        except NmtError as error:
            print(f"bench_preprocessing: error: {error}", file=sys.stderr)
            return error.exit_code
        print(f"{n_pair:,} pairs, {sum(path.stat().st_size for path in plain):,} bytes, {args.workers} workers")
        seconds: dict[str, list[dict[str, float]]] = {f"{who}, {of}": [] for of in _LEARNT_FROM for who in _WHO}
        for number in range(1, args.turns + 1):
            for who, turns in seconds.items():
                begin, cores = time.perf_counter(), _core_seconds()
                sample = min(args.sample, 2 * n_pair) if who.endswith("sample") else 0
                if who.startswith("nmt"):
                    stages = _ours(plain, folder, args.vocab, args.workers, sample or 2 * n_pair)
                else:
                    task = [[str(path) for path in plain], str(folder / "peer"), args.workers, args.vocab, sample]
                    stages = _run([sys.executable, "-c", _PEER, json.dumps(task)])
                turns.append({**stages, "all": time.perf_counter() - begin, "cores": _core_seconds() - cores})
                told = ", ".join(f"{stage} {value:.1f}" for stage, value in turns[-1].items())
                print(f"turn {number}  {who:16} {told} s", flush=True)
    _print_result(seconds, n_pair)
    return 0


def _print_result(seconds: dict[str, list[dict[str, float]]], n_pair: int) -> None:
    medians = {
        who: {stage: statistics.median(turn[stage] for turn in turns) for stage in turns[0]}
        for who, turns in seconds.items()
    }
    # `cores`: seconds that they worked, all together; on a machine that is shared they tell more than the clock.
    print(f"\n{'medians':34}{'seconds':>9}{'pairs/s':>12}")
    for who, stages in medians.items():
        for stage, value in stages.items():
            print(f"{who:16} {stage:17}{value:9.1f}{n_pair / max(value, 1e-9):12,.0f}")
    for of in _LEARNT_FROM:
        ours, peer = (medians[f"{who}, {of}"] for who in _WHO)
        faster, less = (peer[stage] / ours[stage] for stage in ("all", "cores"))
        print(f"nmt-preprocess is {faster:.2f} times as fast where both learn from {of}; ", end="")
        print(f"the cores work 1/{less:.2f} as long")
    ours = medians[f"nmt, {_LEARNT_FROM[0]}"]
    longest = max((stage for stage in ours if stage not in ("all", "cores")), key=ours.__getitem__)
    serial = ours["learn"] / ours["all"]
    print(
        f"what bounds it: {longest} takes {ours[longest] / ours['all']:.0%}; learning, which one core does alone, "
        f"{serial:.0%}; the rest is shared by all cores"
    )


def _core_seconds() -> float:
    """Seconds that cores have worked for the processes that have ended: other people's work does not count in them."""
    times = os.times()
    return times.children_user + times.children_system


def _ours(plain: list[Path], folder: Path, n_vocab: int, n_worker: int, n_learnt: int) -> dict[str, float]:
    train, valid = (
        {"src": str(src), "trg": str(trg)} for src, trg in (plain, (folder / "valid.0", folder / "valid.1"))
    )
    overrides = [("data.train", json.dumps(train)), ("data.valid", json.dumps(valid))]
    overrides += [("subwords.vocab_size", str(n_vocab)), ("data.workers", str(n_worker)), ("name", "bench")]
    overrides.append(("subwords.max_train_lines", str(n_learnt)))
    languages = [path.suffix[1:] for path in plain]
    overrides += [("data.src_lang", languages[0]), ("data.trg_lang", languages[1])]
    shutil.rmtree(folder / "prepared", ignore_errors=True)  # rows that are there would not be encoded again
    task = [str(folder / "prepared"), [*overrides, ("data.alarms", "warn")]]
    return _run([sys.executable, "-c", _PREPARE, json.dumps(task)])


def _located(name: str) -> Path:
    """A file of this name here, or in the folder that NMT_DATA names."""
    for path in (Path(name), Path(os.environ.get("NMT_DATA", "."), name)):
        if path.exists():
            return path
    raise DataError(f"{name}: not found here, nor in the folder that NMT_DATA names.")


def _unpack(files: list[Path], folder: Path, n_line: int) -> tuple[int, list[Path]]:
    """Plain text for both, and the first lines of it to validate on; how many pairs there are, and the files."""
    plain, counts = list[Path](), list[int]()
    for n, file in enumerate(files):
        path = folder / f"train{_language(file)}"
        if n and path == plain[0]:
            path = folder / f"train.{n}"
        counts.append(0)

        def lines(n: int = n, file: Path = file) -> Iterator[str]:
            for line in itertools.islice(read_lines(file), n_line or None):
                counts[n] += 1
                yield line

        write_lines(path, lines())
        write_lines(folder / f"valid.{n}", itertools.islice(read_lines(path), _N_VALID))
        plain.append(path)
    if counts[0] != counts[1] or not counts[0]:
        raise DataError(f"{files[0]} has {counts[0]:,} lines and {files[1]} {counts[1]:,}: expected as many, and some.")
    return counts[0], plain


def _language(file: Path) -> str:
    """The language that a name tells, with its dot."""
    return Path(without_ending(file.name)).suffix or ".xx"


def _run(arguments: list[str]) -> dict[str, float]:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"bench_preprocessing: error: a turn failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    raise SystemExit(main())
