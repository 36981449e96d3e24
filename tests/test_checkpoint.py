"""Checkpoints: written atomically, verified when read, and the best are kept."""

import errno
import json
import math
import os

import pytest
import torch
from torch import nn

from nmt import checkpoint
from nmt.errors import MachineError, RunError


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
    path = tmp_path / "run" / checkpoint.name_of(7)
    checkpoint.save(path, tensors(), {"update": 7})
    return path


def test_loaded_checkpoint_equals_the_saved_one(folder):
    assert checkpoint.verify(folder)["update"] == 7
    loaded = checkpoint.load_tensors(folder, checkpoint.MODEL)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors()[checkpoint.MODEL].items())
    assert checkpoint.update_of(folder) == 7 and checkpoint.update_of(folder.parent) is None


def test_shared_matrix_is_stored_once_and_shared_after_loading():
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
def test_error_names_weights_that_do_not_fit(change, said):
    weights = dict(checkpoint.weights_of(Tied()))
    change(weights)
    with pytest.raises(RunError, match=said):
        checkpoint.load_weights(Tied(), weights, "here")


@pytest.mark.parametrize("name", [checkpoint.MODEL, checkpoint.STATE])
def test_flipped_bits_truncation_and_deletion_are_detected(folder, name):
    content = (folder / name).read_bytes()
    for offset in range(0, len(content), max(1, len(content) // 25)):
        flipped = bytearray(content)
        flipped[offset] ^= 1 << (offset % 8)
        (folder / name).write_bytes(flipped)
        with pytest.raises(RunError, match="SHA-256"):
            checkpoint.verify(folder)
    for length in (0, 1, len(content) // 2, len(content) - 1):
        (folder / name).write_bytes(content[:length])
        with pytest.raises(RunError, match="size or SHA-256"):
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
    (lambda manifest: manifest["files"].update({checkpoint.MODEL: 7}), "size or SHA-256 differs"),
    (lambda manifest: manifest["files"][checkpoint.MODEL].update(size="7"), "size or SHA-256 differs"),
    (lambda manifest: manifest["files"].pop(checkpoint.MODEL), "not in the manifest"),
    (lambda manifest: manifest.update(format=99), "format 99 by a newer nmt; this one reads format 1"),
    *((lambda manifest, name=name: manifest["files"].update({name: {"size": 1, "sha256": ""}}), "no. a regular file")
      for name in ("../../etc/passwd", "/etc/passwd", "a/b", "", ".hidden", "nul\0", "c:x")),
])  # fmt: skip
def test_changed_manifest_is_refused(folder, change, error):
    change_manifest(folder, change)
    with pytest.raises((RunError, checkpoint.NewerFormat), match=error):
        checkpoint.verify(folder)


def test_missing_file_wrong_name_and_damaged_manifest_are_detected(folder):
    with pytest.raises(RunError, match=r"optimizer.safetensors: missing"):
        checkpoint.verify(folder, [checkpoint.OPTIMIZER])
    renamed = folder.rename(folder.with_name(checkpoint.name_of(8)))
    with pytest.raises(RunError, match="holds the files of update 7"):
        checkpoint.verify(renamed)
    for text in ("", "[]", "{"):
        (renamed / checkpoint.MANIFEST).write_text(text + "\n", encoding="utf-8")
        with pytest.raises(RunError, match="damaged"):
            checkpoint.verify(renamed)


def test_io_error_means_damage_but_permission_error_does_not(folder, monkeypatch):
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
def test_non_finite_weights_are_never_written(folder, file):
    target = folder.with_name(checkpoint.name_of(8))
    with pytest.raises(MachineError, match="b holds numbers that are not finite"):
        checkpoint.save(target, {**tensors(), file: {"b": torch.tensor([1.0, math.nan])}}, {"update": 8})
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_failed_save_leaves_only_the_old_checkpoint(folder, monkeypatch, call):
    def fail(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    target = folder.with_name(checkpoint.name_of(8))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(MachineError, match="No space left on device"):
            checkpoint.save(target, tensors(1), {"update": 8})
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert checkpoint.verify(folder)["update"] == 7


def test_files_are_synced_before_the_rename_and_the_folder_after_it(folder, monkeypatch):
    calls = []

    def recorded(operation, call):
        return lambda *args: calls.append((operation, name_of(args[0]))) or call(*args)

    def name_of(path):  # a path, or the handle of a file or folder
        return os.path.basename(os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path)

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("no /proc to learn from what a handle stands for")
    monkeypatch.setattr(os, "fsync", recorded("sync", os.fsync))
    monkeypatch.setattr(os, "replace", recorded("rename", os.replace))
    target = folder.with_name(checkpoint.name_of(8))
    checkpoint.save(target, tensors(1), {"update": 8})
    (rename,) = [index for index, (operation, _) in enumerate(calls) if operation == "rename"]
    temporary = calls[rename][1]
    synced_before = (checkpoint.MANIFEST, checkpoint.MODEL, checkpoint.STATE, temporary)
    assert calls[:rename] == [("sync", name) for name in synced_before]
    assert calls[rename + 1 :] == [("sync", folder.parent.name)]


def test_kill_between_two_renames_loses_nothing(folder, monkeypatch):
    replace = os.replace

    def replace_or_die(source, target):
        if target == folder:
            raise KeyboardInterrupt  # in place of SIGKILL
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace_or_die)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(folder, tensors(1), {"update": 7, "second": True})
    assert not folder.exists()
    checkpoint.recover(folder.parent)
    assert "second" not in checkpoint.verify(folder)
    checkpoint.save(folder, tensors(1), {"update": 7, "second": True})
    assert checkpoint.verify(folder)["second"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_save_does_not_recreate_a_removed_run_folder(tmp_path):
    path = tmp_path / "run" / "checkpoints" / checkpoint.name_of(7)
    with pytest.raises(MachineError, match="No such file"):
        checkpoint.save(path, tensors(), {"update": 7})
    assert not (tmp_path / "run").exists()


def test_average_of_checkpoints_is_their_mean(folder):
    other = folder.with_name(checkpoint.name_of(8))
    checkpoint.save(other, tensors(1), {"update": 8})
    first, second = tensors(0)[checkpoint.MODEL], tensors(1)[checkpoint.MODEL]
    assert all(torch.equal(tensor, first[name]) for name, tensor in checkpoint.average([folder]).items())
    assert all(torch.equal(tensor, first[name]) for name, tensor in checkpoint.average([folder, folder]).items())
    for name, tensor in checkpoint.average([folder, other]).items():
        torch.testing.assert_close(tensor, (first[name] + second[name]) / 2)


@pytest.mark.parametrize("scores, keep_last, keep_best, gone", [
    ({1: 5.0, 2: 1.0, 3: 2.0}, 1, 1, [2]),
    ({1: 5.0, 2: 5.0, 3: 5.0, 4: None}, 1, 1, [2, 3]),
    ({1: None, 2: None, 3: None}, 2, 5, [1]),
    ({1: 9.0, 2: 8.0, 3: 1.0, 4: 2.0, 5: 3.0}, 2, 2, [3]),
    ({}, 1, 1, []),
])  # fmt: skip
def test_retention_keeps_the_newest_and_the_best(scores, keep_last, keep_best, gone):
    assert checkpoint.checkpoints_to_delete(scores, keep_last=keep_last, keep_best=keep_best) == gone
