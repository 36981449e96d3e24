"""Forced decoding of given translations, and ensembles of models. It handles ids only, no text."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nmt.data.arrays import Ragged
from nmt.data.batches import length_batches, pad
from nmt.data.subwords import BOS, EOS
from nmt.models.base import Attns, DecoderState, SearchModel
from nmt.models.layers import Gaps

Ids = Sequence[int] | NDArray[np.int64]

# Attention weights grow with the square of the length. Batches of pairs longer than this are smaller.
_LONG = 256
# Bound on pairs x longest side: unlike a search, scoring holds the logits of all tokens of a batch.
_MAX_TOKENS = 4096


def full_precision(numbers: Tensor) -> Tensor:
    """Convert half precision to fp32, for accurate sums; keep fp32 and fp64."""
    return numbers.float() if numbers.dtype in (torch.float16, torch.bfloat16) else numbers


def gold_log_probs(logits: Tensor, gold: Tensor) -> Tensor:
    """(…, V) logits, (…) ids -> (…) log-probability of each id."""
    logits = full_precision(logits)
    return logits.gather(-1, gold.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)


@torch.inference_mode()
def score_tokens(
    model: SearchModel,
    src_ids: Sequence[Ids],
    trg_ids: Sequence[Ids],
    *,
    max_tokens: int = _MAX_TOKENS,
    on_attention: Callable[[int, Tensor], object] | None = None,
) -> list[list[float]]:
    """Log-probability of each token of given translations, EOS included, by teacher forcing. Ids are without BOS and
    EOS.

    max_tokens bounds pairs x longest side in one batch. on_attention: called with the number of each pair, in any
    order, and its cross-attention weights, (n_layer, n_head, T, S), with EOS last on both sides.
    """
    assert len(src_ids) == len(trg_ids)
    log_probs: list[list[float]] = [[] for _ in src_ids]
    longest = np.array([max(len(src), len(trg)) + 1 for src, trg in zip(src_ids, trg_ids, strict=True)], dtype=np.int64)
    cost = longest if on_attention is None else np.maximum(longest, longest**2 // _LONG)
    for batch in length_batches(cost, min(max_tokens, _MAX_TOKENS)):
        src, trg = (Ragged.of([ids[pair] for pair in batch]) for ids in (src_ids, trg_ids))
        gold = pad(trg, after=(EOS,)).to(model.device)  # (B, T)
        src_seq, trg_seq = pad(src, after=(EOS,)).to(model.device), pad(trg, before=(BOS,)).to(model.device)
        if on_attention is None:
            logits = model(src_seq, trg_seq)
        else:
            logits, attns = model(src_seq, trg_seq, return_attns=True)
            weights = full_precision(attns.cross).cpu()
            for row, pair in enumerate(batch):
                on_attention(int(pair), weights[:, row, :, : len(trg_ids[pair]) + 1, : len(src_ids[pair]) + 1])
        rows = gold_log_probs(logits, gold).double().cpu().numpy()
        for pair, row in zip(batch, rows, strict=True):
            log_probs[pair] = row[: len(trg_ids[pair]) + 1].tolist()  # by length, since a given id may be PAD
    return log_probs


# Last decoder layers to average. In a deep decoder the layer before the last aligns best (Garg et al. 2019, "Jointly
# learning to align and translate with Transformer models"), in a shallow one the last; their mean is as good as either.
N_LAYER = 2


def subword_alignment(weights: Tensor, layer: int = 0, head: int = 0) -> list[int | None]:
    """Return, for each target subword, the source subword with the most attention, from 0; None for an empty source.

    weights: (n_layer, n_head, T, S), with EOS last on both sides, which is ignored. layer, head: counted from 1, as
    decode.align_layer and align_head are; 0 for their mean.
    """
    layers = weights[layer - 1 : layer] if layer else weights[-N_LAYER:]
    attention = (layers[0, head - 1] if head else layers.mean((0, 1)))[:-1, :-1]  # (T, S) without EOS
    if not attention.size(1):
        return [None] * len(attention)
    alignment: list[int | None] = attention.argmax(-1).tolist()
    return alignment


class States(DecoderState):
    """The states of all models of an ensemble."""

    def __init__(self, states: list[DecoderState]) -> None:
        super().__init__({}, {}, states[0].n_sentence)
        self.states = states

    def reorder(self, rows: Tensor) -> None:
        for state in self.states:
            state.reorder(rows)

    def keep(self, gaps: Gaps) -> None:
        for state in self.states:
            state.keep(gaps)
        self.n_sentence = len(gaps.stay)


class Ensemble(SearchModel):
    """p(token) = mean over models of p_model(token). The models share only their vocabulary."""

    def __init__(self, models: Sequence[SearchModel]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.attends = models[0].attends

    def forward(self, src_seq: Tensor, trg_seq: Tensor, return_attns: bool = False) -> Tensor | tuple[Tensor, Attns]:
        """(B, S), (B, T) -> (B, T, V) logarithms of the mean probabilities. return_attns: also the attention of the
        first model."""
        first, *others = self._members()
        other_logits = [model(src_seq, trg_seq) for model in others]
        if not return_attns:
            return self._mean([first(src_seq, trg_seq), *other_logits])
        logits, attns = first(src_seq, trg_seq, return_attns=True)
        return self._mean([logits, *other_logits]), attns

    def start(self, src_seq: Tensor) -> DecoderState:
        return States([model.start(src_seq) for model in self._members()])

    def step(self, last: Tensor, state: DecoderState) -> Tensor:
        assert isinstance(state, States)
        state.n_step += 1
        members = zip(self._members(), state.states, strict=True)
        return self._mean([model.step(last, model_state) for model, model_state in members])

    def _members(self) -> list[SearchModel]:
        return [model for model in self.models if isinstance(model, SearchModel)]

    @staticmethod
    def _mean(logits: list[Tensor]) -> Tensor:
        log_probs = torch.stack([full_precision(model_logits).log_softmax(-1) for model_logits in logits])
        return log_probs.logsumexp(0) - math.log(len(logits))
