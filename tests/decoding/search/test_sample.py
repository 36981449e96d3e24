"""Sampling: the right distribution, narrowed as the papers say, and a line's samples its own whatever is around it."""

import pytest
import torch
from fake_model import HashModel
from small_search import score_pairs

from nmt.decoding.beam import BeamSettings, not_finite
from nmt.decoding.sampling import Narrowing, sample
from nmt.errors import MachineError

BOS, EOS, PAD = 1, 2, 0
SRC = torch.tensor([[4, 5, EOS], [5, EOS, PAD], [3, EOS, PAD], [4, 4, EOS]])


def run(n=4, src_seq=SRC, max_len=None, narrowing=None, model=None, n_real=None):
    model, how = model or HashModel(n_vocab=8), BeamSettings(length_penalty="wu", alpha=1.0, n_real=n_real)
    max_len = torch.full((len(src_seq),), 6) if max_len is None else max_len
    seeds = [[7, int(row.sum())] for row in src_seq]
    return sample(model, src_seq, how, max_len, n=n, seeds=seeds, narrowing=narrowing or Narrowing())


@pytest.mark.parametrize(
    ("how", "wanted"),
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
def test_a_distribution_is_narrowed_as_its_paper_says(how, wanted):
    found = Narrowing(**how)(torch.tensor([[0.1, 0.4, 0.2, 0.3]], dtype=torch.float64).log())
    torch.testing.assert_close(found, torch.tensor([wanted], dtype=torch.float64))


def test_what_is_drawn_is_distributed_as_the_model_says():
    """Two tokens at most, 2,000 samples: every translation's share is its probability within four deviations."""
    n = 2_000
    model = HashModel(n_vocab=6, seed=3)
    src_seq = SRC[:1]
    (found,) = run(n, src_seq=src_seq, model=model, max_len=torch.tensor([1]))
    n_real = {}
    for one in found:
        n_real[tuple(one.ids)] = n_real.get(tuple(one.ids), 0) + 1
    logits = model(src_seq, torch.tensor([[BOS]]))[0, 0]
    logits[[PAD, BOS]] = -torch.inf
    p = logits.detach().softmax(-1)
    assert len(n_real) == 4  # nothing, and three words; at the cap all end
    for ids, count in n_real.items():
        share = float(p[EOS] if not ids else p[ids[0]])
        assert abs(count / n - share) < 4 * (share * (1 - share) / n) ** 0.5


def test_samples_do_not_depend_on_the_batch_or_on_how_many_there_are():
    together = run(4)
    for number, row in enumerate(SRC):
        (alone,) = run(6, src_seq=row[None][:, : int((row != PAD).sum())])
        assert [one.ids for one in alone[:4]] == [one.ids for one in together[number]]
        assert [one.score for one in alone[:4]] == pytest.approx([one.score for one in together[number]], abs=1e-12)
    backwards = run(4, src_seq=SRC.flip(0))
    assert [[one.ids for one in found] for found in backwards[::-1]] == [[one.ids for one in f] for f in together]


@pytest.mark.parametrize("narrowing", [Narrowing(), Narrowing(0.7, 5, 0.9, 0.01)])
def test_a_score_is_what_forced_decoding_gives(narrowing):
    model = HashModel(n_vocab=8)
    for row, found in zip(SRC, run(5, narrowing=narrowing), strict=True):
        src = [row[row != PAD][:-1].tolist()] * len(found)
        for one, forced in zip(found, score_pairs(model, src, [one.ids for one in found]), strict=True):
            assert one.score == pytest.approx(forced, abs=1e-12)
            divisor = float(BeamSettings(length_penalty="wu", alpha=1.0).divisor(torch.tensor(len(one.ids) + 1)))
            assert one.normalised == pytest.approx(forced / divisor, abs=1e-12)


def test_the_cap_ends_a_sample_and_says_so():
    model = HashModel(n_vocab=8)
    model.table.data[:, EOS] = -50.0  # never of its own accord
    for found in run(3, model=model, max_len=torch.tensor([2, 3, 4, 5])):
        assert all(not one.finished for one in found)
    assert [len(found[0].ids) for found in run(3, model=model, max_len=torch.tensor([2, 3, 4, 5]))] == [2, 3, 4, 5]


def test_what_must_not_be_written_is_never_drawn():
    model = HashModel(n_vocab=8)
    model.table.data[:, [PAD, BOS, 6, 7]] = 50.0
    ids = {token for found in run(20, model=model, n_real=6) for one in found for token in one.ids}
    assert ids and ids <= {3, 4, 5}


def test_damaged_weights_are_the_error_that_they_are_in_beam_search():
    model = HashModel(n_vocab=8)
    model.table.data.fill_(torch.nan)
    with pytest.raises(MachineError) as found:
        run(model=model)
    assert str(found.value) == str(not_finite())
