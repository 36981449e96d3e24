"""Peers of `bench_training.py`: models of other libraries, with the usual loss and training step of their users.

Each has the sizes of a recipe's model, one embedding for both languages and the output layer, and the dropout of its
library. `bench_quality.py` runs this file to train a peer for a fixed time.
"""

import math
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

from nmt.data.batches import Batch, length_batches, make_batch, pad
from nmt.data.corpus import Corpus, Prepared
from nmt.data.lines import write_lines
from nmt.data.subwords import BOS, EOS, PAD
from nmt.export import huggingface
from nmt.models.transformer.Modules import sinusoids
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.reader import read_recipe

LONGEST = 512  # positions in the table of a peer that has one


class TorchTransformer(nn.Module):
    """torch.nn.Transformer in a model like that of the PyTorch translation tutorial."""

    position: Tensor

    def __init__(self, config: ModelConfig, n_vocab: int) -> None:
        super().__init__()
        d_model = config.d_model
        self.embedding = nn.Embedding(n_vocab, d_model, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        self.register_buffer("position", sinusoids(0, LONGEST, d_model))
        self.dropout = nn.Dropout(config.dropout)
        self.scale = math.sqrt(d_model)
        sizes = config.n_head, config.n_enc_layer, config.n_dec_layer, config.d_inner
        self.transformer = nn.Transformer(d_model, *sizes, config.dropout, batch_first=True)

    def embed(self, seq: Tensor) -> Tensor:
        """(B, L) -> (B, L, D)"""
        embedded: Tensor = self.dropout(self.embedding(seq) * self.scale + self.position[: seq.size(1)])
        return embedded

    def forward(self, src_seq: Tensor, trg_seq: Tensor) -> Tensor:
        """(B, S), (B, T) -> logits (B, T, V)"""
        pads = dict.fromkeys(("src_key_padding_mask", "memory_key_padding_mask"), src_seq == PAD)
        is_later = torch.ones(trg_seq.size(1), trg_seq.size(1), dtype=torch.bool, device=trg_seq.device).triu(1)
        masks = {"tgt_mask": is_later, "tgt_is_causal": True, "tgt_key_padding_mask": trg_seq == PAD, **pads}
        hidden = self.transformer(self.embed(src_seq), self.embed(trg_seq), **masks)
        return F.linear(hidden, self.embedding.weight)


class Marian(nn.Module):
    """Hugging Face's Marian, with random weights."""

    def __init__(self, config: ModelConfig, n_vocab: int) -> None:
        super().__init__()
        library = huggingface.library()
        ids = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS}
        paper = {"activation_function": "relu", "max_position_embeddings": LONGEST, "scale_embedding": True}
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
                use_cache=False,
                **ids | paper,
            )
        )

    def forward(self, src_seq: Tensor, trg_seq: Tensor) -> Tensor:
        """(B, S), (B, T) -> logits (B, T, V)"""
        pads = {"attention_mask": (src_seq != PAD).long(), "decoder_attention_mask": (trg_seq != PAD).long()}
        logits: Tensor = self.model(src_seq, decoder_input_ids=trg_seq, **pads).logits
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


def train_marian(model: Any, config: dict[str, Any], train: list[Batch], valid: list[Batch], until: float) -> int:
    """Train with Seq2SeqTrainer until a time. Returns the number of updates."""
    library = huggingface.library()

    def inputs(batches: list[Batch]) -> dict[str, Tensor]:
        (batch,) = batches
        tensors = {"input_ids": batch.src_seq, "attention_mask": (batch.src_seq != PAD).long()}
        return tensors | {"decoder_input_ids": batch.trg_seq, "labels": batch.gold.masked_fill(batch.gold == PAD, -100)}

    def on_step_end(_: Any, args: Any, state: Any, control: Any, **__: Any) -> None:
        if time.time() >= until:
            control.should_evaluate = control.should_save = control.should_training_stop = True

    clock = type("Clock", (library.TrainerCallback,), {"on_step_end": on_step_end})()
    options = library.Seq2SeqTrainingArguments(**config)
    return int(library.Seq2SeqTrainer(model, options, inputs, train, valid, callbacks=[clock]).train().global_step)


