"""Sources of a corpus: the files and datasets that the recipe names, and which of their columns are its sides.

Every complaint about files is found here, before any work; which lines are kept is decided in `filters.py`.
"""

import glob
import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from nmt.data.formats import (
    Column,
    Found,
    Loaded,
    Reading,
    check_column,
    count_records,
    names_in,
    read_columns,
    read_scores,
    read_text,
    shown,
    size_and_digest,
)
from nmt.data.lines import check_text, without_ending
from nmt.data.scripts import scripts_of
from nmt.data.text import split_of, undone
from nmt.errors import DataError
from nmt.files import sha256_of
from nmt.languages import language_of
from nmt.recipe.contradictions import ENDINGS, NOT_READ, names_of
from nmt.recipe.data_options import CorpusFiles, DataConfig, TrainingCorpus
from nmt.recipe.options import Recipe
from nmt.recipe.places import Origin, is_prepared

Facts = dict[str, Any]


@dataclass(frozen=True)
class Text:
    """One side of a source. `name` is what the user calls it.

    place: a file, a dataset, or lines in memory. form: text, dataset, or one of `ENDINGS`. column: where in a record
    the text stands, if it is not all there is. header: the first line of the file is none of the text. drop_flagged:
    lines that nmt-translate flagged are none. moses: the language of text that `text.undone` undresses.
    """

    name: str
    place: Path | Loaded | tuple[str, ...]
    form: str = "text"
    column: Column | None = None
    header: bool = False
    drop_flagged: bool = False
    moses: str | None = None

    def check(self) -> None:
        """Raise DataError if this cannot be read, as far as a look tells."""
        if not isinstance(self.place, tuple) and self.column is not None:
            check_column(self.place, self.form, self.column, header=self.header)
        elif isinstance(self.place, Path):
            check_text(self.place)

    def facts(self, known: dict[Path, tuple[int, str]]) -> Facts:
        """{"name", "n_line", "size", "sha256"}, and "column" where there is one: what tells this text from others.

        known: count and digest of files that were read before, and of this one from now on.
        """
        if isinstance(self.place, Loaded):
            assert self.column is not None
            n_line = count_records(self.place, self.form)
            size, digest = size_and_digest(self.place, self.column)
        elif isinstance(self.place, Path):
            if self.place not in known:
                known[self.place] = count_records(self.place, self.form), sha256_of(self.place)
            n_line, digest = known[self.place]
            n_line, size = max(0, n_line - self.header), self.place.stat().st_size
        else:
            content = "".join(line + "\n" for line in self.place).encode("utf-8")
            n_line, size, digest = len(self.place), len(content), hashlib.sha256(content).hexdigest()
        facts = {"name": self.name, "n_line": n_line, "size": size, "sha256": digest}
        if self.column is not None:
            facts["column"] = f"{self.form} {self.column!r}{', header' if self.header else ''}"
        if self.moses is not None:
            facts["column"] = f"{facts.get('column', self.form)}, unescaped as {self.moses}"
        return facts


@dataclass(frozen=True)
class Source:
    """Two texts in which line n of one translates line n of the other.

    split: train, which may have several; a validation set as `split_of` calls it; test. chosen: the files were found
    by a list or pattern, so the user will want to know which belong together. corpus: its number among those that the
    recipe names for the split, from 0; a corpus may have several sources. scores: a number for each pair. is_low: pairs
    to drop for theirs, see `with_low_scores`.
    """

    split: str
    src: Text
    trg: Text
    chosen: bool = False
    corpus: int = 0
    found_columns: bool = False  # by their names or order, not by the recipe
    scores: Text | None = None
    is_low: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool), compare=False)

    @property
    def first_number(self) -> int:
        """The number of the line of the source side that the first pair stands in."""
        return 1 + self.src.header

    def pairs(self, reading: Reading) -> Iterator[tuple[Found, Found]]:
        """All pairs. What is in one file is read in one go."""
        rows: Iterator[tuple[Found, ...]]
        if self.src.column is not None and self.src.place == self.trg.place:
            rows = _read_columns([self.src, self.trg], reading)
        else:
            rows = zip(_read(self.src, reading), _read(self.trg, reading), strict=True)
        if self.src.moses or self.trg.moses:
            rows = ((_undressed(src, self.src.moses), _undressed(trg, self.trg.moses)) for src, trg in rows)
        try:
            yield from cast("Iterator[tuple[Found, Found]]", rows)
        except ValueError:
            raise DataError(f"{self.src.name} or {self.trg.name} changed while it was read.") from None


