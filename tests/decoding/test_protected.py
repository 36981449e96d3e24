"""Protected items bypass the model: a translation restores them in every form in which it is reported."""

import re

import pytest
import torch
from fake_model import CopyModel
from small_search import subwords_of

from nmt.data.placeholders import CHARACTERS, names_of
from nmt.decoding.evidence import Evidence, words_of, words_of_line
from nmt.decoding.long_lines import Limits
from nmt.decoding.request import Request, Terms
from nmt.decoding.translator import Translator
from nmt.recipe.data_options import KINDS
from nmt.recipe.decode_options import DecodeConfig
from nmt.recipe.options import Recipe

LINES = [
    "see http://a.org/b?c=1 now",
    '<a href="x y">the old ship</a> left in 2014',
    "5 km or 5 km, me@a-b.org",
    "⟨url1⟩ is text, and <b>so</b> ⟨tag1⟩",
    "nothing to protect",
]


@pytest.fixture(scope="module")
def subwords():
    return subwords_of("the old ship left in May, nothing to protect and so on", n=380, protect=KINDS)


@pytest.fixture(scope="module")
def model(subwords):
    return CopyModel(subwords.trg.n_vocab, seed=1).eval()


class Swapping(CopyModel):
    """Writes one placeholder of the source as another."""

    def __init__(self, subwords, source, output):
        super().__init__(subwords.trg.n_vocab, seed=1)
        self.source_id, self.output_id = (subwords.src.encode([CHARACTERS[name]])[0][-1] for name in (source, output))

    def start(self, src_seq):
        state = super().start(src_seq)
        changed = torch.where(src_seq == self.source_id, self.output_id, src_seq)
        state.per_sentence["src_seq"] = changed
        return state


def reasons_of(line, translation):
    reasons = Evidence(None, Recipe(name="x"), {}).reasons(Request(line), translation)
    return [name for name in reasons if name in ("missing", "doubled", "unmet")]


@pytest.mark.parametrize("options", [{}, {"beam": 1}, {"n_best": 4}, {"samples": 4, "n_best": 2}])
def test_translation_has_text_in_place_of_placeholders(subwords, model, options):
    translator = Translator(model, subwords, DecodeConfig(**options))
    for line, found in zip(LINES, translator.translate(LINES), strict=True):
        assert found.text == line and not found.missing and not found.doubled
        for text in found.texts:
            text.encode("utf-8")  # no half of a surrogate pair
            assert not any(f"⟨{name}⟩" in text for name in names_of(KINDS)) or "⟨" in line
        assert reasons_of(line, found) == []


def test_a_vocabulary_without_placeholders_protects_nothing(subwords):
    plain = subwords_of(*LINES, n=300)
    translator = Translator(CopyModel(plain.trg.n_vocab, seed=1).eval(), plain, DecodeConfig())
    for line, found in zip(LINES, translator.translate(LINES), strict=True):
        assert (found.text, found.items) == (line, {})
        assert found.src_ids == plain.src.encode([line])[0]


def test_items_are_written_at_most_once_and_only_from_the_source(subwords):
    """Even if the model prefers another placeholder."""
    for options in ({}, {"beam": 1}, {"samples": 3, "n_best": 3}):
        config = DecodeConfig(**options)
        for line, source, output in (("<b>see</b> now", "tag1", "tag2"), ("<b>see</b> now", "tag1", "url3")):
            translator = Translator(Swapping(subwords, source, output), subwords, config)
            # The same alone and in a batch with a line that has all these items.
            for lines in ([line], [line, "<i> <u> http://a.org http://b.org http://c.org"]):
                found = next(translator.translate(lines))
                assert not found.doubled and all(
                    text.count("<b>") <= 1 and text.count("</b>") <= 1 for text in found.texts
                )


def test_lost_item_is_flagged(subwords):
    line = "<b>see</b> now"
    (lost,) = Translator(Swapping(subwords, "tag1", "url3"), subwords, DecodeConfig()).translate([line])
    assert "<b>" in lost.missing and reasons_of(line, lost) == ["missing"]


