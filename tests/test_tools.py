"""The scripts beside the package that draw and tune."""

import argparse
import ast
import io
import json
import re
import runpy
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import bench_decoding
import bench_peak
import bench_start
import bench_training
import bench_waiting
import fault_sweep
import profile_kernels
import prove_flat_memory
import pytest

from nmt.native import kernels
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.reader import load_resolved

TOOLS = Path(__file__).parents[1] / "tools"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(script, *args):
    """As from a command line, but in this process: to import torch takes longer than most scripts do."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err), mock.patch.object(sys, "argv", [script, *map(str, args)]):
        try:
            runpy.run_path(str(TOOLS / script), run_name="__main__")
        except SystemExit as end:
            code = end.code
    if isinstance(code, str):
        return Done(1, out.getvalue(), err.getvalue() + code)
    return Done(int(code or 0), out.getvalue(), err.getvalue())


def test_learning_curves_become_a_picture(tmp_path):
    for name in ("one", "two"):
        lines = [{"kind": "train", "update": u, "seconds": u / 2} for u in (10, 20)]
        lines += [{"kind": "valid", "update": u, "loss": 9.0 / u, "bleu": u} for u in (10, 20)]
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    done = run("draw_curves.py", tmp_path / "curves.png", tmp_path / "one", tmp_path / "two")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["one", "one.png", "curves", "curves.v2"])
def test_a_run_is_not_taken_for_the_name_of_a_picture(tmp_path, name):
    line = {"kind": "valid", "update": 1, "loss": 9.0, "bleu": 1.0}
    for folder in ("one", "one.png", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "log.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    done = run("draw_curves.py", tmp_path / name, tmp_path / "two")
    assert done.returncode and done.stdout == "" and sorted(tmp_path.rglob("*")) == before
    assert f"{tmp_path / name} is no name for a picture" in done.stderr and "OUT.png RUN" in done.stderr


def test_the_benchmark_of_training_runs(tmp_path):
    """On minute sizes: that it measures well cannot be tested."""
    sizes = ["--size", "tiny", "--vocab", 100, "--max-tokens", 64, "--batches", 2, "--rounds", 1, "--peak-size", 64]
    done = run(
        "bench_training.py", *sizes, "--threads", 1, "--trained", 2, "--peers", "torch", "--arithmetic", "fp32", "bf16"
    )
    assert done.returncode == 0, done.stderr
    for row in ("fp32 +nmt", "bf16 +torch", "fp32 as shipped: [0-9.]+x", "matrix peak: fp32 [0-9,]+ GFLOP/s"):
        assert re.search(row, done.stdout), done.stdout


def test_the_benchmark_of_products_without_zeros_runs():
    done = run("bench_zeros.py", "--rows", 70, "--d-model", 16, "--d-inner", 80, "--rounds", 1)
    if kernels.why_not() or not kernels.library().has_panels():
        assert "no kernels here" in done.stderr or "zeros are left out on processors with AVX2" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    shares = [float(share) for share in re.findall(r"(?m)^([0-9.]+)% not zero", done.stdout)]
    assert len(shares) == 4 and all(abs(a - b) < 15 for a, b in zip(shares, (50, 33, 25, 12), strict=True))
    assert len(re.findall(r"  (?:output|d_input|d_w_1|d_w_2) [0-9]+\.[0-9]{2}", done.stdout)) == 16


def test_the_contender_that_is_compiled_reads_a_recipe_that_says_so(monkeypatch, capsys):
    compiled = []

    class Contender:
        name, ready = bench_training.OURS, {"padding": 0.0, "first": 1.0}

        def __init__(self, name, argv):
            args = bench_training.parse([*argv, "--contender", name])
            compiled.append(load_resolved(args.recipe).train.compile)

        def ask(self, **order):
            return {"peak": 1.0, "seconds": 1.0, "tokens": 1.0, "flops": 1.0}

        def leave(self):
            pass

    monkeypatch.setattr(bench_training, "Contender", Contender)
    monkeypatch.setattr(sys, "argv", ["bench_training.py", "--device", "cuda", "--set", "train.compile=false"])
    bench_training.main()
    assert compiled == [False, True]
    assert "with compile" in capsys.readouterr().out


def test_an_update_is_held_against_the_peak_just_before_and_after_it(monkeypatch, capsys):
    peaks = iter([9e9, 1e9, 4e9, 2e9])  # those of the first round, which warms up, do not count

    class Contender:
        name, ready = bench_training.OURS, {"padding": 0.0, "first": 1.0}

        def __init__(self, name, argv):
            pass

        def ask(self, **order):
            return {"peak": next(peaks)} if "peak" in order else {"seconds": 1.0, "tokens": 1.0, "flops": 1e9}

        def leave(self):
            pass

    monkeypatch.setattr(bench_training, "Contender", Contender)
    flags = ["--batches", "1", "--rounds", "1", "--arithmetic", "bf16", "--peers"]
    monkeypatch.setattr(sys, "argv", ["bench_training.py", *flags])
    bench_training.main()
    said = capsys.readouterr().out
    assert " 25%" in said and "bf16 3 GFLOP/s, at its best 9" in said


def test_the_peak_of_a_gpu_is_that_of_many_wide_products_between_two_marks(monkeypatch):
    queue = []

    class Mark:
        def __init__(self, *, enable_timing):
            assert enable_timing

        def record(self):
            queue.append(self)

        def synchronize(self):
            assert self is queue[-1]

        def elapsed_time(self, end):
            n_product = len(queue) - 2
            assert queue[0] is self and queue[-1] is end and n_product >= 10
            return 2.0 * n_product  # milliseconds

    class Matrix:
        def __matmul__(self, other):
            queue.append("product")

    monkeypatch.setattr("torch.cuda.Event", Mark)
    assert bench_peak._seconds_on_gpu(Matrix(), Matrix()) == pytest.approx(0.002)
    assert [bench_training.parse(flags).peak_size for flags in ([], ["--device", "cuda"])] == [2048, 8192]
    assert bench_training.parse(["--device", "cuda", "--peak-size", "64"]).peak_size == 64


def test_the_benchmark_of_translation_lets_the_best_size_of_a_batch_count_and_shows_the_first_pass():
    def contender(name, seconds, found):
        one = object.__new__(bench_decoding.Contender)
        one.name, one.seconds, one.found = name, seconds, found
        return one

    right, wrong = [[5, 6, 7]] * 10, [[5, 6, 8]] * 10
    ours = contender("nmt bf16+graphs, 1 x 1", {0: [5.0, 1.0, 1.0]}, {0: right})
    theirs = contender("ct2 float16, 1 x 1", {64: [4.0, 4.0, 3.0], 256: [9.0, 2.0, 2.0]}, {64: wrong, 256: right})
    head, mine, peer, ratio = bench_decoding.table([ours, theirs], lambda found: "1.00")
    assert head.split() == ["sentences/s", "first", "pass", "subwords/s", "same", "lines", "BLEU", "a", "batch"]
    assert mine.split()[-5:] == ["10", "2", "40", "100.0%", "1.00"]
    assert peer.split()[-6:] == ["5", "1", "20", "100.0%", "1.00", "256"]
    assert ratio == "nmt bf16+graphs, 1 x 1: 2.00x ct2 float16, 1 x 1"


def test_the_benchmark_of_waiting_holds_medians_against_each_other_and_sees_that_nothing_was_measured(monkeypatch):
    found = {"as it is": [900.0, 1100.0, 1000.0], "awake": [500.0, 400.0], "asleep": [1250.0]}
    assert bench_waiting.row(1, found) == "| 1 | 1,000 | 450 | 1,250 | 2.22 | 0.80 |"
    asked = []

    def ended(command, *, env, **_):
        asked.append([env.get(name) for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")])
        return mock.Mock(
            returncode=0, stdout="update   7 s\nspeed     1,234 target tokens/s\n" if len(asked) < 4 else ""
        )

    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setattr(bench_waiting.subprocess, "run", ended)
    assert [bench_waiting.speed("recipe.yaml", ["--seed", "2"], way) for way in bench_waiting.WAYS] == [1234.0] * 3
    assert asked == [[None, None], ["300000", None], [None, "passive"]]
    with pytest.raises(SystemExit, match=r"recipe\.yaml --check --seed 2: ended with 0 and no speed"):
        bench_waiting.speed("recipe.yaml", ["--seed", "2"], "awake")


def test_the_wait_for_a_start_is_shown_beside_that_for_torch():
    waited = bench_start.wait_for(
        [sys.executable, "-c", "print(input(), flush=True); import time; time.sleep(0.3)"], "a"
    )
    assert 0 < waited.first < waited.end - 0.2
    found = {
        bench_start.TRANSLATION: [bench_start.Waited(1.5, 3.0), bench_start.Waited(1.0, 2.0), bench_start.Waited(4, 9)],
        bench_start.TORCH: [bench_start.Waited(1.0, 2.0)],
    }
    lines = list(bench_start.table(found, 3.0))
    assert [line.split()[-4:] for line in lines[1:3]] == [
        ["1.50", "1.00", "3.00", "1.50"],
        ["1.00", "1.00", "2.00", "1.00"],
    ]
    assert lines[3] == "the first translation takes 50% of the limit, 3 s"
    with pytest.raises(SystemExit, match="ended with code 2: oh"):
        bench_start.wait_for([sys.executable, "-c", "import sys; print('oh', file=sys.stderr); sys.exit(2)"], "")


@pytest.mark.parametrize("device, theirs, sizes", [
    ("cpu", ["float32", "int8"], [64]), ("cuda", ["float16", "bfloat16", "int8_float16"], [64, 256, 1024])
])  # fmt: skip
def test_the_peers_of_translation_are_what_is_fast_on_the_device(device, theirs, sizes):
    given = ["run", "--input", "lines", "--device", device]
    args = bench_decoding.parse(given)
    assert (args.theirs, args.ct2_batch) == (theirs, sizes)
    args = bench_decoding.parse([*given, "--theirs", "--ct2-batch", "8", "16"])
    assert (args.theirs, args.ct2_batch) == ([], [8, 16])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("draw_curves.py nothing none", "nothing is no name for a picture"),
        ("draw_curves.py", "required: OUT.png, RUN"),
        ("draw_attention.py --check none.md", "none.md: No such file"),
        ("prove_shifts.py", "in NMT_DATA"),
        ("prove_shifts.py none.de none.en", "none.de: no such file"),
        ("prove_memory.py", "canlaw-en-fr.train.en.gz: no such file here, and NMT_DATA names no folder"),
        ("prove_memory.py none.de none.en --pairs 9", "none.de: no such file here"),
        ("bench_preprocessing.py none.de none.en", "none.de: no such file here"),
        ("bench_start.py none", "none is not a run folder"),
        ("mutate.py nothing-like-it", "no mutation has 'nothing-like-it' in its name"),
    ],
)
def test_a_mistake_is_answered_in_words(call, said, tmp_path, monkeypatch):
    if call.startswith("bench_preprocessing"):
        pytest.importorskip("sentencepiece")
    monkeypatch.delenv("NMT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    done = run(*call.split())
    assert done.returncode and "Traceback" not in done.stderr, done.stderr
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("script", ["prove_memory.py", "prove_shifts.py", "filter_costs.py", "bench_preprocessing.py"])
def test_files_that_do_not_belong_together_are_refused_in_one_line(script, tmp_path):
    if script == "bench_preprocessing.py":
        pytest.importorskip("sentencepiece")
    long, short, none = (tmp_path / name for name in ("own.de", "own.en", "none.de"))
    long.write_text("ein Hund\n" * 6000, encoding="utf-8")
    short.write_text("a dog\n" * 5100, encoding="utf-8")
    none.write_text("", encoding="utf-8")
    for pair, said in (
        ((long, short), f"{short} ends after line 5,100, and {long} goes on"),
        ((none, none), "no lines"),
    ):
        done = run(script, *map(str, pair))
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 1 and said in done.stderr, done.stderr


@pytest.mark.parametrize("script", ["bench_training.py", "compare_attention.py", "compare_models.py"])
def test_a_usage_fits_a_terminal_of_80_columns(script, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    usage = run(script, "--help").stdout.partition("\n\n")[0]
    assert usage.startswith("usage: ") and [line for line in usage.split("\n") if len(line) > 80] == []


def test_a_sweep_over_no_fault_is_a_mistake():
    flags = argparse.Namespace(only="kill nothing", short=False, every=1)
    faults = [fault_sweep.Fault("kill", "kill rename 1", list)]
    with pytest.raises(SystemExit, match="'kill nothing'"):
        fault_sweep.chosen(iter(faults), flags, ())
    assert fault_sweep.chosen(iter(faults), argparse.Namespace(only="kill", short=True, every=1), ()) == faults


@pytest.mark.parametrize("script", ["draw_curves.py", "option_tables.py"])
def test_help_is_asked_for_and_nothing_else_happens(script, monkeypatch):
    monkeypatch.setattr(Path, "write_text", None)
    done = run(script, "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: ")


def test_the_tables_about_gpus_are_those_of_the_script():
    page = (TOOLS.parent / "docs" / "gpu.md").read_text(encoding="utf-8")
    blocks = [block for block in page.split("```") if block.startswith("\n$ python tools/") and "--device" not in block]
    assert len(blocks) == 6
    for block in blocks:
        command, _, table = block.removeprefix("\n$ python tools/").partition("\n")
        done = run(*command.split())
        assert done.returncode == 0 and done.stdout == table, done.stderr


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "products"),
        ("_backward_of_keys", "attention"),
        ("_go_on", "loss or choice"),
        ("_add_and_norm", "norm, dropout, residual"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention", "attention"),
        (
            "triton_per_fused__to_copy_add_native_dropout_backward_native_layer_norm_backward_view_8",
            "norm, dropout, residual",
        ),
        ("triton_red_fused__to_copy_arange_eq_exp_mul_prepare_softmax_online_sub_where_0", "loss or choice"),
        ("multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>", "Adam and clipping"),
        ("triton_poi_fused_threshold_backward_view_5", "activation"),
        ("Memcpy DtoD (Device -> Device)", "all else"),
    ],
)
def test_a_kernel_is_of_the_part_that_its_name_says(kernel, part):
    assert profile_kernels.part_of(kernel) == part
    kernels = [argparse.Namespace(name=kernel, ms=3.0, count=6), argparse.Namespace(name="another", ms=1.0, count=2)]
    head, *lines = profile_kernels.report(kernels, 0.008, 2, most=1)
    assert head == "4.00 ms by the clock, 2.00 ms in 4 kernels"
    assert lines[0].split(None, 3) == ["1.500", "ms", "75.0%", part] or part == "all else"
    assert lines[-1].split(None, 3) == ["1.500", "ms", "3.0x", kernel[:90]]


def test_every_mutation_can_be_applied_and_names_tests_that_exist():
    mutate = runpy.run_path(str(TOOLS / "mutate.py"))
    root, mutations = TOOLS.parent, mutate["MUTATIONS"]
    assert [wrong for wrong in map(mutate["complaint"], mutations) if wrong] == []
    assert len({mutation.name for mutation in mutations}) == len(mutations) >= 30
    for mutation in mutations:
        source = (root / mutation.file).read_text(encoding="utf-8")
        changed = source.replace(mutation.old, mutation.new)
        if mutation.file.endswith(".py"):
            assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)), mutation.name
        assert changed != source, mutation.name
        files, _, keyword = mutation.tests.partition(" -k ")
        for file in files.split():
            assert keyword in (root / file).read_text(encoding="utf-8"), mutation.name


def test_the_tables_of_the_scaling_page_are_those_that_the_script_prints():
    done = run("scaling_model.py")
    assert done.returncode == 0, done.stderr
    page = (TOOLS.parent / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert len(done.stdout.split("\n")) > 40 and done.stdout in page, "run python tools/scaling_model.py again"


ATTENTION = TOOLS.parent / "docs" / "attention.md"


def test_the_page_about_attention_shows_every_picture_that_is_drawn_and_no_other():
    from attention_pictures import PICTURES

    shown = re.findall(r"\]\(attention/(.*?)\)", ATTENTION.read_text(encoding="utf-8"))
    drawn = sorted(f"{name}.svg" for name in PICTURES)
    assert sorted(shown) == drawn == sorted(path.name for path in (ATTENTION.parent / "attention").iterdir())


def names_in(file):
    """What a file defines: functions, classes, and Class.method."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef))


