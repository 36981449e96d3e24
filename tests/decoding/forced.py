"""What a model says of whole translations that are given: what a search has to say of those that it finds."""

import math

from nmt.decoding.scorer import score_tokens


def score_pairs(model, src_ids, trg_ids, **how) -> list[float]:
    """Log-probability of each translation, EOS included, by forced decoding."""
    return [math.fsum(one) for one in score_tokens(model, src_ids, trg_ids, **how)]
