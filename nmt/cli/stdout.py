"""What commands write to stdout, all of it or an error that names it."""

import errno
import os
import sys


def write_stdout(text: str) -> None:
    """Write text, as UTF-8 whatever the locale, and flush it for whoever waits at the other end.

    With PYTHONUNBUFFERED a stream writes what there is room for, tells how much that was, and nobody would know.
    Raises OSError that names <stdout>.
    """
    if sys.stdout is None:  # a shell has closed it: as with print, nothing is written
        return
    try:
        sys.stdout.flush()
        file = getattr(sys.stdout, "buffer", None)
        if file is None:  # a program has put a stream of its own there, which takes text only
            sys.stdout.write(text)
            return
        left = memoryview(text.encode("utf-8"))
        while left:
            if (n_byte := file.write(left)) is None:  # a raw stream that does not wait for its reader
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            left = left[n_byte:]
        file.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "<stdout>") from None