def _read(text: Text, reading: Reading) -> Iterator[Found]:
    """One side that is alone in its place."""
    if isinstance(text.place, tuple):
        return iter(text.place)
    if text.column is not None:
        return (found for (found,) in _read_columns([text], reading))
    assert isinstance(text.place, Path)
    return read_text(text.place, reading)


def _read_columns(texts: Sequence[Text], reading: Reading) -> Iterator[tuple[Found, ...]]:
    """Some columns of one place."""
    text, columns = texts[0], [each.column for each in texts if each.column is not None]
    assert not isinstance(text.place, tuple)
    return read_columns(text.place, text.form, columns, reading, header=text.header, drop_flagged=text.drop_flagged)


def _undressed(found: Found, moses: str | None) -> Found:
    return undone(found, moses) if isinstance(found, str) and moses is not None else found


def find_sources(recipe: Recipe, translations: Mapping[int, Sequence[Path]] | None = None) -> list[Source]:
    """The texts of all splits. Files that cannot be read are refused, all at once.

    translations: files that nmt-translate wrote for training corpora with translated_by, by number; without, such a
    corpus has the text that is to be translated on both sides.
    """
    data = recipe.data
    named: list[tuple[str, CorpusFiles]] = [("train", files) for files in data.train]
    named += [(split_of(files.name), files) for files in data.valid]
    named += [("test", data.test)] if data.test else []
    none = "no files. Name two, in which line n of one translates line n of the other: {src: FILE, trg: FILE}."
    absent = [] if data.train else [f"data.train: {none}"]
    if not data.valid and not data.valid_size:
        absent.append(f"data.valid: {none} Or hold pairs out of training: data.valid_size: auto.")
    if absent:
        raise DataError("\n".join(absent))
    complaints: list[str] = []
    sources = []
    for number, (split, files) in enumerate(named):  # the training corpora come first
        languages = data.languages_of(number) if split == "train" else (data.src_lang, data.trg_lang)
        if translations is not None and isinstance(files, TrainingCorpus) and files.translated_by:
            found = []
            for path in translations[number]:
                made, given = (Text(str(path), path, "jsonl", key, drop_flagged=True) for key in ("output", "source"))
                found.append(Source(split, *((made, given) if files.back_translates else (given, made))))
        else:
            found = _sources_of(split, files, complaints, recipe.origin, languages)
        sources += [replace(source, corpus=number) for source in found]
    # Datasets last: to look into one may be to download it.
    for is_dataset in (False, True):
        for source in sources:
            for text in (source.src, source.trg):
                if isinstance(text.place, Loaded) == is_dataset:
                    try:
                        text.check()
                    except DataError as error:
                        complaints.append(f"data.{source.split.partition('-')[0]}: {error}")
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
    folders = origin.folders(option)

    def located(names: Any) -> list["Named"]:
        there = [_locate(name, option, complaints, folders) for name in names_of(names)]
        return [each._replace(wild=each.wild and (n, *each.wild)) for n, its in enumerate(there) for each in its]

    def scores_of(its: list["Named"]) -> Sequence["Named | None"]:
        if not isinstance(files, TrainingCorpus) or files.scores is None:
            return [None] * len(its)
        return [named for _, named in _partners(its, located(files.scores), option, complaints, of="scores")]

    if files.dataset is not None:
        assert files.split is not None, "the recipe was checked"
        there = (folder / files.dataset for folder in _folders(files.dataset, folders))
        name = str(next((path for path in there if path.is_dir()), files.dataset))
        loaded = Loaded(name, files.subset, files.split)
        src, trg = (Text(str(loaded), loaded, "dataset", column) for column in (files.src_column, files.trg_column))
        return [Source(split, src, trg, scores=_scores_of(src, one, files)) for one in scores_of([Named(name, Path())])]
    is_one_file = files.file is not None
    if is_one_file or (isinstance(files, TrainingCorpus) and files.translated_by):
        together = [(named, named) for named in located(files.file or files.src or files.trg)]
    else:
        together = _partners(located(files.src), located(files.trg), option, complaints)
    finds_columns = is_one_file and files.src_column is None
    moses = [language_of(code).primary if files.unescape else None for code in languages]
    sources = []
    for pair, its_scores in zip(together, scores_of([src for src, _ in together]), strict=False):
        try:
            columns = _columns_in(pair[0], files, languages) if finds_columns else (files.src_column, files.trg_column)
            by_name = [isinstance(column, str) for column in columns]
            by_name[0] |= isinstance(getattr(files, "score_column", None), str) and its_scores is None
            by_name = [any(by_name)] * 2 if is_one_file else by_name
            src, trg = (_text_of(*side, files) for side in zip(pair, columns, by_name, moses, strict=True))
            scored = _scores_of(src, its_scores, files)
        except DataError as error:
            complaints.append(f"{option}: {error}")
            continue
        chosen = len(together) > 1 or pair[0].wild is not None
        sources.append(Source(split, src, trg, chosen, found_columns=finds_columns, scores=scored))
    return sources


