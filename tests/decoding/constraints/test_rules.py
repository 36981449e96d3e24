import itertools
import random
import re
from functools import lru_cache

import pytest
import torch
from fake_model import HashModel
from small_search import PENALTIES, SRC, divisor, log_prob, run

from nmt.data.letters import BYTE_LETTERS
from nmt.data.subword_kinds import PieceTable
from nmt.data.subwords import EOS, N_SPECIAL, Codec
from nmt.decoding.phrases import Pieces, RequiredPhrase, contains, occurrences
from nmt.decoding.request import Kept, Request, Terms
from nmt.decoding.rules import Rules

# Letters a and b, small enough to enumerate all translations; a text has several segmentations into subwords.
TINY = Codec(PieceTable(vocab=[" ", "a", "b", " a", "ab"], merges=[(" ", "a"), ("a", "b")]))
PIECES = Pieces(TINY)
LONGEST = 4
# A letter and a punctuation mark, which can be part of a phrase but not of a word.
MARKED = Codec(PieceTable(vocab=[" ", "a", "-", " -", "-a"], merges=[(" ", "-"), ("-", "a")]))
REQUESTS = {
    "a prefix": Request("", prefix="ab"),
    "a prefix of many subwords": Request("", prefix="aba"),
    "a prefix that ends with a space": Request("", prefix="a "),
    "a phrase": Request("", required=("ab",)),
    "a phrase that overlaps itself": Request("", required=("aba",)),
    "a phrase of two words": Request("", required=("a ab",)),
    "two phrases": Request("", required=("b", "ab")),
    "no phrase": Request("", avoided=("a",)),
    "none of two phrases": Request("", avoided=("ab", "b a")),
    "a phrase twice": Request("", kept=(Kept("b", 0, 1), Kept("b", 2, 3))),
    "a phrase twice that overlaps itself": Request("", kept=(Kept("aa", 0, 2, (False, True)), Kept("aa", 2, 4))),
    "a phrase that may be the end of a word": Request("", kept=(Kept("ba", 1, 3, (True, False)),)),
    "a phrase that may be within a word, twice": Request("", kept=(Kept("a", 1, 2, (True, True)),) * 2),
    "a prefix and phrases": Request("", prefix="b", required=("ab",), avoided=("a",)),
}


def rules(requests: list[Request], pieces: Pieces = PIECES, *, min_len: int = 0, no_repeat: int = 0) -> Rules:
    shortest = torch.full((len(requests),), min_len)
    return Rules(pieces, requests, min_len=shortest, no_repeat=no_repeat)


def pattern(phrase: str, boundaries: tuple[bool, bool] | None = None) -> str:
    """boundaries: forbid letters and the edge itself before and after; None: where the edge is a letter."""
    before, after = boundaries or (phrase[0] in "ab", phrase[-1] in "ab")
    first, last = re.escape(phrase[0]), re.escape(phrase[-1])
    return (f"(?<![ab{first}])" if before else "") + phrase + (f"(?![ab{last}])" if after else "")


def is_allowed(ids: list[int], request: Request, min_len: int = 0, no_repeat: int = 0, codec: Codec = TINY) -> bool:
    """Check the request by regular expressions over the text, without subwords."""
    text = codec.decode(ids)
    repeats = [i for i in range(len(ids)) if no_repeat and is_repeat(ids[: i + 1], no_repeat)]
    return (
        text.startswith(request.prefix)
        and all(len(re.findall(pattern(p.phrase, p.boundaries), text)) >= p.times for p in request.required_phrases)
        and not any(re.search(pattern(phrase), text) for phrase in request.avoided)
        and len(ids) >= min_len
        and all(is_incomplete(ids[:i], request, codec) for i in repeats)
    )


def is_repeat(ids: list[int], n: int) -> bool:
    windows = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return bool(windows) and windows[-1] in windows[:-1]


def is_incomplete(ids: list[int], request: Request, codec: Codec) -> bool:
    """Return True if the prefix is unfinished or a required phrase is missing."""
    text = b"".join(codec.raw(ids)).decode()
    if request.prefix and len(text.removeprefix(" ")) < len(request.prefix):
        return True
    return any(len(re.findall(pattern(p.phrase, p.boundaries), text)) < p.times for p in request.required_phrases)


@lru_cache(4)
def model_and_scores(seed: int, n_vocab: int) -> tuple[HashModel, list[tuple[float, list[int]]]]:
    """Return a model and all its possible outputs with their log-probabilities."""
    model, tokens = HashModel(n_vocab, seed=seed, sharpness=2.0), range(N_SPECIAL, TINY.size)
    outputs = [list(ids) for n in range(LONGEST + 1) for ids in itertools.product(tokens, repeat=n)]
    return model, [(log_prob(model, SRC[0], ids), ids) for ids in outputs]


