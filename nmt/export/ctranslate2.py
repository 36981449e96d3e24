"""Export of a Transformer to CTranslate2. Vocabulary entries are the names of the subwords, so ids stay the same."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nmt.data.letters import name_of
from nmt.data.subwords import BOS, EOS, PAD, SPECIAL_TEXT, Codec, Subwords
from nmt.errors import MachineError
from nmt.export.parity import position_table
from nmt.extras import require
from nmt.models.transformer.Models import Decoder, Encoder, Transformer
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.options import Recipe

_ACTIVATION = {"relu": "RELU", "gelu": "GELU", "swiglu": "SWISH"}


def export(model: Transformer, recipe: Recipe, subwords: Subwords, folder: Path, quantization: str | None) -> None:
    """Write a CTranslate2 model that `refuse_unsupported` allows. quantization: like int8; None for fp32. Raises
    Unavailable if CTranslate2 is not installed."""
    require("ctranslate2", "CTranslate2")
    import ctranslate2 as ct2

    config = recipe.model
    common: dict[str, Any] = {
        "activation": getattr(ct2.specs.Activation, _ACTIVATION[config.ffn]),
        "pre_norm": config.norm == "pre",
        "layernorm_embedding": config.norm == "post",
        "ffn_glu": config.ffn == "swiglu",
        "rms_norm": config.norm_kind == "rms",
        "head_dim": config.d_k,  # None: d_model / n_head
    }
    if config.position == "rotary":
        common |= {"rotary_dim": 0, "rotary_interleave": True}
    kv_heads = [None if n == config.n_head else n for n in (config.enc_n_kv_head or config.n_kv_head, config.n_kv_head)]
    specs = ct2.specs.transformer_spec
    spec = ct2.specs.TransformerSpec(
        specs.TransformerEncoderSpec(config.n_enc_layer, config.n_head, num_heads_kv=kv_heads[0], **common),
        specs.TransformerDecoderSpec(config.n_dec_layer, config.n_head, num_heads_kv=kv_heads[1], **common),
    )
    spec.config.layer_norm_epsilon = 1e-6
    spec.config.add_source_eos = True
    spec.config.decoder_start_token = spec.config.bos_token
    with torch.inference_mode():
        _copy_stack(spec.encoder, model.encoder, config)
        _copy_stack(spec.decoder, model.decoder, config)
        _copy_weights(spec.decoder.projection, model.trg_word_prj, scale=model.logit_scale)
    spec.register_source_vocabulary(entries(subwords.src))
    spec.register_target_vocabulary(entries(subwords.trg))
    spec.validate()
    spec.optimize(quantization=quantization)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def entries(codec: Codec) -> list[str]:
    """Return a unique name for each id: control symbols, subwords, tags, and unused rows of the padded matrix.

    A subword that is written like one of the others gets a space after it. No subword of text ends with a space.
    """
    unused = [f"<unused{i}>" for i in range(codec.n_vocab - codec.size)]
    reserved = {*SPECIAL_TEXT, *codec.tags, *unused}
    subwords = [f"{piece} " if piece in reserved else piece for piece in map(name_of, codec.vocab)]
    return [*SPECIAL_TEXT, *subwords, *codec.tags, *unused]


def translate_and_score(
    folder: Path, subwords: Subwords, lines: Sequence[str], trg_ids: Sequence[list[int]], most: int
) -> tuple[list[str], list[list[float]]]:
    """`parity.Exported`, by an exported folder. Raises MachineError for errors of CTranslate2."""
    import ctranslate2

    src, trg = entries(subwords.src), entries(subwords.trg)
    sources = [[src[i] for i in row] for row in subwords.src.encode(lines)]
    targets = [[trg[i] for i in row] for row in trg_ids]
    batches = {"max_batch_size": 4096, "batch_type": "tokens"}
    try:
        translator = ctranslate2.Translator(str(folder), compute_type="default", intra_threads=torch.get_num_threads())
        results = translator.translate_batch(
            sources,
            beam_size=1,
            min_decoding_length=0,  # a translation may be empty
            max_decoding_length=most,
            suppress_sequences=[[trg[i]] for i in (PAD, BOS, *range(subwords.trg.n_text, len(trg)))],
            return_end_token=True,
            **batches,
        )
        scores = translator.score_batch(sources, targets, **batches)
    except (RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise MachineError(f"CTranslate2 failed: {reason}.") from None
    id_of = {entry: i for i, entry in enumerate(trg)}
    ids = [[id_of[entry] for entry in result.hypotheses[0]] for result in results]
    texts = [subwords.trg.decode(row[:-1] if row[-1:] == [EOS] else row) for row in ids]
    return texts, [list(result.log_probs) for result in scores]


# Parts of a layer in CTranslate2, and the modules of nmt. Several modules are concatenated to one matrix.
_LAYER = {
    "self_attention.layer_norm": ["slf_attn.layer_norm"],
    "self_attention.linear.0": ["slf_attn.w_qs", "slf_attn.w_ks", "slf_attn.w_vs"],
    "self_attention.linear.1": ["slf_attn.fc"],
    "ffn.layer_norm": ["pos_ffn.layer_norm"],
    "ffn.linear_0": ["pos_ffn.w_1"],
    "ffn.linear_1": ["pos_ffn.w_2"],
}
_CROSS_ATTENTION = {
    "attention.layer_norm": ["enc_attn.layer_norm"],
    "attention.linear.0": ["enc_attn.w_qs"],
    "attention.linear.1": ["enc_attn.w_ks", "enc_attn.w_vs"],
    "attention.linear.2": ["enc_attn.fc"],
}
_SWIGLU = {"ffn.linear_0_noact": ["pos_ffn.w_3"]}


def _copy_stack(spec: Any, stack: Encoder | Decoder, config: ModelConfig) -> None:
    is_encoder = isinstance(stack, Encoder)
    embeddings = spec.embeddings[0] if is_encoder else spec.embeddings
    word_emb = stack.src_word_emb if isinstance(stack, Encoder) else stack.trg_word_emb
    # The scale is multiplied into the matrix.
    spec.scale_embeddings = False
    embeddings.weight = _array(word_emb.weight * stack.emb_scale)
    if config.position != "rotary":
        spec.position_encodings.encodings = _array(position_table(stack.position_enc))
    # The norm of the stack: after the embeddings with norm 'post', after the last layer with norm 'pre'.
    _copy_weights(spec.layer_norm if config.norm == "pre" else spec.layernorm_embedding, stack.layer_norm)
    parts = _LAYER | ({} if is_encoder else _CROSS_ATTENTION) | (_SWIGLU if config.ffn == "swiglu" else {})
    for layer_spec, layer in zip(spec.layer, stack.layer_stack, strict=True):
        for path, names in parts.items():
            part = layer_spec
            for step in path.split("."):
                part = part[int(step)] if step.isdigit() else getattr(part, step)
            _copy_weights(part, *map(layer.get_submodule, names))


def _copy_weights(spec: Any, *modules: nn.Module, scale: float = 1.0) -> None:
    """Copy the weights and biases, if any, of a norm, of a linear layer, or of several linear layers."""
    is_norm = hasattr(spec, "gamma")
    for ours, theirs in (("weight", "gamma" if is_norm else "weight"), ("bias", "beta" if is_norm else "bias")):
        params: list[Tensor] = [param for module in modules if (param := getattr(module, ours, None)) is not None]
        if params:
            setattr(spec, theirs, _array(torch.cat(params) * scale))


def _array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().float().cpu().contiguous().numpy().copy()
    return array
