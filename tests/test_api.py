"""nmt.load: translation and scoring from Python."""

import copy
import io
import json
import math
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import nmt
from nmt import checkpoint
from nmt.cli.translate import main
from nmt.data.subwords import PAD
from nmt.errors import DataError, RunError
from nmt.models import int8
from nmt.models.build import build_model
from nmt.models.int8 import prepacked
from nmt.ops import int8_product
from nmt.recipe.data_options import SubwordsConfig
from nmt.recipe.reader import read_recipe
from nmt.run import Run
from tests.cli.made_run import OPTIONS, make_run, save_run
from tests.learnt import learnt_subwords

LINES = ["the ship", "", "the old ship left", "für Übung"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two runs with different weights and the same vocabulary."""
    options = {**OPTIONS, "model.n_dec_layer": "1", "decode.max_len_a": "1.0", "decode.max_len_b": "4"}
    return [make_run(tmp_path_factory.mktemp("runs") / "tiny", options, seed=seed).folder for seed in (0, 1)]


@pytest.mark.parametrize("architecture", ["transformer", "attention"])
def test_loading_weights_draws_no_random_numbers(architecture, folders, tmp_path):
    subwords = Run(folders[0]).subwords()
    size = ("model.preset", "tiny") if architecture == "transformer" else ("model.d_model", "16")
    recipe = read_recipe(None, [("name", "tiny"), ("model.architecture", architecture), size])
    original = build_model(recipe.model, subwords.src.n_vocab, subwords.trg.n_vocab, PAD)
    weights = checkpoint.weights_of(original)
    save_run(tmp_path, recipe, subwords, original)
    rng_state = torch.get_rng_state()
    model = nmt.load(tmp_path).model
    assert torch.equal(torch.get_rng_state(), rng_state)
    assert all(torch.equal(weights[name], tensor) for name, tensor in checkpoint.weights_of(model).items())
    seq = torch.tensor([[5, 6, 7]])
    assert torch.equal(model(seq, seq), original.eval()(seq, seq))  # includes buffers, which no checkpoint holds


def test_lines_are_translated_in_order_with_the_recipe_options(folders):
    model = nmt.load(folders[0])
    outputs = model.translate(LINES)
    assert [bool(output.text) for output in outputs] == [True, False, True, True]
    n_best = [output.texts for output in model.translate(LINES, n_best=3)]
    assert max(map(len, n_best)) > 1 and all(len(set(texts)) == len(texts) for texts in n_best)  # each text once
    assert [output.text for output in model.translate(LINES, beam=3, n_best=2)] == [output.text for output in outputs]


def test_bf16_scores_are_close_to_fp32_and_leave_the_model_unchanged(folders):
    model = nmt.load(folders[0])
    exact, half = ([output.score for output in model.translate(LINES, precision=name)] for name in ("fp32", "bf16"))
    assert half != exact and half == pytest.approx(exact, rel=0.02)
    assert {p.dtype for p in model.model.parameters()} == {torch.float32}  # unchanged, for concurrent scoring
    assert [output.score for output in model.translate(LINES)] == exact


@pytest.mark.skipif(not int8_product(), reason="no exact products of 8 bits here")
def test_int8_scores_are_close_to_bf16(folders):
    for model in (nmt.load(folders[0], device="cpu"), nmt.load(folders, device="cpu")):
        bf16, quantized = (
            [output.score for output in model.translate(LINES, precision=name)] for name in ("bf16", "int8")
        )
        assert quantized != bf16 and quantized == pytest.approx(bf16, rel=0.02)
        assert [output.score for output in model.translate(LINES, precision="bf16")] == bf16
        int8_model = model.translator(model.decode(precision="int8")).model
        assert any(isinstance(module, int8.Int8FeedForward) for module in int8_model.modules())
        assert model.translator(model.decode(precision="int8")).model is int8_model


def test_ensemble_scores_differ_from_those_of_its_models(folders):
    first, second, mean, twice = (nmt.load(runs).translate(LINES) for runs in (*folders, folders, [folders[0]] * 2))
    scores = [[output.score for output in outputs] for outputs in (mean, first, second)]
    assert scores[0] not in scores[1:]
    assert [output.text for output in twice] == [output.text for output in first]


# Largest difference of a line's log-probability between batches, by precision, as docs/translation.md says.
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-5), ("bf16", 0.2), ("int8", 0.2)])
def test_scores_of_given_translations_do_not_depend_on_the_batch(folders, precision, bound):
    if precision == "int8" and not int8_product():
        pytest.skip("no exact products of 8 bits by oneDNN here")
    model = nmt.load(folders[0], device="cpu")
    targets = ["in May", "the ship", "", "left left left left"]
    in_batches = model.score(iter(LINES), iter(targets), precision=precision)
    one_by_one = model.score(LINES, targets, precision=precision, max_tokens=1)
    for line, target, scored, separate in zip(LINES, targets, in_batches, one_by_one, strict=True):
        (alone,) = model.score([line], [target], precision=precision)
        assert alone.log_prob == pytest.approx(scored.log_prob, abs=bound)
        assert separate.log_prob == pytest.approx(scored.log_prob, abs=bound)
        assert scored.log_prob == math.fsum(scored.token_log_probs)
    with pytest.raises(DataError, match="4 sources but 3"):
        model.score(LINES, targets[:3])


def test_pair_of_blank_lines_has_no_tokens_and_score_zero(folders):
    model = nmt.load(folders[0], device="cpu")
    sources, targets = ["the ship", "", " \t", "", "in May"], ["in May", "", "\u200b", "ship", ""]
    scores = model.score(sources, targets)
    assert [bool(score.token_log_probs) for score in scores] == [True, False, False, True, True]
    assert [score.log_prob < 0 for score in scores] == [True, False, False, True, True]
    assert len(scores[3].token_log_probs) == len(scores[3].trg_ids) + 1
    assert [score.log_prob for score in model.score(["", ""], ["", ""])] == [0.0, 0.0]
    (last,) = model.score(sources[-1:], targets[-1:])
    assert last.log_prob == pytest.approx(scores[-1].log_prob, abs=1e-5)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a", None], "number 2: expected str or Request, found None of type NoneType"),
        ([b"a"], "number 1: expected str or Request, found b'a' of type bytes"),
        (["Ein \ud800 Hund"], "number 1: U\\+D800 is half of a surrogate pair"),
        ([nmt.Request("a", prefix="\udfff")], "number 1: U\\+DFFF is half of a surrogate pair"),
    ],
)
def test_error_names_the_line_that_is_not_text(folders, lines, message):
    model = nmt.load(folders[0], device="cpu")
    with pytest.raises(DataError, match=f"^lines, {message}"):
        model.translate(lines)
    with pytest.raises(DataError, match=f"^sources, {message}"):
        model.score(lines, ["a"] * len(lines))


def test_final_line_feeds_are_ignored(folders):
    model = nmt.load(folders[0], device="cpu")
    from_file = ["the ship\n", "in May\r\n", nmt.Request("left\n"), "the\n old\n"]
    bare = ["the ship", "in May", "left", "the\n old"]
    assert [output.src_ids for output in model.translate(from_file)] == [
        output.src_ids for output in model.translate(bare)
    ]
    scored = [model.score(*pair)[0] for pair in ((["the ship\n"], ["in May\n"]), (["the ship"], ["in May"]))]
    assert scored[0] == scored[1]
    with_feeds, with_spaces = model.score(["the\nship", "the ship"], ["in\nMay\n", "in May"])
    assert with_feeds == with_spaces


def test_model_keeps_the_decode_options_read_at_load_time(folders, tmp_path, monkeypatch):
    shutil.copytree(folders[0], tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    model = nmt.load("run", device="cpu")
    before = model.translate(LINES), model.decode(beam=None, trg_lang=None)
    monkeypatch.chdir("/")
    recipe_file = tmp_path / "run" / "recipe.yaml"
    recipe_file.write_text(recipe_file.read_text(encoding="utf-8").replace("beam: 3", "beam: 1"), encoding="utf-8")
    assert (model.translate(LINES), model.decode()) == before and before[1] == model.recipe.decode


def test_lists_of_phrases_and_numpy_numbers_are_accepted(folders):
    assert nmt.Request("a", required=["dog"], tags=["b"]) == nmt.Request("a", required=("dog",), tags=("b",))
    model = nmt.load(folders[0], device="cpu")
    assert model.decode(beam=np.int64(4), alpha=np.float32(0.5)) == model.decode(beam=4, alpha=0.5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda _: nmt.Request("a", required="dog"), "^required: expected a list of texts, found 'dog' of type str"),
        (lambda _: nmt.Request("a", avoided=b"dog"), "^avoided: expected a list of texts, found b'dog' of type bytes"),
        (lambda _: nmt.Request("a", tags="news"), "^tags: expected a list of texts, found 'news'"),
        (lambda _: nmt.Request("a", required=None), "^required: expected a list of texts, found None of type NoneType"),
        (lambda _: nmt.Request("a", avoided=["dog", 3]), "^avoided: expected a list of texts, found 3 of type int in"),
        (lambda _: nmt.Request("a", prefix=None), "^prefix: expected a text, found None"),
        (lambda _: nmt.Request(b"Hund"), "^source: expected a text, found b'Hund'"),
        (lambda _: nmt.Request("a", trg_lang=["en"]), r"^trg_lang: expected a language code, found \['en'\] of"),
        (lambda run: nmt.load(None), "run: expected the path of a run folder, or a list of them, found None"),
        (lambda run: nmt.load([run, 5]), "run: expected .*, found 5 of type int"),
        (lambda run: nmt.load(run, checkpoint=7), "checkpoint: expected the name of a checkpoint, .*, found 7"),
        (lambda run: nmt.load(run, device=None), "device None: there is no such device"),
        (lambda run: nmt.load(run).translate(5), "lines: expected a list of texts, found 5 of type int"),
        (lambda run: nmt.load(run).score(None, ["a"]), "sources: expected a list of texts, found None"),
        (lambda run: nmt.load(run).translate(["a"], beam=-1), "beam: expected a whole number"),
        (lambda run: nmt.load(run).translate("in May"), "lines: expected a list of texts, found 'in May' of type"),
        (lambda run: nmt.load(run).score(b"in May", ["a"] * 6), "sources: expected a list of texts, found b'in "),
        (lambda run: nmt.load([]), "name at least one"),
        (lambda run: nmt.load(run, checkpoint=[]), "name at least one"),
        (lambda run: nmt.load([run, run], checkpoint="model"), "several runs"),
        (lambda run: nmt.load(run.parent), "not a run folder"),
        (lambda run: nmt.load(run).score([nmt.Request("a", prefix="b")], ["b"]), "sources, number 1: prefix, required"),
        (lambda run: nmt.load(run).translate(["a"], beam={4}), r"^beam: \{4\} of type set is not a value of an option"),
        (lambda run: nmt.load(run).translate(["a"], top_p=0.5), "top_p.*samples"),
        (lambda run: nmt.load(run).translate(["a"], shortlist=256), "^shortlist: is gone; leave it out"),
        (lambda run: nmt.load(run).translate(["a"], beam_size=3), r"beam_size: .*\(did you mean beam\?\)"),
    ],
)
def test_user_mistakes_raise_nmt_error(folders, wrong, message):
    with pytest.raises(nmt.NmtError, match=message):
        wrong(folders[0])


def test_out_of_memory_is_reported_and_internal_errors_pass_unchanged(folders, monkeypatch):
    model = nmt.load(folders[0])
    for raised, expected in ((MemoryError("of all"), nmt.NmtError), (KeyError("own"), KeyError)):
        monkeypatch.setattr(model, "translator", Mock(side_effect=raised))
        with pytest.raises(expected) as caught:
            model.translate(LINES)
        assert caught.value is raised or "out of memory: of all (make" in str(caught.value)


def test_changed_vocabulary_is_refused_with_both_fingerprints(folders, tmp_path):
    run = shutil.copytree(folders[0], tmp_path / "run")
    sha256 = Run(run).subwords().sha256
    data_file = run / "data.json"
    data_file.write_text('{"subwords": 5}\n')
    with pytest.raises(RunError, match="trained with 5"):
        nmt.load(run)
    for content in {"train": "1"}, {"train": "1", "subwords": sha256}:
        data_file.write_text(json.dumps(content) + "\n")
        nmt.load(run)
    lines = ["another corpus has other words in it"] * 9
    learnt_subwords(lines, lines, SubwordsConfig(vocab_size=280)).save(run / "subwords.json")
    with pytest.raises(RunError, match=rf"subwords.json: its fingerprint is [0-9a-f]{{12}}, .* with {sha256[:12]}"):
        nmt.load(run)


def test_translation_has_the_fields_of_json_lines(folders, capsysbinary, monkeypatch):
    lines = [*LINES, "...", "the old ship left in May " * 9]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    flags = ["--format", "jsonl", "--decode.max_src_len", "20", "--n-best", "2"]
    assert main([str(folders[0]), *flags]) == 0
    records = [json.loads(line) for line in capsysbinary.readouterr().out.split(b"\n")[:-1]]
    outputs = nmt.load(folders[0]).translate(lines, max_src_len=20, n_best=2)
    assert [record["flags"] for record in records] == [output.flags for output in outputs]
    assert {"blank", "letterless", "split"} <= {flag for output in outputs for flag in output.flags}
    for record, output in zip(records, outputs, strict=True):
        for name in ("tokens", "source_tokens", "alignment", "word_alignment"):
            assert getattr(output, name) == record[name], name
        for name in ("score", "log_prob", "token_log_probs"):
            assert getattr(output, name) == pytest.approx(record[name], abs=1e-5), name
        assert [entry["output"] for entry in output.n_best] == [entry["output"] for entry in record["n_best"]]
    with pytest.raises(nmt.NmtError, match="a copy of a translation has no model"):
        _ = copy.copy(outputs[0]).tokens


def test_threads_can_share_a_model(folders, monkeypatch):
    expected, packed = [output.text for output in nmt.load(folders[0]).translate(LINES * 5)], []
    model = nmt.load(folders[0])

    def prepack_slowly(unpacked):
        packed.append(unpacked)
        time.sleep(0.1)
        return prepacked(unpacked)

    monkeypatch.setattr("nmt.api.prepacked", prepack_slowly)
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda _: [output.text for output in model.translate(LINES * 5)], range(4)))
    assert texts == [expected] * 4 and len(packed) == 1  # the first thread packs for all


def test_requests_constrain_their_translations(folders):
    model = nmt.load(folders[0])
    lines = [nmt.Request("the ship", prefix="Ol"), "in May", nmt.Request("left", required=("ship",), avoided=("May",))]
    first, second, third = model.translate(lines, beam=8)
    assert first.text.startswith("Ol") and not first.unmet
    assert second.text == model.translate(["in May"], beam=8)[0].text
    assert "ship" in third.text.split() and "May" not in third.text.split() and not third.unmet
    (impossible,) = model.translate([nmt.Request("left", required=("ship",), avoided=("ship",))])
    assert impossible.unmet


_FORKED = """
import os, sys, torch, nmt
torch.set_num_threads(2)
model = nmt.load(sys.argv[1], device="cpu")
lines = ["the old ship left in May"] * 20 + ["in May"]
wanted = [one.text for one in model.translate(lines)]
child = os.fork()
if not child:
    os._exit(0 if [one.text for one in model.translate(lines)] == wanted else 3)
sys.exit(os.waitpid(child, 0)[1] >> 8)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_model_loaded_before_a_fork_works_in_the_child(folders):
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}  # torch is imported first
    result = subprocess.run(
        [sys.executable, "-c", _FORKED, str(folders[0])], env=environment, timeout=100, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("name", "set_before", "policy"),
    [("load", {}, "passive"), ("load", {"OMP_WAIT_POLICY": "active"}, "active"), ("Model", {}, "passive")],
)
def test_waiting_threads_sleep_unless_the_environment_says_otherwise(name, set_before, policy):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | set_before
    code = f"import nmt, os, sys; at = 'torch' in sys.modules; nmt.{name}; print(at, os.environ['OMP_WAIT_POLICY'])"
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", policy]


def test_public_names_are_listed_and_repr_describes_the_model(folders):
    assert {"load", "Model", "Request", "Translation", "Scored", "NmtError", "__version__"} <= set(dir(nmt))
    assert all(getattr(nmt, name) is not None for name in dir(nmt))
    description = repr(nmt.load(folders[0]))
    assert " to " in description and "parameters on cpu" in description and str(folders[0]) in description
