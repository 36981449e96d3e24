import gzip
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from made_run import SOURCE

from nmt.cli import translate_job as translate_job
from nmt.cli.translate import main
from nmt.data.subwords import Subwords
from nmt.decoding.scorer import score_tokens
from nmt.recipe.reader import read_recipe
from nmt.run import Run


def test_as_many_lines_come_out_as_go_in_and_blank_stays_blank(translate):
    lines, _ = translate()
    assert [bool(line) for line in lines] == [True, False, True, True, False, True]
    assert translate("--decode.window", 1, "--decode.max_tokens", 1)[0] == lines
    assert translate(source=b"")[0] == []


def test_only_a_line_feed_ends_a_line_and_a_mark_at_the_start_is_no_text(translate):
    wanted, _ = translate(source=b"the ship\nin May\n")
    assert translate(source=b"\xef\xbb\xbfthe ship\r\nin May\r\n")[0] == wanted
    assert len(translate(source="a\rb\x0bc\x0cd\u2028e\u0085f\x1cg\n".encode())[0]) == 1


def test_bytes_that_are_no_text_are_answered_and_named(translate):
    lines, err = translate(source=b"the ship\nold \xff\xfe ship\nnul \x00\n")
    assert len(lines) == 3
    assert "<stdin>:2: invalid UTF-8" in err
    assert "<stdin>:1:" not in err and "<stdin>:3:" not in err


def test_a_line_of_any_size_is_cut_where_it_is_no_line_any_more_and_named(translate, monkeypatch):
    monkeypatch.setattr("nmt.data.lines.LONGEST_LINE", 2_000)
    source = b"the ship\n" + b"the old ship " * 300 + b"\nin May\n" + b" " * 3_000 + b"the ship\n\n"
    lines, err = translate("--format", "jsonl", source=source)
    found = [json.loads(line) for line in lines]
    assert [one["flags"][:2] for one in found][1] == ["cut", "split"] and len(found) == 5
    assert [one["flags"] for one in found[3:]] == [["cut", "blank"], ["blank"]]  # nothing of its beginning can be seen
    assert found[1]["source"] == ("the old ship " * 300)[:1_997].rstrip()  # where the word ends
    assert err.count("<stdin>:2: 3,900 bytes, of which the first 1,9") == 1 and "cut" not in found[0]["flags"]
    long = json.dumps({"source": "x" * 3_000}).encode()
    lines, err = translate("--input-format", "jsonl", source=b'{"source": "the ship"}\n' + long, code=2)
    assert len(lines) == 1 and "<stdin>:2: 3,014 bytes. A line of JSON may have" in err


def test_files_give_what_the_pipe_gives(translate, tmp_path):
    wanted, _ = translate()
    (tmp_path / "in.txt").write_bytes(SOURCE)
    (tmp_path / "in.gz").write_bytes(gzip.compress(SOURCE))
    for name in ("in.txt", "in.gz"):
        out = tmp_path / f"{name}.out"
        assert translate("--input", tmp_path / name, "--output", out)[0] == []
        assert out.read_bytes().decode("utf-8") == "".join(line + "\n" for line in wanted)


def test_an_output_that_exists_is_replaced_only_when_told_and_only_when_whole(translate, tmp_path, monkeypatch):
    out = tmp_path / "out.txt"
    out.write_bytes(b"old\n")
    _, err = translate("--output", out, code=2)
    assert "--overwrite" in err and out.read_bytes() == b"old\n"
    with monkeypatch.context() as patch:
        patch.setattr("nmt.cli.translate_output.flags_of", lambda *_: 1 / 0)
        translate("--output", out, "--overwrite", code=1)
    assert out.read_bytes() == b"old\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
    translate("--output", out, "--overwrite")
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
    assert len(out.read_bytes().split(b"\n")) == 7


def test_show_scores_writes_score_and_tab(translate):
    told = [json.loads(line) for line in translate("--format", "jsonl")[0]]
    for line, one in zip(translate("--show-scores")[0], told, strict=True):
        score, found = line.split("\t", 1)
        assert found == one["output"] and float(score) == pytest.approx(one["score"], abs=1e-5)
    assert len({one["score"] for one in told}) > 2


