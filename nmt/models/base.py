"""The contract between a model and everything else: all that training and search may know of it.

Shapes: B sentences, S source length, T target length, V target vocabulary, K hypotheses a sentence,
R = B·K rows, row b·K + k being hypothesis k of sentence b.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmt.masks import Packing
from nmt.models.layers import Gaps
from nmt.recipe.model_options import ModelConfig

DROPPED = -1  # stands in a sequence where a word was: it is known that one is there, but not which


class WordEmbedding(nn.Embedding):
    """An embedding in which a dropped word is zero. That the id tells it makes all who look a word up agree.

    may_drop: whether DROPPED may occur in training; otherwise nobody pays for looking.
    """

    may_drop = False

    def forward(self, seq: Tensor) -> Tensor:
        """(...) ids -> (..., D)"""
        if not (self.may_drop and self.training):
            return super().forward(seq)
        return super().forward(seq.clamp(min=0)).masked_fill((seq < 0).unsqueeze(-1), 0.0)


class DecoderState:
    """State of decoding between two steps, in three kinds of tensors.

    per_sentence: first dimension B. Written once by `start` (encoder keys and values, masks).
    per_row: first dimension R. Grows or changes with every step (LSTM state).
    seen: (B, G, slots, d) keys and values of target tokens, which stay where they were written. A step fills one slot
    for each hypothesis, and `ancestry` (R, slots) tells which slots are a row's own past: that alone moves when a beam
    is reordered.
    Encoder memory belongs to the sentence: hypotheses share it and it is never copied for a beam.
    """

    def __init__(self, per_sentence: dict[str, Tensor], per_row: dict[str, Tensor], n_sentence: int) -> None:
        self.per_sentence = per_sentence
        self.per_row = per_row
        self.seen: dict[str, Tensor] = {}
        self.ancestry: Tensor | None = None
        self.n_sentence = n_sentence
        self.n_step: int | Tensor = 0  # target tokens read so far, so the position of the next one

    def look_back(self, visible: Tensor) -> Tensor:
        """Open a slot for the next token of each row: the mask (B, 1, K, slots) of what the rows may look at.

        visible: (R,) False where the token itself may not be looked at.
        """
        n = len(visible) // self.n_sentence
        own = torch.eye(n, dtype=torch.bool, device=visible.device).repeat(self.n_sentence, 1) & visible.unsqueeze(1)
        self.ancestry = own if self.ancestry is None else torch.cat([self.ancestry, own], 1)
        return self.ancestry.view(self.n_sentence, 1, n, -1)

    def remember(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values of a layer into the slots that `look_back` opened: (B, G, K, d) each -> what all slots
        hold, (B, G, slots, d) each."""
        return self._remember(f"slf_k.{layer}", k), self._remember(f"slf_v.{layer}", v)

    def _remember(self, name: str, new: Tensor) -> Tensor:
        assert self.ancestry is not None
        end, old = self.ancestry.size(1), self.seen.get(name)
        if old is None or old.size(2) < end:
            room = new.new_empty(*new.shape[:2], 2 * end + 16 * new.size(2), new.size(3))
            if old is not None:
                room[:, :, : old.size(2)] = old
            self.seen[name] = old = room
        old[:, :, end - new.size(2) : end] = new
        return old[:, :, :end]

    def reorder(self, rows: Tensor) -> None:
        """Make row r continue old row rows[r]. rows: (R',), R' a multiple of the sentences."""
        self.per_row = {name: tensor.index_select(0, rows) for name, tensor in self.per_row.items()}
        if self.ancestry is not None:
            self.ancestry = self.ancestry.index_select(0, rows)

    def keep(self, gaps: Gaps) -> None:
        """Let finished sentences leave: those that stay close the gaps.

        The rows must be told separately, by `reorder`, since only search knows K.
        """
        self.per_sentence = gaps.close_all(self.per_sentence)
        for name, tensor in self.seen.items():
            assert self.ancestry is not None
            gaps.close(tensor[:, :, : self.ancestry.size(1)])  # without slots that no token fills
            self.seen[name] = tensor[: gaps.n]
        self.n_sentence = gaps.n


# Sentences that an encoder reads at once, before a search: on a CPU, and where kernels are to be large.
_N_READ, _N_READ_ELSEWHERE = 64, 512


def read_in_parts(read: Callable[[Tensor], dict[str, Tensor]], src_seq: Tensor, pad_idx: int) -> dict[str, Tensor]:
    """read(src_seq), (B, S) -> B-row tensors by name, some sentences at a time and each part as long as its longest.

    A search wants many sentences at once, of which an encoder would read more padding than words. They come ordered by
    length. Tensors of a source word have it in the last dimension if they are bool, else in the one before.
    """
    n_read = _N_READ if src_seq.is_cpu else _N_READ_ELSEWHERE
    if len(src_seq) <= n_read:
        return read(src_seq)
    n_word = (src_seq != pad_idx).sum(1).tolist()
    rows = [slice(first, first + n_read) for first in range(0, len(src_seq), n_read)]
    parts = [read(src_seq[its, : max(1, *n_word[its])]) for its in rows]
    known = {}
    for name, first in parts[0].items():
        of_words = -1 if first.dtype == torch.bool else -2
        shape = [len(src_seq), *first.shape[1:]]
        shape[of_words] = src_seq.size(1)
        known[name] = first.new_zeros(shape)
        for its, part in zip(rows, parts, strict=True):
            known[name][its].narrow(of_words, 0, part[name].size(of_words)).copy_(part[name])
    return known