def check_best(seed: int, request: Request, kind: str, alpha: float, codec: Codec = TINY, **bounds: int) -> None:
    """Assert that a wide beam finds the best allowed outputs. codec: as many subwords as in TINY."""
    model, scored = model_and_scores(seed, codec.n_vocab)
    max_len = torch.full((1,), LONGEST)
    settings = {"length_penalty": kind, "alpha": alpha, "max_len": max_len, "n_real": TINY.size}
    (found,) = run(model, SRC[:1], beam=700, n_best=5, rules=rules([request], Pieces(codec), **bounds), **settings)
    allowed = [(score, ids) for score, ids in scored if is_allowed(ids, request, codec=codec, **bounds)]
    best = sorted(((score / divisor(len(ids) + 1, kind, alpha), ids) for score, ids in allowed), reverse=True)[:5]
    assert best and [h.ids for h in found] == [ids for _, ids in best]
    assert [h.normalised for h in found] == pytest.approx([score for score, _ in best], abs=1e-12)


STANDING_FREE = [
    Request("", required=("-",)),
    Request("", kept=(Kept("-", 0, 1),)),
    Request("", kept=(Kept("-", 1, 2, (True, False)),)),
    Request("", kept=(Kept("-a", 1, 3, (False, True)),)),
    Request("", kept=(Kept("--", 0, 2),)),
    Request("", kept=(Kept("-", 0, 1), Kept("-", 2, 3))),
    Request("", required=("a",), kept=(Kept("-", 0, 1),)),
]
CHECKS = [
    *((TINY, request, {"no_repeat": n}) for request in REQUESTS.values() for n in (0, 1, 2)),
    *((MARKED, request, {"no_repeat": n}) for request in STANDING_FREE for n in (0, 1)),
    *((TINY, Request(""), {"min_len": n, "no_repeat": m}) for n, m in ((2, 0), (4, 0), (0, 1), (0, 2), (3, 2), (0, 3))),
]


@pytest.mark.parametrize("n", range(len(CHECKS)))
@pytest.mark.parametrize("half", [0, 1])
def test_wide_beam_finds_the_best_allowed_translations(n, half):
    """Each case runs with two length penalties; neighbouring cases have other ones."""
    codec, request, bounds = CHECKS[n]
    check_best(3 + (n + half) % 2, request, *PENALTIES[(2 * n + half) % len(PENALTIES)], codec=codec, **bounds)


