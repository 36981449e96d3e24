"""Subwords that tests learn from lines."""

from collections import Counter

from nmt.data.letters import WordsOf
from nmt.data.subwords import Subwords


def counted_words(lines, config):
    """Count each word of some lines."""
    words_of = WordsOf(config)
    return Counter(word for line in lines for word in words_of(f" {line}"))


def learnt_subwords(src, trg, config, **options):
    """Learn subwords from source and target lines. options: as for `Subwords.train`."""
    return Subwords.train(counted_words(src, config), counted_words(trg, config), config, **options)
