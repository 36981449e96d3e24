"""Log: its fields are those of docs/reference.md, with one validation set and with several."""

import contextlib
import errno
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from witness import CPU, FP32, digest, engine_of, log_of, saved_by, state_of, stop_at

from nmt import device
from nmt.data.plan import Plan
from nmt.data.prepare import prepare
from nmt.models.build import build_model
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.training_options import RegularizeConfig
from nmt.training import log as log_module
from nmt.training import reporter
from nmt.training.engine import Objective
from nmt.training.feed import Feed
from nmt.training.launch import launch
from nmt.training.log import Record
from nmt.training.materials import new_model, open_data
from nmt.training.parallel import Ranks
from nmt.training.reporter import flops_per_token
from nmt.training.state import refused_changes
from nmt.training.validate import Validation
from tests.documented import documented
from tests.training.conftest import make_recipe, write_pairs

# Conditions of optional fields, and whether they hold in these tests.
EXPECTED_WHEN = {
    "on a GPU": False,
    "where translated": True,
    "where the peak is known": False,
}
RARE = {"init", "memory"}  # kinds of lines that these runs do not log
NUMBERS = ("loss", "perplexity", "accuracy", "bleu", "chrf")
SHORT = {
    "batch": {"per_update": 1},
    "train": {"updates": 24, "log_every": 6, "save_every": 100},
    "valid": {"every": 12, "max_tokens": 60},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs on three validation sets and on the first of them alone, what each printed, and a function for more recipes.

    The second set is measured by its loss only, and the third only in part.
    """
    folder = tmp_path_factory.mktemp("sets")
    sets = [
        {"name": "news", **write_pairs(folder, "news", 12, 2)},
        {"name": "web", "measure": "loss", **write_pairs(folder, "web", 9, 3)},
        {"name": "talks", "max_sentences": 4, **write_pairs(folder, "talks", 10, 4)},
    ]
    data = {"src_lang": "de", "trg_lang": "en", "train": [write_pairs(folder, "train", 300, 1)], "max_ratio": 9.0}

    def recipe_of(run, sets=sets, prepared="several", **sections):
        corpus = {"data": {**data, "valid": sets, "out": str(folder / prepared)}, "subwords": {"vocab_size": 320}}
        return make_recipe(corpus, folder / "runs" / run, **{**SHORT, **sections})

    runs = SimpleNamespace(recipe_of=recipe_of, sets=sets)
    for name, chosen in (("one", sets[:1]), ("several", sets)):
        recipe = recipe_of(name, chosen, name)
        prepare(recipe, recipe.data_folder, talk=lambda line: None)
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            assert launch(recipe) == "done"
        setattr(runs, name, recipe)
        setattr(runs, f"{name}_said", stderr.getvalue())
    return runs


def test_log_has_exactly_the_documented_fields(runs):
    page = documented("Log")
    always = {"kind": "always", "update": "always"}
    for recipe, several in ((runs.one, False), (runs.several, True)):
        lines = log_of(recipe)
        assert {line["kind"] for line in lines} == set(page) - RARE
        for line in lines:
            fields = {**always, **page[line["kind"]]}
            expected = {name for name, when in fields.items() if when == "always" or EXPECTED_WHEN.get(when, several)}
            assert set(line) == expected, line["kind"]
            translated = {name for name, when in fields.items() if when == "where translated"}
            for numbers in line.get("sets", {}).values():
                assert set(numbers) - translated == {"loss", "perplexity", "accuracy"}
                assert set(numbers) & translated in (set(), translated)


def test_each_validation_set_is_measured_as_the_recipe_says(runs):
    first, _ = log_of(runs.several, "valid")
    assert first["set"] == "news" and list(first["sets"]) == ["web", "talks"]
    assert "bleu" in first and "bleu" in first["sets"]["talks"] and "bleu" not in first["sets"]["web"]
    talks = Path(runs.sets[2]["src"]).read_text(encoding="utf-8").split("\n")
    assert [example["source"] for example in first["sets"]["talks"]["examples"]] == talks[:3]  # of four, not of ten
    assert all(f" 12  valid {name}  loss" in runs.several_said for name in ("news", "web", "talks"))
    assert " 12  valid  loss" in runs.one_said
    # The history, from which a resumed run knows its best update, has the same numbers.
    entry = state_of(runs.several, 24)["history"][0]
    assert entry.pop("how")["pairs"] == {"pairs": 12} and entry == {
        "update": 12,
        **{name: first[name] for name in NUMBERS},
        "sets": {
            name: {number: numbers[number] for number in NUMBERS if number in numbers}
            for name, numbers in first["sets"].items()
        },
    }


def test_only_the_first_validation_set_affects_the_run(runs):
    assert digest(runs.one, 24) == digest(runs.several, 24)
    one, several = state_of(runs.one, 24), state_of(runs.several, 24)
    assert one["best_update"] == several["best_update"]
    assert one["history"] == [{name: entry[name] for name in entry if name != "sets"} for entry in several["history"]]
    assert log_of(runs.one, "final") == log_of(runs.several, "final")


def test_max_sentences_limits_what_is_measured_of_a_set(runs):
    def first_set(**options):
        recipe = runs.recipe_of("none", [{**runs.sets[0], **options}], "one", valid={"max_sentences": 5})
        data, engine = engine_of(recipe)
        first = Validation(recipe, data, FP32).first
        return sum(map(len, first.batches)), len(first.src), first.measure(engine.model)["loss"]

    n_pair, n_translated, loss = first_set()
    assert (n_pair, n_translated) == (12, 5)  # the loss on all, translations on valid.max_sentences
    n_pair, n_translated, loss_of_part = first_set(max_sentences=3)
    assert (n_pair, n_translated) == (3, 3) and loss_of_part != loss
    assert first_set(max_sentences=0) == (12, 12, loss)


def test_model_that_ignores_the_source_is_noticed(runs, monkeypatch, capsys):
    decode = {"max_len_a": 0, "max_len_b": 5}  # else translations of longer sources would be longer
    recipe = runs.recipe_of("blind", runs.sets[:1], "one", decode=decode)
    data, engine = engine_of(recipe)
    first = Validation(recipe, data, FP32).first
    with torch.no_grad():
        for layer in engine.model.decoder.layer_stack:
            layer.enc_attn.fc.weight.zero_()
    details = first.measure(engine.model)
    n_reference = len(set(Path(runs.sets[0]["trg"]).read_text(encoding="utf-8").splitlines()))
    assert details["distinct"] == pytest.approx(1 / n_reference, abs=1e-4)
    warning = "so the model ignores the source"
    assert warning not in runs.one_said
    monkeypatch.setattr(reporter, "_EARLY", 0)
    monkeypatch.setattr(reporter, "_FEW", 2.0)
    assert launch(recipe) == "done"
    assert capsys.readouterr().err.count(warning) == 1  # of two validations


def test_validation_interrupted_between_sets_is_repeated_on_resume(runs):
    resumed = runs.recipe_of("chain")
    assert launch(resumed, stop_at(19)) == "stopped"  # asked in twelve updates, then in each batch of a set
    assert state_of(resumed, 12)["history"] == [] and not log_of(resumed, "valid")
    assert launch(resumed) == "done"
    assert saved_by(resumed) == saved_by(runs.several)


def test_run_may_resume_with_other_further_validation_sets():
    assert refused_changes({"data.valid": (["a", "b"], ["a"]), "data.train": (["a"], ["b"])}).keys() == {"data.train"}


def test_printed_rows_match_the_log_and_end_with_the_mean_speed(runs):
    """Rows have the time and at most 80 characters, also without a terminal."""
    rows = re.findall(r"^\d\d:\d\d:\d\d +(\d+) +0 +([\d.]+) +\S+ +([\d,]+) +\d+:\d\d +\d+:\d\d$", runs.one_said, re.M)
    for (update, loss, speed), line in zip(rows, log_of(runs.one, "train"), strict=True):
        assert (int(update), loss) == (line["update"], f"{line['loss']:.3f}")
        assert abs(int(speed.replace(",", "")) - line["tokens_per_second"]) < 1  # the log rounds to tenths
    validated = re.findall(r"^\d\d:\d\d:\d\d +(\d+)  valid  loss .*?(  \* best)?$", runs.one_said, re.M)
    history = state_of(runs.one, 24)["history"]
    assert [int(update) for update, _ in validated] == [12, 24] and validated[0][1]
    assert bool(validated[1][1]) == (history[1]["bleu"] > history[0]["bleu"])
    assert all(len(line) <= 80 for line in runs.one_said.split("\n") if re.match(r"\d\d:|    time", line))
    assert "best BLEU" in runs.one_said and "left 00:00" in runs.one_said
    state = state_of(runs.one, 24)
    (mean,) = re.findall(r"([\d,]+) tokens/s on average\. Translate with", runs.one_said)
    assert int(mean.replace(",", "")) == pytest.approx(state["n_token"] / state["seconds"], rel=0.01)


def test_mfu_is_reported_where_the_peak_is_known(runs, monkeypatch, capsys):
    monkeypatch.setattr(device, "processor_of", lambda _: "NVIDIA Made Up")
    monkeypatch.setattr(device, "_PEAKS", {"Made Up": (0, 0, 2e-3)})
    recipe = runs.recipe_of("peak", runs.sets[:1], "one")
    assert launch(recipe) == "done"
    data = open_data(recipe)
    share_of_token = flops_per_token(new_model(recipe, data, CPU), recipe.model, Feed(recipe, data, Ranks()).plan) / 2e9
    for line in log_of(recipe, "train"):
        assert line["mfu"] == pytest.approx(share_of_token * line["tokens_per_second"], abs=1e-3)
    speed, share = re.findall(r"([\d,]+) tokens/s on average, MFU ([\d.]+)%\.", capsys.readouterr().err)[0]
    assert float(share) == pytest.approx(100 * share_of_token * int(speed.replace(",", "")), abs=0.1)


@pytest.mark.parametrize(("n_src", "n_trg"), [(20, 30), (60, 25), (100, 100)])
def test_flops_per_token_agree_with_the_count_of_torch(n_src, n_trg):
    """Up to a few: torch misses some, and keys and values of the source count as those of target tokens."""
    config = ModelConfig(preset="small", n_enc_layer=4, position="rotary")
    model, n = build_model(config, 2000, 2000, 0).train(), 16
    src, trg, gold = (torch.randint(5, 2000, (n, length)) for length in (n_src, n_trg, n_trg))
    with FlopCounterMode(display=False) as counter:
        Objective(model, 0.1, RegularizeConfig())(src, trg, gold)[0].backward()
    lengths = (np.full(n, length - 1, np.int32) for length in (n_src, n_trg))  # less EOS
    n_flop = flops_per_token(model, config, Plan(*lengths, seed=1, max_tokens=1000, per_update=1, pool=100))
    assert n_flop * n * n_trg == pytest.approx(counter.get_total_flops(), rel=0.07)


# After a kill and a resume the log has every line once.


@pytest.fixture
def log(tmp_path):
    record = Record(tmp_path / "log.jsonl", total=30)
    yield record
    record.close()


def lines(log):
    return [json.loads(line) for line in log.path.read_bytes().split(b"\n") if line]


def test_resume_removes_lines_after_the_checkpoint_from_the_log(log):
    for kind, update in [("start", 0), ("train", 10), ("valid", 10), ("train", 20), ("valid", 20), ("train", 25)]:
        log.write(kind, update)
    log.write("final", 20)
    with log.path.open("ab") as file:
        file.write(b'[]\n{"kind": 3}\n{"kind": "tra')
    log.resume(20, [10])
    assert [(line["kind"], line["update"]) for line in lines(log)] == [
        ("start", 0), ("train", 10), ("valid", 10), ("train", 20),
    ]  # fmt: skip
    log.write("valid", 20)
    assert lines(log)[-1] == {"kind": "valid", "update": 20}


def test_new_run_begins_a_new_log(log):
    log.write("train", 10)
    log.begin()
    assert not log.path.exists()


class ClosingTerminal(io.StringIO):
    """Terminal that is closed while the run prints to it."""

    is_closed = False

    def write(self, text):
        if self.is_closed:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_run_continues_when_its_terminal_is_closed(tmp_path, monkeypatch):
    stream = ClosingTerminal()
    monkeypatch.setattr(log_module.sys, "stderr", stream)
    record = Record(tmp_path / "log.jsonl", total=3)
    stream.is_closed = True
    record.say("hello")
    record.progress(1, "loss 3")
    record.close()