def _text_of(named: "Named", column: Column | None, by_name: bool, moses: str | None, files: CorpusFiles) -> Text:
    """One side. by_name: columns of its file are chosen by name. moses: of `Text`."""
    form = files.format or form_of(named)
    if column is None:
        if files.format is None and form != "text":
            if isinstance(files, TrainingCorpus) and files.translated_by:
                raise DataError(
                    f"{named.name}: {form}, but translated_by takes text, a sentence a line. Name such a file, or "
                    "write format: text if this is one."
                )
            raise DataError(
                f"{named.name} is source and target. A file with both sides is named once: --train FILE, or file: in a "
                "recipe."
                if files.src == files.trg
                else f"{named.name}: {form} has columns or keys: which one is it? Choose it with src_column and "
                "trg_column, or write format: text if its lines are sentences."
            )
        return Text(named.name, named.path, moses=moses)
    if form == "text":
        raise DataError(
            f"{named.name}: a column is chosen, but the name does not tell what is in the file. Add format: tsv, "
            "jsonl, csv, tmx, parquet or arrow."
        )
    has_header = form in ("tsv", "csv")
    drop_flagged = isinstance(files, TrainingCorpus) and files.drop_flagged
    if files.header is not None and not has_header:
        raise DataError(f"{named.name}: header is for TSV and CSV, and this is {form}. Remove it.")
    if drop_flagged and form != "jsonl":
        raise DataError(f"{named.name}: drop_flagged is for JSONL, and this is {form}. Remove it.")
    header = has_header and (by_name if files.header is None else files.header)
    return Text(named.name, named.path, form, column, header, drop_flagged, moses)


def _scores_of(src: Text, named: "Named | None", files: CorpusFiles) -> Text | None:
    """The scores of a source: in files of their own, or in a column beside those of src; None if it has none."""
    if not isinstance(files, TrainingCorpus) or (files.scores is None and files.score_column is None):
        return None
    column, form = files.score_column, form_of(named) if named else src.form
    if (column is None) != (form == "text"):
        if named is None:
            raise DataError(f"{src.name}: text has no column of scores: name the file that has them in scores.")
        what = "text has no columns: remove score_column, or let the name end in .tsv, .csv or .jsonl"
        what = f"choose the column of the {form}: score_column" if column is None else what
        raise DataError(f"{named.name}: has the scores, but {what}.")
    if named is None:
        return replace(src, column=column, drop_flagged=False, moses=None)
    return Text(named.name, named.path, form, column, isinstance(column, str) and form in ("tsv", "csv"))


def with_low_scores(sources: Sequence[Source], data: DataConfig) -> list[Source]:
    """Read all scores and return the sources with what min_score and best_share of their corpora drop.

    The best share of a corpus is that of all of its sources; what is as good as the last pair of it is kept, too. Pairs
    without a score are dropped, and are in no share.
    """
    found, scores = list(sources), dict[int, NDArray[np.float64]]()
    for n, source in enumerate(sources):
        if text := source.scores:
            is_own = text.place in (source.src.place, source.trg.place)
            scores[n] = read_scores(cast(Path, text.place), text.form, text.column, header=text.header, is_own=is_own)
    for corpus in {sources[n].corpus for n in scores}:
        its = {n: numbers for n, numbers in scores.items() if sources[n].corpus == corpus}
        own, every = data.train[corpus], np.concatenate([*its.values()])
        every = every[~np.isnan(every)]
        least = -np.inf if own.min_score is None else own.min_score
        if own.best_share and len(every):
            n_kept = max(1, round(own.best_share * len(every)))
            least = max(least, np.partition(every, -n_kept)[-n_kept])
        for n, numbers in its.items():
            found[n] = replace(found[n], is_low=~(numbers >= least))
    return found


# From the names in a recipe to files.
_WILD = re.compile(r"(\*|\?|\[[^\]]+\])")


class Named(NamedTuple):
    """A file as it is called, and where it is. wild: the number of its pattern, and what the wildcards stood for."""

    name: str
    path: Path
    wild: tuple[int | str, ...] | None = None


