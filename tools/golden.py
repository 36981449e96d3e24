"""Record the results of the commands for fixed inputs, and compare another version of the package with the record.

    NMT_DATA=data python tools/golden.py freeze RECORD      # a folder: entries.json, and a small trained model
    NMT_DATA=data python tools/golden.py compare RECORD     # a line an entry: same, or the first difference

Runs the importable `nmt` (PYTHONPATH selects another checkout) in a temporary folder on one thread. Losses and scores
are compared to the last digit, so a record is valid for one machine, torch and C compiler; ids and vocabularies are the
same everywhere. NMT_DATA has Multi30k, and optionally small-enja.
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

# Recipes of the prepared folders: mostly options of data and subwords.
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

# Recipes of models that are trained for some updates to record their losses.
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
TRANSLATED = {  # flags for translations by the model `searched`
    "beam 5": ("--beam", "5"),
    "greedy": ("--beam", "1"),
    "sampling": ("--decode.samples", "1", "--decode.seed", "7", "--decode.temperature", "0.8"),
    "mbr": ("--decode.samples", "8", "--decode.seed", "7", "--decode.mbr", "chrf"),
    "constraints": ("--beam", "5", "--input-format", "jsonl"),
    "int8": ("--beam", "5", "--decode.precision", "int8"),
    "bf16": ("--beam", "5", "--decode.precision", "bf16"),
}
CONSTRAINTS: tuple[dict[str, Any], ...] = (
    {"prefix": "There is"},
    {"required": ["wearing"]},
    {"avoided": ["a man", "a woman", "the"]},
    {"prefix": "The", "required": ["outside", "people"], "avoided": ["is"]},
)


def command(name: str, *args: str | Path) -> None:
    """Run a command of the package. If it fails, exits with its output."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NMT_DATA": str(DATA), "PYTHONPATH": str(CHECKOUT)}
    line = [sys.executable, "-m", f"nmt.cli.{name}", *map(str, args)]
    completed = subprocess.run(line, env=environment, capture_output=True, encoding="utf-8", check=False)
    if completed.returncode:
        sys.exit(f"golden.py: {' '.join(line)}: exit code {completed.returncode}\n{completed.stdout}{completed.stderr}")


def write_inputs() -> None:
    """Write the input files of recipes and translations into the current folder."""

    def first_lines(name: str) -> list[str]:
        with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
            return [next(file).rstrip("\n") for _ in range(N_LINE)]

    sources = first_lines("multi30k.test_2016_flickr.de.gz")
    requests = [json.dumps({"source": line} | CONSTRAINTS[n % len(CONSTRAINTS)]) for n, line in enumerate(sources)]
    texts = {"input.txt": sources, "input.jsonl": requests}
    texts |= {f"valid.{side}": first_lines(f"multi30k.val.{side}.gz") for side in ("de", "en")}
    for name, lines in texts.items():
        Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def prepared() -> Iterator[tuple[str, Entries]]:
    """Prepare each folder. Yields SHA-256 of its vocabulary and of the ids of each side of each split."""
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
        contents = {"vocabulary": json.loads((folder / "subwords.json").read_text(encoding="utf-8"))["codecs"]}
        for split in sorted(folder.glob("*.arrow")):
            table = pa.ipc.open_stream(split.read_bytes()).read_all()
            contents |= {f"{split.stem} {side}": table[side].to_pylist() for side in ("src", "trg")}
        texts = {key: json.dumps(value, sort_keys=True) for key, value in contents.items()}
        yield f"prepared {name}", {key: hashlib.sha256(text.encode()).hexdigest() for key, text in texts.items()}


def trained() -> Iterator[tuple[str, Entries]]:
    """Train each model. Yields loss and gradient norm of each update; in a long run of every 50th."""
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
        interval = 1 if updates <= 50 else 50
        logged = {line["update"]: line for line in lines if line["kind"] == "train" and line["update"] % interval == 0}
        yield f"loss of {name}", {f"update {n}": [line["loss"], line["gradient_norm"]] for n, line in logged.items()}


def translated(run: Path) -> Iterator[tuple[str, Entries]]:
    """Translate with each set of flags. Yields text, score and word alignment of each line."""
    for name, flags in TRANSLATED.items():
        source, output = "input.jsonl" if "jsonl" in flags else "input.txt", Path(f"{name}.out")
        options = (*flags, "--format", "jsonl", "--threads", "1", "--device", "cpu", "--overwrite")
        command("translate", run, "--input", source, "--output", output, *options)
        rows = map(json.loads, output.read_text(encoding="utf-8").splitlines())
        entries = {f"line {row['id']}": [row["output"], row["score"], row.get("word_alignment") or ""] for row in rows}
        yield f"translation by {name}", entries


def report(name: str, old: Entries, new: Entries) -> bool:
    """Print the result of an entry. Returns whether it differs."""
    if not (different := [key for key in old | new if old.get(key) != new.get(key)]):
        print(f"{name}: same ({len(new)})", flush=True)
        return False
    first = different[0]
    example = f"first {first}:\n    old {old.get(first)}\n    new {new.get(first)}"
    print(f"{name}: {len(different)} of {len(old | new)} differ; {example}", flush=True)
    return True


def main() -> int:
    """Entry point. Returns the exit code: 1 if an entry differs."""
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
            recorded = dict((*prepared(), *trained(), *translated(Path("runs/searched"))))
            shutil.copytree("runs/searched", model, ignore=shutil.ignore_patterns("checkpoints", "lock", "log.jsonl"))
            entries.write_text(json.dumps(recorded, indent=0, ensure_ascii=False), encoding="utf-8")
            print(f"{args.record}: {len(recorded)} entries")
            return 0
        old = json.loads(entries.read_text(encoding="utf-8"))
        new = dict((*prepared(), *trained(), *translated(model)))
        n_different = sum(report(name, old.get(name, {}), new.get(name, {})) for name in old | new)
    print(f"{n_different} entries differ")
    return int(n_different > 0)


if __name__ == "__main__":
    sys.exit(main())
