"""The installed commands: each imports its module only once Ctrl-C is seen to."""

import importlib
import sys
from functools import partial

from nmt.cli.begin import begin, ended
from nmt.extras import incomplete


def _run(command: str) -> int:
    begin()
    try:
        main = importlib.import_module(f"nmt.cli.{command}").main
    except ModuleNotFoundError as error:
        print(f"nmt-{command}: error: {incomplete(error)}", file=sys.stderr)
        return ended(2)
    return ended(main())


_commands = "preprocess", "train", "translate", "export", "score", "report"
preprocess, train, translate, export, score, report = (partial(_run, name) for name in _commands)
