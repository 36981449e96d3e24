"""Record what the commands make of fixed inputs, and compare another version of the package with that record.

    NMT_DATA=data python tools/golden.py freeze FILE.json       # writes FILE.json and FILE.model, a small trained model
    NMT_DATA=data python tools/golden.py compare FILE.json      # one line an entry: same, or the first difference

Takes whatever `nmt` is importable (PYTHONPATH of another checkout), and works in a temporary folder, on one thread.
Only commands are used. `hashes_of`, `losses_of` and `translations_of` alone know formats of files.

Losses and scores are compared to the last digit, so they depend on the processor, on torch and on the C compiler: a
record is good for the machine that made it. Ids and vocabularies are the same everywhere. NMT_DATA has Multi30k.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa

Entries = dict[str, Any]

SPEC = find_spec("nmt")
CHECKOUT = Path(SPEC.origin if SPEC and SPEC.origin else sys.exit("golden.py: set PYTHONPATH to a checkout")).parents[1]
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
    """Run a command of the package on one thread. Exits with what it printed where it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "NMT_DATA": str(DATA)}
    environment["PYTHONPATH"] = str(CHECKOUT)
    line = [sys.executable, "-m", f"nmt.cli.{name}", *map(str, args)]
    done = subprocess.run(line, env=environment, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        sys.exit(f"golden.py: {' '.join(line)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def hashes_of(prepared: Path) -> Entries:
    """SHA-256 of the vocabulary of a prepared folder, and of the ids of each side of each split."""
    codecs = json.loads((prepared / "subwords.json").read_text(encoding="utf-8"))["codecs"]
    found = {"vocabulary": hashlib.sha256(json.dumps(codecs, sort_keys=True).encode()).hexdigest()}
    for split in sorted(prepared.glob("*.arrow")):
        table = pa.ipc.open_stream(split.read_bytes()).read_all()
        for side in ("src", "trg"):
            rows = json.dumps(table[side].to_pylist())
            found[f"{split.stem} {side}"] = hashlib.sha256(rows.encode()).hexdigest()
    return found


def losses_of(run: Path) -> Entries:
    """Loss and norm of the gradient of each update of a run; of a long run of every 50th."""
    lines = map(json.loads, (run / "log.jsonl").read_text(encoding="utf-8").splitlines())
    found = {f"update {line['update']}": line for line in lines if line["kind"] == "train"}
    every = 1 if len(found) <= 50 else 50
    return {name: [line["loss"], line["gradient_norm"]] for name, line in found.items() if line["update"] % every == 0}


def translations_of(written: Path) -> Entries:
    """Text, score and word alignment of each line."""
    lines = map(json.loads, written.read_text(encoding="utf-8").splitlines())
    return {f"line {line['id']}": [line["output"], line["score"], line.get("word_alignment") or ""] for line in lines}


def lines_of(name: str) -> list[str]:
    """The first lines of a corpus file."""
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        return [next(file).rstrip("\n") for _ in range(N_LINE)]


def write_inputs() -> None:
    """Write the files that recipes and translations read into the current folder."""
    sources = lines_of("multi30k.test_2016_flickr.de.gz")
    texts = {"input.txt": sources, **{f"valid.{side}": lines_of(f"multi30k.val.{side}.gz") for side in ("de", "en")}}
    for name, lines in texts.items():
        Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    asked = [{"source": line} | ASKED[number % len(ASKED)] for number, line in enumerate(sources)]
    Path("input.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in asked), encoding="utf-8")


def prepared() -> Iterator[tuple[str, Entries]]:
    """Prepare each folder, and yield its entry."""
    if (maker := CHECKOUT / "tools" / "make_dates.py").exists():  # the checkout may be an old one
        subprocess.run([sys.executable, maker, "corpora/dates"], check=True, capture_output=True)
    command("preprocess", CHECKOUT / "recipes" / "dates.yaml", "--data.out", "prepared/dates")
    yield "prepared dates", hashes_of(Path("prepared/dates"))
    for name, recipe in (("multi30k", MULTI30K), ("enja", ENJA), ("tagged", TAGGED)):
        if name == "enja" and not (DATA / "small-enja.train.en.gz").exists():
            continue
        Path(f"{name}.yaml").write_text(f"name: {name}{recipe}", encoding="utf-8")
        command("preprocess", f"{name}.yaml", "--data.out", f"prepared/{name}")
        yield f"prepared {name}", hashes_of(Path(f"prepared/{name}"))


def trained() -> Iterator[tuple[str, Entries]]:
    """Train each model, and yield the entry of its losses."""
    for name, (options, folder, updates, tokens) in TRAINED.items():
        recipe = Path(f"{name}.train.yaml")
        base = Path(f"{folder}.yaml").read_text(encoding="utf-8")
        recipe.write_text(
            f"{base}{options}batch: {{max_tokens: {tokens}}}\n"
            f"train: {{updates: {updates}, save_every: {updates}, log_every: 1, average: none, threads: 1, "
            "precision: fp32, kernels: torch, device: cpu}\n"
            f"valid: {{every: {updates}, metric: loss, translate: false}}\n",
            encoding="utf-8",
        )
        command("train", recipe, "--data.out", f"prepared/{folder}", "--train.out", f"runs/{name}")
        yield f"loss of {name}", losses_of(Path(f"runs/{name}"))


def translated(run: Path) -> Iterator[tuple[str, Entries]]:
    """Translate with a run in each way, and yield the entry of its translations."""
    for name, flags in TRANSLATED.items():
        source, written = "input.jsonl" if "jsonl" in flags else "input.txt", Path(f"{name}.out")
        flags = (*flags, "--format", "jsonl", "--threads", "1", "--device", "cpu", "--overwrite")
        command("translate", run, "--input", source, "--output", written, *flags)
        yield f"translation by {name}", translations_of(written)


def machine() -> dict[str, str]:
    """Name what the last digits depend on."""
    about = Path("/proc/cpuinfo")
    lines = (about.read_text() if about.exists() else "").splitlines()
    model = [line.partition(": ")[2] for line in lines if line.startswith(("model name", "flags"))]
    return {
        "processor": "".join(model[:1]) or platform.processor(),
        "instructions": hashlib.sha256("".join(model[:2]).encode()).hexdigest()[:12],
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def commit() -> str:
    """Name the commit of the package, with -dirty at its end where files differ from it."""
    ask = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()


def freeze(record: Path) -> int:
    """Write the record and, beside it, the model."""
    entries = dict((*prepared(), *trained(), *translated(Path("runs/searched"))))
    shutil.rmtree(kept := record.with_suffix(".model"), ignore_errors=True)
    shutil.copytree("runs/searched", kept, ignore=shutil.ignore_patterns("checkpoints", "lock", "log.jsonl"))
    found = {"commit": commit(), "machine": machine(), "entries": entries}
    record.write_text(json.dumps(found, indent=0, ensure_ascii=False), encoding="utf-8")
    print(f"{record}: {len(entries)} entries of commit {found['commit']}")
    return 0


def compare(record: Path, only: str | None) -> int:
    """Print a line for each entry, and return 1 where one differs. only: prepared, loss, or translation (frozen)."""
    old = json.loads(record.read_text(encoding="utf-8"))
    print(f"old: {old['commit']}\nnew: {commit()}")
    if machine() != old["machine"]:
        print(f"The record is of another machine, so last digits may differ: {old['machine']}")
    n_different = 0
    if only != "translation":
        for name, entry in prepared():
            n_different += tell(name, old["entries"].get(name), entry)
    if only in (None, "loss"):
        for name, entry in trained():
            n_different += tell(name, old["entries"].get(name), entry)
    models = {"by the frozen model": record.with_suffix(".model"), "by the model trained now": Path("runs/searched")}
    for which, run in models.items():
        if only in (None, "translation") and run.exists():
            for name, entry in translated(run):
                n_different += tell(f"{name}, {which}", old["entries"].get(name), entry)
    print(f"{n_different} entries differ")
    return int(n_different > 0)


def tell(name: str, old: Entries | None, new: Entries) -> bool:
    """Print the line of an entry. Returns True where it differs."""
    if old is None:
        print(f"{name}: not in the record")
        return True
    unlike = [key for key in old | new if old.get(key) != new.get(key)]
    if not unlike:
        print(f"{name}: same ({len(new)})")
        return False
    # Of losses and translations: how many texts differ, and numbers by how much.
    both = [(a, b) for key in unlike for a, b in zip(old.get(key, ""), new.get(key, ""), strict=False)]
    n_text = sum(a != b for a, b in both if isinstance(a, str) and len(a) > 1)
    largest = max((abs(a - b) / abs(a or 1.0) for a, b in both if isinstance(a, float)), default=0.0)
    print(
        f"{name}: {len(unlike)} of {len(old | new)} differ ({n_text} texts or alignments; numbers by {largest:.1e} of "
        f"their size at most); first {unlike[0]}:\n    old {old.get(unlike[0])}\n    new {new.get(unlike[0])}"
    )
    return True


def main() -> int:
    """Entry point. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("freeze", "compare"))
    parser.add_argument("record", type=Path, metavar="FILE.json")
    parser.add_argument("--only", choices=("prepared", "loss", "translation"), help="With compare: these entries.")
    args = parser.parse_args()
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)
    record = args.record.resolve()
    record.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_inputs()
        code = freeze(record) if args.what == "freeze" else compare(record, args.only)
        os.chdir("/")
    return code


if __name__ == "__main__":
    sys.exit(main())
