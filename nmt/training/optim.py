"""Optimizers from a recipe, their learning rate, and the one place where an update is applied."""

import difflib
import inspect
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from nmt.errors import RecipeError, RunError
from nmt.models.base import Blocked
from nmt.ops import product_of_each
from nmt.recipe.training_options import OptimConfig
from nmt.training.parallel import laid_out_like, local, total_norm, whole


class WithoutCompiler(torch.optim.Optimizer):
    """An optimizer that is made, and whose gradients are forgotten, without torch's compiler. What it overrides is
    torch's own."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class Adam(WithoutCompiler, torch.optim.Adam):
    """`torch.optim.Adam`"""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class AdamW(WithoutCompiler, torch.optim.AdamW):
    """`torch.optim.AdamW`"""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


# Coefficients of the quintic Newton-Schulz iteration (Jordan et al.): steepest at zero, so that five
# iterations bring all singular values near one.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_N_ITERATION = 5
_TINY = 1e-7  # what is added to a norm that may be zero
_SMALL = 2**18  # numbers up to which matrices of several kinds are orthogonalised together: it is the calls that cost


def orthogonalise(matrices: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrix of each, roughly: singular values but the smallest end between 0.68 and 1.21.
    matrices: (N, rows, columns). On a GPU the products run in bf16, which is exact enough for this."""
    wide = matrices.size(1) <= matrices.size(2)
    x = matrices if wide else matrices.mT
    x = _iterate(x.to(torch.bfloat16)).to(x.dtype) if x.is_cuda else _iterate_on_gram(x)
    return x if wide else x.mT


def _iterate(x: Tensor) -> Tensor:
    x = x / (x.norm(dim=(1, 2), keepdim=True) + _TINY)
    for _ in range(_N_ITERATION):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x


def _iterate_on_gram(x: Tensor) -> Tensor:
    """Return what `_iterate` does, its factors collected: all are polynomials of the symmetric x x^T. Needs fp32."""
    gram = product_of_each(x, x.mT, symmetric=True)  # (N, rows, rows)
    norm = gram.diagonal(dim1=1, dim2=2).sum(1).sqrt_().add_(_TINY)[:, None, None]
    gram /= norm * norm
    product = factor = _factor(gram)
    for _ in range(_N_ITERATION - 1):
        gram = _of_one_matrix(_of_one_matrix(factor, gram), factor)
        factor = _factor(gram)
        product = _of_one_matrix(factor, product)
    return product_of_each(product / norm, x)


def _factor(gram: Tensor) -> Tensor:
    """Return the factor of one iteration: _A + _B gram + _C gram^2."""
    right = gram * _C
    right.diagonal(dim1=1, dim2=2).add_(_B)
    factor = _of_one_matrix(gram, right)
    factor.diagonal(dim1=1, dim2=2).add_(_A)
    return factor


def _of_one_matrix(a: Tensor, b: Tensor) -> Tensor:
    """The product of two polynomials of one symmetric matrix, which is another."""
    return product_of_each(a, b, symmetric=True)


