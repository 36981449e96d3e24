"""Sources of a corpus: the files and datasets of the recipe, and the columns of their source and target texts.

All files are checked here, before any work. The filters that drop lines are in `filters.py`.
"""

import glob
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from nmt.data.formats import Column, HubDataset, Place, Reading, Text, TextOrFlaw, name_list, names_in, read_columns
from nmt.data.lines import without_ending
from nmt.data.scripts import scripts_of
from nmt.data.text import split_of
from nmt.errors import DataError
from nmt.languages import language_of
from nmt.recipe.contradictions import ENDINGS, NOT_READ, names_of
from nmt.recipe.data_options import CorpusFiles, DataConfig, TrainingCorpus
from nmt.recipe.options import Recipe
from nmt.recipe.places import is_prepared


class NamedFile(NamedTuple):
    """A file or dataset of the recipe. wild: the number of its pattern, and the text that each wildcard matched."""

    name: str
    place: Place
    wild: tuple[int | str, ...] | None = None

    @property
    def form(self) -> str:
        """The format by the name, see `Text`."""
        ending = Path(without_ending(self.name).lower()).suffix
        return "dataset" if isinstance(self.place, HubDataset) else ENDINGS.get(ending, "text")


@dataclass(frozen=True)
class Source:
    """Two parallel texts: line n of one translates line n of the other.

    split: train, test, or the split name of a validation set (`split_of`). Several sources may share a split.
    is_matched: the files come from a list or a pattern, so the pairing is reported to the user. corpus: number of the
    corpus among those of the split in the recipe, from 0; a corpus may have several sources. scores: a score for each
    pair. is_low: pairs to drop for a low score, see `with_low_scores`.
    """

    split: str
    src: Text
    trg: Text
    is_matched: bool = False
    corpus: int = 0
    has_inferred_columns: bool = False  # chosen by their names or order, not by the recipe
    scores: Text | None = None
    is_low: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool), compare=False)

    @property
    def first_number(self) -> int:
        """Line number of the first pair in the source text."""
        return 1 + self.src.header

    def place(self, number: int) -> str:
        """Return a line of the source text as FILE:NUMBER."""
        return f"{self.src.name}:{number}"

    def pairs(self, reading: Reading) -> Iterator[tuple[TextOrFlaw, TextOrFlaw]]:
        """Return all pairs. A file with both sides is read once."""
        if self.src.column is not None and self.src.place == self.trg.place:
            return cast("Iterator[tuple[TextOrFlaw, TextOrFlaw]]", read_columns([self.src, self.trg], reading))
        # The lines were counted. A file that became shorter since then is found by `stamps_of`.
        return zip(self.src.read(reading), self.trg.read(reading), strict=False)


def find_sources(recipe: Recipe, translations: Mapping[int, Sequence[Path]] | None = None) -> list[Source]:
    """Return the sources of all splits. Raises one DataError with the first problem of each corpus.

    translations: files that nmt-translate wrote for training corpora with translated_by, by corpus number. Without
    them, such a corpus has the untranslated text on both sides.
    """
    data = recipe.data
    corpora: list[tuple[str, CorpusFiles]] = [("train", files) for files in data.train]
    corpora += [(split_of(files.name), files) for files in data.valid]
    corpora += [("test", data.test)] if data.test else []
    advice = "no files. Name two, in which line n of one translates line n of the other: {src: FILE, trg: FILE}."
    complaints, sources = list[str](), list[Source]()
    if not data.train:
        complaints.append(f"data.train: {advice}")
    if not data.valid and not data.valid_size:
        complaints.append(f"data.valid: {advice} Or hold pairs out of training: data.valid_size: auto.")
    for number, (split, files) in enumerate(corpora):  # the training corpora come first
        option = f"data.{split.partition('-')[0]}"
        folders = [*recipe.origin.folders(option), *map(Path, filter(None, [os.environ.get("NMT_DATA")]))]
        languages = data.languages_of(number) if split == "train" else (data.src_lang, files.trg_lang or data.trg_lang)
        try:
            if translations is not None and isinstance(files, TrainingCorpus) and files.translated_by:
                found = list[Source]()
                for path in translations[number]:
                    keys = ("output", "source") if files.back_translates else ("source", "output")
                    src, trg = (Text(str(path), path, "jsonl", key, drop_flagged=True) for key in keys)
                    found.append(Source(split, src, trg))
            else:
                found = _sources_of(split, files, folders, languages)
            for text in (text for source in found for text in (source.src, source.trg)):
                if not (complaints and isinstance(text.place, HubDataset)):  # to check it may download it
                    text.check()
            sources += [replace(source, corpus=number) for source in found]
        except DataError as error:
            complaints.append(f"{option}: {error}")
    if any("no file multi30k" in complaint for complaint in complaints):
        complaints.append("To download Multi30k: bash tools/download_multi30k.sh (it prints the next steps).")
    if complaints:
        raise DataError("\n".join(dict.fromkeys(complaints)))
    return sources


