"""Sources of a corpus: the files and datasets that the recipe names.

Every complaint about files is found here, before any work; which lines are kept is decided in `filters.py`.
"""

import contextlib
import hashlib
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nmt.data.formats import (
    Column,
    Found,
    Reading,
    complaint_about_document,
    complaint_about_records,
    count_records,
    read_documents,
    read_records,
)
from nmt.data.forms import (
    DOCUMENTS,
    RECORDS,
    TABLES,
    Loaded,
    Named,
    columns_in,
    complaint_about_table,
    count_rows,
    dataset_place,
    form_of,
    locate,
    partners,
    read_rows,
    size_and_digest,
)
from nmt.data.lines import complaint_about, complaint_about_stream, count_and_digest, count_lines, read_lines
from nmt.data.manifest import beside
from nmt.data.scripts import has_enough_letters, identifier, languages_like, scripts_of
from nmt.data.text import split_of, undone
from nmt.errors import DataError
from nmt.extras import is_installed
from nmt.files import sha256_of
from nmt.languages import language_of
from nmt.progress import Bar
from nmt.recipe.contradictions import STDIN, names_of
from nmt.recipe.data_options import CorpusFiles, DataConfig, TrainingCorpus
from nmt.recipe.options import Recipe
from nmt.recipe.places import Origin

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Text:
    """One side of a source. `name` is what the user calls it.

    place: a file, a dataset, or lines in memory. form: text, dataset, or one of `forms.py`. column: where in a line or
    row the text stands, if it is not all there is. header: the first line of the file is none of the text.
    drop_flagged: lines that nmt-translate flagged are none. moses: the language of text that `text.py` undresses.
    """

    name: str
    place: Path | Loaded | tuple[str, ...] | None = None
    form: str = "text"
    column: Column | None = None
    header: bool = False
    drop_flagged: bool = False
    moses: str | None = None

    @property
    def is_stdin(self) -> bool:
        """Return whether this is still to come from standard input."""
        return self.place == Path(STDIN)

    @property
    def first_number(self) -> int:
        """The number of the first line or row that holds a text."""
        return 2 if self.header else 1

    def read(self, reading: Reading) -> Iterator[Found]:
        """The text of each line or row; as many as `facts` counts."""
        return (self.undressed(found) for (found,) in _read([self], reading))

    def undressed(self, found: Found) -> Found:
        """Return what was found, as the recipe wants it read."""
        return undone(found, self.moses) if isinstance(found, str) and self.moses is not None else found

    def complaint(self) -> str | None:
        """Return why this cannot be read, as far as a look tells."""
        if self.place is None or isinstance(self.place, tuple) or self.is_stdin:
            return None
        if isinstance(self.place, Loaded) or self.form in TABLES:
            return _missing(self.place) or complaint_about_table(self.place, self._columns())
        if complaint := complaint_about(self.place):
            return complaint
        if self.form in RECORDS:
            found = complaint_about_records(
                self.place, self.form, self._columns(), header=self.header, drop_flagged=self.drop_flagged
            )
            return f"{self.place}: {found}" if found else None
        if self.form in DOCUMENTS:
            found = complaint_about_document(self.place, self.form, self._columns())
            return f"{self.place}: {found}" if found else None
        return None

    def facts(self, known: dict[Path, tuple[int, str]]) -> dict[str, Any]:
        """{"name", "n_line", "size", "sha256"}, and "column" where there is one: what tells this text from others.

        known: count and digest of files that were read before, and of this one from now on.
        """
        if isinstance(self.place, Loaded):
            (column,) = self._columns()
            n_line = count_rows(self.place)
            size, digest = size_and_digest(self.place, column)
        elif isinstance(self.place, Path):
            if self.place not in known:
                known[self.place] = self._count_and_digest()
            n_line, digest = known[self.place]
            n_line, size = max(0, n_line - self.header), self.place.stat().st_size
        else:
            content = "".join(line + "\n" for line in self.place or ()).encode("utf-8")
            n_line, size, digest = len(self.place or ()), len(content), hashlib.sha256(content).hexdigest()
        facts = {"name": self.name, "n_line": n_line, "size": size, "sha256": digest}
        if self.column is not None:
            facts["column"] = f"{self.form} {self.column!r}{', header' if self.header else ''}"
        if self.moses is not None:
            facts["column"] = f"{facts.get('column', self.form)}, unescaped as {self.moses}"
        return facts

    def _count_and_digest(self) -> tuple[int, str]:
        """Lines, rows or records of the file, and its SHA-256."""
        assert isinstance(self.place, Path)
        if self.form not in (*DOCUMENTS, *TABLES):
            return count_and_digest(self.place)
        n = count_records(self.place, self.form) if self.form in DOCUMENTS else count_rows(self.place)
        return n, sha256_of(self.place)

    def _columns(self) -> tuple[Column, ...]:
        return () if self.column is None else (self.column,)


