import json
import os
import shutil
import threading

import pytest

from nmt.cli.translate import main
from nmt.evaluation.metrics import score
from nmt.recipe.reader import RECORD, read_recipe, write_recipe
from nmt.run import Run

SRC = ["the ship", "", "the old ship left", "für Übung", "in May", "left in May", "ship. The old ship"]


@pytest.fixture
def run(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run")
    found = Run(tmp_path / "run")
    longer = [("decode.max_len_a", "1.0"), ("decode.max_len_b", "4")]  # so that beams find different ones
    write_recipe(read_recipe(found.recipe_file, longer), found.recipe_file)
    return found


@pytest.fixture
def files(tmp_path):
    """The source, and a reference that a search with a beam of 2 has made of it."""
    src, ref = tmp_path / "src", tmp_path / "ref"
    src.write_text("".join(line + "\n" for line in SRC), encoding="utf-8", newline="\n")
    return src, ref


@pytest.fixture
def call(run, capfd):
    def call(*flags, code=0):
        found = main([str(run.folder), *map(str, flags)])
        out, err = capfd.readouterr()
        assert found == code, err
        return out.split("\n")[:-1], err

    return call


@pytest.fixture
def reference(call, files):
    src, ref = files
    call("--input", src, "--output", ref, "--decode.beam", 2)
    return ref


def table(lines):
    head, *rows = [line.split("\t") for line in lines]
    assert {len(row) for row in rows} == {len(head)}
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_what_made_the_reference_wins_and_the_table_says_all(call, run, files, reference):
    before = run.recipe_file.read_bytes()
    lines, err = call("--tune-decoding", files[0], reference, "--tune-beams", "1,2,4", "--tune-metric", "chrf")
    rows = table(lines)
    assert [row["beam"] for row in rows] == ["1", *["2"] * 15, *["3"] * 15, *["4"] * 15]
    (winner,) = [row for row in rows if "winner" in row["mark"]]
    (present,) = [row for row in rows if "present" in row["mark"]]
    assert [present[name] for name in ("beam", "penalty", "alpha")] == ["3", "wu", "1"]
    assert winner["beam"] == "2" and winner["chrF*"] == "100.00" and winner["ratio"] == "1.000"
    searched, _ = call("--input", files[0], "--ref", reference)
    wanted = score(searched, reference.read_text("utf-8").split("\n")[:-1], ("bleu", "chrf"))
    assert present["BLEU*"] == f"{wanted['bleu'].value:.2f}" and present["chrF*"] == f"{wanted['chrf'].value:.2f}"
    assert "chrF|nrefs:1|case:mixed" in err and "paired bootstrap" in err and "--store" in err
    assert f"difference: +{100 - wanted['chrf'].value:.2f} chrF" in err
    assert run.recipe_file.read_bytes() == before and not (run.folder / RECORD).exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_the_lines_may_come_from_pipes_and_messages_name_these(call, files, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=(files[0].read_bytes(),)).start()
    files[1].write_text("one\n")
    _, err = call("--tune-decoding", pipe, files[1], code=2)
    assert f"{pipe} has 7 lines but {files[1]} has 1" in err


def test_what_is_stored_is_what_the_next_translation_uses(call, run, files, reference):
    _, err = call("--tune-decoding", files[0], reference, "--tune-beams", "2", "--store", "--tune-metric", "chrf")
    assert "stored in" in err and str(run.folder / RECORD) in err
    assert call("--input", files[0])[0] == reference.read_text("utf-8").split("\n")[:-1]
    record = json.loads((run.folder / RECORD).read_bytes())
    assert record["before"] == {"beam": 3, "length_penalty": "wu", "alpha": 1.0}
    assert record["stored"]["beam"] == 2 and record["metric"] == "chrf" and record["n_line"] == len(SRC)
    _, err = call("--tune-decoding", files[0], reference, "--tune-beams", "3", "--store")
    assert "the present setting is the best that was tried: nothing to store" in err
    assert json.loads((run.folder / RECORD).read_bytes()) == record


def test_what_the_lines_that_decided_were_is_told_and_kept(call, run, files, reference):
    flags = ("--tune-beams", "2", "--store", "--tune-metric", "chrf", "--trg-lang", "en", "--decode.max_tokens", 99)
    _, err = call("--tune-decoding", files[0], reference, *flags)
    assert "the lines that decided had decode.trg_lang en" in err
    assert json.loads((run.folder / RECORD).read_bytes())["options"] == {"trg_lang": "en"}


def test_where_bleu_cannot_tell_chrf_decides(call, files, reference):
    lines, _ = call("--tune-decoding", files[0], reference, "--tune-beams", "2")
    assert {row["BLEU"] for row in table(lines)} == {"0.00"}  # the nonsense has no four words in a row
    assert [row["beam"] for row in table(lines) if "winner" in row["mark"]] == ["2"]


def test_of_equals_the_present_setting_stays(call, files, reference):
    reference.write_bytes(b"zzz\n" * len(SRC))
    lines, err = call("--tune-decoding", files[0], reference, "--tune-beams", "1,2")
    assert [row["mark"] for row in table(lines) if row["mark"]] == ["present winner"]
    assert "present setting is the best" in err and "difference" not in err


def test_a_run_in_use_is_told_before_the_work(call, run, files, reference):
    with run.lock():
        out, err = call("--tune-decoding", files[0], reference, "--store", code=2)
    assert not out and "in use by process" in err


def test_a_beam_is_never_less_than_the_n_best_of_the_recipe(call, run, files, reference):
    write_recipe(read_recipe(run.recipe_file, [("decode.n_best", "3")]), run.recipe_file)
    lines, _ = call("--tune-decoding", files[0], reference, "--tune-beams", "1,2,4")
    assert {row["beam"] for row in table(lines)} == {"3", "4"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ref", "REF"], "--ref means nothing with --tune-decoding"),
        (["--output", "x"], "--output means nothing"),
        (["--score", "REF"], "--score means nothing"),
        (["--show-scores"], "--show-scores means nothing"),
        (["--format", "tsv"], "--format means nothing"),
        (["--mbr", "9"], "--mbr means nothing"),
        (["--decode.beam", "4"], "--decode.beam: this is what --tune-decoding looks for"),
        (["--decode.samples", "4"], "--decode.samples means nothing"),
        (["--decode.n_best", "1"], "--decode.n_best means nothing"),
        (["--decode.max_len_b", "0"], "decode.max_len_b: expected"),
        (["--store", "--checkpoint", "update-00000007"], "name one run only"),
        (["--store", "--decode.max_len_a", "0.5"], "--decode.max_len_a: --store keeps only what --tune-decoding finds"),
        (["--store", "--decode.precision", "bf16"], "--decode.precision: --store keeps only"),
        (["--tune-beams", "0"], "not a list of numbers from 1"),
        (["--tune-metric", "ter"], "invalid choice"),
    ],
)
def test_what_is_not_meant_is_said(call, files, reference, flags, message):
    flags = [str(reference) if flag == "REF" else flag for flag in flags]
    out, err = call("--tune-decoding", files[0], reference, *flags, code=2)
    assert not out and message in err and "Traceback" not in err


