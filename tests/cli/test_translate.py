"""nmt-translate as a command: lines in and out, files, references, mistakes."""

import gzip
import json
import math
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from made_run import SOURCE

from nmt.cli.translate import main
from nmt.data.corpus import Prepared
from nmt.data.prepare import prepare
from nmt.decoding.scorer import score_tokens
from nmt.evaluation.metrics import Texts, score
from nmt.recipe.data_options import ValidationSet
from nmt.recipe.reader import read_recipe
from nmt.run import Run
from tests.data.test_prepare import recipe_in
from tests.learnt import learnt_subwords


@pytest.fixture
def files(tmp_path):
    """A folder with an input file and a reference file of as many lines."""
    for name in ("in", "ref"):
        (tmp_path / name).write_bytes(SOURCE)
    return tmp_path


def text_of(lines):
    return "".join(f"{line}\n" for line in lines)


def test_line_count_is_kept_and_blank_lines_stay_blank(translate):
    lines, _ = translate()
    assert [bool(line) for line in lines] == [True, False, True, True, False, True]
    assert translate("--decode.window", 1, "--decode.max_tokens", 1)[0] == lines
    assert translate(source=b"")[0] == []


def test_only_line_feeds_end_lines_and_each_oddity_is_noted_once(translate, files):
    expected, err = translate(source=b"the ship\nin May\n")
    assert "carriage" not in err and "mark" not in err
    (files / "odd").write_bytes("\ufeffthe ship\r\n\ufeffin May\r\n".encode())
    for flags in ("--decode.window", 1), ("--output", files / "out"):
        lines, err = translate("--input", files / "odd", *flags)
        assert lines == (expected if flags[1] == 1 else []) and err.count("carriage return") == 1
        assert f"note: 2 lines of {files / 'odd'} ended with a carriage return, which was removed" in err
        assert f"note: {files / 'odd'} began with a byte order mark, which was removed" in err
        assert f"note: 1 lines of {files / 'odd'} had a byte order mark inside, which was removed" in err
    assert len(translate(source="a\rb\x0bc\x0cd\u2028e\u0085f\x1cg\n".encode())[0]) == 1
    lines, err = translate(source=b"the ship\nold \xff\xfe ship\nnul \x00\n")
    assert len(lines) == 3 and "<stdin>:2: invalid UTF-8" in err
    assert "<stdin>:1:" not in err and "<stdin>:3:" not in err


def test_overlong_line_is_cut_flagged_and_reported(translate, monkeypatch):
    monkeypatch.setattr("nmt.data.lines.LONGEST_LINE", 2_000)
    source = b"the ship\n" + b"the old ship " * 300 + b"\nin May\n" + b" " * 3_000 + b"the ship\n\n"
    lines, err = translate("--format", "jsonl", source=source)
    records = [json.loads(line) for line in lines]
    assert [record["flags"][:2] for record in records][1] == ["cut", "split"] and len(records) == 5
    assert [record["flags"] for record in records[3:]] == [["cut", "blank"], ["blank"]]  # the first keeps spaces only
    assert records[1]["source"] == ("the old ship " * 300)[:2_000]
    assert err.count("<stdin>:2: only its first 2,000 bytes are read") == 1 and "cut" not in records[0]["flags"]
    long_line = json.dumps({"source": "x" * 3_000}).encode()
    lines, err = translate("--input-format", "jsonl", source=b'{"source": "the ship"}\n' + long_line, code=2)
    assert len(lines) == 1 and "<stdin>:2: not JSON" in err and "<stdin>:2: only its first 2,000 bytes are read" in err


def test_files_give_the_output_of_pipes_even_with_closed_streams(folder, translate, files, monkeypatch, capsysbinary):
    expected, _ = translate()
    (files / "in.gz").write_bytes(gzip.compress(SOURCE))
    assert translate("--input", files / "in.gz", "--output", files / "out")[0] == []
    assert (files / "out").read_text(encoding="utf-8") == text_of(expected)
    for stream, flag, input_flags in (("stdin", "input", []), ("stdout", "output", ["--input", str(files / "in")])):
        monkeypatch.setattr(sys, stream, None)
        assert main([folder, *input_flags]) == 2
        err = capsysbinary.readouterr().err.decode()
        assert f"{stream} is closed" in err and f"with --{flag}." in err
    assert main([folder, "--input", str(files / "in"), "--output", str(files / "out"), "--overwrite"]) == 0
    assert (files / "out").read_text(encoding="utf-8") == text_of(expected)


