import itertools
import random
import re
import sys
from functools import lru_cache

import pytest
import torch
from fake_model import HashModel
from small_search import PENALTIES, SRC, divisor, log_prob, run
from tokenizers import pre_tokenizers

from nmt.data.subwords import EOS, N_SPECIAL, Codec
from nmt.decoding.phrases import Pieces, Wanted, contains, occurrences
from nmt.decoding.request import Kept, Request
from nmt.decoding.rules import Rules
from nmt.errors import DataError

# Words of a and b, so small that all translations can be looked at; a text can be cut into subwords in many ways.
TINY = Codec(["Ġ", "a", "b", "Ġa", "ab"], [("Ġ", "a"), ("a", "b")])
PIECES = Pieces(TINY)
LONGEST = 4
# Of a letter and a mark, which may be part of a phrase and is none of a word.
MARKED = Codec(["Ġ", "a", "-", "Ġ-", "-a"], [("Ġ", "-"), ("-", "a")])
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
    return Rules(pieces, asked, min_len=shortest, no_repeat=no_repeat, eos=EOS)


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
        and all(len(re.findall(pattern(one.phrase, one.room), text)) >= one.times for one in asked.wanted)
        and not any(re.search(pattern(phrase), text) for phrase in asked.avoided)
        and len(ids) >= min_len
        and all(is_wanted_next(ids[:i], ids[i], asked, codec) for i in again)
    )


def is_repeat(ids: list[int], n: int) -> bool:
    windows = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return bool(windows) and windows[-1] in windows[:-1]


def is_wanted_next(ids: list[int], token: int, asked: Request, codec: Codec) -> bool:
    """Whether a prefix is unfinished, or a required phrase that is lacking gets on."""
    before, after = (b"".join(codec.raw(row)).decode() for row in (ids, [*ids, token]))
    if asked.prefix and len(before.removeprefix(" ")) < len(asked.prefix):
        return True
    return any(n_letter(after, one) > n_letter(before, one) for one in asked.wanted)


def n_letter(text: str, wanted: Wanted) -> int:
    """How many letters of a required phrase are there, those that may become it at the end among them."""
    found = [*re.finditer(pattern(wanted.phrase, wanted.room), text)][: wanted.times]
    n, at = len(found) * len(wanted.phrase), found[-1].end() if found else 0
    if len(found) == wanted.times or (found and at == len(text)):
        return n
    before = (wanted.room or (wanted.phrase[0] in "ab", True))[0]
    starts = [pattern(wanted.phrase[:k], (before, False)) + "$" for k in range(1, len(wanted.phrase))]
    return n + max((k for k, start in enumerate(starts, 1) if re.compile(start).search(text, at)), default=0)


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


def penalised(asked, *, each):
    """Each of what is asked with so many penalties, other ones than its neighbours, which together see them all."""
    return [(one, *PENALTIES[(each * n + k) % len(PENALTIES)]) for n, one in enumerate(asked) for k in range(each)]


@pytest.mark.parametrize(("name", "kind", "alpha"), penalised(ASKED, each=2))
def test_a_wide_beam_finds_the_best_of_all_translations_that_obey(name, kind, alpha):
    check(3, ASKED[name], kind, alpha)


@pytest.mark.parametrize(
    "asked",
    [
        Request("", required=("-",)),
        Request("", kept=(Kept("-", 0, 1),)),
        Request("", kept=(Kept("-", 1, 2, (True, False)),)),
        Request("", kept=(Kept("-a", 1, 3, (False, True)),)),
        Request("", kept=(Kept("--", 0, 2),)),
        Request("", kept=(Kept("-", 0, 1), Kept("-", 2, 3))),
        Request("", required=("a",), kept=(Kept("-", 0, 1),)),
    ],
)
@pytest.mark.parametrize("no_repeat", [0, 1])
def test_what_is_kept_stands_beside_no_letter_whatever_its_own_characters_are(asked, no_repeat):
    check(3, asked, *PENALTIES[1], codec=MARKED, no_repeat=no_repeat)


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize(("no_repeat", "penalty"), [(1, 1), (2, 4)])
def test_what_is_asked_for_may_repeat_and_nothing_else(asked, no_repeat, penalty):
    check(3, asked, *PENALTIES[penalty], no_repeat=no_repeat)


@pytest.mark.parametrize(
    ("bounds", "kind", "alpha"), penalised([(2, 0), (4, 0), (0, 1), (0, 2), (3, 2), (0, 3)], each=2)
)
def test_a_wide_beam_is_exhaustive_with_a_least_length_and_without_repeats(bounds, kind, alpha):
    check(4, Request(""), kind, alpha, min_len=bounds[0], no_repeat=bounds[1])


def test_a_prefix_may_repeat_itself():
    model = HashModel(TINY.n_vocab, seed=3)
    asked = Request("", prefix="a a a a a ab")
    (found,) = run(model, SRC[:1], n_real=TINY.size, rules=rules([asked], no_repeat=1))
    assert found[0].finished and TINY.decode(found[0].ids).startswith(asked.prefix)


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


def test_rules_that_ask_nothing_change_nothing():
    model = HashModel(TINY.n_vocab, seed=6, sharpness=2.0)
    free = run(model, n_best=4, n_real=TINY.size)
    bound = run(model, n_best=4, n_real=TINY.size, rules=rules([Request("")] * len(SRC)))
    assert [[one.ids for one in found] for found in free] == [[one.ids for one in found] for found in bound]


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
BYTES = Codec([*pre_tokenizers.ByteLevel.alphabet(), "Ġa", "ab", "ĠaĠ"], [("Ġ", "a"), ("a", "b")])


