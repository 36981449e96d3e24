"""Implementation of nmt-preprocess: reads texts, writes a folder of ids with a manifest.

The folder is built next to its final place under a temporary name, and renamed when complete. A killed process leaves
nothing that a later command accepts. `corpus.py` reads the folder.
"""

import contextlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nmt.data.arrays import Ragged
from nmt.data.corpus import Prepared, dtype_of_ids, table_of, texts_as_arrow, write_arrow
from nmt.data.dedup import Leaks, hits, overlap_keys
from nmt.data.keep import N_ROW, count_words_of, encode_training_pairs, keep_pairs, n_process, with_held_out
from nmt.data.lines import write_lines
from nmt.data.manifest import refuse_foreign_files, settings_of, temporary_folder, write_manifest
from nmt.data.placeholders import held_out_tags, protected_pair
from nmt.data.report import SWAPPED, DataReport, page, refuse_foreign_page, table
from nmt.data.sources import Source, facts_of, find_sources, source_notes, stamps_of, unknown_languages, with_low_scores
from nmt.data.subwords import Subwords, large_vocabulary
from nmt.data.survey import KeptPairs, read_block
from nmt.data.text import Block
from nmt.data.vocab_from import facts_of_subwords, find_subwords, reuse
from nmt.data.worker_pool import WorkerPool
from nmt.errors import AlarmError, DataError, NmtError
from nmt.extras import version_and_commit
from nmt.files import RECIPE, put_in_place
from nmt.recipe.data_options import DataConfig
from nmt.recipe.draft import write_draft
from nmt.recipe.options import Recipe
from nmt.recipe.places import RUN_DATA, SUBWORDS, is_of_run, read_run_data
from nmt.recipe.reader import read_recipe

REPORT, PAGE = "report.json", "report.html"
Talk = Callable[[str], None]  # prints a line


