"""Record what the commands make of fixed inputs, and compare another version of the package with that record.

    NMT_DATA=data python tools/golden.py freeze RECORD      # a folder: entries.json, and a small trained model
    NMT_DATA=data python tools/golden.py compare RECORD     # a line an entry: same, or the first difference

Takes whatever `nmt` is importable (PYTHONPATH of another checkout), in a temporary folder, on one thread. Losses and
scores are compared to the last digit, so a record is good for one machine, torch and C compiler; ids and vocabularies
are the same everywhere. NMT_DATA has Multi30k, and small-enja or not.
"""

import argparse
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import nmt

Entries = dict[str, Any]

CHECKOUT = Path(nmt.__file__).parents[1]
DATA = Path(os.environ.get("NMT_DATA", "data")).resolve()
N_LINE = 100  # of validation and of translation

# What each prepared folder is made of. Options of data and subwords alone.
MULTI30K = """
data:
  src_lang: de
  trg_lang: en
  train: {src: multi30k.train.de.gz, trg: multi30k.train.en.gz}
  valid: {src: valid.de, trg: valid.en}
  test: {src: multi30k.test_2016_flickr.de.gz, trg: multi30k.test_2016_flickr.en.gz}
  workers: 1
"""
ENJA = """
data:
  src_lang: en
  trg_lang: ja
  train: {src: small-enja.train.en.gz, trg: small-enja.train.ja.gz}
  valid: {src: small-enja.valid.en.gz, trg: small-enja.valid.ja.gz}
  drop_duplicates: true
  workers: 1
subwords: {kind: unigram, joint: false, vocab_size: 4000}
model: {emb_src_trg_weight_sharing: false}
"""
TAGGED = """
data:
  src_lang: und
  trg_lang: en
  train:
    - {src: multi30k.train.de.gz, trg: multi30k.train.en.gz, src_lang: de, trg_lang: en}
    - {src: multi30k.train.en.gz, trg: multi30k.train.de.gz, src_lang: en, trg_lang: de, tags: [back]}
  valid: {src: valid.de, trg: valid.en}
  temperature: 2
  alarms: warn
  workers: 1
"""

# Trained for some updates on a prepared folder each, and their losses recorded.
SMALL = """
model: {preset: small, norm: pre, scale_emb_or_prj: emb, position: rotary, dropout: 0.2}
optim: {name: adamw, betas: [0.9, 0.999], weight_decay: 0.1, lr: 1e-3, schedule: inverse_sqrt, warmup: 10, clip: 1.0}
"""
UPSTREAM = """
model: {preset: small, norm: post, scale_emb_or_prj: prj, dropout: 0.1}
optim: {name: adam, betas: [0.9, 0.98], eps: 1e-9, schedule: noam, lr_mul: 0.5, warmup: 10}
"""
LSTM = """
model: {architecture: attention, attn_score: additive, enc_direction: both, d_model: 256, variational_dropout: true}
optim: {name: adamw, lr: 4e-3, schedule: linear, warmup: 5, clip: 1.0}
"""
MULTILINGUAL = """
model: {preset: tiny, n_kv_head: 2, ffn: swiglu, norm_kind: rms, norm: pre, scale_emb_or_prj: emb}
optim: {name: muon, muon_lr: 4e-3, lr: 2e-3, schedule: constant, warmup: 5}
"""
SEARCHED = """
model: {preset: tiny, norm: pre, scale_emb_or_prj: emb, position: rotary, lexical_attn: true, emb_init: cooccurrence}
optim: {name: muon, muon_lr: 4e-3, lr: 2e-3, schedule: linear, warmup: 30, clip: 1.0}
"""
TRAINED = {  # name: recipe, prepared folder, updates, tokens of a batch
    "small": (SMALL, "multi30k", 20, 512),
    "upstream": (UPSTREAM, "multi30k", 20, 512),
    "lstm": (LSTM, "multi30k", 20, 512),
    "multilingual": (MULTILINGUAL, "tagged", 20, 512),
    "searched": (SEARCHED, "multi30k", 250, 1024),
}
TRANSLATED = {  # of the model `searched`
    "beam 5": ("--beam", "5"),
    "greedy": ("--beam", "1"),
    "sampling": ("--decode.samples", "1", "--decode.seed", "7", "--decode.temperature", "0.8"),
    "mbr": ("--decode.samples", "8", "--decode.seed", "7", "--decode.mbr", "chrf"),
    "constraints": ("--beam", "5", "--input-format", "jsonl"),
    "int8": ("--beam", "5", "--decode.precision", "int8"),
    "bf16": ("--beam", "5", "--decode.precision", "bf16"),
}
ASKED: tuple[dict[str, Any], ...] = (
    {"prefix": "There is"},
    {"required": ["wearing"]},
    {"avoided": ["a man", "a woman", "the"]},
    {"prefix": "The", "required": ["outside", "people"], "avoided": ["is"]},
)