def test_n_best_writes_number_translation_and_score_best_first(translate):
    plain, _ = translate()
    lines, _ = translate("--decode.n_best", 3)
    fields = [line.split(" ||| ") for line in lines]
    numbers = [number for number, _, _ in fields]
    assert numbers == sorted(numbers) and {*numbers} == {*"123456"} and max(map(numbers.count, numbers)) == 3
    first = {number: text for number, text, _ in reversed(fields)}
    assert [first[str(number)] for number in range(1, 7)] == plain
    told = [json.loads(line) for line in translate("--decode.n_best", 3, "--format", "jsonl")[0]]
    scores = [one["score"] for line in told for one in (line["n_best"] if line["output"] else [line])]
    assert [float(score) for _, _, score in fields] == pytest.approx(scores, abs=1e-5)
    assert all(line["n_best"][0]["score"] >= line["n_best"][-1]["score"] for line in told if line["output"])


def test_a_reference_is_scored_raw_and_as_json(translate, tmp_path):
    lines, _ = translate()
    ref = tmp_path / "ref.gz"
    ref.write_bytes(gzip.compress("".join(line + "\r\n" for line in [*lines[:-1], "wrong"]).encode("utf-8")))
    out, err = translate("--ref", ref, "--scores", tmp_path / "scores.json")
    assert out == lines
    for name in ("BLEU|nrefs:1|bs:1000", "chrF2|", "TER|", "95 %", "exact match = 83.3 % of 6 lines"):
        assert name in err
    scores = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    assert scores["exact_match"] == pytest.approx(500 / 6)
    assert scores["bleu"]["low"] <= scores["bleu"]["high"]
    assert scores["n_line"] == 6


@pytest.mark.parametrize("from_file", [True, False])
def test_a_reference_of_another_length_is_refused_with_both_counts(translate, tmp_path, from_file):
    (tmp_path / "ref").write_bytes(b"a\nb\n")
    (tmp_path / "in").write_bytes(SOURCE)
    out, err = translate("--ref", tmp_path / "ref", *(["--input", tmp_path / "in"] if from_file else []), code=2)
    assert "6 lines" in err and "has 2" in err
    assert bool(out) != from_file  # known before the work where the input is a file


@pytest.mark.parametrize("name", ["a.png", "a.html"])
def test_attention_of_chosen_lines_is_drawn(translate, tmp_path, name):
    plain, _ = translate()
    flags = ("--attention", tmp_path / name, "--lines", "1,4", "--layer", "all", "--head", "1,2")
    assert translate(*flags)[0] == plain
    if name.endswith("html"):
        data = data_of(tmp_path / name)
        assert [one["title"] for one in data["sentences"]] == [f"1: {plain[0]}", f"4: {plain[3]}"]
        assert data["shown"] == {"kind": "cross", "layer": 1, "head": "all"} and data["langs"]["trg"] == "en"
    else:
        height, width, _ = matplotlib.image.imread(tmp_path / name).shape
        translate("--attention", tmp_path / "one.png", "--lines", "1", "--layer", "all", "--head", "1,2")
        alone = matplotlib.image.imread(tmp_path / "one.png")
        assert height > alone.shape[0] > 100 and width > 100 and len(np.unique(alone)) > 20


def test_a_run_that_has_not_ended_says_which_checkpoint_translates(folder, tmp_path, capsys):
    run, source = tmp_path / "run", tmp_path / "in"
    shutil.copytree(folder, run, ignore=shutil.ignore_patterns("model"))
    source.write_bytes(b"the ship\n")
    note = f"nmt-translate: note: {run}: training has not ended; translating with update-00000007\n"
    for runs, n_note in (([run], 1), ([folder, run], 1), ([folder], 0), ([run, "--checkpoint", "update-00000007"], 0)):
        assert main([*map(str, runs), "--input", str(source)]) == 0
        err = capsys.readouterr().err
        assert err.count("training has not ended") == err.count(note) == n_note


@pytest.mark.parametrize(
    ("device", "n_line", "options", "told"),
    [
        ("cuda", 1001, [], "--decode.max_tokens 1048576 --decode.window 10000\n"),
        ("cuda", 1001, ["--decode.window=5000"], "--decode.max_tokens 1048576\n"),
        ("cuda", 1000, [], None),  # which are one window
        ("cpu", 1001, [], None),
    ],
)
def test_who_translates_much_on_a_gpu_in_small_batches_is_told(
    translate, tmp_path, monkeypatch, device, n_line, options, told
):
    (tmp_path / "in").write_bytes(b"the ship\n" * n_line)
    monkeypatch.setattr(translate_job, "choose_device", lambda _name: torch.device(device))
    _, err = translate("--input", tmp_path / "in", *options)
    assert (f"note: a GPU is faster with more lines at once: {told}" in err) if told else ("a GPU is" not in err)


