"""Train the models of docs/road.md and compare them: python tools/compare_models.py OUT [--tasks …] [--models …]

The commands prepare, train and translate with a recipe and some changes to it. Existing runs in OUT are reused.
The last columns are exactly correct test lines, with the epochs until 99 % of the validation lines are correct, or BLEU
with its 95 % interval.

dates-book, addition  the corpora of the book, from NMT_DATA; writes a heat map of cross-attention to OUT. For dates:
                      how often its arg-max is in the right field of the source
dates                 the harder dates of make_dates.py
multi30k              kinds of attention, five minutes of training each on two slow cores
animal                Tatoeba, English to German, with one head and eight: attention of "it", as a table and a picture
"""

import argparse
import itertools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import make_dates
import torch

import nmt
from nmt.api import Model
from nmt.data.corpus import Corpus, Prepared
from nmt.decoding.translator import Translation
from nmt.evaluation.attention_page import KINDS, Grid, Panel, sentence_of
from nmt.evaluation.attention_picture import picture
from nmt.evaluation.metrics import Texts, score
from nmt.recipe.reader import read_recipe

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
FRIDAY = "FRIDAY, AUGUST 26, 1983"  # test line 4,317
ANIMAL = "The animal didn't cross the street because it was too"
ENDINGS = ("tired.", "wide.")


class Recipe(NamedTuple):
    """A recipe, its updates (None: those of the file) and other changes to it."""

    name: str
    updates: int | None = None
    changes: str = ""


def corpus(name: str, src: str = "src.gz", trg: str = "tgt.gz") -> str:
    """Return options with the files of the three splits."""
    splits = ("train", "valid", "test")
    return " ".join(f"--data.{split} '{{src: {name}{split}.{src}, trg: {name}{split}.{trg}}}'" for split in splits)


def road(*updates: int | None, options: str = "") -> dict[str, Recipe]:
    """Return the models of docs/road.md, with the updates of each."""
    recipes = {}
    names = ["seq2seq", "peeky", "attention, dot", "attention, general", "attention, additive", "transformer"]
    for name, n_update in zip(names, updates, strict=True):
        kind, _, attn_score = name.partition(", ")
        changes = f"{options} --model.attn_score {attn_score}" if attn_score else options
        recipes[name] = Recipe(f"dates-book.{kind}", n_update, changes)
    return recipes


TATOEBA = (
    f"{corpus('tatoeba-de-en.', 'en.gz', 'de.gz')} --subwords.vocab_size 4000 --batch.max_tokens 1024 "
    "--model.d_model 128 --model.n_enc_layer 3 --model.n_dec_layer 1 --model.emb_init normal "
    "--model.lexical_attn false --model.dropout 0.1 --optim.muon_lr 4e-3 --optim.lr 2e-3"
)
TASKS = {
    "dates-book": road(*[None] * 6),
    "dates": road(None, None, 672, 672, 544, None),
    "addition": road(4800, 4800, 3200, 3200, 3200, 3640, options=corpus("addition.")),
    "multi30k": {
        "MHA": Recipe("multi30k.de-en", 655),
        "GQA": Recipe("multi30k.de-en", 652, "--model.n_kv_head 2"),
        "MQA": Recipe("multi30k.de-en", 676, "--model.n_kv_head 1"),
        "MQA, decoder": Recipe("multi30k.de-en", 660, "--model.n_kv_head 1 --model.enc_n_kv_head 4"),
        "MQA, wide": Recipe("multi30k.de-en", 639, "--model.n_kv_head 1 --model.d_inner 800"),
        "sinusoid": Recipe("multi30k.de-en", 702, "--model.position sinusoid --model.rotary_enc_attn false"),
        "learned": Recipe("multi30k.de-en", 707, "--model.position learned --model.rotary_enc_attn false"),
        "post-norm": Recipe("multi30k.de-en", 669, "--model.norm post"),
        "LSTM": Recipe("multi30k.de-en.lstm", 1105),
    },
    "animal": {
        name: Recipe("multi30k.en-de", 6000, f"{TATOEBA} --model.n_head {n}")
        for name, n in (("one head", 1), ("eight heads", 8))
    },
}