class Attns(NamedTuple):
    """Attention weights of a model, before dropout, rows summing to 1; None where it has no such attention.

    encoder: source words at the source, (n_layer, B, n_head, S, S); decoder: target words at the target so far,
    (n_layer, B, n_head, T, T); cross: target words at the source, (n_layer, B, n_head, T, S).
    """

    encoder: Tensor | None
    decoder: Tensor | None
    cross: Tensor | None


class SearchModel(nn.Module, ABC):
    """Interface of search, sampling and scoring: one model, or many as one."""

    attends = True  # whether target words look at the source, so that `forward` can tell where

    @abstractmethod
    def forward(self, src_seq: Tensor, trg_seq: Tensor, return_attns: bool = False) -> Tensor | tuple[Tensor, Attns]:
        """(B, S), (B, T) ids, padded -> logits (B, T, V): row t predicts the token after trg_seq[:, t].

        return_attns: also where the model looked meanwhile.
        """

    @abstractmethod
    def start(self, src_seq: Tensor) -> DecoderState:
        """(B, S) -> the state before the first target token."""

    @abstractmethod
    def step(self, last: Tensor, state: DecoderState) -> Tensor:
        """Read one more token of each hypothesis: (R,) -> logits (R, V). Updates `state` in place.

        R may be B·K for any K; K may change between steps only through `DecoderState.reorder`.
        """

    def reach(self, n_position: int) -> None:
        """Make now whatever steps up to that position need, so that none of them has to."""
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
    """Every model family implements these, and training needs nothing else.

    trg_word_prj: the output layer. logit_scale: factor of the logits; part of the model, so that training and search
    cannot disagree about it.
    """

    trg_word_prj: nn.Linear
    logit_scale: float
    packs = False  # whether `decode_hidden` takes sentences that lie end to end

    @abstractmethod
    def decode_hidden(self, src_seq: Tensor, trg_seq: Tensor, packing: tuple[Packing, Packing] | None = None) -> Tensor:
        """(B, S), (B, T) -> last states (B, T, D), such that logits = logit_scale · states · output_weightT.

        packing: of source and target, where all sentences are in one row each, (1, S) and (1, T).
        """

    @property
    @abstractmethod
    def embeddings(self) -> tuple[WordEmbedding, WordEmbedding]:
        """The embedding of the source and that of the target; sharing, they hold one and the same weight."""

    @property
    def output_weight(self) -> Tensor:
        """(V, D), the matrix of the output layer: losses that never hold all the logits multiply by it themselves."""
        return self.trg_word_prj.weight

    def project(self, hidden: Tensor) -> Tensor:
        """(..., D), last states -> logits (..., V) = hidden · output_weightT · logit_scale. Training and decoding both
        end here."""
        # Scaling before the product is the same and passes over D numbers instead of V.
        logits: Tensor = self.trg_word_prj(hidden if self.logit_scale == 1.0 else hidden * self.logit_scale)
        return logits

    def draw_weights(self, config: ModelConfig, d_emb: int) -> None:
        """Draw the first weights, matrices Xavier-uniform where no module says otherwise, and share embeddings."""
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        for module in self.modules():
            if reset := getattr(module, "reset", None):
                reset()
        src, trg = self.embeddings
        if config.emb_init != "xavier":  # what needs the training pairs is the trainer's to fill in
            for embedding in (src, trg):
                nn.init.normal_(embedding.weight, std=d_emb**-0.5)
        if config.trg_emb_prj_weight_sharing:
            self.trg_word_prj.weight = trg.weight
        if config.emb_src_trg_weight_sharing:
            src.weight = trg.weight

    def recompute_activations(self) -> None:
        """From now on, in training, let every layer that can forget what its backward pass needs, and compute it again
        there: the same bits in less memory, for about a third more time (Chen et al. 2016, sublinear memory cost)."""
        for module in self.modules():
            if isinstance(module, Recomputing):
                module.recompute = True


class Recomputing(nn.Module):
    """A module made of layers that can be computed twice in place of remembering what happened inside them."""

    recompute = False

    def through(self, layer: nn.Module, *args: Any) -> Any:
        """layer(*args). The second time the dropout is the same, since the generators are put back for it."""
        if self.recompute and self.training and torch.is_grad_enabled():
            return checkpoint(layer, *args, use_reentrant=False)
        return layer(*args)


@runtime_checkable
class Blocked(Protocol):
    """A module some of whose weights are several matrices in one, such as those of the heads of attention."""

    def blocks(self) -> list[tuple[Tensor, tuple[int, int]]]:
        """The weights that are several matrices, each with the shape of one of them, which tile it."""
