"""Simulated full disk: a limit of file sizes makes the system refuse writes, with another errno than a full disk."""

from contextlib import contextmanager

import pytest


@contextmanager
def full_disk(n_byte=0):
    """Context manager: files can be created, but not written to beyond their first n_byte bytes."""
    resource = pytest.importorskip("resource", reason="Windows has no limits to set")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_byte, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
