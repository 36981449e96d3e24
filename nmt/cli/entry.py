"""The installed commands. What each of them imports, it imports after `begin`, which sees to Ctrl-C meanwhile; `ended`
does when the work is over.
"""

import importlib
import sys

from nmt.cli.begin import begin, ended
from nmt.extras import incomplete


def preprocess() -> int:
    """nmt-preprocess."""
    return _run("preprocess")


def train() -> int:
    """nmt-train."""
    return _run("train")


def translate() -> int:
    """nmt-translate."""
    return _run("translate")


def export() -> int:
    """nmt-export."""
    return _run("export")


def _run(command: str) -> int:
    begin()
    try:
        main = importlib.import_module(f"nmt.cli.{command}").main
    except ModuleNotFoundError as error:
        print(f"nmt-{command}: error: {incomplete(error)}", file=sys.stderr)
        return ended(2)
    return ended(main())
