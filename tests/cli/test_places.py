"""Paths in a recipe: every command looks beside the recipe first, wherever the command runs."""

import shutil
from pathlib import Path

import pytest

from nmt.api import load
from nmt.cli.preprocess import main as preprocess
from nmt.cli.train import main as train
from nmt.data.corpus import Prepared
from nmt.errors import DataError
from nmt.recipe.reader import changed, read_recipe, write_recipe

TINY = """
    --model.preset tiny --model.d_model 16 --model.d_inner 16 --model.n_head 2 --model.n_enc_layer 1
    --model.n_dec_layer 1 --train.device cpu --train.precision fp32 --train.kernels torch --optim.name adamw
    --valid.translate false --valid.metric loss --subwords.vocab_size 280 --train.updates 2
"""
FILES = """
    --train corpus/train.de corpus/train.en --valid corpus/valid.de corpus/valid.en --langs de en --out prepared/mine
"""


def write_corpus(folder, n=40):
    folder.mkdir(parents=True, exist_ok=True)
    for name, first in (("train", 0), ("valid", 90)):
        for side in ("de", "en"):
            lines = (f"{side} number {chr(97 + i % 26)}{chr(97 + i // 26)} is here\n" for i in range(first, first + n))
            (folder / f"{name}.{side}").write_text("".join(lines), encoding="utf-8", newline="\n")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A project with a corpus, prepared data and a run of two updates, made with relative paths."""
    home = tmp_path_factory.mktemp("places") / "project"
    write_corpus(home / "corpus")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert preprocess([*FILES.split(), *TINY.split()]) == 0
        assert train(["prepared/mine/recipe.yaml"]) == 0
    return home


@pytest.fixture
def project(original, tmp_path, monkeypatch):
    """A copy of the original project in another folder, with a third one as the current folder."""
    shutil.copytree(original, tmp_path / "project")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "project"


def test_prepared_folder_trains_from_any_folder_and_finds_its_run(project, capsys):
    assert train(["../project/prepared/mine/recipe.yaml", "--train.updates", "3"]) == 0
    assert "resuming from update-00000002" in capsys.readouterr().err
    assert not Path("runs").exists() and (project / "runs/mine/checkpoints/update-00000003").is_dir()
    assert train(["../project/runs/mine", "--train.updates", "4"]) == 0  # the run folder itself
    assert "resuming from update-00000003" in capsys.readouterr().err and not Path("runs").exists()
    assert train(["../project/runs/mine", "--verify"]) == 0
    assert "whole" in capsys.readouterr().out


def test_moved_prepared_folder_trains_a_new_run_in_the_current_folder(project, capsys):
    shutil.move(project / "prepared/mine", "moved")
    assert train(["moved/recipe.yaml"]) == 0
    assert Path("runs/mine/model").is_dir()


def test_moved_run_finds_its_data_in_the_old_or_the_new_place(project, original):
    (project / "runs/mine/data.json").write_text("{}\n", encoding="utf-8")  # as in a run that recorded no folder
    assert load("../project/runs/mine").recipe.data_folder.samefile(project / "prepared/mine")
    shutil.copy(original / "runs/mine/data.json", project / "runs/mine")
    shutil.move(project / "runs/mine", "mine")
    assert load("mine").recipe.data_folder == original / "prepared/mine"
    assert train(["mine", "--train.updates", "3"]) == 0
    assert load("mine", checkpoint="update-00000003")


def test_command_line_paths_are_relative_to_the_current_folder(project):
    recipe = read_recipe("../project/runs/mine", [("data.out", "data"), ("train.out", "runs/other")])
    assert (recipe.data_folder, recipe.run_folder) == (Path("data"), Path("runs/other"))
    assert read_recipe("../project/runs/mine", [("name", "new")]).run_folder == Path("runs/new")


def test_files_are_sought_beside_the_recipe_then_in_the_current_folder(project, monkeypatch, capsys):
    monkeypatch.setenv("NMT_DATA", "nowhere")
    recipe = project / "corpus/r.yaml"
    lines = ("name: r", "data: {train: {src: train.de, trg: train.en}, valid: {src: valid.de, trg: valid.en}}")
    recipe.write_text("\n".join([*lines, "subwords: {vocab_size: 280}"]), encoding="utf-8")
    assert preprocess(["../project/corpus/r.yaml"]) == 0
    assert Path("prepared/r/manifest.json").is_file()
    write_corpus(Path(), n=30)
    capsys.readouterr()
    assert preprocess(["../project/corpus/r.yaml", "--data.out", "a"]) == 0
    assert "40 train" in capsys.readouterr().err  # those beside the recipe
    flags = ["--data.train.src", "train.de", "--data.train.trg", "train.en", "--data.out", "b"]
    assert preprocess(["../project/corpus/r.yaml", *flags]) == 0
    assert "30 train" in capsys.readouterr().err
    (project / "corpus/train.de").unlink()
    Path("train.de").unlink()
    assert preprocess(["../project/corpus/r.yaml", "--data.out", "c"]) == 2
    err = capsys.readouterr().err
    assert f"no file train.de: tried {Path.cwd() / '../project/corpus/train.de'} and {Path.cwd() / 'train.de'}" in err
    assert f" and {Path.cwd() / 'nowhere/train.de'}" in err


def test_another_runs_weights_and_subwords_are_found_beside_the_recipe(project, capsys):
    recipe = project / "more.yaml"
    shutil.copy(project / "prepared/mine/recipe.yaml", recipe)
    options = [("data.out", "x"), ("subwords.vocab_from", "runs/mine"), ("train.init_from", "runs/mine")]
    write_recipe(changed(read_recipe(recipe), options), recipe)
    assert preprocess(["../project/more.yaml"]) == 0
    assert train(["../project/more.yaml", "--train.out", "more"]) == 0
    assert "first weights from" in capsys.readouterr().err


def test_comet_models_are_found_beside_the_recipe_and_through_its_run(project, monkeypatch):
    for name in ("da", "kiwi"):
        (project / name).mkdir()
    recipe, options = project / "qe.yaml", [("data.out", "prepared/mine"), ("valid.comet", "da"), ("decode.qe", "kiwi")]
    write_recipe(changed(read_recipe(project / "prepared/mine"), options), recipe)
    assert train(["../project/qe.yaml", "--train.out", "own/run"]) == 0
    monkeypatch.chdir(project.parent)
    reloaded = read_recipe("elsewhere/own/run")
    assert Path(reloaded.valid.comet).samefile(project / "da") and Path(reloaded.decode.qe).samefile(project / "kiwi")
    assert load("elsewhere/own/run").decode().qe == reloaded.decode.qe
    Path("kiwi").mkdir()
    recipe = read_recipe(recipe, [("decode.qe", "kiwi"), ("valid.comet", "Unbabel/x")])
    assert (recipe.decode.qe, recipe.valid.comet) == (str(Path("kiwi").absolute()), "Unbabel/x")


def test_missing_data_error_lists_the_places_tried_and_the_command(project, capsys):
    recipe = project / "new.yaml"
    recipe.write_text("name: new\n", encoding="utf-8")
    assert train(["../project/new.yaml"]) == 2
    err = capsys.readouterr().err
    places = f"tried {Path.cwd() / '../project/prepared/new'} and {Path.cwd() / 'prepared/new'}"
    advice = "Make it: nmt-preprocess ../project/new.yaml, or nmt-train --prepare;"
    assert f"no prepared data at prepared/new: {places}. {advice}" in err
    with pytest.raises(DataError, match="no such folder of prepared data"):
        Prepared.open("nowhere")


def test_vocab_from_a_run_writes_a_recipe_that_fine_tunes_it(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    files = FILES.replace("prepared/mine", "prepared/more").split()
    assert preprocess([*files, "--vocab-from", "prepared/mine"]) == 0  # subwords alone: a model of the usual size
    recipe = read_recipe("prepared/more")
    assert recipe.model.preset == "auto" and not recipe.train.init_from
    flags = ["--overwrite", "--train.updates", "1", "--train.device", "cpu"]
    assert preprocess([*files, "--vocab-from", "runs/mine", *flags]) == 0
    old, new = read_recipe("runs/mine").model_dump(), read_recipe("prepared/more").model_dump()
    assert new["model"] == old["model"] and new["train"]["init_from"] == "runs/mine"
    assert new["optim"]["lr"] == 3e-4 and old["optim"]["lr"] == "auto" and new["optim"]["warmup"] == "auto"
    monkeypatch.chdir(project / "corpus")
    assert train(["../prepared/more", "--valid.translate", "false", "--valid.metric", "loss"]) == 0
    err = capsys.readouterr().err
    assert "first weights from" in err and "warning" not in err and "skipped" not in err


def test_folder_with_its_own_data_json_is_not_taken_for_a_run(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    texts = {"corpus/data.json": '{"train": [], "valid": []}\n', "corpus/manifest.json": "{}\n"}
    for name, text in texts.items():
        Path(name).write_text(text, encoding="utf-8")
    shutil.copy("prepared/mine/recipe.yaml", "corpus/mine.yaml")
    flags = ["--data.out", "prepared/other", "--name", "other"]
    assert preprocess(["corpus/mine.yaml", *flags]) == 0 == train(["corpus/mine.yaml", *flags])
    assert Path("runs/other/model").is_dir() and {name: Path(name).read_text("utf-8") for name in texts} == texts


@pytest.mark.parametrize("folder", ["prepared/mine", "corpus"])
def test_run_folder_with_other_files_in_it_is_refused(project, monkeypatch, capsys, folder):
    monkeypatch.chdir(project)
    shutil.copy("prepared/mine/recipe.yaml", "corpus/recipe.yaml")
    before = {path: path.read_bytes() for path in Path(folder).iterdir()}
    assert train(["prepared/mine", "--out", folder]) == 2
    assert "has files but is no run of nmt-train" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path(folder).iterdir()} == before


def test_suggested_command_repeats_options_missing_from_existing_data(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    flags = [*FILES.split(), *TINY.split(), "--time-budget", "20m"]
    assert preprocess(flags) == 0
    command = capsys.readouterr().err.split("train with: ")[1].strip()
    assert command == "nmt-train prepared/mine/recipe.yaml --train.time_budget 20m"
    assert preprocess([*flags, "--overwrite"]) == 0
    assert capsys.readouterr().err.split("train with: ")[1].strip() == "nmt-train prepared/mine/recipe.yaml"