@pytest.mark.parametrize(("flag", "broken"), [("--output", "LineTranslator.record_of"), ("--alignments", "Report.add")])
def test_file_is_replaced_only_with_overwrite_and_only_when_complete(translate, tmp_path, monkeypatch, flag, broken):
    out = tmp_path / "out"
    out.write_bytes(b"old\n")
    assert "--overwrite" in translate(flag, out, code=2)[1] and out.read_bytes() == b"old\n"
    with monkeypatch.context() as patch:
        patch.setattr(f"nmt.cli.translate_output.{broken}", lambda *_: 1 / 0)
        translate(flag, out, "--overwrite", code=1)
    assert out.read_bytes() == b"old\n" and os.listdir(tmp_path) == ["out"]
    translate(flag, out, "--overwrite")
    assert os.listdir(tmp_path) == ["out"] and out.read_bytes().count(b"\n") == 6


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--output", "x", "--scores", "x", "--ref", "ref"], "--scores and --output"),
        (["--output", "x.html", "--attention", "x.html"], "--attention and --output"),
        (["--output", "x", "--alignments", "link"], "--alignments and --output"),
        (["--output", "in"], "--output and --input"),
        (["--ref", "ref", "--scores", "./ref"], "--scores and --ref"),
    ],
)
def test_same_file_as_two_outputs_or_as_input_and_output_is_refused(translate, files, monkeypatch, flags, named):
    monkeypatch.chdir(files)
    (files / "link").symlink_to("x")
    _, err = translate("--input", "in", "--overwrite", *flags, code=2)
    assert f"{named} are the same file. Name two different files." in err
    assert (files / "in").read_bytes() == (files / "ref").read_bytes() == SOURCE
    assert sorted(os.listdir(files)) == ["in", "link", "ref"]


