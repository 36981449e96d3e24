"""Speed of translation beside CTranslate2 with the same weights: python tools/bench_decoding.py RUN --input FILE

Each contender lives in processes of its own and they take turns, so that what the machine does meanwhile hits them
alike; figures are medians. What is timed is ids in, ids out: the search. Ours in fp32 and bf16, CTranslate2 in fp32 and
int8, on a GPU in fp16, bf16 and int8 with fp16; each as one process with one thread, as one with a thread a core, and
as one process a core. Of several sizes of a batch of the others the one with the best median counts.
Prints sentences/s, those of the first pass, which on a GPU records what later ones replay, subwords/s, how many lines
are those of CTranslate2 in fp32 or, without it, of the first contender, BLEU where there are references, and ratios.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch

import nmt
from nmt.data.arrays import Ragged
from nmt.data.batches import pad
from nmt.data.lines import read_lines
from nmt.data.subwords import EOS, PAD
from nmt.errors import NmtError
from nmt.evaluation.metrics import Texts, score
from nmt.export import huggingface
from nmt.export.ctranslate2 import entries, export, library
from nmt.models.transformer.Models import Transformer
from nmt.recipe.decode_options import DecodeConfig

Ids = list[list[int]]
Run = Callable[[Ids, int], Ids]  # of sentences, with so many in a batch if it is the others'
# What CTranslate2 computes in, and sentences of its batches: on a GPU what is fastest there.
THEIRS = {"cpu": ["float32", "int8"], "cuda": ["float16", "bfloat16", "int8_float16"]}
CT2_BATCH = {"cpu": [64], "cuda": [64, 256, 1024]}


# -- a worker, in a process of its own ---------------------------------------------------------------------------------


def ours(args: argparse.Namespace, arithmetic: str) -> Run:
    """Our search on batches of so many tokens. arithmetic: bf16, bf16+graphs."""
    model = nmt.load(args.run, device=args.device)
    precision, plus, _ = arithmetic.partition("+")
    # CTranslate2 divides by the length; so do we here.
    how = {"beam": args.beam, "n_best": 1, "length_penalty": "average", "alpha": 1.0, "max_tokens": args.max_tokens}
    how |= {"precision": precision, "cuda_graphs": bool(plus)}
    translator = model.translator(model.decode(**how))

    def run(sources: Ids, _: int) -> Ids:
        found: dict[int, list[int]] = {}
        for numbers, batch in translator.batches(sources):
            for number, hypotheses in zip(numbers, batch, strict=True):
                found[number] = hypotheses[0].ids
        return [found[number] for number in range(len(sources))]

    return run


def theirs(args: argparse.Namespace, arithmetic: str, threads: int) -> Run:
    """CTranslate2 with the same beam and the same limits of length, those of the longest line of a batch."""
    model = nmt.load(args.run, device="cpu")
    assert isinstance(model.model, Transformer)
    with tempfile.TemporaryDirectory() as folder:
        export(model.model, model.recipe, model.subwords, Path(folder), None)
        translator: Any = library().Translator(
            folder, device=args.device, compute_type=arithmetic, inter_threads=1, intra_threads=threads
        )
    src, trg = entries(model.subwords.src), entries(model.subwords.trg)
    number = {entry: i for i, entry in enumerate(trg)}

    def translate(batch: Ids, most: int) -> Ids:
        answers = translator.translate_batch(
            [[src[i] for i in ids] for ids in batch],
            beam_size=args.beam,
            length_penalty=1.0,
            max_decoding_length=most,
        )
        return [[number[entry] for entry in one.hypotheses[0]] for one in answers]

    return batch_by_batch(translate, model.recipe.decode)


def of_transformers(args: argparse.Namespace, arithmetic: str) -> Run:
    """`generate` of Hugging Face's transformers on batches of lines of like length, with the same limits of length."""
    model = nmt.load(args.run, device="cpu")
    assert isinstance(model.model, Transformer)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model"
        huggingface.export(model.model, model.recipe, model.subwords, place)
        peer: Any = huggingface.library().AutoModelForSeq2SeqLM.from_pretrained(place, local_files_only=True).eval()
    peer = peer.to(args.device, {"fp32": torch.float32, "bf16": torch.bfloat16}[arithmetic])

    @torch.inference_mode()
    def translate(batch: Ids, most: int) -> Ids:
        src_seq = pad(Ragged.of(batch), after=(EOS,)).to(args.device)
        out = peer.generate(
            input_ids=src_seq,
            attention_mask=src_seq != PAD,
            num_beams=args.beam,
            length_penalty=1.0,
            do_sample=False,
            max_length=most + 2,  # beside the symbols at both ends
        )
        return [row[1 : row.index(EOS) if EOS in row else None] for row in out.tolist()]

    return batch_by_batch(translate, model.recipe.decode)


