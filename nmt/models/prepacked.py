"""Linear layers for translation, their matrices laid out once as they are read fastest on the device.

Each product of a search multiplies a few hundred rows by a matrix that never changes. As it is, the library lays it out
anew every time, or reads it slowly. The arithmetic stays fp32, or bf16; sums may be made in another order.
"""

import copy
import platform
from typing import TypeVar

import torch
from torch import Tensor, nn

from nmt import ops
from nmt.models.base import Reading

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class SameLinear(nn.Linear):
    """A linear layer with the parameters of another."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)  # and no weights that nobody asked for are drawn
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias


class PrepackedLinear(SameLinear):
    """A linear layer that is no longer trained. What it cannot do faster, nn.Linear does with the same weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self._product = ops.laid_out(linear.weight.detach())

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() or self._product is None or not input.numel():
            return super().forward(input)
        return self._product(input, self.bias)


def prepacked(model: ModuleT) -> ModuleT:
    """A model with the same parameters whose linear layers are laid out for this processor, or its device.

    It takes the memory of the matrices that are laid out once more, or in tiles one and a half times. The model itself
    where that is not to be had: on a CPU in fp64, or in a torch without oneDNN.
    """
    linears = [module for module in model.modules() if type(module) is nn.Linear]
    if any(linear.weight.is_cuda for linear in linears):
        return laid_for_gpu(model)
    kinds = {(linear.weight.device, linear.weight.dtype, linear.in_features): linear.weight for linear in linears}
    if not linears or not all(ops.laid_out(weight.detach()[:2]) for weight in kinds.values()):
        return model
    copied = _copied(model)
    for module in list(copied.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, PrepackedLinear(child))
    return copied


def laid_for_gpu(model: ModuleT) -> ModuleT:
    """A model with the same parameters, where matrices that read the same input lie beside each other."""
    copied = _copied(model)
    for module in copied.modules():
        if isinstance(module, Reading):
            ops.lay_side_by_side(module.readers())
    return copied


def _copied(model: ModuleT) -> ModuleT:
    """A copy of the modules, not of what they hold."""
    held: dict[int, object] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, held)


def half_is_faster() -> bool:
    """True if this processor has instructions for products of bf16, which then are faster than those of fp32."""
    if platform.machine() == "aarch64":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.cpu._is_avx512_bf16_supported())
