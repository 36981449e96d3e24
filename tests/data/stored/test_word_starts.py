"""Word starts found from pieces are word starts of the text. In plain text all of them are found."""

import itertools
import random

import numpy as np
import pytest

from nmt.data.letters import in_words
from nmt.data.resample import WordStarts
from nmt.recipe.data_options import SubwordsConfig
from tests.data.awkward import AWKWARD
from tests.learnt import learnt_subwords

PLAIN = ["A man sleeps on a sofa.", "two men, 12 dogs: a (sleepy) crew!", "«Ein Hund», 3.50€ für 2x4kg–Säcke …"] * 20
CONTRACTIONS = [
    "it's the dogs' 'tis we've, I'll",
    "don't 'd 're ''s '' x'1 1's .'s s's",
    "a  b   c \t d\u00a0e \u2003 f  ",
] * 20
UNUSUAL = ["e\u0301e\u0301 é", "x²y½ ªº", "漢字 かな한글!", "a\u200db 👩\u200d👧", "ʻokina ‘n’ d’un"]
LINES = [*PLAIN, *CONTRACTIONS, *UNUSUAL, *(line for line in AWKWARD if len(line) < 1000)]
CODECS = {
    kind: learnt_subwords(LINES, LINES, SubwordsConfig(kind=kind, vocab_size=size, symbols=("<url>",))).src
    for kind, size in (("bpe", 400), ("unigram", 400), ("char", 500))
}

STARTS = {codec: WordStarts(codec) for codec in CODECS.values()}


def starts_by_text(codec, ids):
    """Byte offsets at which words start in the text between symbols."""
    starts, offset, symbol = set(), 0, codec.encode(["<url>"])[0][-1]
    for is_symbol, part in itertools.groupby(ids, key=symbol.__eq__):
        raws = codec.raw(list(part))
        if is_symbol:
            starts |= set((offset + np.cumsum(list(map(len, raws))) - len(raws[0])).tolist())
        else:
            words = [word.encode() for word, _ in in_words().pre_tokenize_str(b"".join(raws).decode())]
            starts |= set((offset + np.cumsum([0, *map(len, words[:-1])])).tolist())
        offset += sum(map(len, raws))
    raw = b"".join(codec.raw(ids))
    # In a run of white space, each space that starts a piece also starts a word.
    return starts | {n for n in range(1, len(raw)) if raw[n : n + 1] == b" " and raw[:n].decode()[-1].isspace()}


def starts_by_pieces(codec, ids):
    is_start = STARTS[codec](np.array(ids), np.array([len(ids)]))
    offsets = np.cumsum([0, *map(len, codec.raw(ids[:-1]))])
    return set(offsets[is_start].tolist())


@pytest.mark.parametrize("kind", CODECS)
def test_word_starts_of_pieces_are_word_starts_of_the_text(kind):
    codec, rng = CODECS[kind], random.Random(1)
    letters = ["a", "s", " ", "'", "1", ".", "é", "\u0301", "漢", "²", "’", "\t", "\u00a0", "t", "<url>", "_"]
    random_lines = ["".join(rng.choices(letters, k=12)) for _ in range(500)]
    for line in [*LINES, *random_lines]:
        ids = codec.encode([line])[0]
        assert starts_by_pieces(codec, ids) <= starts_by_text(codec, ids)


@pytest.mark.parametrize("kind", CODECS)
def test_all_word_starts_of_plain_text_are_found(kind):
    codec = CODECS[kind]
    for line in PLAIN[:2]:
        ids = codec.encode([line])[0]
        assert starts_by_pieces(codec, ids) == starts_by_text(codec, ids)


def test_every_sequence_starts_with_a_word_and_may_be_empty():
    codec = CODECS["bpe"]
    rows = [codec.encode([line])[0] for line in ("man", "", "aa", "")]
    is_start = WordStarts(codec)(np.concatenate(rows).astype(np.int64), np.array(list(map(len, rows))))
    assert is_start[0] and is_start[len(rows[0])]