def batch_by_batch(translate: Run, limits: DecodeConfig) -> Run:
    """Translator of batches of lines of like length, as others would make them themselves of all lines at once.

    But so each can have a limit of its own, that of its longest line: a translation that does not end would go on for
    many steps after all others.
    """

    def run(sources: Ids, n_batch: int) -> Ids:
        found: dict[int, list[int]] = {}
        order = sorted(range(len(sources)), key=lambda number: -len(sources[number]))
        for first in range(0, len(order), n_batch):
            some = order[first : first + n_batch]
            most = int(limits.max_len_a * max(len(sources[n]) for n in some)) + limits.max_len_b
            found |= zip(some, translate([sources[n] for n in some], most), strict=True)
        return [found[n] for n in range(len(sources))]

    return run


def work(args: argparse.Namespace) -> None:
    """Obey the lines of stdin: the numbers of the sentences to translate. Answers are JSON lines."""
    engine, arithmetic, threads = args.worker
    torch.set_num_threads(int(threads))
    model = nmt.load(args.run, device="cpu")
    ids = model.subwords.src.encode(list(islice(read_lines(args.input), args.lines)))
    if engine == "ct2":
        run = theirs(args, arithmetic, int(threads))
    else:
        run = ours(args, arithmetic) if engine == "nmt" else of_transformers(args, arithmetic)
    run(ids[:50], 50)
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        first, step, n_batch = json.loads(line)
        begin = time.perf_counter()
        found = run(ids[first::step], n_batch)
        print(json.dumps({"seconds": time.perf_counter() - begin, "found": found}), flush=True)


# -- who asks them -----------------------------------------------------------------------------------------------------


