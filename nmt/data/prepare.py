"""The whole of nmt-preprocess: text in, a folder of ids with a manifest out.

The folder is built beside its place under another name and renamed when complete, so whatever kills this
program leaves nothing that a later command accepts. What is read back is in `corpus.py`.
"""

import contextlib
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from nmt.data.arrays import Ragged
from nmt.data.block_work import read_block
from nmt.data.corpus import Prepared, dtype_of_ids, table_of, texts_as_arrow, write_arrow
from nmt.data.dedup import overlap_with_bases
from nmt.data.keep import count_words_of, keep_training_pairs, n_process, read_held_out
from nmt.data.kept import N_ROW, KeptPairs, encode_training_pairs, progress_bar, with_held_out
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
from nmt.data.placeholders import held_out_tags, known_tags, must_have_room, protected_pair, tags_of
from nmt.data.report import DataReport, advice_on_dropped, nothing_left
from nmt.data.report_words import SWAPPED, page, refuse_foreign_page, sentence
from nmt.data.sources import (
    Source,
    facts_of,
    find_sources,
    stamps_of,
    told,
    unknown_languages,
)
from nmt.data.subword_kinds import KINDS
from nmt.data.subwords import Subwords, large_vocabulary
from nmt.data.survey import Texts
from nmt.data.vocab_from import Given, account_of, find_subwords, reuse
from nmt.data.worker_pool import WorkerPool
from nmt.errors import AlarmError, DataError
from nmt.extras import version_and_commit
from nmt.recipe.data_options import DataConfig
from nmt.recipe.draft import write_draft
from nmt.recipe.options import Recipe

# Detection of swapped files.
N_LINE = 4000  # of a file that are looked at, at most; fewer where there are many training files
_FEWEST_LINES, _N_LINE_IN_ALL = 200, 100_000
_N_BLOCK = 4  # which the lines of a training file are taken from

# Letters up to the next other character; one by one from Thai on, as most scripts there set no spaces.
_WORD = re.compile(r"[^\W\d_\u0e00-\U0010ffff]+|[^\W\d_\u0000-\u0dff]")

_TIMES = 4  # so much more often on one training side than on the other: a word of that side
_FEWEST = 10  # different words that vote
_SHARE_VOTING = 0.2  # of the words of a side


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
        if (
            not data.train
            or data.languages_of(by.corpus) != (data.src_lang, data.trg_lang)
            or tags_of(data.train[by.corpus], data)
        ):
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


def _some_lines(kept: KeptPairs, source: int, n_line: int) -> tuple[list[str], list[str]]:
    """Both sides of some kept pairs of a source, from the whole length of it."""
    blocks = [block for block in kept.blocks if block.source == source and block.n_kept]
    step = max(1, -(-len(blocks) // _N_BLOCK))
    src: list[str] = []
    trg: list[str] = []
    for block in blocks[::step]:
        n = n_line // len(blocks[::step])
        for lines, side in zip((src, trg), read_block(block.file, block.offset).sides, strict=True):
            lines += side.texts()[:n]
    return src, trg


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
    lap = _Laps({} if stages is None else stages)
    if recipe.data.valid_size and not recipe.data.valid:
        sources = with_held_out(sources, recipe.data)
        talk(f"valid: {sources[-1].src.name.partition(', ')[0]}, and near copies of them left out of it")
    job = _Job(recipe, folder, sources, talk, report or DataReport(), only_report, lap, overwrite)
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
    inputs = facts_of(job.sources)
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
        subwords, corpora = _prepare_training_pairs(job, held_out, given, temporary)
        if changed := [str(path) for path, stamp in stamps_of(job.sources).items() if stamps[path] != stamp]:
            raise DataError(
                f"{', '.join(changed)}: changed while it was read. Prepare again when nothing else writes to it."
            )
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
            n_more = f" (1 of {len(found):,} alarms, see above)" if found[1:] else ""
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
    job.talk(f"{job.folder}: already prepared from the same files with the same settings, nothing to do")
    return True


def _note_beforehand(job: _Job, inputs: list[dict[str, Any]]) -> None:
    """Note in the report what is told before any pair is read."""
    for language in unknown_languages(job.recipe.data):
        job.report.note("language", language)
    job.report.n_read = sum(each["n_line"] for each in inputs if each["split"] == "train" and each["side"] == "src")


def _prepare_training_pairs(
    job: _Job,
    held_out: dict[str, Texts],
    given: Given | None,
    temporary: Path,
) -> tuple[Subwords, list[dict[str, Any]]]:
    """Keep, count, learn and encode, into train.arrow; return the subwords, and the corpora for the manifest.

    given: subwords that are not learnt.
    """
    recipe, report, n_read = job.recipe, job.report, job.report.n_read
    with WorkerPool(n_process(recipe.data, n_read)) as workers:
        kept = keep_training_pairs(job.sources, held_out, recipe.data, recipe.subwords, report, temporary, workers)
        job.lap("read and filter")
        counts = count_words_of(kept, recipe.subwords, _SAMPLE_SEED, report, workers)
        job.lap("count")
        assert report.survey is not None
        finish = report.survey.begin_to_finish(workers)
        with progress_bar("looking for misaligned lines", n_read) as progress:
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
        corpora = encode_training_pairs(recipe.data, subwords, kept, report, temporary, workers)
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
        subwords = reuse(given, counts, recipe.subwords, report.notes, tags, protect)
        for line in account_of(given.load(joint=recipe.subwords.joint), subwords, given):
            talk(line)
        return subwords
    # No bar: the lines go by in a moment, and of the merges that follow the library tells nothing we could show.
    talk(f"learning {recipe.subwords.vocab_size:,} {KINDS[recipe.subwords.kind].noun} ...")
    subwords = Subwords.train(*counts, recipe.subwords, report.notes, tags, protect)
    for side, codec in subwords.by_side().items():
        wanted = recipe.subwords.vocab_size
        short = f" ({wanted:,} asked for: the text has no more)" if codec.size < wanted else ""
        talk(f"{side} vocabulary: {codec.size:,} pieces{short}, padded to {codec.n_vocab:,}")
    return subwords


def _held_out_tables(src: list[str], trg: list[str], subwords: Subwords) -> Iterator[pa.Table]:
    for start in range(0, len(src), N_ROW):
        lines = src[start : start + N_ROW], trg[start : start + N_ROW]
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
