"""Muon: momentum whose matrices are orthogonalised before they move the weights.

K. Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; the scale that lets it share
the magnitude of Adam's updates is that of J. Liu et al. 2025, "Muon is scalable for LLM training", section 2.2.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

# Coefficients of the quintic iterations x -> a x + b x^3 + c x^5. Each is the minimax approximation of 1 on the
# interval where its predecessor leaves the singular values (N. Amsel et al. 2025, "The Polar Express"), starting from
# [0.01, 1]: three of them do what takes five with coefficients that stay the same, and end within 0.27 of one.
# Smaller values grow 78-fold.
_COEFFICIENTS = ((8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526))


def orthogonalise(matrices: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrix of each, roughly: singular values end between 0.73 and 1.27.

    matrices: (N, rows, columns). On a GPU the products run in bf16, which is exact enough for this.
    """
    x = matrices.to(torch.bfloat16) if matrices.is_cuda else matrices
    wide = x.size(1) <= x.size(2)
    if not wide:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    # The Gram matrix needs the exactness of fp32, and pays where it is much smaller than the matrix.
    small = x.size(2) >= 2 * x.size(1) and not x.is_cuda
    x = _iterate_on_gram(x) if small else _iterate(x)
    return (x if wide else x.mT).to(matrices.dtype)


def _iterate(x: Tensor) -> Tensor:
    for coefficients in _COEFFICIENTS:
        x = _factor(x @ x.mT, coefficients) @ x
    return x


def _iterate_on_gram(x: Tensor) -> Tensor:
    """The same iteration with its factors collected: all are polynomials of x x^T, so only that need be updated."""
    first, *rest = _COEFFICIENTS
    gram = x @ x.mT  # (N, rows, rows)
    product = factor = _factor(gram, first)
    for coefficients in rest:
        gram = factor @ gram @ factor
        factor = _factor(gram, coefficients)
        product = factor @ product
    return product @ x


def _factor(gram: Tensor, coefficients: tuple[float, float, float]) -> Tensor:
    """a + b gram + c gram^2: what one iteration multiplies x by."""
    a, b, c = coefficients
    factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    factor.diagonal(dim1=1, dim2=2).add_(a)
    return factor


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, with decoupled weight decay. For 2-D parameters that are not embeddings.

    The update of an (n, m) matrix is scaled by 0.2 sqrt(max(n, m)), the root mean square of a typical Adam update.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            same_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for param in group["params"]:
                if param.grad is not None:
                    same_shape[param.shape].append(param)
            for shape, params in same_shape.items():
                self._move(params, shape, group)

    def _move(self, params: list[Tensor], shape: torch.Size, group: dict[str, Any]) -> None:
        for param in params:
            if "momentum" not in self.state[param]:
                self.state[param]["momentum"] = torch.zeros_like(param)
        buffers = [self.state[param]["momentum"] for param in params]
        grads = [param.grad for param in params if param.grad is not None]
        torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
        ahead = torch._foreach_lerp(grads, buffers, group["momentum"])  # Nesterov: look one step ahead
        direction = orthogonalise(torch.stack(ahead))
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, list(direction.unbind()), alpha=-group["lr"] * 0.2 * max(shape) ** 0.5)
