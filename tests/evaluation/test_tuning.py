import random

import pytest

from nmt.cli.translating.tune_decoding import ScoreSets, p_value
from nmt.evaluation.metrics import score

WORDS = ["the", "old", "ship", "left", "in", "May", ".", "a", "b", "c", "(", "naïve", ")", "日本"]


def some_texts(n, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(0, 9))) for _ in range(n)]


@pytest.mark.parametrize("name", ["bleu", "chrf"])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_scores_are_those_of_the_whole_metric_whatever_was_scored_before(name, lang):
    references, one, other = some_texts(40, 1), some_texts(40, 2), some_texts(40, 3)
    mixed = [(one, other, references)[n % 3][n] for n in range(40)]
    sets = ScoreSets(references, name, lang)
    for hypotheses in (one, other, mixed, one, references):
        wanted = score(hypotheses, references, (name,), trg_lang=lang)[name]
        assert sets.score(hypotheses).score == pytest.approx(wanted.value, abs=1e-12)
    assert sets.signature == wanted.signature


def test_each_translation_of_a_line_is_counted_once(monkeypatch):
    references = some_texts(10, 1)
    sets = ScoreSets(references, "bleu")
    counted = []
    count = sets._metric._compute_segment_statistics
    monkeypatch.setattr(sets._metric, "_compute_segment_statistics", lambda *a: counted.append(a) or count(*a))
    one, other = some_texts(10, 2), some_texts(10, 3)
    for hypotheses in (one, one, [*one[:5], *other[5:]], other):
        sets.score(hypotheses)
    assert len(counted) == 20


def test_a_difference_on_every_line_is_no_chance_and_one_on_a_line_may_be():
    references = [text + " x y z w" for text in some_texts(50, 1)]
    worse = [text.replace("x y", "y x") for text in references]
    assert p_value(worse, references, references, "bleu") < 0.01
    assert p_value([*references[:-1], "x"], references, references, "chrf") > 0.1
