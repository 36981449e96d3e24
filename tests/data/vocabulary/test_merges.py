"""BPE merges learnt from counted words, compared with those that the tokenizers library learns from text."""

import json
import random
from collections import Counter

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from nmt.data.learners import merges_of

N_BYTE = dict.fromkeys(pre_tokenizers.ByteLevel.alphabet(), 1)


def library_merges(words, n_piece, longest):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    options = {"special_tokens": [], "max_token_length": longest, "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=n_piece, initial_alphabet=list(N_BYTE), **options)
    tokenizer.train_from_iterator((" ".join([word] * n) for word, n in words.items()), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [tuple(merge) for merge in model["merges"]]


@pytest.mark.parametrize("letters", ["ab", "abcde", "abcdefghij\u0120"])
def test_merges_equal_those_of_the_library(letters):
    for seed in range(30):
        rng = random.Random(f"{letters} {seed}")
        n_word = rng.randint(1, 80)
        words = Counter(
            {"".join(rng.choices(letters, k=rng.randint(1, 14))): rng.choice([1, 1, 2, 3, 50]) for _ in range(n_word)}
        )
        n_piece, longest = 256 + rng.randint(0, 120), rng.choice([3, 5, 8, 64])
        found = merges_of(words, N_BYTE, n_piece, longest)
        assert found == library_merges(words, n_piece, longest), seed


def test_counts_may_exceed_32_bits_and_no_words_give_no_merges():
    words = Counter({"ab": 1 << 40, "cd": (1 << 40) + 1, "ef": 7})
    assert merges_of(words, N_BYTE, 259, 64)[1] == [("c", "d"), ("a", "b"), ("e", "f")]
    assert merges_of(Counter(), N_BYTE, 300, 64) == (sorted(N_BYTE), [])