class Muon(WithoutCompiler):
    """Nesterov momentum, orthogonalised, with decoupled weight decay. For 2-D parameters that are not embeddings. A
    group may name a `block`, the shape of the matrices that its parameters are composed of, such as the heads of
    attention: those are orthogonalised one by one. An (n, m) update is scaled by 0.2 sqrt(max(n, m)), the root mean
    square of a typical Adam update. Without blocks this is `torch.optim.Muon` with adjust_lr_fn="match_rms_adamw",
    which knows no blocks and always iterates in bf16, which many CPUs only emulate."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "block": None})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        waiting: dict[tuple[int, int], list[_Stack]] = defaultdict(list)
        for group in self.param_groups:
            having = [param for param in group["params"] if param.grad is not None]
            for params in _grouped(having, lambda param: param.shape).values():
                stack = self._look_ahead(params, group)
                if stack.ahead.numel() > _SMALL:
                    _move([stack])
                else:
                    waiting[min(stack.block), max(stack.block)].append(stack)
        for alike in waiting.values():
            _move(alike)

    def _look_ahead(self, params: list[nn.Parameter], group: dict[str, Any]) -> "_Stack":
        """Decay parameters of one shape in a group, and return the step that momentum gives them."""
        for param in params:
            if "momentum" not in self.state[param]:
                self.state[param]["momentum"] = torch.zeros_like(param)
        buffers = [self.state[param]["momentum"] for param in params]
        grads = [param.grad for param in params if param.grad is not None]
        torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
        if group["weight_decay"]:
            torch._foreach_mul_([local(param) for param in params], 1 - group["lr"] * group["weight_decay"])
        ahead = torch._foreach_lerp(grads, buffers, group["momentum"])  # Nesterov: look one step ahead
        block = group["block"] or tuple(params[0].shape)
        # Momentum is kept in parts where the parameter is; but only a whole matrix has a direction.
        return _Stack(params, torch.stack([whole(one) for one in ahead]), block, -group["lr"] * 0.2 * max(block) ** 0.5)


class _Stack(NamedTuple):
    """Parameters of one shape, and where they would go, (N, rows, columns). block: the shape of the matrices that each
    is composed of. factor: what their direction is multiplied by."""

    params: list[nn.Parameter]
    ahead: Tensor
    block: tuple[int, int]
    factor: float


def _move(alike: list[_Stack]) -> None:
    """Move parameters whose blocks have one shape, or that shape turned."""
    split = [_split(one.ahead, one.block) for one in alike]
    blocks = [part if part.size(1) <= part.size(2) else part.mT for part in split]
    together = torch.cat(blocks) if len(blocks) > 1 else blocks[0]
    directions = torch.split(orthogonalise(together), [len(part) for part in blocks])
    for (params, ahead, block, factor), direction in zip(alike, directions, strict=True):
        upright = direction if block[0] <= block[1] else direction.mT
        moved = _join(upright, ahead.shape[1:]).unbind()
        steps = [local(laid_out_like(param, one)) for param, one in zip(params, moved, strict=True)]
        torch._foreach_add_([local(param) for param in params], steps, alpha=factor)


def _split(x: Tensor, block: tuple[int, int]) -> Tensor:
    """(N, rows, columns) -> the blocks of all of them, (N', *block)."""
    n, rows, columns = x.shape
    return x.view(n, rows // block[0], block[0], columns // block[1], block[1]).transpose(2, 3).reshape(-1, *block)


def _join(blocks: Tensor, shape: torch.Size) -> Tensor:
    """Undo `_split`: blocks of matrices of this shape -> (N, *shape)."""
    (rows, columns), (high, wide) = shape, blocks.shape[1:]
    grid = blocks.view(-1, rows // high, columns // wide, high, wide)
    return grid.transpose(2, 3).reshape(-1, rows, columns)


# Parameters by their names.


def names_of(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """Every parameter once, with all its names; the first is that of the checkpoints."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        names.setdefault(param, []).append(name)
    return names


def freeze(model: nn.Module, patterns: Sequence[str]) -> str:
    """Take parameters out of training: no gradient, so no decay and no optimizer state either. Returns a line about it,
    which names what else is frozen because it is shared; '' if there are no patterns. Raises RecipeError when a pattern
    means nothing, or when nothing is left to train."""
    names = names_of(model)
    frozen = dict.fromkeys(param for pattern in patterns for param in _meant(names, pattern, "train.freeze"))
    for param in frozen:
        param.requires_grad_(False)
    if frozen.keys() == names.keys():
        raise RecipeError(f"train.freeze: {', '.join(patterns)} freezes every parameter, so nothing would train.")
    n_frozen, n_all = (sum(param.numel() for param in params) for params in (frozen, names))
    line = f"frozen: {len(frozen)} of {len(names)} parameters, {n_frozen:,} of {n_all:,} numbers"
    line += "".join(f"; {names[p][0]} is also {' and '.join(names[p][1:])}" for p in frozen if len(names[p]) > 1)
    return line if frozen else ""


def rate_factors(model: nn.Module, factor_of: Mapping[str, float]) -> dict[nn.Parameter, float]:
    """The factors of the learning rate that are not 1. factor_of: by pattern; of those that mean one, the first counts.
    Raises RecipeError when a pattern means nothing."""
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


Kind = TypeVar("Kind", bound=Hashable)


@dataclass(frozen=True)
class Optimizers:
    """One optimizer, or two that share the parameters between them. Each was made with its peak learning rate, of which
    each of its groups has a share, its rate_factor."""

    parts: list[torch.optim.Optimizer]

    @property
    def guarded(self) -> bool:
        """Return whether every optimizer can skip an update by a flag on the device."""
        return all(optimizer.defaults.get("fused") for optimizer in self.parts)

    def set_rate(self, factor: float, *, absolute: bool) -> float:
        """Set every rate to factor x its peak, or to `factor` itself; returns the first part's rate."""
        rates: list[float] = [factor if absolute else factor * part.defaults["lr"] for part in self.parts]
        for optimizer, rate in zip(self.parts, rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * group["rate_factor"]
        return rates[0]

    def zero_grad(self) -> None:
        for optimizer in self.parts:
            optimizer.zero_grad()

    def state(self, model: nn.Module) -> dict[str, Tensor]:
        """Every tensor of the optimizers' state, named `parameter|quantity`."""
        name_of: dict[Tensor, str] = {param: name for name, param in model.named_parameters()}
        return {
            f"{name_of[param]}|{quantity}": value
            for optimizer in self.parts
            for param, values in optimizer.state.items()
            for quantity, value in values.items()
        }

    def load_state(self, model: nn.Module, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave, once the model has its weights. The optimizers must be new."""
        params = dict(model.named_parameters())
        optimizer_of = {p: optimizer for optimizer in self.parts for g in optimizer.param_groups for p in g["params"]}
        for key, value in state.items():
            name, _, quantity = key.partition("|")
            if name not in params:
                raise RunError(
                    f"The checkpoint has {key}, the state of an optimizer that is gone, so this run cannot go on. "
                    "Begin a new one with its weights: --train.init_from RUN and another --train.out."
                )
            param = params[name]
            if param in optimizer_of:
                optimizer_of[param].state[param][quantity] = laid_out_like(param, value)


Factors = dict[nn.Parameter, float]  # of the learning rate, for each parameter that is trained


def groups_of(factors: Factors, weight_decay: float) -> list[dict[str, Any]]:
    """Split parameters into groups for an optimizer: matrices decay, vectors do not."""
    grouped = _grouped(factors, lambda p: (p.dim() >= 2, factors[p]))
    return [
        {"params": members, "weight_decay": weight_decay if is_matrix else 0.0, "rate_factor": factor}
        for (is_matrix, factor), members in grouped.items()
    ]


def _adam(kind: type[Adam | AdamW], factors: Factors, config: OptimConfig) -> list[torch.optim.Optimizer]:
    groups = groups_of(factors, config.weight_decay)
    return [kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)] if groups else []


def _muon(model: nn.Module, factors: Factors, config: OptimConfig) -> list[torch.optim.Optimizer]:
    """Muon for the hidden matrices, AdamW for embeddings, output matrix and vectors."""
    modules = list(model.modules())
    others: set[Tensor] = {m.weight for m in modules if isinstance(m, nn.Embedding)}
    others |= {p for name, p in model.named_parameters() if name == "trg_word_prj.weight"}
    block_of = {weight: shape for m in modules if isinstance(m, Blocked) for weight, shape in m.blocks()}
    hidden = {p: factor for p, factor in factors.items() if p.dim() == 2 and p not in others}
    grouped = _grouped(hidden, lambda p: (block_of.get(p), hidden[p]))
    blocks = [{"params": its, "block": block, "rate_factor": factor} for (block, factor), its in grouped.items()]
    rest = _adam(AdamW, {p: factor for p, factor in factors.items() if p not in hidden}, config)
    if not blocks:
        return rest
    return [Muon(blocks, config.muon_lr, momentum=config.muon_momentum, weight_decay=config.weight_decay), *rest]


# An optimizer by its name in optim.name: (model, factors, options) -> optimizers that share the parameters.
OPTIMIZERS: dict[str, Callable[[nn.Module, Factors, OptimConfig], list[torch.optim.Optimizer]]] = {
    "adam": lambda _, factors, config: _adam(Adam, factors, config),
    "adamw": lambda _, factors, config: _adam(AdamW, factors, config),
    "muon": _muon,
}


def build_optimizers(model: nn.Module, config: OptimConfig) -> Optimizers:
    """Build the optimizers of a recipe for the parameters that are not frozen. Raises RecipeError when a pattern of
    `rate_of` means no parameter."""
    named = rate_factors(model, config.rate_of)
    factors = {param: named.get(param, 1.0) for param in model.parameters() if param.requires_grad}
    return Optimizers(OPTIMIZERS[config.name](model, factors, config))


def _grouped(params: Iterable[nn.Parameter], kind: Callable[[nn.Parameter], Kind]) -> dict[Kind, list[nn.Parameter]]:
    """Group parameters by their kind, in the order in which the kinds occur."""
    groups: dict[Kind, list[nn.Parameter]] = {}
    for param in params:
        groups.setdefault(kind(param), []).append(param)
    return groups


def apply_update(
    model: nn.Module,
    optimizers: Optimizers,
    scaler: torch.amp.GradScaler,
    *,
    loss: Tensor,
    clip: float,
    late: bool = False,
) -> tuple[Tensor, Tensor]:
    """Unscale, measure, clip, check, step: in this order, and only here. late: leave the check to the device, so that
    nobody waits for it. Returns the norm of the gradient before clipping, and whether the weights moved, 0-dim both: a
    loss or gradient that is not finite moves nothing."""
    for optimizer in optimizers.parts:
        scaler.unscale_(optimizer)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = total_norm(grads)
    finite = torch.isfinite(loss) & torch.isfinite(norm)
    if late or finite:
        factor = (clip / (norm + 1e-6)).clamp(max=1.0) if clip else None
        if factor is not None and (late or factor < 1.0):  # a pass over all gradients, unless it would change nothing
            torch._foreach_mul_([local(grad) for grad in grads], factor)
        for optimizer in optimizers.parts:
            if late:
                # What fused optimizers look at before they move anything; the scaler tells them so, too.
                vars(optimizer).update(grad_scale=None, found_inf=(~finite).float())
            scaler.step(optimizer)
    if scaler.is_enabled():
        scaler.update()  # after a skipped update too: that is how the scale comes down
    optimizers.zero_grad()
    return norm, finite