def _sources_of(split: str, files: CorpusFiles, folders: Sequence[Path], languages: tuple[str, str]) -> list[Source]:
    """Return the sources of a corpus of the recipe: a pair of files each, or a file or dataset with both sides."""

    def locate_all(names: str | list[str] | None) -> list[NamedFile]:
        return [file for n, name in enumerate(names_of(names)) for file in _locate(n, name, folders)]

    if files.dataset is not None:
        assert files.split is not None, "the recipe was checked"
        paths = (folder / files.dataset for folder in folders)
        name = str(next((path for path in paths if path.is_dir()), files.dataset))
        dataset = HubDataset(name, files.subset, files.split)
        both_sides = NamedFile(str(dataset), dataset)
        pairs = [(both_sides, both_sides)]
    elif files.file is not None or (isinstance(files, TrainingCorpus) and files.translated_by):
        pairs = [(file, file) for file in locate_all(files.file or files.src or files.trg)]
    else:
        pairs = _file_pairs(locate_all(files.src), locate_all(files.trg), "trg")
    score_files: Sequence[NamedFile | None] = [None] * len(pairs)
    if isinstance(files, TrainingCorpus) and files.scores is not None:
        with_scores = _file_pairs([src for src, _ in pairs], locate_all(files.scores), "scores")
        score_files = [score_file for _, score_file in with_scores]
    infers_columns = files.file is not None and files.src_column is None
    moses = [language_of(code).primary if files.unescape else None for code in languages]
    sources = []
    for pair, score_file in zip(pairs, score_files, strict=True):
        columns = _columns_in(pair[0], files, languages) if infers_columns else (files.src_column, files.trg_column)
        by_name = [isinstance(column, str) for column in columns]
        by_name[0] |= isinstance(getattr(files, "score_column", None), str) and score_file is None
        by_name = [any(by_name)] * 2 if pair[0] == pair[1] else by_name
        src, trg = (_text_of(*side, files) for side in zip(pair, columns, by_name, moses, strict=True))
        scores = _scores_of(src, score_file, files)
        is_matched = len(pairs) > 1 or pair[0].wild is not None
        sources.append(Source(split, src, trg, is_matched, has_inferred_columns=infers_columns, scores=scores))
    return sources


def _text_of(file: NamedFile, column: Column | None, by_name: bool, moses: str | None, files: CorpusFiles) -> Text:
    """Return one side. by_name: columns of its file are chosen by name. moses: see `Text`."""
    form = files.format or file.form
    has_other_column = column is None and files.src_column != files.trg_column  # the other side is no text
    if column is None and form != "text" and not (files.format and has_other_column):
        raise DataError(
            f"{file.name}: {form} has columns or keys, and none is chosen. Choose one with src_column and trg_column, "
            "or write format: text if its lines are sentences. A file with both sides is named once: --train FILE, or "
            "file: in a recipe."
        )
    if column is not None and form == "text":
        raise DataError(
            f"{file.name}: a column is chosen, but the format is text, or not known from the name. Write format: tsv, "
            "json, jsonl, csv, tmx, parquet or arrow."
        )
    form = "text" if column is None else form
    may_have_header = form in ("tsv", "csv")
    drop_flagged = isinstance(files, TrainingCorpus) and files.drop_flagged and not files.translated_by
    if files.header is not None and not may_have_header and not has_other_column:
        raise DataError(f"{file.name}: header is for TSV and CSV, but this is {form}. Remove it.")
    if drop_flagged and form != "jsonl" and not has_other_column:
        raise DataError(f"{file.name}: drop_flagged is for JSONL, but this is {form}. Remove it.")
    header = may_have_header and (by_name if files.header is None else files.header)
    return Text(file.name, file.place, form, column, header, drop_flagged, moses)


def _scores_of(src: Text, score_file: NamedFile | None, files: CorpusFiles) -> Text | None:
    """Return the scores of a source, from score_file or from a column of the file of src; None if it has none."""
    if not isinstance(files, TrainingCorpus) or (files.scores is None and files.score_column is None):
        return None
    column, form = files.score_column, score_file.form if score_file else src.form
    if (column is None) != (form == "text"):
        advice = "text has no columns: remove score_column, or name a file of scores that ends in .tsv, .csv or .jsonl"
        advice = f"choose the column of the {form}: score_column" if column is None else advice
        raise DataError(f"{(score_file or src).name}: has the scores, but {advice}.")
    if score_file is None:
        return replace(src, column=column, drop_flagged=False, moses=None)
    return Text(score_file.name, score_file.place, form, column, isinstance(column, str) and form in ("tsv", "csv"))


