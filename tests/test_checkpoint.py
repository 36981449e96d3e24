"""Checkpoints: there whole or not at all, every damage seen, the best never deleted."""

import errno
import json
import math
import os

import pytest
import torch
from torch import nn

from nmt import checkpoint, files
from nmt.errors import MachineError, RunError, TrainingError


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.arange(3.0))
        self.register_buffer("scratch", torch.zeros(9), persistent=False)


def tensors(seed=0):
    torch.manual_seed(seed)
    return {checkpoint.MODEL: {"w": torch.randn(5, 3), "b": torch.randn(3)}}


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "run" / checkpoint.name_of(7)
    checkpoint.save(place, tensors(), {"update": 7})
    return place


def test_what_is_saved_is_loaded(folder):
    assert checkpoint.verify(folder)["update"] == 7
    found = checkpoint.load_tensors(folder, checkpoint.MODEL)
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors()[checkpoint.MODEL].items())
    assert checkpoint.update_of(folder) == 7 and checkpoint.update_of(folder.parent) is None


def test_a_shared_matrix_is_stored_once_and_shared_after_loading():
    model = Tied()
    weights = {name: tensor.clone() for name, tensor in checkpoint.weights_of(model).items()}
    assert weights.keys() == {"first.weight", "table"}
    other = Tied()
    checkpoint.load_weights(other, weights, "here")
    assert torch.equal(other.second.weight, model.first.weight)
    assert other.first.weight.data_ptr() == other.second.weight.data_ptr()


@pytest.mark.parametrize("change, said", [
    (lambda w: w.pop("first.weight"), "first.weight is missing"),
    (lambda w: w.update(third=torch.zeros(1)), "third is not in the model"),
    (lambda w: w.update(table=torch.zeros(5)), r"table is \(5,\), the model expects \(3,\)"),
])  # fmt: skip
def test_weights_that_do_not_fit_are_refused_by_name(change, said):
    weights = dict(checkpoint.weights_of(Tied()))
    change(weights)
    with pytest.raises(RunError, match=said):
        checkpoint.load_weights(Tied(), weights, "here")


@pytest.mark.parametrize("name", [checkpoint.MODEL, checkpoint.STATE])
def test_every_single_flipped_bit_truncation_and_deletion_is_seen(folder, name):
    whole = (folder / name).read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 25)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (place % 8)
        (folder / name).write_bytes(flipped)
        with pytest.raises(RunError, match="SHA-256"):
            checkpoint.verify(folder)
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        (folder / name).write_bytes(whole[:cut])
        with pytest.raises(RunError, match="bytes, the manifest says"):
            checkpoint.verify(folder)
    (folder / name).unlink()
    with pytest.raises(RunError, match="missing"):
        checkpoint.verify(folder)


def change_manifest(folder, change):
    path = folder / checkpoint.MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    change(manifest)
    path.write_text(json.dumps(manifest) + "\n", encoding="utf-8")


@pytest.mark.parametrize(("change", "error"), [
    (lambda manifest: manifest.clear(), "no list of files"),
    (lambda manifest: manifest.update(format="1"), "no list of files"),
    (lambda manifest: manifest.update(files=[]), "no list of files"),
    (lambda manifest: manifest["files"].update({checkpoint.MODEL: 7}), "without its size"),
    (lambda manifest: manifest["files"][checkpoint.MODEL].update(size="7"), "without its size"),
    (lambda manifest: manifest["files"].pop(checkpoint.MODEL), "not in the manifest"),
    (lambda manifest: manifest.update(format=99), "format 99 by a newer nmt; this one reads format 1"),
    *((lambda manifest, name=name: manifest["files"].update({name: {"size": 1, "sha256": ""}}), "no. a plain file name")
      for name in ("../../etc/passwd", "/etc/passwd", "a/b", "", ".hidden", "nul\0", "c:x")),
])  # fmt: skip
def test_a_changed_manifest_is_refused(folder, change, error):
    change_manifest(folder, change)
    with pytest.raises(RunError, match=error):
        checkpoint.verify(folder)


def test_what_a_checkpoint_lacks_and_another_name_are_seen(folder):
    with pytest.raises(RunError, match=r"optimizer.safetensors: missing"):
        checkpoint.verify(folder, [checkpoint.OPTIMIZER])
    other = folder.rename(folder.with_name(checkpoint.name_of(8)))
    with pytest.raises(RunError, match="holds the files of update 7"):
        checkpoint.verify(other)
    for text in ("", "[]", "{"):
        (other / checkpoint.MANIFEST).write_text(text + "\n", encoding="utf-8")
        with pytest.raises(RunError, match="damaged"):
            checkpoint.verify(other)