def data_of(path):
    """What a page of attention shows."""
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.S).group(1))


def test_attention_without_lines_draws_the_first_that_are_not_blank(translate, tmp_path):
    translate("--attention", tmp_path / "a.html")
    data = data_of(tmp_path / "a.html")
    assert [one["title"].partition(":")[0] for one in data["sentences"]] == ["1", "3", "4"]
    assert data["shown"] == {"kind": "cross", "layer": 1, "head": "mean"}
    assert {kind: tuple(one.values()) for kind, one in data["kinds"].items()} == {
        "cross": (2, 2), "encoder": (1, 2), "decoder": (2, 2),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["cross", "encoder", "decoder"])
def test_which_attention_is_drawn_can_be_chosen(translate, tmp_path, kind):
    flags = ("--attention-of", kind, "--layer", 1, "--lines", 1)
    plain, _ = translate("--attention", tmp_path / "a.svg", *flags, "--head", "all")
    drawn, looks = (tmp_path / "a.svg").read_text(encoding="utf-8"), "the ship" if kind == "encoder" else plain[0]
    assert drawn.startswith("<?xml") and f"<!-- 1: {looks[:119]}" in drawn
    translate("--attention", tmp_path / "a.html", *flags)
    assert data_of(tmp_path / "a.html")["shown"] == {"kind": kind, "layer": 0, "head": "mean"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--attention", "OUT.png", "--lines", "2"], "--lines 2"),
        (["--attention", "OUT.png", "--lines", "77"], "6 lines"),
        (["--attention", "OUT.png", "--head", "3"], "heads 1 to 2"),
        (["--attention", "OUT.gif"], ".html"),
        (["--attention", "OUT.png", "--attention-of", "encoder", "--layer", "2"], "layers 1 to 1"),
        (["--attention-of", "encoder"], "--attention-of needs --attention"),
        (["--attention", "OUT.png", "--lines", "0"], "numbers from 1"),
        (["--lines", "1"], "--attention"),
        (["--scores", "OUT.json"], "--ref"),
        (["--alignments", "no/such/folder/a"], "cannot be written"),
        (["--output", "OUT", "--alignments", "OUT"], "same file"),
        (["--gold-alignments", "OUT"], "--gold-alignments is gone"),
        (["--store"], "--store is gone"),
        (["--engine", "ctranslate2"], "CTranslate2's own Python"),
        (["--decode.align_layer", "3"], "decode.align_layer: 3, but the decoder of the model has 2"),
        (["--decode.align_layer", "1", "--decode.align_head", "3"], "decode.align_head: 3, but"),
        (["--decode.align_head", "1"], "of which layer"),
        (["--input", "OUT.missing"], "no such file"),
        (["--ref", "OUT.missing"], "no such file"),
        (["--output", "no/such/folder/a"], "cannot be written"),
        (["--device", "abacus"], "--device cpu"),
        (["--checkpoint", "best"], "update-00000007"),
        (["--decode.beam", "0"], "decode.beam"),
        (["--score", "OUT.missing"], "no such file"),
        (["--decode.top_k", "3"], "decode.samples is 0"),
        (["--decode.samples", "2", "--decode.n_best", "3"], "more than decode.samples, which is 2"),
        (["--mbr", "2"], "three or more"),
        (["--format", "jsonl", "--show-scores"], "leave it out"),
        (["--format", "xml"], "invalid choice"),
    ],
)
def test_what_cannot_be_done_is_said_without_a_traceback(translate, tmp_path, flags, message):
    _, err = translate(*(flag.replace("OUT", str(tmp_path / "out")) for flag in flags), code=2)
    assert message in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_not_there_is_the_machines_fault(translate):
    _, err = translate("--device", "cuda:99", code=2)
    assert "--device cuda:99: cannot be used: torch sees" in err and "--device cpu" in err and "Traceback" not in err


