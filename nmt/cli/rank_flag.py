"""What --ranks of a command may say. Apart from what is made of it, so that --help needs nothing of that."""

import argparse

ARRAY = "array"


def n_rank(text: str) -> int | str:
    """What --ranks says: how many there are, or that the jobs of an array are they. Raises ArgumentTypeError."""
    if text == ARRAY or (text.isascii() and text.isdigit() and int(text)):
        return text if text == ARRAY else int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not 1, 2, ... and not {ARRAY}")
