"""What is wrong with a corpus as a recipe names it: where its two sides stand, and in which form.

What is wrong with the files themselves is found when they are looked for.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nmt.recipe.data_options import CorpusFiles, DataConfig, TrainingCorpus

# The file that stands for standard input.
STDIN = "-"
# What is in a file, by the ending of its name less .gz and the like; anything else is text.
ENDINGS = {
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".csv": "csv",
    ".tmx": "tmx",
}
# What is not read, and how it becomes what is.
NOT_READ = {
    ".xlsx": "a spreadsheet. Save it as CSV in UTF-8, and name that",
    ".xls": "a spreadsheet. Save it as CSV in UTF-8, and name that",
    ".ods": "a spreadsheet. Save it as CSV in UTF-8, and name that",
    ".xlf": "XLIFF. Make CSV of it with the Translate Toolkit: xliff2po IN OUT.po; po2csv OUT.po OUT.csv",
    ".xliff": "XLIFF. Make CSV of it with the Translate Toolkit: xliff2po IN OUT.po; po2csv OUT.po OUT.csv",
}


def names_of(files: str | list[str] | None) -> list[str]:
    """The names of an option that takes one or several."""
    return [files] if isinstance(files, str) else files or []


def find_corpus_contradictions(data: "DataConfig") -> Iterator[str]:
    """Complaints about each corpus, as those of `contradictions.py`."""
    named: list[tuple[str, CorpusFiles]] = [
        *((f"data.train.{n}", files) for n, files in enumerate(data.train)),
        *((f"data.valid.{n}", files) for n, files in enumerate(data.valid)),
        *([("data.test", data.test)] if data.test else []),
    ]
    yield from _of_filters("data", data.max_ratio)
    for n, corpus in enumerate(data.train):
        yield from _of_filters(f"data.train.{n}", getattr(corpus, "max_ratio", None) or 0.0)
        yield from _of_flags(f"data.train.{n}", corpus)
    n_stdin = 0
    for where, files in named:
        yield from _of_place(where, files)
        yield from _of_columns(where, files)
        for option, names in (("src", files.src), ("trg", files.trg), ("file", files.file)):
            n = names_of(names).count(STDIN)
            n_stdin += n
            if n and not where.startswith("data.train"):
                yield f"{where}.{option}: {STDIN} is stdin, which only a training corpus can be read from (name a file)"
            elif n and n_stdin > 1:
                yield f"{where}.{option}: stdin, {STDIN}, is read already (there is only one; name a file)"


def _of_place(where: str, files: "CorpusFiles") -> Iterator[str]:
    """There is one place that the pairs come from."""
    sides = {"src": files.src, "trg": files.trg}
    whole = {"file": files.file, "dataset": files.dataset}
    given = {name for name, value in {**sides, **whole}.items() if value is not None}
    for name in sorted(given):
        if getattr(files, name) in ("", []) or "" in names_of(getattr(files, name)):
            yield f"{where}.{name}: no name in it (expected a file)"
    if len(given & {"file", "dataset"}) == 2:
        yield f"{where}.dataset: {where}.file is given as well (remove one of the two)"
    elif one := next(iter(given & set(whole)), None):
        for side in sorted(given & set(sides)):
            yield (
                f"{where}.{side}: a file beside {where}.{one}, which has both sides (remove it; where in it the side "
                f"stands is for {where}.{side}_column to say)"
            )
    else:
        for side in sides:
            if side not in given:
                yield f"{where}.{side}: missing (expected a file; or {{file: …}} or {{dataset: …}} with both sides)"
    if files.dataset is None:
        for name in ("subset", "split"):
            if getattr(files, name) is not None:
                yield f"{where}.{name}: there is no {where}.dataset to choose from (remove it)"
    elif files.split is None:
        yield f"{where}.split: missing (expected the split of the dataset: train, validation, …)"


def _of_columns(where: str, files: "CorpusFiles") -> Iterator[str]:
    """It is said where in a file or dataset the sides stand."""
    has_both = files.file is not None or files.dataset is not None
    none = files.src_column is None and files.trg_column is None
    for side in ("src", "trg"):
        # Those of a file are found by their names.
        if has_both and not (none and files.file is not None) and getattr(files, f"{side}_column") is None:
            yield f"{where}.{side}_column: missing (expected the name of a column or key, or in TSV its number from 1)"
    if has_both and files.src_column is not None and files.src_column == files.trg_column:
        yield f"{where}.trg_column: {files.trg_column} is {where}.src_column, too (the two sides stand in two columns)"
    columns = [column for column in (files.src_column, files.trg_column) if column is not None]
    if files.format == "text":
        for name in ("file", "src_column", "trg_column"):
            if getattr(files, name) is not None:
                yield f"{where}.{name}: {where}.format is text, which has one sentence a line and no columns"
    elif files.format is not None and files.dataset is not None:
        yield f"{where}.format: a dataset says itself what is in it (remove it)"
    elif files.format is not None and not columns and files.file is None:
        yield f"{where}.format: {files.format}, but no column is chosen (add {where}.src_column or trg_column)"
    if files.format not in (None, "tsv", "csv") and files.header is not None:
        yield f"{where}.header: only TSV and CSV have one, but {where}.format is {files.format} (remove it)"
    if files.header is False and (names := [column for column in columns if isinstance(column, str)]):
        yield f"{where}.header: without one {names[0]!r} names no column (give its number, from 1)"


def _of_filters(where: str, max_ratio: float) -> Iterator[str]:
    if 0 < max_ratio < 1:
        yield (
            f"{where}.max_ratio: {max_ratio:g} is below 1, but the ratio is that of the longer side to the shorter "
            "one (write 1 or more; 0 allows any ratio)"
        )


def _of_flags(where: str, corpus: "TrainingCorpus") -> Iterator[str]:
    """Flags stand in JSONL and nowhere else."""
    if not corpus.drop_flagged:
        return
    columns = [column for column in (corpus.src_column, corpus.trg_column) if column is not None]
    if corpus.dataset is not None or corpus.format not in (None, "jsonl") or not columns:
        what = f"{where}.dataset" if corpus.dataset is not None else f"{where}.format"
        found = "a dataset" if corpus.dataset is not None else corpus.format or "lines of text"
        yield (
            f"{where}.drop_flagged: flags stand in the JSONL of nmt-translate, but {what} says that this is {found} "
            "(write the translations with --format jsonl and choose the keys with src_column and trg_column, or remove "
            "this)"
        )
