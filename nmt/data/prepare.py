"""The whole of nmt-preprocess: text in, a folder of ids with a manifest out.

The folder is built beside its place under another name and renamed when complete, so whatever kills this
program leaves nothing that a later command accepts. What is read back is in `stored/corpus.py`.
"""

import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa

from nmt.data.arrays.columns import texts_as_arrow
from nmt.data.arrays.ragged import Ragged
from nmt.data.blockwise.encode import BLOCK, encode_training_pairs
from nmt.data.blockwise.hold_out import with_held_out
from nmt.data.blockwise.keep import count_words_of, keep_training_pairs, n_process, progress_bar, read_held_out
from nmt.data.blockwise.kept import KeptPairs
from nmt.data.blockwise.swapped import swapped
from nmt.data.reading.language_codes import codes_as_text, other_languages, unknown_languages
from nmt.data.reading.sources import Source, facts_of, find_sources, refuse_changed, spooled, stamps_of, survey, told
from nmt.data.reporting.findings import advice_on_dropped, nothing_left
from nmt.data.reporting.leaks import overlap_with_bases
from nmt.data.reporting.report import DataReport
from nmt.data.reporting.report_page import page, refuse_foreign_page
from nmt.data.reporting.report_words import sentence
from nmt.data.reporting.survey import Texts
from nmt.data.stored.arrow import dtype_of_ids, table_of, write_arrow
from nmt.data.stored.corpus import Prepared
from nmt.data.stored.folder import beside, building, refuse_foreign_files, remove_abandoned
from nmt.data.stored.manifest import (
    PAGE,
    RECIPE,
    REPORT,
    SUBWORDS,
    changed_settings,
    later_filters,
    settings_of,
    write_manifest,
)
from nmt.data.stored.vocab_from import Given, account_of, find_subwords, reuse
from nmt.data.text.lines import write_lines
from nmt.data.text.placeholders import protected_pair
from nmt.data.text.tags import held_out_tags, known_tags, must_have_room
from nmt.data.vocabulary.subwords import Subwords
from nmt.data.vocabulary.vocabulary_use import large_vocabulary
from nmt.data.worker_pool import WorkerPool
from nmt.errors import AlarmError, DataError
from nmt.extras import version_and_commit
from nmt.recipe.draft import write_draft
from nmt.recipe.options import Recipe

# Sampling lines for BPE has a seed of its own: another seed of training is no reason for another vocabulary.
_SAMPLE_SEED = 0

Talk = Callable[[str], None]


def prepare(
    recipe: Recipe,
    folder: Path,
    *,
    overwrite: bool = False,
    talk: Talk | None = None,
    report: DataReport | None = None,
    only_report: Path | None = None,
    stages: dict[str, float] | None = None,
) -> dict[str, Any]:
    """Make the data folder of a recipe and return its manifest.

    A folder that was made from the same bytes with the same settings is left as it is; another one of ours is
    replaced with overwrite=True, at the very end. talk: gets each line of the account (default: stderr).
    report: a fresh one, for a caller who wants to know more. only_report: write the page of the report there, and
    leave the folder as it is. stages: gets the seconds that each stage took.
    """
    talk = talk or _to_stderr
    use_threads(recipe.data.workers)
    sources = find_sources(recipe)
    for line in told(sources):
        talk(line)
    with spooled(sources, only_report or folder, talk) as at_hand:
        lap = _Laps({} if stages is None else stages)
        if recipe.data.valid_size and not recipe.data.valid:
            at_hand = with_held_out(at_hand, recipe.data)
            talk(f"valid: {at_hand[-1].src.name.partition(', ')[0]}, and near copies of them left out of it")
        job = _Job(recipe, folder, at_hand, talk, report or DataReport(), only_report, lap, overwrite)
        return _prepare(job)


@dataclass(frozen=True)
class _Job:
    """A request, once all the text is in files: the `sources`. The rest as `prepare` has it."""

    recipe: Recipe
    folder: Path
    sources: Sequence[Source]
    talk: Talk
    report: DataReport
    only_report: Path | None
    lap: "_Laps"
    overwrite: bool
    inputs: list[dict[str, Any]] = field(default_factory=list)  # as the manifest tells them, once they are known


