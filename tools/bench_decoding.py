"""Compare translation speed with CTranslate2 on the same weights: python tools/bench_decoding.py RUN --input FILE

Each contender has its own processes, and they take turns, so that other load on the machine affects all alike; figures
are medians. The time is that of the search, from ids to ids. nmt runs in fp32 and bf16; CTranslate2 in fp32 and int8,
on a GPU in fp16, bf16 and int8 with fp16. Each runs as one process with one thread, as one process with a thread a
core, and as one process a core. For the other libraries the batch size with the best median counts.
Prints sentences/s; sentences/s of the first pass, which on a GPU records CUDA graphs; subwords/s; the share of lines
equal to those of CTranslate2 in fp32, or of the first contender without it; BLEU with --ref; and speed ratios.
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
from importlib import import_module
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
from nmt.export.ctranslate2 import entries, export
from nmt.models.transformer.Models import Transformer
from nmt.recipe.decode_options import DecodeConfig

Ids = list[list[int]]
Run = Callable[[Ids, int], Ids]  # (sentences, batch size) -> translations; nmt ignores the batch size
# Arithmetic and batch sizes of CTranslate2 by device: the fastest ones on a GPU.
THEIRS = {"cpu": ["float32", "int8"], "cuda": ["float16", "bfloat16", "int8_float16"]}
CT2_BATCH = {"cpu": [64], "cuda": [64, 256, 1024]}


# -- the worker process ------------------------------------------------------------------------------------------------


def ours(args: argparse.Namespace, arithmetic: str) -> Run:
    """Return the search of nmt with batches of --max-tokens. arithmetic: a precision, or with graphs: bf16+graphs."""
    model = nmt.load(args.run, device=args.device)
    precision, plus, _ = arithmetic.partition("+")
    # CTranslate2 divides by the length, so nmt does here.
    options = {"beam": args.beam, "n_best": 1, "length_penalty": "average", "alpha": 1.0, "max_tokens": args.max_tokens}
    options |= {"precision": precision, "cuda_graphs": bool(plus)}
    translator = model.translator(model.decode(**options))

    def run(sources: Ids, _: int) -> Ids:
        outputs: dict[int, list[int]] = {}
        for numbers, batch in translator.batches(sources):
            outputs.update(zip(numbers, (n_best[0].ids for n_best in batch), strict=True))
        return [outputs[number] for number in range(len(sources))]

    return run


def theirs(args: argparse.Namespace, arithmetic: str, threads: int) -> Run:
    """Return the search of CTranslate2 with the same beam and length limit, that of the longest line of a batch."""
    model = nmt.load(args.run, device="cpu")
    assert isinstance(model.model, Transformer)
    with tempfile.TemporaryDirectory() as folder:
        export(model.model, model.recipe, model.subwords, Path(folder), None)
        translator: Any = import_module("ctranslate2").Translator(
            folder, device=args.device, compute_type=arithmetic, inter_threads=1, intra_threads=threads
        )
    src, trg = entries(model.subwords.src), entries(model.subwords.trg)
    id_of = {entry: i for i, entry in enumerate(trg)}

    def translate(batch: Ids, max_len: int) -> Ids:
        results = translator.translate_batch(
            [[src[i] for i in ids] for ids in batch],
            beam_size=args.beam,
            length_penalty=1.0,
            max_decoding_length=max_len,
        )
        return [[id_of[entry] for entry in result.hypotheses[0]] for result in results]

    return batch_by_batch(translate, model.recipe.decode)


def of_transformers(args: argparse.Namespace, arithmetic: str) -> Run:
    """Return `generate` of Hugging Face's transformers on batches of similar length, with the same length limit."""
    model = nmt.load(args.run, device="cpu")
    assert isinstance(model.model, Transformer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        huggingface.export(model.model, model.recipe, model.subwords, path)
        peer: Any = huggingface.library().AutoModelForSeq2SeqLM.from_pretrained(path, local_files_only=True).eval()
    peer = peer.to(args.device, {"fp32": torch.float32, "bf16": torch.bfloat16}[arithmetic])

    @torch.inference_mode()
    def translate(batch: Ids, max_len: int) -> Ids:
        src_seq = pad(Ragged.of(batch), after=(EOS,)).to(args.device)
        out = peer.generate(
            input_ids=src_seq,
            attention_mask=src_seq != PAD,
            num_beams=args.beam,
            length_penalty=1.0,
            do_sample=False,
            max_length=max_len + 2,  # with the symbols at both ends
        )
        return [row[1 : row.index(EOS) if EOS in row else None] for row in out.tolist()]

    return batch_by_batch(translate, model.recipe.decode)


def batch_by_batch(translate: Run, limits: DecodeConfig) -> Run:
    """Return a function that translates batches of lines of similar length.

    The libraries would make the same batches from all lines, but with a single length limit. Here each batch has the
    limit of its longest line; otherwise a translation without end would continue for many steps after all others.
    """

    def run(sources: Ids, batch_size: int) -> Ids:
        outputs: dict[int, list[int]] = {}
        order = sorted(range(len(sources)), key=lambda number: -len(sources[number]))
        for first in range(0, len(order), batch_size):
            numbers = order[first : first + batch_size]
            max_len = int(limits.max_len_a * max(len(sources[n]) for n in numbers)) + limits.max_len_b
            outputs |= zip(numbers, translate([sources[n] for n in numbers], max_len), strict=True)
        return [outputs[n] for n in range(len(sources))]

    return run


def work(args: argparse.Namespace) -> None:
    """Translate the sentences that each line of stdin selects: [first, step, batch size]. Answers are JSON lines."""
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
        first, step, batch_size = json.loads(line)
        begin = time.perf_counter()
        outputs = run(ids[first::step], batch_size)
        print(json.dumps({"seconds": time.perf_counter() - begin, "outputs": outputs}), flush=True)


# -- the parent process ------------------------------------------------------------------------------------------------


class Contender:
    """Worker processes that share the sentences.

    sizes: batch sizes in sentences; [0] for nmt, which counts tokens. seconds: durations of the passes, by batch size.
    outputs: translations, by batch size.
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
            self._read_answer(process)
        self.seconds: dict[int, list[float]] = {size: [] for size in sizes}
        self.outputs: dict[int, Ids] = {}

    @property
    def best_size(self) -> int:
        """Batch size with the best median."""
        return min(self.seconds, key=lambda size: statistics.median(self.seconds[size]))

    def translate_all(self) -> None:
        """Translate all sentences once with each batch size."""
        for size in self.seconds:
            n, begin = len(self.processes), time.perf_counter()
            for first, process in enumerate(self.processes):
                assert process.stdin is not None
                process.stdin.write(json.dumps([first, n, size]) + "\n")
                process.stdin.flush()
            parts = [self._read_answer(process)["outputs"] for process in self.processes]
            self.seconds[size].append(time.perf_counter() - begin)
            self.outputs[size] = [parts[i % n][i // n] for i in range(sum(map(len, parts)))]

    def _read_answer(self, process: "subprocess.Popen[str]") -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            sys.exit(f"bench_decoding: error: {self.name} ended with code {process.wait()}; its messages are above")
        return cast(dict[str, Any], json.loads(line))

    def close(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def table(contenders: Sequence[Contender], bleu: Callable[[Ids], str]) -> Iterator[str]:
    """Yield the lines to print. bleu: scores translations as ids."""
    reference = next((c for c in contenders if c.name.startswith("ct2 float32,")), contenders[0])
    expected = reference.outputs[reference.best_size]
    speed = {c.name: len(expected) / statistics.median(c.seconds[c.best_size]) for c in contenders}
    kinds = list(dict.fromkeys(name.partition(",")[0] for name in speed))
    yield f"{'':24}{'sentences/s':>12}{'first pass':>12}{'subwords/s':>12}{'same lines':>12}{'BLEU':>8}{'a batch':>9}"
    for contender in contenders:
        name, size = contender.name, contender.best_size
        outputs, seconds = contender.outputs[size], contender.seconds[size]
        n_token = sum(len(ids) + 1 for ids in outputs)
        same = sum(a == b for a, b in zip(outputs, expected, strict=True)) / len(expected)
        yield (
            f"{name:24}{speed[name]:12.0f}{len(outputs) / seconds[0]:12.0f}"
            f"{n_token / statistics.median(seconds):12.0f}{same:12.1%}{bleu(outputs):>8}{size or '':>9}"
        )
    best = {
        kind: max((name for name in speed if name.partition(",")[0] == kind), key=speed.__getitem__) for kind in kinds
    }
    for peer in (kind for kind in kinds if not kind.startswith("nmt")):
        for ours in (kind for kind in kinds if kind.startswith("nmt")):
            yield f"{best[ours]}: {speed[best[ours]] / speed[best[peer]]:.2f}x {best[peer]}"


def bleu_of(args: argparse.Namespace) -> Callable[[Ids], str]:
    """Return a function that scores translations against --ref; without --ref it returns ""."""
    if not args.ref:
        return lambda _: ""
    model = nmt.load(args.run, device="cpu")
    references = list(islice(read_lines(args.ref), args.lines))

    def bleu(outputs: Ids) -> str:
        lines = [model.subwords.trg.decode(ids) for ids in outputs]
        texts = Texts(lines, [references], trg_lang=model.recipe.data.trg_lang)
        return f"{score(texts, ('bleu',))['bleu'].value:.2f}"

    return bleu


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the flags. --worker is for the processes that this one starts."""
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
    argv = sys.argv[1:]
    args = parse(argv)
    try:
        if args.worker:
            work(args)
            return
        cores = 1 if args.device == "cuda" else args.cores or os.cpu_count() or 1
        graphs = [f"{precision}+graphs" for precision in args.ours if args.cuda_graphs]
        engines = {"nmt": [*args.ours, *graphs], "ct2": args.theirs, "hf": args.hf}
        layouts = {(1, 1), (1, cores), (cores, 1)}  # processes and threads
        contenders = [
            Contender(engine, arithmetic, workers, threads, argv, [0] if engine == "nmt" else args.ct2_batch)
            for engine, arithmetics in engines.items()
            for arithmetic in arithmetics
            for workers, threads in sorted(layouts)
        ]
        for turn in range(args.rounds):
            for contender in contenders[turn % len(contenders) :] + contenders[: turn % len(contenders)]:
                contender.translate_all()
        for line in table(contenders, bleu_of(args)):
            print(line)
        for contender in contenders:
            contender.close()
    except NmtError as error:
        sys.exit(f"bench_decoding: error: {error}")


if __name__ == "__main__":
    main()
