"""What one rank leaves for another is read as it was written, once, or refused by name."""

import numpy as np
import pytest

from nmt.data.sharing.parts import PartWriter, read_part
from nmt.errors import MachineError

CONTENT = [{"n": n, "ids": np.arange(n, dtype=np.uint16), "raw": b"x" * n} for n in range(5)]


def write(path, content=CONTENT):
    with PartWriter(path) as part:
        for each in content:
            part.add(each)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_part_is_read_as_it_was_written_and_then_nothing_is_left(tmp_path, n):
    write(tmp_path / "part", CONTENT[:n])
    found = list(read_part(tmp_path / "part"))
    assert [(each["n"], each["ids"].tolist(), each["raw"]) for each in found] == [
        (each["n"], each["ids"].tolist(), each["raw"]) for each in CONTENT[:n]
    ]
    assert not list(tmp_path.iterdir())


def flipped(path):
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (flipped, "not those that were written"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes, but .* were written"),
        (lambda path: path.write_bytes(b""), "0 bytes, but .* were written"),
        (lambda path: path.with_name("part.json").unlink(), "No such file"),
        (lambda path: path.with_name("part.json").write_bytes(b"{"), "part: cannot be read"),
    ],
)
def test_other_bytes_are_refused(tmp_path, damage, told):
    write(tmp_path / "part")
    damage(tmp_path / "part")
    with pytest.raises(MachineError, match=told):
        list(read_part(tmp_path / "part"))


def test_a_part_that_was_not_finished_is_none(tmp_path):
    with pytest.raises(KeyboardInterrupt), PartWriter(tmp_path / "part") as part:
        part.add(CONTENT[1])
        raise KeyboardInterrupt
    with pytest.raises(MachineError, match="cannot be read as it was written by its rank"):
        list(read_part(tmp_path / "part"))