def _prepare(job: _Job) -> dict[str, Any]:
    """Make the folder stage by stage; return the manifest."""
    recipe, report = job.recipe, job.report
    present = None if job.only_report else refuse_foreign_files(job.folder)
    stamps = stamps_of(job.sources)
    inputs = survey(job.sources, facts_of(job.sources))
    job.inputs.extend(inputs)
    job.lap("hash")
    given = find_subwords(*recipe.subwords.vocab_names, origin=recipe.origin) if recipe.subwords.vocab_from else None
    if given:
        inputs += given.facts()
    settings = settings_of(recipe)
    if present is not None and _is_there(job, present, inputs, settings):
        return present
    must_have_room(recipe.data, recipe.subwords)
    with beside(job.only_report) if job.only_report else building(job.folder, replace=present) as temporary:
        _note_beforehand(job, inputs)
        splits = dict.fromkeys(source.split for source in job.sources if source.split != "train")
        held_out = {split: read_held_out(job.sources, split, report) for split in splits}
        known = [job.folder] if present else []
        known += [path.parent for path in given.paths] if given else []
        subwords, corpora = _prepare_training_pairs(job, held_out, given, known, temporary)
        refuse_changed(stamps)
        job.lap("encode and write")
        if not report.n_kept:
            raise _stopped(job, nothing_left(report.as_dict(), job.sources, recipe.data))
        report.corpora = corpora
        assert report.survey is not None
        # A model of SentencePiece is of no run of ours.
        bases = [path.parent for path in given.paths if path.name == SUBWORDS] if given else []
        if base := recipe.train.init_from:
            bases.append(recipe.origin.find("train.init_from", base, Path.exists))
        rows, unknown = overlap_with_bases(bases, report.survey.leaks)
        report.found["leaks"]["rows"] += rows
        for base in unknown:
            report.note("base", base)
        report.on_dropped = advice_on_dropped(report.as_dict(), job.sources, recipe.data)
        stops = recipe.data.alarms == "stop" and not job.only_report
        if stops and (found := report.as_dict()["alarms"]):
            _tell(job)
            n_more = f" (and {len(found) - 1:,} more alarms, see above)" if found[1:] else ""
            raise _stopped(
                job, f"{sentence(found[0])}{n_more}", " If this is right: --accept-alarms (data.alarms: warn)."
            )
        n_pair = {"train": report.n_kept, **_write_held_out(recipe, held_out, subwords, temporary)}
        files = [SUBWORDS, REPORT, PAGE, *(f"{split}.arrow" for split in n_pair)]
        write_draft(recipe, temporary / RECIPE)
        facts = report.as_dict()
        _write_report(job, facts, temporary)
        content = {
            "inputs": inputs,
            "settings": settings,
            "n_pair": n_pair,
            "corpora": corpora,
            "n_vocab": {"src": subwords.src.n_vocab, "trg": subwords.trg.n_vocab},
            "ids": str(dtype_of_ids(subwords)),
            "subwords_sha256": subwords.sha256,
            "tokenizers": metadata.version("tokenizers"),
            "nmt": version_and_commit(),
        }
        manifest = write_manifest(temporary, content, files)
    job.lap("report")
    n_token = facts["subwords"]["trg"]["pieces"] + n_pair["train"]
    _say(job, n_pair, None if given else large_vocabulary(subwords.trg.size, n_token))
    return manifest


def _is_there(job: _Job, present: dict[str, Any], inputs: list[dict[str, Any]], settings: dict[str, Any]) -> bool:
    """Return whether what is asked for is there already. Another folder is refused or replaced."""
    changed = _changes(present, inputs, settings)
    if job.overwrite:
        return False
    if changed:
        raise DataError(
            f"{job.folder}: holds data prepared from other files or with other settings ({'; '.join(changed)}). "
            "Replace it with --overwrite, or choose another folder with data.out."
        )
    Prepared.open(job.folder)
    remove_abandoned(job.folder)
    job.talk(f"{job.folder}: already prepared from the same files with the same settings, nothing to do")
    if later := later_filters(present["settings"], settings):
        job.talk(f"{job.folder}: was made before there were {', '.join(later)}; with --overwrite they filter it, too")
    return True


