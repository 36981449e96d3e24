"""Optimizers of a recipe, their learning rates, and the one place where an update is applied."""

import difflib
import inspect
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from nmt.errors import RecipeError
from nmt.models.base import TranslationModel
from nmt.ops import product_of_each
from nmt.recipe.training_options import OptimConfig
from nmt.training.parallel import full_tensor, local, shard_like, total_norm

_MUON_RATE, _ADAM_RATE = 1.15, 0.38  # learning rates for auto, times the width of the model


class WithoutCompiler(torch.optim.Optimizer):
    """Optimizer whose construction, torch's own but unwrapped, does not load torch's compiler."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)


class Adam(WithoutCompiler, torch.optim.Adam):
    """`torch.optim.Adam`, or with decoupled_weight_decay `torch.optim.AdamW`"""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


# Quintic Newton-Schulz iteration (Jordan et al.): steep at zero, so five steps bring all singular values near one.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_N_ITERATION = 5
_TINY = 1e-7  # added to a norm that may be zero
_SMALL = 2**18  # elements up to which stacks are orthogonalised in one batch: there the calls dominate the cost


# The product of two polynomials of one symmetric matrix, which is symmetric too.
_of_one_matrix = partial(product_of_each, symmetric=True)


def orthogonalise(x: Tensor, *, in_bf16: bool) -> Tensor:
    """Approximate the nearest semi-orthogonal matrix of each matrix: all but the smallest singular values end between
    0.68 and 1.21. x: (N, rows, columns), rows <= columns. in_bf16: multiply in bf16, which is precise enough here.
    In fp32 the factors of the iteration are collected: all are polynomials of the symmetric x x^T."""
    if in_bf16:
        y = x.to(torch.bfloat16)
        y = y / (y.norm(dim=(1, 2), keepdim=True) + _TINY)
        for _ in range(_N_ITERATION):
            gram = y @ y.mT
            y = torch.baddbmm(y, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), y, beta=_A)
        return y.to(x.dtype)
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


class Muon(WithoutCompiler):
    """Nesterov momentum, orthogonalised, with decoupled weight decay. For 2-D parameters that are not embeddings. A
    group may set `block`, the shape of the submatrices of its parameters, such as attention heads: each block is
    orthogonalised by itself. An (n, m) update is scaled by 0.2 sqrt(max(n, m)), the root mean square of a typical Adam
    update. Without blocks this is `torch.optim.Muon` with adjust_lr_fn="match_rms_adamw". torch's version has no blocks
    and always iterates in bf16, which many CPUs only emulate. in_bf16: whether to iterate in bf16 on a CPU, too."""

    in_bf16 = False

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "block": None})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        small_stacks: dict[torch.Size, list[_Stack]] = defaultdict(list)  # by the shape of their blocks
        for group in self.param_groups:
            with_grad = [param for param in group["params"] if param.grad is not None]
            for params in _grouped(with_grad, lambda param: param.shape).values():
                stack = self._look_ahead(params, group)
                if stack.blocks.numel() > _SMALL:
                    _move([stack], self.in_bf16)
                else:
                    small_stacks[stack.blocks.shape[1:]].append(stack)
        for stacks in small_stacks.values():
            _move(stacks, self.in_bf16)

    def _look_ahead(self, params: list[nn.Parameter], group: dict[str, Any]) -> "_Stack":
        """Apply weight decay to parameters of one shape, and return their momentum steps."""
        for param in params:
            if "momentum" not in self.state[param]:
                self.state[param]["momentum"] = torch.zeros_like(param)
        buffers = [self.state[param]["momentum"] for param in params]
        grads = [param.grad for param in params if param.grad is not None]
        torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
        if group["weight_decay"]:
            torch._foreach_mul_([local(param) for param in params], 1 - group["lr"] * group["weight_decay"])
        ahead = torch._foreach_lerp(grads, buffers, group["momentum"])  # Nesterov: look one step ahead
        (rows, columns), (height, width) = params[0].shape, group["block"] or params[0].shape
        # Momentum is sharded like its parameter, but only a full matrix can be orthogonalised.
        matrices = torch.stack([full_tensor(matrix) for matrix in ahead])
        grid = matrices.view(-1, rows // height, height, columns // width, width).transpose(2, 3)
        blocks = grid.reshape(-1, height, width)
        factor = -group["lr"] * 0.2 * max(height, width) ** 0.5
        return _Stack(params, blocks if height <= width else blocks.mT, (height, width), factor)


class _Stack(NamedTuple):
    """Parameters of one shape, and their momentum steps as blocks, (N, rows, columns), rows <= columns. block: the
    shape of a block in its parameter, which may be the transposed one. factor: multiplies the orthogonalised step."""

    params: list[nn.Parameter]
    blocks: Tensor
    block: tuple[int, int]
    factor: float


def _move(stacks: list[_Stack], in_bf16: bool) -> None:
    """Move the parameters of stacks whose blocks have the same shape."""
    matrices = torch.cat([stack.blocks for stack in stacks]) if len(stacks) > 1 else stacks[0].blocks
    orthogonal = orthogonalise(matrices, in_bf16=in_bf16 or matrices.is_cuda)
    directions = torch.split(orthogonal, [len(stack.blocks) for stack in stacks])
    for (params, _, (height, width), factor), direction in zip(stacks, directions, strict=True):
        rows, columns = params[0].shape
        blocks = direction if height <= width else direction.mT
        grid = blocks.view(-1, rows // height, columns // width, height, width)
        updates = grid.transpose(2, 3).reshape(-1, rows, columns).unbind()
        steps = [local(shard_like(param, update)) for param, update in zip(params, updates, strict=True)]
        torch._foreach_add_([local(param) for param in params], steps, alpha=factor)


Factors = dict[nn.Parameter, float]  # learning-rate factor of each trained parameter


def names_of(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """Every parameter once, with all its names; checkpoints use the first."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        names.setdefault(param, []).append(name)
    return names


