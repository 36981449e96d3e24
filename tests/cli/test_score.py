"""nmt-score as a command: files, runs, pipes, and refused arguments."""

import json
import os
import threading

import pytest
from made_run import FAST_OPTIONS, make_run
from sacrebleu.metrics import BLEU, CHRF, TER

import nmt
from nmt.cli.score import TRANSLATIONS, main

REFERENCE = ["the old ship left", "in May the ship came", "an officer saw it"]
OUTPUT = ["the ship left", "in May the ship came", "officers saw it"]


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def score(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "ref.en", REFERENCE)
    write_lines(tmp_path / "src.de", ["das alte Schiff", "im Mai", "ein Offizier"])
    write_lines(tmp_path / "a.txt", OUTPUT)
    write_lines(tmp_path / "b.txt", REFERENCE)

    def call(*flags: str, code: int = 0) -> tuple[str, str]:
        assert main(flags) == code
        return tuple(capsys.readouterr())

    return call


def test_each_metric_has_a_line_and_the_tokenizer_is_named(score):
    out, err = score("a.txt", "--ref", "ref.en")
    assert [line.split("|")[0] for line in out.splitlines()] == ["BLEU", "chrF2", "TER"]
    assert "|tok:13a|" in out and "language: en" in err
    out, err = score("a.txt", "--ref", "ref.en", "--lang", "zh", "--metric", "bleu")
    assert "|tok:zh|" in out and "tok:zh" in err


@pytest.mark.parametrize("suffix", ["trg", "tgt", "ref"])
def test_the_language_may_stand_before_other_suffixes_of_a_file(score, tmp_path, suffix):
    write_lines(tmp_path / f"test.zh.{suffix}", REFERENCE)
    out, _ = score("a.txt", "--ref", f"test.zh.{suffix}", "--metric", "bleu")
    assert "|tok:zh|" in out


def test_several_systems_are_compared_with_the_first(score):
    out, _ = score("a.txt", "b.txt", "--ref", "ref.en", "--metric", "chrf")
    assert "100.0" in out and "2 won" in out and "1 tied" in out and "0 lost" in out
    report = json.loads(score("a.txt", "b.txt", "--ref", "ref.en", "--metric", "chrf", "--json")[0])
    assert [system["name"] for system in report["systems"]] == ["a.txt", "b.txt"]
    assert report["systems"][1]["scores"]["chrf"]["score"] == pytest.approx(100)
    assert report["systems"][1]["sentences"] == {"won": 2, "tied": 1, "lost": 0}


def test_run_is_translated_once_and_the_page_is_written(score, tmp_path, monkeypatch):
    make_run(tmp_path / "run", FAST_OPTIONS)
    flags = ["run", "a.txt", "--ref", "ref.en", "--src", "src.de", "--metric", "chrf", "--html", "page.html"]
    first, err = score(*flags)
    assert len(list((tmp_path / "run" / TRANSLATIONS).iterdir())) == 1 and "written: page.html" in err
    assert "das alte Schiff" in (tmp_path / "page.html").read_text(encoding="utf-8")
    monkeypatch.setattr("nmt.api.load", None)  # so that it cannot translate
    _, err = score(*flags, code=2)
    assert "page.html exists already" in err
    again, err = score(*flags, "--overwrite")
    assert again == first and "translated before" in err


def test_lang_selects_one_of_several_target_languages(score, tmp_path):
    run = make_run(tmp_path / "run", FAST_OPTIONS, ["<2en>", "<2fr>"])
    lines = ["das alte Schiff", "im Mai", "ein Offizier"]
    for flags, code in (((), None), (("--lang", "fr"), "fr")):
        score("run", "--ref", "ref.en", "--src", "src.de", "--metric", "chrf", *flags)
        expected = [translation.text for translation in nmt.load(run.folder).translate(lines, trg_lang=code)]
        kept = [path.read_text("utf-8").splitlines() for path in (tmp_path / "run" / TRANSLATIONS).iterdir()]
        assert expected in kept
    assert len(kept) == 2
    _, err = score("run", "--ref", "ref.en", "--src", "src.de", "--lang", "es", code=2)
    assert "--lang: es, but the model translates into" in err and "trg" not in err


