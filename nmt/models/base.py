"""Interfaces of models: everything that training and search use of them.

Shapes: B sentences, S source length, T target length, V target vocabulary, K hypotheses a sentence,
R = B·K rows, row b·K + k being hypothesis k of sentence b.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nmt.masks import Packing
from nmt.models.layers import Gaps
from nmt.recipe.model_options import ModelConfig

DROPPED = -1  # id of a dropped word: its position is visible to the model, the word is not


class WordEmbedding(nn.Embedding):
    """Embedding in which a dropped word is zero. The ids mark it, so all embeddings of a sequence drop the same words.

    may_drop: True if DROPPED may occur in training; without it no time is spent on the check.
    """

    may_drop = False

    def forward(self, seq: Tensor) -> Tensor:
        """(...) ids -> (..., D)"""
        if not (self.may_drop and self.training):
            return super().forward(seq)
        return super().forward(seq.clamp(min=0)).masked_fill((seq < 0).unsqueeze(-1), 0.0)


class DecoderState:
    """State of decoding between two steps, in three kinds of tensors.

    per_sentence: first dimension B. Written once by `start` (encoder keys and values, masks). The hypotheses of a
    sentence share it; it is never copied for a beam.
    per_row: first dimension R. Grows or changes with every step (LSTM state).
    kv_cache: (B, G, slots, d) keys and values of target tokens, which stay where they were written. A step fills one
    slot for each hypothesis. `ancestry`, (R, slots), is True at the slots of a row's own past; it alone moves when a
    beam is reordered.
    """

    def __init__(self, per_sentence: dict[str, Tensor], per_row: dict[str, Tensor], n_sentence: int) -> None:
        self.per_sentence, self.per_row, self.n_sentence = per_sentence, per_row, n_sentence
        self.kv_cache: dict[str, Tensor] = {}
        self.ancestry: Tensor | None = None
        self.n_step: int | Tensor = 0  # target tokens read so far: the position of the next one

    def open_slots(self, visible: Tensor) -> Tensor:
        """Open a slot for the next token of each row. Returns the self-attention mask of the rows, (B, 1, K, slots).

        visible: (R,) False where the token itself must not be attended to.
        """
        n = len(visible) // self.n_sentence
        new = torch.eye(n, dtype=torch.bool, device=visible.device).repeat(self.n_sentence, 1) & visible.unsqueeze(1)
        self.ancestry = new if self.ancestry is None else torch.cat([self.ancestry, new], 1)
        return self.ancestry.view(self.n_sentence, 1, n, -1)

    def update_cache(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values of a layer, (B, G, K, d) each, into the slots that `open_slots` opened.

        Returns the keys and values of all slots, (B, G, slots, d) each.
        """
        return self._write(f"slf_k.{layer}", k), self._write(f"slf_v.{layer}", v)

    def _write(self, name: str, new: Tensor) -> Tensor:
        assert self.ancestry is not None
        end, cache = self.ancestry.size(1), self.kv_cache.get(name)
        if cache is None or cache.size(2) < end:
            larger = new.new_empty(*new.shape[:2], 2 * end + 16 * new.size(2), new.size(3))
            if cache is not None:
                larger[:, :, : cache.size(2)] = cache
            self.kv_cache[name] = cache = larger
        cache[:, :, end - new.size(2) : end] = new
        return cache[:, :, :end]

    def reorder(self, rows: Tensor) -> None:
        """Make row r continue old row rows[r]. rows: (R',), R' a multiple of the sentences."""
        self.per_row = {name: tensor.index_select(0, rows) for name, tensor in self.per_row.items()}
        if self.ancestry is not None:
            self.ancestry = self.ancestry.index_select(0, rows)

    def keep(self, gaps: Gaps) -> None:
        """Remove finished sentences; the others move into their gaps.

        Their rows are removed separately, by `reorder`, since only search knows K.
        """
        self.per_sentence = gaps.close_all(self.per_sentence)
        for name, cache in self.kv_cache.items():
            assert self.ancestry is not None
            gaps.close(cache[:, :, : self.ancestry.size(1)])  # without unused slots
            self.kv_cache[name] = cache[: len(gaps.stay)]
        self.n_sentence = len(gaps.stay)


# Sentences that an encoder reads at once before a search: on a CPU, and on a GPU, which needs large kernels.
_N_READ, _N_READ_GPU = 64, 512


def read_in_parts(read: Callable[[Tensor], dict[str, Tensor]], src_seq: Tensor, pad_idx: int) -> dict[str, Tensor]:
    """Return read(src_seq), (B, S) -> B-row tensors by name, read in parts that are as long as their longest sentence.

    A search takes many sentences at once, in which an encoder would read more padding than words. They come ordered
    by length. The source length S is the last dimension but one of each tensor.
    """
    n_read, n_src = _N_READ if src_seq.is_cpu else _N_READ_GPU, src_seq.size(1)
    if len(src_seq) <= n_read:
        return read(src_seq)
    n_word = (src_seq != pad_idx).sum(1).tolist()
    slices = [slice(start, start + n_read) for start in range(0, len(src_seq), n_read)]
    parts = [read(src_seq[rows, : max(1, *n_word[rows])]) for rows in slices]

    def joined(tensors: list[Tensor]) -> Tensor:
        return torch.cat([nn.functional.pad(tensor, (0, 0, 0, n_src - tensor.size(-2))) for tensor in tensors])

    return {name: joined([part[name] for part in parts]) for name in parts[0]}


