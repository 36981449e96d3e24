"""translated_by: a run translates one side of a training corpus, for nmt-preprocess and nmt.prepare."""

import json
import os
import random
import signal
from pathlib import Path

import pytest
from made_run import FAST_OPTIONS, make_run

import nmt
from nmt.cli.preprocess import main
from nmt.cli.train import main as train
from nmt.cli.translate_output import LineTranslator, Record
from nmt.data.corpus import Prepared
from nmt.data.prepare import prepare
from nmt.recipe.reader import read_recipe

WORDS = ["the", "old", "ship", "left", "in", "May", "with", "a", "red", "sail", "and", "no", "wind", "at", "all"]
BT = "{trg: mono.en, translated_by: runs/back, tags: [bt]}"
DISTILLED = "{src: mono.de, translated_by: runs/teacher}"
REAL = "{src: train.de, trg: train.en}"
VALID = "valid: {src: valid.de, trg: valid.en}"
FOLDER = Path("prepared/mine.translated")
N_REAL, N_MONO, FLAGGED = 60, 12, 3


@pytest.fixture(autouse=True)
def corpora_and_runs(tmp_path, monkeypatch):
    """The current folder: a parallel corpus, monolingual text, and a run in each direction."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nmt.progress.EVERY", 1e9)
    draw = random.Random(0)
    for name, n in (("train", N_REAL), ("valid", 5), ("mono", N_MONO)):
        lines = [" ".join(draw.choices(WORDS, k=6)) for _ in range(n)]
        for side, change in (("de", str), ("en", str.upper)):
            Path(f"{name}.{side}").write_text("".join(f"{change(line)}\n" for line in lines), encoding="utf-8")
    Path("runs").mkdir()
    make_tiny_run("back", "en", "de")
    make_tiny_run("teacher", "de", "en")


@pytest.fixture(autouse=True)
def searches(monkeypatch):
    """Decode options of each translated window of 4 lines. Translation swaps the case; one line is flagged."""
    decode_options = []

    def records(self, lines, *_):
        decode_options.append(self.recipe.decode)
        texts = [(line.request.source, ["low"] if line.number == FLAGGED else []) for line in lines]
        rows = [{"source": text, "output": text.swapcase(), "flags": flags} for text, flags in texts]
        return [Record([json.dumps(row)]) for row in rows]

    monkeypatch.setattr(LineTranslator, "records", records)
    return decode_options


def make_tiny_run(name, src, trg, tags=(), seed=0):
    langs = {"data.src_lang": src, "data.trg_lang": trg}
    make_run(Path("runs", name), {**FAST_OPTIONS, **langs, "decode.window": "4"}, tags, seed)


def write_recipe(*corpora, valid=VALID):
    data = f"src_lang: de, trg_lang: en, train: [{', '.join(corpora)}], {valid}, alarms: warn"
    tiny = "d_model: 16, d_inner: 16, n_head: 2, n_enc_layer: 1, n_dec_layer: 1"
    end = "{updates: 2, save_every: 2, device: cpu, precision: fp32}\noptim: {warmup: 1}"
    text = f"name: mine\ndata: {{{data}}}\nsubwords: {{vocab_size: 290}}\nmodel: {{{tiny}}}\ntrain: {end}\n"
    Path("recipe.yaml").write_text(text, encoding="utf-8")
    return "recipe.yaml"


def read_lines(name):
    return Path(name).read_text(encoding="utf-8").splitlines()


def training_pairs(folder="prepared/mine"):
    """Return (has the tag bt, source, target) of each training pair."""
    data = Prepared.open(folder)
    src, trg = data.train.pairs(range(data.train.n_pair))
    is_bt = ["<bt>" in data.subwords.src.pieces(ids) for ids in src]
    texts = map(data.subwords.src.decode, src), map(data.subwords.trg.decode, trg)
    return [(bt, source.removeprefix("<bt>").strip(), target) for bt, source, target in zip(is_bt, *texts, strict=True)]


def expected(side, *, tag):
    """Return the pairs made from a text, without the flagged line."""
    lines = [line for n, line in enumerate(read_lines(f"mono.{side}"), start=1) if n != FLAGGED]
    return [(tag, line.swapcase(), line) if side == "en" else (tag, line, line.swapcase()) for line in lines]


def test_run_samples_sources_or_searches_targets_only_once(searches, capsys):
    with open("mono.en", "a", encoding="utf-8") as file:
        file.write(f"{read_lines('mono.en')[0]}\n")  # a duplicate, which is dropped
    assert main([write_recipe(REAL, BT, DISTILLED)]) == 0
    assert [(opts.samples, opts.low_score, opts.beam) for opts in searches] == [(1, 0, 3)] * 4 + [(0, -1.5, 3)] * 3
    assert training_pairs()[N_REAL:] == expected("en", tag=True)[:-1] + expected("de", tag=False)

    assert main(["recipe.yaml"]) == 0 and nmt.prepare("prepared/mine/recipe.yaml") == Path("prepared/mine")
    assert len(searches) == 7 and "nothing to do" in capsys.readouterr().err
    assert train(["recipe.yaml"]) == 0 == train(["prepared/mine", "--init-from", "runs/mine", "--out", "runs/tuned"])
    make_tiny_run("other", "en", "de", seed=1)
    with open("mono.de", "a", encoding="utf-8") as file:
        file.write("one more line\n")
    nmt.prepare(write_recipe(REAL, BT.replace("back", "other"), DISTILLED), overwrite=True)
    assert len(searches) == 15 and len(list(FOLDER.iterdir())) == 4


def test_format_text_reads_a_file_of_any_name(searches):
    Path("mono.tsv").write_bytes(Path("mono.en").read_bytes())
    assert main([write_recipe(REAL, BT.replace("mono.en", "mono.tsv, format: text"))]) == 0
    assert training_pairs()[N_REAL:] == expected("en", tag=True)


def test_training_with_prepare_translates_first(searches):
    assert train([write_recipe(REAL, BT), "--prepare"]) == 0
    assert len(searches) == 3 and training_pairs()[N_REAL:] == expected("en", tag=True)


def test_check_before_translation_counts_the_pairs_of_each_corpus():
    Path("more.de").write_text("x " * 300 + "\nthe ship\n", encoding="utf-8")
    Path("more.en").write_text("X " * 300 + "\nTHE SHIP\n", encoding="utf-8")
    options = read_recipe(write_recipe(BT, REAL, "{src: more.de, trg: more.en}"))
    facts = prepare(options, Path("none"), talk=str, only_report=Path("page.html"), translations={0: []})
    counts = {corpus["name"]: (corpus["read"], corpus["kept"]) for corpus in facts["corpora"]}
    assert counts == {"train.de": (N_REAL, N_REAL), "more.de": (2, 1)}


def test_interrupted_translation_resumes_where_it_stopped(searches, monkeypatch, capsys):
    records = LineTranslator.records

    def interrupted(self, lines, *more):
        if len(searches) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return records(self, lines, *more)

    with monkeypatch.context() as patch:
        patch.setattr(LineTranslator, "records", interrupted)
        assert main([write_recipe(REAL, BT)]) == 130
    assert len(searches) == 1 and [path.suffix for path in FOLDER.iterdir()] == [".journal"]
    assert not Path("prepared/mine").exists()
    assert main(["recipe.yaml"]) == 0
    assert len(searches) == 3 and "resuming after them" in capsys.readouterr().err
    assert training_pairs()[N_REAL:] == expected("en", tag=True)


def test_back_translate_flag_holds_out_real_pairs_and_writes_the_recipe(capsys):
    flags = ["--train", "train.de", "train.en", "--langs", "de", "en", "--out", "own", "--vocab-size", "290"]
    assert main([*flags, "--back-translate", "runs/back", "mono.en", "--valid-size", "10", "--accept-alarms"]) == 0
    corpus = read_recipe("own/recipe.yaml").data.train[1]
    assert (corpus.trg, corpus.translated_by, corpus.tags) == ("mono.en", "runs/back", ["bt"])
    assert [pair for pair in training_pairs("own") if pair[0]] == expected("en", tag=True)
    held_out, _ = Prepared.open("own").valid.texts()
    assert len(held_out) == 10 and set(held_out) <= set(read_lines("train.de"))
    assert main([write_recipe(DISTILLED, valid="valid_size: 5")]) == 2
    assert "data.valid_size: corpora with translated_by, tags or languages give no" in capsys.readouterr().err


def test_check_translates_nothing(searches, capsys):
    assert main([write_recipe(REAL, BT), "--check"]) == 0
    err = capsys.readouterr().err
    assert "mono.en is not translated yet, so the corpus is left out of the check\n" in err and f"{N_REAL} read" in err
    assert main([write_recipe(DISTILLED), "--check"]) == 2 and "so there is nothing to check" in capsys.readouterr().err
    assert not searches and not FOLDER.exists()
    assert main([write_recipe(REAL, BT)]) == 0 == main(["recipe.yaml", "--check"])
    assert f"{N_REAL + N_MONO} read" in capsys.readouterr().err
    Path("more.en").write_text("the ship\n", encoding="utf-8")
    assert main([write_recipe(REAL, BT.replace("mono.en", "[mono.en, more.en]")), "--check"]) == 0
    assert "more.en is not translated yet" in capsys.readouterr().err


def test_multilingual_run_translates_into_the_language_of_the_recipe(searches):
    make_tiny_run("many", "en", "fr", tags=("<2fr>", "<2de-CH>"))
    assert main([write_recipe(REAL, BT.replace("back", "many"))]) == 0
    assert {opts.trg_lang for opts in searches} == {"de-CH"}


@pytest.mark.parametrize(
    ("corpus", "complaint"),
    [
        (BT.replace("back", "teacher"), "translates de to en, but trg: mono.en must be translated from en to de."),
        (DISTILLED.replace("teacher", "back"), "Name a run for that, or, if it is text in en, write trg: mono.de."),
        (BT.replace("back", "none"), "translated_by: runs/none is not a run folder: tried "),
        (BT.replace("mono.en", "none.en"), "data.train: no file none.en: tried "),
        (BT.replace("mono.en", "mono.tsv"), "mono.tsv: tsv has columns or keys, and none is chosen. Choose"),
        (BT.replace("trg:", "src: mono.de, trg:"), "translated_by: name one side as text: src for distillation, or"),
        (BT.replace("trg: mono.en, ", ""), "translated_by: name one side as text: src for distillation, or"),
        (BT.replace("trg:", "file:"), "data.train.1.file: not with translated_by"),
        (BT.replace("trg:", "dataset: a, split: b, trg:"), "data.train.1.dataset: not with translated_by"),
        (BT.replace("trg:", "unescape: true, trg:"), "data.train.1.unescape: not with translated_by"),
        (BT.replace("runs/back", "''"), "data.train.1.translated_by: is empty (expected a run)"),
    ],
)
def test_invalid_translated_by_is_refused_in_one_line_before_any_work(searches, capsys, corpus, complaint):
    Path("mono.tsv").write_text("a\tb\n", encoding="utf-8")
    assert main([write_recipe(REAL, corpus)]) == 2
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1
    assert not searches and not Path("prepared").exists()
