"""One update: batches in, moved weights out. The loop around it, the data and the log are elsewhere. On a GPU nothing
here waits for the device: whether an update was good is decided there, and the numbers of an update are read while the
next one is computed. On a CPU waiting costs nothing, and the same lines run at once."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from nmt import checkpoint
from nmt.data.batches import Batch, end_to_end
from nmt.data.subwords import EOS, PAD
from nmt.errors import OutOfMemory, is_out_of_memory
from nmt.masks import Packing
from nmt.models.base import DROPPED, TranslationModel
from nmt.ops import consistency, smoothed_cross_entropy
from nmt.recipe.options import Recipe
from nmt.recipe.training_options import RegularizeConfig
from nmt.training.memory import Memory, Work
from nmt.training.optim import apply_update, build_optimizers
from nmt.training.parallel import Ranks, local
from nmt.training.precision import Precision


def drop_words(seq: Tensor, p: float, first_tag: int | None = None) -> Tensor:
    """Drop every word of (B, L) ids with probability p (Gal and Ghahramani 2016; each position by itself, as Sennrich
    et al. 2016). PAD, BOS, EOS and tags, from first_tag on, stay. Words that stay are not divided by 1 - p (Shen et al.
    2020)."""
    if not p:
        return seq
    dropped = (torch.rand(seq.shape, device=seq.device) < p) & (seq > EOS)
    if first_tag is not None:
        dropped &= seq < first_tag
    return seq.masked_fill(dropped, DROPPED)


class Objective(nn.Module):
    """A model and the loss that it is trained on.

    Alone it is CE, the label-smoothed cross-entropy. Beside it KL is a divergence between two passes, over all classes;
    both are sums over gold tokens.

    R-Drop (X. Liang et al. 2021, "R-Drop: regularized dropout for neural networks"): each sentence goes through the
    model twice, with different dropout, as P1 and P2; the loss is

        CE(P1) + CE(P2) + alpha · (KL(P1 || P2) + KL(P2 || P1)) / 2

    Half of that is minimised here, so that the gradient does not double where R-Drop sets in.

    SimCut (P. Gao et al. 2022, "Bi-SimCut: a simple strategy for boosting neural machine translation"): the loss is

        CE(P) + alpha · KL(P || P_cut)

    where P_cut sees the sentences with words cut out on both sides. The gradient goes through both passes, in which
    the paper sees the key to its gains.

    Whatever is on, CE alone is reported, with R-Drop the mean of two, so that losses stay comparable.
    """

    def __init__(
        self,
        model: TranslationModel,
        smoothing: float,
        regularize: RegularizeConfig,
        *,
        compiled: bool = False,
        first_tag: int | None = None,
    ) -> None:
        """first_tag: the id from which on those of sources are no words; None: all are."""
        super().__init__()
        self.first_tag = first_tag
        self.model, self.smoothing, self.regularize, self.compiled = model, smoothing, regularize, compiled
        for embedding in model.embeddings:
            embedding.may_drop = regularize.drops_words

    def forward(
        self,
        src_seq: Tensor,
        trg_seq: Tensor,
        gold: Tensor,
        packing: tuple[Packing, Packing] | None = None,
        *,
        n_gold: int | None = None,
        share: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """(B, S), (B, T), (B, T) -> what is minimised, and what of it is reported: sums over gold tokens. n_gold: how
        many there are, by which a GPU need not be waited for. share: of the run that has passed."""
        on = self.regularize.at(share)
        beside = 1 if packing else 0  # the second pass is further rows, or what follows in the one row
        if on.r_drop:
            src_seq, trg_seq = torch.cat([src_seq, src_seq], beside), torch.cat([trg_seq, trg_seq], beside)
        src_seq = drop_words(src_seq, on.src_word_dropout, self.first_tag)
        trg_seq = drop_words(trg_seq, on.trg_word_dropout)
        if on.simcut:
            src_seq = torch.cat([src_seq, drop_words(src_seq, on.simcut_p, self.first_tag)], beside)
            trg_seq = torch.cat([trg_seq, drop_words(trg_seq, on.simcut_p)], beside)
        if packing and (on.r_drop or on.simcut):
            packing = packing[0].twice(), packing[1].twice()
        hidden = self.model.decode_hidden(src_seq, trg_seq, packing)
        weight, scale = self.model.output_weight, self.model.logit_scale
        known: dict[str, Any] = {"smoothing": self.smoothing, "scale": scale, "pad_idx": PAD, "n_gold": n_gold}
        if on.r_drop:
            one, other = hidden.chunk(2, beside)
            kl = on.r_drop / 4, on.r_drop / 4
            loss, ce = consistency(one, other, weight, gold, ce=(0.5, 0.5), kl=kl, **known)
        elif on.simcut:
            whole, cut = hidden.chunk(2, beside)
            loss, ce = consistency(whole, cut, weight, gold, ce=(1.0, 0.0), kl=(on.simcut, 0.0), **known)
        else:
            loss = ce = smoothed_cross_entropy(hidden, weight, gold, compiled=self.compiled, **known)
        return loss, ce.detach()


@dataclass(frozen=True)
class Outcome:
    """Outcome of an update. loss: summed over its n_gold tokens of all ranks. norm: of the gradient. moved: False
    where one of these was not finite and the weights stayed. stop: somebody wants to. time_share: of the budget."""

    loss: float
    norm: float
    n_gold: int
    rate: float  # of learning, that of the first optimizer
    moved: bool
    stop: bool
    time_share: float


class Engine:
    """A model in training, with what moves it. late: whether `settle` may be put off until the next update is under
    way, which keeps a GPU busy. first_tag: see `Objective`."""

    def __init__(
        self,
        model: TranslationModel,
        recipe: Recipe,
        *,
        precision: Precision,
        ranks: Ranks,
        first_tag: int | None = None,
    ) -> None:
        self.model, self.recipe, self.precision, self.ranks = model, recipe, precision, ranks
        train = recipe.train
        # Rank 0 validates with whole weights, for which a model that is cut needs a twin.
        is_cut = ranks.world_size > 1 and train.parallel == "fsdp"
        self._twin = copy.deepcopy(model).cpu() if is_cut and ranks.is_main else None
        objective = Objective(
            model, train.label_smoothing, recipe.regularize, compiled=train.compiled, first_tag=first_tag
        )
        self.objective = ranks.distribute(objective, model.device, train.parallel)
        self.optimizers = build_optimizers(model, recipe.optim)
        self.scaler = precision.scaler()
        self.ema = [p.detach().clone() for p in model.parameters()] if train.ema else []
        self.late = model.device.type == "cuda" and self.optimizers.guarded and not self.scaler.is_enabled()
        self.memory = Memory()
        # After its first backward pass ddp lays out anew what it adds up together, and so in which order: without a
        # rehearsal the first update after a resume would round otherwise than in the run that went through.
        self._rehearse = ranks.world_size > 1
        self._loss_sum, self._n_gold = torch.zeros(()), 0  # of the update whose gradient is there
        # Of the update under way: loss, wish to stop, share of the time, norm and whether the weights moved; when they
        # will have arrived from a GPU; tokens and learning rate.
        self._pending: tuple[Tensor, Any, int, float] | None = None

    def backward(self, work: list[Work], n_gold: int, *, share: float = 0.0) -> None:
        """Accumulate the gradient of an update: that of the loss of all ranks' batches over their n_gold tokens.

        share: of the run that has passed, for what is switched on in its course. Where memory runs out, the batch that
        was too much is halved and the whole update done again; see `memory`.
        """
        if self._rehearse:
            self._rehearse = False
            self.backward(work[:1], n_gold, share=share)
            self.optimizers.zero_grad()
        while (failed := self._accumulate(self.memory.pieces(work), n_gold, share)) is not None:
            # Outside of the except clause, whose error holds every tensor of the attempt.
            self.memory.ran_out(failed)
            self._give_up_if_hopeless(failed)
            self.optimizers.zero_grad()
            if self.model.device.type == "cuda":
                torch.cuda.empty_cache()

    def _accumulate(self, work: list[Work], n_gold: int, share: float) -> Work | None:
        """Add up the gradients of some batches. Returns the batch that memory ran out with, if it did."""
        loss_sum = torch.zeros((), device=self.model.device)
        saved: dict[Tensor, Tensor] = {}
        for turn, item in enumerate(work):
            is_last = turn == len(work) - 1
            try:
                with self.ranks.exchange(self.objective, now=is_last):
                    loss_sum += self._backward_of(item, n_gold, share)
                if self.recipe.train.cuda_graphs and not is_last:
                    # Each replay writes its gradients where the one before left its own, so those are copied elsewhere.
                    for parameter in self.model.parameters():
                        if parameter.grad is not None and parameter.grad is not saved.get(parameter):
                            parameter.grad = saved[parameter] = parameter.grad.clone()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                return item
        self._loss_sum, self._n_gold = loss_sum.double(), n_gold
        return None

    def _backward_of(self, item: Work, n_gold: int, share: float) -> Tensor:
        """Add the gradient of one batch to that of the update. Returns its loss, or 0 where it does not count."""
        device, batch = self.model.device, item.batch.to(self.model.device)
        # A compiled model uses no kernels of ours, which alone read padded batches without their padding.
        packs = self.precision.kernels and self.model.packs and not self.recipe.train.compiled
        if batch.src_start is None and packs:
            batch = end_to_end(batch)
        # Not `torch.manual_seed`, which takes a millisecond where CUDA is not in use.
        torch.default_generator.manual_seed(item.seed)
        if device.type == "cuda":
            torch.cuda.manual_seed_all(item.seed)
        if self.recipe.train.cuda_graphs:  # what the last replay left in the graphs' memory may be overwritten
            cast(Any, torch.compiler).cudagraph_mark_step_begin()
        with self.precision.autocast():
            loss, reported = self.objective(
                batch.src_seq,
                batch.trg_seq,
                batch.gold,
                self.packing_of(batch, None if packs else self.recipe.data.max_len + 1),
                n_gold=batch.n_gold,
                share=share,
            )
        # Gradients are averaged over ranks, so the sum over ranks needs the factor back.
        weight = self.ranks.world_size / n_gold if item.counts else 0.0
        self.scaler.scale(loss * weight).backward()
        counted: Tensor = reported if item.counts else torch.zeros_like(reported)
        return counted

    @staticmethod
    def packing_of(batch: Batch, longest: int | None) -> tuple[Packing, Packing] | None:
        """Return the packing of source and target, or None if the batch is padded.

        longest: bound on a sentence, EOS counted; None: the longest sentence of the batch."""
        if batch.src_start is None or batch.trg_start is None:
            return None
        src, trg = (
            Packing.of(start, longest or int(start.diff().max()), seq.size(1))
            for start, seq in ((batch.src_start, batch.src_seq), (batch.trg_start, batch.trg_seq))
        )
        return src, trg

    def _give_up_if_hopeless(self, failed: Work) -> None:
        """Raise where a smaller batch would not help."""
        n, n_src = failed.batch.src_seq.shape
        what = f"memory of {self.model.device} ran out with a batch of {n:,} pairs, {n_src:,} source and "
        what += f"{failed.batch.gold.size(1):,} target subwords long"
        advice = "Or set train.checkpoint_activations to true, or make the model smaller."
        if self.ranks.world_size > 1:  # the others already wait for this rank's gradient of the whole batch
            raise OutOfMemory(
                f"rank {self.ranks.rank}: {what}. With several processes no batch can be halved on the way: make "
                f"batch.max_tokens smaller than {failed.cost:,} in a new run (batch.tokens_per_update keeps the "
                f"updates as large as they are). {advice}"
            )
        if failed.batch.src_start is not None:
            raise OutOfMemory(f"{what}: a packed row. Make batch.max_tokens smaller in a new run. {advice}")
        if n == 1:
            raise OutOfMemory(f"{what}: too long to train on. Make data.max_len smaller and prepare the data. {advice}")

    def step(self, factor: float, update: int, *, wish: bool = False, time_share: float = 0.0) -> None:
        """Move the weights by the gradient, if it and the loss are finite. factor: of the peak learning rates, or the
        rate itself under noam. update: its number, from 1. wish: whether this rank wants to stop. time_share: share of
        the time budget by its clock. All ranks get the same outcome."""
        assert self._pending is None, "settle the update before"
        rate = self.optimizers.set_rate(factor, absolute=self.recipe.optim.schedule == "noam")
        said = (float(wish), time_share if self.ranks.is_main else 0.0)
        # Filled on the device, so that a GPU need not wait for a copy.
        mine = [torch.full((), value, dtype=torch.float64, device=self.model.device) for value in said]
        loss, *said_by_all = self.ranks.add_up(torch.stack([self._loss_sum, *mine])).unbind()
        norm, moved = apply_update(
            self.model, self.optimizers, self.scaler, loss=loss, clip=self.recipe.optim.clip, late=self.late
        )
        if self.ema:
            self._average(moved, update)
        numbers, arrived = torch.stack([loss, *said_by_all, norm.double(), moved.double()]), None
        if numbers.device.type == "cuda":
            arrived = cast(Any, torch.cuda.Event)()  # which has no type hints
            host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            numbers = host.copy_(numbers, non_blocking=True)
            arrived.record()
        self._pending = numbers, arrived, self._n_gold, rate

    @property
    def is_waited_for(self) -> bool:
        """Return whether the outcome of an update is still to be settled."""
        return self._pending is not None

    def settle(self) -> Outcome | None:
        """Return the outcome of the last update; None if it was returned before. Waits for the device."""
        if self._pending is None:
            return None
        (numbers, arrived, n_gold, rate), self._pending = self._pending, None
        if arrived is not None:
            arrived.synchronize()
        loss, wish, time_share, norm, moved = numbers.tolist()
        return Outcome(loss, norm, n_gold, rate, moved > 0, wish > 0, time_share)

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


# Seconds and bytes as people say them.


def duration(seconds: float) -> str:
    """A length of time: 4.2 s, 42 s, 5 min 20 s, 3 h 05 min, 2 days 7 h."""
    if round(seconds, 1) < 10:
        return f"{seconds:.1f} s"
    hours, rest = divmod(round(seconds), 3600)
    minutes, left = divmod(rest, 60)
    if hours >= 48:
        return f"{hours // 24} days {hours % 24} h"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {left:02} s" if minutes else f"{left} s"


def size(n_byte: float) -> str:
    """A number of bytes, in powers of ten as disks are sold: 1.2 kB, 3.4 MB, 5.6 GB."""
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if n_byte >= unit:
            return f"{n_byte / unit:,.1f} {name}"
    return f"{n_byte / 1000:,.1f} kB"
