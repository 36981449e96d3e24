"""Short lists: what is on them follows from the sentence, and nothing else is found."""

import numpy as np
import pytest
import torch

from nmt.data.stored.translation_table import UNIT, TranslationTable
from nmt.decoding.scoring.shortlist import Shortlist
from nmt.decoding.search.beam import search
from nmt.decoding.search.settings import BeamSettings
from nmt.models.build import build_model
from nmt.models.narrow import Narrow, Normals
from nmt.recipe.model_options import ModelConfig

PAD, BOS, EOS, N = 0, 1, 2, 40
CPU = torch.device("cpu")


def table():
    """Source s is translated by s + 1 mostly and by s + 20 at times; the larger an id, the more frequent."""
    trg, share = np.zeros((N, 2), dtype=np.int32), np.zeros((N, 2), dtype=np.int32)
    for source in range(5, 15):
        trg[source], share[source] = (source + 1, source + 20), (UNIT // 2, UNIT // 9)
    return TranslationTable(trg, share, np.arange(N, dtype=np.int32)[::-1].copy())


def listed(n, *sentences):
    longest = max(map(len, sentences))
    rows = [[*one, EOS, *[PAD] * (longest - len(one))] for one in sentences]
    return Shortlist(table(), n, first=EOS, never=[PAD, BOS, 39], device=CPU)(torch.tensor(rows))


def test_the_likeliest_translations_come_first_and_then_what_is_frequent():
    found = listed(6, [5, 9], [7]).columns.tolist()
    assert found[0][0] == EOS and set(found[0][1:3]) == {6, 10} and set(found[0][3:5]) == {25, 29}
    assert found[0][5] == 38 and found[1] == [EOS, 8, 27, 38, 37, 36]
    assert listed(6, [7]).columns.tolist()[0] == found[1]  # whoever else is in the batch


def test_shares_of_several_words_add_up():
    assert listed(2, [5, 5]).columns.tolist() == [[EOS, 6]]
    assert listed(3, [5, 12]).columns[0, 1:].sort().values.tolist() == [6, 13]
    assert 25 in listed(3, [5, 5, 5, 5, 5, 12]).columns[0]  # five times a ninth is more than a half


def test_others_are_counted_by_group_and_all_that_may_be_are_listed_at_most():
    found = listed(100, [5])
    assert sorted(found.columns[0].tolist()) == [n for n in range(N) if n not in (PAD, BOS, 39)]
    assert found.log_other.exp().round().tolist() == [[1, 2]]  # 39 is frequent, PAD and BOS are not
    assert listed(4, [5]).log_other.exp().sum().item() == pytest.approx(N - 4)


def test_a_search_finds_what_is_listed_only_and_what_stands_for_the_others_has_its_share():
    torch.manual_seed(2)
    size = {"d_model": 16, "d_inner": 24, "n_enc_layer": 1, "n_dec_layer": 1, "n_head": 2}
    model = build_model(ModelConfig(**size), N, N).double().eval()
    src_seq, columns = torch.tensor([[5, 6, 7, EOS]]), torch.tensor([[EOS, 9, 30, 11]])
    normals = Normals.of(model.output_weight.detach(), torch.zeros(N, dtype=torch.long))
    narrow = Narrow(columns, torch.tensor([[N - 4.0]]).log(), lambda weight: normals)
    how = BeamSettings(bos=BOS, eos=EOS, pad=PAD, length_penalty="none", alpha=0.0, beam=6, n_best=6)
    (found,) = search(model, src_seq, how, torch.tensor([3]), shortlist=lambda src_seq: narrow)
    assert (
        found and all(set(one.ids) <= {9, 30, 11} for one in found) and {one.finished for one in found} == {True, False}
    )
    with torch.no_grad():
        for one in found:  # forced: the same ids, one after another
            state, score = model.start(src_seq), 0.0
            model.narrow(state, narrow)
            for last, token in zip([BOS, *one.ids], [*one.ids, EOS], strict=True):
                told = model.step(torch.tensor([last]), state).log_softmax(-1)[0]
                score += told[columns[0].tolist().index(token)].item()
            assert one.score == pytest.approx(score, abs=1e-9)
            assert told[-1].exp() > 0.5  # thirty-six of forty