def test_wide_text_and_damaged_gzip_are_refused(translate, tmp_path):
    (tmp_path / "wide").write_bytes("the old ship left in May\n".encode("utf-16"))
    assert "UTF-16" in translate("--input", tmp_path / "wide", code=2)[1]
    (tmp_path / "cut.gz").write_bytes(gzip.compress(SOURCE * 50)[:-20])
    assert "damaged compressed file" in translate("--input", tmp_path / "cut.gz", code=2)[1]


def test_a_folder_without_a_run_is_named(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "nmt.cli.translate_job", None)  # nothing that takes long to import is needed
    for runs in ([tmp_path], [folder, tmp_path], [tmp_path / "none"]):
        assert main([*map(str, runs)]) == 2
        assert f"{runs[-1]} is not a run folder" in capsys.readouterr().err
    assert main([f"{folder}/recipe.yaml"]) == 2
    assert f"recipe.yaml is a file: name the run folder that it is in, {folder}" in capsys.readouterr().err


def start(folder: str, *code: str, **streams) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    what = code or ("-m", "nmt.cli.translate")
    return subprocess.Popen([sys.executable, *what, folder], env=environment, **streams)


UNNEEDED = """
import sys
from nmt.cli.translate import main
code = main()
print(*sorted({"pyarrow", "sacrebleu", "datasets", "matplotlib"} & {*sys.modules}), file=sys.stderr)
sys.exit(code)
"""


def test_a_line_that_is_typed_is_answered_before_the_next_and_nothing_is_imported_that_it_does_not_need(
    folder, translate
):
    wanted, _ = translate(source="für Übung\nin May\n".encode())
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = start(folder, "-c", UNNEEDED, **pipes)
    for source, answer in zip(["für Übung", "in May"], wanted, strict=True):
        process.stdin.write(source.encode("utf-8") + b"\n")
        process.stdin.flush()
        assert process.stdout.readline().decode("utf-8") == answer + "\n"
    out, err = process.communicate(timeout=60)
    assert out == b"" and process.returncode == 0
    assert err.endswith(b"\n\n"), err


