"""Prepacked matrices for translation, and large products of a Transformer in 8-bit integers, on a CPU.

8-bit integers are faster than bf16, but need a range. The input of a feed-forward sub-layer, and of the product with
the vocabulary, comes from a LayerNorm, so its variance is one before the weight and bias of the norm. The spread of a
hidden unit follows from the length of its row, and so does that of a value, of which attention takes means. `_range`
sets the number of standard deviations in a range. So quantisation needs no data, and a sentence's states do not depend
on its batch. Numbers beyond a range are clipped. Each output has its own scale, for its row of the matrix; sums are
exact (`int8_products`).
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


class SharedLinear(nn.Linear):
    """Linear layer that shares the parameters of another."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)  # not that of nn.Linear, which would draw weights
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias


class PrepackedLinear(SharedLinear):
    """Linear layer for inference. Where it is not faster it computes as nn.Linear, with the same weight: in fp64, with
    gradients, or in a torch without oneDNN."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self._product = ops.prepacked_linear(linear.weight.detach())

    def forward(self, input: Tensor) -> Tensor:
        is_other_dtype = input.dtype != self.weight.dtype  # as under autocast
        if torch.is_grad_enabled() or self._product is None or is_other_dtype or not input.numel():
            return super().forward(input)
        return self._product(input, self.bias)


def prepacked(model: ModuleT) -> ModuleT:
    """Return a model with the same parameters, whose linear layers are prepacked for this processor, or its GPU.

    The packed matrices take their memory once more, or in tiles one and a half times.
    """
    if any(parameter.is_cuda for parameter in model.parameters()):
        return prepacked_for_gpu(model)
    packed = _copy_modules(model)
    for module in list(packed.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, PrepackedLinear(child))
    return packed


def prepacked_for_gpu(model: ModuleT) -> ModuleT:
    """Return a model with the same parameters, in which matrices that read the same input are adjacent in memory."""
    packed = _copy_modules(model)
    for module in packed.modules():
        if isinstance(module, MultiHeadAttention | PositionwiseFeedForward):
            ops.fuse_weights(module.input_layers())
    return packed


def _copy_modules(model: ModuleT) -> ModuleT:
    """Copy the modules of a model, but share its tensors."""
    shared: dict[int, object] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def half_is_faster() -> bool:
    """True if this processor has instructions for bf16 products, which then are faster than fp32 ones."""
    if platform.machine() == "aarch64":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.cpu._is_avx512_bf16_supported())


# Ranges of normalised states and of hidden units: the smallest, in standard deviations, and the factor by which a range
# exceeds this quantile on a text of random subwords. Hidden units reach further on a text that makes sense.
MIN_RANGES = (4.0, 6.0)
_MARGINS = (1.25, 2.0)
_QUANTILE = 0.999
_N_SENTENCE, _LENGTH = 16, 32
_TINY = torch.finfo(torch.float32).tiny
_OPTION, _ADVICE = "decode.precision int8", "Take bf16 or fp32."

# Quantisation of states: step, zero and affine, as the classes of `int8_products` take them.
Quantisation = tuple[float, int, tuple[Tensor, Tensor] | None]


def inputs_of(modules: Sequence[nn.Module], model: Transformer) -> dict[nn.Module, Tensor]:
    """Record the inputs of modules while the model reads a text of random subwords."""
    inputs: dict[nn.Module, Tensor] = {}
    generator = torch.Generator().manual_seed(1)  # the same text every time
    n_vocabs = [len(embedding.weight) for embedding in model.embeddings]
    texts = [torch.randint(n_vocab, (_N_SENTENCE, _LENGTH), generator=generator) for n_vocab in n_vocabs]
    src_seq, trg_seq = (ids.where(ids != model.pad_idx, (model.pad_idx + 1) % 2) for ids in texts)

    def record(module: nn.Module, args: tuple[Any, ...]) -> None:
        inputs[module] = args[0]

    hooks = [module.register_forward_pre_hook(record) for module in modules]
    try:
        with torch.inference_mode(), evaluating(model):
            model(src_seq, trg_seq)
    finally:
        for hook in hooks:
            hook.remove()
    return inputs


def _range(numbers: Tensor, minimum: float, margin: float) -> float:
    """Range that numbers need, in standard deviations. Rounded to halves, so that rounding errors rarely change it."""
    sizes = numbers.abs().flatten().nan_to_num(0.0, 0.0)  # the search reports numbers that are not finite
    quantile = sizes.kthvalue(max(1, int(_QUANTILE * len(sizes)))).values.item()
    return max(minimum, margin * (round(2 * quantile) / 2))


class Spread(NamedTuple):
    """Stand-in for a norm: numbers that are spread like states of variance one, times weight, plus bias, (D,)."""

    weight: Tensor
    bias: Tensor


class Int8FeedForward(PositionwiseFeedForward):
    """Feed-forward sub-layer in 8 bits, for inference, with the same parameters."""

    def __init__(self, ffn: PositionwiseFeedForward, norm: nn.LayerNorm, sample: Tensor | None = None) -> None:
        """norm: the source of its input: its own norm, or that of the sub-layer before. sample: its input on some text,
        from which ranges are set; None: the smallest ranges."""
        nn.Module.__init__(self)
        self.kind, self.pre_norm = ffn.kind, ffn.pre_norm
        self.w_1, self.w_2 = SharedLinear(ffn.w_1), SharedLinear(ffn.w_2)
        self.act_dropout, self.dropout, self.layer_norm = ffn.act_dropout, ffn.dropout, ffn.layer_norm
        self.train(ffn.training)
        w_1, b_1 = _folded(ffn.w_1, norm)
        w_2, b_2 = _folded(ffn.w_2)
        self.range, hidden_range = MIN_RANGES
        if sample is not None:
            if ffn.pre_norm:
                states = F.layer_norm(sample.float(), sample.shape[-1:], eps=norm.eps)
            else:
                states = _states_of(norm, sample)
            hidden = F.relu(F.linear(states, w_1, b_1)) - b_1.clamp(min=0.0)
            self.range = _range(states, MIN_RANGES[0], _MARGINS[0])
            hidden_range = _range(hidden / w_1.norm(dim=1).clamp(min=_TINY), MIN_RANGES[1], _MARGINS[1])
        product = ops.int8_product()
        # Each hidden unit is divided by its maximum, and its column of the second matrix is multiplied by it.
        maximum = (hidden_range * w_1.norm(dim=1) + b_1.clamp(min=0.0)).clamp(min=_TINY)
        quantisation = _quantisation(None if ffn.pre_norm else norm, self.range)
        if ffn.pre_norm:  # the norm quantises its output, by these in place of its weight and bias
            step, zero, _ = quantisation
            self._gain, self._shift = torch.full_like(b_2, 1 / step), torch.full_like(b_2, zero)
        self._first = product(w_1 / maximum.unsqueeze(1), b_1 / maximum, *quantisation, relu=True)
        self._second = product(w_2 * maximum, b_2, 1 / product.most)
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


class Int8Linear(SharedLinear):
    """Linear layer in 8 bits, for inference, with the same parameters. Its input comes from a norm, or is spread as if
    it did; its output is fp32."""

    def __init__(self, linear: nn.Linear, norm: nn.LayerNorm | Spread, sample: Tensor | None = None) -> None:
        """sample: as in `Int8FeedForward`."""
        super().__init__(linear)
        self.range = MIN_RANGES[0]
        if sample is not None:
            self.range = _range(_states_of(norm, sample), MIN_RANGES[0], _MARGINS[0])
        quantisation = _quantisation(norm, self.range)
        self._product: Callable[[Tensor], Tensor] = ops.int8_product()(*_folded(linear, norm), *quantisation)

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not input.numel():
            return super().forward(input)
        rows = input.reshape(-1, input.size(-1))
        return self._product(rows).view(*input.shape[:-1], -1)


class Int8Projection(Int8Linear):
    """Int8Linear within attention: its output has the type of its input, like the other projections."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).to(input.dtype)