class Attns(NamedTuple):
    """Attention weights of a model, before dropout, rows summing to 1; None for an attention that it lacks.

    encoder: from source words to the source, (n_layer, B, n_head, S, S); decoder: from target words to the target so
    far, (n_layer, B, n_head, T, T); cross: from target words to the source, (n_layer, B, n_head, T, S).
    """

    encoder: Tensor | None
    decoder: Tensor | None
    cross: Tensor | None


class SearchModel(nn.Module, ABC):
    """Interface of search, sampling and scoring: a model or an ensemble."""

    attends = True  # True if target words attend to the source, so `forward` can return cross-attention weights

    @abstractmethod
    def forward(self, src_seq: Tensor, trg_seq: Tensor, return_attns: bool = False) -> Tensor | tuple[Tensor, Attns]:
        """(B, S), (B, T) ids, padded -> logits (B, T, V): row t predicts the token after trg_seq[:, t].

        return_attns: also return the attention weights.
        """

    @abstractmethod
    def start(self, src_seq: Tensor) -> DecoderState:
        """(B, S) -> state before the first target token."""

    @abstractmethod
    def step(self, last: Tensor, state: DecoderState) -> Tensor:
        """Read one more token of each hypothesis: (R,) -> logits (R, V). Updates `state` in place.

        R may be B·K for any K; K may change between steps only through `DecoderState.reorder`.
        """

    def grow_tables(self, n_position: int) -> None:
        """Grow position tables to n_position now, so that no step has to."""
        for module in self.modules():
            if grow := getattr(module, "grow", None):
                grow(n_position)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


@contextmanager
def evaluating(model: SearchModel) -> Iterator[None]:
    """Context manager: eval mode, restoring the previous mode."""
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)


class TranslationModel(SearchModel):
    """Interface of training, which every model family implements. trg_word_prj: the output layer. emb_scale,
    logit_scale: factors of embeddings and logits; part of the model, so that training and search use the same."""

    trg_word_prj: nn.Linear
    first_tag: int | None = None  # the first source id that is a tag, not a word; None: there are no tags
    packs = False  # True if `decode_hidden` takes packed sentences

    def __init__(self, config: ModelConfig, pad_idx: int, d_emb: int) -> None:
        super().__init__()
        self.pad_idx, self.d_model = pad_idx, config.d_model
        # Section 3.4: with a shared matrix, either the embeddings are multiplied by sqrt(d_model),
        # as in the paper, or the logits by its inverse.
        shared = config.trg_emb_prj_weight_sharing
        self.emb_scale: float = d_emb**0.5 if shared and config.scale_emb_or_prj == "emb" else 1.0
        self.logit_scale: float = d_emb**-0.5 if shared and config.scale_emb_or_prj == "prj" else 1.0

    @abstractmethod
    def decode_hidden(self, src_seq: Tensor, trg_seq: Tensor, packing: tuple[Packing, Packing] | None = None) -> Tensor:
        """(B, S), (B, T) -> last states (B, T, D), where logits = logit_scale · states · output_weightT.

        packing: of source and target, if the sentences lie end to end in one row each, (1, S) and (1, T).
        """

    @property
    @abstractmethod
    def embeddings(self) -> tuple[WordEmbedding, WordEmbedding]:
        """Source and target embedding; if shared, both hold the same weight."""

    @property
    def output_weight(self) -> Tensor:
        """Matrix of the output layer, (V, D), for losses that multiply by it in parts and never hold all logits."""
        return self.trg_word_prj.weight

    def project(self, hidden: Tensor) -> Tensor:
        """Project last states (..., D) to logits (..., V) = hidden · output_weightT · logit_scale, in training and
        decoding alike."""
        # Scaling before the product is equivalent and passes over D numbers instead of V.
        logits: Tensor = self.trg_word_prj(hidden if self.logit_scale == 1.0 else hidden * self.logit_scale)
        return logits

    def init_weights(self, config: ModelConfig, d_emb: int) -> None:
        """Draw the initial weights, Xavier-uniform unless a module's `reset` sets others, and share embeddings."""
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        for module in self.modules():
            if reset := getattr(module, "reset", None):
                reset()
        src, trg = self.embeddings
        if config.emb_init != "xavier":  # the trainer fills in vectors that need the training pairs
            for embedding in (src, trg):
                nn.init.normal_(embedding.weight, std=d_emb**-0.5)
        if config.trg_emb_prj_weight_sharing:
            self.trg_word_prj.weight = trg.weight
        if config.emb_src_trg_weight_sharing:
            src.weight = trg.weight

    def recompute_activations(self) -> None:
        """Switch on activation checkpointing, if the model has it: in training, layers recompute their activations in
        the backward pass. The same bits in less memory, for about a third more time (Chen et al. 2016, sublinear
        memory cost)."""