def _locate(name: str, option: str, complaints: list[str], before: Sequence[Path]) -> list[Named]:
    """The files of a name, a pattern's in the order of their names. What is not there is complained about.

    before: folders to look in before the one that NMT_DATA names.
    """
    folders, is_pattern = _folders(name, before), _WILD.search(name) is not None
    for folder in folders:
        if (folder / name).exists() and not is_prepared(folder / name):  # which may have the name of its corpus
            return [Named(name, folder / name)]
    for folder in folders if is_pattern else ():
        if found := sorted(glob.glob(name, root_dir=folder)):
            if odd := [each for each in found if each.encode("utf-8", "replace").decode("utf-8") != each]:
                complaints.append(f"{option}: {odd[0]!r} is a name that is not UTF-8. Rename the file.")
                return []
            # Which files match has been decided; a bracket only has to tell which letter it stood for.
            parts = enumerate(_WILD.split(name))
            shape = "".join(("([^/]*)" if part == "*" else "([^/])") if n % 2 else re.escape(part) for n, part in parts)
            matched = ((each, re.fullmatch(shape, each, re.DOTALL)) for each in found)
            return [
                Named(each, folder / each, tuple(map(without_ending, match.groups())) if match else None)
                for each, match in matched
            ]
    places = " and ".join(str((folder / name).absolute()) for folder in folders)
    plain = not os.environ.get("NMT_DATA") and not Path(name).is_absolute()
    hint = " (NMT_DATA, one more folder to look in, is not set)" if plain else ""
    what = "no file matches" if is_pattern else "no file"
    complaints.append(f"{option}: {what} {name}: tried {places}{hint}.".replace("\n", "\\n"))
    return []


def _folders(name: str, before: Sequence[Path]) -> list[Path]:
    if Path(name).is_absolute():
        return [Path()]
    return [*before, *map(Path, filter(None, [os.environ.get("NMT_DATA")]))]


def _partners(
    src: Sequence[Named], trg: Sequence[Named], option: str, complaints: list[str], of: str = "trg"
) -> list[tuple[Named, Named]]:
    """Pairs of source and target files: those for which wildcards of two patterns, at one place of two lists, stand for
    the same; else the first to the first, and so on. None where files are not there, which was complained about.
    of: what trg stands for.
    """
    # What wildcards stand for tells alone, unless several patterns of a side stand for the same.
    is_same = any(len({named.wild and named.wild[1:] for named in side}) < len(side) for side in (src, trg))
    by_wild = [{named.wild and named.wild[not is_same :]: named for named in side} for side in (src, trg)]
    n_wild = {len(wild or ()) for side in by_wild for wild in side}
    if len(src) + len(trg) > 2 and len(n_wild) == 1 and n_wild != {0}:
        alone = [named.name for n in range(2) for wild, named in by_wild[n].items() if wild not in by_wild[1 - n]]
        if alone:
            more = f", and {len(alone) - 5:,} more" if len(alone) > 5 else ""
            complaints.append(f"{option}: no partner in src or {of} for {', '.join(alone[:5])}{more}.")
        return [(named, by_wild[1][wild]) for wild, named in by_wild[0].items() if wild in by_wild[1]]
    if src and trg and len(src) != len(trg):
        complaints.append(
            f"{option}: {len(src):,} files of src, first {src[0].name}, but {len(trg):,} of {of}, first {trg[0].name}. "
            "Each must have its partner: file n of one belongs to file n of the other."
        )
    return list(zip(src, trg, strict=False))


# The columns of both sides in one file.
_SIDES = (("source", "target"), ("src", "trg"), ("src", "tgt"), ("source_text", "target_text"))


def form_of(named: Named) -> str:
    """Return what is in a file, by its name."""
    plain = without_ending(named.name).lower()
    return next((form for ending, form in ENDINGS.items() if plain.endswith(ending)), "text")


def _columns_in(named: Named, files: CorpusFiles, languages: tuple[str, str]) -> tuple[Column, Column]:
    """The columns of a file with both sides where the recipe names none, by name where its head names them."""
    form = files.format or form_of(named)
    if form == "text":
        plain = without_ending(named.name).lower()
        what = next((f"is {why}" for ending, why in NOT_READ.items() if plain.endswith(ending)), "")
        told = what or "in which form, and which columns? Name src_column and trg_column, and format"
        raise DataError(f"{named.name}: {told} (docs/data.md).")
    names = names_in(named.path, form)
    if found := columns_by_name(names, languages):
        return found
    if form in ("tsv", "csv") and len(names) == 2 and not files.header:
        return 1, 2
    what = {"tmx": "languages", "jsonl": "keys"}.get(form, "columns")
    raise DataError(
        f"{named.name}: which of its {what} are {languages[0]} and {languages[1]}? There are {shown(names)}. Name "
        f"others with --langs, or the {what} in a recipe: src_column and trg_column."
    )