def test_device_or_pipe_is_never_replaced_by_an_output_file(translate, files):
    os.mkfifo(files / "pipe")
    (files / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        _, err = translate("--input", files / "in", "--output", files / name, "--overwrite", code=2)
        assert f"{files / name} is not a regular file, so it is not replaced. Choose another name" in err
        _, err = translate("--ref", files / "ref", "--scores", files / name, code=2)
        assert f"{files / name} is not a regular file" in err
    assert stat.S_ISFIFO(os.stat(files / "pipe").st_mode) and (files / "link").is_symlink()


def test_output_to_a_link_replaces_its_target_and_keeps_the_link(translate, files):
    (files / "there").mkdir()
    (files / "there" / "old").write_bytes(b"old\n")
    for link, target in (("out", "there/old"), ("words", "there/new")):
        (files / link).symlink_to(target)
    assert "exists already" in translate("--input", files / "in", "--output", files / "out", code=2)[1]
    flags = ("--output", files / "out", "--alignments", files / "words", "--overwrite")
    translate("--input", files / "in", *flags)
    assert (files / "there" / "old").read_text(encoding="utf-8") == text_of(translate()[0])
    assert (files / "there" / "new").read_bytes().count(b"\n") == 6
    assert (files / "out").is_symlink() and (files / "words").is_symlink()
    assert sorted(os.listdir(files / "there")) == ["new", "old"]


def test_scores_and_n_best_lists_agree_in_every_format(translate, objects):
    records = objects("--decode.n_best", 3)
    assert [record["output"] for record in records] == translate()[0]
    assert len({record["score"] for record in records}) > 2
    expected = [(record["id"], hyp) for record in records for hyp in record["n_best"] or [record]]
    rows = [line.split(" ||| ") for line in translate("--decode.n_best", 3)[0]]
    assert [int(number) for number, *_ in rows] == [number for number, _ in expected]
    assert [text for _, text, _ in rows] == [hyp["output"] for _, hyp in expected]
    assert [float(score) for *_, score in rows] == pytest.approx([hyp["score"] for _, hyp in expected], abs=1e-5)
    assert all(record["n_best"][0]["score"] >= record["n_best"][-1]["score"] for record in records if record["output"])
    for line, (number, text, value) in zip(translate("--decode.n_best", 3, "--format", "moses")[0], rows, strict=True):
        first, *rest = line.split(" ||| ")  # Moses counts from 0
        assert (int(first) + 1, rest[0], rest[2]) == (int(number), text, value) and rest[1].startswith("F0= ")
    table = [line.split("\t") for line in translate("--decode.n_best", 3, "--format", "tsv")[0]]
    assert [[number, score, text] for number, _, score, _, text in table] == [[n, s, t] for n, t, s in rows]
    assert [float(row[3]) for row in table] == pytest.approx([hyp["log_prob"] for _, hyp in expected], abs=1e-5)


def test_output_is_a_valid_corpus_even_with_tabs_in_translations(translate, files, monkeypatch):
    monkeypatch.setattr("nmt.data.subwords.Codec.decode", lambda *_: "a\tb")
    for kind, columns in (
        ("jsonl", {"file": "out.jsonl", "src_column": "source", "trg_column": "output"}),
        ("tsv", {"src": "in", "trg": "out.tsv", "trg_column": 5}),
    ):
        translate("--format", kind, "--output", files / f"out.{kind}")
        options = {
            name: str(files / value) if value in ("in", f"out.{kind}") else value for name, value in columns.items()
        }
        prepare(recipe_in(files, valid=[ValidationSet(**options)]), files / kind)
        sources, outputs = Prepared.open(files / kind).valid.texts()
        assert sources == SOURCE.decode().split("\n")
        assert [line.replace("\t", " ") for line in outputs] == ["a b" if source.strip() else "" for source in sources]


def test_every_reference_counts_in_printed_and_json_scores(translate, tmp_path):
    lines, _ = translate()
    ref, scores = tmp_path / "ref.gz", tmp_path / "scores.json"
    ref.write_bytes(gzip.compress("".join(line + "\r\n" for line in [*lines[:-1], "wrong"]).encode("utf-8")))
    out, err = translate("--ref", ref, "--scores", scores)
    assert out == lines
    for name in ("BLEU|nrefs:1|bs:1000", "chrF2|", "TER|", "95 %", "exact match = 83.3 % of 6 lines"):
        assert name in err
    report = json.loads(scores.read_text(encoding="utf-8"))
    assert report["exact_match"] == pytest.approx(500 / 6) and report["n_line"] == 6
    assert report["bleu"]["low"] <= report["bleu"]["high"]
    more_references = [["wrong"] * 6, ["", *lines[1:]]]
    for number, reference in enumerate(more_references):
        (tmp_path / f"ref{number}").write_text(text_of(reference), encoding="utf-8")
    _, err = translate("--ref", tmp_path / "ref0", "--ref", ref, "--ref", tmp_path / "ref1")
    texts = Texts(lines, [more_references[0], [*lines[:-1], "wrong"], more_references[1]], trg_lang="en")
    expected = score(texts, intervals=True)
    assert all(metric_score.text in err for metric_score in expected.values())
    assert "nrefs:3" in err and "exact match = 100.0 % of 6 lines" in err


def test_references_without_text_are_counted_and_listed(translate, tmp_path):
    source = b"".join(b"the ship %d\n" % n for n in range(24)) + b"\n"
    reference = tmp_path / "ref"
    reference.write_text("a\n\n" * 12 + "a\n", encoding="utf-8")
    _, err = translate("--ref", reference, source=source)
    found = f"warning: {reference}: 13 lines are blank here or in the source, not in both"
    assert f"{found} (first: 2, 4, 6, 8, 10, 12, 14, 16, 18, 20): they lower the scores\n" in err
    reference.write_text("a\n" * 24 + "\n", encoding="utf-8")
    assert "blank" not in translate("--ref", reference, source=source)[1]
    reference.write_bytes(b"\n \n")
    out, err = translate("--ref", reference, source=b"the ship\nin May\n", code=2)
    assert f"{reference}: all 2 lines are blank, so there is nothing to score" in err and not out


@pytest.mark.parametrize("n_given", [5, 9])
@pytest.mark.parametrize("flag", ["--ref", "--score"])
@pytest.mark.parametrize("piped", [True, False])
def test_file_with_another_line_count_is_refused_with_both_counts(translate, files, flag, n_given, piped):
    (files / "given").write_bytes(b"in May\n" * n_given)
    flags = [] if piped else ["--input", files / "in"]
    out, err = translate(*flags, flag, files / "given", code=2)
    assert "has 6 lines" in err and f"{files / 'given'} has {n_given}" in err
    assert piped or not out  # lines of an input file are counted before any work
    if flag == "--ref":
        out, err = translate(*flags, flag, files / "ref", flag, files / "given", code=2)
        assert f"{files / 'given'} has {n_given}" in err and not out


def test_given_translations_are_scored_by_forced_decoding(translate, objects, folder, files):
    sources, targets = SOURCE.decode().split("\n"), ["the ship", "", "in May", "ship", "für", "the old ship left"]
    (files / "given").write_text("\n".join(targets), encoding="utf-8")
    model, subwords = Run(folder).load_model(torch.device("cpu"))[0], Run(folder).subwords()
    token_log_probs = score_tokens(model, subwords.src.encode(sources), subwords.trg.encode(targets))
    expected = [math.fsum(line_log_probs) for line_log_probs in token_log_probs]
    expected[1] = 0.0  # both lines are blank, so no model scores them
    flags = ("--input", files / "in", "--score", files / "given")
    text, _ = translate(*flags)
    for lines in (text, translate(*flags[2:])[0], translate(*flags, "--decode.window", 1)[0]):
        assert [float(line) for line in lines] == pytest.approx(expected, abs=1e-5)
    columns, _ = translate(*flags, "--format", "tsv")
    assert [line.split("\t")[1::2] for line in columns] == [[a, b] for a, b in zip(text, targets, strict=True)]
    assert [sum(record["token_log_probs"]) for record in objects(*flags)] == pytest.approx(expected, abs=1e-5)
    pairs = [json.loads(line) for line in translate(*flags, "--format", "pairs")[0]]
    means = [value / len(line_log_probs) for value, line_log_probs in zip(expected, token_log_probs, strict=True)]
    means[1] = means[4] = None  # otherwise blank pairs would score best
    assert [pair.pop("mean_log_prob") for pair in pairs] == pytest.approx(means, abs=1e-5)
    assert pairs == [{"source": src, "output": trg} for src, trg in zip(sources, targets, strict=True)]


def test_unfinished_run_names_the_checkpoint_that_translates(folder, files, capsys):
    run = files / "run"
    shutil.copytree(folder, run, ignore=shutil.ignore_patterns("model"))
    note = f"nmt-translate: note: {run}: training has not ended; translating with update-00000007\n"
    for runs, n_note in (([run], 1), ([folder, run], 1), ([folder], 0), ([run, "--checkpoint", "update-00000007"], 0)):
        assert main([*map(str, runs), "--input", str(files / "in")]) == 0
        err = capsys.readouterr().err
        assert err.count("training has not ended") == err.count(note) == n_note


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--attention", "OUT.png", "--lines", "2"], "--lines 2"),
        (["--attention", "OUT.png", "--lines", "77"], "6 lines"),
        (["--attention", "OUT.png", "--head", "3"], "heads 1 to 2"),
        (["--attention", "OUT.gif"], ".html"),
        (["--attention", "OUT.png", "--attention-of", "encoder", "--layer", "2"], "layers 1 to 1"),
        (["--attention", "OUT.png", "--lines", "0"], "numbers from 1"),
        (["--attention-of", "encoder"], "--attention-of needs --attention"),
        (["--lines", "1"], "--lines needs --attention"),
        (["--layer", "last"], "--layer needs --attention"),
        (["--scores", "OUT.json"], "--ref"),
        (["--alignments", "no/such/folder/a"], "cannot be written"),
        (["--engine", "ctranslate2"], "CTranslate2's own Python"),
        (["--decode.shortlist", "256"], "decode.shortlist is gone"),
        (["--decode.align_layer", "3"], "decode.align_layer: 3, but the decoder of the model has only 2"),
        (["--decode.align_layer", "1", "--decode.align_head", "3"], "decode.align_head: 3, but"),
        (["--decode.align_head", "1"], "no effect without decode.align_layer"),
        (["--input", "OUT.missing"], "No such file"),
        (["--ref", "OUT.missing"], "No such file"),
        (["--score", "OUT.missing"], "No such file"),
        (["--output", "no/such/folder/a"], "cannot be written"),
        (["--device", "abacus"], "Use --device cpu"),
        (["--device", "cuda:99"], "--device cuda:99: cannot be used: torch sees"),
        (["--threads", "9999"], "is not a number of threads"),
        (["--checkpoint", "best"], "update-00000007"),
        (["--decode.top_k", "3"], "no effect without decode.samples"),
        (["--decode.samples", "2", "--decode.n_best", "3"], "more than decode.samples, which is 2"),
        (["--mbr", "2"], "three or more"),
        (["--mbr", "many"], "decode.samples: expected a whole number"),
        (["--show-scores"], "--show-scores is gone: --format tsv"),
        (["--format", "pairs", "--decode.n_best", "2"], "decode.n_best is 2: set it to 1"),
        (["--format", "moses", "--score", "x"], "--score does not support --format moses"),
        (["--format", "xml"], "invalid choice"),
        (["--score", "x", "--retry-suspect"], "--score does not support --retry-suspect"),
        (["--score", "x", "--decode.n_best", "2"], "--score does not support --decode.n_best"),
        (["--score", "x", "--decode.qe", "y"], "--score does not support --decode.qe"),
        (["--keep", "ship", "--decode.samples", "2"], "--keep: required phrases need beam search: set"),
        (["--output", "out.gz"], "out.gz: output is not compressed: write out, and compress it afterwards"),
        (["--keep", "x{99999999999}"], "not a regular expression (the repetition number is too large)"),
    ],
)
def test_impossible_flags_are_refused_before_any_work(translate, tmp_path, flags, message):
    out, err = translate(*(flag.replace("OUT", str(tmp_path / "out")) for flag in flags), code=2)
    assert message in err and list(tmp_path.iterdir()) == []
    assert not out or "--lines" in flags  # --lines needs all of stdin