def _note_beforehand(job: _Job, inputs: list[dict[str, Any]]) -> None:
    """Note in the report what is told before any pair is read."""
    for language in unknown_languages(job.recipe.data):
        job.report.note("language", language)
    for where in other_languages(job.sources, job.recipe.data):
        job.report.note("other_language", where)
    for where in codes_as_text(job.sources, job.recipe.data):
        job.report.note("header", where)
    job.report.n_read = sum(each["n_line"] for each in inputs if each["split"] == "train" and each["side"] == "src")


def _prepare_training_pairs(
    job: _Job,
    held_out: dict[str, Texts],
    given: Given | None,
    known: list[Path],
    temporary: Path,
) -> tuple[Subwords, list[dict[str, Any]]]:
    """Keep, count, learn and encode, into train.arrow; return the subwords, and the corpora for the manifest.

    given: subwords that are not learnt. known: folders where pairs may have been encoded before.
    """
    recipe, report, n_read = job.recipe, job.report, job.report.n_read
    with WorkerPool(n_process(recipe.data, n_read)) as workers:
        kept = keep_training_pairs(job.sources, held_out, recipe.data, recipe.subwords, report, temporary, workers)
        job.lap("read and filter")
        counts = count_words_of(kept, recipe.subwords, _SAMPLE_SEED, report, workers)
        job.lap("count")
        assert report.survey is not None
        finish = report.survey.begin_to_finish(workers)
        with progress_bar("looking for shifted lines", n_read) as progress:
            if not len(kept):
                finish(progress.update)
                report.conclude(job.sources, held_out, kept.shown)
                raise _stopped(job, nothing_left(report.as_dict(), job.sources, recipe.data))
            subwords = _learn(recipe, given, kept, counts, report, job.talk)
            subwords.save(temporary / SUBWORDS)
            job.lap("learn")
            finish(progress.update)
        report.conclude(job.sources, held_out, kept.shown)
        report.found["swapped"] = swapped(job.sources, kept, held_out, recipe.data)
        job.lap("conclude")
        corpora = encode_training_pairs(recipe.data, subwords, kept, report, temporary, workers, known, job.talk)
    kept.remove()
    return subwords, corpora


def _write_held_out(recipe: Recipe, held_out: dict[str, Texts], subwords: Subwords, folder: Path) -> dict[str, int]:
    """The ids of the validation and test sets, with their texts, a file for each; return how many pairs each has."""
    tags, n_pair = held_out_tags(recipe.data), {}
    for split, (src, trg, _) in held_out.items():
        tables = _held_out_tables(src, trg, subwords.tagged(tags.get(split, ())))
        n_pair[split] = write_arrow(folder / f"{split}.arrow", tables, subwords)
    return n_pair


def _write_report(job: _Job, facts: dict[str, Any], folder: Path) -> None:
    """Write the report as JSON and as a page, and the page where else it is asked for."""
    write_lines(folder / REPORT, json.dumps(facts, indent=1, ensure_ascii=False).split("\n"))
    _write_page(job, facts, folder / PAGE, dated=False)  # the bytes of a folder do not depend on when it was made
    if job.only_report:
        _write_page(job, facts, job.only_report)


def _write_page(job: _Job, facts: dict[str, Any], place: Path, *, dated: bool = True) -> None:
    data, made = job.recipe.data, f"Made by nmt-preprocess {version_and_commit()} from the recipe {job.recipe.name}"
    if dated:
        made += f" on {time.strftime('%Y-%m-%d %H:%M')}"
    html = page(facts, job.recipe.name, (data.src_lang, data.trg_lang), job.inputs, f"{made}.")
    write_lines(place, html.split("\n"))


def _stopped(job: _Job, why: str, advice: str = "") -> AlarmError:
    """The error of corpora that are not prepared; its report is written beside the folder that they were to be in."""
    place = job.only_report or page_beside(job.folder)
    with contextlib.suppress(DataError):  # another file has that name
        refuse_foreign_page(place)
        _write_page(job, job.report.as_dict(), place)
        why += f" The report is {place}."
    return AlarmError(f"{why} No data was written.{advice}")


