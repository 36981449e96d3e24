"""The scripts that measure nmt-preprocess, on a few pairs and in this process: that they measure well cannot be tested,
that they measure what they say can."""

import io
import json
import os
import random
import re
import runpy
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from nmt.data.stored.corpus import Prepared
from nmt.data.text.lines import write_lines

TOOLS = Path(__file__).parents[1] / "tools"


def loaded(script):
    """What a script defines. Its functions see what a test puts in their place."""
    return runpy.run_path(str(TOOLS / script))["main"].__globals__


def text_of(main, *args):
    """The exit code of a script, and what it prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        code = main(list(map(str, args)))
    return code, out.getvalue()


def in_process(arguments):
    """What `python -c CODE ARGUMENT` prints as JSON at last, without a process of its own."""
    _, flag, code, *rest = arguments
    assert flag == "-c"
    out = io.StringIO()
    with redirect_stdout(out), mock.patch.object(sys, "argv", ["-c", *rest]), mock.patch.dict(os.environ):
        exec(compile(code, "-c", "exec"), {"__name__": "__main__"})
    return json.loads(out.getvalue().splitlines()[-1])


@pytest.fixture
def files(tmp_path):
    draw = random.Random(1)
    words = [("".join(draw.choices("abcdefghij", k=6)), "".join(draw.choices("klmnopqrst", k=6))) for _ in range(300)]
    lines = [[draw.choice(words) for _ in range(draw.randint(3, 9))] for _ in range(300)]
    paths = tmp_path / "own.de", tmp_path / "own.en"
    for side, path in enumerate(paths):
        write_lines(path, (" ".join(word[side] for word in line) for line in lines))
    return paths


def test_the_benchmark_runs_both_on_the_same_pairs_and_tells_every_stage(files):
    pytest.importorskip("sentencepiece")
    bench, tasks = loaded("bench_preprocessing.py"), []

    def run(arguments):
        tasks.append(json.loads(arguments[3]))
        return in_process(arguments)

    bench["_run"], bench["_core_seconds"] = run, time.process_time  # nobody else works here
    code, said = text_of(bench["main"], *files, "--turns", 2, "--vocab", 300, "--workers", 1, "--lines", 250)
    assert code == 0
    assert re.match(r"250 pairs, [\d,]+ bytes, 1 workers\n", said)
    (_, options), (texts, _, n_thread, n_vocab, sample), (_, sampled), (*_, of_a_sample) = tasks[:4]
    mine = json.loads(dict(options)["data.train"])
    assert [mine["src"], mine["trg"]] == texts and dict(options)["subwords.vocab_size"] == "300"
    assert (n_thread, n_vocab, sample, of_a_sample) == (1, 300, 0, 500)
    assert [dict(each)["subwords.max_train_lines"] for each in (options, sampled)] == ["500", "500"]
    assert len(tasks) == 8
    for stage in ("hash", "read and filter", "count", "learn", "encode and write", "report", "all", "cores"):
        assert len(re.findall(rf"^nmt, a.* +{stage} +[\d.]+ +[\d,]+$", said, re.MULTILINE)) == 2, stage
    for of in ("all lines", "a sample"):
        stages = re.findall(rf"^peer, {of} +(?:learn|encode|all|cores) +[\d.]+ +[\d,]+$", said, re.MULTILINE)
        assert len(stages) == 4 and f"times as fast where both learn from {of}" in said


def test_the_benchmark_tells_medians_and_their_ratios():
    bench = loaded("bench_preprocessing.py")
    ours = [{"hash": 1.0, "learn": each / 4, "all": each, "cores": 2 * each} for each in (2.0, 9.0, 4.0)]
    peers = [{"learn": each, "all": each, "cores": each} for each in (7.0, 6.0, 100.0)]
    out = io.StringIO()
    with redirect_stdout(out):
        of_sample = {"nmt, a sample": peers, "peer, a sample": ours}
        bench["_print_result"]({"nmt, all lines": ours, "peer, all lines": peers, **of_sample}, 2000)
    said = out.getvalue()
    assert re.search(r"^nmt, all lines +all +4\.0 +500$", said, re.MULTILINE)
    assert re.search(r"^peer, all lines +all +7\.0 +286$", said, re.MULTILINE)
    assert "1.75 times as fast where both learn from all lines; the cores work 1/0.88 as long" in said
    assert "0.57 times as fast where both learn from a sample; the cores work 1/1.14 as long" in said
    assert "what bounds it: hash takes 25%; learning, which one core does alone, 25%" in said


@pytest.mark.parametrize("script", ["bench_preprocessing.py", "prove_memory.py"])
def test_one_file_is_refused_in_words(script, files, capsys):
    with pytest.raises(SystemExit) as end:
        loaded(script)["main"]([str(files[0])])
    assert end.value.code == 2 and "1 files: expected a source and a target" in capsys.readouterr().err


def test_a_corpus_that_no_pair_can_be_made_of_is_refused_in_words(tmp_path, capsys):
    for name, text in (("own.de", "\nein Hund\n"), ("own.en", "\n" + "dog " * 80 + "\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert loaded("prove_memory.py")["main"]([str(tmp_path / "own.de"), str(tmp_path / "own.en")]) == 2
    assert "no pair with text on both sides, 300 characters at most" in capsys.readouterr().err


def test_pairs_that_are_made_up_hardly_repeat_and_have_the_same_numbers_on_both_sides():
    made = loaded("prove_memory.py")["made"]
    pairs = [(f"{n} Hunde {chr(97 + n)}", f"{n} dogs {chr(97 + n)}") for n in range(20)]
    found = list(made(pairs, 2000))
    assert found == list(made(pairs, 2000)) != list(made(pairs, 2000, seed=2))
    assert len(set(found)) > 1900
    for src, trg in found:
        assert src.replace("Hunde", "dogs") == trg and len(re.findall(r"\d+", src)) == 2


def test_the_proof_of_memory_prepares_what_it_says_and_opens_it_as_training_does(files, tmp_path):
    proof, folders = loaded("prove_memory.py"), []

    def watched(arguments, folder):
        found = in_process(arguments)
        folders.append(folder)
        prepared = Prepared.open(folder / "prepared").manifest
        assert (prepared["inputs"][0]["n_line"], prepared["n_pair"]["valid"]) == (400, 1000)
        return found, len(folders) << 20, 1 << 20

    proof["_watched"] = watched
    code, said = text_of(proof["main"], *files, "--pairs", 400, "--runs", 2, "--workers", 1, "--folder", tmp_path)
    assert code == 0 and len(folders) == 4
    for n in (1, 2):
        assert re.search(rf"^ +400 pairs, [\d,]+ bytes of text: .* peak {n} MiB$", said, re.MULTILINE)
    for n, rate in ((3, "0.0"), (4, "0.1")):
        assert re.search(
            rf"training, bpe_dropout {rate}: open after [\d.]+ s, first batch after [\d.]+ s, peak {n} MiB", said
        )
    assert "grows by 0.0% from 400 to 400 pairs" in said
    assert not folders[0].exists()


def test_the_median_of_the_peaks_counts(files, tmp_path):
    proof, left = loaded("prove_memory.py"), [5, 3, 4]
    proof["_watched"] = lambda *_: ({}, left.pop(0) if left else 9, 1)
    (tmp_path / "prepared").mkdir()
    proof["shutil"] = type("shutil", (), {"rmtree": lambda *_, **__: None})
    assert proof["_one"](tmp_path, [("a", "b")], 2, 1, 3) == 4


@pytest.mark.parametrize(
    ("peaks", "code"), [((100, 109), 0), ((100, 111), 1), ((2 << 30, 2 << 30), 0), ((2049 << 20, 2049 << 20), 1)]
)
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_memory_that_grows_or_is_too_much_is_a_failure(files, peaks, code):
    proof, left = loaded("prove_memory.py"), list(peaks)
    proof["_one"] = lambda *_: left.pop(0)
    assert text_of(proof["main"], *files, "--pairs", 10, 20)[0] == code


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_the_memory_of_a_process_and_its_children_is_seen_and_the_bytes_in_the_folder(tmp_path):
    watched = loaded("prove_memory.py")["_watched"]
    child = "import time; held = b'x' * (40 << 20); time.sleep(0.6)"
    parent = f"""
import pathlib, subprocess, sys
held, files = b"x" * (30 << 20), [pathlib.Path(sys.argv[1], name) for name in "ab"]
for file in files:
    file.write_bytes(held[: 15 << 20])
subprocess.run([sys.executable, "-S", "-c", {child!r}])
for file in files:
    file.unlink()
print('{{"seconds": 1}}')
"""
    found, peak, disk = watched([sys.executable, "-S", "-c", parent, str(tmp_path)], tmp_path)
    assert found == {"seconds": 1} and disk == 30 << 20
    assert 70 << 20 <= peak < 130 << 20


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_a_run_may_say_more_than_a_pipe_holds(tmp_path):
    child = "import sys; sys.stderr.write('x' * (1 << 21)); print('{}')"
    found, *_ = loaded("prove_memory.py")["_watched"]([sys.executable, "-S", "-c", child], tmp_path)
    assert found == {}