def test_unreadable_or_too_short_input_is_refused_before_any_work(translate, files):
    (files / "wide").write_bytes("the old ship left in May\n".encode("utf-16"))
    assert "UTF-16" in translate("--input", files / "wide", code=2)[1]
    (files / "cut.gz").write_bytes(gzip.compress(SOURCE * 50)[:-20])
    assert "damaged compressed file" in translate("--input", files / "cut.gz", code=2)[1]
    out, err = translate("--input", files / "in", "--attention", files / "a.html", "--lines", "1,99", code=2)
    assert not out and f"--lines 99: no such line: {files / 'in'} has 6 lines" in err


def test_folder_without_a_run_is_refused_by_name(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "nmt.cli.translate_job", None)  # no slow import is needed
    for runs in ([tmp_path], [folder, tmp_path], [tmp_path / "none"]):
        assert main([*map(str, runs)]) == 2
        assert f"{runs[-1]} is not a run folder" in capsys.readouterr().err
    assert main([f"{folder}/recipe.yaml"]) == 2
    assert f"recipe.yaml is a file: name the run folder that it is in, {folder}" in capsys.readouterr().err


UNNEEDED_IMPORTS = """
import sys
from nmt.cli.translate import main
code = main()
print(*sorted({"pyarrow", "sacrebleu", "datasets", "matplotlib"} & {*sys.modules}), file=sys.stderr)
sys.exit(code)
"""


