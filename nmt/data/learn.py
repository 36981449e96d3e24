"""Learning the pieces of a vocabulary from text: what it is learnt from, and how each kind is.

Text is never held: what grows with it is the number of different words, of which at most some millions are counted.
The answer depends on the text and the seed, not on threads.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from nmt.data.letters import BYTE_OF, in_characters, in_words, normalised, units_of
from nmt.data.placeholders import PLACEHOLDER
from nmt.data.unigram import learn_scores
from nmt.recipe.subword_options import SubwordsConfig

# BPE looks at every symbol of a word for every merge in it: one endless word would take minutes. What is cut off
# here is only not learned from; encoding sees whole lines.
LINE_CAP = 10_000
WORD_CAP = 100
_ENDLESS = re.compile(rf"\S{{{WORD_CAP + 1},}}|\s{{{WORD_CAP + 1},}}")
_PART = re.compile(rf"\s{{0,{WORD_CAP}}}\S{{1,{WORD_CAP}}}|\s{{1,{WORD_CAP}}}")
# Different words that are counted, some 100 bytes each; with more, those that occurred once are forgotten.
_MOST_COUNTED = 4_000_000
# A unigram vocabulary begins with so many times the pieces that are wanted, and drops the least useful ones.
SEED_PIECES = 4

Lines = Callable[[], Iterable[str]]


@dataclass(frozen=True)
class Learnt:
    """The pieces of a vocabulary in the order of their ids, in letters; merges for BPE, scores for unigram."""

    vocab: list[str]
    merges: list[tuple[str, str]]
    scores: list[float]


def learn(
    sides: Sequence[Lines],
    config: SubwordsConfig,
    seed: int,
    *,
    n_piece: int,
    longest: int,
    notes: Counter[str] | None = None,
) -> Learnt:
    """Learn n_piece pieces, or fewer where the text has no more, none of over `longest` bytes.

    sides: give their lines anew at each call, without line feeds. notes: counts what was too long to be looked at.
    """

    def texts(notes: Counter[str] | None = None) -> Iterator[str]:
        return learnt_from(sides, config, seed, notes)

    if config.kind == "word":
        # All other words are spelled with the bytes.
        words = most_frequent(count_words(texts(notes)), n_piece - len(BYTE_OF), longest)
        return Learnt([*BYTE_OF, *words], [], [])
    if config.kind == "unigram":
        pieces = learn_merges(texts(notes), in_words(), n_piece * SEED_PIECES, longest).vocab
        vocab, scores = learn_scores(count_words(texts()), pieces, list(BYTE_OF), n_piece)
        return Learnt(vocab, [], scores)
    cut = in_characters() if config.kind == "char" else in_words()
    return learn_merges(texts(notes), cut, n_piece, longest)


def learnt_from(
    sides: Sequence[Lines], config: SubwordsConfig, seed: int, notes: Counter[str] | None = None
) -> Iterator[str]:
    """The texts that pieces are learnt from: a sample of the lines, normalised, without symbols and without ends."""
    cut = re.compile("|".join([*map(re.escape, config.symbols), PLACEHOLDER]))
    for line in sample(sides, config.max_train_lines, seed):
        text = " " + normalised(line, config.normalize)
        for between in cut.split(text):  # no piece may look like a symbol
            yield from parts(between, notes)


def count_words(texts: Iterable[str]) -> Counter[str]:
    """How often each word, number or run of punctuation occurs, in letters."""
    units: Counter[str] = Counter()
    for text in texts:
        units.update(units_of(text))
        if len(units) > _MOST_COUNTED:
            units = Counter({unit: n for unit, n in units.items() if n > 1})
    cut, words = in_words(), Counter[str]()
    for unit, n in units.items():
        for word, _ in cut.pre_tokenize_str(unit):
            words[word] += n
    return words


def sample(sides: Sequence[Lines], most: int, seed: int) -> Iterator[str]:
    """All lines of all sides, or `most` of them, each as likely as any other; in order, and the same for a seed."""
    left = sum(1 for lines in sides for _ in lines())
    wanted = min(most, left)
    draw = random.Random(seed)
    for lines in sides:
        for line in lines():
            if wanted >= left or draw.random() * left < wanted:
                wanted -= 1
                yield line
            left -= 1


def parts(text: str, notes: Counter[str] | None = None) -> Iterable[str]:
    """What is learnt from a text: all of it, but no end of a very long one and no endless word."""
    if notes is not None and len(text) > LINE_CAP:
        notes["line_cap"] += 1
    text = text[:LINE_CAP]
    if len(text) <= WORD_CAP or not (endless := _ENDLESS.findall(text)):
        return (text,)
    if notes is not None:
        notes["word_cap"] += len(endless)
    return _PART.findall(text)


def learn_merges(texts: Iterable[str], cut: pre_tokenizers.PreTokenizer, n_piece: int, longest: int) -> Learnt:
    """Byte-level BPE. cut: what no piece goes over."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = cut
    trainer = trainers.BpeTrainer(
        vocab_size=n_piece,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        max_token_length=longest,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab: dict[str, int] = model["vocab"]
    return Learnt(sorted(vocab, key=vocab.__getitem__), [(a, b) for a, b in model["merges"]], [])


def most_frequent(words: Counter[str], n: int, longest: int, but: Container[str] = ()) -> list[str]:
    """The n words that occur most often, of two letters to `longest`, without some."""
    counted = ((word, n) for word, n in words.items() if 1 < len(word) <= longest and word not in but)
    return [word for word, _ in sorted(counted, key=lambda each: (-each[1], each[0]))[:n]]
