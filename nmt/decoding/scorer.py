"""Log-probabilities: of a given translation, of every next token, and the length penalty on top.

What search prints and what forced decoding computes come from here, so they cannot disagree. No text.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.data.batches import length_batches, pad
from nmt.data.subwords import BOS, EOS
from nmt.models.base import TranslationModel

Ids = Sequence[int] | NDArray[np.int64]

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


def full_precision(logits: Tensor) -> Tensor:
    """Logits in which sums can be trusted: half precision becomes fp32, fp32 and fp64 stay as they are."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def as_array(ids: Ids) -> NDArray[np.int64]:
    """Ids of one sentence as `nmt.data.batches.pad` wants them."""
    return np.asarray(ids, dtype=np.int64)


def gold_log_probs(logits: Tensor, gold: Tensor) -> Tensor:
    """(…, V) logits, (…) ids -> (…) log-probability of each id."""
    logits = full_precision(logits)
    return logits.gather(-1, gold.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)


@torch.inference_mode()
def score_pairs(
    model: TranslationModel, src_ids: Sequence[Ids], trg_ids: Sequence[Ids], *, max_tokens: int = 4096
) -> list[float]:
    """Log-probability of given translations, EOS included, by teacher forcing.

    src_ids, trg_ids: one row of ids a sentence, without BOS and EOS.
    max_tokens bounds pairs x longest side in one batch.
    """
    assert len(src_ids) == len(trg_ids)
    scores = np.zeros(len(src_ids))
    longest = np.array([max(len(src), len(trg)) + 1 for src, trg in zip(src_ids, trg_ids, strict=True)], dtype=np.int64)
    for batch in length_batches(longest, max_tokens):
        src = [as_array(src_ids[pair]) for pair in batch]
        trg = [as_array(trg_ids[pair]) for pair in batch]
        gold = pad(trg, after=(EOS,)).to(model.device)  # (B, T)
        logits = model(pad(src, after=(EOS,)).to(model.device), pad(trg, before=(BOS,)).to(model.device))
        # By length and not by `gold != PAD`: a given id may be any id.
        n_gold = torch.tensor([len(ids) + 1 for ids in trg], device=model.device).unsqueeze(1)
        is_gold = torch.arange(gold.size(1), device=model.device) < n_gold
        log_probs = gold_log_probs(logits, gold).masked_fill(~is_gold, 0.0)
        scores[batch] = log_probs.sum(1, dtype=torch.float64).cpu().numpy()
    found: list[float] = scores.tolist()
    return found
