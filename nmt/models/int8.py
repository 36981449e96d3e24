"""Prepacked matrices for translation, and large products of a Transformer in 8-bit integers, on a CPU.

The input of a feed-forward sub-layer, and of the product with the vocabulary, comes from a LayerNorm, so its variance
is one before the weight and bias of the norm. Attention takes means of values; the spread of each follows from its row.
"""

import copy
import platform
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
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


_N_SENTENCE, _LENGTH = 16, 32  # of the random text from which ranges are set
_OPTION, _ADVICE = "decode.precision int8", "Take bf16 or fp32."

# Weight and bias of the LayerNorm that an input comes from, (D,) each, or of one whose output is spread alike.
Affine = tuple[Tensor, Tensor]


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


class Int8FeedForward(PositionwiseFeedForward):
    """Feed-forward sub-layer in 8 bits, for inference, with the same parameters."""

    def __init__(self, ffn: PositionwiseFeedForward, affine: Affine, sample: Tensor | None = None) -> None:
        """affine, sample: as in `ops.int8_feed_forward`."""
        nn.Module.__init__(self)
        self.kind, self.pre_norm = ffn.kind, ffn.pre_norm
        self.w_1, self.w_2 = SharedLinear(ffn.w_1), SharedLinear(ffn.w_2)
        self.act_dropout, self.dropout, self.layer_norm = ffn.act_dropout, ffn.dropout, ffn.layer_norm
        self.train(ffn.training)
        eps = ffn.layer_norm.eps if ffn.pre_norm else None
        self.int8 = ops.int8_feed_forward(ffn.w_1, ffn.w_2, affine, eps, sample)

    def step(self, stream: Stream) -> Stream:
        x = stream.total()
        if torch.is_grad_enabled() or not x.numel():
            return super().step(Stream(x))
        output = self.int8(x.reshape(-1, x.size(-1))).view(x.shape)
        return Stream(output if self.pre_norm else self.layer_norm(output))


class Int8Linear(SharedLinear):
    """Linear layer in 8 bits, for inference, with the same parameters. Its output is fp32."""

    def __init__(self, linear: nn.Linear, affine: Affine, sample: Tensor | None = None) -> None:
        """affine, sample: as in `ops.int8_linear`."""
        super().__init__(linear)
        self.int8 = ops.int8_linear(linear, affine, sample)

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not input.numel():
            return super().forward(input)
        output: Tensor = self.int8(input.reshape(-1, input.size(-1)))
        return output.view(*input.shape[:-1], -1)


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
            for parent, name, int8_class, affine in conversions:
                module = getattr(parent, name)
                setattr(parent, name, int8_class(module, affine, inputs[module]))


def _layers(model: nn.Module) -> list[EncoderLayer | DecoderLayer]:
    return [module for module in model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]


def _conversions(model: Transformer, *, attention: bool) -> Iterator[tuple[nn.Module, str, Callable[..., Any], Affine]]:
    """Yield the modules to convert: their parent, their name in it, the class for 8 bits, and `Affine` of their input.

    attention: also its projections, except those of values, and of the source's keys, computed once per sentence.
    """
    enc_affine = _affine(model.encoder.layer_norm)
    for layer in _layers(model):
        yield layer, "pos_ffn", Int8FeedForward, _affine(_norm_before(layer))
        if not (attention and layer.slf_attn.pre_norm):
            continue
        affine = _affine(layer.slf_attn.layer_norm)
        yield layer.slf_attn, "w_qs", Int8Projection, affine
        yield layer.slf_attn, "w_ks", Int8Projection, affine
        yield layer.slf_attn, "fc", Int8Projection, _spread_of_means(layer.slf_attn, affine)
        if isinstance(layer, DecoderLayer):
            yield layer.enc_attn, "w_qs", Int8Projection, _affine(layer.enc_attn.layer_norm)
            yield layer.enc_attn, "fc", Int8Projection, _spread_of_means(layer.enc_attn, enc_affine)
    if isinstance(last_norm := model.norm_before_projection, nn.LayerNorm):
        weight, bias = _affine(last_norm)
        yield model, "trg_word_prj", Int8Linear, (weight * model.logit_scale, bias * model.logit_scale)


def _affine(norm: Any) -> Affine:
    return norm.weight.detach().float(), norm.bias.detach().float()


def _spread_of_means(attention: MultiHeadAttention, affine: Affine) -> Affine:
    """Spread of means of values, at most that of single values. affine: of the input of `w_vs`."""
    n_kv_head, share = attention.n_kv_head, attention.n_head // attention.n_kv_head
    weight, bias = (
        scale.view(n_kv_head, -1).repeat_interleave(share, 0).flatten()
        for scale in ops.int8_spread_of_outputs(attention.w_vs, affine)
    )
    return weight, bias


def _norm_before(layer: EncoderLayer | DecoderLayer) -> Any:
    """The norm whose output the feed-forward sub-layer reads."""
    before = layer.enc_attn if isinstance(layer, DecoderLayer) else layer.slf_attn
    return (layer.pos_ffn if layer.pos_ffn.pre_norm else before).layer_norm