def command(name: str, *args: str | Path) -> None:
    """Run a command of the package. Exits with what it printed where it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NMT_DATA": str(DATA), "PYTHONPATH": str(CHECKOUT)}
    line = [sys.executable, "-m", f"nmt.cli.{name}", *map(str, args)]
    done = subprocess.run(line, env=environment, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        sys.exit(f"golden.py: {' '.join(line)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def write_inputs() -> None:
    """Write the files that recipes and translations read into the current folder."""

    def first_lines(name: str) -> list[str]:
        with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
            return [next(file).rstrip("\n") for _ in range(N_LINE)]

    sources = first_lines("multi30k.test_2016_flickr.de.gz")
    asked = [json.dumps({"source": line} | ASKED[number % len(ASKED)]) for number, line in enumerate(sources)]
    texts = {"input.txt": sources, "input.jsonl": asked}
    texts |= {f"valid.{side}": first_lines(f"multi30k.val.{side}.gz") for side in ("de", "en")}
    for name, lines in texts.items():
        Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def prepared() -> Iterator[tuple[str, Entries]]:
    """Prepare each folder. Yields SHA-256 of its vocabulary, and of the ids of each side of each split."""
    make_dates: list[Any] = [sys.executable, CHECKOUT / "tools" / "make_dates.py", "corpora/dates"]
    subprocess.run(make_dates, check=True, capture_output=True)
    recipes = {"multi30k": MULTI30K, "enja": ENJA, "tagged": TAGGED}
    for name in ("dates", *recipes):
        if name == "enja" and not (DATA / "small-enja.train.en.gz").exists():
            continue
        recipe, folder = CHECKOUT / "recipes" / "dates.yaml", Path("prepared", name)
        if name in recipes:
            recipe = Path(f"{name}.yaml")
            recipe.write_text(f"name: {name}{recipes[name]}", encoding="utf-8")
        command("preprocess", recipe, "--data.out", folder)
        hashed = {"vocabulary": json.loads((folder / "subwords.json").read_text(encoding="utf-8"))["codecs"]}
        for split in sorted(folder.glob("*.arrow")):
            table = pa.ipc.open_stream(split.read_bytes()).read_all()
            hashed |= {f"{split.stem} {side}": table[side].to_pylist() for side in ("src", "trg")}
        of = {key: hashlib.sha256(json.dumps(value, sort_keys=True).encode()) for key, value in hashed.items()}
        yield f"prepared {name}", {key: value.hexdigest() for key, value in of.items()}


def trained() -> Iterator[tuple[str, Entries]]:
    """Train each model. Yields loss and norm of the gradient of each update; of a long run of every 50th."""
    for name, (options, folder, updates, tokens) in TRAINED.items():
        recipe, run = Path(f"{name}.train.yaml"), Path("runs", name)
        recipe.write_text(
            f"{Path(f'{folder}.yaml').read_text(encoding='utf-8')}{options}batch: {{max_tokens: {tokens}}}\n"
            f"train: {{updates: {updates}, save_every: {updates}, log_every: 1, average: none, threads: 1, "
            "precision: fp32, kernels: torch, device: cpu}\n"
            f"valid: {{every: {updates}, metric: loss, translate: false}}\n",
            encoding="utf-8",
        )
        command("train", recipe, "--data.out", f"prepared/{folder}", "--train.out", run)
        lines = map(json.loads, (run / "log.jsonl").read_text(encoding="utf-8").splitlines())
        every = 1 if updates <= 50 else 50
        found = {one["update"]: one for one in lines if one["kind"] == "train" and one["update"] % every == 0}
        yield f"loss of {name}", {f"update {n}": [one["loss"], one["gradient_norm"]] for n, one in found.items()}


def translated(run: Path) -> Iterator[tuple[str, Entries]]:
    """Translate with a run in each way. Yields text, score and word alignment of each line."""
    for name, flags in TRANSLATED.items():
        source, written = "input.jsonl" if "jsonl" in flags else "input.txt", Path(f"{name}.out")
        how = (*flags, "--format", "jsonl", "--threads", "1", "--device", "cpu", "--overwrite")
        command("translate", run, "--input", source, "--output", written, *how)
        lines = map(json.loads, written.read_text(encoding="utf-8").splitlines())
        found = {f"line {one['id']}": [one["output"], one["score"], one.get("word_alignment") or ""] for one in lines}
        yield f"translation by {name}", found


def tell(name: str, old: Entries, new: Entries) -> bool:
    """Print the line of an entry. Returns True where it differs."""
    if not (unlike := [key for key in old | new if old.get(key) != new.get(key)]):
        print(f"{name}: same ({len(new)})", flush=True)
        return False
    first = f"first {unlike[0]}:\n    old {old.get(unlike[0])}\n    new {new.get(unlike[0])}"
    print(f"{name}: {len(unlike)} of {len(old | new)} differ; {first}", flush=True)
    return True


def main() -> int:
    """Entry point. Returns the exit code: 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("freeze", "compare"))
    parser.add_argument("record", type=lambda name: Path(name).resolve(), metavar="RECORD")
    args = parser.parse_args()
    model, entries = args.record / "model", args.record / "entries.json"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_inputs()
        if args.what == "freeze":
            args.record.mkdir(parents=True)
            found = dict((*prepared(), *trained(), *translated(Path("runs/searched"))))
            shutil.copytree("runs/searched", model, ignore=shutil.ignore_patterns("checkpoints", "lock", "log.jsonl"))
            entries.write_text(json.dumps(found, indent=0, ensure_ascii=False), encoding="utf-8")
            print(f"{args.record}: {len(found)} entries")
            return 0
        old = json.loads(entries.read_text(encoding="utf-8"))
        news = dict((*prepared(), *trained(), *translated(model)))
        n_different = sum(tell(name, old.get(name, {}), news.get(name, {})) for name in old | news)
    print(f"{n_different} entries differ")
    return int(n_different > 0)


if __name__ == "__main__":
    sys.exit(main())
