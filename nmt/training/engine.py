"""One update: batches in, moved weights out. The loop around it, the data and the log are elsewhere.

On a GPU nothing here waits for the device: whether an update was good is decided there, and the numbers of an update
are read while the next one is computed. On a CPU waiting costs nothing, and the same lines run at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from nmt import checkpoint
from nmt.data.batches import Batch
from nmt.models.base import Packing, TranslationModel
from nmt.recipe.options import Recipe
from nmt.training.objective import Objective
from nmt.training.optim import Optimizers, apply_update, build_optimizers
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision
from nmt.training.sharding import gather, local, twin_of


@dataclass(frozen=True)
class Work:
    """One batch of an update on this rank. counts: False where a rank repeats one because others have more.

    seed: of its dropout, so that there is no generator state to lose.
    """

    batch: Batch
    counts: bool
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What became of an update. loss: summed over its n_gold tokens of all ranks. norm: of the gradient.

    moved: False where loss or gradient were not finite, and the weights stayed. stop: somebody wants to stop.
    """

    loss: float
    norm: float
    n_gold: int
    rate: float
    moved: bool
    stop: bool


@dataclass(frozen=True)
class _Pending:
    """An update on its way: four numbers that the device still computes, and when they will have arrived."""

    numbers: Tensor  # loss, wish to stop, norm, whether the weights moved
    arrived: torch.cuda.Event | None
    n_gold: int
    rate: float

    def read(self) -> Outcome:
        if self.arrived is not None:
            self.arrived.synchronize()
        loss, wish, norm, moved = self.numbers.tolist()
        return Outcome(loss, norm, self.n_gold, self.rate, moved > 0, wish > 0)


class Engine:
    """A model in training, with what moves it.

    late: whether `settle` may be put off until the next update is under way, which keeps a GPU busy.
    """

    def __init__(self, model: TranslationModel, recipe: Recipe, *, precision: Precision, ranks: Ranks) -> None:
        self.model, self.recipe, self.precision, self.ranks = model, recipe, precision, ranks
        # Rank 0 validates with whole weights, for which a model that is cut needs a twin.
        is_cut = ranks.world_size > 1 and recipe.train.parallel == "fsdp"
        self._twin = twin_of(model) if is_cut and ranks.is_main else None
        objective = Objective(model, recipe.train.label_smoothing)
        self.objective = ranks.distribute(objective, model.device, recipe.train.parallel)
        self.optimizers: Optimizers = build_optimizers(model, recipe.optim)
        self.scaler = precision.scaler()
        self.ema = [p.detach().clone() for p in model.parameters()] if recipe.train.ema else []
        self.late = model.device.type == "cuda" and self.optimizers.guarded and not self.scaler.is_enabled()
        self.longest = recipe.data.max_len + 1  # with EOS
        # After its first backward pass ddp lays out anew what it adds up together, and so in which order: without a
        # rehearsal the first update after a resume would round otherwise than in the run that went through.
        self._rehearse = ranks.world_size > 1
        self._pending: _Pending | None = None
        self._loss_sum, self._n_gold = torch.zeros(()), 0  # of the update whose gradient is there

    def backward(self, work: list[Work], n_gold: int) -> None:
        """Accumulate the gradient of an update: that of the loss of all ranks' batches over their n_gold tokens."""
        if self._rehearse:
            self._rehearse = False
            self.backward(work[:1], n_gold)
            self.optimizers.zero_grad()
        loss_sum = torch.zeros((), device=self.model.device)
        for turn, item in enumerate(work):
            batch = item.batch.to(self.model.device)
            torch.manual_seed(item.seed)
            if self.recipe.train.cuda_graphs:  # what the last replay left in the graphs' memory may be overwritten
                cast(Any, torch.compiler).cudagraph_mark_step_begin()
            with self.ranks.exchange(self.objective, now=turn == len(work) - 1):
                with self.precision.autocast():
                    loss = self.objective(
                        batch.src_seq, batch.trg_seq, batch.gold, self.packing_of(batch, self.longest)
                    )
                # Gradients are averaged over ranks, so the sum over ranks needs the factor back.
                share = self.ranks.world_size / n_gold if item.counts else 0.0
                self.scaler.scale(loss * share).backward()
            if item.counts:
                loss_sum += loss.detach()
        self._loss_sum, self._n_gold = loss_sum.double(), n_gold

    @staticmethod
    def packing_of(batch: Batch, longest: int) -> tuple[Packing, Packing] | None:
        """How source and target of a batch are packed, if they are. longest: bound on a sentence, EOS counted."""
        if batch.src_start is None or batch.trg_start is None:
            return None
        return Packing(batch.src_start, longest), Packing(batch.trg_start, longest)

    def step(self, factor: float, update: int, *, wish: bool = False) -> None:
        """Move the weights by the gradient, if it and the loss are finite.

        factor: of the peak learning rates, or the rate itself under noam. update: its number, from 1. wish: whether
        this rank wants to stop; the outcome tells all ranks the same.
        """
        assert self._pending is None, "settle the update before"
        rate = self.optimizers.set_rate(factor, absolute=self.recipe.optim.schedule == "noam")
        wished = torch.full((), float(wish), dtype=torch.float64, device=self.model.device)
        loss, wishes = self.ranks.add_up(torch.stack([self._loss_sum, wished])).unbind()
        norm, moved = apply_update(
            self.model, self.optimizers, self.scaler, loss=loss, clip=self.recipe.optim.clip, late=self.late
        )
        if self.ema:
            self._average(moved, update)
        self._pending = self._send(torch.stack([loss, wishes, norm.double(), moved.double()]), rate)

    def settle(self) -> Outcome | None:
        """What became of the last update; None if that was told before. Waits for the device."""
        pending, self._pending = self._pending, None
        return pending.read() if pending else None

    def _send(self, numbers: Tensor, rate: float) -> _Pending:
        if numbers.device.type != "cuda":
            return _Pending(numbers, None, self._n_gold, rate)
        arrived = cast(Any, torch.cuda.Event)()  # which has no type hints
        host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
        arrived.record()
        return _Pending(host, arrived, self._n_gold, rate)

    @torch.no_grad()
    def _average(self, moved: Tensor, update: int) -> None:
        # A young average would remember the initialisation; so the decay grows into its value.
        decay = min(self.recipe.train.ema, (1 + update) / (10 + update))
        ema = [local(average) for average in self.ema]
        ahead = torch._foreach_sub([local(p) for p in self.model.parameters()], ema)
        torch._foreach_mul_(ahead, moved * (1 - decay))  # an update that did not move the weights is none
        torch._foreach_add_(ema, ahead)

    def ema_weights(self) -> dict[str, Tensor]:
        """The moving average under the names of the parameters."""
        return dict(zip((name for name, _ in self.model.named_parameters()), self.ema, strict=True))

    def gather(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors on rank 0, {} elsewhere. All ranks must ask together."""
        return gather(tensors, here=self.ranks.is_main)

    @contextmanager
    def whole_model(self, weights: dict[str, Tensor] | None = None) -> Iterator[TranslationModel]:
        """A model with whole weights, for rank 0 to measure. weights: what `gather` made of this model's, if wanted."""
        if self._twin is None:
            yield self.model
            return
        device = self.model.device
        if weights is not None:
            checkpoint.load_weights(self._twin, weights, "the weights of all ranks")
        try:
            yield self._twin.to(device)
        finally:
            self._twin.cpu()
