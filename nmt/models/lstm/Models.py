"""The recurrent models: encoder and decoder without attention, with the source at every step, and with attention.

One decoder serves all three; they differ in what of the source enters it beside the words, and what stands beside its
state before the output layer.

Shapes: B sentences, S source length, T target length, K hypotheses a sentence, R = B·K rows, D `d_model`, E `d_emb`,
V target vocabulary. N is T where a whole target is read, and K where one token of each hypothesis is.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nmt.masks import Packing
from nmt.models.base import Attns, DecoderState, TranslationModel, WordEmbedding
from nmt.models.lstm.Layers import DecoderLayer, EncoderLayer, turned
from nmt.models.lstm.Modules import GeneralScore, Recurrence, State
from nmt.models.lstm.SubLayers import Lexicon, Readout, SourceAttention
from nmt.recipe.model_options import ModelConfig

Known = Mapping[str, Tensor]  # what a decoder may know of the source, by name, first dimension B


class Encoder(nn.Module):
    """Reads the source."""

    def __init__(
        self, config: ModelConfig, n_src_vocab: int, pad_idx: int, dropouts: list[float], emb_scale: float
    ) -> None:
        super().__init__()
        self.pad_idx, self.emb_scale = pad_idx, emb_scale
        d_emb = config.d_emb or config.d_model
        self.src_word_emb = WordEmbedding(n_src_vocab, d_emb, padding_idx=pad_idx)
        widths = [d_emb] + [config.d_model] * (config.n_rnn_layer - 1)
        self.layer_stack = nn.ModuleList([EncoderLayer(config, *both) for both in zip(widths, dropouts, strict=True)])

    def forward(self, src_seq: Tensor) -> tuple[Tensor, Tensor, list[State]]:
        """(B, S) -> the embedded words, (B, S, E), the states at all places, (B, S, D), and each layer's last, from
        which the decoder begins."""
        visible = src_seq != self.pad_idx
        words = self.src_word_emb(src_seq) * self.emb_scale
        x, mirror, lasts = words, turned(visible), []
        for layer in self.layer_stack:
            x, last = layer(x, visible, mirror)
            lasts.append(last)
        return words, x, lasts


class Decoder(nn.Module):
    """Writes the target from the encoder's last state, and from nothing else (Sutskever et al. 2014)."""

    def __init__(
        self, config: ModelConfig, n_trg_vocab: int, pad_idx: int, dropouts: list[float], emb_scale: float, d_out: int
    ) -> None:
        super().__init__()
        d_emb = config.d_emb or config.d_model
        self.emb_scale, self.d_out = emb_scale, d_out
        self.trg_word_emb = WordEmbedding(n_trg_vocab, d_emb, padding_idx=pad_idx)
        widths = [d_emb + self.d_entering(config)] + [config.d_model] * (config.n_rnn_layer - 1)
        self.layer_stack = nn.ModuleList([DecoderLayer(config, *both) for both in zip(widths, dropouts, strict=True)])
        self.readout = Readout(config, self.d_beside(config), d_out)

    def d_entering(self, config: ModelConfig) -> int:
        """Width of what enters beside the word."""
        return 0

    def d_beside(self, config: ModelConfig) -> int:
        """Width of what stands beside the state before the output layer."""
        return 0

    def embed(self, seq: Tensor) -> Tensor:
        """(...) ids -> the words as they enter, (..., E)"""
        words: Tensor = self.trg_word_emb(seq) * self.emb_scale
        return words

    def know(self, words: Tensor, enc_output: Tensor, last: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Tensors of a source that every step needs: (B, S, E), (B, S, D), (B, D), (B, 1, S) -> tensors by name."""
        return {}

    def enter(self, words: Tensor, known: Known) -> Tensor:
        """Embedded words, (B, N, E), and what enters beside them."""
        return words

    def beside(self, h: Tensor, known: Known) -> tuple[Tensor | None, Tensor | None]:
        """Vectors beside the states h, (B, N, D), and the weights (B, N, S) if it was found by attention."""
        return None, None

    def end(self, found: Tensor, attn: Tensor | None, known: Known) -> Tensor:
        """Input of the output layer, made of the readout, (B, N, d_out), and the weights: (B, N, d_out)"""
        return found

    def forward(self, trg_seq: Tensor, states: list[State], known: Known) -> tuple[Tensor, Tensor | None]:
        """(B, T), states before it -> (B, T, d_out), and weights over the source, (B, T, S), if there are any."""
        x = self.enter(self.embed(trg_seq), known)
        for layer, state in zip(self.layer_stack, states, strict=True):
            x = layer(x, state)
        beside, attn = self.beside(x, known)
        return self.end(self.readout(x, beside), attn, known), attn

    def step(self, words: Tensor, states: list[State], known: Known, n: int) -> tuple[Tensor, Tensor, list[State]]:
        """One token of each row: embedded (R, E) -> what enters the output layer and the readout, (B, K, d_out) each,
        and the states after it. n: the sentences, B."""
        x = self.enter(words.view(n, -1, words.size(-1)), known).flatten(0, 1)
        h, after = self._recur(x, states)
        h = h.view(n, -1, h.size(-1))
        beside, attn = self.beside(h, known)
        found = self.readout(h, beside)
        return self.end(found, attn, known), found, after

    def _recur(
        self, x: Tensor, states: list[State], kept: list[Tensor | None] | None = None
    ) -> tuple[Tensor, list[State]]:
        """Through all layers: (R, d_in) -> (R, D) and the states."""
        after: list[State] = []
        for number, (layer, state) in enumerate(zip(self.layer_stack, states, strict=True)):
            assert isinstance(layer, DecoderLayer)
            after.append(layer.step(x, state, kept[number] if kept else None))
            x = after[-1][0]
        return x, after


class PeekyDecoder(Decoder):
    """Sees the encoder's last state at every step: beside the word, and beside its own state (Cho et al. 2014)."""

    def d_entering(self, config: ModelConfig) -> int:
        return config.d_model

    d_beside = d_entering

    def know(self, words: Tensor, enc_output: Tensor, last: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"last": last}

    def enter(self, words: Tensor, known: Known) -> Tensor:
        return torch.cat([words, _everywhere(known["last"], words)], 2)

    def beside(self, h: Tensor, known: Known) -> tuple[Tensor | None, Tensor | None]:
        return _everywhere(known["last"], h), None


class AttentionDecoder(Decoder):
    """Looks at all states of the encoder at every step (Bahdanau et al. 2015, Luong et al. 2015)."""

    def __init__(
        self, config: ModelConfig, n_trg_vocab: int, pad_idx: int, dropouts: list[float], emb_scale: float, d_out: int
    ) -> None:
        super().__init__(config, n_trg_vocab, pad_idx, dropouts, emb_scale, d_out)
        self.enc_attn = SourceAttention(config)
        self.lexicon = Lexicon(config, d_out) if config.lexical_attn else None

    def d_beside(self, config: ModelConfig) -> int:
        return config.d_model

    def know(self, words: Tensor, enc_output: Tensor, last: Tensor, mask: Tensor) -> dict[str, Tensor]:
        known = {"enc_k": self.enc_attn.keys(enc_output), "enc_v": enc_output, "src_mask": mask}
        return known if self.lexicon is None else {**known, "words": words}

    def beside(self, h: Tensor, known: Known) -> tuple[Tensor | None, Tensor | None]:
        context: Tensor
        context, attn = self.enc_attn(h, known["enc_k"], known["enc_v"], known["src_mask"])
        return context, attn

    def end(self, found: Tensor, attn: Tensor | None, known: Known) -> Tensor:
        if self.lexicon is None:
            return found
        looked_up: Tensor = self.lexicon(attn, known["words"])
        return found + looked_up


class FeedingDecoder(AttentionDecoder):
    """Attention whose result also enters the next step, so that it knows where it has looked: input feeding (Luong et
    al. 2015, section 3.3)."""

    def d_entering(self, config: ModelConfig) -> int:
        return self.d_out

    def forward(self, trg_seq: Tensor, states: list[State], known: Known) -> tuple[Tensor, Tensor | None]:
        words = self.embed(trg_seq)
        found, every, attns = words.new_zeros(len(words), 1, self.d_out), [], []
        kept: list[Tensor | None] = []
        for place in range(words.size(1)):
            x = torch.cat([words[:, place : place + 1], found.to(words.dtype)], 2)
            if not place:
                kept = self._draw(x, states)
            h, states = self._recur(x.squeeze(1), states, kept)
            beside, attn = self.beside(h.unsqueeze(1), known)
            found = self.readout(h.unsqueeze(1), beside, kept[-1])
            every.append(found)
            attns.append(attn)
        attn = torch.cat([attn for attn in attns if attn is not None], 1)
        return self.end(torch.cat(every, 1), attn, known), attn

    def _draw(self, x: Tensor, states: list[State]) -> list[Tensor | None]:
        """Dropout of a sentence in each layer and the readout, where that is drawn once."""
        widths = [x, *(state[0].unsqueeze(1) for state in states[1:]), x.new_empty(len(x), 1, self.d_out)]
        layers = [layer for layer in self.layer_stack if isinstance(layer, DecoderLayer)]
        dropouts = [*(layer.dropout for layer in layers), self.readout.dropout]
        return [dropout.draw(width) for dropout, width in zip(dropouts, widths, strict=True)]


class Seq2Seq(TranslationModel):
    """Two recurrent stacks and the projection onto the vocabulary; the decoder decides which of the models it is."""

    def __init__(self, config: ModelConfig, n_src_vocab: int, n_trg_vocab: int, pad_idx: int) -> None:
        super().__init__()
        self.pad_idx = pad_idx
        d_emb = config.d_emb or config.d_model
        shared = config.trg_emb_prj_weight_sharing
        d_out = d_emb if shared else config.d_model
        emb_scale = d_emb**0.5 if shared and config.scale_emb_or_prj == "emb" else 1.0
        self.logit_scale = d_emb**-0.5 if shared and config.scale_emb_or_prj == "prj" else 1.0
        emb_dropout = config.dropout if config.emb_dropout is None else config.emb_dropout
        dropouts = [emb_dropout] + [config.dropout] * (config.n_rnn_layer - 1)
        self.attends = config.architecture == "attention"
        self.encoder = Encoder(config, n_src_vocab, pad_idx, dropouts, emb_scale)
        self.decoder = _kind(config)(config, n_trg_vocab, pad_idx, dropouts, emb_scale, d_out)
        self.trg_word_prj = nn.Linear(d_out, n_trg_vocab, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        for module in self.modules():
            if isinstance(module, Recurrence):
                module.reset(config.forget_bias)
            elif isinstance(module, (GeneralScore, Lexicon)):
                module.reset()
        if config.emb_init != "xavier":  # what needs the training pairs is the trainer's to fill in
            for embedding in self.embeddings:
                nn.init.normal_(embedding.weight, std=d_emb**-0.5)
        if shared:
            self.trg_word_prj.weight = self.decoder.trg_word_emb.weight
        if config.emb_src_trg_weight_sharing:
            self.encoder.src_word_emb.weight = self.decoder.trg_word_emb.weight

    @property
    def embeddings(self) -> tuple[WordEmbedding, WordEmbedding]:
        return self.encoder.src_word_emb, self.decoder.trg_word_emb

    def forward(self, src_seq: Tensor, trg_seq: Tensor, return_attns: bool = False) -> Tensor | tuple[Tensor, Attns]:
        known, states = self._read(src_seq)
        hidden, attn = self.decoder(trg_seq, states, known)
        logits = self.project(hidden)
        return (logits, Attns(None, None, None if attn is None else attn[None, :, None])) if return_attns else logits

    def decode_hidden(self, src_seq: Tensor, trg_seq: Tensor, packing: tuple[Packing, Packing] | None = None) -> Tensor:
        assert packing is None  # the recipe refuses it
        known, states = self._read(src_seq)
        hidden: Tensor
        hidden, _ = self.decoder(trg_seq, states, known)
        return hidden

    def start(self, src_seq: Tensor) -> DecoderState:
        known, states = self._read(src_seq)
        per_row = {f"{part}.{n}": tensor for n, state in enumerate(states) for part, tensor in enumerate(state)}
        if isinstance(self.decoder, FeedingDecoder):
            per_row["found"] = states[0][0].new_zeros(len(src_seq), self.decoder.d_out)
        return DecoderState(known, per_row, n_sentence=len(src_seq))

    def step(self, last: Tensor, state: DecoderState) -> Tensor:
        words = self.decoder.embed(last)
        if isinstance(self.decoder, FeedingDecoder):
            words = torch.cat([words, state.per_row["found"]], 1)
        n_layer = len(self.decoder.layer_stack)
        before = [self._layer_state(state, n) for n in range(n_layer)]
        hidden, found, after = self.decoder.step(words, before, state.per_sentence, state.n_sentence)
        state.per_row = {f"{part}.{n}": tensor for n, its in enumerate(after) for part, tensor in enumerate(its)}
        if isinstance(self.decoder, FeedingDecoder):
            state.per_row["found"] = found.flatten(0, 1)
        state.n_step += 1
        return self.project(hidden.flatten(0, 1))

    def _read(self, src_seq: Tensor) -> tuple[dict[str, Tensor], list[State]]:
        """(B, S) -> what the decoder may know of the source, and the states it begins with."""
        words, enc_output, states = self.encoder(src_seq)
        mask = (src_seq != self.pad_idx).unsqueeze(1)
        return self.decoder.know(words, enc_output, states[-1][0], mask), states

    @staticmethod
    def _layer_state(state: DecoderState, n: int) -> State:
        """The state of layer n, as `start` named its parts."""
        return tuple(state.per_row[f"{part}.{n}"] for part in range(2) if f"{part}.{n}" in state.per_row)


def _kind(config: ModelConfig) -> type[Decoder]:
    if config.architecture == "attention":
        return FeedingDecoder if config.input_feeding else AttentionDecoder
    return PeekyDecoder if config.architecture == "peeky" else Decoder


def _everywhere(last: Tensor, x: Tensor) -> Tensor:
    """(B, D) at each of the N places of x, (B, N, …): (B, N, D)"""
    return last.to(x.dtype).unsqueeze(1).expand(-1, x.size(1), -1)
