"""Kinds of attention on one corpus, measured: python tools/compare_attention.py OUT [--minutes 5] [--seeds 1 2]

One recipe, recipes/multi30k.de-en.yaml, with one thing changed at a time: key/value heads (of all attentions; of the
decoder's alone, as Ainslie et al. 2023 have it; or with what they save given to the feed-forward sub-layers, as Shazeer
2019 did), how positions are told, where the norm stands; and beside it the LSTM of recipes/multi30k.de-en.lstm.yaml. In
parts, of which --only names some:

speed   Training tokens/s of all of them on the same batches, in turns, in one process. What a kind can do in --minutes
        at its median speed is its number of updates: the budget is one of time, and yet nothing hangs on what else the
        machine does while a model trains.
train   nmt-train, one run a kind and seed, with that many updates. What is in OUT already is not made again.
score   BLEU of every run on the test set, with its interval. What was scored already is not scored again.
decode  Sentences/s of the search on the test set, in turns.
cache   Milliseconds of one step of the search by the number of subwords that are written already, for an untrained
        model of size `base` with 8, 2 and 1 key/value heads, in turns: where the cache matters.

Without --only all of them follow each other; a table ends each call. Two calls with `--only train` and other --seeds
may work side by side if each has a core of its own (OMP_NUM_THREADS=1).
"""

import argparse
import itertools
import json
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

import nmt
from nmt.data.corpus import Prepared
from nmt.data.plan import Position
from nmt.data.subwords import BOS
from nmt.device import choose_device
from nmt.evaluation.metrics import score
from nmt.kernels import switch
from nmt.kernels.allocator import keep_freed_blocks
from nmt.models.build import build_model
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe
from nmt.training.engine import Engine
from nmt.training.feed import Feed
from nmt.training.materials import new_model
from nmt.training.memory import Work
from nmt.training.onednn_cache import enlarge_onednn_cache
from nmt.training.parallel import Ranks
from nmt.training.precision import choose_precision

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
TRANSFORMER, LSTM = "multi30k.de-en", "multi30k.de-en.lstm"
PARTS = ["speed", "train", "score", "decode", "cache"]
N_SAVE = 20  # checkpoints of a run; the last of them are averaged, as the recipes say

# Name in the table: recipe, and what is changed in it.
KINDS: dict[str, tuple[str, list[str]]] = {
    "MHA": (TRANSFORMER, []),
    "GQA": (TRANSFORMER, ["model.n_kv_head=2"]),
    "MQA": (TRANSFORMER, ["model.n_kv_head=1"]),
    "MQA, decoder": (TRANSFORMER, ["model.n_kv_head=1", "model.enc_n_kv_head=4"]),
    "MQA, wide": (TRANSFORMER, ["model.n_kv_head=1", "model.d_inner=800"]),
    "sinusoid": (TRANSFORMER, ["model.position=sinusoid", "model.rotary_enc_attn=false"]),
    "learned": (TRANSFORMER, ["model.position=learned", "model.rotary_enc_attn=false"]),
    "post-norm": (TRANSFORMER, ["model.norm=post"]),
    "LSTM": (LSTM, []),
}


def recipe_of(kind: str, out: Path) -> tuple[Path, list[str], Recipe]:
    """The recipe's file, what is changed in it, and what that makes."""
    name, changes = KINDS[kind]
    changes = [*changes, f"data.out={out / 'prepared'}"]
    path = RECIPES / f"{name}.yaml"
    pairs = [(name, value) for name, _, value in (change.partition("=") for change in changes)]
    return path, [f"--{change}" for change in changes], read_recipe(path, pairs)


def command(name: str, *parts: object) -> None:
    """One of the three commands, which may talk."""
    ended = subprocess.run([sys.executable, "-m", f"nmt.cli.{name}", *map(str, parts)])
    if ended.returncode:
        sys.exit(f"compare_attention: nmt-{name} {' '.join(map(str, parts))}: exit status {ended.returncode}")


class Results:
    """What was measured, by part and kind, in a file of OUT: parts may be made in different calls."""

    def __init__(self, out: Path) -> None:
        self.path = out / "measured.json"

    def by_part(self) -> dict[str, dict[str, Any]]:
        """What is known by now."""
        found: dict[str, dict[str, Any]] = json.loads(self.path.read_text()) if self.path.exists() else {}
        return found

    def add(self, part: str, values: dict[str, Any]) -> None:
        """Remember, and say."""
        all_parts = self.by_part()
        all_parts.setdefault(part, {}).update(values)
        self.path.write_text(json.dumps(all_parts, indent=1))
        print(f"{part}: {json.dumps(values)}", flush=True)


def in_turns(rates: dict[str, list[float]]) -> dict[str, float]:
    """The speed of each kind, from what it had in every round.

    Within a round a machine is as slow to one kind as to the next: so a kind's speed is the median of what it has of
    the mean of its round, times the median of those means.
    """
    means = [statistics.geometric_mean(each) for each in zip(*rates.values(), strict=True)]
    return {
        kind: statistics.median(rate / mean for rate, mean in zip(its, means, strict=True)) * statistics.median(means)
        for kind, its in rates.items()
    }


