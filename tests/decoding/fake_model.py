"""Fake models whose next token depends on the source and on every earlier token, which is hard for search.

Each row carries a rolling hash of its prefix in the per-row state, so a cache that is not reordered gives other
numbers. Padding of the source is ignored, as `SearchModel` requires.
"""

import torch
from torch import Tensor, nn

from nmt.models.base import Attns, DecoderState, SearchModel

PRIME = 1_000_003


class HashModel(SearchModel):
    def __init__(self, n_vocab: int = 6, seed: int = 0, sharpness: float = 1.0, pad: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(sharpness * torch.randn(4096, n_vocab, generator=generator, dtype=torch.float64))
        self.pad = pad
        self.rows_of_step: list[int] = []

    def _logits(self, key: Tensor) -> Tensor:
        return self.table[key % len(self.table)]

    def _source_key(self, src_seq: Tensor) -> Tensor:
        key = torch.zeros(src_seq.size(0), dtype=torch.long)
        for column in src_seq.unbind(1):
            key = torch.where(column == self.pad, key, (key * 31 + column + 7) % PRIME)
        return key

    def forward(self, src_seq: Tensor, trg_seq: Tensor, return_attns: bool = False):
        state = self.start(src_seq)
        logits = torch.stack([self.step(column, state) for column in trg_seq.unbind(1)], dim=1)
        return (logits, self._attns(src_seq, trg_seq)) if return_attns else logits

    def start(self, src_seq: Tensor) -> DecoderState:
        key = torch.ones(src_seq.size(0), dtype=torch.long)
        return DecoderState({"source": self._source_key(src_seq)}, {"key": key}, src_seq.size(0))

    def step(self, last: Tensor, state: DecoderState) -> Tensor:
        self.rows_of_step.append(len(last))
        key = (state.per_row["key"] * 37 + last + 3) % PRIME
        state.per_row["key"] = key
        state.n_step += 1
        source = state.per_sentence["source"].repeat_interleave(len(last) // state.n_sentence)
        return self._logits(key * 13 + source)

    def _attns(self, src_seq: Tensor, trg_seq: Tensor) -> Attns:
        n_sentence, n_src, n_trg = src_seq.size(0), src_seq.size(1), trg_seq.size(1)
        weights = torch.rand(2, n_sentence, 3, n_trg, n_src, generator=torch.Generator().manual_seed(1))
        return Attns(None, None, weights / weights.sum(-1, keepdim=True))


class CopyModel(HashModel):
    """Copy the source token by token; all other logits are those of the parent."""

    def start(self, src_seq: Tensor) -> DecoderState:
        state = super().start(src_seq)
        state.per_sentence["src_seq"] = src_seq
        return state

    def step(self, last: Tensor, state: DecoderState) -> Tensor:
        position = state.n_step
        logits = super().step(last, state).clone()
        src_seq = state.per_sentence["src_seq"].repeat_interleave(len(last) // state.n_sentence, 0)
        copied = src_seq[:, min(position, src_seq.size(1) - 1)]
        logits[torch.arange(len(last)), copied] += 20.0
        return logits
