"""Memory stays where it is, however long training runs."""

from pathlib import Path

import pytest

from nmt.training.launch import launch

STATM = Path("/proc/self/statm")


@pytest.mark.skipif(not STATM.exists(), reason="no /proc to read the size of this process from")
def test_memory_grows_by_less_than_twenty_megabytes_in_fifteen_hundred_updates(recipe_of):
    """Measured over 240 of the first, to be quick, against their share."""
    recipe = recipe_of(
        model={"d_model": 8, "d_inner": 8, "n_head": 1},
        batch={"max_tokens": 24, "per_update": 1},
        train={"updates": 320, "save_every": 60, "log_every": 50, "ema": 0.9},
        valid={"every": 60, "max_sentences": 4, "metric": "loss"},
    )
    megabytes = []

    def measure():
        megabytes.append(int(STATM.read_bytes().split()[1]) * 4096 / 1e6)
        return False

    launch(recipe, measure)
    assert len(megabytes) >= 320
    assert megabytes[-1] - megabytes[-240] < 20 * 240 / 1500
