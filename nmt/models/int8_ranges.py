"""How far the numbers reach that a Transformer is to multiply in 8 bits, in their standard deviations.

The finer the steps, the less is lost by rounding, and in a usual model to cut off one number in some ten thousand loses
less than coarser steps for all would. A model may have units that are always far out: so it reads a text of random
subwords first, which shows those as any text does, and no data has to be there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nmt.models.base import evaluating
from nmt.models.transformer.Models import Transformer

# What normalised states and hidden units are given, and by how much that exceeds what the widest thousandth of a text
# of random subwords reaches: hidden units reach further where a text makes sense.
LEAST = (4.0, 6.0)
_BEYOND = (1.25, 2.0)
_THOUSANDTH = 0.999
_SENTENCES, _LENGTH = 16, 32


def ranges(
    model: Transformer, numbers_of: Mapping[nn.Module, Callable[[Tensor], Sequence[Tensor]]]
) -> dict[nn.Module, list[float]]:
    """For modules of a model, the ranges that numbers made of their input need: states, and maybe hidden units."""
    found: dict[nn.Module, list[float]] = {}

    def look(module: nn.Module, entered: tuple[Any, ...]) -> None:
        each = zip(numbers_of[module](entered[0]), LEAST, _BEYOND, strict=False)
        found[module] = [max(least, beyond * _tail(numbers)) for numbers, least, beyond in each]

    hooks = [module.register_forward_pre_hook(look) for module in numbers_of]
    try:
        with torch.inference_mode(), evaluating(model):
            model(*_random_text(model))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _random_text(model: Transformer) -> list[Tensor]:
    """Source and target, the same whenever it is made."""
    generator = torch.Generator().manual_seed(1)
    each = [torch.randint(len(one.weight), (_SENTENCES, _LENGTH), generator=generator) for one in model.embeddings]
    return [ids.where(ids != model.pad_idx, (model.pad_idx + 1) % 2) for ids in each]


def _tail(numbers: Tensor) -> float:
    """What all but a thousandth do not exceed. In halves, that a difference of rounding changes hardly any range."""
    sizes = numbers.detach().float().abs().flatten().nan_to_num(0.0, 0.0)  # a search says what is not finite
    tail = sizes.kthvalue(max(1, int(_THOUSANDTH * len(sizes)))).values.item()
    return round(2 * tail) / 2
