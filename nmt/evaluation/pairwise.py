"""How alike some texts are, every one beside every other: for minimum Bayes risk.

Sentence chrF and sentence BLEU as sacreBLEU defines them, which has them for one pair at a time; here the n-grams of
each text are counted once, and all pairs are matched together.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nmt.evaluation.metrics import tokenised

Matrix = NDArray[np.float64]
Utility = Literal["chrf", "bleu"]

CHRF_ORDER, CHRF_BETA = 6, 2
BLEU_ORDER = 4


def _counts(units: Sequence[str] | Sequence[tuple[str, ...]], order: int) -> Matrix:
    """How often each n-gram of `order` units is in each text: (N, G), G different ones in all."""
    counted = [Counter(text[i : i + order] for i in range(len(text) - order + 1)) for text in units]
    column = {gram: i for i, gram in enumerate({gram: None for one in counted for gram in one})}
    matrix = np.zeros((len(units), len(column)))
    for row, one in zip(matrix, counted, strict=True):
        for gram, n in one.items():
            row[column[gram]] = n
    return matrix


def _matches(counts: Matrix) -> Matrix:
    """n-grams that two texts have in common: (N, G) -> (N, N)."""
    return np.stack([np.minimum(row, counts).sum(1) for row in counts])


def chrf(texts: Sequence[str]) -> Matrix:
    """Sentence chrF2 of text i against text j as its reference, 0 … 100: (N, N). M. Popović 2015, 2016.

    As in sacreBLEU white space does not count, and orders that one of the two texts is too short for are left out.
    """
    units = ["".join(text.split()) for text in texts]
    n = len(texts)
    score, n_order = np.zeros((n, n)), np.zeros((n, n))
    precision, recall = np.zeros((n, n)), np.zeros((n, n))
    for order in range(1, CHRF_ORDER + 1):
        counts = _counts(units, order)
        match, total = _matches(counts), counts.sum(1)
        both = (total[:, None] > 0) & (total[None] > 0)
        precision += np.divide(match, total[:, None], out=np.zeros((n, n)), where=both)
        recall += np.divide(match, total[None], out=np.zeros((n, n)), where=both)
        n_order += both
    precision, recall = (
        np.divide(part, n_order, out=np.zeros((n, n)), where=n_order > 0) for part in (precision, recall)
    )
    weighed = CHRF_BETA**2 * precision + recall
    np.divide((1 + CHRF_BETA**2) * precision * recall, weighed, out=score, where=weighed > 0)
    return 100 * score


def bleu(texts: Sequence[str], trg_lang: str = "") -> Matrix:
    """Sentence BLEU of text i against text j as its reference, 0 … 100: (N, N).

    As in sacreBLEU: the tokeniser of the language, orders that text i has (effective order), exponential smoothing.
    """
    units = [tuple(tokens.split()) for tokens in tokenised(texts, trg_lang)]
    n, length = len(texts), np.array([len(one) for one in units], dtype=np.float64)
    log_sum, n_order, smooth = np.zeros((n, n)), np.zeros((n, n)), np.ones((n, n))
    nothing = np.ones((n, n), dtype=bool)
    for order in range(1, BLEU_ORDER + 1):
        counts = _counts(units, order)
        total = np.broadcast_to(counts.sum(1)[:, None], (n, n))
        match = _matches(counts)
        nothing &= match == 0
        smooth = np.where((match == 0) & (total > 0), 2 * smooth, smooth)
        right = np.where(match > 0, match, 1 / smooth)
        log_sum += np.log(right / np.maximum(total, 1), out=np.zeros((n, n)), where=total > 0)
        n_order += total > 0
    mean = np.exp(np.divide(log_sum, n_order, out=np.zeros((n, n)), where=n_order > 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        brevity = np.where(length[:, None] < length[None], np.exp(1 - length[None] / length[:, None]), 1.0)
    return np.where(nothing, 0.0, 100 * brevity * mean)


def expected_utility(texts: Sequence[str], utility: Utility, trg_lang: str = "") -> list[float]:
    """Mean likeness of each text to all, itself among them; what stands in the list twice counts twice.

    The text with the highest is the choice of minimum Bayes risk (Eikema and Aziz 2020, "Is MAP decoding all you
    need?", section 6), if the texts are samples of what a model thinks of a source.
    """
    different = list(dict.fromkeys(texts))
    likeness = chrf(different) if utility == "chrf" else bleu(different, trg_lang)
    weight = np.array([texts.count(text) for text in different]) / len(texts)
    value = dict(zip(different, (likeness @ weight).tolist(), strict=True))
    return [value[text] for text in texts]