def test_a_file_that_cannot_be_read_is_damaged_and_one_that_may_not_be_is_not(folder, monkeypatch):
    def fail(_path):
        raise error

    monkeypatch.setattr(checkpoint, "sha256_of", fail)
    error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(RunError, match="cannot be read: Input/output error"):
        checkpoint.verify(folder)
    error = PermissionError(errno.EACCES, "Permission denied")
    with pytest.raises(PermissionError):
        checkpoint.verify(folder)


@pytest.mark.parametrize("file", [checkpoint.MODEL, checkpoint.EMA])
def test_weights_that_are_not_finite_are_never_written(folder, file):
    other = folder.with_name(checkpoint.name_of(8))
    with pytest.raises(TrainingError, match="b holds numbers that are not finite"):
        checkpoint.save(other, {**tensors(), file: {"b": torch.tensor([1.0, math.nan])}}, {"update": 8})
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_save_that_fails_leaves_the_old_checkpoint_and_nothing_half(folder, monkeypatch, call):
    def fail(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    other = folder.with_name(checkpoint.name_of(8))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(MachineError, match="no space left on device"):
            checkpoint.save(other, tensors(1), {"update": 8})
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert checkpoint.verify(folder)["update"] == 7


def test_every_file_is_on_the_disk_before_the_name_and_the_name_before_the_end(folder, monkeypatch):
    done = []

    def note(what, call):
        return lambda *args: done.append((what, names(args[0]))) or call(*args)

    def names(at):  # of the file or folder behind a handle, or of a path
        return os.path.basename(os.readlink(f"/proc/self/fd/{at}") if isinstance(at, int) else at)

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("no /proc to learn from what a handle stands for")
    monkeypatch.setattr(os, "fsync", note("sync", os.fsync))
    monkeypatch.setattr(os, "replace", note("rename", os.replace))
    other = folder.with_name(checkpoint.name_of(8))
    checkpoint.save(other, tensors(1), {"update": 8})
    (rename,) = [place for place, (what, _) in enumerate(done) if what == "rename"]
    beside = done[rename][1]
    before = (checkpoint.MODEL, checkpoint.STATE, checkpoint.MANIFEST, beside)
    assert done[:rename] == [("sync", name) for name in before]
    assert done[rename + 1 :] == [("sync", folder.parent.name)]


def test_a_kill_between_two_renames_loses_nothing(folder, monkeypatch):
    real = os.replace

    def killed(source, target):
        if target == folder:
            raise KeyboardInterrupt  # any end that asks nobody
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(files, "exchange", lambda *_: False)
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(folder, tensors(1), {"update": 7, "second": True})
    assert not folder.exists()
    checkpoint.recover(folder.parent)
    assert "second" not in checkpoint.verify(folder)
    checkpoint.save(folder, tensors(1), {"update": 7, "second": True})
    assert checkpoint.verify(folder)["second"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_folder_of_checkpoints_is_made_and_a_run_folder_that_was_removed_is_not(tmp_path):
    place = tmp_path / "run" / "checkpoints" / checkpoint.name_of(7)
    with pytest.raises(MachineError, match="No such file"):
        checkpoint.save(place, tensors(), {"update": 7})
    assert not (tmp_path / "run").exists()


def test_the_average_of_one_is_itself_and_of_two_is_the_mean(folder):
    other = folder.with_name(checkpoint.name_of(8))
    checkpoint.save(other, tensors(1), {"update": 8})
    a, b = tensors(0)[checkpoint.MODEL], tensors(1)[checkpoint.MODEL]
    assert all(torch.equal(tensor, a[name]) for name, tensor in checkpoint.average([folder]).items())
    assert all(torch.equal(tensor, a[name]) for name, tensor in checkpoint.average([folder, folder]).items())
    for name, tensor in checkpoint.average([folder, other]).items():
        torch.testing.assert_close(tensor, (a[name] + b[name]) / 2)


@pytest.mark.parametrize("scores, keep_last, keep_best, gone", [
    ({1: 5.0, 2: 1.0, 3: 2.0}, 1, 1, [2]),
    ({1: 5.0, 2: 5.0, 3: 5.0, 4: None}, 1, 1, [2, 3]),
    ({1: None, 2: None, 3: None}, 2, 5, [1]),
    ({1: 9.0, 2: 8.0, 3: 1.0, 4: 2.0, 5: 3.0}, 2, 2, [3]),
    ({}, 1, 1, []),
])  # fmt: skip
def test_retention_keeps_the_newest_and_the_best(scores, keep_last, keep_best, gone):
    assert checkpoint.checkpoints_to_delete(scores, keep_last=keep_last, keep_best=keep_best) == gone