def test_what_the_page_about_attention_names_exists():
    page = ATTENTION.read_text(encoding="utf-8")
    files = set(re.findall(r"(?:nmt|tests|tools)/[\w/]+\.py", page))
    assert len(files) >= 8 and [file for file in files if not (TOOLS.parent / file).is_file()] == []
    paragraphs = [text.partition("\n\n")[0] for text in page.split("\nWhere it lives: ")[1:]]
    assert len(paragraphs) == 8
    for paragraph in paragraphs:
        file, *names = re.findall("`([^`]*)`", paragraph)
        for name in names:
            if name.startswith("model."):
                assert name.removeprefix("model.") in ModelConfig.model_fields, name
            elif "/" in name:
                file = name
            else:
                assert name in set(names_in(TOOLS.parent / file)), f"{name} is not in {file}"


def test_the_numbers_on_the_page_about_attention_are_measured(tmp_path):
    """Those that are quick: python tools/draw_attention.py --check docs/attention.md looks at all, in a minute."""
    wrong = tmp_path / "wrong.md"
    wrong.write_text(ATTENTION.read_text(encoding="utf-8").replace("| 1.26 |", "| 1.46 |"), encoding="utf-8")
    right, refused = (
        run("draw_attention.py", "--out", tmp_path / page.stem, "--check", page, "--only", "masks", "positions")
        for page in (ATTENTION, wrong)
    )
    assert right.returncode == 0, right.stderr
    assert refused.returncode == 1 and "1.26" in refused.stderr, refused.stderr
    # Drawn again, a picture has the same bytes.
    for name in ("masks.svg", "positions.svg"):
        assert (tmp_path / "attention" / name).read_bytes() == (tmp_path / "wrong" / name).read_bytes()


