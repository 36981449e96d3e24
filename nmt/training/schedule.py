"""The learning rate as a function of the update number. Nothing is stored, so a resumed run cannot get it wrong."""

import math

from nmt.recipe.training_options import OptimConfig


def learning_rate_factor(update: int, config: OptimConfig, *, n_update: int, d_model: int) -> float:
    """Share of the peak learning rate at `update`, which counts from 1; for noam, the rate itself.

    noam: lr_mul * d_model^-0.5 * min(u^-0.5, u * warmup^-1.5) (Vaswani et al. 2017, section 5.3; lr_mul as upstream).
    The others rise linearly over `warmup` updates, then: inverse_sqrt falls as sqrt(warmup / u); cosine and linear
    reach `end_factor` at the last update; constant stays.
    """
    assert update >= 1
    warmup = max(1, config.warmup)
    if config.schedule == "noam":
        return config.lr_mul / math.sqrt(d_model) * min(1 / math.sqrt(update), update / (warmup * math.sqrt(warmup)))
    if update < warmup:
        return update / warmup
    if config.schedule == "inverse_sqrt":
        return math.sqrt(warmup / update)
    if config.schedule == "constant":
        return 1.0
    done = min(1.0, (update - warmup) / max(1, n_update - warmup))
    falling = 0.5 * (1 + math.cos(math.pi * done)) if config.schedule == "cosine" else 1 - done
    return config.end_factor + (1 - config.end_factor) * falling
