import itertools
import math

import pytest
import torch
from fake_model import HashModel
from small_search import PENALTIES, SRC, divisor, log_prob, run, score_pairs, tiny_model
from torch import Tensor

from nmt import ops
from nmt.data.subwords import BOS, EOS, PAD
from nmt.decoding.beam import BeamSettings
from nmt.errors import MachineError
from nmt.models.base import DecoderState, TranslationModel


def greedy_choice(model: TranslationModel, src: Tensor, ids: list[int]) -> int:
    logits = model(src[None], torch.tensor([[BOS, *ids]]))[0, -1].detach()
    logits[[PAD, BOS]] = -math.inf
    return int(logits.argmax())


@pytest.mark.parametrize(("kind", "alpha"), PENALTIES)
@pytest.mark.parametrize("n_vocab", [6, 8])
def test_wide_beam_equals_exhaustive_search(kind, alpha, n_vocab):
    model, symbols, longest = HashModel(n_vocab, seed=3), range(3, 6), 4
    max_len = torch.tensor([longest, 2, 3])
    found = run(model, SRC[:3], beam=150, n_best=20, length_penalty=kind, alpha=alpha, max_len=max_len, n_real=6)
    for src, cap, hypotheses in zip(SRC, max_len.tolist(), found, strict=False):
        outputs = []
        for n in range(cap + 1):
            for ids in itertools.product(symbols, repeat=n):
                score = log_prob(model, src, list(ids))
                outputs.append((score / divisor(n + 1, kind, alpha), score, list(ids)))
        best = sorted(outputs, reverse=True)[:20]
        assert [hypothesis.ids for hypothesis in hypotheses] == [ids for _, _, ids in best]
        for hypothesis, (normalised, score, _) in zip(hypotheses, best, strict=True):
            assert hypothesis.score == pytest.approx(score, abs=1e-12)
            assert hypothesis.normalised == pytest.approx(normalised, abs=1e-12)


@pytest.mark.parametrize("kind", ["wu", "average", "none"])
def test_beam_of_one_equals_greedy_search(kind):
    model = HashModel(n_vocab=24, seed=1, sharpness=2.0)
    found = run(model, beam=1, length_penalty=kind, alpha=3.0)  # a long hypothesis would win, but greedy stops at EOS
    for src, (hypothesis,) in zip(SRC, found, strict=True):
        ids: list[int] = []
        while (token := greedy_choice(model, src, ids)) != EOS and len(ids) < 12:
            ids.append(token)
        assert hypothesis.ids == ids
        assert hypothesis.finished == (token == EOS)


class Certain(HashModel):
    """Clearly prefers six times the same token; EOS always comes second, far behind."""

    def step(self, last: Tensor, state: DecoderState) -> Tensor:
        logits = torch.full((len(last), 8), -5.0, dtype=torch.float64)
        logits[:, 4], logits[:, EOS] = (5.0, 0.0) if state.n_step < 6 else (0.0, 5.0)
        state.n_step += 1
        return logits


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize(("kind", "alpha"), PENALTIES)
def test_search_continues_while_a_better_hypothesis_is_unfinished(kind, alpha, width):
    found = run(Certain(8), SRC[:1], beam=width, length_penalty=kind, alpha=alpha)
    assert found[0][0].ids == [4] * 6 and found[0][0].finished


@pytest.mark.parametrize("width", [1, 3, 5])
@pytest.mark.parametrize("model", [HashModel(n_vocab=16, seed=2, sharpness=2.0), tiny_model(16, position="rotary")])
def test_batch_translates_like_single_sentences(model, width):
    max_len = torch.tensor([12, 3, 9, 0, 7, 12])
    batched = run(model, beam=width, n_best=width, max_len=max_len)
    alone = [
        run(model, SRC[i : i + 1], beam=width, n_best=width, max_len=max_len[i : i + 1])[0] for i in range(len(SRC))
    ]
    for found, expected in zip(batched, alone, strict=True):
        assert [h.ids for h in found] == [h.ids for h in expected]
        assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-12)


@pytest.mark.parametrize(
    "model", [HashModel(n_vocab=16, seed=9), tiny_model(16), tiny_model(16, norm="pre", n_kv_head=1)]
)
def test_score_equals_forced_decoding(model):
    found = run(model, n_best=4, max_len=torch.tensor([12, 2, 0, 5, 12, 1]))
    pairs = [(src, hypothesis) for src, hypotheses in zip(SRC, found, strict=True) for hypothesis in hypotheses]
    # score_pairs frames the source itself, with the EOS that SRC has as its last real id.
    src_ids = [[token for token in src.tolist() if token != PAD][:-1] for src, _ in pairs]
    for max_tokens in (1, 30, 10_000):
        forced = score_pairs(model, src_ids, [hypothesis.ids for _, hypothesis in pairs], max_tokens=max_tokens)
        for (src, hypothesis), score in zip(pairs, forced, strict=True):
            assert hypothesis.score == pytest.approx(score, abs=1e-11)
            assert hypothesis.score == pytest.approx(log_prob(model, src, hypothesis.ids), abs=1e-11)


