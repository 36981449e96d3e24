"""Log-probabilities: of a given translation, of every next token, and the length penalty on top.

What search prints and what forced decoding computes come from here, so they cannot disagree. No text.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.data.arrays.ragged import Ragged
from nmt.data.batching.padding import length_batches, pad
from nmt.data.vocabulary.subwords import BOS, EOS
from nmt.models.base import SearchModel

Ids = Sequence[int] | NDArray[np.int64]

# Told the number of a pair and where the model looked in it: (n_layer, n_head, T, S) weights, EOS last on both sides.
Look = Callable[[int, Tensor], object]


class LookAtPieces(Protocol):
    """Told the number of a line and where the model looked in it, as `Look`: once for each piece it was translated in.

    piece: its number in the line.
    """

    def __call__(self, number: int, weights: Tensor, piece: int = 0) -> object:
        """Take the weights of one piece."""


# Weights of attention that are kept grow by the square of the length: above this one the batches get smaller.
_LONG = 256
# Bound on pairs x longest side: the logits of all their tokens are held at once, other than in a search.
_AT_ONCE = 4096

LengthPenalty = Literal["wu", "average", "none"]


def length_divisor(length: Tensor, kind: LengthPenalty, alpha: float) -> Tensor:
    """What a log-probability is divided by to compare hypotheses of different lengths.

    length: tokens with EOS, any shape. wu: ((5 + length) / 6)^alpha; average: length^alpha; none: 1.
    The divisor never falls as a hypothesis grows, which is what makes the bound of `beam.search` a bound.
    """
    real = length.to(torch.float64)
    if kind == "wu":
        return ((5.0 + real) / 6.0) ** alpha
    return real**alpha if kind == "average" else torch.ones_like(real)


def full_precision(numbers: Tensor) -> Tensor:
    """Numbers whose sums can be trusted: half precision becomes fp32, fp32 and fp64 stay as they are."""
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
    max_tokens: int = _AT_ONCE,
    look: Look | None = None,
) -> list[list[float]]:
    """Log-probability of each token of given translations, EOS included, by teacher forcing.

    src_ids, trg_ids: one row of ids a sentence, without BOS and EOS.
    max_tokens bounds pairs x longest side in one batch; more than _AT_ONCE are never taken. look: called for each pair,
    in any order, by the same pass.
    """
    assert len(src_ids) == len(trg_ids)
    found: list[list[float]] = [[] for _ in src_ids]
    longest = np.array([max(len(src), len(trg)) + 1 for src, trg in zip(src_ids, trg_ids, strict=True)], dtype=np.int64)
    cost = longest if look is None else np.maximum(longest, longest**2 // _LONG)
    for batch in length_batches(cost, min(max_tokens, _AT_ONCE)):
        src, trg = (Ragged.of([ids[pair] for pair in batch]) for ids in (src_ids, trg_ids))
        gold = pad(trg, after=(EOS,)).to(model.device)  # (B, T)
        src_seq, trg_seq = pad(src, after=(EOS,)).to(model.device), pad(trg, before=(BOS,)).to(model.device)
        if look is None:
            logits = model(src_seq, trg_seq)
        else:
            logits, attns = model(src_seq, trg_seq, return_attns=True)
            weights = full_precision(attns.cross).cpu()
            for row, pair in enumerate(batch):
                look(int(pair), weights[:, row, :, : len(trg_ids[pair]) + 1, : len(src_ids[pair]) + 1])
        told = gold_log_probs(logits, gold).double().cpu().numpy()
        for pair, row in zip(batch, told, strict=True):
            found[pair] = row[: len(trg_ids[pair]) + 1].tolist()  # by length and not by PAD: a given id may be any id
    return found
