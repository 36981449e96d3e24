"""The whole of nmt-preprocess: text in, a folder of ids with a manifest out.

The folder is built beside its place under another name and renamed when complete, so whatever kills this
program leaves nothing that a later command accepts. What is read back is in `corpus.py`.
"""

import contextlib
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from nmt.data.arrays import Ragged
from nmt.data.block_work import read_block
from nmt.data.corpus import Prepared, dtype_of_ids, table_of, texts_as_arrow, write_arrow
from nmt.data.dedup import Keys, Leaks
from nmt.data.keep import (
    N_ROW,
    KeptPairs,
    count_words_of,
    encode_training_pairs,
    keep_training_pairs,
    n_process,
    progress_bar,
    read_held_out,
    with_held_out,
)
from nmt.data.lines import write_lines
from nmt.data.manifest import (
    PAGE,
    RECIPE,
    REPORT,
    SUBWORDS,
    beside,
    building,
    changed_settings,
    refuse_foreign_files,
    settings_of,
    write_manifest,
)
from nmt.data.placeholders import held_out_tags, protected_pair
from nmt.data.report import SWAPPED, DataReport, page, refuse_foreign_page, sentence, table
from nmt.data.scripts import identifier, languages_like
from nmt.data.sources import Source, facts_of, find_sources, source_notes, stamps_of, unknown_languages, with_low_scores
from nmt.data.subwords import Subwords, large_vocabulary
from nmt.data.survey import Texts
from nmt.data.text import Block
from nmt.data.vocab_from import account_of, facts_of_subwords, find_subwords, given_subwords, reuse
from nmt.data.worker_pool import WorkerPool
from nmt.errors import AlarmError, DataError, NmtError
from nmt.extras import is_installed, version_and_commit
from nmt.files import parse_json
from nmt.recipe.data_options import DataConfig
from nmt.recipe.draft import write_draft
from nmt.recipe.options import Recipe
from nmt.recipe.places import RUN_DATA, is_of_run
from nmt.recipe.reader import read_recipe

# Detection of other languages and of swapped files.
_MOST_LINES, _FEWEST_TOLD, _NEARLY_ALL, _CERTAIN = 200, 50, 0.8, 0.9
_LONG_ENOUGH = 20  # letters
N_LINE = 4000  # of a file that are looked at, at most; fewer where there are many training files
_FEWEST_LINES, _N_LINE_IN_ALL = 200, 100_000
_N_BLOCK = 4  # which the lines of a training file are taken from
_N_DECODED = 10_000  # pairs of a base run at once

# Letters up to the next other character; one by one from Thai on, as most scripts there set no spaces.
_WORD = re.compile(r"[^\W\d_\u0e00-\U0010ffff]+|[^\W\d_\u0000-\u0dff]")

_TIMES = 4  # so much more often on one training side than on the other: a word of that side
_FEWEST = 10  # different words that vote
_SHARE_VOTING = 0.2  # of the words of a side


def other_languages(sources: Sequence[Source], kept: KeptPairs, data: DataConfig) -> Iterator[str]:
    """Sides of training files of which nearly all lines are in another language than theirs, as file:language.

    Asked where the package is installed and no filter asks it anyway.
    """
    if not is_installed("langid"):
        return
    for n, source in enumerate(source for source in sources if source.split == "train"):
        if data.filters_of(source.corpus).max_other_language:
            continue
        some, languages = _some_lines(kept, n, _MOST_LINES), data.languages_of(source.corpus)
        for text, language, lines in zip((source.src, source.trg), languages, some, strict=True):
            with contextlib.suppress(DataError):  # a language that the package does not know
                own = languages_like(language)
                told = [identifier().classify(line) for line in lines if sum(map(str.isalpha, line)) >= _LONG_ENOUGH]
                found = Counter(code for code, share in told if share > _CERTAIN and code not in own).most_common(1)
                if len(told) >= _FEWEST_TOLD and found and found[0][1] > _NEARLY_ALL * len(told):
                    yield f"{text.name}:{found[0][0]}"


