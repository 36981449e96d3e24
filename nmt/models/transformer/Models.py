"""The Transformer of Figure 1 of the paper: embeddings, the two stacks, the projection onto the vocabulary.

Classes, attributes and default shapes follow the upstream layout, so its weights load.
Shapes: B sentences, S source length, T target length, D `d_model`, V target vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmt.masks import Mask, PackedMask, Packing, SearchMask
from nmt.models.base import Attns, DecoderState, TranslationModel, WordEmbedding, read_in_parts
from nmt.models.layers import Dropout, Stream
from nmt.models.transformer.Layers import DecoderLayer, EncoderLayer
from nmt.models.transformer.Modules import Position, RotaryEncoding, SinusoidTable, make_norm
from nmt.models.transformer.SubLayers import LexicalAttention, Rotation
from nmt.ops import linear, normed, packed_mask
from nmt.recipe.model_options import ModelConfig


def get_pad_mask(seq: Tensor, pad_idx: int) -> Tensor:
    """(B, L) ids -> (B, 1, L), True except at padding."""
    return (seq != pad_idx).unsqueeze(-2)


def get_subsequent_mask(seq: Tensor) -> Tensor:
    """(B, L) -> (1, L, L), True where a position may attend: to itself and to earlier ones."""
    n = seq.size(1)
    return torch.ones(1, n, n, dtype=torch.bool, device=seq.device).tril()


class PositionalEncoding(SinusoidTable):
    """Sinusoidal positions of the paper: `rows` are added to the embedded words."""


class LearnedPositions(nn.Module):
    """Trained vector for each position. Positions beyond the table get its last row."""

    def __init__(self, d_model: int, n_position: int) -> None:
        super().__init__()
        self.pos_emb = nn.Embedding(n_position, d_model)

    def rows(self, first: Position, n: int, packing: Packing | None = None) -> Tensor:
        """Vectors of n positions from `first` on, or of the n tokens of a packed row: (n, D)."""
        position = packing.position if packing else torch.arange(n, device=self.pos_emb.weight.device) + first
        vectors: Tensor = self.pos_emb(position.clamp(max=self.pos_emb.num_embeddings - 1))
        return vectors


class _Stack(nn.Module):
    """Base of encoder and decoder: the input of the first layer and the final norm."""

    position_enc: PositionalEncoding | LearnedPositions | RotaryEncoding
    layer_stack: nn.ModuleList
    layer_norm: nn.Module
    recompute = False  # True: see `TranslationModel.recompute_activations`

    def __init__(self, config: ModelConfig, emb_scale: float) -> None:
        super().__init__()
        self.emb_scale = emb_scale
        self.pre_norm = config.norm == "pre"
        if config.position == "sinusoid":
            self.position_enc = PositionalEncoding(config.d_model, config.n_position)
        elif config.position == "learned":
            self.position_enc = LearnedPositions(config.d_model, config.n_position)
        else:
            self.position_enc = RotaryEncoding(config.d_k or config.d_model // config.n_head, config.n_position)
        self.dropout = Dropout(config.dropout if config.emb_dropout is None else config.emb_dropout)

    def _first_input(self, x: Tensor, first: Position = 0, packing: Packing | None = None) -> tuple[Tensor, Rotation]:
        """Input of the first layer, (B, T, D), of embedded words (B, T, D) at positions first, first + 1, ...

        The second value is the rotation of rotary positions, None for other positions.
        """
        rotation: Rotation = None
        if isinstance(self.position_enc, RotaryEncoding):
            rotation = self.position_enc(first, x.size(1), packing)
            x = self._scale(x)
        else:
            x = torch.add(self.position_enc.rows(first, x.size(1), packing), x, alpha=self.emb_scale)
        x = self.dropout(x)
        return x if self.pre_norm else normed(x, self.layer_norm), rotation

    def _scale(self, x: Tensor) -> Tensor:
        """Multiply embedded words (B, T, D) by emb_scale."""
        return x if self.emb_scale == 1.0 else x * self.emb_scale

    def _final_norm(self, x: Tensor) -> Tensor:
        """Normalise the output of the last layer with norm 'pre'; with 'post' that layer has done it."""
        return normed(x, self.layer_norm) if self.pre_norm else x

    def _run(self, layer: nn.Module, *args: Any) -> Any:
        """Return layer(*args). Recomputation draws the same dropout, since it restores the random generators."""
        if self.recompute and self.training and torch.is_grad_enabled():
            return checkpoint(layer, *args, use_reentrant=False)
        return layer(*args)


class Encoder(_Stack):
    """Encoder stack: reads the source."""

    def __init__(self, config: ModelConfig, n_src_vocab: int, pad_idx: int, emb_scale: float) -> None:
        super().__init__(config, emb_scale)
        self.src_word_emb = WordEmbedding(n_src_vocab, config.d_model, padding_idx=pad_idx)
        self.layer_stack = nn.ModuleList([EncoderLayer(config) for _ in range(config.n_enc_layer)])
        self.layer_norm = make_norm(config, config.d_model)

    def forward(
        self, src_seq: Tensor, src_mask: Mask, return_attns: bool = False
    ) -> tuple[Tensor, list[Tensor | None]]:
        """(B, S), (B, 1, 1, S) -> (B, S, D), and with return_attns the weights of each layer, (B, H, S, S)."""
        packing = src_mask.key if isinstance(src_mask, PackedMask) else None
        enc_output, rotation = self._first_input(self.src_word_emb(src_seq), packing=packing)
        enc_slf_attns = []
        for layer in self.layer_stack:
            enc_output, enc_slf_attn = self._run(layer, enc_output, src_mask, rotation, return_attns)
            enc_slf_attns.append(enc_slf_attn)
        return self._final_norm(enc_output), enc_slf_attns

    def embed(self, src_seq: Tensor) -> Tensor:
        """Embed source words, (B, S) -> (B, S, D), scaled as in the first layer's input but without positions."""
        return self._scale(self.src_word_emb(src_seq))


