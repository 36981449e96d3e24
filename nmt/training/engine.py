"""One update: batches in, new weights out. The loop, the data and the log are elsewhere. On a GPU nothing here waits
for the device: the device itself decides whether an update is valid, and the results of an update are read while the
next one is computed. On a CPU the same code runs synchronously."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from tqdm import tqdm

from nmt import checkpoint
from nmt.data.batches import Batch, end_to_end
from nmt.data.subwords import EOS, PAD
from nmt.errors import OutOfMemory, suppress_out_of_memory
from nmt.masks import Packing
from nmt.models.base import DROPPED, TranslationModel
from nmt.ops import consistency, smoothed_cross_entropy
from nmt.recipe.options import Recipe
from nmt.recipe.training_options import RegularizeConfig
from nmt.training.memory import Memory, Work
from nmt.training.optim import Optimizers
from nmt.training.parallel import Ranks, local
from nmt.training.precision import Precision


def drop_words(seq: Tensor, p: float, first_tag: int | None = None) -> Tensor:
    """Drop each word of (B, L) ids with probability p (Gal and Ghahramani 2016; each position independently, as in
    Sennrich et al. 2016). PAD, BOS, EOS and tags (ids from first_tag on) stay. The remaining words are not scaled by
    1 / (1 - p) (Shen et al. 2020)."""
    if not p:
        return seq
    dropped = (torch.rand(seq.shape, device=seq.device) < p) & (seq > EOS)
    if first_tag is not None:
        dropped &= seq < first_tag
    return seq.masked_fill(dropped, DROPPED)


class Objective(nn.Module):
    """A model and its training loss.

    The default loss is CE, the label-smoothed cross-entropy. R-Drop and SimCut add KL, a divergence between two passes
    over all classes. Both are sums over gold tokens.

    R-Drop (X. Liang et al. 2021, "R-Drop: regularized dropout for neural networks"): each sentence goes through the
    model twice, with different dropout, as P1 and P2; the loss is

        CE(P1) + CE(P2) + alpha · (KL(P1 || P2) + KL(P2 || P1)) / 2

    Half of that is minimised here, so that the gradient does not double where R-Drop starts.

    SimCut (P. Gao et al. 2022, "Bi-SimCut: a simple strategy for boosting neural machine translation"): the loss is

        CE(P) + alpha · KL(P || P_cut)

    where P_cut sees the sentences with words cut out on both sides. The gradient goes through both passes, to which the
    paper attributes its gains.

    The reported loss is always CE alone (with R-Drop the mean of both passes), so losses stay comparable.
    """

    def __init__(
        self, model: TranslationModel, smoothing: float, regularize: RegularizeConfig, *, compiled: bool = False
    ) -> None:
        super().__init__()
        self.model, self.smoothing, self.regularize, self.compiled = model, smoothing, regularize, compiled
        for embedding in model.embeddings:
            embedding.may_drop = bool(regularize.simcut or regularize.src_word_dropout or regularize.trg_word_dropout)

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
        """(B, S), (B, T), (B, T) -> the loss to minimise and the loss to report, both sums over gold tokens. n_gold:
        number of gold tokens, so that it need not be read from a GPU. share: of the run that has passed."""
        config = self.regularize.at(share)
        dim = 1 if packing else 0  # the second pass is appended as rows, or to the one packed row
        if config.r_drop:
            src_seq, trg_seq = torch.cat([src_seq, src_seq], dim), torch.cat([trg_seq, trg_seq], dim)
        src_seq = drop_words(src_seq, config.src_word_dropout, self.model.first_tag)
        trg_seq = drop_words(trg_seq, config.trg_word_dropout)
        if config.simcut:
            src_seq = torch.cat([src_seq, drop_words(src_seq, config.simcut_p, self.model.first_tag)], dim)
            trg_seq = torch.cat([trg_seq, drop_words(trg_seq, config.simcut_p)], dim)
        if packing and (config.r_drop or config.simcut):
            packing = packing[0].twice(), packing[1].twice()
        hidden = self.model.decode_hidden(src_seq, trg_seq, packing)
        weight, scale = self.model.output_weight, self.model.logit_scale
        options: dict[str, Any] = {"smoothing": self.smoothing, "scale": scale, "pad_idx": PAD, "n_gold": n_gold}
        if config.r_drop:
            first, second = hidden.chunk(2, dim)
            kl = config.r_drop / 4, config.r_drop / 4
            loss, ce = consistency(first, second, weight, gold, ce=(0.5, 0.5), kl=kl, **options)
        elif config.simcut:
            whole, cut = hidden.chunk(2, dim)
            loss, ce = consistency(whole, cut, weight, gold, ce=(1.0, 0.0), kl=(config.simcut, 0.0), **options)
        else:
            loss = ce = smoothed_cross_entropy(hidden, weight, gold, compiled=self.compiled, **options)
        return loss, ce.detach()


@dataclass(frozen=True)
class Outcome:
    """Outcome of an update. loss: summed over its n_gold tokens of all ranks. norm: of the gradient. moved: False if
    loss or norm was not finite, so the weights stayed. stop: a rank wants to stop. time_share: of the budget."""

    loss: float
    norm: float
    n_gold: int
    rate: float  # learning rate of the first optimizer
    moved: bool
    stop: bool
    time_share: float


class Engine:
    """A model in training with its optimizers. ema: the moving average by name of the parameter, if there is one.

    is_async: whether `settle` may be deferred until the next update has started, which keeps a GPU busy.
    """

    def __init__(self, model: TranslationModel, recipe: Recipe, *, precision: Precision, ranks: Ranks) -> None:
        self.model, self.recipe, self.precision, self.ranks = model, recipe, precision, ranks
        train = recipe.train
        # Rank 0 validates with full weights, so a sharded model needs an unsharded copy.
        self._is_sharded = ranks.world_size > 1 and train.parallel == "fsdp"
        self._twin = copy.deepcopy(model).cpu() if self._is_sharded and ranks.is_main else None
        objective = Objective(model, train.label_smoothing, recipe.regularize, compiled=train.compiled)
        self.objective = ranks.distribute(objective, train.parallel)
        self.optimizers = Optimizers(model, recipe.optim, in_bf16=precision.has_fast_bf16)
        self.scaler = precision.scaler()
        self.ema = {name: p.detach().clone() for name, p in model.named_parameters()} if train.ema else {}
        self.is_async = model.device.type == "cuda" and self.optimizers.skips_on_device and not self.scaler.is_enabled()
        self.memory = Memory()
        # DDP rebuilds its buckets after the first backward pass, which changes the order of summation. Without a
        # rehearsal, the first update after a resume would round differently than in an uninterrupted run.
        self._rehearse = ranks.world_size > 1
        self._loss_sum, self._n_gold = torch.zeros(()), 0  # of the accumulated gradient
        # Of the pending update: a tensor of loss, requests to stop, time share, norm, and whether the weights moved;
        # the event of its copy from a GPU; tokens; learning rate.
        self.pending: tuple[Tensor, Any, int, float] | None = None

    def backward(self, work: list[Work], n_gold: int, *, share: float = 0.0) -> None:
        """Accumulate the gradient of an update: of the loss of all ranks' batches, divided by their n_gold tokens.

        share: of the run that has passed, for regularisers that start later. When memory runs out, the batch that did
        not fit is halved and the whole update is repeated; see `memory`.
        """
        if self._rehearse:
            self._rehearse = False
            self.backward(work[:1], n_gold, share=share)
            self.model.zero_grad()
        while (failed := self._accumulate(work, n_gold, share)) is not None:
            self.memory.ran_out(failed)
            self._give_up_if_hopeless(failed)
            self.model.zero_grad()
            if self.model.device.type == "cuda":
                torch.cuda.empty_cache()

    def _accumulate(self, work: list[Work], n_gold: int, share: float) -> Work | None:
        """Add up the gradients of batches. Returns the batch that did not fit into memory, or None."""
        if not self._is_sharded:  # else all ranks need as many forward passes
            work = self.memory.pieces(work)
        loss_sum = torch.zeros((), device=self.model.device)
        saved: dict[Tensor, Tensor] = {}
        for i, item in enumerate(work):
            is_last = i == len(work) - 1
            with suppress_out_of_memory():
                with self.ranks.sync_gradients(self.objective, now=is_last):
                    loss_sum += self._backward_of(item, n_gold, share)
                if self.recipe.train.cuda_graphs and not is_last:
                    # Each graph replay overwrites the gradients of the previous one, so these are copied.
                    for parameter in self.model.parameters():
                        if parameter.grad is not None and parameter.grad is not saved.get(parameter):
                            parameter.grad = saved[parameter] = parameter.grad.clone()
                continue
            return item
        self._loss_sum, self._n_gold = loss_sum.double(), n_gold
        return None

    def _backward_of(self, item: Work, n_gold: int, share: float) -> Tensor:
        """Add the gradient of one batch to the gradient of the update. Returns its loss, or 0 if it does not count."""
        device, batch = self.model.device, item.batch.to(self.model.device)
        # Only our own kernels skip the padding of a padded batch, and a compiled model does not use them.
        packs = self.precision.kernels and self.model.packs and not self.recipe.train.compiled
        if batch.src_start is None and packs:
            batch = end_to_end(batch)
        # Not `torch.manual_seed`, which takes a millisecond where CUDA is not in use.
        torch.default_generator.manual_seed(item.seed)
        if device.type == "cuda":
            torch.cuda.manual_seed_all(item.seed)
        if self.recipe.train.cuda_graphs:  # results of the last replay may be overwritten
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
        # Gradients are averaged over ranks; the factor world_size turns the mean into a sum.
        weight = self.ranks.world_size / n_gold if item.counts else 0.0
        self.scaler.scale(loss * weight).backward()
        counted: Tensor = reported if item.counts else torch.zeros_like(reported)
        return counted

    @staticmethod
    def packing_of(batch: Batch, longest: int | None) -> tuple[Packing, Packing] | None:
        """The packings of both sides; None if padded. longest: bound on a sentence with EOS; None: the maximum."""
        if batch.src_start is None or batch.trg_start is None:
            return None
        src, trg = (
            Packing.of(start, longest or int(start.diff().max()), seq.size(1))
            for start, seq in ((batch.src_start, batch.src_seq), (batch.trg_start, batch.trg_seq))
        )
        return src, trg

    def _give_up_if_hopeless(self, failed: Work) -> None:
        """Raise OutOfMemory if halving the batch cannot help."""
        n, n_src = failed.batch.src_seq.shape
        what = f"memory of {self.model.device} ran out with a batch of {n:,} pairs, {n_src:,} source and "
        what += f"{failed.batch.gold.size(1):,} target subwords long"
        advice = "Or make the model smaller, or set train.checkpoint_activations to true for a Transformer."
        if self.ranks.world_size > 1:  # the other ranks already wait for the gradient of the whole batch
            raise OutOfMemory(
                f"rank {self.ranks.rank}: {what}. With several processes a batch cannot be halved during training: "
                f"make batch.max_tokens smaller than {failed.cost:,} in a new run (batch.tokens_per_update keeps the "
                f"size of the updates). {advice}"
            )
        if failed.batch.src_start is not None:
            raise OutOfMemory(f"{what}: a packed row. Make batch.max_tokens smaller in a new run. {advice}")
        if n == 1:
            raise OutOfMemory(f"{what}: too long to train on. Make data.max_len smaller and prepare the data. {advice}")

    def step(self, factor: float, update: int, *, wish: bool = False, time_share: float = 0.0) -> None:
        """Update the weights if gradient and loss are finite. factor: of the peak learning rates; under noam, the rate
        itself. update: its number, from 1. wish: whether this rank wants to stop. time_share: share of the time budget
        by this rank's clock; rank 0's counts. All ranks get the same outcome."""
        assert self.pending is None, "settle the update before"
        rate = self.optimizers.set_rate(factor, absolute=self.recipe.optim.schedule == "noam")
        values = (float(wish), time_share if self.ranks.is_main else 0.0)
        # Filled on the device, so that a GPU need not wait for a copy.
        signals = [torch.full((), value, dtype=torch.float64, device=self.model.device) for value in values]
        loss, *signal_sums = self.ranks.all_reduce(torch.stack([self._loss_sum, *signals])).unbind()
        clip, on_device = self.recipe.optim.clip, self.is_async
        norm, moved = self.optimizers.apply_update(self.scaler, loss=loss, clip=clip, on_device=on_device)
        if self.ema:
            self._average(moved, update)
        numbers, arrived = torch.stack([loss, *signal_sums, norm.double(), moved.double()]), None
        if numbers.device.type == "cuda":
            arrived = cast(Any, torch.cuda.Event)()  # it has no type hints
            host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            numbers = host.copy_(numbers, non_blocking=True)
            arrived.record()
        self.pending = numbers, arrived, self._n_gold, rate

    def settle(self) -> Outcome | None:
        """Wait for the device and return the outcome of the last update; None if it was returned before."""
        if self.pending is None:
            return None
        (numbers, arrived, n_gold, rate), self.pending = self.pending, None
        if arrived is not None:
            arrived.synchronize()
        loss, wish, time_share, norm, moved = numbers.tolist()
        return Outcome(loss, norm, n_gold, rate, moved > 0, wish > 0, time_share)

    @torch.no_grad()
    def _average(self, moved: Tensor, update: int) -> None:
        # The decay starts small, or a young average would keep the initial weights.
        decay = min(self.recipe.train.ema, (1 + update) / (10 + update))
        ema = [local(average) for average in self.ema.values()]
        change = torch._foreach_sub([local(p) for p in self.model.parameters()], ema)
        torch._foreach_mul_(change, moved * (1 - decay))  # a skipped update leaves the average alone
        torch._foreach_add_(ema, change)

    @contextmanager
    def whole_model(self, weights: dict[str, Tensor] | None = None) -> Iterator[TranslationModel]:
        """Yield a model with full weights on rank 0. weights: for the copy of a sharded model; None: keep its own."""
        if self._twin is None:
            yield self.model
            return
        if weights is not None:
            checkpoint.load_weights(self._twin, weights, "the weights of all ranks")
        try:
            yield self._twin.to(self.model.device)
        finally:
            self._twin.cpu()


def duration(seconds: float) -> str:
    """Format a length of time: 4.2 s, 42 s, 5 min 20 s, 3 h 05 min."""
    if round(seconds, 1) < 10:
        return f"{seconds:.1f} s"
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    if hours:
        return f"{hours:,} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


size = partial(tqdm.format_sizeof, suffix="B")  # 1.20kB, 34.0MB, 567GB: powers of ten, as disks are sold
