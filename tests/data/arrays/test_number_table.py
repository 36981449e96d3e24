"""A table of numbers by keys is a dict that answers thousands at a time."""

import numpy as np
import pytest

from nmt.data.arrays import NumberTable


@pytest.mark.parametrize("spread", [64, 12, 3])  # bits of a key that differ: many want the same place
def test_it_is_a_dict(spread):
    rng = np.random.default_rng(spread)
    everything = np.unique(rng.integers(1, 2**63, 20_000, dtype=np.uint64) << np.uint64(64 - spread) % np.uint64(64))
    everything = rng.permutation(everything[everything > 0])
    table, known = NumberTable(), {}
    for some in np.array_split(everything[: len(everything) // 2], 9):
        values = rng.integers(0, 1 << 40, len(some))
        table.add(some, values)
        known.update(zip(some.tolist(), values.tolist(), strict=True))
        asked = rng.choice(everything, 3000)
        assert table.find(asked).tolist() == [known.get(key, -1) for key in asked.tolist()]
        assert len(table) == len(known)
    table.clear()
    assert len(table) == 0 and (table.find(everything) == -1).all()


def test_of_no_keys_there_are_no_numbers():
    assert len(NumberTable().find(np.zeros(0, dtype=np.uint64))) == 0