# -- training speed ----------------------------------------------------------------------------------------------------


class Trainer:
    """One kind that is trained batch by batch."""

    def __init__(self, recipe: Recipe, n: int) -> None:
        data, device = Prepared.open(recipe.data.out), choose_device(recipe.train.device, "--train.device")
        precision = choose_precision(recipe.train, device)
        portions = Feed(recipe, data, Ranks()).begin(Position())
        works = (work for portion in portions for work in portion.work)
        self.works: list[Work] = list(itertools.islice(works, n))
        self.model = new_model(recipe, data, device).train()
        self.engine = Engine(self.model, recipe, precision=precision, ranks=Ranks())
        self.rate(0)

    def rate(self, n: int) -> float:
        """Train on a batch: target tokens/s."""
        work, begin = self.works[n], time.perf_counter()
        self.engine.backward([work], work.batch.n_gold)
        self.engine.step(1e-3, update=1)
        self.engine.settle()
        return work.batch.n_gold / (time.perf_counter() - begin)


def measure_speed(kinds: Sequence[str], out: Path, minutes: float, rounds: int) -> dict[str, Any]:
    """Parameters of each kind, tokens/s, and the updates that `minutes` have room for."""
    keep_freed_blocks(in_large_pages=True)  # these two as nmt-train does
    enlarge_onednn_cache()
    trainers = {kind: Trainer(recipe_of(kind, out)[2], rounds) for kind in kinds}
    rates: dict[str, list[float]] = {kind: [0.0] * rounds for kind in kinds}
    order = random.Random(1)
    for n in range(rounds):
        for kind in order.sample(kinds, len(kinds)):
            rates[kind][n] = trainers[kind].rate(n)
    speeds, found = in_turns(rates), {}
    for kind, trainer in trainers.items():
        per_update = statistics.mean(work.batch.n_gold for work in trainer.works)
        found[kind] = {
            "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
            "tokens_per_second": speeds[kind],
            "updates": int(minutes * 60 * speeds[kind] / per_update),
        }
    return found


# -- training ----------------------------------------------------------------------------------------------------------


def run_of(out: Path, kind: str, seed: int) -> Path:
    """Where a run is."""
    return out / f"{kind}.{seed}"