def prepare(
    recipe: Recipe,
    folder: Path,
    *,
    overwrite: bool = False,
    talk: Talk | None = None,
    only_report: Path | None = None,
    translations: Mapping[int, Sequence[Path]] | None = None,
) -> dict[str, Any]:
    """Make the data folder of a recipe and return its manifest.

    A folder that was made from the same bytes with the same settings is left as it is. overwrite: replace another
    prepared folder, at the very end. talk: called with each line of output (default: print to stderr).
    only_report: write the page of the report there, leave the folder as it is, and return the content of report.json.
    translations: passed to `find_sources`.
    """
    talk, data = talk or partial(print, file=sys.stderr), recipe.data
    report = DataReport(langs=(data.src_lang, data.trg_lang))
    sources = find_sources(recipe, translations or {})
    for line in source_notes(sources):
        talk(line)
    present = None if only_report else refuse_foreign_files(folder)
    stamps, inputs = stamps_of(sources), facts_of(sources)
    sources = with_low_scores(sources, data)
    if data.valid_size:
        sources = with_held_out(sources, data)
        inputs += facts_of(sources[-1:])
        talk(f"valid: {sources[-1].src.name.partition(', ')[0]}, and near copies of them left out of it")
    report.n_read = sum(file["n_line"] for file in inputs if file["split"] == "train" and file["side"] == "src")
    vocab_files = find_subwords(*filter(None, recipe.subwords.vocab_names), origin=recipe.origin)
    all_inputs = [*inputs, *facts_of_subwords(vocab_files)]
    if present is not None and not overwrite:
        if changed := _changed_files(present, all_inputs) + Prepared.open(folder).differences(recipe):
            raise DataError(
                f"{folder}: holds data prepared from other files or with other settings ({'; '.join(changed)}). "
                "Replace it with --overwrite, or choose another folder with data.out."
            )
        talk(f"{folder}: already prepared from the same files with the same settings, nothing to do")
        return present

    def write_page(path: Path) -> None:
        # Without a date: the bytes of a prepared folder must not depend on it.
        made_by = f"Made by nmt-preprocess {version_and_commit()} from the recipe {recipe.name}."
        html = page(report.as_dict(), recipe.name, report.langs, inputs, made_by)
        write_lines(path, html.split("\n"))

    def alarm_error(reason: str, advice: str = "") -> AlarmError:
        path = only_report or beside(folder, ".report.html")
        with contextlib.suppress(DataError):  # another file has that name
            refuse_foreign_page(path)
            write_page(path)
            reason += f" The report is {path}."
        return AlarmError(f"{reason} No data was written.{advice}")

    with temporary_folder(only_report or folder) as temporary, WorkerPool(n_process(data, report.n_read)) as workers:
        report.note("language", *unknown_languages(data))
        kept = keep_pairs(temporary, sources, recipe, report, workers)
        if changed := [str(path) for path, stamp in stamps_of(sources).items() if stamps[path] != stamp]:
            raise DataError(
                f"{', '.join(changed)}: changed while it was read. Prepare again when nothing else writes to it."
            )
        words = count_words_of(kept, recipe.subwords, workers)
        kept.begin_survey(workers)
        if not kept.n_kept:
            report.survey = kept.finish_survey()
            raise alarm_error(report.nothing_left())
        subwords = _learn(recipe, vocab_files, words, talk)
        subwords.save(temporary / SUBWORDS)
        report.survey = kept.finish_survey()
        # A model of SentencePiece does not lie in a run.
        bases = [path.parent for path in vocab_files if path.name == SUBWORDS]
        if base := recipe.train.init_from:
            bases.append(recipe.origin.find("train.init_from", base, Path.exists))
        rows, unreadable = overlap_with_bases(bases, kept.leaks)
        report.survey["leaks"]["rows"] += rows
        report.note("base", *unreadable)
        report.survey["swapped"] = swapped(kept, data)
        corpora = encode_training_pairs(kept, data, subwords, report, workers)
        for file in temporary.glob("block.*"):
            file.unlink()
        if not report.n_kept:
            raise alarm_error(report.nothing_left())
        facts = report.as_dict()
        for line in table(facts):
            talk(line)
        if data.alarms == "stop" and not only_report and (alarms := facts["alarms"]):
            n_more = f" This is 1 of {len(alarms):,} alarms, see above." if alarms[1:] else ""
            reason = f"{alarms[0]['found']}. {alarms[0]['advice']}{n_more}"
            raise alarm_error(reason, " If this is right: --data.alarms warn.")
        n_pair, tags = {"train": report.n_kept}, held_out_tags(data)
        for split, (src, trg, _) in kept.held_out.items():
            tables = _held_out_tables(src, trg, subwords.tagged(tags.get(split, ())))
            n_pair[split] = write_arrow(temporary / f"{split}.arrow", tables)
        write_draft(recipe, temporary / RECIPE)
        write_lines(temporary / REPORT, json.dumps(facts, indent=1, ensure_ascii=False).split("\n"))
        write_page(temporary / PAGE)
        if only_report:
            write_page(only_report)
        content = {
            "inputs": all_inputs,
            "settings": settings_of(recipe),
            "n_pair": n_pair,
            "corpora": corpora,
            "n_vocab": {"src": subwords.src.n_vocab, "trg": subwords.trg.n_vocab},
            "ids": str(dtype_of_ids(subwords)),
            "subwords_sha256": subwords.sha256,
            "tokenizers": metadata.version("tokenizers"),
            "nmt": version_and_commit(),
        }
        files = [SUBWORDS, REPORT, PAGE, *(f"{split}.arrow" for split in n_pair)]
        manifest = write_manifest(temporary, content, files)
        if not only_report:
            if refuse_foreign_files(folder) != present:
                raise DataError(f"{folder}: not replaced, as another process changed it meanwhile. Prepare again.")
            put_in_place(temporary, folder.absolute())
    with contextlib.suppress(DataError):  # another file has that name
        if not only_report and (old := beside(folder, ".report.html")).exists():  # of an earlier alarm
            refuse_foreign_page(old)
            old.unlink()
    n_token = facts["subwords"]["trg"]["pieces"] + n_pair["train"]
    if not vocab_files and (note := large_vocabulary(subwords.trg.size, n_token)):
        talk(f"note: {note}")
    pairs = ", ".join(f"{n:,} {split}" for split, n in n_pair.items())
    talk(f"{only_report or folder / PAGE}: the report, for a browser")
    talk(f"{folder}: {pairs} pairs{' would be prepared; nothing is written there' if only_report else ''}")
    return facts if only_report else manifest