def freeze(model: nn.Module, patterns: Sequence[str]) -> str:
    """Freeze parameters: no gradient, weight decay or optimizer state. Returns a message with the other names of shared
    parameters; '' without patterns. Raises RecipeError if a pattern matches none, or if all are frozen."""
    names = names_of(model)
    frozen = dict.fromkeys(param for pattern in patterns for param in _matching(names, pattern, "train.freeze"))
    for param in frozen:
        param.requires_grad_(False)
    if frozen.keys() == names.keys():
        raise RecipeError(f"train.freeze: {', '.join(patterns)} freezes every parameter, so nothing would train.")
    n_frozen, n_all = (sum(param.numel() for param in params) for params in (frozen, names))
    line = f"frozen: {len(frozen)} of {len(names)} parameters, {n_frozen:,} of {n_all:,} numbers"
    line += "".join(f"; {names[p][0]} is also {' and '.join(names[p][1:])}" for p in frozen if len(names[p]) > 1)
    return line if frozen else ""


def rate_factors(model: nn.Module, factor_of: dict[str, float]) -> Factors:
    """The factors of the parameters that are not frozen. factor_of: {pattern: factor}; the first match counts, and
    without one the factor is 1. Raises RecipeError if a pattern matches no parameter."""
    names, factors = names_of(model), {param: 1.0 for param in model.parameters() if param.requires_grad}
    for pattern, factor in reversed(factor_of.items()):
        matching = _matching(names, pattern, "optim.rate_of")
        factors.update({param: factor for param in matching if param.requires_grad})
    return factors


def _matching(names: Mapping[nn.Parameter, list[str]], pattern: str, option: str) -> list[nn.Parameter]:
    params = [param for param, aliases in names.items() if any(fnmatchcase(name, pattern) for name in aliases)]
    if not params:
        all_names = [name for aliases in names.values() for name in aliases]
        prefixes = {".".join(name.split(".")[:n]) + ".*" for name in all_names for n in range(1, name.count(".") + 1)}
        close = difflib.get_close_matches(pattern, [*sorted(prefixes), *all_names], n=3, cutoff=0.0)
        raise RecipeError(f"{option}: {pattern!r} matches no parameter of this model. Close names: {', '.join(close)}.")
    return params


Kind = TypeVar("Kind", bound=Hashable)


