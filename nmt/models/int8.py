"""The large products of a Transformer for translation on a CPU in numbers of 8 bits, which are faster than bf16.

Numbers of 8 bits need a range. What enters a feed-forward sub-layer, and the product with the vocabulary, comes from a
LayerNorm, so it is of variance one before the weight and bias of that; what a hidden unit becomes follows from the
length of its row, and so does a value, of which attention takes means. How many standard deviations a range has,
`_range` says: no data has to be looked at, and a sentence's states do not depend on its batch. What lies beyond a
range is cut off at its end. Each output has a scale of its own for its row of the matrix; sums are exact
(`int8_products`).
"""

import copy
import platform
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt import ops
from nmt.errors import RunError, Unavailable
from nmt.models.base import evaluating
from nmt.models.layers import Stream
from nmt.models.transformer.Layers import DecoderLayer, EncoderLayer
from nmt.models.transformer.Models import Transformer
from nmt.models.transformer.SubLayers import MultiHeadAttention, PositionwiseFeedForward

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
        is_of_another = input.dtype != self.weight.dtype  # as under autocast
        if torch.is_grad_enabled() or self._product is None or is_of_another or not input.numel():
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
        if isinstance(module, MultiHeadAttention | PositionwiseFeedForward):
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


# Ranges, in standard deviations, that normalised states and hidden units have at least, and by how much one exceeds
# what the widest thousandth of a text of random subwords reaches: hidden units reach further where a text makes sense.
LEAST = (4.0, 6.0)
_BEYOND = (1.25, 2.0)
_THOUSANDTH = 0.999
_SENTENCES, _LENGTH = 16, 32
_TINY = torch.finfo(torch.float32).tiny
_OPTION, _ADVICE = "decode.precision int8", "Take bf16 or fp32."

# How states become whole numbers: step, zero and affine, as those products take them.
Steps = tuple[float, int, tuple[Tensor, Tensor] | None]


def inputs_of(modules: Sequence[nn.Module], model: Transformer) -> dict[nn.Module, Tensor]:
    """Inputs of modules of a model when it reads a text of random subwords."""
    found: dict[nn.Module, Tensor] = {}
    generator = torch.Generator().manual_seed(1)  # the same text whenever it is made
    each = [torch.randint(len(one.weight), (_SENTENCES, _LENGTH), generator=generator) for one in model.embeddings]
    src_seq, trg_seq = (ids.where(ids != model.pad_idx, (model.pad_idx + 1) % 2) for ids in each)

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        found[module] = args[0]

    hooks = [module.register_forward_pre_hook(note) for module in modules]
    try:
        with torch.inference_mode(), evaluating(model):
            model(src_seq, trg_seq)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _range(numbers: Tensor, least: float, beyond: float) -> float:
    """Range, in standard deviations, that numbers need. In halves, that a difference of rounding changes hardly any."""
    sizes = numbers.abs().flatten().nan_to_num(0.0, 0.0)  # a search says what is not finite
    widest = sizes.kthvalue(max(1, int(_THOUSANDTH * len(sizes)))).values.item()
    return max(least, beyond * (round(2 * widest) / 2))


class Spread(NamedTuple):
    """Spread of numbers that no norm made: as if one had made them of states, times weight, plus bias, (D,)."""

    weight: Tensor
    bias: Tensor


