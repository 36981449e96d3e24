"""Recurrent models: encoder and decoder without attention, with the source at every step, and with attention.

One base decoder serves all three. They differ in what the first layer reads besides the words, and in the context that
the readout reads besides the state.

Shapes: B sentences, S source length, T target length, K hypotheses a sentence, R = B·K rows, D `d_model`, E `d_emb`,
V target vocabulary. N is T where a whole target is read, and K where one token of each hypothesis is.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nmt.masks import Packing
from nmt.models.base import Attns, DecoderState, TranslationModel, WordEmbedding
from nmt.models.lstm.Layers import DecoderLayer, EncoderLayer, reversal
from nmt.models.lstm.Modules import State
from nmt.models.lstm.SubLayers import Lexicon, Readout, SourceAttention
from nmt.recipe.model_options import ModelConfig

Memory = Mapping[str, Tensor]  # tensors of the source that a decoder reads, by name, first dimension B


class Encoder(nn.Module):
    """Recurrent stack that reads the source."""

    def __init__(self, config: ModelConfig, n_src_vocab: int, pad_idx: int, emb_scale: float) -> None:
        super().__init__()
        self.pad_idx, self.emb_scale = pad_idx, emb_scale
        d_emb = config.d_emb or config.d_model
        self.src_word_emb = WordEmbedding(n_src_vocab, d_emb, padding_idx=pad_idx)
        widths = _widths_and_dropouts(config, d_emb)
        self.layer_stack = nn.ModuleList([EncoderLayer(config, d_in, dropout) for d_in, dropout in widths])

    def forward(self, src_seq: Tensor) -> tuple[Tensor, Tensor, list[State]]:
        """(B, S) -> embedded words, (B, S, E), states at all positions, (B, S, D), and the last state of each layer,
        with which the decoder starts."""
        visible = src_seq != self.pad_idx
        words = self.src_word_emb(src_seq) * self.emb_scale
        enc_output, reverse, last_states = words, reversal(visible), []
        for layer in self.layer_stack:
            enc_output, last_state = layer(enc_output, visible, reverse)
            last_states.append(last_state)
        return words, enc_output, last_states


class Decoder(nn.Module):
    """Decoder that gets only its initial states from the encoder (Sutskever et al. 2014)."""

    def __init__(self, config: ModelConfig, n_trg_vocab: int, pad_idx: int, emb_scale: float, d_out: int) -> None:
        super().__init__()
        d_emb = config.d_emb or config.d_model
        self.emb_scale, self.d_out = emb_scale, d_out
        self.trg_word_emb = WordEmbedding(n_trg_vocab, d_emb, padding_idx=pad_idx)
        # The readout reads a context besides the state, except in seq2seq. The first layer reads besides the word the
        # same context in peeky models, and the last readout with input feeding.
        d_context = 0 if config.architecture == "seq2seq" else config.d_model
        d_extra = d_context if config.architecture == "peeky" else (d_out if config.input_feeding else 0)
        widths = _widths_and_dropouts(config, d_emb + d_extra)
        self.layer_stack = nn.ModuleList([DecoderLayer(config, d_in, dropout) for d_in, dropout in widths])
        self.readout = Readout(config, d_context, d_out)
        self.lexicon: Lexicon | None = None  # of decoders with attention

    def embed(self, seq: Tensor) -> Tensor:
        """(...) ids -> scaled embeddings, (..., E)"""
        words: Tensor = self.trg_word_emb(seq) * self.emb_scale
        return words

    def memory(self, words: Tensor, enc_output: Tensor, last: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Tensors of the source that every step reads: (B, S, E), (B, S, D), (B, D), (B, 1, S) -> tensors by name."""
        return {}

    def inputs(self, words: Tensor, memory: Memory) -> Tensor:
        """Input of the first layer: embedded words, (B, N, E), and what it reads besides them."""
        return words

    def context(self, h: Tensor, memory: Memory) -> tuple[Tensor | None, Tensor | None]:
        """Context of the states h, (B, N, D), and the attention weights, (B, N, S), if there are any."""
        return None, None

    def projection_input(self, readout: Tensor, attn: Tensor | None, memory: Memory) -> Tensor:
        """Input of the output layer: the readout, (B, N, d_out), and what lexical attention adds by these weights."""
        return readout if self.lexicon is None else readout + self.lexicon(attn, memory["words"])

    def forward(self, trg_seq: Tensor, states: list[State], memory: Memory) -> tuple[Tensor, Tensor | None]:
        """(B, T), states before it -> (B, T, d_out), and the attention weights, (B, T, S), if there are any."""
        x = self.inputs(self.embed(trg_seq), memory)
        for layer, state in zip(self.layer_stack, states, strict=True):
            x = layer(x, state)
        context, attn = self.context(x, memory)
        return self.projection_input(self.readout(x, context), attn, memory), attn

    def step(
        self, words: Tensor, states: list[State], memory: Memory, dropout_masks: Sequence[Tensor | None] = ()
    ) -> tuple[Tensor, Tensor | None, list[State]]:
        """Read one token of each row: embedded words (B, K, E) -> readout (B, K, d_out), attention weights (B, K, S) if
        there are any, and the new states. dropout_masks: of `SentenceDropout`, for all layers and the readout."""
        *layer_masks, readout_mask = dropout_masks or [None] * (len(self.layer_stack) + 1)
        x = self.inputs(words, memory).flatten(0, 1)
        new_states: list[State] = []
        for layer, state, layer_mask in zip(self.layer_stack, states, layer_masks, strict=True):
            assert isinstance(layer, DecoderLayer)
            new_states.append(layer.step(x, state, layer_mask))
            x = new_states[-1][0]
        h = x.view(*words.shape[:2], -1)
        context, attn = self.context(h, memory)
        return self.readout(h, context, readout_mask), attn, new_states


