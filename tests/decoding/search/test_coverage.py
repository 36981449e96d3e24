"""Translations that leave nothing of the source out."""

import math

import pytest
import torch
from fake_model import HashModel

from nmt.data.subwords import BOS, EOS, Subwords
from nmt.decoding.batch_search import coverage
from nmt.decoding.translator import Translator
from nmt.models.base import Attns
from nmt.recipe.data_options import SubwordsConfig
from nmt.recipe.decode_options import DecodeConfig


def test_what_nothing_looked_at_counts_and_what_was_looked_at_twice_does_not_make_up_for_it():
    weights = torch.tensor([[[[0.5, 0.25, 0.0, 0.25], [0.7, 0.05, 0.0, 0.25]]]])  # T = 2, S = 4, the end among them
    assert coverage(weights) == pytest.approx(math.log(0.3) + math.log(1e-4), abs=1e-5)
    assert coverage(torch.tensor([[[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]])) == 0.0


class Attending(HashModel):
    """Looks at the place that a token's id says."""

    def _attns(self, src_seq, trg_seq):
        place = torch.nn.functional.one_hot(trg_seq % src_seq.size(1), src_seq.size(1)).float()
        return Attns(None, None, place[None, :, None].expand(2, -1, 3, -1, -1))


def test_score_and_coverage_together_choose_among_what_the_beam_has_found():
    lines = ["the old ship left in May"] * 9
    subwords = Subwords.train(lambda: lines, lambda: lines, SubwordsConfig(vocab_size=280))
    model = Attending(subwords.trg.n_vocab, seed=2, sharpness=1.0).eval()
    sources, n_changed = ["für Übung", "zx qy", "hop x", "why"], 0
    how = {"beam": 6, "max_len_a": 0.0, "max_len_b": 4}
    plain = Translator(model, subwords, DecodeConfig(**how, n_best=6, max_tokens=1))
    # All that the beam has, among it what differs in its subwords alone.
    beams = {rows[0]: its[0] for rows, its in plain.batches(subwords.src.encode(sources))}

    def covered(src_ids, ids):
        src_seq, trg_seq = torch.tensor([[*src_ids, EOS]]), torch.tensor([[BOS, *ids]])
        return coverage(model(src_seq, trg_seq, return_attns=True)[1].cross[:, 0])

    for weight in (0.02, 0.3):
        # One by one, since this model looks further where there is padding.
        config = DecodeConfig(**how, n_best=2, max_tokens=1, coverage=weight)
        for number, found in enumerate(Translator(model, subwords, config).translate(sources)):
            every = beams[number]
            worth = [one.normalised + weight * covered(found.src_ids, one.ids) for one in every]
            first: dict[str, list[int]] = {}
            for n in sorted(range(len(every)), key=lambda n: -worth[n]):
                first.setdefault(subwords.trg.decode(every[n].ids), every[n].ids)
            assert [one.ids for one in found.hypotheses] == list(first.values())[:2]
            n_changed += found.text != subwords.trg.decode(every[0].ids)
    assert n_changed
