"""Figure 1 of the paper, whole: embeddings, the two stacks, the projection onto the vocabulary.

Classes, attributes and default shapes are those of the upstream layout, so that its weights load.
Shapes: B sentences, S source length, T target length, D `d_model`, V target vocabulary.
"""

import torch
from torch import Tensor, nn

from nmt.masks import Mask, Packing, SharedMask
from nmt.models.base import Attns, DecoderState, Recomputing, TranslationModel, WordEmbedding, read_in_parts
from nmt.models.layers import Dropout, Stream
from nmt.models.transformer.Layers import DecoderLayer, EncoderLayer
from nmt.models.transformer.Modules import Place, RotaryEncoding, extend, make_norm, sinusoids
from nmt.models.transformer.SubLayers import LexicalAttention, Rotation
from nmt.ops import linear, normed, packed_mask
from nmt.recipe.model_options import ModelConfig


def get_pad_mask(seq: Tensor, pad_idx: int) -> Tensor:
    """(B, L) ids -> (B, 1, L), True at what is not padding."""
    return (seq != pad_idx).unsqueeze(-2)


def get_subsequent_mask(seq: Tensor) -> Tensor:
    """(B, L) -> (1, L, L), True where a position may look: at itself and back."""
    n = seq.size(1)
    return torch.ones(1, n, n, dtype=torch.bool, device=seq.device).tril()


class PositionalEncoding(nn.Module):
    """Adds the paper's sinusoids. The table has n_position rows; further ones are made when first needed."""

    pos_table: Tensor
    more: Tensor

    def __init__(self, d_model: int, n_position: int) -> None:
        super().__init__()
        self.register_buffer("pos_table", sinusoids(0, n_position, d_model).unsqueeze(0))
        # Not in the state dict, whose table keeps its size whatever lengths were seen.
        self.register_buffer("more", torch.empty(1, 0, d_model), persistent=False)

    def forward(self, x: Tensor, first: Place = 0, scale: float = 1.0, packing: Packing | None = None) -> Tensor:
        """scale · x + positions first, first + 1, ..., or those of a packed row: (B, T, D) -> (B, T, D)"""
        if packing:
            rows = self._rows(0, packing.longest).index_select(1, packing.position)
        elif isinstance(first, Tensor):
            rows = torch.cat([self.pos_table, self.more], dim=1).index_select(1, first)
        else:
            rows = self._rows(first, first + x.size(1))
        return torch.add(rows, x, alpha=scale)

    def grow(self, n: int) -> None:
        """Know the first n positions."""
        n_known, n_more = self.pos_table.size(1), self.more.size(1)
        if n > n_known + n_more:
            self.more = extend(self.more, n_known + n_more, n, dim=1)

    def _rows(self, first: int, end: int) -> Tensor:
        n_known = self.pos_table.size(1)
        if end <= n_known:
            return self.pos_table[:, first:end]
        self.grow(end)
        return torch.cat([self.pos_table[:, first:], self.more[:, max(0, first - n_known) : end - n_known]], dim=1)


class LearnedPositions(nn.Module):
    """Adds a trained vector for each position; those beyond the table get its last row."""

    def __init__(self, d_model: int, n_position: int) -> None:
        super().__init__()
        self.pos_emb = nn.Embedding(n_position, d_model)

    def forward(self, x: Tensor, first: Place = 0, scale: float = 1.0, packing: Packing | None = None) -> Tensor:
        """scale · x + positions first, first + 1, ..., or those of a packed row: (B, T, D) -> (B, T, D)"""
        n = x.size(1)
        position = packing.position if packing else torch.arange(n, device=x.device) + first
        position = position.clamp(max=self.pos_emb.num_embeddings - 1)
        return torch.add(self.pos_emb(position), x, alpha=scale)


