"""Selection of the pairs that are kept: training pairs that pass the filters, and all lines of validation and test
files. Then the words of the kept pairs are counted, and the pairs are written as ids.

`block_work.py` processes one block. This file distributes the blocks and merges the results in order. Dropped pairs are
counted with file and line.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, compress, islice, repeat
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from nmt.data.arrays import STEP, Ragged, mixed
from nmt.data.block_work import Codes, Task, TextBlock, Use
from nmt.data.corpus import in_batches, write_arrow
from nmt.data.dedup import keys_for, repeated
from nmt.data.filters import CODES, LOW_SCORE, TOO_LONG, CorpusFacts, filters_of, oddities, usual_ratio
from nmt.data.formats import Flaw, Policy, Reading, Text, TextOrFlaw
from nmt.data.letters import LONGEST_PIECE, draw_sample
from nmt.data.lines import LONGEST_LINE
from nmt.data.report import DataReport
from nmt.data.sources import Source
from nmt.data.subwords import Subwords, vocabulary_use
from nmt.data.survey import KeptPairs, Texts
from nmt.data.text import SIDES, VALID, Block, Hashes
from nmt.data.worker_pool import WorkerPool
from nmt.errors import DataError
from nmt.processes import n_core
from nmt.progress import Bar
from nmt.recipe.data_options import DataConfig, SubwordsConfig
from nmt.recipe.options import Recipe


def reading_of(data: DataConfig | None, report: DataReport) -> Reading:
    """Return the policy of reading; oddities go to the report. data: options, None for validation and test sources."""
    policy: tuple[Policy, Policy, int] = ("refuse", "refuse", LONGEST_LINE)
    if data:  # a text that is cut at this length is dropped as too long anyway
        policy = data.bad_utf8, data.bad_records, data.max_len * LONGEST_PIECE + 8
    return Reading(*policy, report.notes, lambda name, number: report.note("line_feed", f"{name}:{number}"))


def texts_of(source: Source, data: DataConfig) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a training source except those with a low score. Pairs with a flaw are empty."""
    pairs = source.pairs(reading_of(data, DataReport()))
    for src, trg in compress(pairs, chain(~source.is_low, repeat(True))):
        yield ("", "") if isinstance(src, Flaw) or isinstance(trg, Flaw) else (src, trg)


def progress_bar(title: str, total: int) -> Bar:
    """Return a progress bar that counts pairs."""
    return Bar(total=total, desc=title, unit=" pairs", unit_scale=True)


# Validation pairs that are held out of the training files, for a recipe without validation files.
AUTO_SHARE, AUTO_LEAST, AUTO_MOST = 0.01, 200, 2000
_LARGEST_SHARE = 0.2  # limit of the share of the training pairs
_SPARE = 3  # candidates for each pair that is needed, since the filters drop some


def n_to_hold_out(size: float | str, n_pair: int) -> int:
    """Return the number of pairs to hold out of n_pair. size: the option data.valid_size."""
    limit = int(_LARGEST_SHARE * n_pair)
    if isinstance(size, str):
        return min(limit, max(AUTO_LEAST, min(AUTO_MOST, round(AUTO_SHARE * n_pair))))
    return min(limit, round(size * n_pair) if size < 1 else int(size))


