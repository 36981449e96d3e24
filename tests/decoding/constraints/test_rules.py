import itertools
import random
import re
from functools import lru_cache

import pytest
import torch
from fake_model import HashModel
from small_search import PENALTIES, SRC, divisor, log_prob, run
from tokenizers import pre_tokenizers

from nmt.data.subword_kinds import PieceTable
from nmt.data.subwords import EOS, N_SPECIAL, Codec
from nmt.decoding.phrases import Pieces, RequiredPhrase, contains, occurrences
from nmt.decoding.request import Kept, Request, Terms
from nmt.decoding.rules import Rules

# Words of a and b, so small that all translations can be looked at; a text can be cut into subwords in many ways.
TINY = Codec(PieceTable(vocab=["Ġ", "a", "b", "Ġa", "ab"], merges=[("Ġ", "a"), ("a", "b")]))
PIECES = Pieces(TINY)
LONGEST = 4
# Of a letter and a mark, which may be part of a phrase and is none of a word.
MARKED = Codec(PieceTable(vocab=["Ġ", "a", "-", "Ġ-", "-a"], merges=[("Ġ", "-"), ("-", "a")]))
ASKED = {
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


def rules(asked: list[Request], pieces: Pieces = PIECES, *, min_len: int = 0, no_repeat: int = 0) -> Rules:
    shortest = torch.full((len(asked),), min_len)
    return Rules(pieces, asked, min_len=shortest, no_repeat=no_repeat)


def pattern(phrase: str, room: tuple[bool, bool] | None = None) -> str:
    """room: whether no letter or edge of its own may stand before and after; None: where it has a letter there."""
    before, after = room or (phrase[0] in "ab", phrase[-1] in "ab")
    first, last = re.escape(phrase[0]), re.escape(phrase[-1])
    return (f"(?<![ab{first}])" if before else "") + phrase + (f"(?![ab{last}])" if after else "")


def is_allowed(ids: list[int], asked: Request, min_len: int = 0, no_repeat: int = 0, codec: Codec = TINY) -> bool:
    """What is asked, said with regular expressions over the text, which know nothing of subwords."""
    text = codec.decode(ids)
    again = [i for i in range(len(ids)) if no_repeat and is_repeat(ids[: i + 1], no_repeat)]
    return (
        text.startswith(asked.prefix)
        and all(
            len(re.findall(pattern(one.phrase, one.boundaries), text)) >= one.times for one in asked.required_phrases
        )
        and not any(re.search(pattern(phrase), text) for phrase in asked.avoided)
        and len(ids) >= min_len
        and all(lacks(ids[:i], asked, codec) for i in again)
    )


def is_repeat(ids: list[int], n: int) -> bool:
    windows = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return bool(windows) and windows[-1] in windows[:-1]


def lacks(ids: list[int], asked: Request, codec: Codec) -> bool:
    """Whether a prefix is unfinished, or a required phrase is not there."""
    text = b"".join(codec.raw(ids)).decode()
    if asked.prefix and len(text.removeprefix(" ")) < len(asked.prefix):
        return True
    return any(len(re.findall(pattern(one.phrase, one.boundaries), text)) < one.times for one in asked.required_phrases)


@lru_cache(4)
def model_and_scores(seed: int, n_vocab: int) -> tuple[HashModel, list[tuple[float, list[int]]]]:
    """A model, and all that it can write with its log-probability."""
    model, ids = HashModel(n_vocab, seed=seed, sharpness=2.0), range(N_SPECIAL, TINY.size)
    every = [list(row) for n in range(LONGEST + 1) for row in itertools.product(ids, repeat=n)]
    return model, [(log_prob(model, SRC[0], row), row) for row in every]


def check(seed: int, asked: Request, kind: str, alpha: float, codec: Codec = TINY, **bounds: int) -> None:
    """A beam that is wide enough finds the best of all that obeys. codec: one of as many subwords as TINY."""
    model, scored = model_and_scores(seed, codec.n_vocab)
    max_len = torch.full((1,), LONGEST)
    settings = {"length_penalty": kind, "alpha": alpha, "max_len": max_len, "n_real": TINY.size}
    (found,) = run(model, SRC[:1], beam=700, n_best=5, rules=rules([asked], Pieces(codec), **bounds), **settings)
    allowed = [(score, ids) for score, ids in scored if is_allowed(ids, asked, codec=codec, **bounds)]
    best = sorted(((score / divisor(len(ids) + 1, kind, alpha), ids) for score, ids in allowed), reverse=True)[:5]
    assert best and [one.ids for one in found] == [ids for _, ids in best]
    assert [one.normalised for one in found] == pytest.approx([score for score, _ in best], abs=1e-12)


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
    *((TINY, asked, {"no_repeat": n}) for asked in ASKED.values() for n in (0, 1, 2)),
    *((MARKED, asked, {"no_repeat": n}) for asked in STANDING_FREE for n in (0, 1)),
    *((TINY, Request(""), {"min_len": n, "no_repeat": m}) for n, m in ((2, 0), (4, 0), (0, 1), (0, 2), (3, 2), (0, 3))),
]


