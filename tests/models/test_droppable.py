"""A model without some of its words or layers."""

import pytest
import torch

from nmt.models.base import DROPPED, WordEmbedding

PLAIN = {"dropout": 0.0, "scale_emb_or_prj": "emb"}


@pytest.fixture
def training(make):
    """training(option=value, ...) -> a model in training, without dropout, whose words may be dropped."""

    def training(**options):
        model = make(**{**PLAIN, **options}).train()
        for embedding in model.embeddings:
            embedding.may_drop = True
        return model

    return training


def test_a_dropped_word_is_zero_and_the_others_are_what_they_are_in_translation():
    embedding = WordEmbedding(7, 4)
    seq = torch.tensor([[3, DROPPED, 5], [DROPPED, 4, 6]])
    embedding.may_drop = True
    found = embedding(seq)
    assert not found[seq == DROPPED].any()
    assert torch.equal(found[seq != DROPPED], embedding.weight[seq[seq != DROPPED]])
    found.sum().backward()
    assert torch.equal(embedding.weight.grad.sum(1), torch.tensor([0.0, 0.0, 0.0, 4.0, 4.0, 4.0, 4.0]))


@pytest.mark.parametrize("options", [{}, {"norm": "pre", "position": "rotary", "lexical_attn": True}])
def test_nothing_in_the_model_knows_which_word_was_dropped_but_all_that_one_was(training, batch, options):
    """Lexical attention looks words up once more, and must not find one there."""
    model, (src_seq, trg_seq) = training(**options), batch
    src_weight, trg_weight = (embedding.weight for embedding in model.embeddings)
    assert src_weight is trg_weight
    n = src_seq[0, 2]
    without = src_seq.masked_fill(src_seq == n, DROPPED), trg_seq.masked_fill(trg_seq == n, DROPPED)
    before = model.decode_hidden(*without)
    assert not torch.allclose(before, model.decode_hidden(*batch))
    with torch.no_grad():
        src_weight[n] += 1.0
    assert torch.equal(model.decode_hidden(*without), before)
    shorter = model.decode_hidden(torch.where(src_seq == n, 0, src_seq), without[1])
    assert not torch.allclose(shorter[0], before[0])  # a dropped word is not padding: its position is seen