def train_torch(step: PeerStep, config: dict[str, Any], train: list[Batch], valid: list[Batch], until: float) -> int:
    """Train in a plain loop until a time. Returns the number of updates."""
    losses, weights, warmup, update, order = list[float](), dict[str, Tensor](), config["warmup_steps"], 0, list[int]()
    while time.time() < until:
        order, update = order or torch.randperm(len(train)).tolist(), update + 1
        step.adam.param_groups[0]["lr"] = config["learning_rate"] * (
            min(update / warmup, (warmup / update) ** 0.5) if warmup else 1
        )
        step(train[order.pop()], nullcontext())
        if update % config["eval_steps"] == 0 or time.time() >= until:
            step.model.eval()
            with torch.no_grad():
                pairs = ((step.model(batch.src_seq, batch.trg_seq).mT, batch.gold) for batch in valid)
                losses.append(sum(float(F.cross_entropy(*pair, ignore_index=PAD, reduction="sum")) for pair in pairs))
            if losses[-1] == min(losses):
                weights = {name: value.clone() for name, value in step.model.state_dict().items()}
            step.model.train()
    step.model.load_state_dict(weights)
    return update


@torch.no_grad()
def translate(model: Any, src_seq: Tensor) -> list[list[int]]:
    """Translate ids (B, S) into ids without BOS and EOS, by beam search (5) for Marian and greedily for torch."""
    max_len, seq = src_seq.size(1) * 3 // 2 + 10, torch.full((len(src_seq), 1), BOS)
    if isinstance(model, Marian):
        options = {"num_beams": 5, "max_length": max_len, "use_cache": True}
        seq = model.model.generate(src_seq, attention_mask=(src_seq != PAD).long(), **options)
    while isinstance(model, TorchTransformer) and seq.size(1) < max_len and not (seq == EOS).any(1).all():
        seq = torch.cat([seq, model(src_seq, seq)[:, -1:].argmax(-1)], 1)
    return [row[1 : row.index(EOS) if EOS in row else None] for row in seq.tolist()]


def main(name: str, folder: Path, until: float) -> None:
    """Train a peer on the data beside its folder, and translate the test set."""
    data, recipe = Prepared.open(folder.parent / "prepared"), read_recipe(folder.parent / "prepared/recipe.yaml")
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    test, max_tokens = data.test, recipe.batch.max_tokens
    assert test and max_tokens != "auto", "the recipes of the tasks set both"
    sizes = recipe.model.model_copy(update={"dropout": config.pop("dropout")})

    def batches(corpus: Corpus) -> list[Batch]:
        lengths = 1 + np.maximum(corpus.src_len, corpus.trg_len).astype(np.int64)
        return [make_batch(*corpus.picked(rows)) for rows in length_batches(lengths, max_tokens)]

    torch.manual_seed(1)
    step = PeerStep(name, sizes, data.subwords.trg.n_vocab, config["label_smoothing_factor"], torch.device("cpu"))
    task = config, batches(data.train), batches(data.valid), until
    n_update = train_torch(step, *task) if name == "torch" else train_marian(step.model.model, *task)
    n_param = sum(p.numel() for p in step.model.parameters())
    print(f"{n_param} parameters, {n_update} updates, {time.time() - until:.1f} s late", flush=True)
    sources = (pad(test.picked(rows)[0], after=(EOS,)) for rows in np.array_split(np.arange(test.n_pair), 20))
    outputs = (ids for src_seq in sources for ids in translate(step.model.eval(), src_seq))
    write_lines(folder / "text.en", map(data.subwords.trg.decode, outputs))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
