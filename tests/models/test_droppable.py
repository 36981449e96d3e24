"""Word dropout: the model cannot see which words were dropped."""

import pytest
import torch

from nmt.models.base import DROPPED, WordEmbedding

PLAIN = {"dropout": 0.0, "scale_emb_or_prj": "emb"}


@pytest.fixture
def training(make):
    """training(option=value, ...) -> a model in training mode, without dropout, whose words may be dropped."""

    def training(**options):
        model = make(**{**PLAIN, **options}).train()
        for embedding in model.embeddings:
            embedding.may_drop = True
        return model

    return training


def test_dropped_word_is_zero_and_other_embeddings_are_unchanged():
    embedding = WordEmbedding(7, 4)
    seq = torch.tensor([[3, DROPPED, 5], [DROPPED, 4, 6]])
    embedding.may_drop = True
    found = embedding(seq)
    assert not found[seq == DROPPED].any()
    assert torch.equal(found[seq != DROPPED], embedding.weight[seq[seq != DROPPED]])
    found.sum().backward()
    assert torch.equal(embedding.weight.grad.sum(1), torch.tensor([0.0, 0.0, 0.0, 4.0, 4.0, 4.0, 4.0]))


@pytest.mark.parametrize("options", [{}, {"norm": "pre", "position": "rotary", "lexical_attn": True}])
def test_model_sees_that_a_word_was_dropped_but_not_which(training, batch, options):
    """Lexical attention looks words up a second time and must not find the dropped ones."""
    model, (src_seq, trg_seq) = training(**options), batch
    src_weight, trg_weight = (embedding.weight for embedding in model.embeddings)
    assert src_weight is trg_weight
    word = src_seq[0, 2]
    dropped = src_seq.masked_fill(src_seq == word, DROPPED), trg_seq.masked_fill(trg_seq == word, DROPPED)
    expected = model.decode_hidden(*dropped)
    assert not torch.allclose(expected, model.decode_hidden(*batch))
    with torch.no_grad():
        src_weight[word] += 1.0
    assert torch.equal(model.decode_hidden(*dropped), expected)
    shorter = model.decode_hidden(torch.where(src_seq == word, 0, src_seq), dropped[1])
    assert not torch.allclose(shorter[0], expected[0])  # a dropped word is not padding: its position is seen