class Decoder(_Stack):
    """Decoder stack: reads the target so far and attends to the source."""

    def __init__(self, config: ModelConfig, n_trg_vocab: int, pad_idx: int, emb_scale: float) -> None:
        super().__init__(config, emb_scale)
        self.rotary_enc_attn = config.rotary_enc_attn
        self.trg_word_emb = WordEmbedding(n_trg_vocab, config.d_model, padding_idx=pad_idx)
        self.layer_stack = nn.ModuleList([DecoderLayer(config) for _ in range(config.n_dec_layer)])
        self.layer_norm = make_norm(config, config.d_model)

    def forward(
        self, trg_seq: Tensor, trg_mask: Mask, enc_output: Tensor, src_mask: Mask, return_attns: bool = False
    ) -> tuple[Tensor, list[Tensor | None], list[Tensor | None]]:
        """(B, T), (B, 1, T, T), (B, S, D), (B, 1, 1, S) -> (B, T, D), and with return_attns the weights of each layer:
        over the target (B, H, T, T) and over the source (B, H, T, S)."""
        trg_packing, src_packing = (src_mask.query, src_mask.key) if isinstance(src_mask, PackedMask) else (None, None)
        dec_output, rotation = self._first_input(self.trg_word_emb(trg_seq), packing=trg_packing)
        src_rotation = self.enc_rotation(0, enc_output.size(1), src_packing)
        dec_slf_attns, dec_enc_attns = [], []
        for layer in self.layer_stack:
            dec_output, dec_slf_attn, dec_enc_attn = self._run(
                layer, dec_output, enc_output, trg_mask, src_mask, rotation, src_rotation, return_attns
            )
            dec_slf_attns.append(dec_slf_attn)
            dec_enc_attns.append(dec_enc_attn)
        return self._final_norm(dec_output), dec_slf_attns, dec_enc_attns

    def start(self, enc_output: Tensor) -> dict[str, Tensor]:
        """Compute the source's keys and values once for all steps: (B, S, D) -> B-row tensors."""
        memory, rotation = dict[str, Tensor](), self.enc_rotation(0, enc_output.size(1))
        for n, layer in enumerate(self.layer_stack):
            assert isinstance(layer, DecoderLayer)
            k, v = layer.enc_attn.keys_values(enc_output, rotation)
            # Made contiguous by head once, where otherwise each step would copy them.
            memory[f"enc_k.{n}"], memory[f"enc_v.{n}"] = k.contiguous(), v.contiguous()
        return memory

    def enc_rotation(self, first: Position, n: int, packing: Packing | None = None) -> Rotation:
        """Rotation in cross-attention of n positions from `first` on; None unless rotary_enc_attn."""
        if not self.rotary_enc_attn:
            return None
        assert isinstance(self.position_enc, RotaryEncoding)
        rotation: Rotation = self.position_enc(first, n, packing)
        return rotation

    def step(self, last: Tensor, visible: Tensor, state: DecoderState) -> Tensor:
        """Read one token of every hypothesis: last (R,) ids, visible (R,) False at padding -> (B, K, D).

        Stores the keys and values of the token in `state`.
        """
        x, rotation = self._first_input(self.trg_word_emb(last.unsqueeze(1)), first=state.n_step)
        x, trg_mask = x.view(state.n_sentence, -1, x.size(-1)), SearchMask(state.open_slots(visible))
        src_mask = SearchMask(state.per_sentence["src_mask"])
        stream = Stream(x)
        for n, layer in enumerate(self.layer_stack):
            assert isinstance(layer, DecoderLayer)
            stream = layer.step(stream, n, trg_mask, src_mask, state, rotation)
        return normed(stream.x, self.layer_norm, stream.pending) if self.pre_norm else stream.total()