def train(kind: str, seed: int, out: Path, updates: int) -> None:
    """One run, made or made to its end; one that is finished says so and is left."""
    path, changes, _ = recipe_of(kind, out)
    command(
        "train", path, *changes, "--train.out", run_of(out, kind, seed), "--seed", seed, "--train.updates", updates,
        "--train.save_every", -(-updates // N_SAVE), "--valid.every", updates,
    )  # fmt: skip


# -- decoding ----------------------------------------------------------------------------------------------------------


def sources_and_references(out: Path) -> tuple[list[str], list[str]]:
    """The test set."""
    test = Prepared.open(out / "prepared").test
    assert test is not None
    return test.texts()


def measure_quality(kind: str, seed: int, out: Path) -> dict[str, Any]:
    """BLEU of one run, with its interval."""
    sources, references = sources_and_references(out)
    texts = [one.text for one in nmt.load(run_of(out, kind, seed)).translate(sources)]
    one = score(texts, references, ["bleu"], trg_lang="en", intervals=True)["bleu"]
    return {run_of(out, kind, seed).name: {"value": one.value, "low": one.low, "high": one.high, "text": one.text}}


def measure_decoding(kinds: Iterable[str], seed: int, out: Path, rounds: int) -> dict[str, Any]:
    """Sentences/s of one run of each kind, in turns."""
    sources, _ = sources_and_references(out)
    models = {kind: nmt.load(run_of(out, kind, seed)) for kind in kinds}
    rates: dict[str, list[float]] = {kind: [] for kind in models}
    for _ in range(rounds):
        for kind, model in models.items():
            begin = time.perf_counter()
            model.translate(sources)
            rates[kind].append(len(sources) / (time.perf_counter() - begin))
    return {kind: {"sentences_per_second": speed} for kind, speed in in_turns(rates).items()}


def cache_bytes(config: ModelConfig) -> int:
    """Bytes in fp32 that a written subword leaves behind in all layers; a recurrent state does not grow."""
    if config.is_recurrent:
        return 0
    n_kv_head, d_k = config.n_kv_head or config.n_head, config.d_k or config.d_model // config.n_head
    return config.n_dec_layer * n_kv_head * (d_k + (config.d_v or d_k)) * 4


# -- where the cache matters -------------------------------------------------------------------------------------------


class Search:
    """An untrained model that writes on and on."""

    def __init__(self, n_kv_head: int, n_vocab: int, n_sentence: int, beam: int) -> None:
        torch.manual_seed(1)
        self.model = build_model(ModelConfig(preset="base", n_kv_head=n_kv_head), n_vocab, n_vocab).eval()
        self.rows = torch.arange(n_sentence * beam)
        self.words = torch.full((n_sentence * beam,), BOS)
        self.state = self.model.start(torch.randint(4, n_vocab, (n_sentence, 24)))
        self.state.reorder(torch.arange(n_sentence).repeat_interleave(beam))

    def write(self, n: int) -> float:
        """n more subwords. Returns seconds a step: the median."""
        seconds = []
        for _ in range(n):
            begin = time.perf_counter()
            logits = self.model.step(self.words, self.state)
            self.words = logits[:, 4:].argmax(1) + 4
            self.state.reorder(self.rows)
            seconds.append(time.perf_counter() - begin)
        return statistics.median(seconds)


@torch.inference_mode()
def measure_cache(lengths: list[int], n_sentence: int, beam: int) -> dict[str, Any]:
    """Milliseconds a step of 8, 2 and 1 key/value heads, by the length that is written: the last four steps before."""
    searches = {n: Search(n, 8000, n_sentence, beam) for n in (8, 2, 1)}
    found, written = {}, 0
    for length in lengths:
        for search in searches.values():
            search.write(length - 4 - written)
        timed: dict[int, list[float]] = {n: [] for n in searches}
        for _ in range(4):
            for n, search in searches.items():
                timed[n].append(search.write(1))
        written = length
        found[f"{n_sentence} x {beam}, {length}"] = {n: 1e3 * statistics.median(each) for n, each in timed.items()}
    return found


# -- the whole ---------------------------------------------------------------------------------------------------------


def table(measured: dict[str, dict[str, Any]], out: Path) -> None:
    """Print what is known, as Markdown."""
    print("\n| kind | parameters | training tok/s | updates | decoding sent/s | cache, bytes a subword | BLEU |")
    print("|---|---:|---:|---:|---:|---:|---|")
    scores, decoded = measured.get("score", {}), measured.get("decode", {})
    for kind, speed in measured.get("speed", {}).items():
        runs = [scores[name] for name in sorted(scores) if name.rpartition(".")[0] == kind]
        bleu = "; ".join(f"{one['value']:.1f} ({one['low']:.1f} … {one['high']:.1f})" for one in runs)
        rate = f"{decoded[kind]['sentences_per_second']:.1f}" if kind in decoded else ""
        print(
            f"| {kind} | {speed['parameters']:,} | {speed['tokens_per_second']:,.0f} | {speed['updates']:,} | {rate} | "
            f"{cache_bytes(recipe_of(kind, out)[2].model):,} | {bleu} |"
        )
    print("\n| sentences x beam, subwords written | MHA, ms a step | GQA | MQA | GQA | MQA |")
    print("|---|---:|---:|---:|---:|---:|")
    for shape, ms in measured.get("cache", {}).items():
        ratios = f"{ms['8'] / ms['2']:.2f}x | {ms['8'] / ms['1']:.2f}x"
        print(f"| {shape} | {ms['8']:.1f} | {ms['2']:.1f} | {ms['1']:.1f} | {ratios} |")


def main() -> None:
    """Measure what the command line names, and print what is known by then."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="Folder for prepared data, runs and what was measured.")
    parser.add_argument("--minutes", type=float, default=5.0, help="of training, for each run")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    for flag, names in (("--kinds", list(KINDS)), ("--only", PARTS)):
        about = f"some of: {shlex.join(names)} (default: all)"
        parser.add_argument(flag, nargs="+", choices=names, default=names, metavar="NAME", help=about)
    parser.add_argument("--rounds", type=int, default=60, help="turns of each kind where speeds are compared")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    results = Results(args.out)
    if not (args.out / "prepared").is_dir():
        path, changes, _ = recipe_of("MHA", args.out)
        command("preprocess", path, *changes)
    if "speed" in args.only:
        results.add("speed", measure_speed(args.kinds, args.out, args.minutes, args.rounds))
    if "train" in args.only:
        for seed in args.seeds:
            for kind in args.kinds:
                train(kind, seed, args.out, results.by_part()["speed"][kind]["updates"])
    if "score" in args.only:
        for kind, seed in itertools.product(args.kinds, args.seeds):
            if run_of(args.out, kind, seed).name not in results.by_part().get("score", {}):
                results.add("score", measure_quality(kind, seed, args.out))
    if "decode" in args.only:
        rounds = max(1, args.rounds // 10)
        results.add("decode", measure_decoding(args.kinds, args.seeds[0], args.out, rounds))
    if "cache" in args.only:
        keep_freed_blocks()  # these two as nmt-translate does
        switch.use(not switch.why_not())
        for n_sentence, beam in ((16, 5), (64, 1)):
            results.add("cache", measure_cache([16, 64, 128, 256], n_sentence, beam))
    table(results.by_part(), args.out)


if __name__ == "__main__":
    main()
