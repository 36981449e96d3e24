import pytest
from fake_model import HashModel
from test_long_lines import SHORT, some_lines, subwords  # the fixture too

from nmt.decoding.long_lines import Limits, join_texts
from nmt.decoding.retry import ALPHAS, SEARCHED_WITH, Setting, rerank, settings_of
from nmt.decoding.translation import is_in_pieces
from nmt.decoding.translator import Translator
from nmt.recipe.decode_options import DecodeConfig

__all__ = ["subwords"]


@pytest.fixture
def search(subwords):
    model = HashModel(subwords.trg.n_vocab, seed=4, sharpness=2.0).eval()

    def call(setting, n_best=1, limits=None):
        config = DecodeConfig(**setting.options, n_best=n_best, max_len_a=0.3, max_len_b=5)
        return list(Translator(model, subwords, config, limits=limits).translate([*some_lines(15), " "]))

    return call


@pytest.mark.parametrize("limits", [Limits(), SHORT])
def test_under_the_penalty_of_the_search_the_best_is_what_it_returned(search, limits):
    setting = Setting(4, *SEARCHED_WITH)
    found = search(setting, n_best=4, limits=limits)
    assert any(map(is_in_pieces, found)) == (limits is SHORT)
    assert rerank(found, setting) == [one.text for one in found]


def test_another_penalty_chooses_by_its_own_score(search):
    found = search(Setting(4, *SEARCHED_WITH), n_best=4)
    chosen = {alpha: rerank(found, Setting(4, "average", alpha)) for alpha in (0.0, 3.0)}
    assert chosen[0.0] == rerank(found, Setting(4, "none", 1.0))
    for one, texts in zip(found, zip(*chosen.values(), strict=True), strict=True):
        if one.hypotheses:
            scores = [[h.score / (len(h.ids) + 1) ** alpha for h in one.hypotheses] for alpha in chosen]
            assert list(texts) == [one.texts[each.index(max(each))] for each in scores]
    assert chosen[0.0] != chosen[3.0]


def test_of_a_line_that_was_split_each_piece_is_chosen(search):
    found, other = search(Setting(4, *SEARCHED_WITH), n_best=4, limits=SHORT), Setting(4, "average", 3.0)
    for one, text in zip(found, rerank(found, other), strict=True):
        if one.split is not None:
            assert text == join_texts(one.split, rerank(one.parts, other))
    assert rerank(found, other) != [one.text for one in found]


def test_a_blank_line_stays_blank(search):
    assert rerank(search(Setting(2, "none", 1.0), n_best=2), Setting(2, "wu", 1.0))[-1] == ""


def test_the_present_setting_is_always_tried_and_none_twice():
    for present in (Setting(5, "wu", 1.0), Setting(5, "wu", 0.55), Setting(5, "none", 0.3), Setting(5, "average", 2.0)):
        tried = settings_of(5, present)
        assert present in tried and len(set(tried)) == len(tried) >= 2 * len(ALPHAS) + 1
        assert {one.beam for one in settings_of(8, present)} == {8}


def test_greedy_search_has_one_setting():
    assert settings_of(1, Setting(5, "wu", 0.6)) == [Setting(1, "wu", 0.6)]
