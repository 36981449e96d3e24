"""What people read for seconds and bytes."""

import pytest

from nmt.training.engine import duration, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (4.21, "4.2 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (320, "5 min 20 s"),
        (11_100, "3 h 05 min"),
        (180_000, "2 days 2 h"),
    ],
)
def test_a_length_of_time(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("n", "text"), [(999, "1.0 kB"), (1_234_567, "1.2 MB"), (3.6e9, "3.6 GB"), (1.2e13, "12,000.0 GB")]
)
def test_a_number_of_bytes(n, text):
    assert size(n) == text
