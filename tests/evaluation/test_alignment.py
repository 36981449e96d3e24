"""Word alignments from attention weights, and the words that subwords belong to."""

import pytest
import torch

from nmt.decoding.evidence import word_alignment, words_of
from nmt.decoding.scorer import subword_alignment
from nmt.decoding.translator import Scored, join_scored
from nmt.recipe.data_options import SubwordsConfig
from tests.learnt import learnt_subwords

LINES = [
    "the old ship left",
    "  two  leading, \t three   between ",
    "don't e\u0301 \u1e9b\u0323 naïve — 日本語 🙂\u00a0🙂\u3000x",
    "a\x1cb!\x1c! \u200b\u2028c\x85d\x0be",  # white space to Python but not to the tokenizer
    "x",
    " ",
    "Übung" * 30,
]


@pytest.fixture(scope="module")
def codec():
    train = ["the old ship left  in May, don't"] * 9
    return learnt_subwords(train, train, SubwordsConfig(vocab_size=290)).trg


@pytest.mark.parametrize("line", LINES)
def test_the_pieces_of_a_word_join_to_the_word(codec, line):
    pieces = codec.raw(codec.encode([line])[0])
    words = codec.normalised(line).split()
    words_of_piece = words_of(pieces)
    assert sorted({word for numbers in words_of_piece for word in numbers}) == list(range(len(words)))
    for number, word in enumerate(words):
        text = b"".join(piece for piece, numbers in zip(pieces, words_of_piece, strict=True) if number in numbers)
        assert word in text.decode("utf-8", errors="replace")


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], []),
        ([b" a", b"b", b" c"], [[0], [0], [1]]),
        ([b" ", b"  ", b"a", b" "], [[], [], [0], []]),
        ([b" \xc3", b"\xbc x", b"y"], [[0], [0, 1], [1]]),  # ü in two pieces, the second of two words
        ([b" \xff", b"\xfe", b" \xe2\x80", b"\xa8", b"b"], [[0], [0], [], [], [1]]),  # no UTF-8, and U+2028 in two
        ([b" a", b"", b"b"], [[0], [], [0]]),  # a control symbol is no text
    ],
)
def test_words_end_at_white_space_even_inside_a_piece(pieces, expected):
    assert words_of(pieces) == expected


def test_a_subword_aligns_to_the_source_with_most_attention_in_upper_layers():
    weights = torch.rand(4, 2, 5, 7, generator=torch.Generator().manual_seed(0)) / 9
    expected = [3, 0, 5, 1]
    weights[-2:, 1, range(4), expected] += 0.9
    weights[-2:, 0, :, 4] += 0.5  # one head looks elsewhere, but less
    weights[:2, :, :, 2] = 9.0  # lower layers are ignored,
    weights[-2:, :, :, 6] = 9.0  # and so is the end of the source;
    assert subword_alignment(weights) == expected  # the end of the target is not aligned


def test_alignment_from_one_layer_and_one_head():
    weights = torch.rand(3, 2, 5, 7, generator=torch.Generator().manual_seed(0)) / 9
    expected = [3, 0, 5, 1]
    weights[0, 1, range(4), expected] = 9.0
    weights[1, 0, range(4), expected] = 9.0
    weights[1, 1, range(4), [2, 2, 2, 2]] = 10.0
    assert subword_alignment(weights, 1, 2) == subword_alignment(weights, 2, 1) == expected
    assert subword_alignment(weights, 2) == [2, 2, 2, 2]  # the mean of its heads


def test_the_alignment_of_a_split_line_joins_those_of_its_parts():
    generator = torch.Generator().manual_seed(1)
    blocks = [torch.rand(2, 2, t, s, generator=generator) for t, s in ((4, 3), (1, 2), (3, 4))]
    pieces = [Scored([], [9] * (block.size(-1) - 1), [], alignment=subword_alignment(block)) for block in blocks]
    # (8, 9): the whole line at once; ends of parts are masked below
    line = torch.block_diag(*(block.mean((0, 1)) for block in blocks))
    line[:, [2, 4, 8]] = -1.0
    expected = line[:-1].argmax(-1).tolist()
    expected[3] = expected[4] = None
    assert join_scored(pieces).alignment == expected and expected.count(None) == 2


def test_words_are_aligned_if_any_of_their_subwords_are():
    src, trg = [[0], [0], [1], [], [2]], [[0], [1], [1], [], [2, 3]]
    assert word_alignment([4, 0, 1, 2, 2], src, trg) == "0-1 1-2 1-3 2-0"
    assert word_alignment([3, 3, 3, 3, 3], src, trg) == ""  # white space is no word
    assert word_alignment([0] * 5, [[10]], [[0], [1], [2], [9], [11]]) == "10-0 10-1 10-2 10-9 10-11"


def test_characters_are_the_words_of_text_without_spaces():
    pieces = [" 私は".encode(), "学生".encode(), " です".encode()[:3], " です".encode()[3:], b"."]
    assert words_of(pieces) == [[0], [0], [1], [1], [1]]
    assert words_of(pieces, True) == [[0, 1], [2, 3], [4], [4, 5], [6]]