class Contender:
    """Some processes that share the sentences.

    sizes: of batches, in sentences; [0] for ours, whose batches are counted in tokens. seconds: of each pass, by the
    size. found: the translations, by the size.
    """

    def __init__(
        self, engine: str, arithmetic: str, workers: int, threads: int, argv: Sequence[str], sizes: Sequence[int]
    ) -> None:
        self.name = f"{engine} {arithmetic}, {workers} x {threads}"
        command = [sys.executable, __file__, *argv, "--worker", engine, arithmetic, str(threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", env=environment)
            for _ in range(workers)
        ]
        for process in self.processes:
            self._answer(process)
        self.seconds: dict[int, list[float]] = {size: [] for size in sizes}
        self.found: dict[int, Ids] = {}

    @property
    def best(self) -> int:
        """The size of a batch with the best median."""
        return min(self.seconds, key=lambda size: statistics.median(self.seconds[size]))

    def go(self) -> None:
        """Translate everything once with each size of a batch."""
        for size in self.seconds:
            n, begin = len(self.processes), time.perf_counter()
            for first, process in enumerate(self.processes):
                assert process.stdin is not None
                process.stdin.write(json.dumps([first, n, size]) + "\n")
                process.stdin.flush()
            parts = [self._answer(process)["found"] for process in self.processes]
            self.seconds[size].append(time.perf_counter() - begin)
            self.found[size] = [parts[i % n][i // n] for i in range(sum(map(len, parts)))]

    def _answer(self, process: "subprocess.Popen[str]") -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            sys.exit(f"bench_decoding: error: {self.name} ended with code {process.wait()}; what it said is above")
        return cast(dict[str, Any], json.loads(line))

    def leave(self) -> None:
        """End it."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def table(contenders: Sequence[Contender], bleu: Callable[[Ids], str]) -> Iterator[str]:
    """The lines to print. bleu: of translations as ids."""
    exact_one = next((one for one in contenders if one.name.startswith("ct2 float32,")), contenders[0])
    exact = exact_one.found[exact_one.best]
    speed = {one.name: len(exact) / statistics.median(one.seconds[one.best]) for one in contenders}
    kinds = list(dict.fromkeys(name.partition(",")[0] for name in speed))
    yield f"{'':24}{'sentences/s':>12}{'first pass':>12}{'subwords/s':>12}{'same lines':>12}{'BLEU':>8}{'a batch':>9}"
    for one in contenders:
        found, seconds = one.found[one.best], one.seconds[one.best]
        n_token = sum(len(ids) + 1 for ids in found)
        same = sum(a == b for a, b in zip(found, exact, strict=True)) / len(exact)
        yield (
            f"{one.name:24}{speed[one.name]:12.0f}{len(found) / seconds[0]:12.0f}"
            f"{n_token / statistics.median(seconds):12.0f}{same:12.1%}{bleu(found):>8}{one.best or '':>9}"
        )
    best = {what: max((one for one in speed if one.partition(",")[0] == what), key=speed.__getitem__) for what in kinds}
    for peer in (what for what in kinds if not what.startswith("nmt")):
        for own in (what for what in kinds if what.startswith("nmt")):
            yield f"{best[own]}: {speed[best[own]] / speed[best[peer]]:.2f}x {best[peer]}"


def bleu_of(args: argparse.Namespace) -> Callable[[Ids], str]:
    """Return a function that scores translations against --ref; "" without."""
    if not args.ref:
        return lambda _: ""
    model = nmt.load(args.run, device="cpu")
    references = list(islice(read_lines(args.ref), args.lines))

    def bleu(found: Ids) -> str:
        lines = [model.subwords.trg.decode(ids) for ids in found]
        texts = Texts(lines, [references], trg_lang=model.recipe.data.trg_lang)
        return f"{score(texts, ('bleu',))['bleu'].value:.2f}"

    return bleu


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The flags; --worker is for the processes that this one starts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run folder whose model CTranslate2 can hold")
    parser.add_argument("--input", required=True, help="source sentences")
    parser.add_argument("--ref", help="references of these sentences, for BLEU")
    parser.add_argument("--lines", type=int, default=1000, help="how many of them")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=16384, help="decode.max_tokens of ours")
    parser.add_argument(
        "--ct2-batch", type=int, nargs="+", help="sentences of a batch of the others; default: 64, GPU also 256, 1024"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, help="of the CPU, to use; default: all")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--ours", nargs="*", default=["fp32", "bf16"], choices=["fp32", "bf16", "int8"])
    parser.add_argument("--cuda-graphs", action="store_true", help="ours once more, with decode.cuda_graphs")
    parser.add_argument("--theirs", nargs="*", help="default: float32 int8; on a GPU float16 bfloat16 int8_float16")
    parser.add_argument("--hf", nargs="*", default=[], choices=["fp32", "bf16"], help="generate of transformers")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.theirs is None:
        args.theirs = THEIRS[args.device]
    args.ct2_batch = args.ct2_batch or CT2_BATCH[args.device]
    return args


def main() -> None:
    """Ask, or be asked."""
    argv = sys.argv[1:]
    args = parse(argv)
    try:
        if args.worker:
            work(args)
            return
        cores = 1 if args.device == "cuda" else args.cores or os.cpu_count() or 1
        graphs = [f"{one}+graphs" for one in args.ours if args.cuda_graphs]
        engines = {"nmt": [*args.ours, *graphs], "ct2": args.theirs, "hf": args.hf}
        ways = {(1, 1), (1, cores), (cores, 1)}
        contenders = [
            Contender(engine, arithmetic, workers, threads, argv, [0] if engine == "nmt" else args.ct2_batch)
            for engine, every in engines.items()
            for arithmetic in every
            for workers, threads in sorted(ways)
        ]
        for turn in range(args.rounds):
            for contender in contenders[turn % len(contenders) :] + contenders[: turn % len(contenders)]:
                contender.go()
        for line in table(contenders, bleu_of(args)):
            print(line)
        for contender in contenders:
            contender.leave()
    except NmtError as error:
        sys.exit(f"bench_decoding: error: {error}")


if __name__ == "__main__":
    main()
