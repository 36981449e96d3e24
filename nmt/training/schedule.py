"""The learning rate as a function of how far the run is. Nothing is stored, so a resumed run cannot get it wrong."""

import math

from nmt.recipe.options import Recipe
from nmt.recipe.training_options import OptimConfig

_WITHOUT_END = ("noam", "inverse_sqrt", "constant")  # the schedules that look at the update alone


def bound_to_length(recipe: Recipe) -> list[str]:
    """The options that have an update depend on how long the run is to be; with none of them a longer run begins with
    just the updates of a shorter one."""
    bound = [] if recipe.optim.schedule in _WITHOUT_END else ["optim.schedule"]
    switched, begun = recipe.regularize.model_dump(), recipe.regularize.at(0.0).model_dump()
    return bound + [f"regularize.{name}" for name in switched if switched[name] != begun[name]]


def share_of_run(update: int, *, n_update: int, passed: float = 0.0) -> float:
    """How far the run is with `update` updates done: in [0, 1], by the measure that is nearer its end.

    passed: share of the time budget that has passed; 0 where there is none, and then the updates say it all. What
    changes in the course of a run, the learning rate and all else, asks here.
    """
    return min(1.0, max(update / n_update, passed))


def learning_rate_factor(update: int, config: OptimConfig, *, share: float, d_model: int) -> float:
    """Share of the peak learning rate at `update`, which counts from 1; for noam, the rate itself.

    share: how far the run is with this update done, see `share_of_run`.
    noam: lr_mul * d_model^-0.5 * min(u^-0.5, u * warmup^-1.5) (Vaswani et al. 2017, section 5.3; lr_mul as upstream).
    The others rise linearly over `warmup` updates, then: inverse_sqrt falls as sqrt(warmup / u); cosine and linear
    reach `end_factor` at the end of the run; wsd (warm-up, stable, decay: Hu et al. 2024, MiniCPM, section 4) stays
    until the last `decay_share` of the run and falls there to `end_factor` as one less a root, the form that Hägele et
    al. 2024, "Scaling laws and compute-optimal training beyond fixed training durations", found best; constant stays.
    """
    assert update >= 1 and config.schedule != "auto"
    warmup = max(1, config.n_warmup)
    if config.schedule == "noam":
        return config.lr_mul / math.sqrt(d_model) * min(1 / math.sqrt(update), update / (warmup * math.sqrt(warmup)))
    if update <= warmup:
        return update / warmup
    if config.schedule == "inverse_sqrt":
        return math.sqrt(warmup / update)
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "wsd":
        falling = 1 - math.sqrt(max(0.0, 1 - (1 - share) / config.decay_share))
    else:
        # The warm-up took warmup / update of the share so far: exactly so by updates, nearly so by the clock.
        done = share * (update - warmup) / (update - share * warmup)
        falling = 0.5 * (1 + math.cos(math.pi * done)) if config.schedule == "cosine" else 1 - done
    return config.end_factor + (1 - config.end_factor) * falling
