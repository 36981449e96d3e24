"""The promises of search once more, with the model that it is for: caches, masks and all, in fp64."""

import pytest
import torch
from forced import score_pairs

from nmt.data.subwords import BOS, EOS, PAD
from nmt.decoding.beam import BeamSettings, search
from nmt.models.build import build_model
from nmt.recipe.model_options import ModelConfig

SRC_IDS = [[5, 4, 3], [4], [3, 3, 5, 6, 7, 3, 4], [7, 7], [6, 3, 4, 5]]
MAX_LEN = torch.tensor([9, 4, 12, 0, 7])
OPTIONS = [{}, {"norm": "pre", "position": "rotary", "n_kv_head": 1, "ffn": "swiglu"}, {"position": "learned"}]


def tiny_model(n_vocab: int = 8, **options):
    torch.manual_seed(3)
    sizes = {"d_model": 16, "d_inner": 16, "n_head": 2, "n_enc_layer": 2, "n_dec_layer": 2}
    model = build_model(ModelConfig(**{**sizes, **options}), n_vocab, n_vocab, PAD).double().eval()
    with torch.no_grad():  # as sure of itself as a trained model, so that hypotheses differ
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


def run(model, src_ids=SRC_IDS, max_len=MAX_LEN, **changes):
    rows = [[*ids, EOS] for ids in src_ids]
    longest = max(map(len, rows))
    src_seq = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
    settings = {"bos": BOS, "eos": EOS, "pad": PAD, "beam": 4, "length_penalty": "wu", "alpha": 1.0, "n_best": 4}
    return search(model, src_seq, BeamSettings(**{**settings, **changes}), max_len)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("beam", [1, 4])
def test_a_batch_translates_like_its_sentences_alone(options, beam):
    model = tiny_model(24, **options)
    together = run(model, beam=beam, n_best=beam)
    for i, sentence in enumerate(together):
        (alone,) = run(model, SRC_IDS[i : i + 1], MAX_LEN[i : i + 1], beam=beam, n_best=beam)
        assert [one.ids for one in sentence] == [one.ids for one in alone]
        assert [one.score for one in sentence] == pytest.approx([one.score for one in alone], abs=1e-12)


@pytest.mark.parametrize("options", OPTIONS)
def test_the_printed_score_is_that_of_forced_decoding(options):
    model = tiny_model(24, **options)
    found = run(model)
    pairs = [(src, one) for src, sentence in zip(SRC_IDS, found, strict=True) for one in sentence]
    forced = score_pairs(model, [src for src, _ in pairs], [one.ids for _, one in pairs], max_tokens=60)
    assert [one.score for _, one in pairs] == pytest.approx(forced, abs=1e-11)