def _missing(place: Path | Loaded) -> str | None:
    if not isinstance(place, Path):
        return None
    return f"{place}: is a folder; expected a file." if place.is_dir() else complaint_about_stream(place)


@dataclass(frozen=True)
class Source:
    """Two texts in which line n of one translates line n of the other.

    split: train, which may have several; a validation set as `split_of` calls it; test. chosen: the files were found
    by a list or pattern, so the user will want to know which belong together. corpus: its number among those that the
    recipe names for the split, from 0; a corpus may have several sources.
    """

    split: str
    src: Text
    trg: Text
    chosen: bool = False
    corpus: int = 0
    found_columns: bool = False  # by their names or order, not by the recipe

    @property
    def first_number(self) -> int:
        """The number of the line of the source side that the first pair stands in."""
        return self.src.first_number

    def pairs(self, reading: Reading) -> Iterator[tuple[Found, Found]]:
        """All pairs. What is in one file is read in one go."""
        if self.src.column is not None and self.src.place == self.trg.place:
            both = _read([self.src, self.trg], reading)
            return ((self.src.undressed(src), self.trg.undressed(trg)) for src, trg in both)
        return self._together(self.src.read(reading), self.trg.read(reading))

    def _together(self, src: Iterator[Found], trg: Iterator[Found]) -> Iterator[tuple[Found, Found]]:
        try:
            yield from zip(src, trg, strict=True)
        except ValueError:
            raise DataError(f"{self.src.name} or {self.trg.name} changed while it was read.") from None


def _read(texts: list[Text], reading: Reading) -> Iterator[tuple[Found, ...]]:
    """Some columns of one place."""
    text = texts[0]
    columns = [each.column for each in texts if each.column is not None]
    if isinstance(text.place, Loaded):
        return read_rows(text.place, columns, reading)
    if isinstance(text.place, Path):
        if text.form in TABLES:
            return read_rows(text.place, columns, reading)
        if text.form in RECORDS:
            how = {"header": text.header, "drop_flagged": text.drop_flagged}
            return read_records(text.place, text.form, columns, reading, **how)
        if text.form in DOCUMENTS:
            return read_documents(text.place, text.form, columns, reading, header=text.header)
        lines = read_lines(text.place, bad_utf8=reading.bad_utf8, longest=reading.longest, notes=reading.notes)
        return ((line,) for line in lines)
    return ((line,) for line in text.place or ())


def find_sources(recipe: Recipe) -> list[Source]:
    """The texts of all splits. Files that cannot be read are refused, all at once."""
    data = recipe.data
    named: list[tuple[str, CorpusFiles]] = [("train", files) for files in data.train]
    named += [(split_of(files.name), files) for files in data.valid]
    named += [("test", data.test)] if data.test else []
    needed = {"train": data.train, "valid": data.valid or data.valid_size}
    if absent := [option for option, files in needed.items() if not files]:
        raise DataError(
            "\n".join(
                f"data.{split}: no files. Name two, in which line n of one translates line n of the other: "
                "{src: FILE, trg: FILE}."
                + (" Or hold pairs out of training: data.valid_size: auto." if split == "valid" else "")
                for split in absent
            )
        )
    complaints: list[str] = []
    sources = []
    for number, (split, files) in enumerate(named):  # the training corpora come first
        languages = data.languages_of(number) if split == "train" else (data.src_lang, data.trg_lang)
        found = _sources_of(split, files, complaints, recipe.origin, languages)
        sources += [replace(source, corpus=number) for source in found]
    # Datasets last: to look into one may be to download it.
    for is_dataset in (False, True):
        for source in sources:
            for text in (source.src, source.trg):
                if isinstance(text.place, Loaded) == is_dataset and (complaint := text.complaint()):
                    complaints.append(f"data.{source.split.partition('-')[0]}: {complaint}")
        if complaints:
            if any("no file multi30k" in complaint for complaint in complaints):
                complaints.append(
                    "Multi30k is downloaded by: bash tools/download_multi30k.sh (which says how to go on)."
                )
            raise DataError("\n".join(dict.fromkeys(complaints)))
    return sources