class Transformer(TranslationModel):
    """Encoder, decoder and projection onto the vocabulary."""

    packs = True

    def __init__(self, config: ModelConfig, n_src_vocab: int, n_trg_vocab: int, pad_idx: int) -> None:
        super().__init__(config, pad_idx, config.d_model)
        self.encoder = Encoder(config, n_src_vocab, pad_idx, self.emb_scale)
        self.decoder = Decoder(config, n_trg_vocab, pad_idx, self.emb_scale)
        self.prj_transform: nn.Module = nn.Identity()
        if config.prj_transform:
            self.prj_transform = nn.Linear(config.d_model, config.d_model, bias=False)
        self.lexical_attn = LexicalAttention(config) if config.lexical_attn else None
        self.trg_word_prj = nn.Linear(config.d_model, n_trg_vocab, bias=False)
        self.init_weights(config, config.d_model)

    def reset(self) -> None:
        """Initialise the layer that belongs to no sub-layer."""
        if isinstance(self.prj_transform, nn.Linear):
            nn.init.orthogonal_(self.prj_transform.weight)

    def recompute_activations(self) -> None:
        self.encoder.recompute = self.decoder.recompute = True

    def forward(self, src_seq: Tensor, trg_seq: Tensor, return_attns: bool = False) -> Tensor | tuple[Tensor, Attns]:
        hidden, attns = self._decode(src_seq, trg_seq, None, return_attns)
        logits = self.project(hidden)
        return logits if attns is None else (logits, attns)

    def decode_hidden(self, src_seq: Tensor, trg_seq: Tensor, packing: tuple[Packing, Packing] | None = None) -> Tensor:
        """(B, S), (B, T) -> the decoder's last states (B, T, D), ready for `project`."""
        hidden, _ = self._decode(src_seq, trg_seq, packing)
        return hidden

    def _decode(
        self, src_seq: Tensor, trg_seq: Tensor, packing: tuple[Packing, Packing] | None, return_attns: bool = False
    ) -> tuple[Tensor, Attns | None]:
        """`decode_hidden`, and with return_attns the attention weights of all layers."""
        src, trg = packing or (None, None)
        src_mask, trg_mask, dec_enc_mask = self._masks(src_seq, trg_seq, packing)
        enc_output, enc_slf_attns = self.encoder(src_seq, src_mask, return_attns)
        hidden, dec_slf_attns, dec_enc_attns = self.decoder(trg_seq, trg_mask, enc_output, dec_enc_mask, return_attns)
        memory = self._lexical_memory(src_seq, enc_output, src)
        rotation = self.decoder.enc_rotation(0, trg_seq.size(1), trg)
        hidden = self._projection_input(hidden, memory, dec_enc_mask, rotation)
        if not return_attns:
            return hidden, None
        return hidden, Attns(torch.stack(enc_slf_attns), torch.stack(dec_slf_attns), torch.stack(dec_enc_attns))

    def _lexical_memory(self, src_seq: Tensor, enc_output: Tensor, packing: Packing | None = None) -> dict[str, Tensor]:
        """Keys and values of lexical attention, which are embedded source words; empty without that attention."""
        if self.lexical_attn is None:
            return {}
        k = self.lexical_attn.keys(enc_output, self.decoder.enc_rotation(0, src_seq.size(1), packing))
        return {"lex_k": k, "lex_words": self.encoder.embed(src_seq)}

    def _projection_input(self, hidden: Tensor, memory: dict[str, Tensor], mask: Mask, rotation: Rotation) -> Tensor:
        """Input of `project`, (B, T, D), made of the decoder's output (B, T, D).

        memory, mask: keys, values and mask of lexical attention. rotation: of the target positions.
        """
        projection_input = linear(hidden, self.prj_transform)
        if self.lexical_attn is None:
            return projection_input
        lexical: Tensor = self.lexical_attn(hidden, memory["lex_k"], memory["lex_words"], mask, rotation)
        return projection_input + lexical

    @property
    def embeddings(self) -> tuple[WordEmbedding, WordEmbedding]:
        return self.encoder.src_word_emb, self.decoder.trg_word_emb

    @property
    def norm_before_projection(self) -> nn.Module | None:
        """The norm whose output `project` reads; None if another module comes between."""
        if self.lexical_attn is not None or not isinstance(self.prj_transform, nn.Identity):
            return None
        if self.decoder.pre_norm:
            return self.decoder.layer_norm
        last = self.decoder.layer_stack[-1]
        assert isinstance(last, DecoderLayer)
        return last.pos_ffn.layer_norm

    def _masks(
        self, src_seq: Tensor, trg_seq: Tensor, packing: tuple[Packing, Packing] | None = None
    ) -> tuple[Mask, Mask, Mask]:
        """Masks for all heads: of the source (B, 1, 1, S), of the target (B, 1, T, T), and of the source as seen from
        the target, which differs from the first in packed rows."""
        if packing:
            src, trg = packing
            dec_enc_mask = packed_mask(trg, src, causal=False)
            return packed_mask(src, src, causal=False), packed_mask(trg, trg, causal=True), dec_enc_mask
        src_mask = get_pad_mask(src_seq, self.pad_idx).unsqueeze(1)
        trg_mask = get_pad_mask(trg_seq, self.pad_idx) & get_subsequent_mask(trg_seq)
        return src_mask, trg_mask.unsqueeze(1), src_mask

    def start(self, src_seq: Tensor) -> DecoderState:
        memory = read_in_parts(self._encode, src_seq, self.pad_idx)
        memory["src_mask"] = get_pad_mask(src_seq, self.pad_idx).unsqueeze(1)
        return DecoderState(memory, {}, n_sentence=len(src_seq))

    def _encode(self, src_seq: Tensor) -> dict[str, Tensor]:
        """(B, S) -> keys and values that all decoding steps read, tensors by name, with B rows each."""
        enc_output, _ = self.encoder(src_seq, get_pad_mask(src_seq, self.pad_idx).unsqueeze(1))
        return self.decoder.start(enc_output) | self._lexical_memory(src_seq, enc_output)

    def step(self, last: Tensor, state: DecoderState) -> Tensor:
        hidden = self.decoder.step(last, last != self.pad_idx, state)
        rotation = self.decoder.enc_rotation(state.n_step, 1)
        state.n_step += 1
        hidden = self._projection_input(hidden, state.per_sentence, state.per_sentence["src_mask"], rotation)
        return self.project(hidden.flatten(0, 1))