def with_low_scores(sources: Sequence[Source], data: DataConfig) -> list[Source]:
    """Read all scores and return the sources with `is_low` set by min_score and best_share of their corpora.

    The best share is taken over all sources of a corpus. Pairs that tie with the last pair of the share are kept, too.
    Pairs without a score are dropped, and do not count for the share.
    """
    marked, scores = list(sources), dict[int, NDArray[np.float64]]()
    for n, source in enumerate(sources):
        if text := source.scores:
            scores[n] = text.scores(has_pairs=text.place in (source.src.place, source.trg.place))
    for corpus in {sources[n].corpus for n in scores}:
        corpus_scores = {n: source_scores for n, source_scores in scores.items() if sources[n].corpus == corpus}
        options, all_scores = data.train[corpus], np.concatenate([*corpus_scores.values()])
        all_scores = all_scores[~np.isnan(all_scores)]
        threshold = -np.inf if options.min_score is None else options.min_score
        if options.best_share and len(all_scores):
            n_kept = max(1, round(options.best_share * len(all_scores)))
            threshold = max(threshold, np.partition(all_scores, -n_kept)[-n_kept])
        for n, source_scores in corpus_scores.items():
            marked[n] = replace(marked[n], is_low=~(source_scores >= threshold))
    return marked


# From the names in a recipe to files.
_WILD = re.compile(r"(\*|\?|\[[^\]]+\])")


def _locate(number: int, name: str, folders: Sequence[Path]) -> list[NamedFile]:
    """Return the files of the name with a number in its list, or of a pattern, in the first folder with any, sorted."""
    is_pattern = _WILD.search(name) is not None
    for folder in folders:
        if (folder / name).exists() and not is_prepared(folder / name):  # prepared data may be named like its corpus
            return [NamedFile(name, folder / name)]
    for folder in folders if is_pattern else ():
        if names := sorted(glob.glob(name, root_dir=folder)):
            if odd := [entry for entry in names if entry.encode("utf-8", "replace").decode("utf-8") != entry]:
                raise DataError(f"the file name {odd[0]!r} is not UTF-8. Rename the file.")
            # `glob` has decided which files match. Here a bracket just captures the letter that it matched.
            parts = enumerate(_WILD.split(name))
            shape = "".join(("([^/]*)" if part == "*" else "([^/])") if n % 2 else re.escape(part) for n, part in parts)
            matches = (re.fullmatch(shape, found, re.DOTALL) for found in names)
            return [
                NamedFile(found, folder / found, (number, *map(without_ending, match.groups())) if match else None)
                for found, match in zip(names, matches, strict=True)
            ]
    places = " and ".join(dict.fromkeys(str((folder / name).absolute()) for folder in folders))
    raise DataError(f"no file {name}: tried {places}.".replace("\n", "\\n"))


def _file_pairs(src: Sequence[NamedFile], trg: Sequence[NamedFile], role: str) -> list[tuple[NamedFile, NamedFile]]:
    """Return pairs of source and target files. Raises DataError for a file without a partner.

    Files of two patterns belong together if the patterns have the same place in their lists and the wildcards matched
    the same text. Other files are paired in order. role: the option of the trg files, for messages.
    """
    src_of, trg_of = ({file.wild: file for file in side} for side in (src, trg))
    n_wild = {len(file.wild or ()) for file in (*src, *trg)}
    if len(src) + len(trg) > 2 and len(n_wild) == 1 and n_wild != {0}:
        pairs = [(file, trg_of[wild]) for wild, file in src_of.items() if wild in trg_of]
    else:
        pairs = list(zip(src, trg, strict=False))
    if len(pairs) < max(len(src), len(trg)):
        alone = Counter([*src, *trg])
        alone.subtract(itertools.chain.from_iterable(pairs))
        names = [file.name for file in alone.elements()]
        more = " and others" if names[5:] else ""
        raise DataError(
            f"{len(src):,} files of src and {len(trg):,} of {role}, but no partner for {', '.join(names[:5])}{more}. "
            "File n of one belongs to file n of the other; files of two patterns, if the wildcards match the same text."
        )
    return pairs


# Usual names of the source and target columns of a file with both sides.
_SIDES = (("source", "target"), ("src", "trg"), ("src", "tgt"), ("source_text", "target_text"))


