"""The form of a file by its name, and the columns of both sides by the names in it, where the recipe names none."""

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt.data.formats import Column, names_in_document, names_in_records, shown
from nmt.data.lines import complaint_about, without_ending
from nmt.data.tables import names_in_table
from nmt.errors import DataError
from nmt.languages import language_of
from nmt.recipe.contradictions import ENDINGS, NOT_READ, STDIN
from nmt.recipe.data_options import CorpusFiles
from nmt.recipe.places import is_prepared

# From the names in a recipe to files.
_WILD = re.compile(r"\*|\?|\[[^\]]+\]")


@dataclass(frozen=True)
class Named:
    """A file as it is called, and where it is, None where there is none. wild: what a pattern's wildcards stood for."""

    name: str
    path: Path | None
    wild: tuple[str, ...] | None = None


def locate(
    names: Sequence[str], option: str, complaints: list[str], folders: Sequence[Path] = (Path(),)
) -> list[Named]:
    """The files of some names, patterns replaced by what they match, in the order of its names. What is not there is
    complained about. folders: where to look before the one that NMT_DATA names.
    """
    found = [each for name in names for each in _locate(name, option, complaints, folders)]
    for each in found:
        try:
            each.name.encode("utf-8")
        except UnicodeEncodeError:  # bytes that Python stands half surrogate pairs for
            complaints.append(
                f"{option}: {each.name!r}: a name that is not UTF-8 stands in no report. Rename the file."
            )
    return found


def dataset_place(name: str, folders: Sequence[Path] = (Path(),)) -> str:
    """The folder of a dataset, where there is one of the name; else the name."""
    there = (folder / name for folder in _folders(name, folders))
    return str(next((path for path in there if path.is_dir()), name))


def partners(
    src: Sequence[Named], trg: Sequence[Named], option: str, complaints: list[str]
) -> list[tuple[Named, Named]]:
    """Pairs of source and target files: those for which two patterns' wildcards stand for the same; else
    the first to the first, and so on.
    """
    if any(named.path is None for named in (*src, *trg)):
        return list(zip(src, trg, strict=False))  # what is not there has been complained about
    if len(src) == len(trg) == 1:
        return [(src[0], trg[0])]
    sides = [_by_wildcards(side) for side in (src, trg)]
    if sides[0] and sides[1] and len(next(iter(sides[0]))) == len(next(iter(sides[1]))):
        alone = [named.name for one, other in (sides, sides[::-1]) for wild, named in one.items() if wild not in other]
        if alone:
            more = f", and {len(alone) - 5:,} more" if len(alone) > 5 else ""
            complaints.append(f"{option}: no partner on the other side for {', '.join(alone[:5])}{more}.")
            return []
        return [(named, sides[1][wild]) for wild, named in sides[0].items()]
    if len(src) != len(trg):
        complaints.append(
            f"{option}: {len(src):,} files of src ({_some(src)}) but {len(trg):,} of trg ({_some(trg)}). Each must "
            "have its partner: file n of one belongs to file n of the other."
        )
        return []
    return list(zip(src, trg, strict=True))


def _by_wildcards(side: Sequence[Named]) -> dict[tuple[str, ...], Named]:
    """The files of a side by what the wildcards of its one pattern stood for; nothing where it is not one pattern."""
    found = {named.wild: named for named in side if named.wild is not None}
    return {wild: named for wild, named in found.items() if wild} if len(found) == len(side) else {}


def _locate(name: str, option: str, complaints: list[str], before: Sequence[Path]) -> list[Named]:
    if name == STDIN:
        return [Named("stdin", Path(STDIN))]
    folders = _folders(name, before)
    for folder in folders:
        if (folder / name).exists() and not is_prepared(folder / name):  # which may have the name of its corpus
            return [Named(name, folder / name)]
    is_pattern = _WILD.search(name) is not None
    if is_pattern:
        shape = re.compile("".join(_shape(name)), re.DOTALL)
        for folder in folders:
            if found := sorted(glob.glob(name, root_dir=folder)):
                matched = ((each, shape.fullmatch(each)) for each in found)
                return [
                    Named(each, folder / each, (tuple(map(without_ending, match.groups())) if match else None))
                    for each, match in matched
                ]
    places = " and ".join(str((folder / name).absolute()) for folder in folders)
    plain = not os.environ.get("NMT_DATA") and not Path(name).is_absolute()
    hint = " (NMT_DATA, one more folder to look in, is not set)" if plain else ""
    what = "no file matches" if is_pattern else "no file"
    complaints.append(f"{option}: {what} {name}: tried {places}{hint}.".replace("\n", "\\n"))
    return [Named(name, None)]