class Int8FeedForward(PositionwiseFeedForward):
    """A feed-forward sub-layer that is no longer trained, with the same parameters."""

    def __init__(self, ffn: PositionwiseFeedForward, norm: nn.LayerNorm, entered: Tensor | None = None) -> None:
        """norm: the one that its input comes from: its own, or that of the sub-layer before. entered: its input in some
        text, for ranges that are wide enough; None: the least ranges."""
        nn.Module.__init__(self)
        self.kind, self.pre_norm = ffn.kind, ffn.pre_norm
        self.w_1, self.w_2 = SameLinear(ffn.w_1), SameLinear(ffn.w_2)
        self.act_dropout, self.dropout, self.layer_norm = ffn.act_dropout, ffn.dropout, ffn.layer_norm
        self.train(ffn.training)
        w_1, b_1 = _exact(ffn.w_1, norm)
        w_2, b_2 = _exact(ffn.w_2)
        self.reach, hidden_reach = LEAST
        if entered is not None:
            if ffn.pre_norm:
                states = F.layer_norm(entered.float(), entered.shape[-1:], eps=norm.eps)
            else:
                states = _states_of(norm, entered)
            hidden = F.relu(F.linear(states, w_1, b_1)) - b_1.clamp(min=0.0)
            self.reach = _range(states, LEAST[0], _BEYOND[0])
            hidden_reach = _range(hidden / w_1.norm(dim=1).clamp(min=_TINY), LEAST[1], _BEYOND[1])
        product = _product()
        # Every hidden unit as a share of its range, which its column of the second matrix takes back.
        most = (hidden_reach * w_1.norm(dim=1) + b_1.clamp(min=0.0)).clamp(min=_TINY)
        steps = _steps(norm, self.reach, taken=not ffn.pre_norm)
        if ffn.pre_norm:  # the norm itself makes steps, in place of its weight and bias
            self._gain, self._shift = (torch.full_like(b_2, number) for number in (1 / steps[0], steps[1]))
        self._first = product(w_1 / most.unsqueeze(1), b_1 / most, *steps, relu=True)
        self._second = product(w_2 * most, b_2, 1 / product.most)
        self._eps = norm.eps

    def step(self, stream: Stream) -> Stream:
        x = stream.total()
        if torch.is_grad_enabled() or not x.numel():
            return super().step(Stream(x))
        rows = states = x.reshape(-1, x.size(-1))
        if self.pre_norm:
            states = F.layer_norm(rows, rows.shape[-1:], self._gain, self._shift, self._eps)
        output = self._second(self._first(states), plus=rows).view(x.shape)
        return Stream(output if self.pre_norm else self.layer_norm(output))


class Int8Linear(SameLinear):
    """A linear layer that is no longer trained, with the same parameters, and whose input comes from a norm, or is
    spread as if it did. Its output is fp32."""

    def __init__(
        self, linear: nn.Linear, norm: nn.LayerNorm | Spread, factor: float = 1.0, entered: Tensor | None = None
    ) -> None:
        """factor: what the norm's output was multiplied by. entered: as in `Int8FeedForward`."""
        super().__init__(linear)
        self.reach = LEAST[0]
        if entered is not None:
            self.reach = _range(_states_of(norm, entered, factor), LEAST[0], _BEYOND[0])
        steps = _steps(norm, self.reach, factor)
        self._product: Callable[[Tensor], Tensor] = _product()(*_exact(linear, norm, factor), *steps)

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not input.numel():
            return super().forward(input)
        rows = input.reshape(-1, input.size(-1))
        return self._product(rows).view(*input.shape[:-1], -1)


