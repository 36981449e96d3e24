"""Detection of swapped files: by their words, the sides of a validation or test set are rather those of the other sides
of a training corpus.

Told by words alone: those that one training side has far more often than the other vote for it. Names have no vote, nor
have nearly all words where both sides are in one language; most words of another domain are unknown to both sides, the
others vote as they should.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from nmt.data.blockwise.block_file import read_block
from nmt.data.blockwise.kept import KeptPairs
from nmt.data.reading.sources import Source
from nmt.data.reporting.report_words import SWAPPED
from nmt.data.reporting.survey import Texts
from nmt.data.text.tags import held_out_tags, tags_of
from nmt.recipe.data_options import DataConfig

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