def _columns_in(file: NamedFile, files: CorpusFiles, languages: tuple[str, str]) -> tuple[Column, Column]:
    """Infer the columns of a file with both sides: by the names in its header, or 1 and 2 if there are just two."""
    form = files.format or file.form
    if form == "text":
        unknown = "unknown format and columns. Name src_column and trg_column, and format"
        raise DataError(
            f"{file.name}: {NOT_READ.get(Path(without_ending(file.name).lower()).suffix, unknown)} (docs/data.md)."
        )
    names = names_in(file.place, form)
    if columns := columns_by_name(names, languages):
        return columns
    if form in ("tsv", "csv") and len(names) == 2 and not files.header:
        return 1, 2
    raise DataError(
        f"{file.name}: which of its columns are {languages[0]} and {languages[1]}? There are {name_list(names)}. Name "
        "others with --langs, or the columns in a recipe: src_column and trg_column."
    )


def columns_by_name(names: Sequence[str], languages: tuple[str, str]) -> tuple[str, str] | None:
    """Find the columns, keys or languages of source and target by their names; None if the names do not decide it.

    Names are codes of the languages, in any form and with any region, their English names, or source and target.
    """
    languages_of_name = {name: [language_of(part) for part in (name, name.rpartition(".")[2])] for name in names}
    for form in attrgetter("code"), attrgetter("primary"):  # exact, or with any script and region
        wanted = [form(language_of(side)) for side in languages]
        sides = [[name for name, parts in languages_of_name.items() if code in map(form, parts)] for code in wanted]
        if len(sides[0]) == len(sides[1]) == 1 and sides[0] != sides[1]:
            return sides[0][0], sides[1][0]
    folded = {name.strip().casefold().replace(" ", "_"): name for name in names}
    return next(((folded[src], folded[trg]) for src, trg in _SIDES if {src, trg} <= folded.keys()), None)


def source_notes(sources: Iterable[Source]) -> Iterator[str]:
    """Yield a line for each choice of files or columns that the recipe leaves open."""
    for source in sources:
        if source.has_inferred_columns:
            columns = f"{source.src.column!r} and {source.trg.column!r}"
            order = "" if isinstance(source.src.column, str) else ", in this order: no header names the languages"
            yield f"{source.split}: {source.src.name}: source and target are {columns}{order}"
        if source.is_matched:
            partner = "" if source.src.name == source.trg.name else f" with {source.trg.name}"
            if source.scores and source.scores.name != source.src.name:
                partner += f", scores {source.scores.name}"
            yield f"{source.split}: {source.src.name}{partner}"
        if (source.src.place, source.src.column) == (source.trg.place, source.trg.column):
            yield f"WARNING: {source.split}: {source.src.name} is source and target, so the model would learn to copy"


def facts_of(sources: Iterable[Source]) -> list[dict[str, Any]]:
    """Return the facts of each text, with its split and side.

    Raises one DataError for all unequal line counts and empty files.
    """
    inputs, complaints, known = list[dict[str, Any]](), list[str](), dict[tuple[Path, str], tuple[int, str]]()
    for source in sources:
        texts = {"src": source.src, "trg": source.trg, "scores": source.scores}
        facts = {side: text.facts(known) for side, text in texts.items() if text}
        inputs += [{"split": source.split, "side": side, **entry} for side, entry in facts.items()]
        src = facts["src"]
        complaints += [
            f"{src['name']} has {src['n_line']:,} lines but {other['name']} has {other['n_line']:,}. Line n of one "
            "must belong to line n of the other: look for a truncated download or a stray line break. If line 1 of a "
            "file names its columns, choose them by their names."
            for other in facts.values()
            if other["n_line"] != src["n_line"]
        ]
        if not any(entry["n_line"] for entry in facts.values()):
            complaints.append(f"no lines in {' and '.join(dict.fromkeys((source.src.name, source.trg.name)))}.")
    if complaints:
        raise DataError("\n".join(complaints))
    return inputs


def stamps_of(sources: Iterable[Source]) -> dict[Path, tuple[int, int]]:
    """Return size and modification time of all files. Files are read more than once, so a change must be detected."""
    paths = (text.place for source in sources for text in (source.src, source.trg, source.scores) if text)
    stats = {path: path.stat() for path in paths if isinstance(path, Path) and path.exists()}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


def unknown_languages(data: DataConfig) -> list[str]:
    """Return the languages of training corpora with min_script for which no script is known."""
    filtered = [data.languages_of(n) for n in range(len(data.train)) if data.filters_of(n).min_script]
    return [language for language in dict.fromkeys(itertools.chain(*filtered)) if not scripts_of(language)]