def to_int8(model: nn.Module) -> None:
    """Convert a Transformer in place to products in 8 bits; the parameters stay.

    Converted are the feed-forward sub-layers, and the product with the vocabulary if its input comes from a norm. Where
    a product rounds its own input, so are projections of attention, except those of values, which would lose more.
    Raises RunError for a model without such layers, or with others; Unavailable where torch or the processor cannot.
    """
    layers = _layers(model)
    if not layers:
        raise RunError(f"{_OPTION}: is for Transformers only. {_ADVICE}")
    if not all(isinstance(_norm_before(layer), nn.LayerNorm) for layer in layers):
        raise RunError(f"{_OPTION}: needs model.norm_kind layer, but this model has another. {_ADVICE}")
    if others := {layer.pos_ffn.kind for layer in layers} - {"relu"}:
        raise RunError(f"{_OPTION}: needs model.ffn relu, but this model has {', '.join(sorted(others))}. {_ADVICE}")
    if (device := layers[0].pos_ffn.w_1.weight.device).type != "cpu":
        raise Unavailable(f"{_OPTION}: runs on the CPU only, but the model is on {device}. {_ADVICE}")
    if (product := ops.int8_product()) is None:
        raise Unavailable(f"{_OPTION}: this processor or this torch has no 8-bit products. {_ADVICE}")
    for part in list(model.modules()):
        if isinstance(part, Transformer):
            conversions = list(_conversions(part, attention=product.rounds))
            inputs = inputs_of([getattr(parent, name) for parent, name, *_ in conversions], part)
            for parent, name, int8_class, norm in conversions:
                module = getattr(parent, name)
                setattr(parent, name, int8_class(module, norm, inputs[module]))