@pytest.mark.parametrize("width", [2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_narrow_beam_obeys_rules_and_batch_equals_single_sentences(width, seed):
    model = HashModel(TINY.n_vocab, seed=seed, sharpness=3.0)
    requests = [Request(""), *random.Random(seed).sample(list(REQUESTS.values()), 4), Request("")]
    settings = {"beam": width, "n_real": TINY.size}
    longest = torch.full((len(SRC),), 12)
    batched = run(model, SRC, rules=rules(requests, no_repeat=4), max_len=longest, **settings)
    alone = [
        run(model, SRC[i : i + 1], rules=rules(requests[i : i + 1], no_repeat=4), max_len=longest[:1], **settings)[0]
        for i in range(len(SRC))
    ]
    assert batched == alone
    for request, (hypothesis,) in zip(requests, batched, strict=True):
        assert is_allowed(hypothesis.ids, request, no_repeat=4)


def test_impossible_request_gives_an_unfinished_hypothesis():
    model = HashModel(TINY.n_vocab, seed=3)
    impossible = Request("", required=("ab",), avoided=("ab",))
    found = run(model, SRC[:2], n_real=TINY.size, rules=rules([impossible, Request("", required=("ab",))]))
    assert not found[0][0].finished
    assert found[1][0].finished and contains(TINY.decode(found[1][0].ids), "ab")


def test_translation_ends_when_no_token_is_allowed():
    model = HashModel(TINY.n_vocab, seed=3)
    (found,) = run(model, SRC[:1], n_real=TINY.size, rules=rules([Request("")], min_len=9, no_repeat=1))
    assert len(found[0].ids) == TINY.size - N_SPECIAL and not found[0].finished


LETTERS = ["a", "b", " ", "-", "é", "中", "ก", "“"]


# All bytes, and some longer pieces.
_BYTES = [*BYTE_LETTERS, " a", "ab", " a "]
BYTES = Codec(PieceTable(vocab=_BYTES, merges=[(" ", "a"), ("a", "b")]))


def test_phrase_is_found_in_subwords_as_in_the_text():
    rng, pieces, n_found = random.Random(1), Pieces(BYTES), 0
    for _ in range(120):
        phrase = "".join(rng.choices(LETTERS, k=rng.randint(1, 3))).strip() or "a"
        text = "".join(rng.choices([*LETTERS, phrase], k=rng.randint(0, 8)))
        times, boundaries = rng.choice([1, 1, 2]), rng.choice([None, *itertools.product([False, True], repeat=2)])
        table, state = pieces.table(RequiredPhrase(phrase, times, boundaries)), 0
        for i in BYTES.encode([text])[0]:
            state = int(table.after[state, i])
        found = len(list(occurrences(phrase, text, boundaries))) >= times
        assert bool(table.complete[state]) == found, (phrase, text, times, boundaries)
        if boundaries and times == 1:  # checked by regular expressions; "é" and "ก" are letters, "中" is none
            first, last = (re.escape(edge) if edge.isascii() else "" for edge in (phrase[0], phrase[-1]))
            before, after = f"(?<![abéก{first}])" if boundaries[0] else "", f"(?![abéก{last}])" if boundaries[1] else ""
            assert found == bool(re.search(before + re.escape(phrase) + after, text)), (phrase, text, boundaries)
        n_found += found
    assert 24 < n_found < 96


def test_avoided_phrases_together_forbid_what_each_forbids():
    rng, pieces, n_forbidden = random.Random(2), Pieces(BYTES), 0
    for _ in range(30):
        phrases = ["".join(rng.choices(LETTERS, k=rng.randint(1, 3))).strip() for _ in range(9)]
        tables = [pieces.table(RequiredPhrase(phrase)) for phrase in phrases if phrase]
        constraints, states = rules([Request("", avoided=tuple(filter(None, phrases)))], pieces), [0] * len(tables)
        for _ in range(12):
            logits, expected = torch.zeros(1, BYTES.n_vocab), torch.zeros(1, BYTES.n_vocab, dtype=torch.bool)
            constraints.forbid(logits)
            for table, state in zip(tables, states, strict=True):
                expected |= torch.from_numpy(table.after[state] == len(table.after) - 1)
                expected[0, EOS] |= bool(table.complete[state])
            assert torch.equal(logits == -torch.inf, expected)
            n_forbidden += int(expected.any())
            token = rng.choice(BYTES.encode([rng.choice([*LETTERS, "ab"])])[0])
            constraints.follow(torch.zeros(1, 1, dtype=torch.long), torch.tensor([[token]]))
            states = [int(table.after[state, token]) for table, state in zip(tables, states, strict=True)]
    assert n_forbidden > 150


class PrefersLetters(HashModel):
    """Prefers letters to spaces and to EOS."""

    def _logits(self, key):
        bonus = torch.tensor(
            [0.0] * N_SPECIAL + [4.0 * (TINY.raw([i])[0][:1] != b" ") for i in range(N_SPECIAL, TINY.size)]
        )
        return super()._logits(key) + torch.nn.functional.pad(bonus, (0, self.table.size(1) - len(bonus)))


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("phrases", [("b",), ("b", "a"), ("ab",)], ids=str)
def test_required_phrase_ends_with_its_word_even_if_the_model_prefers_letters(phrases, width):
    requests = [Request("", required=phrases)] * len(SRC)
    for seed in range(8):
        model = PrefersLetters(TINY.n_vocab, seed, sharpness=0.5)
        for (hypothesis,) in run(model, beam=width, n_best=1, n_real=TINY.size, rules=rules(requests)):
            text = TINY.decode(hypothesis.ids)
            assert all(contains(text, phrase) for phrase in phrases), text


def test_word_boundaries_follow_letters_except_in_unspaced_scripts():
    assert contains("in New York!", "New York") and not contains("New Yorker", "New York")
    assert (
        contains("NASA的", "NASA") and contains("ที่กรุงเทพ", "กรุง") and contains("“a”", "a") and not contains("née", "n")
    )


@pytest.mark.parametrize(
    ("source", "output", "unmet"),
    [
        ("Hallo %s, du", "Hello %s, you", []),
        ("Hallo %s, du", "Callo%%s, you", ["%s"]),
        ("Hallo %s, du", "Callo%s, you", ["%s"]),
        ("auf {{link}}.", "on {{{link}}.", ["{{link}}"]),
        ("auf {{link}}.", "on ({{link}}).", []),
        ("auf {{link}}.", "on {{link}}}.", ["{{link}}"]),
        ("%%s und %s%s", "%s%s and %%s", []),  # in the source it does not stand free itself
    ],
)
def test_kept_text_stands_free_if_it_does_in_the_source(source, output, unmet):
    request = Terms(kept=re.compile(r"\{+\w+\}+|%(\d+\$)?[sd]|__\w+__"))(Request(source))
    assert request.unmet(output) == unmet
