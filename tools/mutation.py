"""A small way to break the package."""

from typing import NamedTuple


class Mutation(NamedTuple):
    """A way to break one file. tests: what pytest is told, of which something must turn red."""

    name: str
    file: str
    old: str
    new: str
    tests: str