class InHalfPrecision(HashModel):
    """Returns its logits in bfloat16."""

    def _logits(self, key: Tensor) -> Tensor:
        return super()._logits(key).bfloat16()


@pytest.mark.parametrize("width", [1, 4])
def test_half_precision_logits_are_scored_in_full_precision(width):
    model = InHalfPrecision()
    for src, hypotheses in zip(SRC, run(model, beam=width, n_best=width), strict=True):
        assert len({tuple(hypothesis.ids) for hypothesis in hypotheses}) == width
        for hypothesis in hypotheses:
            assert hypothesis.score == pytest.approx(log_prob(model, src, hypothesis.ids), abs=1e-5)


class NeverEnds(HashModel):
    """Prefers every token to EOS."""

    def _logits(self, key: Tensor) -> Tensor:
        logits = super()._logits(key).clone()
        logits[..., EOS] -= 50.0
        return logits


@pytest.mark.parametrize("width", [1, 4])
def test_hypotheses_at_the_length_cap_are_unfinished(width):
    model = NeverEnds(n_vocab=16, seed=4)
    max_len = torch.tensor([12, 3, 9, 0, 7, 12])
    found = run(model, beam=width, n_best=width, length_penalty="average", max_len=max_len)
    for src, cap, hypotheses in zip(SRC, max_len.tolist(), found, strict=True):
        assert hypotheses
        for hypothesis in hypotheses:
            assert len(hypothesis.ids) <= cap
            assert hypothesis.finished == (len(hypothesis.ids) < cap)
            assert hypothesis.score == pytest.approx(log_prob(model, src, hypothesis.ids), abs=1e-12)


def test_control_symbols_and_padding_of_the_vocabulary_are_never_produced():
    class PrefersControl(HashModel):
        def _logits(self, key: Tensor) -> Tensor:
            logits = super()._logits(key).clone()
            logits[..., [PAD, BOS, 14, 15]] += 50.0
            return logits

    found = run(PrefersControl(n_vocab=16, seed=4), n_best=4, n_real=14)
    ids = {token for hypotheses in found for hypothesis in hypotheses for token in hypothesis.ids}
    assert ids and ids <= set(range(3, 14))


def test_ties_have_the_same_order_in_every_batch():
    class AllTheSame(HashModel):
        def _logits(self, key: Tensor) -> Tensor:
            return torch.zeros_like(super()._logits(key))

    model = AllTheSame(n_vocab=8)
    batched = run(model, n_best=4)
    assert all(hypotheses == batched[0] for hypotheses in batched)
    assert run(model, SRC[:1], n_best=4)[0] == batched[0]


def test_nan_weights_raise_an_error():
    model = HashModel(n_vocab=8)
    with torch.no_grad():
        model.table.fill_(math.nan)
    with pytest.raises(MachineError, match="not finite"):
        run(model)


@pytest.mark.parametrize("n_column", [16, 24, 320, 999, 1024, 8000])
@pytest.mark.parametrize("n", [1, 2, 10])
def test_best_columns_equal_topk(n_column, n):
    logits = torch.randn(7, n_column, generator=torch.Generator().manual_seed(n))
    logits[:, :3] = -math.inf
    best, column = ops.best_columns(logits, n)
    expected, expected_column = logits.topk(n, dim=-1)
    assert torch.equal(best, expected)
    assert torch.equal(column, expected_column)


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("column", [0, 5])
def test_log_total_equals_logsumexp(scale, column):
    logits = scale * torch.randn(50, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    logits[:, 7] = -math.inf
    torch.testing.assert_close(ops.log_total(logits, column), logits.logsumexp(-1), rtol=1e-14, atol=1e-12)


@pytest.mark.parametrize(("kind", "alpha"), PENALTIES)
def test_length_penalty_follows_its_formula_and_never_falls(kind, alpha):
    lengths = torch.arange(1, 50)
    found = BeamSettings(length_penalty=kind, alpha=alpha).divisor(lengths)
    assert found.tolist() == pytest.approx([divisor(n, kind, alpha) for n in lengths.tolist()])
    assert bool((found.diff() >= 0).all())
