"""Page and model card of a run: made from its log, kept up to date, and never an obstacle to training."""

import errno
import json
import sys
import time
from unittest.mock import Mock

import pytest
import yaml
from witness import state_of

from nmt.cli.report import main
from nmt.errors import RunError
from nmt.run import Run
from nmt.training import run_page
from nmt.training.launch import launch
from nmt.training.run_page import RunPage, card, entries_of, page
from tests.evaluation.browser import Browser, Tags, needs_browser


@pytest.fixture
def run(uninterrupted):
    return Run(uninterrupted.run_folder)


def data_of(text: str) -> dict:
    (content,) = [script for script in Tags(text).inside["script"] if script.startswith("{")]
    return json.loads(content)


def test_page_has_the_numbers_of_the_log(run):
    text = (run.folder / "report.html").read_text(encoding="utf-8")
    assert text == page([run])
    (shown,) = data_of(text)["runs"]
    log = entries_of(run)
    assert shown["train"]["loss"] == [line["loss"] for line in log["train"]]
    assert shown["valid"]["valid"]["bleu"] == [line["bleu"] for line in log["valid"]]
    assert shown["valid"]["valid"]["update"] == [4, 8, 12] and shown["final"]["chosen"] == log["final"][-1]["chosen"]
    assert shown["data"]["read"] == 300 and shown["data"]["kept"] == 300
    assert {"command", "versions", "machine", "data", "time", "exports"} <= dict(shown["facts"]).keys()


def test_last_line_of_the_log_may_be_cut_short(finished):
    run = Run(finished.run_folder)
    before = page([run])
    with run.log_file.open("a", encoding="utf-8") as file:
        file.write('{"kind": "train", "upd')
    assert page([run]) == before


def test_run_name_is_escaped_on_the_page(finished, tmp_path):
    named = tmp_path / '<meta http-equiv=refresh content="0;url=x">'
    finished.run_folder.rename(named)
    assert "<meta http-equiv=refresh" not in page([Run(named)])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such a name")
def test_line_without_its_fields_is_refused_by_name(finished):
    run = Run(finished.run_folder)
    with run.log_file.open("a", encoding="utf-8") as file:
        file.write('{"kind": "train", "update": 4}\n')
    with pytest.raises(RunError, match=r"log\.jsonl: a line lacks fields of its kind .*'loss'.* Remove it"):
        page([run])


def test_undecodable_run_name_is_escaped_on_the_page(finished, tmp_path):
    named = tmp_path / "caf\udce9"
    finished.run_folder.rename(named)
    assert rb"<title>caf\udce9</title>" in page([Run(named)]).encode()


def test_long_curves_are_shortened(run, monkeypatch):
    monkeypatch.setattr(run_page, "_MOST_POINTS", 3)
    (shown,) = data_of(page([run]))["runs"]
    losses = [line["loss"] for line in entries_of(run)["train"]]
    assert shown["train"]["update"] == [4, 8, 12]
    assert shown["train"]["loss"] == losses[3::4]


def test_card_has_yaml_metadata_and_keeps_the_edits_of_its_owner(finished):
    run = Run(finished.run_folder)
    path = run.folder / "README.md"
    _, head, body = path.read_text(encoding="utf-8").split("---\n", 2)
    meta = yaml.safe_load(head)
    assert meta["language"] == ["de", "en"] and meta["metrics"] == ["bleu", "chrf"] and meta["license"] == "unknown"
    manifest = json.loads((run.recipe().data_folder / "manifest.json").read_text(encoding="utf-8"))
    assert all(entry["sha256"] in body for entry in manifest["inputs"]) and "tok:13a" in body
    edited = card(run).replace(run_page._MADE, "").replace("license: unknown", "license: mit")
    path.write_text(edited, encoding="utf-8")
    RunPage(run).write("final", 12, {})
    assert path.read_text(encoding="utf-8") == edited


def test_card_names_every_target_language_except_invented_ones(finished, monkeypatch):
    run = Run(finished.run_folder)
    recipe = run.recipe()
    corpora = [recipe.data.train[0].model_copy(update={"trg_lang": code}) for code in (None, "fr", "x-elvish")]
    recipe = recipe.with_options(data={"train": corpora})
    monkeypatch.setattr(Run, "recipe", lambda _: recipe)
    assert yaml.safe_load(card(run).split("---\n", 2)[1])["language"] == ["de", "en", "fr"]
    assert "translates German to English, French, " in card(run)


