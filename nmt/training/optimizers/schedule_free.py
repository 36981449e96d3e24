"""Schedule-free AdamW: an average of the weights takes the place of a schedule that knows when it will end.

A. Defazio et al. 2024, "The road less scheduled". Gradients are taken at y, between the fast weights z and their
average x, which is what one measures, keeps and translates with. The optimizer is that of the `schedulefree` package,
an extra. Here is how it changes from y to x and back: the package computes one from the other, which rounds, so that
a run would depend on when it was looked at; we keep y while x is in its place.
"""

from typing import Any

import torch

from nmt.extras import missing
from nmt.recipe.training_options import OptimConfig

COUNTED = ("k", "weight_sum", "lr_max")  # numbers that it keeps in its groups and changes itself


def schedule_free_adamw(groups: list[dict[str, Any]], config: OptimConfig) -> torch.optim.Optimizer:
    """The optimizer, ready for its first update. Warm-up is left to our schedule, which sets its rate."""
    try:
        from schedulefree import AdamWScheduleFree
    except ImportError:
        raise missing("schedulefree", "optim.name: schedulefree") from None
    optimizer: torch.optim.Optimizer = AdamWScheduleFree(groups, lr=config.lr, betas=config.betas, eps=config.eps)
    wake(optimizer)
    return optimizer


def is_schedule_free(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer is one of those here."""
    return "train_mode" in optimizer.defaults


@torch.no_grad()
def rest(optimizer: torch.optim.Optimizer) -> None:
    """Put the average x where y is, and y into the optimizer's state."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            state = optimizer.state[param]
            if "z" in state:  # before the first update all three are one
                state["y"] = param.clone()
                param.lerp_(state["z"], 1 - 1 / group["betas"][0])  # y = (1 - beta1) z + beta1 x
        group["train_mode"] = False


@torch.no_grad()
def wake(optimizer: torch.optim.Optimizer) -> None:
    """Put y back, bit for bit."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            if "y" in optimizer.state[param]:
                param.copy_(optimizer.state[param].pop("y"))
        group["train_mode"] = True