def test_a_number_is_like_another_that_another_machine_measured():
    from draw_attention import alike

    assert alike("| 257 / 1.00 | 5.2e-05 |", "| 257 / 1.01 | 5.3e-05 |")
    assert not alike("| 1.00 |", "| 1.10 |")
    assert not alike("| 257 |", "| 258 |")
    assert not alike("| 1.00 | 2 |", "| 1.00 |")
    assert not alike("| MHA | 1.00 |", "| MQA | 1.00 |")


def test_the_scaling_model_agrees_with_arithmetic_by_hand():
    sys.path.insert(0, str(TOOLS))
    try:
        import scaling_model as paper
    finally:
        sys.path.remove(str(TOOLS))
    base, big = paper.MODELS
    assert base.n_param == 6 * (4 * 512**2 + 2 * 512 * 2048) + 6 * (8 * 512**2 + 2 * 512 * 2048) + 37_000 * 512
    # One GPU with a full batch reaches its share of the peak as a whole.
    assert paper.update(big, 1, paper.BATCH).speed * big.flop == pytest.approx(0.5 * paper.PEAK)
    # Two nodes: each GPU sends its eighth of the gradient once (2 x 1/2), besides the ring of its own node.
    inside = 2 * 7 / 8 * 4 * base.n_param / paper.NVLINK
    between = 4 * base.n_param / 8 / paper.NIC + 11 * 2 * paper.HOP
    assert paper.exchange(base, 16, paper.NIC) == pytest.approx(inside + between)
    # What is not hidden is waited for; accumulating more hides no more of it.
    slow = [paper.update(base, 64, 64 * n * paper.BATCH, paper.NIC / 100) for n in (1, 2)]
    assert slow[0].exposed == slow[1].exposed > slow[0].compute


@pytest.mark.parametrize(
    ("source", "year", "month", "day"),
    [
        ("9/27/94", "94", "9", "27"),
        ("september 27, 1994", "1994", "september", "27"),
        ("Tuesday, May 1, 2001", "2001", "May", "1"),
    ],
)
def test_the_fields_of_a_date_are_found(source, year, month, day):
    found = runpy.run_path(str(TOOLS / "compare_models.py"))["fields"](source)
    assert {name: source[slice(*span)] for name, span in found.items()} == {"year": year, "month": month, "day": day}


@pytest.mark.parametrize(("between", "flat"), [(420.0, True), (420.5, False)])
def test_memory_is_flat_if_it_never_gets_20_mib_over_that_of_update_500(between, flat):
    log = [{"kind": "start", "update": 0}, {"kind": "valid", "update": 500}]
    log += [
        {"kind": "train", "update": u, "rss_mb": mib}
        for u, mib in [(100, 300), (500, 400.0), (600, between), (700, 401)]
    ]
    found = prove_flat_memory.memory_of("".join(json.dumps(line) + "\n" for line in log))
    text, is_flat = prove_flat_memory.verdict(found)
    assert is_flat is flat and "at update 500: 400.0 MiB, at update 700: 401.0 (+1.0)" in text
