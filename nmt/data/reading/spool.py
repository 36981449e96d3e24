"""Standard input as a file, beside the folder that is made: a corpus is read several times, and stdin only once."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from nmt.data.reading.sources import Source, Text
from nmt.data.stored.folder import beside
from nmt.data.text.lines import count_lines
from nmt.errors import DataError
from nmt.progress import Bar

_CHUNK = 1 << 20


@contextlib.contextmanager
def spooled(sources: Sequence[Source], folder: Path, talk: Callable[[str], None]) -> Iterator[Sequence[Source]]:
    """The sources, with a file in place of stdin until the block ends. talk: is told how much has come."""
    texts = [text for source in sources for text in (source.src, source.trg) if text.is_stdin]
    if not texts:
        yield sources
        return
    with beside(folder) as temporary:
        path = temporary / "stdin"
        try:
            _read_all(path)
            talk(f"stdin: {count_lines(path):,} lines, {path.stat().st_size:,} bytes")
            there = [replace(source, src=_at(source.src, path), trg=_at(source.trg, path)) for source in sources]
            if complaints := [found for text in texts if (found := _at(text, path).complaint())]:
                raise DataError("\n".join(dict.fromkeys(complaints)))
            yield there
        except DataError as error:
            raise DataError(str(error).replace(str(path), "stdin")) from None


def _read_all(path: Path) -> None:
    with open(path, "xb") as file, Bar(desc="stdin", unit="B", unit_scale=True) as progress:
        while chunk := sys.stdin.buffer.read(_CHUNK):
            file.write(chunk)
            progress.update(len(chunk))


def _at(text: Text, path: Path) -> Text:
    return replace(text, place=path) if text.is_stdin else text