@pytest.mark.parametrize("languages", [("", ""), ("en", "de")])
def test_split_line_has_the_items_of_each_piece(subwords, model, languages):
    line = "See http://a.org now. <b>The ship</b> left 5 km away. See http://b.org and <i> too."
    translator = Translator(model, subwords, DecodeConfig(), limits=Limits(every=True), languages=languages)
    (found,) = translator.translate([line])
    assert found.text == line and not found.missing and not found.doubled
    assert [part.items for part in found.parts] == [
        {"url1": "http://a.org"},
        {"tag1": "<b>", "tag2": "</b>", "number1": "5 km"},
        {"url1": "http://b.org", "tag1": "<i>"},
    ]
    assert found.split.pieces == [part.text for part in found.parts]
    src, trg = words_of_line(found, subwords, (False, False))
    n_word = len(line.split())
    assert {word for words in src for word in words} == set(range(n_word)) == {word for words in trg for word in words}


def test_words_are_those_of_the_text_even_within_items(subwords, model):
    translator = Translator(model, subwords, DecodeConfig())
    translations = list(translator.translate(LINES))
    recipe = Recipe(name="x", data={"src_lang": "en", "trg_lang": "de"})
    evidence, requests = Evidence(translator, recipe, {}), list(map(Request, LINES))
    for n, (out, (fields, lost)) in enumerate(zip(translations, evidence.of(requests, translations), strict=True)):
        assert not lost
        assert fields["items"] == [out.items]
        pairs = [tuple(map(int, pair.split("-"))) for pair in fields["word_alignment"].split()]
        words = [words_of(subwords.trg.raw(out.hypotheses[0].ids, out.items)), fields["alignment"], out.text.split()]
        assert {word for group in words[0] for word in group} == set(range(len(words[2])))
        # An item is one subword: all its words align with all words of its source item.
        src = words_of(subwords.src.raw(out.src_ids, out.items))
        expected = {(i, j) for group, at in zip(words[0], words[1][:-1], strict=True) for j in group for i in src[at]}
        assert set(pairs) == expected and any(len(group) > 1 for group in words[0]) == (n in (1, 2))
        assert len(fields["tokens"]) == len(fields["token_log_probs"]) == len(out.hypotheses[0].ids) + 1


def test_constraints_may_contain_items(subwords, model):
    translator = Translator(model, subwords, DecodeConfig(beam=8))
    line = "see http://a.org/b?c=1 now"
    requests = [
        Request(line, required=("http://a.org/b?c=1",)),
        Request(line, required=("a.org",)),  # part of the item
        Request(line, prefix="see http://a.org/b?c=1 n"),
        Request(line, prefix="http://a.org/b?c=1"),
        Request(line, avoided=("now",), required=("http://a.org/b?c=1",)),
    ]
    for request, found in zip(requests, translator.translate(requests), strict=True):
        assert (found.unmet, found.missing) == ([], [])
        assert found.text.startswith(request.prefix)
    (found,) = translator.translate([Request(line, avoided=("http://a.org/b?c=1",))])
    assert "http://a.org/b?c=1" not in found.text and found.missing == ["http://a.org/b?c=1"] and not found.unmet
    (found,) = translator.translate([Terms([("see", "http://a.org/b?c=1 look")])(Request(line))])
    assert "http://a.org/b?c=1 look" in found.text and not found.unmet


def test_kept_pattern_may_match_items_and_requires_each_match(subwords, model):
    line = "5 km or 5 km, see http://a.org now"
    for pattern, expected in (
        (r"\d km", [CHARACTERS["number1"], CHARACTERS["number2"]]),
        (r"\d|km", [CHARACTERS["number1"], CHARACTERS["number2"]]),  # two matches in one item require it once
        (r"\w+ http://a", [f"see {CHARACTERS['url1']}"]),
        (r"now", ["now"]),
    ):
        request = Terms(kept=re.compile(pattern))(Request(line)).protected(subwords.src.protects)
        assert [kept.text for kept in request.in_placeholders(subwords.src.protects).kept] == expected
    for every in (False, True):
        translator = Translator(model, subwords, DecodeConfig(beam=24), limits=Limits(every=every))
        text = f"See <b>. {line}. And 7 <b>."
        (found,) = translator.translate([Terms(kept=re.compile(r"5 km|see \S+|<b>|7"))(Request(text))])
        assert (found.text, found.unmet, bool(found.split)) == (text, [], every)
