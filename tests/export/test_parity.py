"""A comparison finds what is another model, and says where."""

import math

import pytest
import torch
from tiny import LINES, made

from nmt.errors import RunError
from nmt.export.parity import BF16, QUANTISED, ROUNDED, SAME, Ours, compare


class Altered(Ours):
    """A model of ours whose answers are changed on the way."""

    def __init__(self, model, subwords, text=lambda text: text, score=lambda score: score):
        super().__init__(model, subwords)
        self.text, self.by = text, score

    def greedy(self, lines, most):
        return [self.text(one) for one in super().greedy(lines, most)]

    def score(self, lines, trg_ids):
        return [[self.by(one) for one in row] for row in super().score(lines, trg_ids)]


@pytest.fixture(scope="module")
def model(subwords):
    return made(subwords)[0]


def test_a_model_is_itself_to_the_last_digit(model, subwords):
    found = compare(model, subwords, Ours(model, subwords), LINES, SAME, most=20)
    assert (found.n_line, found.n_same, found.worst, found.first) == (len(LINES), len(LINES), 0.0, None)


def test_the_first_text_that_differs_is_shown(model, subwords):
    other = Altered(model, subwords, text=lambda text: text + "!")
    with pytest.raises(RunError, match=rf"another one:\n  {LINES[0]}\nis here\n  (?s:.*)!"):
        compare(model, subwords, other, LINES, ROUNDED, most=20)
    assert compare(model, subwords, other, LINES, QUANTISED, most=20).n_same == 0


@pytest.mark.parametrize(
    ("apart", "passes"),
    [(0.0, {SAME, ROUNDED, BF16}), (5e-4, {ROUNDED, BF16}), (0.01, {BF16}), (0.1, set()), (math.nan, set())],
)
def test_scores_may_differ_as_much_as_is_said(model, subwords, apart, passes):
    other = Altered(model, subwords, score=lambda score: score + apart)
    for tolerance in (SAME, ROUNDED, BF16):
        if tolerance in passes:
            compare(model, subwords, other, LINES, tolerance, most=20)
        else:
            with pytest.raises(RunError, match=r"another one: .* apart on average"):
                compare(model, subwords, other, LINES, tolerance, most=20)


def test_another_model_is_noticed(model, subwords):
    other, _ = made(subwords)
    with torch.no_grad():
        other.decoder.layer_stack[1].enc_attn.w_vs.weight.mul_(1.5)
    with pytest.raises(RunError, match="another one"):
        compare(model, subwords, Ours(other, subwords), LINES, ROUNDED, most=20)