def test_typed_line_is_answered_before_the_next_without_unneeded_imports(folder, translate):
    expected, _ = translate(source="für Übung\nin May\n".encode())
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-c", UNNEEDED_IMPORTS, folder], env=environment, **pipes)
    for source, answer in zip(["für Übung", "in May"], expected, strict=True):
        process.stdin.write(source.encode("utf-8") + b"\n")
        process.stdin.flush()
        assert process.stdout.readline().decode("utf-8") == answer + "\n"
    out, err = process.communicate(timeout=60)
    assert out == b"" and process.returncode == 0
    assert err.endswith(b"\n\n"), err


def test_help_needs_no_slow_imports():
    code = """import sys, nmt.cli.begin
for name in ("preprocess", "train", "translate", "export"):
    sys.argv = [f"nmt-{name}", "--help"]
    try:
        getattr(nmt.cli.begin, name)()
    except SystemExit as end:
        assert end.code == 0
    assert not {"torch", "numpy", "pyarrow"} & {*sys.modules}
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "") and "usage: " in result.stdout


def test_runs_and_checkpoints_of_the_same_subwords_form_an_ensemble(translate, folder, tmp_path):
    expected, _ = translate()
    assert translate(folder)[0] == expected  # the same run twice
    assert translate("--checkpoint", "update-00000007", "--checkpoint", "model")[0] == expected
    assert "several runs" in translate(folder, "--checkpoint", "model", code=2)[1]
    other = Run(tmp_path / "other")
    shutil.copytree(folder, other.folder)
    lines = ["quite another text"] * 9
    learnt_subwords(lines, lines, read_recipe(other.recipe_file).subwords).save(other.subwords_file)
    assert "different vocabularies" in translate(other.folder, code=2)[1]


def test_mbr_is_sampling_and_a_choice_by_utility(translate, objects):
    records = objects("--mbr", 8, "--decode.n_best", 8)
    assert records == objects("--decode.samples", 8, "--decode.mbr", "chrf", "--decode.n_best", 8)
    for record in records:
        utilities = [hypothesis["utility"] for hypothesis in record["n_best"]]
        assert utilities == sorted(utilities, reverse=True)
        assert len({hypothesis["output"] for hypothesis in record["n_best"]}) == len(utilities)
    lines = translate("--mbr", 16)[0]
    assert translate("--mbr", 16, "--decode.window", 1)[0] == lines
    assert translate("--mbr", 8, "--decode.samples", 16)[0] == lines != translate("--mbr", 16, "--seed", 2)[0]