def _layers(model: nn.Module) -> list[EncoderLayer | DecoderLayer]:
    return [module for module in model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]


def _conversions(model: Transformer, *, attention: bool) -> Iterator[tuple[nn.Module, str, Callable[..., Any], Any]]:
    """Yield the modules to convert: their parent, their name in it, the class for 8 bits, and the norm of their input.

    attention: also its projections, except those of values, and of the source's keys, computed once per sentence.
    """
    enc_norm: Any = model.encoder.layer_norm
    for layer in _layers(model):
        yield layer, "pos_ffn", Int8FeedForward, _norm_before(layer)
        if not (attention and layer.slf_attn.pre_norm):
            continue
        norm: Any = layer.slf_attn.layer_norm
        yield layer.slf_attn, "w_qs", Int8Projection, norm
        yield layer.slf_attn, "w_ks", Int8Projection, norm
        yield layer.slf_attn, "fc", Int8Projection, _spread_of_means(layer.slf_attn, norm)
        if isinstance(layer, DecoderLayer):
            yield layer.enc_attn, "w_qs", Int8Projection, layer.enc_attn.layer_norm
            yield layer.enc_attn, "fc", Int8Projection, _spread_of_means(layer.enc_attn, enc_norm)
    if isinstance(last_norm := model.norm_before_projection, nn.LayerNorm):
        scales = (scale.detach().float() * model.logit_scale for scale in (last_norm.weight, last_norm.bias))
        yield model, "trg_word_prj", Int8Linear, Spread(*scales)


def _spread_of_means(attention: MultiHeadAttention, norm: nn.LayerNorm) -> Spread:
    """Spread of means of values, at most that of single values. norm: the source of the input of `w_vs`."""
    weight, bias = _folded(attention.w_vs, norm)
    n_kv_head, share = attention.n_kv_head, attention.n_head // attention.n_kv_head
    scales = (weight.norm(dim=1), bias)
    return Spread(*(scale.view(n_kv_head, -1).repeat_interleave(share, 0).flatten() for scale in scales))


def _states_of(norm: nn.LayerNorm | Spread, x: Tensor) -> Tensor:
    """States of variance one before weight and bias of the norm, whose output is x."""
    gain, shift = _inverse_affine(norm)
    return x.float() * gain + shift


def _norm_before(layer: EncoderLayer | DecoderLayer) -> Any:
    """The norm whose output the feed-forward sub-layer reads."""
    before = layer.enc_attn if isinstance(layer, DecoderLayer) else layer.slf_attn
    return (layer.pos_ffn if layer.pos_ffn.pre_norm else before).layer_norm


def _folded(linear: nn.Linear, norm: nn.LayerNorm | Spread | None = None) -> tuple[Tensor, Tensor]:
    """Weight and bias in fp32; if the input comes from a norm, the weight and bias of that are folded in."""
    weight = linear.weight.detach().float()
    bias = weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach().float()
    if norm is None:
        return weight, bias
    return weight * norm.weight.detach().float(), bias + weight @ norm.bias.detach().float()


def _inverse_affine(norm: nn.LayerNorm | Spread) -> tuple[Tensor, Tensor]:
    """Gain and shift that turn a norm's output into its states before weight and bias."""
    weight, bias = norm.weight.detach().float(), norm.bias.detach().float()
    gain = torch.where(weight.abs() > 1e-6, 1 / weight, 0.0)  # a column of weight 0 is its bias alone
    return gain, -bias * gain


def _quantisation(norm: nn.LayerNorm | Spread | None, state_range: float) -> Quantisation:
    """Quantisation of a norm's output; None: the norm itself is to quantise."""
    zero = (ops.int8_product().most + 1) // 2
    step = state_range / (zero - 1)
    if norm is None:
        return step, zero, None
    gain, shift = _inverse_affine(norm)
    return step, zero, (gain / step, shift / step + zero)