def swapped(
    sources: Sequence[Source], kept: KeptPairs, held_out: Mapping[str, Texts], data: DataConfig
) -> list[dict[str, str]]:
    """The pairs of files of validation and test sets that look swapped, with the training files that say so: names.

    Looked at are pairs of the languages of the recipe without tags: a tag may well ask for the other direction.
    """
    tags = held_out_tags(data)
    looked_at: list[tuple[Source, Counter[str], Counter[str]]] = []
    for split, texts in held_out.items():
        files = [source for source in sources if source.split == split and not tags.get(split)]
        for source, (start, end) in zip(files, pairwise([0, *texts.ends]), strict=False):
            step = max(1, (end - start) // N_LINE)
            src, trg = (words_of(side[start:end:step]) for side in (texts.src, texts.trg))
            looked_at.append((source, src, trg))
    training = [source for source in sources if source.split == "train"]
    found, n_line = [], min(N_LINE, max(_FEWEST_LINES, _N_LINE_IN_ALL // len(training)))
    for n, by in enumerate(training):
        if data.languages_of(by.corpus) != (data.src_lang, data.trg_lang) or data.tags_of(data.train[by.corpus]):
            continue
        train_src, train_trg = (words_of(lines) for lines in _some_lines(kept, n, n_line))
        for source, src, trg in looked_at:
            if are_swapped(src, trg, train_src, train_trg):
                names = {"split": source.split, "src": source.src.name, "trg": source.trg.name}
                found.append({**names, "train_src": by.src.name, "train_trg": by.trg.name})
    return found


def are_swapped(src: Counter[str], trg: Counter[str], train_src: Counter[str], train_trg: Counter[str]) -> bool:
    """Return whether both sides are, by their words, plainly rather the other sides of a training corpus."""
    return _is_rather(src, train_trg, train_src) and _is_rather(trg, train_src, train_trg)


def words_of(lines: Iterable[str]) -> Counter[str]:
    """Count each word, without case."""
    return Counter(word for line in lines for word in _WORD.findall(line[:2000].casefold()))


def _is_rather(words: Counter[str], of: Counter[str], than: Counter[str]) -> bool:
    """Return whether most words that tell make a text like one side of a training corpus, not the other."""
    n_of, n_than = of.total(), than.total()
    votes, against, n_different = 0, 0, 0
    for word, n in words.items():
        a, b = of[word] * n_than, than[word] * n_of
        if of[word] > 1 and a >= _TIMES * b:
            votes, n_different = votes + n, n_different + 1
        elif than[word] > 1 and b >= _TIMES * a:
            against += n
    n_voting = votes + against
    return n_different >= _FEWEST and n_voting >= _SHARE_VOTING * words.total() and votes >= SWAPPED * n_voting


def overlap_with_bases(bases: Iterable[Path], leaks: Leaks) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows as `Leaks.rows` has them, in `train of BASE`; and the bases whose pairs cannot be read, with reasons.

    bases: runs, models and checkpoints in them, or folders of prepared data.
    """
    rows: list[dict[str, Any]] = []
    unknown = []
    # The run of a model or checkpoint in it.
    folders = (next((folder for folder in (base, *base.parents[:2]) if is_of_run(folder)), base) for base in bases)
    for base in dict.fromkeys(folders):
        try:
            data = _data_of(base)
        except (NmtError, OSError, ValueError) as error:
            unknown.append(f"{base} ({error})")
            continue
        found, codecs = Leaks(leaks.splits), (data.subwords.src, data.subwords.trg)
        for start in range(0, data.train.n_pair, _N_DECODED):
            numbers = np.arange(start, min(start + _N_DECODED, data.train.n_pair))
            texts = (
                Block([codec.decode(ids.tolist()).replace("\n", " ") for ids in side])
                for codec, side in zip(codecs, data.train.pairs(numbers), strict=True)
            )
            found.compare(Keys.of(*texts), numbers)
        rows += [{**row, "in": f"train of {base}"} for row in found.rows() if row["in"] == "train"]
    return rows, unknown


def _data_of(base: Path) -> Prepared:
    if not is_of_run(base):
        return Prepared.open(base)
    data = Prepared.open(read_recipe(base / "recipe.yaml").data_folder)
    told = parse_json((base / RUN_DATA).read_bytes())
    if not isinstance(told, dict) or told.get("train") != data.train.fingerprint:
        raise DataError(f"{data.folder} holds other pairs than when it was trained on.")
    return data


def _some_lines(kept: KeptPairs, source: int, n_line: int) -> tuple[list[str], list[str]]:
    """Both sides of some kept pairs of a source, from the whole length of it."""
    blocks = [block for block in kept.blocks if block.source == source and block.n_kept]
    step = max(1, -(-len(blocks) // _N_BLOCK))
    src: list[str] = []
    trg: list[str] = []
    for block in blocks[::step]:
        n = n_line // len(blocks[::step])
        for lines, side in zip((src, trg), read_block(block).sides, strict=True):
            lines += side.texts()[:n]
    return src, trg


Talk = Callable[[str], None]


def prepare(
    recipe: Recipe,
    folder: Path,
    *,
    overwrite: bool = False,
    talk: Talk | None = None,
    report: DataReport | None = None,
    only_report: Path | None = None,
    translations: Mapping[int, Sequence[Path]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Make the data folder of a recipe and return its manifest.

    A folder that was made from the same bytes with the same settings is left as it is; another one of ours is
    replaced with overwrite=True, at the very end. talk: gets each line of the account (default: stderr).
    report: a fresh one, for a caller who wants to know more. only_report: write the page of the report there, and
    leave the folder as it is. translations: of `find_sources`.
    """
    talk, report, data = talk or partial(print, file=sys.stderr), report or DataReport(), recipe.data
    sources = find_sources(recipe, translations)
    for line in source_notes(sources):
        talk(line)
    present = None if only_report else refuse_foreign_files(folder)
    stamps, inputs = stamps_of(sources), facts_of(sources)
    sources = with_low_scores(sources, data)
    if data.valid_size and not data.valid:
        sources = with_held_out(sources, data)
        inputs += facts_of(sources[-1:])
        talk(f"valid: {sources[-1].src.name.partition(', ')[0]}, and near copies of them left out of it")
    report.n_read = sum(each["n_line"] for each in inputs if each["split"] == "train" and each["side"] == "src")
    texts = inputs.copy()  # what the page shows
    given = find_subwords(*recipe.subwords.vocab_names, origin=recipe.origin) if recipe.subwords.vocab_from else []
    inputs += facts_of_subwords(given)
    settings = settings_of(recipe)
    if present is not None and not overwrite:
        if changed := _changes(present, inputs, settings):
            raise DataError(
                f"{folder}: holds data prepared from other files or with other settings ({'; '.join(changed)}). "
                "Replace it with --overwrite, or choose another folder with data.out."
            )
        Prepared.open(folder)
        talk(f"{folder}: already prepared from the same files with the same settings, nothing to do")
        return present

    def write_page(place: Path, *, dated: bool = True) -> None:
        made = f"Made by nmt-preprocess {version_and_commit()} from the recipe {recipe.name}"
        made += f" on {time.strftime('%Y-%m-%d %H:%M')}." if dated else "."
        html = page(report.as_dict(), recipe.name, (data.src_lang, data.trg_lang), texts, made)
        write_lines(place, html.split("\n"))

    def stopped(why: str, advice: str = "") -> AlarmError:
        place = only_report or page_beside(folder)
        with contextlib.suppress(DataError):  # another file has that name
            refuse_foreign_page(place)
            write_page(place)
            why += f" The report is {place}."
        return AlarmError(f"{why} No data was written.{advice}")

    with beside(only_report) if only_report else building(folder, replace=present) as temporary:
        for language in unknown_languages(data):
            report.note("language", language)
        splits = dict.fromkeys(source.split for source in sources if source.split != "train")
        held_out = {split: read_held_out(sources, split, report) for split in splits}
        made = _prepare_training_pairs(recipe, sources, held_out, given, report, temporary, talk)
        if changed := [str(path) for path, stamp in stamps_of(sources).items() if stamps[path] != stamp]:
            raise DataError(
                f"{', '.join(changed)}: changed while it was read. Prepare again when nothing else writes to it."
            )
        if made is None or not report.n_kept:
            raise stopped(report.nothing_left(data))
        subwords, report.corpora = made
        report.on_dropped = report.advice_on_dropped(data)
        facts = report.as_dict()
        if data.alarms == "stop" and not only_report and (found := facts["alarms"]):
            for line in table(facts):
                talk(line)
            n_more = f" (1 of {len(found):,} alarms, see above)" if found[1:] else ""
            raise stopped(f"{sentence(found[0])}{n_more}", " If this is right: --data.alarms warn.")
        n_pair, tags = {"train": report.n_kept}, held_out_tags(data)
        for split, (src, trg, _) in held_out.items():
            tables = _held_out_tables(src, trg, subwords.tagged(tags.get(split, ())))
            n_pair[split] = write_arrow(temporary / f"{split}.arrow", tables, subwords)
        write_draft(recipe, temporary / RECIPE)
        write_lines(temporary / REPORT, json.dumps(facts, indent=1, ensure_ascii=False).split("\n"))
        write_page(temporary / PAGE, dated=False)  # the bytes of a folder do not depend on when it was made
        if only_report:
            write_page(only_report)
        content = {
            "inputs": inputs,
            "settings": settings,
            "n_pair": n_pair,
            "corpora": report.corpora,
            "n_vocab": {"src": subwords.src.n_vocab, "trg": subwords.trg.n_vocab},
            "ids": str(dtype_of_ids(subwords)),
            "subwords_sha256": subwords.sha256,
            "tokenizers": metadata.version("tokenizers"),
            "nmt": version_and_commit(),
        }
        files = [SUBWORDS, REPORT, PAGE, *(f"{split}.arrow" for split in n_pair)]
        manifest = write_manifest(temporary, content, files)
    for line in table(facts):
        talk(line)
    n_token = facts["subwords"]["trg"]["pieces"] + n_pair["train"]
    if not given and (large := large_vocabulary(subwords.trg.size, n_token)):
        talk(f"note: {large}")
    pairs = ", ".join(f"{n:,} {split}" for split, n in n_pair.items())
    talk(f"{only_report or folder / PAGE}: the report, for a browser")
    talk(f"{folder}: {pairs} pairs{' would be prepared; nothing is written there' if only_report else ''}")
    return manifest


def _prepare_training_pairs(
    recipe: Recipe,
    sources: Sequence[Source],
    held_out: dict[str, Texts],
    given: Sequence[Path],
    report: DataReport,
    folder: Path,
    talk: Talk,
) -> tuple[Subwords, list[dict[str, Any]]] | None:
    """Keep, count, learn and encode, into train.arrow; return the subwords, and the corpora for the manifest; None if
    no pair is kept. given: subwords that are not learnt.
    """
    with WorkerPool(n_process(recipe.data, report.n_read)) as workers:
        kept, survey = keep_training_pairs(sources, held_out, recipe.data, recipe.subwords, report, folder, workers)
        words = count_words_of(kept, recipe.subwords, report, workers)
        survey.begin_to_finish(workers)
        with progress_bar("looking for misaligned lines", report.n_read) as progress:
            if len(kept):
                subwords = _learn(recipe, given, words, talk)
                subwords.save(folder / SUBWORDS)
            report.found = survey.finish(progress.update, kept.shown)
        if not len(kept):
            return None
        # A model of SentencePiece is of no run of ours.
        bases = [path.parent for path in given if path.name == SUBWORDS]
        if base := recipe.train.init_from:
            bases.append(recipe.origin.find("train.init_from", base, Path.exists))
        rows, unknown = overlap_with_bases(bases, survey.leaks)
        report.found["leaks"]["rows"] += rows
        for base in unknown:
            report.note("base", base)
        for where in other_languages(sources, kept, recipe.data):
            report.note("other_language", where)
        report.found["swapped"] = swapped(sources, kept, held_out, recipe.data)
        corpora = encode_training_pairs(recipe.data, subwords, kept, report, folder, workers)
    kept.remove()
    return subwords, corpora


def page_beside(folder: Path) -> Path:
    """Return where the report of data lies that is not written: beside the folder."""
    folder = folder if folder.name.strip(".") else folder.resolve()
    return folder.with_name(f"{folder.name}.report.html")


def _changes(present: dict[str, Any], inputs: list[dict[str, Any]], settings: dict[str, Any]) -> list[str]:
    """Return what a new folder would be made of otherwise than the present one. Bytes count, names do not."""

    def identity(each: dict[str, Any]) -> tuple[Any, ...]:
        return each.get("split"), each.get("side"), each.get("sha256"), each.get("column")

    before = set(map(identity, present["inputs"]))
    changed = [f"{each['name']} is new" for each in inputs if identity(each) not in before]
    if not changed and list(map(identity, present["inputs"])) != list(map(identity, inputs)):
        changed = ["the list of files is another"]
    return changed + changed_settings(present["settings"], settings)


def _learn(recipe: Recipe, given: Sequence[Path], words: tuple[Counter[str], Counter[str]], talk: Talk) -> Subwords:
    """Train the subwords on the kept pairs, or take those of a file, and say what came of it."""
    tags, protect = recipe.data.known_tags, recipe.data.protect
    if given:
        subwords = reuse(given, words, recipe.subwords, tags, protect)
        for line in account_of(given_subwords(given, joint=subwords.joint), subwords, given):
            talk(line)
        return subwords
    # No bar: the lines go by in a moment, and of the merges that follow the library tells nothing we could show.
    talk(f"learning {recipe.subwords.vocab_size:,} subwords ({recipe.subwords.kind}) ...")
    subwords = Subwords.train(*words, recipe.subwords, tags, protect)
    for side, codec in subwords.by_side().items():
        wanted = recipe.subwords.vocab_size
        short = f" ({wanted:,} asked for: the text has no more)" if codec.size < wanted else ""
        talk(f"{side} vocabulary: {codec.size:,} pieces{short}, padded to {codec.n_vocab:,}")
    return subwords


def _held_out_tables(src: list[str], trg: list[str], subwords: Subwords) -> Iterator[pa.Table]:
    dtype = dtype_of_ids(subwords)
    for start in range(0, len(src), N_ROW):
        lines = src[start : start + N_ROW], trg[start : start + N_ROW]
        pairs = (protected_pair(*pair, subwords.src.protects)[:2] for pair in zip(*lines, strict=True))
        src_texts, trg_texts = zip(*pairs, strict=True)
        ids = subwords.src.encode(src_texts), subwords.trg.encode(trg_texts)
        table = table_of(*(Ragged.of(rows, dtype) for rows in ids))
        for name, text in zip(("src_text", "trg_text"), lines, strict=True):
            table = table.append_column(name, texts_as_arrow(text))
        yield table
