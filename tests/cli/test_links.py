"""Links that lead out of a run or prepared folder are refused unread: whoever made it could show this user's files."""

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
FILES = [
    *("recipe.yaml", "subwords.json", "data.json", "log.jsonl"),
    *("model/manifest.json", "model/state.json", "model/model.safetensors"),
    *("checkpoints/update-00000007/manifest.json", "checkpoints/update-00000007/model.safetensors"),
]


@pytest.fixture
def linked(tmp_path):
    """Replace a file of a folder by a link to a file outside of it."""
    secret = tmp_path / "outside" / "secret"
    secret.parent.mkdir()
    secret.write_text(SECRET)

    def link(path):
        path.unlink(missing_ok=True)
        path.symlink_to(secret)
        return path, secret

    return link


@pytest.mark.parametrize("name", FILES)
def test_a_run_with_a_link_out_of_it_is_not_read(folder, linked, tmp_path, name, capsys):
    run = tmp_path / "copy"
    shutil.copytree(folder, run)
    link, secret = linked(run / name)
    with pytest.raises(NmtError, match=f"{re.escape(str(link))}: is a link to {re.escape(str(secret))}"):
        load(run)
    for command in (translate, train):
        assert command([str(run)]) == 2
        _, err = capsys.readouterr()
        assert f"{link}: is a link to {secret}" in err and SECRET not in err


@pytest.mark.parametrize("name", ["manifest.json", "recipe.yaml", "train.arrow", "subwords.json", "report.json"])
def test_prepared_data_with_a_link_out_of_it_are_not_read(linked, tmp_path, name, capsys):
    data = tmp_path / "data"
    data.mkdir()
    for file in ("manifest.json", "recipe.yaml"):
        (data / file).write_text("{}")
    link, secret = linked(data / name)
    with pytest.raises(NmtError, match=f"{re.escape(str(link))}: is a link to {re.escape(str(secret))}"):
        read_manifest(data)
    assert train([str(data)]) == 2
    _, err = capsys.readouterr()
    assert f"{link}: is a link to {secret}" in err and SECRET not in err


def test_a_link_to_the_folder_and_links_within_it_are_no_harm(folder, tmp_path):
    run = tmp_path / "copy"
    shutil.copytree(folder, run)
    (run / "same.yaml").symlink_to("recipe.yaml")
    (tmp_path / "name").symlink_to(run, target_is_directory=True)
    refuse_links_out(tmp_path / "name")
    assert load(tmp_path / "name").translate(["the ship"])
    os.symlink("../copy/../outside", run / "dangling")
    with pytest.raises(NmtError, match="dangling"):
        Run(run).recipe()
