"""Optimizers from a recipe, their learning rate, and the one place where an update is applied."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nmt.models.base import Blocked
from nmt.recipe.training_options import OptimConfig
from nmt.training.muon import Muon
from nmt.training.sharding import laid_out_like, local, total_norm


@dataclass(frozen=True)
class Optimizers:
    """One optimizer, or two that share the parameters between them.

    parts: pairs of an optimizer and its peak learning rate.
    """

    parts: tuple[tuple[torch.optim.Optimizer, float], ...]

    @property
    def guarded(self) -> bool:
        """Whether every part can be told on its device not to move anything."""
        return all(optimizer.defaults.get("fused") for optimizer, _ in self.parts)

    def set_rate(self, factor: float, *, absolute: bool) -> float:
        """Set every rate to factor x its peak, or to `factor` itself; returns the first part's rate."""
        for optimizer, peak in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = factor if absolute else factor * peak
        return float(self.parts[0][0].param_groups[0]["lr"])

    def zero_grad(self) -> None:
        for optimizer, _ in self.parts:
            optimizer.zero_grad(set_to_none=True)

    def state(self, model: nn.Module) -> dict[str, Tensor]:
        """Every tensor of the optimizers' state, named `parameter|quantity`."""
        name_of: dict[Tensor, str] = {param: name for name, param in model.named_parameters()}
        return {
            f"{name_of[param]}|{quantity}": value
            for optimizer, _ in self.parts
            for param, values in optimizer.state.items()
            for quantity, value in values.items()
        }

    def load_state(self, model: nn.Module, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave. The optimizers must be new."""
        by_param: dict[str, dict[str, Tensor]] = {}
        for key, value in state.items():
            name, quantity = key.split("|")
            by_param.setdefault(name, {})[quantity] = value
        params = dict(model.named_parameters())
        for optimizer, _ in self.parts:
            mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
            for name, values in by_param.items():
                if id(params[name]) in mine:
                    optimizer.state[params[name]] = {
                        quantity: laid_out_like(params[name], value) for quantity, value in values.items()
                    }


def build_optimizers(model: nn.Module, config: OptimConfig) -> Optimizers:
    """Matrices decay, vectors do not. Under muon the hidden matrices go to Muon, all else to AdamW."""
    params = dict(model.named_parameters())  # a shared matrix occurs once
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    hidden = [p for p in params.values() if p.dim() == 2 and id(p) not in embeddings]
    output = {id(p) for name, p in params.items() if name == "trg_word_prj.weight"}
    to_muon = [p for p in hidden if id(p) not in output] if config.name == "muon" else []
    taken = set(map(id, to_muon))
    rest = [p for p in params.values() if id(p) not in taken]
    groups = [
        {"params": [p for p in rest if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in rest if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    adam = kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
    if not to_muon:
        return Optimizers(((adam, config.lr),))
    muon = Muon(_by_block(model, to_muon), lr=config.muon_lr, weight_decay=config.weight_decay)
    return Optimizers(((muon, config.muon_lr), (adam, config.lr)))


def _by_block(model: nn.Module, params: list[nn.Parameter]) -> list[dict[str, Any]]:
    """Parameters in groups of one block shape; None where a matrix is one block."""
    blocked = (module for module in model.modules() if isinstance(module, Blocked))
    block_of = {id(weight): shape for module in blocked for weight, shape in module.blocks()}
    groups: dict[tuple[int, int] | None, list[nn.Parameter]] = {}
    for param in params:
        groups.setdefault(block_of.get(id(param)), []).append(param)
    return [{"params": members, "block": block} for block, members in groups.items()]


def apply_update(
    model: nn.Module,
    optimizers: Optimizers,
    scaler: torch.amp.GradScaler,
    *,
    loss: Tensor,
    clip: float,
    late: bool = False,
) -> tuple[Tensor, Tensor]:
    """Unscale, measure, clip, check, step: in this order, and only here.

    late: leave the check to the device, so that nobody waits for it. Returns the norm of the gradient before clipping,
    and whether the weights moved, 0-dim both: a loss or gradient that is not finite moves nothing.
    """
    for optimizer, _ in optimizers.parts:
        scaler.unscale_(optimizer)
    params = [p for p in model.parameters() if p.grad is not None]
    grads = [p.grad for p in params if p.grad is not None]
    norm = total_norm(grads)
    finite = torch.isfinite(loss) & torch.isfinite(norm)
    if late or finite:
        if clip:
            torch._foreach_mul_([local(grad) for grad in grads], (clip / (norm + 1e-6)).clamp(max=1.0))
        for optimizer, _ in optimizers.parts:
            if late:
                # What fused optimizers look at before they move anything; the scaler tells them so, too.
                vars(optimizer).update(grad_scale=None, found_inf=(~finite).float())
            scaler.step(optimizer)
    if scaler.is_enabled():
        scaler.update()  # after a skipped update too: that is how the scale comes down
    optimizers.zero_grad()
    return norm, finite
