"""Peers of `bench_training.py`: models of other libraries, with the loss and the step their users write.

Each has the sizes of a recipe's model, one embedding for both languages and the output layer, and dropout where that
library puts it.
"""

import importlib
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.data.batches import Batch
from nmt.data.subwords import BOS, EOS, PAD
from nmt.extras import EXTRAS
from nmt.models.transformer.Modules import sinusoids
from nmt.recipe.model_options import ModelConfig

LONGEST = 512  # positions that peers with a table of them get


class TorchTransformer(nn.Module):
    """torch.nn.Transformer as torch's tutorial on translation builds a model around it."""

    position: Tensor

    def __init__(self, config: ModelConfig, n_vocab: int) -> None:
        super().__init__()
        d_model = config.d_model
        self.embedding = nn.Embedding(n_vocab, d_model, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        self.register_buffer("position", sinusoids(0, LONGEST, d_model))
        self.dropout = nn.Dropout(config.dropout)
        self.scale = math.sqrt(d_model)
        self.transformer = nn.Transformer(
            d_model,
            config.n_head,
            config.n_enc_layer,
            config.n_dec_layer,
            config.d_inner,
            config.dropout,
            batch_first=True,
        )

    def embed(self, seq: Tensor) -> Tensor:
        """(B, L) -> (B, L, D)"""
        embedded: Tensor = self.dropout(self.embedding(seq) * self.scale + self.position[: seq.size(1)])
        return embedded

    def forward(self, src_seq: Tensor, trg_seq: Tensor) -> Tensor:
        """(B, S), (B, T) -> logits (B, T, V)"""
        src_pad = src_seq == PAD
        later = torch.ones(trg_seq.size(1), trg_seq.size(1), dtype=torch.bool, device=trg_seq.device).triu(1)
        hidden = self.transformer(
            self.embed(src_seq),
            self.embed(trg_seq),
            tgt_mask=later,
            src_key_padding_mask=src_pad,
            tgt_key_padding_mask=trg_seq == PAD,
            memory_key_padding_mask=src_pad,
            tgt_is_causal=True,
        )
        return F.linear(hidden, self.embedding.weight)


class Marian(nn.Module):
    """Hugging Face's Marian, with random weights."""

    def __init__(self, config: ModelConfig, n_vocab: int) -> None:
        super().__init__()
        try:
            library: Any = importlib.import_module("transformers")
        except ModuleNotFoundError:
            line = f"pip install '{EXTRAS['huggingface']['transformers']}'"
            sys.exit(f"bench_training: error: no package 'transformers': {line}, or leave out marian")
        self.model = library.MarianMTModel(
            library.MarianConfig(
                vocab_size=n_vocab,
                d_model=config.d_model,
                encoder_layers=config.n_enc_layer,
                decoder_layers=config.n_dec_layer,
                encoder_attention_heads=config.n_head,
                decoder_attention_heads=config.n_head,
                encoder_ffn_dim=config.d_inner,
                decoder_ffn_dim=config.d_inner,
                dropout=config.dropout,
                attention_dropout=config.dropout,
                activation_function="relu",
                max_position_embeddings=LONGEST,
                scale_embedding=True,
                pad_token_id=PAD,
                bos_token_id=BOS,
                eos_token_id=EOS,
                decoder_start_token_id=BOS,
                use_cache=False,
            )
        )

    def forward(self, src_seq: Tensor, trg_seq: Tensor) -> Tensor:
        """(B, S), (B, T) -> logits (B, T, V)"""
        output = self.model(
            input_ids=src_seq,
            attention_mask=(src_seq != PAD).long(),
            decoder_input_ids=trg_seq,
            decoder_attention_mask=(trg_seq != PAD).long(),
        )
        logits: Tensor = output.logits
        return logits


PEERS: dict[str, Callable[[ModelConfig, int], nn.Module]] = {"torch": TorchTransformer, "marian": Marian}


class PeerStep:
    """One update of a peer: forward, cross-entropy, backward, clip, Adam."""

    def __init__(self, name: str, config: ModelConfig, n_vocab: int, smoothing: float, device: torch.device) -> None:
        self.model = PEERS[name](config, n_vocab).to(device).train()
        self.smoothing = smoothing
        self.adam = torch.optim.Adam(self.model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)

    def __call__(self, batch: Batch, autocast: Any) -> None:
        with autocast:
            logits = self.model(batch.src_seq, batch.trg_seq)
            loss = F.cross_entropy(
                logits.flatten(0, 1), batch.gold.flatten(), ignore_index=PAD, label_smoothing=self.smoothing
            )
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
