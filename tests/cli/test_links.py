"""Links out of a run or prepared folder are refused unread: its author could expose files of the user."""

import os
import re
import shutil

import pytest

from nmt.api import load
from nmt.cli.train import main as train
from nmt.cli.translate import main as translate
from nmt.data.manifest import read_manifest
from nmt.errors import NmtError
from nmt.files import refuse_links_out
from nmt.run import Run

SECRET = "secret: not to be shown"
IN_RUN = "recipe.yaml subwords.json data.json log.jsonl model/manifest.json model/state.json model/model.safetensors"
IN_RUN += " checkpoints/update-00000007/manifest.json checkpoints/update-00000007/model.safetensors"
IN_DATA = "manifest.json recipe.yaml train.arrow subwords.json report.json"


@pytest.mark.parametrize("name", [*(f"run/{name}" for name in IN_RUN.split()), *(f"data/{n}" for n in IN_DATA.split())])
def test_folder_with_a_link_out_of_it_is_refused_unread(folder, tmp_path, name, capsys):
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "data").mkdir()
    for file in ("manifest.json", "recipe.yaml"):
        (tmp_path / "data" / file).write_text("{}")
    link, secret = tmp_path / name, tmp_path / "secret"
    secret.write_text(SECRET)
    link.unlink(missing_ok=True)
    link.symlink_to(secret)
    is_run, linked_folder = name.startswith("run"), tmp_path / name.partition("/")[0]
    with pytest.raises(NmtError, match=f"{re.escape(str(link))}: is a link to {re.escape(str(secret))}"):
        (load if is_run else read_manifest)(linked_folder)
    for command in (translate, train)[not is_run :]:
        assert command([str(linked_folder)]) == 2
        _, err = capsys.readouterr()
        assert f"{link}: is a link to {secret}" in err and SECRET not in err


def test_link_to_the_folder_and_links_within_it_are_accepted(folder, tmp_path):
    run = tmp_path / "copy"
    shutil.copytree(folder, run)
    (run / "same.yaml").symlink_to("recipe.yaml")
    (tmp_path / "name").symlink_to(run, target_is_directory=True)
    refuse_links_out(tmp_path / "name")
    assert load(tmp_path / "name").translate(["the ship"])
    os.symlink("../copy/../outside", run / "dangling")
    with pytest.raises(NmtError, match="dangling"):
        Run(run).recipe()
