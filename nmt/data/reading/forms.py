"""The form of a file by its name, and the columns of both sides by the names in it, where the recipe names none."""

from collections.abc import Sequence
from pathlib import Path

from nmt.data.reading.documents import names_in_document
from nmt.data.reading.fields import Column, shown
from nmt.data.reading.records import names_in_records
from nmt.data.reading.tables import names_in_table
from nmt.data.text.compression import without_ending
from nmt.data.text.lines import complaint_about
from nmt.data.text.locate import Named
from nmt.errors import DataError
from nmt.languages import language_of
from nmt.recipe.corpus_contradictions import ENDINGS, NOT_READ, STDIN
from nmt.recipe.data_options import CorpusFiles

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