def test_file_name_that_is_not_utf8_is_escaped(score, tmp_path):
    name = os.fsdecode(b"caf\xe9.txt")
    write_lines(tmp_path / name, OUTPUT)
    out, _ = score(name, "--ref", "ref.en", "--metric", "chrf", "--json", "--html", "page.html")
    assert json.loads(out)["systems"][0]["name"] == "caf\\udce9.txt"
    assert "udce9.txt" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_by_line_scores_equal_sacrebleu_sentence_scores(score, tmp_path):
    out, err = score("a.txt", "--ref", "ref.en", "a.txt", "--by-line", "--metric", "chrf")
    assert "BLEU tokenizer: 13a" in err
    assert out == "chrf\n" + "100.0000\n" * 3, "the best of the references counts"
    make_run(tmp_path / "run", FAST_OPTIONS)
    out, _ = score("a.txt", "run", "--src", "src.de", "--ref", "ref.en", "--by-line")
    header, *lines = [line.split("\t") for line in out.splitlines()]
    assert header == [f"{system}:{name}" for system in ("a.txt", "run") for name in ("bleu", "chrf", "ter")]
    metrics = BLEU(effective_order=True), CHRF(), TER()
    for line, hypothesis, reference in zip(lines, OUTPUT, REFERENCE, strict=True):
        expected = [metric.sentence_score(hypothesis, [reference]).score for metric in metrics]
        assert [float(value) for value in line[:3]] == pytest.approx(expected, abs=1e-4)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("how", [[], ["--by-line"]])
def test_pipes_are_read_like_files(score, tmp_path, monkeypatch, how):
    expected, _ = score("a.txt", "--ref", "ref.en", *how)
    os.mkfifo("ref.pipe")
    threading.Thread(target=lambda: write_lines(tmp_path / "ref.pipe", REFERENCE), daemon=True).start()
    (reader, writer), stdin = os.pipe(), os.dup(0)
    os.write(writer, (tmp_path / "a.txt").read_bytes())
    os.close(writer)
    os.dup2(reader, 0)
    try:
        assert score("-", "--ref", "ref.pipe", *how)[0] == expected
    finally:
        os.dup2(stdin, 0)
    os.close(reader), os.close(stdin)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["a.txt", "--ref", "src.de", "long.txt"], "long.txt has 4 lines but src.de has 3"),
        (["long.txt", "--ref", "ref.en"], "long.txt has 4 lines but ref.en has 3"),
        (["none.txt", "--ref", "ref.en"], "none.txt"),
        (["empty.txt", "--ref", "empty.txt"], "empty.txt: is empty"),
        (["a.csv", "--ref", "ref.en"], "a.csv: the name says that it holds pairs"),
        (["folder", "--ref", "ref.en"], "folder is not a run folder: there is no recipe.yaml"),
        (["run", "--ref", "ref.en"], "the run run needs the source lines: --src FILE"),
        (["a.txt", "--ref", "ref.en", "--lang", "jp"], "is not a language code (did you mean ja"),
        (["a.txt", "--ref", "ref.en", "--html", "none/page.html"], "none/page.html"),
        (
            ["a.txt", "--ref", "ref.en", "--by-line", "--json"],
            "--by-line prints tab-separated scores only: leave --json",
        ),
        (["long.txt", "--ref", "ref.en", "--by-line"], "long.txt has 4 lines but ref.en has 3"),
        (["a.txt", "--ref", "ref.en", "--device", "cuda"], "--device cuda has no effect"),
        (["a.txt", "--ref", "ref.en", "--html", "ref.en"], "ref.en is also an input"),
        (["a.txt", "--ref", "ref.en", "--html", "folder"], "folder is not a regular file, so it is not replaced"),
        (["--ref", "ref.en", "a.txt"], "required: HYP (before --ref, which takes several"),
    ],
)
def test_user_mistake_gives_a_one_line_error(score, tmp_path, flags, told):
    write_lines(tmp_path / "long.txt", [*OUTPUT, "one more"])
    write_lines(tmp_path / "empty.txt", [])
    (tmp_path / "folder").mkdir()
    make_run(tmp_path / "run", FAST_OPTIONS)
    out, err = score(*flags, code=2)
    assert out == "" and told in err and len(err.splitlines()) == 1