class PeekyDecoder(Decoder):
    """Decoder that reads the encoder's last state at every step, with the word and in the readout (Cho et al. 2014)."""

    def memory(self, words: Tensor, enc_output: Tensor, last: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"last": last}

    def inputs(self, words: Tensor, memory: Memory) -> Tensor:
        return torch.cat([words, _repeat(memory["last"], words)], 2)

    def context(self, h: Tensor, memory: Memory) -> tuple[Tensor | None, Tensor | None]:
        return _repeat(memory["last"], h), None


class AttentionDecoder(Decoder):
    """Decoder that attends to all states of the encoder at every step (Bahdanau et al. 2015, Luong et al. 2015)."""

    def __init__(self, config: ModelConfig, n_trg_vocab: int, pad_idx: int, emb_scale: float, d_out: int) -> None:
        super().__init__(config, n_trg_vocab, pad_idx, emb_scale, d_out)
        self.enc_attn = SourceAttention(config)
        self.lexicon = Lexicon(config, d_out) if config.lexical_attn else None

    def memory(self, words: Tensor, enc_output: Tensor, last: Tensor, mask: Tensor) -> dict[str, Tensor]:
        memory = {"enc_v": enc_output, "src_mask": mask}
        if (keys := self.enc_attn.score.keys(enc_output)) is not enc_output:  # they are the same with score dot
            memory["enc_k"] = keys
        return memory if self.lexicon is None else {**memory, "words": words}

    def context(self, h: Tensor, memory: Memory) -> tuple[Tensor | None, Tensor | None]:
        values = memory["enc_v"]
        found: tuple[Tensor, Tensor] = self.enc_attn(h, memory.get("enc_k", values), values, memory["src_mask"])
        return found


class FeedingDecoder(AttentionDecoder):
    """Attention with input feeding: the readout also enters the next step, which so depends on earlier attention (Luong
    et al. 2015, section 3.3)."""

    def forward(self, trg_seq: Tensor, states: list[State], memory: Memory) -> tuple[Tensor, Tensor | None]:
        words = self.embed(trg_seq)
        readout, readouts, attns = words.new_zeros(len(words), 1, self.d_out), [], []
        dropout_masks = self._draw_dropout_masks(torch.cat([words[:, :1], readout], 2), states)
        for t in range(words.size(1)):
            x = torch.cat([words[:, t : t + 1], readout.to(words.dtype)], 2)
            readout, attn, states = self.step(x, states, memory, dropout_masks)
            readouts.append(readout)
            attns.append(attn)
        attn = torch.cat([attn for attn in attns if attn is not None], 1)
        return self.projection_input(torch.cat(readouts, 1), attn, memory), attn

    def _draw_dropout_masks(self, x: Tensor, states: list[State]) -> list[Tensor | None]:
        """Dropout masks of the layers and the readout; None where each position draws its own."""
        inputs = [x, *(state[0].unsqueeze(1) for state in states[1:]), x.new_empty(len(x), 1, self.d_out)]
        layers = [layer for layer in self.layer_stack if isinstance(layer, DecoderLayer)]
        dropouts = [*(layer.dropout for layer in layers), self.readout.dropout]
        return [dropout.draw_mask(tensor) for dropout, tensor in zip(dropouts, inputs, strict=True)]