def beside(folder: Path, ending: str) -> Path:
    """Return the path next to a data folder that has its name with an ending."""
    folder = folder if folder.name.strip(".") else folder.resolve()
    if not folder.name:
        raise DataError(f"{folder} cannot be replaced by prepared data. Choose another folder with data.out.")
    return folder.parent / f"{folder.name}{ending}"


def _changed_files(present: dict[str, Any], inputs: list[dict[str, Any]]) -> list[str]:
    """Return the differences between the files of a folder and others. They are compared by bytes, not by name."""
    identity = ("split", "side", "sha256", "column")
    before, now = ([tuple(map(file.get, identity)) for file in files] for files in (present["inputs"], inputs))
    known = set(before)
    changed = [f"{file['name']} is new" for file, key in zip(inputs, now, strict=True) if key not in known]
    return changed or ["the files are not the same"] * (before != now)


def _learn(
    recipe: Recipe, vocab_files: Sequence[Path], words: tuple[Counter[str], Counter[str]], talk: Talk
) -> Subwords:
    """Learn the subwords from the kept pairs, or take those of files, and print the size of each vocabulary."""
    tags, protect = recipe.data.known_tags, recipe.data.protect
    if vocab_files:
        return reuse(vocab_files, words, recipe.subwords, tags, protect, talk)
    talk(f"learning {recipe.subwords.vocab_size:,} subwords ({recipe.subwords.kind}) ...")
    subwords = Subwords.train(*words, recipe.subwords, tags, protect)
    for side, codec in subwords.by_side().items():
        vocab_size = recipe.subwords.vocab_size
        remark = f" ({vocab_size:,} asked for: the text has no more)" if codec.size < vocab_size else ""
        talk(f"{side} vocabulary: {codec.size:,} pieces{remark}, padded to {codec.n_vocab:,}")
    return subwords


def _held_out_tables(src: list[str], trg: list[str], subwords: Subwords) -> Iterator[pa.Table]:
    dtype = dtype_of_ids(subwords)
    for start in range(0, len(src), N_ROW):
        lines = src[start : start + N_ROW], trg[start : start + N_ROW]
        pairs = (protected_pair(*pair, subwords.src.protects)[:2] for pair in zip(*lines, strict=True))
        src_texts, trg_texts = zip(*pairs, strict=True)
        ids = subwords.src.encode(src_texts), subwords.trg.encode(trg_texts)
        table = table_of(*(Ragged.of(rows, dtype) for rows in ids))
        for name, texts in zip(("src_text", "trg_text"), lines, strict=True):
            table = table.append_column(name, texts_as_arrow(texts))
        yield table


# Detection of swapped files.
_N_LINE = 4000  # lines sampled from a file, at most
_N_BLOCK = 4  # blocks of a training file that lines are sampled from

# A run of letters; from Thai on a single letter, as most scripts there set no spaces.
_WORD = re.compile(r"[^\W\d_\u0e00-\U0010ffff]+|[^\W\d_\u0000-\u0dff]")

_TIMES = 4  # a word votes for the training side on which it is so many times as frequent as on the other
_MIN_VOTERS = 10  # different words that vote
_MIN_SHARE_VOTING = 0.2  # of the words of a side


