"""Optimizers from a recipe, their learning rate, and the one place where an update is applied."""

import difflib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from nmt.errors import RecipeError
from nmt.extras import missing
from nmt.models.base import Blocked
from nmt.recipe.training_options import OptimConfig
from nmt.training.muon import Adam, AdamW, Muon
from nmt.training.parallel import laid_out_like, local, total_norm

# Parameters by their names.


def names_of(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """Every parameter once, with all its names; the first is that of the checkpoints."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        names.setdefault(param, []).append(name)
    return names


def freeze(model: nn.Module, patterns: Sequence[str]) -> str:
    """Take parameters out of training: no gradient, so no decay and no optimizer state either.

    Returns a line about it, which names what else is frozen because it is shared; '' if there are no patterns.
    Raises RecipeError when a pattern means nothing, or when nothing is left to train.
    """
    names = names_of(model)
    frozen = dict.fromkeys(param for pattern in patterns for param in _meant(names, pattern, "train.freeze"))
    for param in frozen:
        param.requires_grad_(False)
    if frozen.keys() == names.keys():
        raise RecipeError(f"train.freeze: {', '.join(patterns)} freezes every parameter, so nothing would train.")
    numbers = (sum(param.numel() for param in params) for params in (frozen, names))
    line = f"frozen: {len(frozen)} of {len(names)} parameters, {{:,}} of {{:,}} numbers".format(*numbers)
    line += "".join(f"; {names[p][0]} is also {' and '.join(names[p][1:])}" for p in frozen if len(names[p]) > 1)
    return line if frozen else ""


def rate_factors(model: nn.Module, factor_of: Mapping[str, float]) -> dict[nn.Parameter, float]:
    """The factors of the learning rate that are not 1. factor_of: by pattern; of those that mean one, the first counts.

    Raises RecipeError when a pattern means nothing.
    """
    names = names_of(model)
    found: dict[nn.Parameter, float] = {}
    for pattern, factor in factor_of.items():
        for param in _meant(names, pattern, "optim.rate_of"):
            found.setdefault(param, factor)
    return found


def _meant(names: Mapping[nn.Parameter, list[str]], pattern: str, option: str) -> list[nn.Parameter]:
    found = [param for param, its_names in names.items() if any(fnmatchcase(name, pattern) for name in its_names)]
    if not found:
        every = [name for its_names in names.values() for name in its_names]
        parts = {".".join(name.split(".")[:n]) + ".*" for name in every for n in range(1, name.count(".") + 1)}
        close = difflib.get_close_matches(pattern, [*sorted(parts), *every], n=3, cutoff=0.5)
        shown = close or sorted(part for part in parts if part.count(".") == 1)
        raise RecipeError(f"{option}: {pattern!r} means no parameter of this model. The nearest: {', '.join(shown)}.")
    return found


# Schedule-free AdamW.


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
    """Return whether an optimizer is schedule-free."""
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


Kind = TypeVar("Kind", bound=Hashable)


@dataclass(frozen=True)
class Optimizers:
    """One optimizer, or two that share the parameters between them.

    parts: pairs of an optimizer and its peak learning rate, of which each of its groups has a share, its rate_factor.
    """

    parts: tuple[tuple[torch.optim.Optimizer, float], ...]

    @property
    def guarded(self) -> bool:
        """Return whether every optimizer can skip an update by a flag on the device."""
        return all(optimizer.defaults.get("fused") for optimizer, _ in self.parts)

    def set_rate(self, factor: float, *, absolute: bool) -> float:
        """Set every rate to factor x its peak, or to `factor` itself; returns the first part's rate."""
        rates = [factor if absolute else factor * peak for _, peak in self.parts]
        for (optimizer, _), rate in zip(self.parts, rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * group["rate_factor"]
        return rates[0]

    def zero_grad(self) -> None:
        for optimizer, _ in self.parts:
            optimizer.zero_grad()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """The weights as they are to be measured and saved, which schedule-free training keeps elsewhere."""
        mine = [optimizer for optimizer, _ in self.parts if is_schedule_free(optimizer)]
        for optimizer in mine:
            rest(optimizer)
        try:
            yield
        finally:
            for optimizer in mine:
                wake(optimizer)

    def state(self, model: nn.Module) -> dict[str, Tensor]:
        """Every tensor of the optimizers' state, named `parameter|quantity`, and what they count in their groups."""
        name_of: dict[Tensor, str] = {param: name for name, param in model.named_parameters()}
        tensors = {
            f"{name_of[param]}|{quantity}": value
            for optimizer, _ in self.parts
            for param, values in optimizer.state.items()
            for quantity, value in values.items()
        }
        counts = {
            f"{part}.{number}|{quantity}": torch.tensor(group[quantity], dtype=torch.float64)
            for part, (optimizer, _) in enumerate(self.parts)
            for number, group in enumerate(optimizer.param_groups)
            for quantity in (COUNTED if is_schedule_free(optimizer) else ())
        }
        return tensors | counts

    def load_state(self, model: nn.Module, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave, once the model has its weights. The optimizers must be new."""
        by_param: dict[str, dict[str, Tensor]] = {}
        for key, value in state.items():
            name, quantity = key.split("|")
            by_param.setdefault(name, {})[quantity] = value
        params = dict(model.named_parameters())
        for part, (optimizer, _) in enumerate(self.parts):
            for number, group in enumerate(optimizer.param_groups):
                counts = by_param.pop(f"{part}.{number}", {})
                group.update({name: type(group[name])(value.item()) for name, value in counts.items()})
            mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
            for name, values in by_param.items():
                if id(params[name]) in mine:
                    optimizer.state[params[name]] = {
                        quantity: laid_out_like(params[name], value) for quantity, value in values.items()
                    }
            if is_schedule_free(optimizer):
                wake(optimizer)  # saved at rest


def is_count(key: str) -> bool:
    """Return whether a name in `Optimizers.state` is a count of an optimizer, and no state of a parameter."""
    group, _, quantity = key.partition("|")
    return quantity in COUNTED and group.replace(".", "", 1).isdecimal()


def build_optimizers(model: nn.Module, config: OptimConfig) -> Optimizers:
    """Matrices decay, vectors do not. Under muon the hidden matrices go to Muon, all else to AdamW.

    Frozen parameters have no part in it. Raises RecipeError when a pattern of `rate_of` means no parameter.
    """
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}  # a shared matrix occurs once
    factors = rate_factors(model, config.rate_of)
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    hidden = [p for p in params.values() if p.dim() == 2 and id(p) not in embeddings]
    output = {id(p) for name, p in params.items() if name == "trg_word_prj.weight"}
    to_muon = [p for p in hidden if id(p) not in output] if config.name == "muon" else []
    taken = set(map(id, to_muon))
    rest = [p for p in params.values() if id(p) not in taken]
    groups = [
        {"params": members, "weight_decay": config.weight_decay if is_matrix else 0.0, "rate_factor": factor}
        for (is_matrix, factor), members in _grouped(rest, lambda p: (p.dim() >= 2, factors.get(p, 1.0))).items()
    ]
    if config.name == "schedulefree":
        return Optimizers(((schedule_free_adamw(groups, config), config.lr),))
    parts: list[tuple[torch.optim.Optimizer, float]] = []
    if to_muon:
        block_of = _blocks(model)
        blocks = [
            {"params": members, "block": block, "rate_factor": factor}
            for (block, factor), members in _grouped(
                to_muon, lambda p: (block_of.get(id(p)), factors.get(p, 1.0))
            ).items()
        ]
        muon = Muon(blocks, config.muon_lr, momentum=config.muon_momentum, weight_decay=config.weight_decay)
        parts.append((muon, config.muon_lr))
    if groups:
        kind = Adam if config.name == "adam" else AdamW
        parts.append((kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True), config.lr))
    return Optimizers(tuple(parts))


def _grouped(params: list[nn.Parameter], kind: Callable[[nn.Parameter], Kind]) -> dict[Kind, list[nn.Parameter]]:
    """Parameters by their kind, in the order in which the kinds occur."""
    groups: dict[Kind, list[nn.Parameter]] = {}
    for param in params:
        groups.setdefault(kind(param), []).append(param)
    return groups


def _blocks(model: nn.Module) -> dict[int, tuple[int, int]]:
    """The shape of the blocks of each weight that has them, by its id."""
    blocked = (module for module in model.modules() if isinstance(module, Blocked))
    return {id(weight): shape for module in blocked for weight, shape in module.blocks()}


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
        factor = (clip / (norm + 1e-6)).clamp(max=1.0) if clip else None
        if factor is not None and (late or factor < 1.0):  # a pass over all gradients, unless it would change nothing
            torch._foreach_mul_([local(grad) for grad in grads], factor)
        for optimizer, _ in optimizers.parts:
            if late:
                # What fused optimizers look at before they move anything; the scaler tells them so, too.
                vars(optimizer).update(grad_scale=None, found_inf=(~finite).float())
            scaler.step(optimizer)
    if scaler.is_enabled():
        scaler.update()  # after a skipped update too: that is how the scale comes down
    optimizers.zero_grad()
    return norm, finite
