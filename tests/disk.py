"""A disk without room, for the tests: the system refuses every byte, as a full one does, with another number."""

from contextlib import contextmanager

import pytest


@contextmanager
def full_disk(n_byte=0):
    """In here files can be made, but nothing can be written to them behind their first n_byte bytes."""
    resource = pytest.importorskip("resource", reason="Windows has no limits to set")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_byte, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