class Int8Projection(Int8Linear):
    """One within attention: its output has the type of its input, as that of the projections beside it."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).to(input.dtype)


def to_int8(model: nn.Module) -> None:
    """Have a Transformer multiply in 8 bits from now on, in its feed-forward sub-layers and by its vocabulary, unless
    something stands between that and the last norm; and where a product rounds what it reads, within attention, too,
    but for values, which would lose more. The parameters stay.

    Raises RunError for a model that has none, or others; Unavailable where torch or the processor cannot.
    """
    layers = _layers(model)
    if not layers:
        raise RunError(f"{_OPTION}: is for Transformers, and this model is none. {_ADVICE}")
    if not all(isinstance(_norm_before(layer), nn.LayerNorm) for layer in layers):
        raise RunError(f"{_OPTION}: wants model.norm_kind layer, and this model has another. {_ADVICE}")
    if others := {layer.pos_ffn.kind for layer in layers} - {"relu"}:
        raise RunError(f"{_OPTION}: wants model.ffn relu, and this model has {', '.join(sorted(others))}. {_ADVICE}")
    if (device := layers[0].pos_ffn.w_1.weight.device).type != "cpu":
        raise Unavailable(f"{_OPTION}: is for the CPU, and the model is on {device}. {_ADVICE}")
    rounds = _product().rounds  # raises where nothing is exact
    for one in list(model.modules()):
        if not isinstance(one, Transformer):
            continue
        projections = list(_projections(one)) if rounds else []
        linears = [getattr(attention, name) for attention, name, _ in projections]
        entered = inputs_of([*(layer.pos_ffn for layer in _layers(one)), *linears, one.trg_word_prj], one)
        for layer in _layers(one):
            layer.pos_ffn = Int8FeedForward(layer.pos_ffn, _norm_before(layer), entered[layer.pos_ffn])
        if isinstance(last := one.ends_in_norm, nn.LayerNorm):
            one.trg_word_prj = Int8Linear(one.trg_word_prj, last, one.logit_scale, entered[one.trg_word_prj])
        for (attention, name, norm), linear in zip(projections, linears, strict=True):
            setattr(attention, name, Int8Projection(linear, norm, 1.0, entered[linear]))


def _layers(model: nn.Module) -> list[EncoderLayer | DecoderLayer]:
    """All layers of both stacks."""
    return [module for module in model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]


def _projections(model: Transformer) -> Iterator[tuple[MultiHeadAttention, str, nn.LayerNorm | Spread]]:
    """Projections that attention multiplies in 8 bits, by name, and the norm of their input: all but values,
    and but keys of the source, which are made once a sentence."""
    for layer in _layers(model):
        if not layer.slf_attn.pre_norm:
            continue
        norm = layer.slf_attn.layer_norm
        assert isinstance(norm, nn.LayerNorm)
        yield layer.slf_attn, "w_qs", norm
        yield layer.slf_attn, "w_ks", norm
        yield layer.slf_attn, "fc", _means_of_values(layer.slf_attn, norm)
        if isinstance(layer, DecoderLayer):
            norm, of_source = layer.enc_attn.layer_norm, model.encoder.layer_norm
            assert isinstance(norm, nn.LayerNorm) and isinstance(of_source, nn.LayerNorm)
            yield layer.enc_attn, "w_qs", norm
            yield layer.enc_attn, "fc", _means_of_values(layer.enc_attn, of_source)


def _means_of_values(attention: MultiHeadAttention, norm: nn.LayerNorm) -> Spread:
    """Spread of means of values, at most that of single values. norm: what these are made of comes from it."""
    weight, bias = _exact(attention.w_vs, norm)
    n_kv_head, share = attention.n_kv_head, attention.n_head // attention.n_kv_head
    of_heads = [one.view(n_kv_head, -1).repeat_interleave(share, 0).flatten() for one in (weight.norm(dim=1), bias)]
    return Spread(*of_heads)


def _states_of(norm: nn.LayerNorm | Spread, x: Tensor, factor: float = 1.0) -> Tensor:
    """States that the norm has made x of, which then was multiplied by a factor."""
    gain, shift = _normalised(norm, factor)
    return x.float() * gain + shift


def _norm_before(layer: EncoderLayer | DecoderLayer) -> Any:
    """The norm that the input of the feed-forward sub-layer comes from."""
    before = layer.enc_attn if isinstance(layer, DecoderLayer) else layer.slf_attn
    return (layer.pos_ffn if layer.pos_ffn.pre_norm else before).layer_norm


def _exact(linear: nn.Linear, norm: nn.LayerNorm | Spread | None = None, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """Weight and bias in fp32; if the input comes from a norm, those for its states before its weight and bias."""
    weight = linear.weight.detach().float()
    bias = weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach().float()
    if norm is None:
        return weight, bias
    return weight * (norm.weight.detach().float() * factor), bias + weight @ (norm.bias.detach().float() * factor)


def _normalised(norm: nn.LayerNorm | Spread, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """Gain and shift of a norm's output, times a factor, for its states before weight and bias."""
    weight, bias = norm.weight.detach().float() * factor, norm.bias.detach().float() * factor
    gain = torch.where(weight.abs() > 1e-6, 1 / weight, 0.0)  # a state of no weight is its bias and nothing else
    return gain, -bias * gain


def _steps(norm: nn.LayerNorm | Spread, reach: float, factor: float = 1.0, *, taken: bool = True) -> Steps:
    """Steps that make whole numbers of a norm's output, times a factor. taken: False where that is still to be taken,
    and makes them itself.
    """
    middle = (_product().most + 1) // 2
    step = reach / (middle - 1)
    if not taken:
        return step, middle, None
    gain, shift = _normalised(norm, factor)
    return step, middle, (gain / step, shift / step + middle)


def _product() -> Any:
    """Return what multiplies. Raises Unavailable where there is nothing that does."""
    if (found := ops.int8_product()) is None:
        raise Unavailable(f"{_OPTION}: this processor, or this torch, multiplies no numbers of 8 bits. {_ADVICE}")
    return found