class _Stack(Recomputing):
    """Base of encoder and decoder: from embedded words to what enters the first layer, and the end."""

    position_enc: nn.Module
    layer_norm: nn.Module

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

    def _enter(self, x: Tensor, first: Place = 0, packing: Packing | None = None) -> tuple[Tensor, Rotation]:
        """Embedded words (B, T, D) at positions first, ... -> (B, T, D), and the rotation if positions are rotary."""
        rotation: Rotation = None
        if isinstance(self.position_enc, RotaryEncoding):
            rotation = self.position_enc(first, x.size(1), packing)
            x = self._scaled(x)
        else:
            x = self.position_enc(x, first, self.emb_scale, packing)
        x = self.dropout(x)
        return x if self.pre_norm else normed(x, self.layer_norm), rotation

    def _scaled(self, x: Tensor) -> Tensor:
        """Embedded words (B, T, D) at the size that the layers see."""
        return x if self.emb_scale == 1.0 else x * self.emb_scale

    def _leave(self, x: Tensor) -> Tensor:
        """With norm 'pre' nothing has normalised the sum of the layers yet."""
        return normed(x, self.layer_norm) if self.pre_norm else x


class Encoder(_Stack):
    """Reads the source."""

    def __init__(self, config: ModelConfig, n_src_vocab: int, pad_idx: int, emb_scale: float) -> None:
        super().__init__(config, emb_scale)
        self.src_word_emb = WordEmbedding(n_src_vocab, config.d_model, padding_idx=pad_idx)
        self.layer_stack = nn.ModuleList([EncoderLayer(config) for _ in range(config.n_enc_layer)])
        self.layer_norm = make_norm(config, config.d_model)

    def forward(
        self, src_seq: Tensor, src_mask: Mask, return_attns: bool = False, packing: Packing | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """(B, S), (B, 1, 1, S) -> (B, S, D), and each layer's weights (B, H, S, S) if asked for."""
        x, rotation = self._enter(self.src_word_emb(src_seq), packing=packing)
        attns = []
        for layer in self.layer_stack:
            x, attn = self.through(layer, x, src_mask, rotation, return_attns)
            attns.append(attn)
        return self._leave(x), attns if return_attns else []

    def embed(self, src_seq: Tensor) -> Tensor:
        """The words themselves, (B, S) -> (B, S, D), as they enter the first layer but for their positions."""
        return self._scaled(self.src_word_emb(src_seq))


class Decoder(_Stack):
    """Writes the target, looking at what it wrote and at the source."""

    def __init__(self, config: ModelConfig, n_trg_vocab: int, pad_idx: int, emb_scale: float) -> None:
        super().__init__(config, emb_scale)
        self.rotary_enc_attn = config.rotary_enc_attn
        self.trg_word_emb = WordEmbedding(n_trg_vocab, config.d_model, padding_idx=pad_idx)
        self.layer_stack = nn.ModuleList([DecoderLayer(config) for _ in range(config.n_dec_layer)])
        self.layer_norm = make_norm(config, config.d_model)

    def forward(
        self,
        trg_seq: Tensor,
        trg_mask: Mask,
        enc_output: Tensor,
        src_mask: Mask,
        return_attns: bool = False,
        packing: tuple[Packing, Packing] | None = None,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """(B, T), (B, 1, T, T), (B, S, D), (B, 1, 1, S) -> (B, T, D), and each layer's weights if asked for:
        over the target (B, H, T, T) and over the source (B, H, T, S)."""
        of_src, of_trg = packing or (None, None)
        x, rotation = self._enter(self.trg_word_emb(trg_seq), packing=of_trg)
        src_rotation = self.enc_rotation(0, enc_output.size(1), of_src)
        slf_attns, enc_attns = [], []
        for layer in self.layer_stack:
            x, slf_attn, enc_attn = self.through(
                layer, x, enc_output, trg_mask, src_mask, rotation, src_rotation, return_attns
            )
            slf_attns.append(slf_attn)
            enc_attns.append(enc_attn)
        return self._leave(x), slf_attns if return_attns else [], enc_attns if return_attns else []

    def start(self, enc_output: Tensor, src_mask: Tensor) -> dict[str, Tensor]:
        """Keys, values and mask of each sentence, for all steps: (B, S, D), (B, 1, 1, S) -> B-row tensors."""
        known, rotation = {"src_mask": src_mask}, self.enc_rotation(0, enc_output.size(1))
        for n, layer in enumerate(self.layer_stack):
            assert isinstance(layer, DecoderLayer)
            k, v = layer.enc_attn.keys_values(enc_output, rotation)
            # Laid out head by head, once: as they are, each step would do it again.
            known[f"enc_k.{n}"], known[f"enc_v.{n}"] = k.contiguous(), v.contiguous()
        return known

    def enc_rotation(self, first: Place, n: int, packing: Packing | None = None) -> Rotation:
        """Rotation of queries to the source and of its keys at n positions from `first` on, if they are turned."""
        if not self.rotary_enc_attn:
            return None
        assert isinstance(self.position_enc, RotaryEncoding)
        rotation: Rotation = self.position_enc(first, n, packing)
        return rotation

    def step(self, last: Tensor, visible: Tensor, state: DecoderState) -> Tensor:
        """Read one token of every hypothesis: last (R,) ids, visible (R,) False at padding -> (B, K, D).

        What later tokens need to know of this one goes into `state`.
        """
        x, rotation = self._enter(self.trg_word_emb(last.unsqueeze(1)), first=state.n_step)
        x, mask = x.view(state.n_sentence, -1, x.size(-1)), SharedMask(state.look_back(visible), in_search=True)
        src_mask = SharedMask(state.per_sentence["src_mask"], in_search=True)
        stream = Stream(x)
        for n, layer in enumerate(self.layer_stack):
            assert isinstance(layer, DecoderLayer)
            stream = layer.step(stream, n, mask, src_mask, state, rotation)
        return normed(stream.x, self.layer_norm, stream.more) if self.pre_norm else stream.total()


class Transformer(TranslationModel):
    """The whole model."""

    packs = True

    def __init__(self, config: ModelConfig, n_src_vocab: int, n_trg_vocab: int, pad_idx: int) -> None:
        super().__init__()
        self.pad_idx = pad_idx
        # Section 3.4: with a shared matrix, either the embeddings are multiplied by sqrt(d_model),
        # as in the paper, or the logits by its inverse.
        shared = config.trg_emb_prj_weight_sharing
        emb_scale = config.d_model**0.5 if shared and config.scale_emb_or_prj == "emb" else 1.0
        self.logit_scale = config.d_model**-0.5 if shared and config.scale_emb_or_prj == "prj" else 1.0
        self.encoder = Encoder(config, n_src_vocab, pad_idx, emb_scale)
        self.decoder = Decoder(config, n_trg_vocab, pad_idx, emb_scale)
        self.prj_transform: nn.Module = nn.Identity()
        if config.prj_transform:
            self.prj_transform = nn.Linear(config.d_model, config.d_model, bias=False)
        self.lexical_attn = LexicalAttention(config) if config.lexical_attn else None
        self.trg_word_prj = nn.Linear(config.d_model, n_trg_vocab, bias=False)
        self.draw_weights(config, config.d_model)

    def reset(self) -> None:
        """First weights of what is no sub-layer."""
        if isinstance(self.prj_transform, nn.Linear):
            nn.init.orthogonal_(self.prj_transform.weight)

    def forward(self, src_seq: Tensor, trg_seq: Tensor, return_attns: bool = False) -> Tensor | tuple[Tensor, Attns]:
        hidden, attns = self._decode(src_seq, trg_seq, return_attns)
        logits = self.project(hidden)
        return logits if attns is None else (logits, attns)

    def decode_hidden(self, src_seq: Tensor, trg_seq: Tensor, packing: tuple[Packing, Packing] | None = None) -> Tensor:
        """(B, S), (B, T) -> the decoder's last states (B, T, D), ready for `project`."""
        if packing:
            return self._decode_packed(src_seq, trg_seq, *packing)
        hidden, _ = self._decode(src_seq, trg_seq)
        return hidden

    def _decode(self, src_seq: Tensor, trg_seq: Tensor, return_attns: bool = False) -> tuple[Tensor, Attns | None]:
        """`decode_hidden` of padded sentences, and where all layers looked if asked for."""
        src_mask, trg_mask = self._masks(src_seq, trg_seq)
        enc_output, enc_slf_attns = self.encoder(src_seq, src_mask, return_attns)
        hidden, dec_slf_attns, enc_attns = self.decoder(trg_seq, trg_mask, enc_output, src_mask, return_attns)
        rotation = self.decoder.enc_rotation(0, trg_seq.size(1))
        hidden = self._end(hidden, self._dictionary(src_seq, enc_output), src_mask, rotation)
        if not return_attns:
            return hidden, None
        return hidden, Attns(torch.stack(enc_slf_attns), torch.stack(dec_slf_attns), torch.stack(enc_attns))

    def _decode_packed(self, src_seq: Tensor, trg_seq: Tensor, src: Packing, trg: Packing) -> Tensor:
        """`decode_hidden` of sentences that lie end to end."""
        enc_output, _ = self.encoder(src_seq, packed_mask(src, src, causal=False), packing=src)
        own, across = packed_mask(trg, trg, causal=True), packed_mask(trg, src, causal=False)
        hidden, *_ = self.decoder(trg_seq, own, enc_output, across, packing=(src, trg))
        known = self._dictionary(src_seq, enc_output, src)
        return self._end(hidden, known, across, self.decoder.enc_rotation(0, trg_seq.size(1), trg))

    def _dictionary(self, src_seq: Tensor, enc_output: Tensor, packing: Packing | None = None) -> dict[str, Tensor]:
        """Keys of lexical attention, if there is any, and the words as they enter the encoder."""
        if self.lexical_attn is None:
            return {}
        k = self.lexical_attn.keys(enc_output, self.decoder.enc_rotation(0, src_seq.size(1), packing))
        return {"lex_k": k, "lex_words": self.encoder.embed(src_seq)}

    def _end(self, hidden: Tensor, known: dict[str, Tensor], mask: Mask, rotation: Rotation) -> Tensor:
        """From the decoder's states (B, T, D) to those that `project` takes.

        known: what lexical attention looks at, where `mask` lets it. rotation: that of the states' positions.
        """
        end = linear(hidden, self.prj_transform)
        if self.lexical_attn is None:
            return end
        found: Tensor = self.lexical_attn(hidden, known["lex_k"], known["lex_words"], mask, rotation)
        return end + found

    @property
    def embeddings(self) -> tuple[WordEmbedding, WordEmbedding]:
        return self.encoder.src_word_emb, self.decoder.trg_word_emb

    @property
    def ends_in_norm(self) -> nn.Module | None:
        """The norm that has made what `project` takes, if nothing comes after it."""
        if self.lexical_attn is not None or not isinstance(self.prj_transform, nn.Identity):
            return None
        if self.decoder.pre_norm:
            return self.decoder.layer_norm
        last = self.decoder.layer_stack[-1]
        assert isinstance(last, DecoderLayer)
        return last.pos_ffn.layer_norm

    def _masks(self, src_seq: Tensor, trg_seq: Tensor) -> tuple[Tensor, Tensor]:
        """Masks for all heads: (B, 1, 1, S) and (B, 1, T, T)."""
        trg_mask = get_pad_mask(trg_seq, self.pad_idx) & get_subsequent_mask(trg_seq)
        return get_pad_mask(src_seq, self.pad_idx).unsqueeze(1), trg_mask.unsqueeze(1)

    def start(self, src_seq: Tensor) -> DecoderState:
        known = read_in_parts(self._encode, src_seq, self.pad_idx)
        return DecoderState(known, {}, n_sentence=len(src_seq))

    def _encode(self, src_seq: Tensor) -> dict[str, Tensor]:
        """(B, S) -> what is known of each sentence before its first target token: B-row tensors."""
        src_mask = get_pad_mask(src_seq, self.pad_idx).unsqueeze(1)
        enc_output, _ = self.encoder(src_seq, src_mask)
        return self.decoder.start(enc_output, src_mask) | self._dictionary(src_seq, enc_output)

    def step(self, last: Tensor, state: DecoderState) -> Tensor:
        hidden = self.decoder.step(last, last != self.pad_idx, state)
        rotation = self.decoder.enc_rotation(state.n_step, 1)
        state.n_step += 1
        hidden = self._end(hidden, state.per_sentence, state.per_sentence["src_mask"], rotation)
        return self.project(hidden.flatten(0, 1))
