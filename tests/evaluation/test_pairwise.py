import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.chrf import CHRF

from nmt.evaluation.metrics import chrf, expected_utility

TEXTS = [
    "The old ship left in May.", "The old ship left in May.", "An old ship has left in May .", "the OLD ship",
    "ship", "", "   ", "!", "日本の古い船", "a b c d e f g h a b c d", "a b c d", "12,5 % of it's “quoted”",
]  # fmt: skip
some_texts = st.lists(st.text("ab .,é", max_size=12), min_size=1, max_size=5)


def pairwise_scores(texts, metric):
    return np.array([[metric.sentence_score(a, [b]).score for b in texts] for a in texts])


@given(some_texts)
def test_chrf_of_any_text_equals_that_of_sacrebleu(texts):
    np.testing.assert_allclose(chrf(texts), pairwise_scores(texts, CHRF()), atol=1e-9)


def test_expected_utility_equals_its_quadratic_definition():
    np.testing.assert_allclose(expected_utility(TEXTS), pairwise_scores(TEXTS, CHRF()).mean(1), atol=1e-9)
