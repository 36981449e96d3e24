"""A helper that prints where answers go, and does what it is asked."""

import os
import sys

from nmt.errors import DataError, NmtError
from nmt.processes import serve

print("printed before", flush=True)
os.write(1, b"without an end of line")


class _Own(DataError):
    pass


def _make(setup):
    print("printed by", setup["name"], flush=True)
    if "refuse" in setup:
        raise DataError(setup["refuse"])

    def answer(task):
        os.write(1, b"x" * task.get("n_print", 0))
        if "own" in task:
            raise _Own(task["own"])
        if "code" in task:
            error = NmtError("other code")
            error.exit_code = task["code"]
            raise error
        if "exit" in task:
            os._exit(task["exit"])
        return {"echo": task}

    return answer


if __name__ == "__main__":
    sys.exit(serve(_make))