def _sources_of(
    split: str, files: CorpusFiles, complaints: list[str], origin: Origin, languages: tuple[str, str]
) -> list[Source]:
    """A corpus as the recipe names it, as sources: a pair of files each, or a file or dataset with both sides."""
    option = f"data.{split.partition('-')[0]}"
    columns, folders = (files.src_column, files.trg_column), origin.folders(option)
    if files.dataset is not None:
        assert files.split is not None, "the recipe was checked"
        loaded = Loaded(dataset_place(files.dataset, folders), files.subset, files.split)
        src, trg = (Text(str(loaded), loaded, "dataset", column) for column in columns)
        return [Source(split, src, trg)]
    if files.file is not None:
        found = locate(names_of(files.file), option, complaints, folders)
        together = [(named, named) for named in found]
        names_columns = (any(isinstance(column, str) for column in columns),) * 2
    else:
        sides = [locate(names_of(names), option, complaints, folders) for names in (files.src, files.trg)]
        together = partners(sides[0], sides[1], option, complaints)
        names_columns = isinstance(columns[0], str), isinstance(columns[1], str)
    sources = []
    for pair in together:
        if files.file is not None and files.src_column is None:
            found_there = columns_in(pair[0], files, languages, option, complaints)
            if found_there is None:
                continue
            columns, header = found_there
            names_columns = (header, header)
        src, trg = (
            _text_of(named, column, files, named_column, option, complaints)
            for named, column, named_column in zip(pair, columns, names_columns, strict=True)
        )
        if files.unescape:
            src, trg = (
                replace(text, moses=language_of(code).primary) for text, code in zip((src, trg), languages, strict=True)
            )
        found_columns = files.file is not None and files.src_column is None
        chosen = len(together) > 1 or pair[0].wild is not None
        sources.append(Source(split, src, trg, chosen, found_columns=found_columns))
    return sources


def _text_of(
    named: Named, column: Column | None, files: CorpusFiles, names_columns: bool, option: str, complaints: list[str]
) -> Text:
    form, by_name = files.format or form_of(named), form_of(named)
    if column is None:
        if files.format is None and by_name != "text" and files.src == files.trg:
            complaints.append(
                f"{option}: {named.name} is source and target. A file with both sides is named once: --train FILE, or "
                "file: in a recipe."
            )
        elif files.format is None and by_name != "text":
            complaints.append(
                f"{option}: {named.name}: {by_name} has columns or keys: which one is it? Choose it with src_column "
                "and trg_column, or write format: text if its lines are sentences."
            )
        return Text(named.name, named.path)
    if form == "text":
        complaints.append(
            f"{option}: {named.name}: a column is chosen, but the name does not tell what is in the file. Add format: "
            "tsv, jsonl, csv, tmx, parquet or arrow."
        )
        return Text(named.name, named.path)
    header = form in ("tsv", "csv") and (names_columns if files.header is None else files.header)
    if files.header is not None and form not in ("tsv", "csv"):
        complaints.append(f"{option}: {named.name}: header is for TSV and CSV, and this is {form}. Remove it.")
    drop_flagged = isinstance(files, TrainingCorpus) and files.drop_flagged
    if drop_flagged and form != "jsonl":
        complaints.append(f"{option}: {named.name}: drop_flagged is for JSONL, and this is {form}. Remove it.")
        drop_flagged = False
    return Text(named.name, named.path, form, column, header, drop_flagged)


def told(sources: Iterable[Source]) -> Iterator[str]:
    """Lines that tell which files and columns are which, where the recipe leaves it open."""
    for source in sources:
        if source.found_columns:
            columns = f"{source.src.column!r} and {source.trg.column!r}"
            head = "" if isinstance(source.src.column, str) else ", in this order: no header names the languages"
            yield f"{source.split}: {source.src.name}: source and target are {columns}{head}"
        if source.chosen and source.src.name == source.trg.name:
            yield f"{source.split}: {source.src.name}"
        elif source.chosen:
            yield f"{source.split}: {source.src.name} with {source.trg.name}"
        if isinstance(source.src.place, Path) and source.src.place == source.trg.place and source.src.column is None:
            yield f"WARNING: {source.split}: {source.src.name} is source and target: nothing is translated there"


Facts = dict[str, Any]


def facts_of(sources: Iterable[Source]) -> Iterator[tuple[Facts, Facts]]:
    """The facts of both texts of each source."""
    known: dict[Path, tuple[int, str]] = {}
    for source in sources:
        yield source.src.facts(known), source.trg.facts(known)


