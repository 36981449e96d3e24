"""One update: batches in, moved weights out. The loop around it, the data and the log are elsewhere.

On a GPU nothing here waits for the device: whether an update was good is decided there, and the numbers of an update
are read while the next one is computed. On a CPU waiting costs nothing, and the same lines run at once.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from nmt.errors import MachineError
from nmt.models.base import TranslationModel
from nmt.recipe.options import Recipe
from nmt.training.memory import Memory, Work, is_out_of_memory
from nmt.training.objective import Objective
from nmt.training.optim import Optimizers, apply_update, build_optimizers
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision


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
        self.optimizers: Optimizers = build_optimizers(model, recipe.optim)
        self.scaler = precision.scaler()
        self.objective = ranks.wrap(Objective(model, recipe.train.label_smoothing), model.device)
        self.ema = [p.detach().clone() for p in model.parameters()] if recipe.train.ema else []
        self.late = model.device.type == "cuda" and self.optimizers.guarded and not self.scaler.is_enabled()
        self.memory = Memory()
        self._pending: _Pending | None = None
        self._loss_sum, self._n_gold = torch.zeros(()), 0  # of the update whose gradient is there

    def backward(self, work: list[Work], n_gold: int) -> None:
        """Accumulate the gradient of an update: that of the loss of all ranks' batches over their n_gold tokens.

        Where memory runs out, the batch that was too much is halved and the whole update done again; see `memory`.
        """
        while (failed := self._accumulate(self.memory.pieces(work), n_gold)) is not None:
            # Outside of the except clause, whose error holds every tensor of the attempt.
            self.memory.ran_out(failed)
            self._give_up_if_hopeless(failed)
            self.optimizers.zero_grad()
            if self.model.device.type == "cuda":
                torch.cuda.empty_cache()

    def _accumulate(self, work: list[Work], n_gold: int) -> Work | None:
        """Add up the gradients of some batches. Returns the batch that memory ran out with, if it did."""
        loss_sum = torch.zeros((), device=self.model.device)
        for turn, item in enumerate(work):
            try:
                with self.ranks.exchange(self.objective, now=turn == len(work) - 1):
                    loss_sum += self._backward_of(item, n_gold)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                return item
        self._loss_sum, self._n_gold = loss_sum.double(), n_gold
        return None

    def _backward_of(self, item: Work, n_gold: int) -> Tensor:
        """Add the gradient of one batch to that of the update. Returns its loss, or 0 where it does not count."""
        batch = item.batch.to(self.model.device)
        torch.manual_seed(item.seed)
        with self.precision.autocast():
            loss = self.objective(batch.src_seq, batch.trg_seq, batch.gold)
        # Gradients are averaged over ranks, so the sum over ranks needs the factor back.
        share = self.ranks.world_size / n_gold if item.counts else 0.0
        self.scaler.scale(loss * share).backward()
        counted: Tensor = loss.detach() if item.counts else torch.zeros_like(loss)
        return counted

    def _give_up_if_hopeless(self, failed: Work) -> None:
        """Raise where a smaller batch would not help."""
        n, n_src = failed.batch.src_seq.shape
        what = f"memory of {self.model.device} ran out with a batch of {n:,} pairs, {n_src:,} source and "
        what += f"{failed.batch.gold.size(1):,} target subwords long"
        advice = "Or set train.checkpoint_activations to true, or make the model smaller."
        if self.ranks.world_size > 1:  # the others already wait for this rank's gradient of the whole batch
            raise MachineError(
                f"rank {self.ranks.rank}: {what}. With several processes no batch can be halved on the way: make "
                f"batch.max_tokens smaller than {failed.cost:,} in a new run (batch.tokens_per_update keeps the "
                f"updates as large as they are). {advice}"
            )
        if n == 1:
            raise MachineError(
                f"{what}: too long to train on. Make data.max_len smaller and prepare the data. {advice}"
            )

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
        ahead = torch._foreach_sub(list(self.model.parameters()), self.ema)
        torch._foreach_mul_(ahead, moved * (1 - decay))  # an update that did not move the weights is none
        torch._foreach_add_(self.ema, ahead)

    def ema_weights(self) -> dict[str, Tensor]:
        """The moving average under the names of the parameters."""
        return dict(zip((name for name, _ in self.model.named_parameters()), self.ema, strict=True))