def test_json_lines_tell_everything_and_agree_with_themselves(translate):
    plain, _ = translate("--decode.n_best", 3, "--format", "tsv")
    lines, _ = translate("--decode.n_best", 3, "--format", "jsonl")
    found = [json.loads(line) for line in lines]
    assert [one["id"] for one in found] == [1, 2, 3, 4, 5, 6]
    assert [one["source"] for one in found] == SOURCE.decode().split("\n")
    assert found[1]["output"] == "" and found[1]["flags"] == ["blank"] and found[1]["n_best"] == []
    for one in found:
        if not one["n_best"]:
            continue
        assert one["output"] == one["n_best"][0]["output"] and one["score"] == one["n_best"][0]["score"]
        assert one["log_prob"] == pytest.approx(one["n_best"][0]["log_prob"], abs=1e-5)
        assert len(one["tokens"]) == len(one["token_log_probs"])
        assert "cap" in one["flags"]  # an untrained model does not stop
    columns = [line.split("\t") for line in plain]
    assert [column[0] for column in columns] == [str(one["id"]) for one in found for _ in one["n_best"] or [one]]
    assert [float(column[2]) for column in columns if column[1] == "1"] == pytest.approx(
        [one["score"] for one in found], abs=1e-6
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_log_probability_of_a_line_is_that_of_its_tokens(translate, precision):
    for line in translate("--format", "jsonl", "--decode.precision", precision, "--device", "cpu")[0]:
        found = json.loads(line)
        assert found["log_prob"] == math.fsum(found["token_log_probs"])


def test_a_tab_in_a_translation_is_no_column(translate, monkeypatch):
    monkeypatch.setattr("nmt.data.subwords.Codec.decode", lambda *_: "a\tb")
    lines, _ = translate("--format", "tsv")
    assert lines[0].endswith("\ta b") and lines[0].count("\t") == 4


def test_given_translations_are_scored_by_forced_decoding(translate, folder, tmp_path):
    sources, targets = SOURCE.decode().split("\n"), ["the ship", "", "in May", "ship", "für", "the old ship left"]
    (tmp_path / "in").write_bytes(SOURCE)
    (tmp_path / "given").write_text("\n".join(targets), encoding="utf-8")
    model, subwords = Run(folder).load_model(torch.device("cpu"))[0], Run(folder).subwords()
    told = score_tokens(model, subwords.src.encode(sources), subwords.trg.encode(targets))
    wanted = [math.fsum(one) for one in told]
    wanted[1] = 0.0  # of two blank lines, which need no model
    flags = ("--input", tmp_path / "in", "--score", tmp_path / "given")
    text, _ = translate(*flags)
    assert [float(line) for line in text] == pytest.approx(wanted, abs=1e-5)
    assert [float(line) for line in translate("--score", tmp_path / "given")[0]] == pytest.approx(wanted, abs=1e-5)
    one_by_one, _ = translate(*flags, "--decode.window", 1)
    assert [float(line) for line in one_by_one] == pytest.approx(wanted, abs=1e-5)
    columns, _ = translate(*flags, "--format", "tsv")
    assert [line.split("\t")[1::2] for line in columns] == [[a, b] for a, b in zip(text, targets, strict=True)]
    for line, told in zip(translate(*flags, "--format", "jsonl")[0], wanted, strict=True):
        assert sum(json.loads(line)["token_log_probs"]) == pytest.approx(told, abs=1e-5)


@pytest.mark.parametrize("n_given", [4, 5, 7, 9])
@pytest.mark.parametrize("piped", [True, False])
def test_other_counts_of_given_translations_are_refused_with_both(translate, tmp_path, n_given, piped):
    (tmp_path / "in").write_bytes(SOURCE)
    (tmp_path / "given").write_bytes(b"in May\n" * n_given)
    flags = () if piped else ("--input", tmp_path / "in")
    _, err = translate(*flags, "--score", tmp_path / "given", code=2)
    assert "has 6 lines" in err and f"has {n_given}" in err


def test_runs_and_checkpoints_translate_together(translate, folder):
    alone, _ = translate()
    assert translate(folder)[0] == alone  # the same run twice
    assert translate("--checkpoint", "update-00000007", "--checkpoint", "model")[0] == alone
    assert "several runs" in translate(folder, "--checkpoint", "model", code=2)[1]


def test_runs_with_other_subwords_are_refused(translate, folder, tmp_path):
    other = Run(tmp_path / "other")
    shutil.copytree(folder, other.folder)
    lines = ["quite another text"] * 9
    Subwords.train(lambda: lines, lambda: lines, read_recipe(other.recipe_file).subwords).save(other.subwords_file)
    assert "different vocabularies" in translate(other.folder, code=2)[1]


def test_samples_follow_from_the_seed_and_the_line(translate):
    flags = ("--decode.samples", 2, "--decode.temperature", 0.9, "--decode.top_p", 0.9)
    lines, _ = translate(*flags)
    assert [bool(line) for line in lines] == [True, False, True, True, False, True]
    assert translate(*flags, "--decode.window", 1)[0] == lines
    assert translate(*flags, "--decode.seed", 2)[0] != lines


def test_mbr_is_samples_and_a_choice(translate):
    lines, _ = translate("--mbr", 8, "--format", "jsonl", "--decode.n_best", 8)
    assert (
        lines == translate("--decode.samples", 8, "--decode.mbr", "chrf", "--format", "jsonl", "--decode.n_best", 8)[0]
    )
    for one in map(json.loads, lines):
        utilities = [each["utility"] for each in one["n_best"]]
        assert utilities == sorted(utilities, reverse=True)
        assert len({each["output"] for each in one["n_best"]}) == len(utilities)
    assert translate("--mbr", 8, "--decode.samples", 16)[0] == translate("--mbr", 16)[0]


def test_help_needs_nothing_that_takes_long_to_import():
    code = """import sys, nmt.cli.entry
for name in ("preprocess", "train", "translate", "export"):
    sys.argv = [f"nmt-{name}", "--help"]
    try:
        getattr(nmt.cli.entry, name)()
    except SystemExit as end:
        assert end.code == 0
    assert not {"torch", "numpy", "pyarrow"} & {*sys.modules}
"""
    found = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "") and "usage: " in found.stdout