@pytest.mark.parametrize("flag", [["--store"], ["--tune-beams", "2"], ["--tune-metric", "chrf"]])
def test_its_flags_mean_nothing_without_it(call, flag):
    assert f"{flag[0]} needs --tune-decoding" in call(*flag, code=2)[1]


def test_files_that_do_not_belong_together_are_refused(call, tmp_path, files):
    (tmp_path / "short").write_bytes(b"a\n")
    (tmp_path / "empty").write_bytes(b"")
    _, err = call("--tune-decoding", files[0], tmp_path / "short", code=2)
    assert "has 7 lines but" in err and "has 1:" in err
    assert "nothing to tune on" in call("--tune-decoding", tmp_path / "empty", tmp_path / "empty", code=2)[1]
    assert "no such file" in call("--tune-decoding", files[0], tmp_path / "none", code=2)[1]


def test_a_run_that_samples_is_not_tuned(call, run, files, reference):
    write_recipe(read_recipe(run.recipe_file, [("decode.samples", "4")]), run.recipe_file)
    assert "decode.samples is 4" in call("--tune-decoding", files[0], reference, code=2)[1]


def test_lines_that_are_split_are_tuned_too(call, files, reference):
    limit = ("--decode.split", "every")
    files[1].unlink()
    call("--input", files[0], "--output", files[1], "--decode.beam", 2, *limit)
    lines, _ = call("--tune-decoding", files[0], files[1], "--tune-beams", "2", *limit)
    assert [row["chrF*"] for row in table(lines) if "winner" in row["mark"]] == ["100.00"]


def test_blank_references_are_named_and_nothing_else_is_no_validation_data(call, files):
    src, ref = files
    ref.write_text("a\n" * 3 + "\n" * 4, encoding="utf-8")
    _, err = call("--tune-decoding", src, ref, "--tune-beams", "1")
    assert f"{ref}: 4 of 7 references are blank where the source is not (lines 4, 5, 6, 7)" in err
    assert f"{ref}: 1 of 7 have text where the source is blank (line 2)" in err
    ref.write_text("\n" * 7, encoding="utf-8")
    assert "no line has text beside a source" in call("--tune-decoding", src, ref, "--tune-beams", "1", code=2)[1]
