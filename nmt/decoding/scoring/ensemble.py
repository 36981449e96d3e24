"""Several models that translate as one: at every step their probabilities are averaged."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nmt.decoding.scoring.scorer import full_precision
from nmt.models.base import Attns, DecoderState, SearchModel
from nmt.models.gaps import Gaps


class States(DecoderState):
    """The states of all models, which move together."""

    def __init__(self, states: list[DecoderState]) -> None:
        super().__init__({}, {}, states[0].n_sentence)
        self.states = states

    def reorder(self, rows: Tensor) -> None:
        for state in self.states:
            state.reorder(rows)

    def keep(self, gaps: Gaps) -> None:
        for state in self.states:
            state.keep(gaps)
        self.n_sentence = gaps.n


class Ensemble(SearchModel):
    """p(token) = mean over models of p_model(token). The models may differ in all but their vocabulary."""

    def __init__(self, models: Sequence[SearchModel]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.attends = models[0].attends

    def forward(self, src_seq: Tensor, trg_seq: Tensor, return_attns: bool = False) -> Tensor | tuple[Tensor, Attns]:
        """(B, S), (B, T) -> (B, T, V) logarithms of the mean probabilities, which are logits as well.

        Where the first model looked, if asked for: layers and heads of different models have nothing to do with each
        other.
        """
        first, *others = self._members()
        rest = [model(src_seq, trg_seq) for model in others]
        if not return_attns:
            return self._mean([first(src_seq, trg_seq), *rest])
        logits, attns = first(src_seq, trg_seq, return_attns=True)
        return self._mean([logits, *rest]), attns

    def start(self, src_seq: Tensor) -> DecoderState:
        return States([model.start(src_seq) for model in self._members()])

    def step(self, last: Tensor, state: DecoderState) -> Tensor:
        assert isinstance(state, States)
        state.n_step += 1
        return self._mean([model.step(last, its) for model, its in zip(self._members(), state.states, strict=True)])

    def reach(self, n_position: int) -> None:
        for model in self._members():
            model.reach(n_position)

    def _members(self) -> list[SearchModel]:
        return [model for model in self.models if isinstance(model, SearchModel)]

    @staticmethod
    def _mean(logits: list[Tensor]) -> Tensor:
        told = torch.stack([full_precision(one).log_softmax(-1) for one in logits])
        return told.logsumexp(0) - math.log(len(logits))