class Seq2Seq(TranslationModel):
    """Recurrent encoder, decoder and projection onto the vocabulary. The recipe chooses the class of the decoder."""

    def __init__(self, config: ModelConfig, n_src_vocab: int, n_trg_vocab: int, pad_idx: int) -> None:
        d_emb = config.d_emb or config.d_model
        super().__init__(config, pad_idx, d_emb)
        d_out = d_emb if config.trg_emb_prj_weight_sharing else config.d_model
        self.attends = config.architecture == "attention"
        self.encoder = Encoder(config, n_src_vocab, pad_idx, self.emb_scale)
        decoder_class: type[Decoder] = PeekyDecoder if config.architecture == "peeky" else Decoder
        if self.attends:
            decoder_class = FeedingDecoder if config.input_feeding else AttentionDecoder
        self.decoder = decoder_class(config, n_trg_vocab, pad_idx, self.emb_scale, d_out)
        self.trg_word_prj = nn.Linear(d_out, n_trg_vocab, bias=False)
        self.init_weights(config, d_emb)

    @property
    def embeddings(self) -> tuple[WordEmbedding, WordEmbedding]:
        return self.encoder.src_word_emb, self.decoder.trg_word_emb

    def forward(self, src_seq: Tensor, trg_seq: Tensor, return_attns: bool = False) -> Tensor | tuple[Tensor, Attns]:
        memory, states = self._encode(src_seq)
        hidden, attn = self.decoder(trg_seq, states, memory)
        logits = self.project(hidden)
        return (logits, Attns(None, None, None if attn is None else attn[None, :, None])) if return_attns else logits

    def decode_hidden(self, src_seq: Tensor, trg_seq: Tensor, packing: tuple[Packing, Packing] | None = None) -> Tensor:
        assert packing is None  # the recipe refuses it
        memory, states = self._encode(src_seq)
        hidden: Tensor
        hidden, _ = self.decoder(trg_seq, states, memory)
        return hidden

    def start(self, src_seq: Tensor) -> DecoderState:
        memory, states = self._encode(src_seq)
        per_row = {f"{part}.{n}": tensor for n, state in enumerate(states) for part, tensor in enumerate(state)}
        if isinstance(self.decoder, FeedingDecoder):
            per_row["readout"] = states[0][0].new_zeros(len(src_seq), self.decoder.d_out)
        return DecoderState(memory, per_row, n_sentence=len(src_seq))

    def step(self, last: Tensor, state: DecoderState) -> Tensor:
        words = self.decoder.embed(last.view(state.n_sentence, -1))  # (B, K, E)
        if isinstance(self.decoder, FeedingDecoder):
            words = torch.cat([words, state.per_row["readout"].view(*words.shape[:2], -1)], 2)
        states = [
            tuple(state.per_row[f"{part}.{n}"] for part in range(2) if f"{part}.{n}" in state.per_row)
            for n in range(len(self.decoder.layer_stack))
        ]
        readout, attn, states = self.decoder.step(words, states, state.per_sentence)
        state.per_row = {f"{part}.{n}": tensor for n, parts in enumerate(states) for part, tensor in enumerate(parts)}
        if isinstance(self.decoder, FeedingDecoder):
            state.per_row["readout"] = readout.flatten(0, 1)
        state.n_step += 1
        hidden = self.decoder.projection_input(readout, attn, state.per_sentence)
        return self.project(hidden.flatten(0, 1))

    def _encode(self, src_seq: Tensor) -> tuple[dict[str, Tensor], list[State]]:
        """(B, S) -> memory of the source for the decoder, and its initial states."""
        words, enc_output, states = self.encoder(src_seq)
        mask = (src_seq != self.pad_idx).unsqueeze(1)
        return self.decoder.memory(words, enc_output, states[-1][0], mask), states


def _widths_and_dropouts(config: ModelConfig, d_in: int) -> list[tuple[int, float]]:
    """Width of the input of each layer of a stack, and dropout on it. d_in: width for the first layer."""
    emb_dropout = config.dropout if config.emb_dropout is None else config.emb_dropout
    return [(d_in, emb_dropout)] + [(config.d_model, config.dropout)] * (config.n_rnn_layer - 1)


def _repeat(last: Tensor, x: Tensor) -> Tensor:
    """Repeat (B, D) at each of the N positions of x, (B, N, …): (B, N, D)"""
    return last.to(x.dtype).unsqueeze(1).expand(-1, x.size(1), -1)