def survey(sources: Iterable[Source], facts: Iterable[tuple[Facts, Facts]]) -> list[Facts]:
    """The facts of each text, with its split and side. Unequal line counts and empty files are refused, all at once."""
    inputs: list[Facts] = []
    complaints = []
    for source, (src, trg) in zip(sources, facts, strict=True):
        inputs += [{"split": source.split, "side": "src", **src}, {"split": source.split, "side": "trg", **trg}]
        if src["n_line"] != trg["n_line"]:
            complaints.append(
                f"{src['name']} has {src['n_line']:,} lines but {trg['name']} has {trg['n_line']:,}. Line 1 of one "
                "must translate line 1 of the other, and so on: look for a cut download or a stray line break."
            )
        elif not src["n_line"]:
            names = dict.fromkeys((src["name"], trg["name"]))
            complaints.append(f"no lines in {' and '.join(names)}.")
    if complaints:
        raise DataError("\n".join(complaints))
    return inputs


def stamps_of(sources: Iterable[Source]) -> dict[Path, tuple[int, ...]]:
    """Return what changes in a file's entry when it is written to or replaced. For `refuse_changed`."""
    paths = (text.place for source in sources for text in (source.src, source.trg))
    return {path: _stamp(path) for path in paths if isinstance(path, Path)}


def refuse_changed(stamps: dict[Path, tuple[int, ...]]) -> None:
    """DataError for files that changed since: they are read more than once, and the first time they are hashed."""
    if changed := [str(path) for path, stamp in stamps.items() if _stamp(path) != stamp]:
        raise DataError(
            f"{', '.join(changed)}: changed while it was read. Prepare again when nothing else writes to it."
        )


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@contextlib.contextmanager
def spooled(sources: Sequence[Source], folder: Path, talk: Callable[[str], None]) -> Iterator[Sequence[Source]]:
    """Context manager: the sources, with a file in place of stdin, which can be read only once.

    talk: is told how much has come.
    """
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


# Oddities in the languages of a recipe.
N_LINE = 200  # whose language is looked at
_FEWEST, _NEARLY_ALL, _CERTAIN = 50, 0.8, 0.9
_LONGEST_LINE = 10_000
_LONGEST = 100  # bytes of a text that is compared with a code


def unknown_languages(data: DataConfig) -> list[str]:
    """The languages of training corpora whose letters are to be looked at, but of which no script is known."""
    named = [
        language
        for n in range(len(data.train))
        if data.filters_of(n).min_script
        for language in data.languages_of(n)
        if not scripts_of(language)
    ]
    return list(dict.fromkeys(named))


def other_languages(sources: Sequence[Source], data: DataConfig) -> Iterator[str]:
    """Sides of training files whose first lines are nearly all in one language that is not theirs, as file:language.

    Asked where the package is installed and no filter asks it anyway.
    """
    if not is_installed("langid"):
        return
    identify, known = identifier()
    reading = Reading("drop", "drop", _LONGEST_LINE)
    for source in sources:
        if source.split != "train" or data.filters_of(source.corpus).max_other_language:
            continue
        pairs = list(itertools.islice(source.pairs(reading), N_LINE))
        for text, language, lines in zip(
            (source.src, source.trg), data.languages_of(source.corpus), zip(*pairs, strict=True), strict=False
        ):
            if known.isdisjoint({language_of(language).primary}):
                continue
            own = languages_like(language)
            told = [identify(line) for line in lines if isinstance(line, str) and has_enough_letters(line)]
            found = Counter(code for code, probability in told if probability > _CERTAIN and code not in own)
            if len(told) >= _FEWEST and found and found.most_common(1)[0][1] > _NEARLY_ALL * len(told):
                yield f"{text.name}:{found.most_common(1)[0][0]}"


def codes_as_text(sources: Sequence[Source], data: DataConfig) -> Iterator[str]:
    """Yield file:1 where the first line of TSV is taken for a pair, but names columns by the languages."""
    reading = Reading("drop", "drop", _LONGEST)
    for source in sources:
        texts = source.src, source.trg
        if all(isinstance(text.place, Path) and text.form == "tsv" and not text.header for text in texts):
            first = next(source.pairs(reading), ())
            found = [language_of(text.strip()).code if isinstance(text, str) else "" for text in first]
            if found == [data.src_lang, data.trg_lang]:
                yield f"{source.src.name}:{source.first_number}"
