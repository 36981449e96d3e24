"""Muon: momentum whose matrices are orthogonalised before they move the weights.

K. Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; the scale that lets it share
the magnitude of Adam's updates is that of J. Liu et al. 2025, "Muon is scalable for LLM training", section 2.2.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from nmt.ops import product_of_each
from nmt.training.parallel import laid_out_like, local, whole

# Torch's optimizers without torch's compiler.


class WithoutCompiler(torch.optim.Optimizer):
    """An optimizer that is made, and whose gradients are forgotten, without it. What it overrides is torch's own."""

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
    """The nearest semi-orthogonal matrix of each, roughly: singular values end between 0.7 and 1.2.

    matrices: (N, rows, columns). On a GPU the products run in bf16, which is exact enough for this.
    """
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
    """Nesterov momentum, orthogonalised, with decoupled weight decay. For 2-D parameters that are not embeddings.

    A group of parameters may name a `block`, the shape of the matrices that each of its parameters is composed of:
    those are orthogonalised one by one. The heads of attention are such: what one head does is no reason to turn
    another, and small matrices cost much less than a large one.
    The update of an (n, m) matrix is scaled by 0.2 sqrt(max(n, m)), the root mean square of a typical Adam update.

    Without blocks this is `torch.optim.Muon` with adjust_lr_fn="match_rms_adamw" (a test compares). It is ours because
    torch's knows no blocks, takes the matrices one by one, and always iterates in bf16, which many CPUs only emulate.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "block": None})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move every parameter that has a gradient; a closure is called before, and its loss returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        waiting: dict[tuple[int, int], list[_Stack]] = defaultdict(list)
        for group in self.param_groups:
            same_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for param in group["params"]:
                if param.grad is not None:
                    same_shape[param.shape].append(param)
            for params in same_shape.values():
                stack = self._look_ahead(params, group)
                if stack.ahead.numel() > _SMALL:
                    _move([stack])
                else:
                    waiting[min(stack.block), max(stack.block)].append(stack)
        for alike in waiting.values():
            _move(alike)
        return loss

    def _look_ahead(self, params: list[Tensor], group: dict[str, Any]) -> "_Stack":
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

    params: list[Tensor]
    ahead: Tensor
    block: tuple[int, int]
    factor: float


def _move(alike: list[_Stack]) -> None:
    """Move parameters whose blocks have one shape, or that shape turned."""
    blocks = [_lying(_split(one.ahead, one.block)) for one in alike]
    together = torch.cat(blocks) if len(blocks) > 1 else blocks[0]
    directions = torch.split(orthogonalise(together), [len(part) for part in blocks])
    for (params, ahead, block, factor), direction in zip(alike, directions, strict=True):
        upright = direction if block[0] <= block[1] else direction.mT
        moved = _join(upright, ahead.shape[1:]).unbind()
        steps = [local(laid_out_like(param, one)) for param, one in zip(params, moved, strict=True)]
        torch._foreach_add_([local(param) for param in params], steps, alpha=factor)


def _lying(matrices: Tensor) -> Tensor:
    """(N, rows, columns), turned if there are more rows than columns."""
    return matrices if matrices.size(1) <= matrices.size(2) else matrices.mT


def _split(x: Tensor, block: tuple[int, int]) -> Tensor:
    """(N, rows, columns) -> the blocks of all of them, (N', *block)."""
    n, rows, columns = x.shape
    return x.view(n, rows // block[0], block[0], columns // block[1], block[1]).transpose(2, 3).reshape(-1, *block)


def _join(blocks: Tensor, shape: torch.Size) -> Tensor:
    """Undo `_split`: blocks of matrices of this shape -> (N, *shape)."""
    (rows, columns), (high, wide) = shape, blocks.shape[1:]
    grid = blocks.view(-1, rows // high, columns // wide, high, wide)
    return grid.transpose(2, 3).reshape(-1, rows, columns)