def with_held_out(sources: Sequence[Source], data: DataConfig) -> list[Source]:
    """Return the sources and one more for validation, with texts drawn from the training files."""
    assert data.valid_size is not None
    # More than are needed: rank, hashes of the near copies of both sides, source, target and corpus of each.
    candidates, n_pair = list[tuple[int, tuple[int, int], str, str, int]](), 0
    synthetic = [n for n, corpus in enumerate(data.train) if corpus.translated_by]
    for source in (source for source in sources if source.split == "train" and source.corpus not in synthetic):
        for block in cut_blocks(texts_of(source, data)):
            src, trg = zip(*block, strict=True)
            n_pair += len(src)
            n_candidate = _SPARE * max(1, n_to_hold_out(data.valid_size, n_pair))
            (src_hash, _, n_src, _), (trg_hash, _, n_trg, _) = (Block(side).near() for side in (src, trg))
            rank = mixed(src_hash * np.uint64(STEP))
            rank[(n_src == 0) | (n_trg == 0)] = np.iinfo(np.uint64).max
            candidates += [
                (int(rank[k]), (int(src_hash[k]), int(trg_hash[k])), src[k], trg[k], source.corpus)
                for k in np.argsort(rank, kind="stable")[:n_candidate].tolist()
            ]
            candidates = sorted(candidates)[:n_candidate]
    n_wanted = n_to_hold_out(data.valid_size, n_pair)
    corpora = (CorpusFacts(data.filters_of(n), data.max_len, data.languages_of(n)) for n in range(len(data.train)))
    filters = list(map(filters_of, corpora))
    chosen, used_hashes = list[tuple[str, str]](), set[int]()
    for _, near, src_text, trg_text, corpus in candidates:
        is_new = len(chosen) < n_wanted and used_hashes.isdisjoint(near)
        if is_new and not any(drops(src_text, trg_text) for _, drops in filters[corpus]):
            used_hashes.update(near)
            chosen.append((src_text, trg_text))
    if not chosen:
        raise DataError(
            f"no pair can be held out for validation: {n_pair:,} training pairs are too few, or the filters drop all. "
            "Name validation files: --valid, or data.valid."
        )
    name = f"{len(chosen):,} pairs held out of training"
    src, trg = zip(*chosen, strict=True)
    return [*sources, Source(VALID, Text(f"{name}, source", src), Text(f"{name}, target", trg))]


N_PAIR = 10_000  # pairs of a block, the unit of work
_MOST_CHARACTERS = 1 << 22  # characters of a side of a block, approximately: blocks of long lines have fewer pairs
_WORTHWHILE = 2 * N_PAIR  # pairs that make it worthwhile to start a process


def cut_blocks(pairs: Iterator[tuple[TextOrFlaw, TextOrFlaw]]) -> Iterator[list[tuple[TextOrFlaw, TextOrFlaw]]]:
    """Cut pairs into blocks."""
    block, n_char = list[tuple[TextOrFlaw, TextOrFlaw]](), 0
    while chunk := list(islice(pairs, min(100, N_PAIR - len(block)))):
        block += chunk
        n_char += max(sum(map(len, side)) for side in zip(*chunk, strict=True))
        if len(block) == N_PAIR or n_char >= _MOST_CHARACTERS:
            yield block
            block, n_char = [], 0
    if block:
        yield block


def blocks_of(training: Sequence[Source], reading: Reading, most: int) -> Iterator[TextBlock]:
    """Cut training sources into blocks. most: pairs to read in all, even if files have grown."""
    n_read = 0
    for n_source, source in enumerate(training):
        first = source.first_number
        for block in cut_blocks(islice(source.pairs(reading), most - n_read)):
            is_low = source.is_low[first - source.first_number :][: len(block)]
            flaws = dict.fromkeys(np.flatnonzero(is_low).tolist(), LOW_SCORE)
            for n, (src_text, trg_text) in enumerate(block):
                if isinstance(src_text, Flaw) or isinstance(trg_text, Flaw):
                    flaws[n] = src_text.reason if isinstance(src_text, Flaw) else cast(Flaw, trg_text).reason
                    block[n] = ("", "")
            src, trg = zip(*block, strict=True)
            yield TextBlock(n_source, first, n_read, src, trg, flaws)
            n_read += len(block)
            first += len(block)


def _read_held_out(sources: Sequence[Source], split: str, report: DataReport) -> Texts:
    """Return all lines of the validation or test files, unchanged. Raises DataError if no pair has text."""
    texts, n_blank = Texts([], [], []), 0
    of_split = [source for source in sources if source.split == split]
    for source in of_split:
        start = len(texts.src)
        for n, pair in enumerate(source.pairs(reading_of(None, report))):
            if any(isinstance(line, str) and not line.strip() for line in pair):
                n_blank += 1
                report.note("blank", source.place(source.first_number + n))
            for text, line, lines in zip((source.src, source.trg), pair, (texts.src, texts.trg), strict=True):
                # These lines are never cut or dropped, but a longer one is no text.
                if isinstance(line, Flaw) or len(line.encode("utf-8")) > LONGEST_LINE - 8:
                    raise DataError(
                        f"{text.name}:{1 + text.header + n}: a {split} line of over {LONGEST_LINE:,} bytes, and lines "
                        f"of {split} files cannot be dropped. Look for missing line feeds in the file."
                    )
                report.notes.update(oddities(line))
                lines.append(line)
        texts.sources.append((source, slice(start, len(texts.src))))
    if n_blank and n_blank == len(texts.src):
        names = ", ".join(source.src.name for source in of_split)
        raise DataError(
            f"{names}: none of {n_blank:,} {split} pairs has text on both sides, so nothing can be measured."
        )
    return texts


