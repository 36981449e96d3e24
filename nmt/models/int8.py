"""Feed-forward sub-layers for translation on a CPU that multiply numbers of 8 bits, twice as fast as in bf16.

Numbers of 8 bits need a range. What enters the sub-layer comes from a LayerNorm, so it is of variance one before the
weight and bias of that, and what a hidden unit becomes follows from the length of its row: no data has to be looked at,
and a sentence's states do not depend on its batch. What lies beyond a range is cut off at its end. Each output has a
scale of its own for its row of the matrix; sums are exact.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.errors import MachineError, RunError
from nmt.models.transformer.Layers import DecoderLayer, EncoderLayer
from nmt.models.transformer.SubLayers import PositionwiseFeedForward

_OPTION = "decode.precision int8"
# Standard deviations: normalised states hardly ever lie further out (of 10^6 in a model of Multi30k one lay beyond 6),
# nor do hidden units, whose tails are longer.
_RANGE, _HIDDEN_RANGE = 10.0, 12.0
_MIDDLE = 128  # of the 8 bits that states have, which stands for zero


class _Matrix(NamedTuple):
    """A matrix in whole numbers from -127 to 127, laid out for oneDNN; for each row its scale and, as is wanted, 0."""

    packed: Tensor
    scale: Tensor
    zero: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> "_Matrix":
        scale = (weight.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        whole = (weight / scale.unsqueeze(1)).round().to(torch.int8)
        packed = torch.ops.onednn.qlinear_prepack(whole, [_MIDDLE, weight.size(1)])
        return cls(packed, scale, torch.zeros(len(scale), dtype=torch.int32))

    def times(
        self,
        x: Tensor,
        scale: float,
        zero: int,
        bias: Tensor,
        dtype: torch.dtype,
        *,
        out: float = 1.0,
        relu: bool = False,
    ) -> Tensor:
        """(..., K) uint8, that stand for (x - zero) · scale -> (..., N), as multiples of `out` if they are uint8."""
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            x, scale, zero, *self, bias, out, 0, dtype, "relu" if relu else "none", [], ""
        )
        return product


class Int8FeedForward(PositionwiseFeedForward):
    """A feed-forward sub-layer that is no longer trained, with the same parameters."""

    def __init__(self, ffn: PositionwiseFeedForward, entered_through: nn.LayerNorm) -> None:
        """entered_through: the norm that its input comes from: its own, or that of the sub-layer before."""
        nn.Module.__init__(self)
        self.kind, self.pre_norm = ffn.kind, ffn.pre_norm
        self.w_1, self.w_2 = _plain(ffn.w_1), _plain(ffn.w_2)
        self.act_dropout, self.dropout, self.layer_norm = ffn.act_dropout, ffn.dropout, ffn.layer_norm
        self.train(ffn.training)
        w_1, b_1 = _exact(ffn.w_1)
        w_2, b_2 = _exact(ffn.w_2)
        gain, shift = entered_through.weight.detach().float(), entered_through.bias.detach().float()
        w_1, b_1 = w_1 * gain, b_1 + w_1 @ shift
        # Every hidden unit as a share of its range, which its column of the second matrix takes back.
        most = (_HIDDEN_RANGE * w_1.norm(dim=1) + b_1.clamp(min=0.0)).clamp(min=torch.finfo(torch.float32).tiny)
        self._first, self._first_bias = _Matrix.of(w_1 / most.unsqueeze(1)), b_1 / most
        self._second, self._second_bias = _Matrix.of(w_2 * most), b_2
        dtype = ffn.w_1.weight.dtype
        self._step = _RANGE / (_MIDDLE - 1)
        if ffn.pre_norm:
            self._gain, self._shift = torch.full_like(gain, 1 / self._step), torch.full_like(shift, _MIDDLE)
        else:  # a state without gain is its shift and nothing else
            self._gain = torch.where(gain.abs() > 1e-6, 1 / (gain * self._step), 0.0)
            self._shift = _MIDDLE - shift * self._gain
        self._gain, self._shift = self._gain.to(dtype), self._shift.to(dtype)
        self._eps = entered_through.eps

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not x.numel():
            return super().forward(x)
        if self.pre_norm:
            states = F.layer_norm(x, x.shape[-1:], self._gain, self._shift, self._eps)
        else:
            states = torch.addcmul(self._shift, x, self._gain)
        whole = states.round_().clamp_(0, 255).to(torch.uint8)
        hidden = self._first.times(whole, self._step, _MIDDLE, self._first_bias, torch.uint8, out=1 / 255, relu=True)
        output = self._second.times(hidden, 1 / 255, 0, self._second_bias, x.dtype)
        return x + output if self.pre_norm else self.layer_norm(x + output)


def to_int8(model: nn.Module) -> None:
    """Have the feed-forward sub-layers of a Transformer multiply in 8 bits from now on; the parameters stay.

    Raises RunError for a model that has none, or others; MachineError where torch or the processor cannot.
    """
    layers = [module for module in model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]
    norms = [_norm_before(layer) for layer in layers]
    if not layers or any(layer.pos_ffn.kind != "relu" for layer in layers):
        raise RunError(f"{_OPTION}: is for Transformers with model.ffn relu, which this model is not: take bf16.")
    if layers[0].pos_ffn.w_1.weight.device.type != "cpu" or not _can():
        raise MachineError(f"{_OPTION}: needs a CPU that multiplies numbers of 8 bits, and oneDNN: take bf16.")
    for layer, norm in zip(layers, norms, strict=True):
        if not isinstance(norm, nn.LayerNorm):
            raise RunError(f"{_OPTION}: is for model.norm_kind layer, which this model has not: take bf16.")
        layer.pos_ffn = Int8FeedForward(layer.pos_ffn, norm)


def _norm_before(layer: EncoderLayer | DecoderLayer) -> nn.Module:
    """The norm that the input of the feed-forward sub-layer comes from."""
    if layer.pos_ffn.pre_norm:
        return layer.pos_ffn.layer_norm
    return (layer.enc_attn if isinstance(layer, DecoderLayer) else layer.slf_attn).layer_norm


def _plain(linear: nn.Linear) -> nn.Linear:
    """The same parameters, laid out for nobody."""
    plain = nn.Linear(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
    plain.weight, plain.bias = linear.weight, linear.bias
    return plain


def _exact(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """Weight and bias in fp32; without a bias zeros."""
    weight = linear.weight.detach().float()
    return weight, weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach().float()


def _can() -> bool:
    """Whether the largest numbers are multiplied exactly: some processors would add them up in 16 bits."""
    try:
        ones = torch.ones(8, 64)
        most = torch.full((2, 64), 255, dtype=torch.uint8)
        product = _Matrix.of(ones).times(most, 1.0, 0, torch.zeros(8), torch.float32)
    except (AttributeError, RuntimeError):
        return False
    return bool((product == 255 * 64).all())
