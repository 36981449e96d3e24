"""A Transformer as a CTranslate2 model, one function a box of its Figure 1: `spec` is CTranslate2's box, the other
argument ours. Vocabulary entries are the subwords by their names, so that ids stay what they are."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nmt.data.subwords import BOS, EOS, PAD, Codec, Subwords
from nmt.errors import MachineError
from nmt.export.parity import N_POSITION, beside, position_table
from nmt.extras import missing
from nmt.models.transformer.Layers import DecoderLayer, EncoderLayer
from nmt.models.transformer.Models import Decoder, Encoder, LearnedPositions, PositionalEncoding, Transformer
from nmt.models.transformer.SubLayers import MultiHeadAttention
from nmt.recipe.draft import refuse_unsupported
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.options import Recipe
from nmt.run import Run

_ITS_FILES = ("config.json", "shared_vocabulary.json", "source_vocabulary.json", "target_vocabulary.json")
_BATCHES = {"max_batch_size": 4096, "batch_type": "tokens"}
_ACTIVATION = {"relu": "RELU", "gelu": "GELU", "swiglu": "SWISH"}


def library() -> Any:
    """The package, or a MachineError that says how to get it."""
    try:
        import ctranslate2
    except ImportError:
        raise missing("ctranslate2", "CTranslate2") from None
    return ctranslate2


def export(model: Transformer, recipe: Recipe, subwords: Subwords, folder: Path, quantization: str | None) -> None:
    """Write a CTranslate2 model. quantization: one of its names, like int8, or None for fp32.

    Raises RunError, naming the options, for a model that it cannot hold exactly.
    """
    refuse_unsupported("ctranslate2", recipe)
    ct2, config = library(), recipe.model
    box, common = ct2.specs.transformer_spec, _common(ct2, config)
    kv_heads = [None if n == config.n_head else n for n in (config.enc_n_kv_head or config.n_kv_head, config.n_kv_head)]
    spec = ct2.specs.TransformerSpec(
        box.TransformerEncoderSpec(config.n_enc_layer, config.n_head, num_heads_kv=kv_heads[0], **common),
        box.TransformerDecoderSpec(config.n_dec_layer, config.n_head, num_heads_kv=kv_heads[1], **common),
    )
    spec.config.layer_norm_epsilon = 1e-6
    spec.config.add_source_eos = True
    spec.config.decoder_start_token = spec.config.bos_token
    with torch.inference_mode():
        _stack(spec.encoder, model.encoder, config)
        _stack(spec.decoder, model.decoder, config)
        _linear(spec.decoder.projection, model.trg_word_prj, scale=model.logit_scale)
    spec.register_source_vocabulary(entries(subwords.src))
    spec.register_target_vocabulary(entries(subwords.trg))
    spec.validate()
    spec.optimize(quantization=quantization)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def entries(codec: Codec) -> list[str]:
    """A name for each id, all different: the control symbols, the subwords, the tags, and what fills the matrix up.

    A subword that is written like one of the others gets a space after it, which no subword of text ends with.
    """
    control = {PAD: "<pad>", BOS: "<s>", EOS: "</s>"}
    filling = [f"<unused{i}>" for i in range(codec.n_vocab - codec.size)]
    taken = {*control.values(), *codec.tags, *filling}
    subwords = [f"{piece} " if piece in taken else piece for piece in codec.names()]
    return [control[i] for i in range(len(control))] + subwords + [*codec.tags] + filling


def is_exported(folder: Path) -> bool:
    """Return whether a folder is one of those that nmt-export writes, with nothing of others in it."""
    there = Run(folder)
    ours = {there.ctranslate2_file, there.recipe_file, there.subwords_file}
    return ours <= set(folder.iterdir()) <= ours | {folder / name for name in _ITS_FILES} | beside(folder)


class Compared:
    """An exported folder, on the CPU, to be compared with the model that was exported."""

    def __init__(self, folder: Path, subwords: Subwords) -> None:
        self._subwords = subwords
        self._src, self._trg = entries(subwords.src), entries(subwords.trg)
        n_thread = torch.get_num_threads()
        self._theirs: Any = _told(library().Translator, str(folder), compute_type="default", intra_threads=n_thread)

    def greedy(self, lines: Sequence[str], most: int) -> list[str]:
        """The translation of each line by greedy search, which ends it after `most` tokens."""
        found = _told(
            self._theirs.translate_batch,
            self._sources(lines),
            beam_size=1,
            min_decoding_length=0,  # to find nothing to say is a translation, too
            max_decoding_length=min(most, N_POSITION - 2),
            suppress_sequences=[[self._trg[i]] for i in (PAD, BOS, *range(self._subwords.trg.n_text, len(self._trg)))],
            return_end_token=True,
            **_BATCHES,
        )
        number = {entry: i for i, entry in enumerate(self._trg)}
        ids = [[number[entry] for entry in one.hypotheses[0]] for one in found]
        return [self._subwords.trg.decode(row[:-1] if row[-1:] == [EOS] else row) for row in ids]

    def score(self, lines: Sequence[str], trg_ids: Sequence[list[int]]) -> list[list[float]]:
        """Log-probability of each token of given translations of the lines, EOS included."""
        target = [[self._trg[i] for i in row] for row in trg_ids]
        return [
            list(one.log_probs) for one in _told(self._theirs.score_batch, self._sources(lines), target, **_BATCHES)
        ]

    def _sources(self, lines: Sequence[str]) -> list[list[str]]:
        return [[self._src[i] for i in row] for row in self._subwords.src.encode(lines)]


def _told(method: Callable[..., Any], *args: Any, **known: Any) -> Any:
    """Call a method of theirs. Raises MachineError."""
    try:
        return method(*args, **known)
    except (RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise MachineError(f"CTranslate2 cannot go on: {reason}.") from None


def _common(ct2: Any, config: ModelConfig) -> dict[str, Any]:
    """Return the options that both stacks have in CTranslate2."""
    d_head = config.d_k or config.d_model // config.n_head
    found: dict[str, Any] = {
        "activation": getattr(ct2.specs.Activation, _ACTIVATION[config.ffn]),
        "pre_norm": config.norm == "pre",
        "layernorm_embedding": config.norm == "post",
        "ffn_glu": config.ffn == "swiglu",
        "rms_norm": config.norm_kind == "rms",
        "head_dim": d_head if d_head != config.d_model // config.n_head else None,
    }
    if config.position == "rotary":
        found |= {"rotary_dim": 0, "rotary_interleave": True}
    return found


def _stack(spec: Any, stack: Encoder | Decoder, config: ModelConfig) -> None:
    embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    word_emb = stack.src_word_emb if isinstance(stack, Encoder) else stack.trg_word_emb
    # The scale goes into the matrix: one number that nobody can forget.
    spec.scale_embeddings = False
    embeddings.weight = _array(word_emb.weight * stack.emb_scale)
    is_rotary = not isinstance(stack.position_enc, PositionalEncoding | LearnedPositions)
    if hasattr(spec, "position_encodings") and not is_rotary:
        spec.position_encodings.encodings = _array(position_table(stack.position_enc))
    # The stack's own norm: after the embeddings with norm 'post', after the last layer with norm 'pre'.
    _norm(spec.layer_norm if config.norm == "pre" else spec.layernorm_embedding, stack.layer_norm)
    for box, layer in zip(spec.layer, stack.layer_stack, strict=True):
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        _attention(box.self_attention, layer.slf_attn)
        if isinstance(layer, DecoderLayer):
            _attention(box.attention, layer.enc_attn, self_attention=False)
        _norm(box.ffn.layer_norm, layer.pos_ffn.layer_norm)
        _linear(box.ffn.linear_0, layer.pos_ffn.w_1)
        _linear(box.ffn.linear_1, layer.pos_ffn.w_2)
        if hasattr(box.ffn, "linear_0_noact"):
            _linear(box.ffn.linear_0_noact, layer.pos_ffn.w_3)


def _attention(spec: Any, attention: MultiHeadAttention, *, self_attention: bool = True) -> None:
    _norm(spec.layer_norm, attention.layer_norm)
    rows = [attention.w_qs, attention.w_ks, attention.w_vs]
    if self_attention:
        _linear(spec.linear[0], *rows)
    else:
        _linear(spec.linear[0], rows[0])
        _linear(spec.linear[1], *rows[1:])
    _linear(spec.linear[-1], attention.fc)


def _linear(spec: Any, *parts: nn.Linear, scale: float = 1.0) -> None:
    """One matrix, or several that CTranslate2 keeps as one, above each other."""
    spec.weight = _array(torch.cat([part.weight for part in parts]) * scale)
    biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
    if biases:
        spec.bias = _array(torch.cat(biases) * scale)


def _norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm.weight, Tensor)
    spec.gamma = _array(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = _array(norm.bias)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = tensor.detach().float().cpu().contiguous().numpy().copy()
    return found