def test_the_count_of_what_looks_wrong_is_told(translate, monkeypatch):
    monkeypatch.setattr("nmt.data.subwords.Codec.decode", lambda *_: "ha ha ha ha ha ha")
    lines, err = translate("--format", "jsonl")
    assert [json.loads(line)["flags"][-1] for line in lines] == [
        *["low", "blank"],
        *["low"] * 2,
        *["blank", "low"],
    ]
    assert all("repeated" in line for line in lines if "blank" not in line)
    assert "suspicious translations, of 6: repeated 4, low 4 (" in err
    _, err = translate("--decode.low_score", 0)  # which no score is below
    assert "suspicious translations, of 6: repeated 4 (" in err


def test_what_is_asked_of_a_line_is_in_its_translation_or_said_to_be_missing(translate, tmp_path):
    (tmp_path / "terms").write_bytes(b"ship\told ship\n")
    (tmp_path / "avoid").write_bytes(b"left\nleft\n")
    source = b"the ship\tin M\n\nthe {x} left\n"
    flags = ["--input-format", "tsv", "--terms", tmp_path / "terms", "--avoid", tmp_path / "avoid", "--keep", "{.}"]
    first, blank, last = translate(*flags, "--decode.max_len_b", 30, source=source)[0]
    assert first.startswith("in M") and "old ship" in first and not blank
    assert "{x}" in last and "left" not in last
    impossible = b'{"source": "the ship", "required": ["left"], "avoided": ["left"]}\n{"source": "a"}\n'
    lines, err = translate("--input-format", "jsonl", "--format", "jsonl", source=impossible)
    assert ["unmet" in json.loads(line)["flags"] for line in lines] == [True, False]
    assert json.loads(lines[0])["source"] == "the ship" and "unmet 1" in err


def test_lines_before_a_bad_one_are_answered(translate):
    lines, err = translate("--input-format", "jsonl", source=b'{"source": "the ship"}\nthe ship\n', code=2)
    assert len(lines) == 1 and "<stdin>:2: not JSON" in err


def test_phrases_cannot_be_required_of_samples(translate):
    out, err = translate("--keep", "ship", "--decode.samples", 2, "--decode.window", 1, source=b"May\nship\n", code=2)
    assert not out and "--keep: phrases can be required of beam search only: set decode.samples to 0" in err
    objects = b'{"source": "May"}\n{"source": "May", "required": ["ship"]}\n'
    _, err = translate("--input-format", "jsonl", "--decode.samples", 2, source=objects, code=2)
    assert "<stdin>:2: phrases can be required of beam search only" in err


def test_a_line_longer_than_training_saw_is_translated_in_pieces_and_flagged(translate):
    sentences = ["The old ship left.", "In May  the ship!", "Für Übung?"]
    source = "\t".join(sentences).encode() + b"\nin May\n"
    flags = ("--format", "jsonl", "--decode.max_src_len", 16)
    lines, err = translate(*flags, source=source)
    whole, other = map(json.loads, lines)
    assert "split" in whole["flags"] and "split" not in other["flags"]
    assert len(whole["tokens"]) == len(whole["token_log_probs"])
    assert "1 of 2 lines were translated in pieces, as they have more than 16 subwords: line 1 (" in err
    apart = [json.loads(line) for line in translate(*flags, source="\n".join(sentences).encode())[0]]
    assert whole["output"] == "\t".join(one["output"] for one in apart)
    assert whole["tokens"] == [token for one in apart for token in one["tokens"]]
    assert whole["token_log_probs"] == pytest.approx([value for one in apart for value in one["token_log_probs"]])
    text, err = translate("--decode.split", "every", source=source)
    assert text[0] == whole["output"] and "1 of 2 lines were translated sentence by sentence" in err
    assert "split" not in json.loads(translate("--format", "jsonl", source=source)[0][0])["flags"]


def test_a_line_that_is_split_has_a_picture_of_attention(translate, tmp_path):
    source = b"The old ship left. In May the ship! A ship. In May.\n"
    translate("--attention", tmp_path / "a.html", "--decode.max_src_len", 16, source=source)
    (drawn,) = data_of(tmp_path / "a.html")["sentences"]
    (line,) = translate("--format", "jsonl", "--decode.max_src_len", 16, source=source)[0]
    assert "split" in json.loads(line)["flags"]
    assert len(drawn["src"]["pieces"]) == len(json.loads(line)["source_tokens"])
    assert len(drawn["trg"]["pieces"]) == len(json.loads(line)["tokens"])