def _folders(name: str, before: Sequence[Path]) -> list[Path]:
    if Path(name).is_absolute():
        return [Path()]
    return [*before, *map(Path, filter(None, [os.environ.get("NMT_DATA")]))]


def _shape(pattern: str) -> list[str]:
    """A regular expression, in parts, that matches what a pattern does, with a group for each wildcard."""
    parts, end = [], 0
    for wild in _WILD.finditer(pattern):
        parts.append(re.escape(pattern[end : wild.start()]))
        end = wild.end()
        # Which files match has been decided; a bracket only has to tell which letter it stood for.
        parts.append("([^/]*)" if wild[0] == "*" else "([^/])")
    return [*parts, re.escape(pattern[end:])]


def _some(files: Sequence[Named]) -> str:
    first = ", ".join(named.name for named in files[:3])
    return f"{first}, ..." if len(files) > 3 else first or "none"


RECORDS, TABLES, DOCUMENTS = ("tsv", "jsonl"), ("parquet", "arrow"), ("csv", "tmx")
_SIDES = (("source", "target"), ("src", "trg"), ("src", "tgt"), ("source_text", "target_text"))


def form_of(named: Named) -> str:
    """Return what is in a file, by its name."""
    plain = without_ending(named.name).lower()
    return next((form for ending, form in ENDINGS.items() if plain.endswith(ending)), "text")


def columns_in(
    named: Named, files: CorpusFiles, languages: tuple[str, str], option: str, complaints: list[str]
) -> tuple[tuple[Column, Column], bool] | None:
    """The columns of a file with both sides where the recipe names none, and whether they are named in its head.

    None where there is something to complain about.
    """
    form = files.format or form_of(named)
    plain = without_ending(named.name).lower()
    if named.path is None or named.path == Path(STDIN) or form == "text":
        if named.path is not None:
            what = next((f"is {why}" for ending, why in NOT_READ.items() if plain.endswith(ending)), "")
            told = what or "in which form, and which columns? Name src_column and trg_column, and format"
            complaints.append(f"{option}: {named.name}: {told} (docs/data.md).")
        return None
    if complaint := (None if form in TABLES else complaint_about(named.path)):
        complaints.append(f"{option}: {complaint}")
        return None
    try:
        names = _names_in(named.path, form)
    except DataError as error:
        complaints.append(f"{option}: {error}")
        return None
    if found := columns_by_name(names, languages):
        return found, True
    if form in ("tsv", "csv") and len(names) == 2 and not files.header:
        return (1, 2), False
    what = {"tmx": "languages", "jsonl": "keys"}.get(form, "columns")
    complaints.append(
        f"{option}: {named.name}: which of its {what} are {languages[0]} and {languages[1]}? There are {shown(names)}. "
        f"Name others with --langs, or the {what} in a recipe: src_column and trg_column."
    )
    return None


def _names_in(path: Path, form: str) -> list[str]:
    if form in DOCUMENTS:
        return names_in_document(path, form)
    return names_in_table(path) if form in TABLES else names_in_records(path, form)


def columns_by_name(names: Sequence[str], languages: tuple[str, str]) -> tuple[str, str] | None:
    """The columns, keys or languages that two sides are in, by their names; None where the names do not tell.

    Names are codes of the languages, in any form and with any region, their English names, or source and target.
    """
    wanted = [language_of(code) for code in languages]
    known = {name: [language_of(part) for part in (name, name.rpartition(".")[2])] for name in names}
    for exact in (True, False):
        sides = [
            [
                name
                for name, of in known.items()
                if any(
                    (one.code == side.code) if exact else (one.is_known and one.primary == side.primary) for one in of
                )
            ]
            for side in wanted
        ]
        if len(sides[0]) == len(sides[1]) == 1 and sides[0] != sides[1]:
            return sides[0][0], sides[1][0]
    folded = {name.strip().casefold().replace(" ", "_"): name for name in names}
    return next(((folded[src], folded[trg]) for src, trg in _SIDES if {src, trg} <= folded.keys()), None)