@pytest.mark.parametrize("n", range(len(CHECKS)))
@pytest.mark.parametrize("half", [0, 1])
def test_a_wide_beam_finds_the_best_of_all_translations_that_obey(n, half):
    """With two of the penalties, other ones than its neighbours."""
    codec, asked, bounds = CHECKS[n]
    check(3 + (n + half) % 2, asked, *PENALTIES[(2 * n + half) % len(PENALTIES)], codec=codec, **bounds)


@pytest.mark.parametrize("width", [2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_a_narrow_beam_obeys_and_a_batch_searches_like_its_sentences_alone(width, seed):
    model = HashModel(TINY.n_vocab, seed=seed, sharpness=3.0)
    asked = [Request(""), *random.Random(seed).sample(list(ASKED.values()), 4), Request("")]
    settings = {"beam": width, "n_real": TINY.size}
    longest = torch.full((len(SRC),), 12)
    together = run(model, SRC, rules=rules(asked, no_repeat=4), max_len=longest, **settings)
    alone = [
        run(model, SRC[i : i + 1], rules=rules(asked[i : i + 1], no_repeat=4), max_len=longest[:1], **settings)[0]
        for i in range(len(SRC))
    ]
    assert together == alone
    for one, (hypothesis,) in zip(asked, together, strict=True):
        assert is_allowed(hypothesis.ids, one, no_repeat=4)


def test_what_cannot_be_had_comes_back_unfinished():
    model = HashModel(TINY.n_vocab, seed=3)
    impossible = Request("", required=("ab",), avoided=("ab",))
    found = run(model, SRC[:2], n_real=TINY.size, rules=rules([impossible, Request("", required=("ab",))]))
    assert not found[0][0].finished
    assert found[1][0].finished and contains(TINY.decode(found[1][0].ids), "ab")


def test_without_any_token_to_go_on_with_a_translation_ends():
    model = HashModel(TINY.n_vocab, seed=3)
    (found,) = run(model, SRC[:1], n_real=TINY.size, rules=rules([Request("")], min_len=9, no_repeat=1))
    assert len(found[0].ids) == TINY.size - N_SPECIAL and not found[0].finished


LETTERS = ["a", "b", " ", "-", "é", "中", "ก", "“"]


# All bytes, and some pieces of several.
_BYTES = [*pre_tokenizers.ByteLevel.alphabet(), "Ġa", "ab", "ĠaĠ"]
BYTES = Codec(PieceTable(vocab=_BYTES, merges=[("Ġ", "a"), ("a", "b")]))


def test_a_phrase_is_found_in_subwords_where_it_stands_in_the_text():
    draw, pieces, n_found = random.Random(1), Pieces(BYTES), 0
    for _ in range(120):
        phrase = "".join(draw.choices(LETTERS, k=draw.randint(1, 3))).strip() or "a"
        text = "".join(draw.choices([*LETTERS, phrase], k=draw.randint(0, 8)))
        times, room = draw.choice([1, 1, 2]), draw.choice([None, *itertools.product([False, True], repeat=2)])
        table, state = pieces.table(RequiredPhrase(phrase, times, room)), 0
        for i in BYTES.encode([text])[0]:
            state = int(table.after[state, i])
        found = len(list(occurrences(phrase, text, room))) >= times
        assert bool(table.complete[state]) == found, (phrase, text, times, room)
        if room and times == 1:  # told by regular expressions; "é" and "ก" are letters, "中" is none
            first, last = (re.escape(edge) if edge.isascii() else "" for edge in (phrase[0], phrase[-1]))
            before, after = f"(?<![abéก{first}])" if room[0] else "", f"(?![abéก{last}])" if room[1] else ""
            assert found == bool(re.search(before + re.escape(phrase) + after, text)), (phrase, text, room)
        n_found += found
    assert 24 < n_found < 96


def test_many_avoided_phrases_forbid_what_each_of_them_forbids():
    draw, pieces, n_forbidden = random.Random(2), Pieces(BYTES), 0
    for _ in range(30):
        phrases = ["".join(draw.choices(LETTERS, k=draw.randint(1, 3))).strip() for _ in range(9)]
        tables = [pieces.table(RequiredPhrase(phrase)) for phrase in phrases if phrase]
        book, states = rules([Request("", avoided=tuple(filter(None, phrases)))], pieces), [0] * len(tables)
        for _ in range(12):
            logits, wanted = torch.zeros(1, BYTES.n_vocab), torch.zeros(1, BYTES.n_vocab, dtype=torch.bool)
            book.forbid(logits)
            for table, state in zip(tables, states, strict=True):
                wanted |= torch.from_numpy(table.after[state] == len(table.after) - 1)
                wanted[0, EOS] |= bool(table.complete[state])
            assert torch.equal(logits == -torch.inf, wanted)
            n_forbidden += int(wanted.any())
            token = draw.choice(BYTES.encode([draw.choice([*LETTERS, "ab"])])[0])
            book.follow(torch.zeros(1, 1, dtype=torch.long), torch.tensor([[token]]))
            states = [int(table.after[state, token]) for table, state in zip(tables, states, strict=True)]
    assert n_forbidden > 150


class Joining(HashModel):
    """Would rather write letters than spaces, or than an end."""

    def _logits(self, key):
        likes = torch.tensor(
            [0.0] * N_SPECIAL + [4.0 * (TINY.raw([i])[0][:1] != b" ") for i in range(N_SPECIAL, TINY.size)]
        )
        return super()._logits(key) + torch.nn.functional.pad(likes, (0, self.table.size(1) - len(likes)))


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("asked", [("b",), ("b", "a"), ("ab",)], ids=str)
def test_a_phrase_is_written_and_ended_where_a_model_would_rather_go_on_with_letters(asked, width):
    book = [Request("", required=asked)] * len(SRC)
    for seed in range(8):
        model = Joining(TINY.n_vocab, seed, sharpness=0.5)
        for (one,) in run(model, beam=width, n_best=1, n_real=TINY.size, rules=rules(book)):
            text = TINY.decode(one.ids)
            assert all(contains(text, phrase) for phrase in asked), text


def test_words_end_where_letters_end_and_scripts_without_spaces_have_no_words():
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
def test_what_is_kept_stands_free_where_it_does_in_the_source(source, output, unmet):
    request = Terms(kept=re.compile(r"\{+\w+\}+|%(\d+\$)?[sd]|__\w+__"))(Request(source))
    assert request.unmet(output) == unmet
