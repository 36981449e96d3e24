"""Sentences with random attention weights, for the tests of attention pictures and pages."""

import torch
from torch import Tensor

from nmt.data.subwords import Subwords
from nmt.evaluation.attention_page import Sentence, sentence_of
from nmt.models.base import Attns
from nmt.recipe.data_options import SubwordsConfig
from tests.learnt import learnt_subwords

N_ENC_LAYER, N_DEC_LAYER, N_HEAD = 2, 3, 4
PAIRS = [
    ("the old ship left in May", "das alte Schiff fuhr ab"),
    ("敏捷的棕色狐狸。", "</script><b>x</b> <!-- &amp; \u2028 {{script}} \u202e ]]>"),
    ("הכלב החום רץ בגן", "الكلب البني يجري"),
]


def make_subwords() -> Subwords:
    lines = ["the old ship left in May"] * 9
    return learnt_subwords(lines, lines, SubwordsConfig(vocab_size=290, whitespace="kept"))


def make_sentence(src: str, trg: str, number: int = 1, seed: int = 0) -> Sentence:
    subwords, generator = make_subwords(), torch.Generator().manual_seed(seed)
    src_ids, trg_ids = subwords.src.encode([src])[0], subwords.trg.encode([trg])[0]
    n_src, n_trg = len(src_ids) + 1, len(trg_ids) + 1

    def weights(n_layer: int, n_query: int, n_key: int) -> Tensor:
        score = 3 * torch.randn(n_layer, N_HEAD, n_query, n_key, generator=generator, dtype=torch.float64)
        return score.softmax(-1)

    past = weights(N_DEC_LAYER, n_trg, n_trg).tril()
    attns = Attns(
        weights(N_ENC_LAYER, n_src, n_src), past / past.sum(-1, keepdim=True), weights(N_DEC_LAYER, n_trg, n_src)
    )
    return sentence_of(attns, src_ids, trg_ids, subwords, f"{number}: {trg}")
