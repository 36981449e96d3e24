"""Compare the speed of nmt-preprocess with SentencePiece: python tools/bench_preprocessing.py [SRC TRG]

Both read the same text. nmt-preprocess does all its work: it reads and hashes, filters, reports, learns a joint BPE
vocabulary, encodes and writes. SentencePiece learns BPE of the same size and encodes with as many threads; its ids are
only counted. Each turn is a separate process, and the two alternate; figures are medians. Text is unpacked before.
Files are searched for here, then in the folder that NMT_DATA names; default: Multi30k. Needs the extra `bench`.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from nmt.data.lines import count_lines, read_lines, without_ending, write_lines

N_VALID = 1000
CORPUS = ["multi30k.train.de.gz", "multi30k.train.en.gz"]
# Programs of the two turns.
PREPARE = """
import json, sys
from pathlib import Path
from nmt.data.prepare import prepare
from nmt.recipe.reader import read_recipe
folder, options = json.loads(sys.argv[1])
prepare(read_recipe(None, options), Path(folder), overwrite=True, talk=lambda line: None)
"""
PEER = """
import json, sys
import sentencepiece
files, model, n_thread, n_vocab = json.loads(sys.argv[1])
sentencepiece.SentencePieceTrainer.train(
    input=",".join(files), model_prefix=model, model_type="bpe", vocab_size=n_vocab, character_coverage=1.0,
    num_threads=n_thread, minloglevel=2,
)
processor, n_id = sentencepiece.SentencePieceProcessor(model_file=model + ".model"), 0
for name in files:
    with open(name, encoding="utf-8", newline="\\n") as file:
        while lines := file.readlines(1 << 24):
            n_id += sum(map(len, processor.encode([line[:-1] for line in lines], num_threads=n_thread)))
"""


def unpack(name: str, folder: Path, n_line: int | None) -> Path:
    """Write the first lines of a file to a new folder, and some of them again to a file for validation, .valid."""
    path = next((path for path in (Path(name), Path(os.environ.get("NMT_DATA", "."), name)) if path.exists()), None)
    if path is None:
        sys.exit(f"bench_preprocessing: error: {name}: not found here, nor in the folder that NMT_DATA names.")
    folder.mkdir()
    plain = folder / without_ending(path.name)
    write_lines(plain, islice(read_lines(path), n_line))
    write_lines(Path(f"{plain}.valid"), islice(read_lines(plain), N_VALID))
    return plain


def turn(program: str, task: Sequence[object]) -> dict[str, float]:
    """Run a program. Returns its wall time and its CPU time over all cores, which other load hardly affects."""
    before, begin = os.times(), time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program, json.dumps(task)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"bench_preprocessing: error: a turn failed:\n{done.stderr[-2000:]}")
    after, wall = os.times(), time.perf_counter() - begin
    cores = after.children_user + after.children_system - before.children_user - before.children_system
    return {"wall": wall, "cores": cores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="source and target, plain or compressed")
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="of each (3)")
    parser.add_argument("--vocab", type=int, default=8000, metavar="N", help="pieces (8000)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes or threads")
    parser.add_argument("--lines", type=int, metavar="N", help="pairs that are read, the first ones (all)")
    args = parser.parse_args()
    if len(args.files) not in (0, 2):
        parser.error(f"{len(args.files)} files: expected a source and a target")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = [str(unpack(file, folder / str(n), args.lines)) for n, file in enumerate(args.files or CORPUS)]
        n_pair = count_lines(plain[0])
        (src, src_lang), (trg, trg_lang) = ((path, Path(path).suffix[1:] or "und") for path in plain)
        options = {"name": "bench", "data.workers": str(args.workers), "subwords.vocab_size": str(args.vocab)}
        options |= {"data.src_lang": src_lang, "data.trg_lang": trg_lang, "data.alarms": "warn"}
        for split, ending in (("train", ""), ("valid", ".valid")):
            options[f"data.{split}"] = json.dumps({"src": src + ending, "trg": trg + ending})
        print(f"{n_pair:,} pairs, {args.workers} workers")
        turns: dict[str, list[dict[str, float]]] = {"nmt": [], "peer": []}
        for _ in range(args.turns):
            shutil.rmtree(folder / "prepared", ignore_errors=True)
            turns["nmt"].append(turn(PREPARE, [str(folder / "prepared"), [*options.items()]]))
            turns["peer"].append(turn(PEER, [plain, str(folder / "peer"), args.workers, args.vocab]))
    medians = {
        name: {clock: statistics.median(times[clock] for times in results) for clock in results[0]}
        for name, results in turns.items()
    }
    print(f"{'medians':17}{'seconds':>9}{'pairs/s':>12}")
    for name, times in medians.items():
        for clock, seconds in times.items():
            print(f"{name:5}{clock:12}{seconds:9.1f}{n_pair / max(seconds, 1e-9):12,.0f}")
    wall, cores = (medians["peer"][clock] / medians["nmt"][clock] for clock in ("wall", "cores"))
    print(f"nmt-preprocess is {wall:.2f} times as fast as SentencePiece; the cores work 1/{cores:.2f} as long")


if __name__ == "__main__":
    main()