def swapped(kept: KeptPairs, data: DataConfig) -> list[dict[str, str]]:
    """Names of validation and test files that look swapped, and of the training files that they were compared with.

    Files with tags are skipped, since a tag may well ask for the other direction. So are training files in other
    languages than those of the recipe.
    """
    tags = held_out_tags(data)
    held_out: list[tuple[Source, Counter[str], Counter[str]]] = []
    for split, texts in kept.held_out.items():
        for source, place in texts.sources if not tags.get(split) else ():
            step = max(1, (place.stop - place.start) // _N_LINE)
            held_out.append((source, words_of(texts.src[place][::step]), words_of(texts.trg[place][::step])))
    swaps = []
    for n, train in enumerate(kept.training):
        if data.languages_of(train.corpus) != (data.src_lang, data.trg_lang) or data.tags_of(data.train[train.corpus]):
            continue
        blocks = [block for block in kept.blocks if block.source == n]
        blocks = blocks[:: max(1, -(-len(blocks) // _N_BLOCK))]
        train_src, train_trg = Counter[str](), Counter[str]()
        for block in blocks:
            for words, lines in zip((train_src, train_trg), read_block(block).lines, strict=True):
                words.update(words_of(lines[: _N_LINE // len(blocks)]))
        for source, src, trg in held_out:
            if are_swapped(src, trg, train_src, train_trg):
                names = {"split": source.split, "src": source.src.name, "trg": source.trg.name}
                swaps.append({**names, "train_src": train.src.name, "train_trg": train.trg.name})
    return swaps


def are_swapped(src: Counter[str], trg: Counter[str], train_src: Counter[str], train_trg: Counter[str]) -> bool:
    """Return whether the words of both sides are clearly closer to those of the opposite training sides."""
    return _is_closer(src, train_trg, train_src) and _is_closer(trg, train_src, train_trg)


def words_of(lines: Iterable[str]) -> Counter[str]:
    """Count the words, ignoring case."""
    return Counter(word for line in lines for word in _WORD.findall(line[:2000].casefold()))


def _is_closer(words: Counter[str], side: Counter[str], other: Counter[str]) -> bool:
    """Return whether most words that vote prefer one side of a training corpus to the other side."""
    n_side, n_other = side.total(), other.total()
    votes_for, votes_against, n_voter = 0, 0, 0
    for word, n in words.items():
        a, b = side[word] * n_other, other[word] * n_side
        if side[word] > 1 and a >= _TIMES * b:
            votes_for, n_voter = votes_for + n, n_voter + 1
        elif other[word] > 1 and b >= _TIMES * a:
            votes_against += n
    votes = votes_for + votes_against
    return n_voter >= _MIN_VOTERS and votes >= _MIN_SHARE_VOTING * words.total() and votes_for >= SWAPPED * votes


_N_DECODED = 10_000  # pairs of a base run that are decoded at once


def overlap_with_bases(bases: Iterable[Path], leaks: Leaks) -> tuple[list[dict[str, Any]], list[str]]:
    """Find validation and test lines in the training pairs of base runs.

    bases: runs, models and checkpoints in them, or folders of prepared data. Return rows as those of `Leaks.rows`, with
    `train of BASE` as their place; and the bases whose pairs cannot be read, with reasons.
    """
    rows, unreadable = list[dict[str, Any]](), list[str]()
    # A model or checkpoint stands for its run.
    folders = (next((folder for folder in (base, *base.parents[:2]) if is_of_run(folder)), base) for base in bases)
    for base in dict.fromkeys(folders):
        try:
            data = Prepared.open(read_recipe(base / RECIPE).data_folder if is_of_run(base) else base)
            if is_of_run(base) and read_run_data(base).get("train") != data.train.fingerprint:
                raise DataError(f"{data.folder} holds other pairs than {base / RUN_DATA} says.")
        except (NmtError, OSError, ValueError) as error:
            unreadable.append(f"{base} ({error})")
            continue
        base_leaks, codecs = Leaks(leaks.splits), (data.subwords.src, data.subwords.trg)
        for start in range(0, data.train.n_pair, _N_DECODED):
            numbers = np.arange(start, min(start + _N_DECODED, data.train.n_pair))
            texts = (
                Block([codec.decode(ids.tolist()).replace("\n", " ") for ids in side])
                for codec, side in zip(codecs, data.train.pairs(numbers), strict=True)
            )
            base_leaks.note(hits(base_leaks.known, overlap_keys(*texts), numbers))
        rows += [{**row, "in": f"train of {base}"} for row in base_leaks.rows() if row["in"] == "train"]
    return rows, unreadable