def columns_by_name(names: Sequence[str], languages: tuple[str, str]) -> tuple[str, str] | None:
    """The columns, keys or languages that two sides are in, by their names; None where the names do not tell.

    Names are codes of the languages, in any form and with any region, their English names, or source and target.
    """
    known = {name: [language_of(part) for part in (name, name.rpartition(".")[2])] for name in names}
    for form in attrgetter("code"), attrgetter("primary"):  # exact, or whatever the script and region
        sides = [[name for name, of in known.items() if form(language_of(side)) in map(form, of)] for side in languages]
        if len(sides[0]) == len(sides[1]) == 1 and sides[0] != sides[1]:
            return sides[0][0], sides[1][0]
    folded = {name.strip().casefold().replace(" ", "_"): name for name in names}
    return next(((folded[src], folded[trg]) for src, trg in _SIDES if {src, trg} <= folded.keys()), None)


def told(sources: Iterable[Source]) -> Iterator[str]:
    """Lines that tell which files and columns are which, where the recipe leaves it open."""
    for source in sources:
        if source.found_columns:
            columns = f"{source.src.column!r} and {source.trg.column!r}"
            head = "" if isinstance(source.src.column, str) else ", in this order: no header names the languages"
            yield f"{source.split}: {source.src.name}: source and target are {columns}{head}"
        if source.chosen:
            other = "" if source.src.name == source.trg.name else f" with {source.trg.name}"
            if source.scores and source.scores.name != source.src.name:
                other += f", scores {source.scores.name}"
            yield f"{source.split}: {source.src.name}{other}"
        if isinstance(source.src.place, Path) and source.src.place == source.trg.place and source.src.column is None:
            yield f"WARNING: {source.split}: {source.src.name} is source and target: nothing is translated there"


def facts_of(sources: Iterable[Source]) -> list[Facts]:
    """The facts of each text, with its split and side. Unequal line counts and empty files are refused, all at once."""
    inputs: list[Facts] = []
    complaints = []
    known: dict[Path, tuple[int, str]] = {}
    for source in sources:
        src, trg = source.src.facts(known), source.trg.facts(known)
        inputs += [{"split": source.split, "side": "src", **src}, {"split": source.split, "side": "trg", **trg}]
        if source.scores:
            scores = source.scores.facts(known)
            inputs.append({"split": source.split, "side": "scores", **scores})
            if scores["n_line"] != src["n_line"]:
                advice = "Line n of one must be the score of line n of the other."
                if isinstance(source.scores.column, int) and scores["n_line"] == src["n_line"] + 1:
                    advice = "If line 1 names the columns, choose the column by its name: score_column."
                n_line = f"{scores['n_line']:,} scores but {src['name']} has {src['n_line']:,} lines"
                complaints.append(f"{scores['name']} has {n_line}. {advice}")
        if src["n_line"] != trg["n_line"]:
            complaints.append(
                f"{src['name']} has {src['n_line']:,} lines but {trg['name']} has {trg['n_line']:,}. Line 1 of one "
                "must translate line 1 of the other, and so on: look for a cut download or a stray line break."
            )
        elif not src["n_line"]:
            complaints.append(f"no lines in {' and '.join(dict.fromkeys((src['name'], trg['name'])))}.")
    if complaints:
        raise DataError("\n".join(complaints))
    return inputs


def stamps_of(sources: Iterable[Source]) -> dict[Path, tuple[int, int]]:
    """Size and time of all files. They are read more than once: who compares these at the end knows of a change."""
    paths = (text.place for one in sources for text in (one.src, one.trg, one.scores) if text)
    stats = {path: path.stat() for path in paths if isinstance(path, Path) and path.exists()}
    return {path: (found.st_size, found.st_mtime_ns) for path, found in stats.items()}


def unknown_languages(data: DataConfig) -> list[str]:
    """The languages of training corpora whose letters are to be looked at, but of which no script is known."""
    looked_at = [data.languages_of(n) for n in range(len(data.train)) if data.filters_of(n).min_script]
    return [language for language in dict.fromkeys(itertools.chain(*looked_at)) if not scripts_of(language)]
