"""What is left of a block in a file comes back as it was."""

import numpy as np
import pytest

from nmt.data.block_work import BlockContent, BlockSide, read_block, write_block
from nmt.data.placeholders import character


def block_of(lines, kept, **more):
    arrays = ("len", "marks", "anchors", "n_anchor", "which", "at", "n_unit", "n_char", "n_word")
    facts = {name: np.arange(n, n + len(kept), dtype=np.uint32) for n, name in enumerate(arrays)}
    text = "\n".join(lines).encode()
    side = BlockSide(**facts, units=b"a \nb ", lexicon="me", text=text, **more)
    return BlockContent(np.array(kept), side, side._replace(text=text.upper()))


def test_blocks_come_back_from_the_places_where_they_were_written(tmp_path):
    path, there = tmp_path / "blocks", [block_of(["a", "ü b"], [True, False, True]), block_of([""], [False, True])]
    for wanted, offset in [(block, write_block(path, block)) for block in there]:
        found = read_block(str(path), offset)
        assert np.array_equal(found.kept, wanted.kept)
        for one, other in zip(found.sides, wanted.sides, strict=True):
            assert all(np.array_equal(*both) for both in zip(one, other, strict=True))
    first = read_block(str(path), 0)
    assert first.src.texts() == first.src.learnt_texts() == ["a", "ü b"] and first.trg.texts() == ["A", "ü B"]
    assert [first.place(n) for n in (0, 1)] == [0, 2]


def test_lines_are_learnt_from_with_placeholders_and_shown_without(tmp_path):
    protected = f"um {character('number1')}"
    write_block(tmp_path / "blocks", block_of(["um 5"], [True], protected=protected.encode("utf-8", "surrogatepass")))
    found = read_block(str(tmp_path / "blocks"), 0).src
    assert found.texts() == ["um 5"] and found.learnt_texts() == [protected] and found.learnt == found.protected


def test_a_block_that_is_not_there_is_no_block(tmp_path):
    offset = write_block(tmp_path / "blocks", block_of(["a"], [True]))
    with pytest.raises(ValueError, match="nothing that was packed"):
        read_block(str(tmp_path / "blocks"), offset + 1)