def page_beside(folder: Path) -> Path:
    """Return where the report of data lies that is not written: beside the folder."""
    folder = folder if folder.name.strip(".") else folder.resolve()
    return folder.with_name(f"{folder.name}.report.html")


def _tell(job: _Job) -> None:
    for line in job.report.table():
        job.talk(line)


def _say(job: _Job, n_pair: dict[str, int], large: str | None) -> None:
    """Tell how it went. n_pair: of each split; large: a word on the size of the vocabulary."""
    _tell(job)
    if large:
        job.talk(f"note: {large}")
    told = ", ".join(f"{n:,} {split}" for split, n in n_pair.items())
    job.talk(f"{job.only_report or job.folder / PAGE}: the report, for a browser")
    job.talk(f"{job.folder}: {told} pairs{' would be prepared; nothing is written there' if job.only_report else ''}")


def use_threads(n: int) -> None:
    """Let tokenizers use n threads, all cores for 0. Only the first call of a process that encodes has an effect."""
    os.environ["RAYON_NUM_THREADS"] = str(n or os.cpu_count() or 1)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"  # said explicitly, or a later fork prints a warning


def _changes(present: dict[str, Any], inputs: list[dict[str, Any]], settings: dict[str, Any]) -> list[str]:
    """Return what a new folder would be made of otherwise than the present one. Bytes count, names do not."""

    def identity(each: dict[str, Any]) -> tuple[Any, ...]:
        return each.get("split"), each.get("side"), each.get("sha256"), each.get("column")

    before = set(map(identity, present["inputs"]))
    changed = [f"{each['name']} is new" for each in inputs if identity(each) not in before]
    if not changed and list(map(identity, present["inputs"])) != list(map(identity, inputs)):
        changed = ["the list of files is another"]
    return changed + changed_settings(present["settings"], settings)


def _learn(
    recipe: Recipe,
    given: Given | None,
    kept: KeptPairs,
    counts: tuple[Counter[str], Counter[str]],
    report: DataReport,
    talk: Talk,
) -> Subwords:
    """Train the subwords on the kept pairs, or take those of a file, and say what came of it."""
    tags, protect = known_tags(recipe.data), recipe.data.protect
    if given:
        lines = partial(kept.lines, 0), partial(kept.lines, 1)
        subwords = reuse(given, lines, recipe.subwords, _SAMPLE_SEED, report.notes, tags, protect)
        for line in account_of(given.load(joint=recipe.subwords.joint), subwords, given):
            talk(line)
        return subwords
    # No bar: the lines go by in a moment, and of the merges that follow the library tells nothing we could show.
    what = {"char": "characters", "word": "words"}.get(recipe.subwords.kind, "subwords")
    talk(f"learning {recipe.subwords.vocab_size:,} {what} ...")
    subwords = Subwords.train(*counts, recipe.subwords, _SAMPLE_SEED, report.notes, tags, protect)
    for side, codec in subwords.by_side().items():
        wanted = recipe.subwords.vocab_size
        short = f" ({wanted:,} asked for: the text has no more)" if codec.size < wanted else ""
        talk(f"{side} vocabulary: {codec.size:,} pieces{short}, padded to {codec.n_vocab:,}")
    return subwords


def _held_out_tables(src: list[str], trg: list[str], subwords: Subwords) -> Iterator[pa.Table]:
    for start in range(0, len(src), BLOCK):
        lines = src[start : start + BLOCK], trg[start : start + BLOCK]
        pairs = [protected_pair(*pair, subwords.src.protects)[:2] for pair in zip(*lines, strict=True)]
        codecs, dtype = (subwords.src, subwords.trg), dtype_of_ids(subwords)
        sides = ([pair[n] for pair in pairs] for n in range(2))
        table = table_of(*(Ragged.of(codec.encode(side), dtype) for codec, side in zip(codecs, sides, strict=True)))
        for name, text in zip(("src_text", "trg_text"), lines, strict=True):
            table = table.append_column(name, texts_as_arrow(text))
        yield table


class _Laps:
    """Tells how long each stage took."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds, self._last = seconds, time.perf_counter()

    def __call__(self, stage: str) -> None:
        """A stage has ended, and the next one begins."""
        now = time.perf_counter()
        self._seconds[stage], self._last = now - self._last, now


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)