class Optimizers:
    """One optimizer, or two that divide the parameters that are not frozen between them. An optimizer's default rate is
    its peak learning rate. Each of its groups scales that by its rate_factor."""

    def __init__(self, model: nn.Module, config: OptimConfig, *, in_bf16: bool = False) -> None:
        """in_bf16: whether Muon multiplies in bf16 on a CPU, too."""
        self.model, self._params = model, list(model.parameters())
        self.parts = OPTIMIZERS[config.name](model, rate_factors(model, config.rate_of), config)
        for optimizer in self.parts:
            if isinstance(optimizer, Muon):
                optimizer.in_bf16 = in_bf16

    @property
    def skips_on_device(self) -> bool:
        """Return whether every optimizer can skip an update by a flag on the device, without a synchronisation."""
        return all(optimizer.defaults.get("fused") for optimizer in self.parts)

    def set_rate(self, factor: float, *, absolute: bool) -> float:
        """Set each rate to factor x its peak, or to `factor` itself if absolute. Returns the first optimizer's rate."""
        rates: list[float] = [factor if absolute else factor * optimizer.defaults["lr"] for optimizer in self.parts]
        for optimizer, rate in zip(self.parts, rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * group["rate_factor"]
        return rates[0]

    def state(self) -> dict[str, Tensor]:
        """All state tensors of the optimizers, named `parameter|quantity`."""
        name_of: dict[Tensor, str] = {param: name for name, param in self.model.named_parameters()}
        return {
            f"{name_of[param]}|{quantity}": value
            for optimizer in self.parts
            for param, values in optimizer.state.items()
            for quantity, value in values.items()
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the tensors of `state`, after the model has its weights. The optimizers must be new."""
        params = dict(self.model.named_parameters())
        optimizer_of = {p: optimizer for optimizer in self.parts for g in optimizer.param_groups for p in g["params"]}
        for key, value in state.items():
            name, _, quantity = key.partition("|")
            if (param := params[name]) in optimizer_of:
                optimizer_of[param].state[param][quantity] = shard_like(param, value)

    def apply_update(
        self, scaler: torch.amp.GradScaler, *, loss: Tensor, clip: float, on_device: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Unscale, compute the norm, clip, check, step: in this order, and only here. on_device: leave the check to the
        device, so that the host need not wait. Returns two 0-dim tensors: the gradient norm before clipping, and
        whether the weights moved. A loss or gradient that is not finite moves nothing."""
        for optimizer in self.parts:
            scaler.unscale_(optimizer)
        grads = [param.grad for param in self._params if param.grad is not None]
        norm = total_norm(grads)
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        if on_device or finite:
            if clip:
                factor = (clip / (norm + 1e-6)).clamp(max=1.0)
                if on_device or factor < 1.0:  # a factor of 1 would change nothing
                    torch._foreach_mul_([local(grad) for grad in grads], factor)
            for optimizer in self.parts:
                if on_device:
                    # Fused optimizers read these attributes before they step; GradScaler passes its flag the same way.
                    vars(optimizer).update(grad_scale=None, found_inf=(~finite).float())
                scaler.step(optimizer)
        scaler.update()  # also after a skipped update, which lowers the scale
        for param in self._params:
            param.grad = None
        return norm, finite


def groups_of(factors: Factors, weight_decay: float) -> list[dict[str, Any]]:
    """Split parameters into groups for an optimizer: matrices decay, vectors do not."""
    grouped = _grouped(factors, lambda p: (p.dim() >= 2, factors[p]))
    return [
        {"params": members, "weight_decay": weight_decay if is_matrix else 0.0, "rate_factor": factor}
        for (is_matrix, factor), members in grouped.items()
    ]


def _rate_of(option: float | Literal["auto"], model: nn.Module, factor: float) -> float:
    """Return a peak learning rate. auto: factor / width, since the best rate falls with the width (docs/results.md)."""
    if option != "auto":
        return option
    assert isinstance(model, TranslationModel)
    return factor / model.d_model


def _adam(model: nn.Module, factors: Factors, config: OptimConfig) -> list[torch.optim.Optimizer]:
    """AdamW, or Adam if optim.name says so."""
    groups, decoupled = groups_of(factors, config.weight_decay), config.name != "adam"
    rate = _rate_of(config.lr, model, _MUON_RATE if config.name == "muon" else _ADAM_RATE)
    options: dict[str, Any] = {"lr": rate, "betas": config.betas, "eps": config.eps, "fused": True}
    return [Adam(groups, **options, decoupled_weight_decay=decoupled)] if groups else []


def _muon(model: nn.Module, factors: Factors, config: OptimConfig) -> list[torch.optim.Optimizer]:
    """Muon for the hidden matrices, AdamW for embeddings, output matrix and vectors."""
    vocab_weights: set[Tensor] = {m.weight for m in model.modules() if isinstance(m, nn.Embedding)}
    vocab_weights.add(model.get_parameter("trg_word_prj.weight"))
    block_of: dict[Tensor, tuple[int, int]] = {}  # weights that consist of several matrices, and the shape of each
    for module in model.modules():
        if blocks := getattr(module, "blocks", None):
            block_of |= blocks()
    hidden = {p: factor for p, factor in factors.items() if p.dim() == 2 and p not in vocab_weights}
    grouped = _grouped(hidden, lambda p: (block_of.get(p), hidden[p]))
    groups = [{"params": params, "block": block, "rate_factor": f} for (block, f), params in grouped.items()]
    adamw = _adam(model, {p: factor for p, factor in factors.items() if p not in hidden}, config)
    if not groups:
        return adamw
    rate = _rate_of(config.muon_lr, model, _MUON_RATE)
    return [Muon(groups, rate, momentum=config.muon_momentum, weight_decay=config.weight_decay), *adamw]


# Optimizers by optim.name: (model, factors, options) -> optimizers that divide the parameters between them.
OPTIMIZERS: dict[str, Callable[[nn.Module, Factors, OptimConfig], list[torch.optim.Optimizer]]] = {
    "adam": _adam,
    "adamw": _adam,
    "muon": _muon,
}


def _grouped(params: Iterable[nn.Parameter], kind: Callable[[nn.Parameter], Kind]) -> dict[Kind, list[nn.Parameter]]:
    """Group parameters by kind, in order of first occurrence."""
    groups: dict[Kind, list[nn.Parameter]] = {}
    for param in params:
        groups.setdefault(kind(param), []).append(param)
    return groups