def test_a_phrase_is_found_in_subwords_where_it_stands_in_the_text():
    draw, pieces, n_found = random.Random(1), Pieces(BYTES), 0
    for _ in range(120):
        phrase = "".join(draw.choices(LETTERS, k=draw.randint(1, 3))).strip() or "a"
        text = "".join(draw.choices([*LETTERS, phrase], k=draw.randint(0, 8)))
        times, room = draw.choice([1, 1, 2]), draw.choice([None, *itertools.product([False, True], repeat=2)])
        table, state = pieces.phrase(phrase, times, room), 0
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

    def phrases(n: int) -> list[str]:
        drawn = ("".join(draw.choices(LETTERS, k=draw.randint(1, 3))).strip() for _ in range(n))
        return [phrase for phrase in drawn if phrase]

    for _ in range(10):
        common = phrases(6)  # of all sentences but the last two
        asked = [common, [*common, *phrases(3)], [*phrases(3), *common], phrases(3), []]
        asked = asked if draw.random() < 0.5 else asked[:3]
        book, staying = rules([Request("", avoided=tuple(one)) for one in asked], pieces), list(range(len(asked)))
        tables = [[pieces.phrase(phrase) for phrase in one] for one in asked]
        texts = [[[] for _ in range(2)] for _ in asked]
        book.spread(2)
        for _ in range(12):
            logits = torch.zeros(2 * len(staying), BYTES.n_vocab)
            book.forbid(logits, torch.zeros(len(logits), 0, dtype=torch.long))
            wanted = torch.zeros(len(staying), 2, BYTES.n_vocab, dtype=torch.bool)
            for place, b in enumerate(staying):
                for k, text in enumerate(texts[b]):
                    for table in tables[b]:
                        state = 0
                        for i in text:
                            state = int(table.after[state, i])
                        wanted[place, k] |= torch.from_numpy(table.after[state] == table.found)
                        wanted[place, k, EOS] |= bool(table.complete[state])
            assert torch.equal(logits.view_as(wanted) == -torch.inf, wanted)
            n_forbidden += int((wanted.sum(-1) > 0).sum())
            parent = torch.tensor([draw.choices(range(2), k=2) for _ in staying])
            tokens = (BYTES.encode(["".join(draw.choices([*LETTERS, "ab"], k=1))])[0] for _ in range(100))
            token = torch.tensor([[draw.choice(next(tokens)) for _ in range(2)] for _ in staying])
            book.follow(parent, token)
            for place, b in enumerate(staying):
                texts[b] = [[*texts[b][parent[place, k]], int(token[place, k])] for k in range(2)]
            if draw.random() < 0.1 and len(staying) > 1:
                stay = sorted(draw.sample(range(len(staying)), len(staying) - 1))
                book.keep(torch.tensor(stay))
                staying = [staying[place] for place in stay]
    assert n_forbidden > 250


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


def test_thousands_of_phrases_cost_a_step_what_a_few_cost():
    def n_call(n_phrase):
        """Of functions, Python's and C's, in some steps."""
        draw, calls = random.Random(3), []
        asked = [Request("", avoided=tuple(f"b{draw.randrange(10**9):09d}" for _ in range(n_phrase)))] * 2
        book, tokens = rules(asked, Pieces(BYTES)), BYTES.encode(["a b123 ab b9 " * 2])[0]
        for token in [*tokens, None, *tokens]:
            if token is None:  # what a state forbids is worked out when it is first reached
                sys.setprofile(lambda _frame, event, _: calls.append(event))
                continue
            book.forbid(torch.zeros(2, BYTES.n_vocab), torch.zeros(2, 0, dtype=torch.long))
            book.follow(torch.zeros(2, 1, dtype=torch.long), torch.full((2, 1), token))
        sys.setprofile(None)
        return len(calls)

    assert n_call(1000) < 3 * n_call(5)


def test_words_end_where_letters_end_and_scripts_without_spaces_have_no_words():
    assert contains("in New York!", "New York") and not contains("New Yorker", "New York")
    assert (
        contains("NASA的", "NASA") and contains("ที่กรุงเทพ", "กรุง") and contains("“a”", "a") and not contains("née", "n")
    )


def test_a_hypothesis_may_end_once_it_has_all_that_is_required():
    book = rules([Request("", prefix="ab"), Request("", required=("b",)), Request("", avoided=("b",))])
    told = []
    for token in TINY.encode(["ab b"])[0]:
        told.append(book.may_end().flatten().tolist())
        book.follow(torch.zeros(3, 1, dtype=torch.long), torch.full((3, 1), token))
    told.append(book.may_end().flatten().tolist())
    assert TINY.decode(TINY.encode(["ab b"])[0]) == "ab b"
    assert [row[0] for row in told] == [False, False, True, True, True]
    assert [row[1] for row in told] == [False, False, False, False, True]
    assert all(row[2] for row in told)


def test_tables_of_phrases_are_kept_by_their_size(monkeypatch):
    monkeypatch.setattr("nmt.decoding.phrases._MOST_BYTES", 20_000)
    pieces = Pieces(TINY)
    first = pieces.phrase("ab")
    assert pieces.phrase("ab") is first
    long = pieces.phrase("ab" * 9, times=400)
    assert pieces.phrase("ab" * 9, times=400) is long and pieces.phrase("ab") is not first
    with pytest.raises(DataError, match=r"it has 1,001 characters, and one may have 1,000"):
        Request("a", required=("x" * 1001,))