# -- a run -------------------------------------------------------------------------------------------------------------


def make(out: Path, task: str, name: str, seed: int) -> tuple[Model, list[str]]:
    """Prepare, train and translate, or reuse a run. Returns the model and its row of the table."""
    recipe_name, updates, changes = TASKS[task][name]
    recipe, is_toy = RECIPES / f"{recipe_name}.yaml", recipe_name.startswith("dates-book")
    run = out / f"{task}.{name.replace(', ', '-').replace(' ', '-').lower()}.{seed}"
    data = out / "prepared" / (f"{task}.{seed}" if task == "dates" else task)
    options = [*shlex.split(changes), "--data.out", data]
    if task == "dates":
        corpora = out / "corpora" / f"dates.{seed}"
        make_dates.write(corpora, seed)
        options += [*shlex.split(corpus(f"{corpora.resolve()}/", "src", "trg")), "--seed", seed]
        options += ["--train.label_smoothing", "0.05"] if name.startswith("attention") else []
    if not data.is_dir():
        command("preprocess", recipe, *options)
    updates = updates or read_recipe(recipe).train.updates
    save_every = -(-updates // (10 if is_toy else 20))
    options += ["--train.keep_last", 11] if is_toy else []
    command(
        "train", recipe, *options, "--train.out", run, "--seed", seed, "--train.updates", updates,
        "--train.save_every", save_every, "--valid.every", updates,
    )  # fmt: skip
    log = map(json.loads, (run / "log.jsonl").read_text(encoding="utf-8").splitlines())
    start = next(line for line in log if line["kind"] == "start")
    model, per_epoch = nmt.load(run), start["updates_per_epoch"]
    prepared = Prepared.open(data)
    assert prepared.test is not None
    sources, references = prepared.test.texts()
    translations = model.translate(sources)
    row = [task, name, f"{start['parameters']:,}", f"{updates:,}", f"{updates / per_epoch:.2f}"]
    if not is_toy:
        trg_lang = read_recipe(recipe).data.trg_lang
        outputs = [translation.text for translation in translations]
        texts = Texts(outputs, [references], trg_lang=trg_lang)
        bleu = score(texts, ["bleu"], intervals=True)["bleu"]
        return model, [*row, "", f"{bleu.value:.1f} ({bleu.low:.1f} … {bleu.high:.1f})", ""]
    correct = f"{count_correct(translations, references):,} of {len(references):,}"
    if model.model.attends:
        line = out / "one.txt"
        line.write_text(f"{FRIDAY if task == 'dates-book' else sources[0]}\n", encoding="utf-8")
        command("translate", run, "--input", line, "--output", f"{run}.out", "--overwrite", "--attention", f"{run}.svg")
    has_fields = model.model.attends and task == "dates-book"
    hits = count_field_hits(model, sources, translations) if has_fields else ""
    return model, [*row, epochs_to_99(run, prepared.valid, per_epoch), correct, hits]


def command(name: str, *arguments: object) -> None:
    """Run a command of the package, silently unless it fails."""
    words = list(map(str, arguments))
    completed = subprocess.run([sys.executable, "-m", f"nmt.cli.{name}", *words], capture_output=True, text=True)
    if completed.returncode:
        sys.exit(f"compare_models: nmt-{name} {shlex.join(words)}: {completed.stderr[-2000:]}")


def count_correct(translations: Sequence[Translation], references: Sequence[str]) -> int:
    return sum(translation.text == text for translation, text in zip(translations, references, strict=True))


def epochs_to_99(run: Path, valid: Corpus, updates_per_epoch: int) -> str:
    """Return the epochs of the first checkpoint with 99 % correct validation lines, or ""."""
    sources, references = valid.texts()
    for checkpoint in sorted((run / "checkpoints").iterdir()):
        translations = nmt.load(run, checkpoint=checkpoint.name).translate(sources)
        if count_correct(translations, references) >= 0.99 * len(references):
            return f"{int(checkpoint.name.rpartition('-')[2]) / updates_per_epoch:.2f}"
    return ""


# -- attention ---------------------------------------------------------------------------------------------------------


def fields(source: str) -> dict[str, tuple[int, int]]:
    """Return the spans of year, month and day in a date of the book: first character, and the one after the last.

    The corpus has 9/27/94; September 27, 1994; Tuesday, September 27, 1994.
    """
    match = re.fullmatch(r"(?P<month>\d+)/(?P<day>\d+)/(?P<year>\d+)", source) or re.fullmatch(
        r"(?:\w+, )?(?P<month>\w+) (?P<day>\d+), (?P<year>\d+)", source
    )
    assert match, source
    return {name: match.span(name) for name in ("year", "month", "day")}


def count_field_hits(model: Model, sources: Sequence[str], translations: Sequence[Translation]) -> str:
    """Count the lines in which the attention of a target field has its arg-max in the same field of the source.

    The attention is averaged over heads, layers and characters. The fields are year, month, day, and all three.
    """
    spans = {"year": (0, 4), "month": (5, 7), "day": (8, 10)}
    n_hit = dict.fromkeys([*spans, "all three"], 0)
    translator = model.translator(model.decode())
    for source, translation in zip(sources, translations, strict=True):
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", translation.text):
            continue
        cross = translator.attention(translation).cross
        assert cross is not None
        weights = cross.mean((0, 1))  # (T, S), a space first and EOS last on both sides
        hits = {}
        for name, (begin, end) in fields(source).items():
            trg_begin, trg_end = spans[name]
            hits[name] = begin <= int(weights[trg_begin + 1 : trg_end + 1].mean(0).argmax()) - 1 < end
        for name, hit in {**hits, "all three": all(hits.values())}.items():
            n_hit[name] += hit
    return ", ".join(f"{name} {n:,}" for name, n in n_hit.items())


def show_attention_of_it(models: dict[str, Model], out: Path) -> None:
    """Print and draw the attention of "it": a row for each head of each layer, a column for each word."""
    print("\n| model | sentence ends | translation | most at animal | most at street |\n|---|---|---|---|---|")
    grids = []
    for (name, model), ending in itertools.product(models.items(), ENDINGS):
        translator = model.translator(model.decode())
        translation = model.translate([f"{ANIMAL} {ending}"])[0]
        attns, trg_ids = translator.attention(translation), translation.hypotheses[0].ids
        sentence = sentence_of(attns, translation.src_ids, trg_ids, translator.subwords)
        word_of, words = torch.tensor(sentence.src.words), sentence.src.texts
        by_piece = sentence.weights["encoder"][:, :, word_of == words.index("it")].mean(2)  # (n_layer, n_head, pieces)
        weights = torch.stack([by_piece[..., word_of == n].sum(-1) for n in range(len(words))], -1).flatten(0, 1)
        rows = [
            f"layer {layer + 1}, head {head + 1}" for layer, head in itertools.product(*map(range, by_piece.shape[:2]))
        ]
        columns = (weights[:, words.index(word)] for word in ("animal", "street"))
        maxima = [f"{float(column.max()):.2f} ({rows[int(column.argmax())]})" for column in columns]
        print(f"| {name} | {ending} | {translation.text} | {' | '.join(maxima)} |")
        if ending == ENDINGS[0]:
            panel = Panel("all layers", weights)
            grids.append(Grid([[panel]], rows, words, KINDS["encoder"], f'{name}: where "it" looks'))
    (out / "animal.svg").write_bytes(picture(grids, "svg"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="Folder for prepared data, runs and pictures.")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="NAME")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="rows of the table, as docs/road.md names them")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    args = parser.parse_args()
    torch.set_num_threads(min(2, torch.get_num_threads()))
    args.out.mkdir(parents=True, exist_ok=True)
    print("| task | model | parameters | updates | epochs | to 99 % | right, or BLEU | attention points at |")
    print("|---|---|---:|---:|---:|---:|---:|---|")
    for task in args.tasks:
        models = {}
        for name in TASKS[task]:
            for seed in args.seeds if args.models is None or name in args.models else ():
                models[name], row = make(args.out, task, name, seed)
                print(f"| {' | '.join(row)} |", flush=True)
        if task == "animal":
            show_attention_of_it(models, args.out)


if __name__ == "__main__":
    main()
