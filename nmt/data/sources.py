"""Where the text of a corpus comes from: files that the recipe names, or lines made on the spot.

Every complaint about files is found here, before any work; which lines are kept is decided in `clean.py`.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nmt.data.dates import generate
from nmt.data.lines import complaint_about, count_lines, read_lines
from nmt.data.splits import split_of
from nmt.errors import DataError
from nmt.files import sha256_of
from nmt.recipe.data_options import CorpusFiles
from nmt.recipe.options import Recipe

Side = Literal["src", "trg"]


@dataclass(frozen=True)
class Text:
    """One side of a source: a file, or lines in memory. `name` is what the user calls it."""

    name: str
    path: Path | None = None
    lines: tuple[str, ...] = ()

    def read(
        self, bad_utf8: Literal["refuse", "drop"], longest: int, notes: Counter[str] | None = None
    ) -> Iterator[str | None]:
        """As `lines.read_lines`."""
        if self.path is None:
            return iter(self.lines)
        return read_lines(self.path, bad_utf8=bad_utf8, longest=longest, notes=notes)

    def facts(self) -> dict[str, Any]:
        """{"name", "n_line", "size", "sha256"}: what tells this text from any other."""
        if self.path is not None:
            n_line = count_lines(self.path)
            size = self.path.stat().st_size
            return {"name": self.name, "n_line": n_line, "size": size, "sha256": sha256_of(self.path)}
        content = "".join(line + "\n" for line in self.lines).encode("utf-8")
        digest = hashlib.sha256(content).hexdigest()
        return {"name": self.name, "n_line": len(self.lines), "size": len(content), "sha256": digest}


@dataclass(frozen=True)
class Source:
    """Two texts in which line n of one translates line n of the other.

    split: train, which may have several; a validation set as `split_of` calls it; test.
    """

    split: str
    src: Text
    trg: Text


def find_sources(recipe: Recipe) -> list[Source]:
    """The texts of all splits. Files that cannot be read are refused, all at once."""
    if recipe.data.generate == "dates":
        return [
            Source(
                split,
                Text(f"generated dates, {split}.src", lines=tuple(src)),
                Text(f"generated dates, {split}.trg", lines=tuple(trg)),
            )
            for split, (src, trg) in generate(recipe.seed).items()
        ]
    data = recipe.data
    named: list[tuple[str, CorpusFiles]] = [("train", files) for files in data.train]
    named += [(split_of(files.name), files) for files in data.valid]
    named += [("test", data.test)] if data.test else []
    if absent := [option for option, files in (("train", data.train), ("valid", data.valid)) if not files]:
        raise DataError(
            "\n".join(
                f"data.{split}: no files. Name two, in which line n of one translates line n of the other: "
                "{src: FILE, trg: FILE}."
                for split in absent
            )
        )
    complaints: list[str] = []
    sources = []
    for split, files in named:
        option = f"data.{split.partition('-')[0]}"
        src, trg = (_locate(option, name, complaints) for name in (files.src, files.trg))
        sources.append(Source(split, src, trg))
    if complaints:
        if any("no file multi30k" in complaint for complaint in complaints):
            complaints.append("Multi30k is downloaded by: bash tools/download_multi30k.sh (which says how to go on).")
        raise DataError("\n".join(dict.fromkeys(complaints)))
    return sources


def survey(sources: Iterable[Source]) -> list[dict[str, Any]]:
    """The facts of each text, with its split and side. Unequal line counts and empty files are refused, all at once."""
    inputs: list[dict[str, Any]] = []
    complaints = []
    for source in sources:
        src, trg = source.src.facts(), source.trg.facts()
        inputs += [{"split": source.split, "side": "src", **src}, {"split": source.split, "side": "trg", **trg}]
        if src["n_line"] != trg["n_line"]:
            complaints.append(
                f"{src['name']} has {src['n_line']:,} lines but {trg['name']} has {trg['n_line']:,}. Line 1 of one "
                "must translate line 1 of the other, and so on: look for a cut download or a stray line break."
            )
        elif not src["n_line"]:
            complaints.append(f"no lines in {src['name']} and {trg['name']}.")
    if complaints:
        raise DataError("\n".join(complaints))
    return inputs


def _locate(option: str, name: str, complaints: list[str]) -> Text:
    """Find a file by its name: as it stands, and for a relative one in the folder that NMT_DATA names."""
    tried = [Path(name)]
    if not tried[0].is_absolute() and os.environ.get("NMT_DATA"):
        tried.append(Path(os.environ["NMT_DATA"]) / name)
    path = next((path for path in tried if path.exists()), None)
    if path is None:
        places = " and ".join(str(path.absolute()) for path in tried)
        hint = "" if len(tried) > 1 or tried[0].is_absolute() else " (NMT_DATA, a second folder to look in, is not set)"
        complaints.append(f"{option}: no file {name}: tried {places}{hint}.")
        return Text(name)
    if complaint := complaint_about(path):
        complaints.append(f"{option}: {complaint}")
    return Text(name, path)