def test_page_and_card_do_not_describe_data_prepared_after_the_run(finished):
    run = Run(finished.run_folder)
    (before,) = data_of(page([run]))["runs"]
    about = json.loads(run.data_file.read_text(encoding="utf-8"))
    run.data_file.write_text(json.dumps({**about, "train": "other"}), encoding="utf-8")
    (after,) = data_of(page([run]))["runs"]
    assert before["data"]["kept"] and after["data"]["kept"] is None
    manifest = json.loads((run.recipe().data_folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["inputs"] and not any(entry["sha256"] in card(run) for entry in manifest["inputs"])


def test_validation_between_two_log_lines_has_its_own_time_on_the_page(short_of):
    recipe = short_of(train={"log_every": 5}, valid={"metric": "accuracy"})
    assert launch(recipe) == "done"
    (shown,) = data_of(page([Run(recipe.run_folder)]))["runs"]
    (curves,) = shown["valid"].values()
    assert curves["update"] == [4, 8, 12] and 0 < curves["minutes"][0] < curves["minutes"][1] < curves["minutes"][2]
    assert curves["minutes"][1] < shown["train"]["minutes"][1] and len(curves["accuracy"]) == 3


def test_failure_to_write_the_page_does_not_end_the_run(short_of, monkeypatch, capsys):
    monkeypatch.setattr(run_page, "write_durably", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
    assert launch(short_of()) == "done"
    assert capsys.readouterr().err.count("report.html failed and is disabled from here on") == 1


def test_undecodable_argument_is_escaped_in_the_logged_command(short_of, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/nmt-train", "caf\udce9/recipe.yaml", "--updates", "4"])
    recipe = short_of(train={"updates": 4})
    assert launch(recipe) == "done"
    (start,) = entries_of(Run(recipe.run_folder))["start"]
    assert start["command"] == r"nmt-train 'caf\udce9/recipe.yaml' --updates 4"


def test_time_to_write_the_page_counts_in_the_budget(short_of, monkeypatch):
    write = RunPage.write

    def write_slowly(self, kind, *line):
        time.sleep(0.3 * (kind == "valid"))
        write(self, kind, *line)

    monkeypatch.setattr(RunPage, "write", write_slowly)
    recipe = short_of(train={"updates": 4})
    assert launch(recipe) == "done"
    assert state_of(recipe, 4)["measure_seconds"] >= 0.3


def test_several_runs_are_shown_on_one_page(run, tmp_path, capsys):
    output = tmp_path / "both.html"
    assert main([str(run.folder), str(run.folder), "--output", str(output)]) == 0
    assert len(data_of(output.read_text(encoding="utf-8"))["runs"]) == 2
    for arguments, message in (
        ([run.folder, "-o", output], "exists already"),
        ([tmp_path, "-o", tmp_path / "x.html"], "is not a run folder"),
        ([run.folder, "-o", tmp_path / "none" / "x.html"], "none"),
        ([run.folder, "-o", tmp_path, "--overwrite"], "is not a regular file"),
    ):
        capsys.readouterr()
        assert main(list(map(str, arguments))) == 2
        assert message in capsys.readouterr().err


@needs_browser
@pytest.mark.parametrize(("width", "dark", "n_run"), [(1200, False, 1), (380, True, 2)])
def test_values_can_be_read_off_the_curves(run, tmp_path, width, dark, n_run):
    path = tmp_path / "page.html"
    path.write_text(page([run] * n_run), encoding="utf-8")
    with Browser(width=width, height=900, dark=dark) as browser:
        browser.open(path)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        assert browser.texts("figcaption")[:3] == ["loss (nats a token)", "BLEU", "chrF"]
        assert browser.count("figure:first-child path") == 2 * n_run
        browser.hover("figure:first-child svg")
        values = browser.texts("figure:first-child .values div")
        assert len(values) == 1 + 2 * n_run and values[0].startswith("updates: ")
        script = "const one = document.getElementById('axis'); one.value = 'minutes';"
        browser.run(script + "one.dispatchEvent(new Event('input', {bubbles: true}))")
        assert browser.count("figure:first-child path") == 2 * n_run
        assert browser.count("figure:last-child circle") == 0
        browser.run("Object.values(runs[0].train).forEach((one) => { one.length = 1; }); showCharts()")
        assert browser.count("figure:last-child circle") == 1  # a curve of one point would be invisible
        assert browser.complaints() == []
