"""Compare the quality of toolkits after the same minutes of training on the same cores.

    python tools/bench_quality.py OUT --task multi30k --minutes 20 --systems ours joeynmt eole marian torch

tools/systems/ has the options of each toolkit: tuned ones, or with --own those of its own recipe. Peers get the
subword ids of nmt as words, models of the same size with one embedding, and without --own the dropout of TASKS.
The minutes are wall time of training with validation. Then the checkpoint with the best validation translates the test
set, and sacreBLEU scores it. OUT/results.jsonl keeps results for later calls. OUT/env.NAME, the environment of a peer,
is created if it is missing, with NMT_TORCH as the pip requirement of torch.
"""

import argparse
import json
import os
import re
import shutil
import string
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from nmt.data.corpus import Prepared
from nmt.data.lines import read_lines, write_lines
from nmt.data.subwords import EOS
from nmt.evaluation.metrics import Texts, score
from nmt.recipe.reader import read_recipe

TOOLS = Path(__file__).resolve().parent
TASKS = {"multi30k": ("recipes/multi30k.de-en.yaml", 0.15), "tatoeba": ("recipes/tatoeba.de-en.yaml", 0.1)}
SYSTEMS = ("ours", "joeynmt", "eole", "marian", "torch")
COLUMNS = ("system", "options", "version", "parameters", "updates", "minutes", "decoding", "BLEU", "95 %", "chrF")


def run(log: Path, argv: list[Any], seconds: float | None = None) -> float:
    """Run a command, for some seconds at most. Returns its duration; exits if it fails."""
    begin, argv = time.time(), list(map(str, argv))
    with log.open("a", encoding="utf-8") as output, suppress(subprocess.TimeoutExpired):
        if subprocess.run(argv, stdout=output, stderr=output, cwd=log.parent, timeout=seconds, check=False).returncode:
            sys.exit(f"bench_quality: error: {' '.join(argv)} failed: see {log}")
    return time.time() - begin


def prepare(task: str, folder: Path) -> None:
    """Prepare the data in folder/prepared, and write the raw test set and all sets as subword ids beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "nmt.cli.preprocess", TOOLS.parent / TASKS[task][0], "--out", folder / "prepared"]
    run(folder / "log.txt", [*command, "--overwrite"])
    data = Prepared.open(folder / "prepared")
    assert data.test, "both recipes name a test set"
    for name, corpus in (("train", data.train), ("valid", data.valid), ("test", data.test)):
        for lang, rows in zip(("de", "en"), corpus.pairs(range(corpus.n_pair)), strict=True):
            write_lines(folder / f"{name}.{lang}", (" ".join(map(str, row)) for row in rows))
    for lang, lines in zip(("de", "en"), data.test.texts(), strict=True):
        write_lines(folder / f"text.{lang}", lines)
    write_lines(folder / "pieces.txt", map(str, range(EOS + 1, data.subwords.trg.size)))


def merged(config: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return options with some of them replaced."""
    return config | {name: merged(config[name], v) if isinstance(v, dict) else v for name, v in own.items()}


def measure(args: argparse.Namespace, name: str, options: str, shared: Path) -> dict[str, Any]:
    """Train a system, translate and score. Returns a row of the results."""
    folder, env, seconds = shared / f"{name}.{options}.{args.minutes:g}", args.out / f"env.{name}", 60 * args.minutes
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    recipe, log = read_recipe(shared / "prepared/recipe.yaml"), folder / "log.txt"
    values = recipe.model.model_dump() | {"max_tokens": recipe.batch.max_tokens, "folder": folder, "data": shared}
    values |= {"seconds": f"{seconds:g}", "until": time.time() + seconds, "best": "$best", "env": env, "tools": TOOLS}
    values |= {"python": sys.executable, "torch": os.environ.get("NMT_TORCH", "torch"), "dropout": TASKS[args.task][1]}
    text = string.Template((TOOLS / f"systems/{name}.yaml").read_text(encoding="utf-8"))
    system = yaml.safe_load(text.substitute(values))
    if "install" in system and not (env / "done").exists():
        run(args.out / f"env.{name}.txt", ["sh", "-c", f"unset PYTHONPATH; {system['install']} && touch '{env}/done'"])
        return measure(args, name, options, shared)  # the training time starts after the installation
    config = merged(system.get("config", {}), system.get("own", {}) if options == "own" else {})
    (folder / "config.yaml").write_text(yaml.safe_dump(config, width=9999), encoding="utf-8")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path if name == "marian" else [str(TOOLS.parent)])
    duration = run(log, system["train"], seconds if system.get("is_interrupted") else None)
    log_text = log.read_text(encoding="utf-8")
    saved = [(float(loss), step) for loss, step in re.findall(system.get("validated", "(x)(x)^"), log_text)]
    if "translate" in system:
        best = min(saved, default=(0, "none"))[1]
        run(log, [argument.replace("$best", best) for argument in system["translate"]])
    if (pieces := folder / "pieces.test").exists():
        ids = ([int(word) for word in line.split() if word.isdigit()] for line in read_lines(pieces))
        write_lines(folder / "text.en", map(Prepared.open(shared / "prepared").subwords.trg.decode, ids))
    texts, references = (list(read_lines(place / "text.en")) for place in (folder, shared))
    bleu, chrf = score(Texts(texts, [references], trg_lang="en"), ("bleu", "chrf"), intervals=True).values()
    program = f"from importlib.metadata import version; print(version('{system['package']}'), end='')"
    version = subprocess.check_output([system["train"][0].replace("bin/eole", "bin/python"), "-c", program], text=True)
    n_param, n_update = (re.findall(system[key], log_text)[-1].replace(",", "") for key in ("parameters", "updates"))
    n_param = f"{int(n_param) / 1e6:.1f} M" if n_param.isdigit() else n_param
    delays = re.findall(r"([\d.]+) s late", log_text)
    duration = min([duration, *(seconds + float(delay) for delay in delays)])  # without decoding
    row = [name, options, version, n_param, n_update, f"{duration / 60:.1f}", system["decoding"]]
    row += [f"{bleu.value:.1f}", f"{bleu.low:.1f} ... {bleu.high:.1f}", f"{chrf.value:.1f}"]
    return dict(zip(COLUMNS, row, strict=True)) | {"signature": bleu.signature}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", type=lambda text: Path(text).resolve())
    parser.add_argument("--task", choices=TASKS, default="multi30k")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--own", action="store_true", help="peers with the options of their own recipes")
    parser.add_argument("--data", default=os.environ.get("NMT_DATA", "."), help="default: what NMT_DATA names")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parser.add_argument("--threads", type=int, default=cores, help="default: one a core")
    args = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": str(args.threads), "NMT_DATA": args.data}
    shared, results = args.out / args.task, args.out / "results.jsonl"
    if not (shared / "pieces.txt").exists():
        prepare(args.task, shared)
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for name in args.systems:
        options = "own" if args.own or name == "ours" else "tried"
        key = {"task": args.task, "budget": args.minutes, "system": name, "options": options}
        known = [json.loads(line) for line in read_lines(results)] if results.exists() else []
        result: dict[str, Any] = next((row for row in known if row | key == row), {})
        if not result:
            result = key | measure(args, name, options, shared)
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
        print(f"| {' | '.join(result[column] for column in COLUMNS)} |", flush=True)
    print(result["signature"])


if __name__ == "__main__":
    main()
