"""Sampling: the right distribution, narrowing as in the papers, and independence of the batch."""

from functools import partial

import pytest
import torch
from fake_model import HashModel
from small_search import score_pairs

from nmt.decoding.beam import BeamSettings, narrowed, not_finite, sample
from nmt.errors import MachineError

BOS, EOS, PAD = 1, 2, 0
SRC = torch.tensor([[4, 5, EOS], [5, EOS, PAD], [3, EOS, PAD], [4, 4, EOS]])


def run(n=4, src_seq=SRC, max_len=None, narrow=narrowed, model=None, n_real=None):
    model, settings = model or HashModel(n_vocab=8), BeamSettings(length_penalty="wu", alpha=1.0, n_real=n_real)
    max_len = torch.full((len(src_seq),), 6) if max_len is None else max_len
    seeds = [[7, int(row.sum())] for row in src_seq]
    return sample(model, src_seq, settings, max_len, n=n, seeds=seeds, narrow=narrow)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"top_k": 2}, [0, 0.4 / 0.7, 0, 0.3 / 0.7]),
        ({"top_k": 9}, [0.1, 0.4, 0.2, 0.3]),
        ({"top_p": 0.5}, [0, 0.4 / 0.7, 0, 0.3 / 0.7]),
        ({"top_p": 0.39}, [0, 1, 0, 0]),
        ({"epsilon": 0.15}, [0, 0.4 / 0.9, 0.2 / 0.9, 0.3 / 0.9]),
        ({"epsilon": 0.99}, [0, 1, 0, 0]),
        ({"temperature": 0.5}, [0.01 / 0.3, 0.16 / 0.3, 0.04 / 0.3, 0.09 / 0.3]),
        ({"top_k": 3, "top_p": 0.5}, [0, 0.4 / 0.7, 0, 0.3 / 0.7]),
    ],
)
def test_narrowing_gives_the_distribution_of_its_paper(options, expected):
    found = narrowed(torch.tensor([[0.1, 0.4, 0.2, 0.3]], dtype=torch.float64).log(), **options)
    torch.testing.assert_close(found, torch.tensor([expected], dtype=torch.float64))


def test_samples_follow_the_distribution_of_the_model():
    """At most two tokens, 2,000 samples: each translation's share is its probability within four deviations."""
    n = 2_000
    model = HashModel(n_vocab=6, seed=3)
    src_seq = SRC[:1]
    (found,) = run(n, src_seq=src_seq, model=model, max_len=torch.tensor([1]))
    counts = {}
    for hypothesis in found:
        counts[tuple(hypothesis.ids)] = counts.get(tuple(hypothesis.ids), 0) + 1
    logits = model(src_seq, torch.tensor([[BOS]]))[0, 0]
    logits[[PAD, BOS]] = -torch.inf
    p = logits.detach().softmax(-1)
    assert len(counts) == 4  # the empty translation and three words; all end at the cap
    for ids, count in counts.items():
        share = float(p[EOS] if not ids else p[ids[0]])
        assert abs(count / n - share) < 4 * (share * (1 - share) / n) ** 0.5


def test_samples_do_not_depend_on_batch_or_number_of_samples():
    batched = run(4)
    for number, row in enumerate(SRC):
        (alone,) = run(6, src_seq=row[None][:, : int((row != PAD).sum())])
        assert [h.ids for h in alone[:4]] == [h.ids for h in batched[number]]
        assert [h.score for h in alone[:4]] == pytest.approx([h.score for h in batched[number]], abs=1e-12)
    backwards = run(4, src_seq=SRC.flip(0))
    assert [[h.ids for h in found] for found in backwards[::-1]] == [[h.ids for h in found] for found in batched]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "epsilon": 0.01}])
def test_score_of_a_sample_equals_forced_decoding(options):
    model = HashModel(n_vocab=8)
    for row, found in zip(SRC, run(5, narrow=partial(narrowed, **options)), strict=True):
        src = [row[row != PAD][:-1].tolist()] * len(found)
        for h, forced in zip(found, score_pairs(model, src, [h.ids for h in found]), strict=True):
            assert h.score == pytest.approx(forced, abs=1e-12)
            divisor = float(BeamSettings(length_penalty="wu", alpha=1.0).divisor(torch.tensor(len(h.ids) + 1)))
            assert h.normalised == pytest.approx(forced / divisor, abs=1e-12)


def test_samples_at_the_length_cap_are_unfinished():
    model = HashModel(n_vocab=8)
    model.table.data[:, EOS] = -50.0  # EOS is never drawn
    for found in run(3, model=model, max_len=torch.tensor([2, 3, 4, 5])):
        assert all(not hypothesis.finished for hypothesis in found)
    assert [len(found[0].ids) for found in run(3, model=model, max_len=torch.tensor([2, 3, 4, 5]))] == [2, 3, 4, 5]


def test_forbidden_tokens_are_never_sampled():
    model = HashModel(n_vocab=8)
    model.table.data[:, [PAD, BOS, 6, 7]] = 50.0
    ids = {token for found in run(20, model=model, n_real=6) for hypothesis in found for token in hypothesis.ids}
    assert ids and ids <= {3, 4, 5}


def test_nan_weights_raise_the_error_of_beam_search():
    model = HashModel(n_vocab=8)
    model.table.data.fill_(torch.nan)
    with pytest.raises(MachineError) as error:
        run(model=model)
    assert str(error.value) == str(not_finite())