def n_process(config: DataConfig, n_pair: int) -> int:
    """Return the number of processes worth starting; starting one takes half a second."""
    return min(config.workers or n_core(), 1 + n_pair // _WORTHWHILE)


def keep_pairs(
    folder: Path, sources: Sequence[Source], recipe: Recipe, report: DataReport, workers: WorkerPool
) -> KeptPairs:
    """Read the validation and test files; read, filter and measure all training pairs. folder: for the kept pairs."""
    splits = dict.fromkeys(source.split for source in sources if source.split != "train")
    held_out = {split: _read_held_out(sources, split, report) for split in splits}
    kept = KeptPairs(folder, [source for source in sources if source.split == "train"], held_out)
    config, corpora = recipe.data, list[CorpusFacts]()
    for source in kept.training:
        filters = config.filters_of(source.corpus)
        usual = usual_ratio(texts_of(source, config), filters.max_ratio)
        if usual is not None:
            report.learnt_ratios[source.corpus, source.src.name] = usual
        corpora.append(CorpusFacts(filters, config.max_len, config.languages_of(source.corpus), usual))
    drawn: Hashes = np.empty(0, np.uint64)
    if config.valid_size:
        src, trg, _ = kept.held_out[VALID]
        near, _, lengths, _ = Block([*src, *trg]).near()
        drawn = np.unique(near[lengths > 0])
    workers.begin(Task, recipe, kept.folder, corpora, kept.held_out_hashes, drawn)
    codes, n_pair, reading = _decide(kept, config, report, workers), report.n_read, reading_of(config, report)
    if codes is not None:
        n_pair, reading = len(codes), reading_of(config, DataReport())  # the first reading has noted the oddities
    blocks = blocks_of(kept.training, reading, n_pair)
    tasks = ((block, None if codes is None else codes[block.start :][: len(block.src)]) for block in blocks)
    with progress_bar("reading", report.n_read) as progress:
        for measurements, dropped, unlike, notes in workers.each("filter_and_measure", tasks):
            kept.add(measurements)
            report.notes.update(notes)
            source = kept.training[measurements.block.source]
            for reason, n, first in dropped:
                report.drop(reason, n, first, source)
            report.note("unlike_items", *map(source.place, unlike))
            progress.update(measurements.n_pair)
    return kept


def _decide(kept: KeptPairs, config: DataConfig, report: DataReport, workers: WorkerPool) -> Codes | None:
    """Return a code for each pair, by all filters; None if no filter compares a pair with others."""
    filters = [config.filters_of(source.corpus) for source in kept.training]
    if not (dtype := keys_for(filters)).names:
        return None
    parts, n_pair_of, path = list[Codes](), [0] * len(filters), kept.folder / "keys"
    tasks = ((block,) for block in blocks_of(kept.training, reading_of(config, report), report.n_read))
    with path.open("wb") as file, progress_bar("looking for duplicates", report.n_read) as progress:
        for source, part, keys in workers.each("decide", tasks):
            n_pair_of[source] += len(part)
            parts.append(part)
            file.write(keys.tobytes())
            progress.update(len(part))
    codes = np.concatenate([np.empty(0, np.uint8), *parts])
    all_keys = np.memmap(path, dtype, "r") if len(codes) else np.empty(0, dtype)
    for reason, numbers in repeated(all_keys, filters, n_pair_of):
        codes[numbers] = CODES[reason]
    path.unlink()
    return codes


# The sample of lines for the vocabulary has a fixed seed: the seed of training must not change the vocabulary.
_SAMPLE_SEED = 0
# Limit of different words, some 100 bytes each. Beyond it, words that occurred once are forgotten.
_MOST_COUNTED = 2_000_000


def count_words_of(kept: KeptPairs, config: SubwordsConfig, workers: WorkerPool) -> tuple[Counter[str], Counter[str]]:
    """Count each word of source and target, in a sample of the lines if there are more than max_train_lines.

    The counts are empty if the subwords are taken from another folder.
    """
    if config.vocab_from and not config.extend:
        return Counter(), Counter()
    most, n_line = config.max_train_lines, kept.n_kept * (2 if config.joint else 1)
    samples: list[list[NDArray[np.bool_]]] = []  # of each side: a mask of the lines of each block
    if n_line > most:
        draw = draw_sample(n_line, most, _SAMPLE_SEED)
        draws = draw, draw if config.joint else draw_sample(n_line, most, _SAMPLE_SEED)
        samples = [[np.fromiter(draw, bool, block.n_kept) for block in kept.blocks] for draw in draws]
    tasks = ((block, [masks[n] for masks in samples]) for n, block in enumerate(kept.blocks))
    counts = Counter[str](), Counter[str]()
    with progress_bar("counting", kept.n_kept) as progress:
        for block, counts_of_sides in zip(kept.blocks, workers.each("count", tasks), strict=True):
            for total, side_counts in zip(counts, counts_of_sides, strict=True):
                total.update(side_counts)
                if len(total) > _MOST_COUNTED:
                    for word in [word for word, n in total.items() if n == 1]:
                        del total[word]
            progress.update(block.n_kept)
    return counts


N_ROW = 10_000  # rows of a record batch


def encode_training_pairs(
    kept: KeptPairs, config: DataConfig, subwords: Subwords, report: DataReport, workers: WorkerPool
) -> list[dict[str, Any]]:
    """Write train.arrow without the pairs of too many subwords; return the corpora for the manifest."""
    tags = [subwords.src.tag_ids(config.tags_of(corpus)) for corpus in config.train]
    codecs = zip(SIDES, (subwords.src, subwords.trg), strict=True)
    totals: dict[str, Use] = {side: (0, 0, np.zeros(codec.size, np.int64)) for side, codec in codecs}
    corpora: dict[int, dict[str, Any]] = {}  # by their numbers; one that is not translated yet has no source
    for source in kept.training:
        usual = report.learnt_ratios.get((source.corpus, source.src.name))
        facts = {"trg_lang": config.languages_of(source.corpus)[1], "usual_ratio": usual.median if usual else None}
        corpora.setdefault(source.corpus, {"name": source.src.name, "n_pair": 0, **facts})
    tasks = ((block, tags[kept.training[block.source].corpus]) for block in kept.blocks)

    def encoded() -> Iterator[tuple[Ragged, Ragged]]:
        with progress_bar("encoding", kept.n_kept) as progress:
            for block, (rows, uses, too_long) in zip(kept.blocks, workers.each("encode", tasks), strict=True):
                source, n_pair = kept.training[block.source], len(rows[0].lengths)
                corpora[source.corpus]["n_pair"] += n_pair
                if n_pair < block.n_kept:
                    report.drop(TOO_LONG, block.n_kept - n_pair, too_long, source)
                for side, (n_word, n_char, counts) in zip(SIDES, uses, strict=True):
                    words, characters, occurrences = totals[side]
                    totals[side] = words + n_word, characters + n_char, occurrences + counts
                yield rows[0], rows[1]
                progress.update(block.n_kept)

    report.n_kept = write_arrow(kept.folder / "train.arrow", in_batches(encoded(), N_ROW))
    if len(corpora) > 1:
        report.survey["corpora"] = []
        for number, corpus in corpora.items():
            dropped, n_kept = report.dropped.get(number, Counter()), corpus["n_pair"]
            counts = {"read": n_kept + dropped.total(), "kept": n_kept, "dropped": dict(dropped.most_common())}
            report.survey["corpora"].append({"name": corpus["name"], **counts})
    report.survey["subwords"] = vocabulary_use(subwords, report.langs, totals)
    return list(corpora.values())
