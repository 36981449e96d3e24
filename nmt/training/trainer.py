"""The training loop: fetch, forward, backward, apply, and now and then log, validate, save.

One process, several, CPU or GPU run these same lines. What follows from the position in the data is computed, so a
resumed run is the uninterrupted one, bit for bit.
"""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nmt import checkpoint
from nmt.data.batches import Batch, Change, make_batch, read_ahead
from nmt.data.corpus import Prepared
from nmt.data.plan import Plan, Position, Rows
from nmt.data.split import Splitter
from nmt.data.subwords import PAD
from nmt.errors import TrainingError
from nmt.models.base import TranslationModel
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training.loss import smoothed_cross_entropy
from nmt.training.optim import Optimizers, apply_update, build_optimizers
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision
from nmt.training.record import Record
from nmt.training.schedule import learning_rate_factor
from nmt.training.state import TrainState, dropout_seed
from nmt.training.validate import Validator

MAX_BAD = 10  # updates in a row without a finite gradient before training gives up


class TrainingLoss(nn.Module):
    """Ids in, summed loss out: one module, so that every device wrapper sees one forward pass."""

    def __init__(self, model: TranslationModel, smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing

    def forward(self, src_seq: Tensor, trg_seq: Tensor, gold: Tensor) -> Tensor:
        """(B, S), (B, T), (B, T) -> sum over gold tokens of the label-smoothed cross-entropy."""
        hidden = self.model.decode_hidden(src_seq, trg_seq)
        return smoothed_cross_entropy(
            hidden,
            self.model.output_weight,
            gold,
            smoothing=self.smoothing,
            scale=self.model.logit_scale,
            pad_idx=PAD,
        )


class Trainer:
    """A model in training. `train` runs until the recipe's last update, early stopping or a wish to stop."""

    def __init__(
        self,
        recipe: Recipe,
        data: Prepared,
        model: TranslationModel,
        *,
        precision: Precision,
        ranks: Ranks,
        run: Run,
        record: Record,
        wants_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.recipe, self.data, self.model, self.run, self.record = recipe, data, model, run, record
        self.precision, self.ranks, self.wants_stop = precision, ranks, wants_stop
        self.state = TrainState()
        self.optimizers: Optimizers = build_optimizers(model, recipe.optim)
        self.scaler = precision.scaler()
        self.loss = ranks.wrap(TrainingLoss(model, recipe.train.label_smoothing), model.device)
        self.ema = [p.detach().clone() for p in model.parameters()] if recipe.train.ema else []
        self.plan = Plan(
            data.train.src_len,
            data.train.trg_len,
            seed=recipe.seed,
            max_tokens=recipe.batch.max_tokens,
            per_update=recipe.batch.per_update,
            pool=recipe.batch.pool,
        )
        rate = recipe.batch.split_rate
        subwords = data.subwords
        self.splitters = (Splitter(subwords.src, rate), Splitter(subwords.trg, rate)) if rate else None
        self.validator = Validator(
            data.valid, data.subwords, recipe.valid, recipe.decode, precision, recipe.data.trg_lang
        )

    # -- saving and restoring ------------------------------------------------------------------------------------

    def restore(self, folder: Path, state: dict[str, object]) -> None:
        """Take up a verified checkpoint."""
        checkpoint.load_weights(self.model, checkpoint.load_tensors(folder, checkpoint.MODEL), str(folder))
        self.optimizers.load_state(self.model, checkpoint.load_tensors(folder, checkpoint.OPTIMIZER))
        self.state = TrainState.from_json(state)
        if self.state.scaler:
            self.scaler.load_state_dict(self.state.scaler)
        if self.ema:
            saved = checkpoint.load_tensors(folder, checkpoint.EMA)
            for mine, (name, _) in zip(self.ema, self.model.named_parameters(), strict=True):
                mine.copy_(saved[name])
        self.record.go_on(self.state.update)

    def save(self) -> None:
        """Commit a checkpoint of this moment, then delete those that may go."""
        if not self.ranks.is_main:
            return
        metric = self.recipe.valid.metric
        self.state.scaler = self.scaler.state_dict()
        tensors = {
            checkpoint.MODEL: checkpoint.weights_of(self.model),
            checkpoint.OPTIMIZER: self.optimizers.state(self.model),
        }
        if self.ema:
            tensors[checkpoint.EMA] = self._ema_weights()
        arithmetic = {name: getattr(self.precision, name) for name in ("name", "device", "fast_fp32")}
        state = {**self.state.to_json(metric), "arithmetic": arithmetic}
        checkpoint.save(self.run.checkpoint(self.state.update), tensors, state)
        scores = self.state.scores(metric)
        keep = self.recipe.train
        for update in checkpoint.checkpoints_to_delete(
            {update: scores.get(update) for update in self.run.updates()},
            keep_last=keep.keep_last,
            keep_best=keep.keep_best,
        ):
            checkpoint.remove(self.run.checkpoint(update))

    def _ema_weights(self) -> dict[str, Tensor]:
        names = (name for name, _ in self.model.named_parameters())
        return {**checkpoint.weights_of(self.model), **dict(zip(names, self.ema, strict=True))}

    # -- the loop --------------------------------------------------------------------------------------------------

    def train(self) -> str:
        """Train until the end. Returns why it ended: 'done', 'patience' or 'stopped'."""
        recipe, state = self.recipe, self.state
        if self._catch_up():
            return "stopped"
        if over := self._is_over():
            return over
        self.model.train()
        meter = Meter()
        for batches, following in self._fetch():
            loss, n_gold = self._backward(batches, state.position)
            norm = self._apply(loss, n_gold, state.position)
            state.position = following
            state.seconds += meter.add(loss, n_gold, norm)
            if state.n_bad:
                continue
            u = state.update
            if u % recipe.train.log_every == 0 or u == recipe.train.updates:
                self._log(meter)
                meter = Meter()
            else:
                self.record.progress(u)
            stop = self.ranks.any(self.wants_stop())
            validated = self._validation_is_due() and not stop
            if validated:
                stop = not self.validate()
            over = self._is_over()
            if stop or over or validated or u % recipe.train.save_every == 0:
                self.save()
                meter.restart_clock()
            if stop or over:
                return "stopped" if stop else over
        raise AssertionError("the plan never ends")

    def _catch_up(self) -> bool:
        """Make the validation that a stop prevented. Returns whether a stop prevented it again."""
        if not self._validation_is_due():
            return False
        finished = self.validate()
        self.save()
        return not finished

    def _validation_is_due(self) -> bool:
        u, every = self.state.update, self.recipe.valid.every
        reached = u > 0 and (u % every == 0 or u == self.recipe.train.updates)
        return reached and all(entry["update"] != u for entry in self.state.history)

    def _is_over(self) -> str:
        """Why training is over: 'done', 'patience', or '' if it is not."""
        if self.state.update >= self.recipe.train.updates:
            return "done"
        valid = self.recipe.valid
        return "patience" if self.state.out_of_patience(valid.metric, valid.patience) else ""

    def _fetch(self) -> Iterator[tuple[list[tuple[Batch, bool, int]], Position]]:
        """This rank's batches of each update from here on, made a little ahead, and the position after the update.

        A batch comes with whether it counts and its index among all batches of the update.
        """

        def positions() -> Iterator[tuple[list[Rows], Position, Position]]:
            following = self.state.position
            while True:
                position = following
                update, following = self.plan.at(position)
                yield update, position, following

        def make(item: tuple[list[Rows], Position, Position]) -> tuple[list[tuple[Batch, bool, int]], Position]:
            update, position, following = item
            numbered = list(enumerate(update))
            mine = self.ranks.share(numbered)
            made = [
                (make_batch(self.data.train, rows, self._splits(position, index)), counts, index)
                for (index, rows), counts in mine
            ]
            return made, following

        return read_ahead(make, positions())

    def _splits(self, position: Position, index: int) -> Change | None:
        """How batch `index` of an update splits its subwords, if they are to be split."""
        if self.splitters is None:
            return None
        split_src, split_trg = self.splitters
        rng = np.random.default_rng(dropout_seed(self.recipe.seed, position, index))
        return lambda src, trg: (split_src(src, rng), split_trg(trg, rng))

    def _backward(self, batches: list[tuple[Batch, bool, int]], position: Position) -> tuple[float, int]:
        """Accumulate the gradient of an update. Returns the summed loss and the gold tokens over all ranks."""
        if self.splitters is None:
            # Every rank knows every length, so the divisor needs no communication.
            n_gold = self.plan.n_gold(self.plan.updates(position.epoch)[position.update])
        else:  # what was split is known only where the batch was made
            n_gold = int(self.ranks.sum(sum(batch.n_gold for batch, counts, _ in batches if counts))[0])
        loss_sum = torch.zeros((), device=self.model.device)
        for turn, (host_batch, counts, index) in enumerate(batches):
            batch = host_batch.to(self.model.device)
            torch.manual_seed(dropout_seed(self.recipe.seed, position, index))
            last = turn == len(batches) - 1
            with self.ranks.exchange(self.loss, now=last):
                with self.precision.autocast():
                    loss = self.loss(batch.src_seq, batch.trg_seq, batch.gold)
                # Gradients are averaged over ranks, so the sum over ranks needs the factor back.
                share = self.ranks.world_size / n_gold if counts else 0.0
                self.scaler.scale(loss * share).backward()
            if counts:
                loss_sum += loss.detach()
        return self.ranks.sum(float(loss_sum))[0], n_gold

    def _apply(self, loss: float, n_gold: int, position: Position) -> float:
        """Move the weights, if loss and gradient are finite. Returns the norm of the gradient."""
        state, recipe = self.state, self.recipe
        factor = learning_rate_factor(
            state.update + 1, recipe.optim, n_update=recipe.train.updates, d_model=recipe.model.d_model
        )
        rate = self.optimizers.set_rate(factor, absolute=recipe.optim.schedule == "noam")
        norm, moved = apply_update(self.model, self.optimizers, self.scaler, loss=loss, clip=recipe.optim.clip)
        if not moved:
            state.n_skipped += 1
            state.n_bad += 1
            if state.n_bad >= MAX_BAD:
                raise TrainingError(self._hopeless(loss, norm, rate, position))
            return norm
        state.update += 1
        state.n_bad = 0
        state.n_token += n_gold
        if self.ema:
            # A young average would remember the initialisation; so the decay grows into its value.
            decay = min(recipe.train.ema, (1 + state.update) / (10 + state.update))
            with torch.no_grad():
                torch._foreach_lerp_(self.ema, list(self.model.parameters()), 1 - decay)
        return norm

    def _hopeless(self, loss: float, norm: float, rate: float, position: Position) -> str:
        saved = self.run.updates()
        last_good = checkpoint.name_of(saved[-1]) if saved else "none"
        return (
            f"update {self.state.update + 1} (epoch {position.epoch}, update {position.update} in it): loss {loss}, "
            f"gradient norm {norm}, learning rate {rate:.2e}, loss scale {self.scaler.get_scale():g}: not finite "
            f"{MAX_BAD} times in a row. The weights were not touched; last good checkpoint: {last_good}. Lower "
            "optim.lr, raise optim.warmup, set optim.clip, or train in fp32."
        )

    # -- telling ---------------------------------------------------------------------------------------------------

    def _log(self, meter: "Meter") -> None:
        state = self.state
        rate = float(self.optimizers.parts[0][0].param_groups[0]["lr"])
        speed = meter.n_gold / max(1e-9, meter.seconds)
        self.record.write(
            "train",
            state.update,
            epoch=state.position.epoch,
            loss=meter.loss / max(1, meter.n_gold),
            learning_rate=rate,
            gradient_norm=meter.norm / max(1, meter.n_update),
            tokens_per_second=round(speed, 1),
            skipped=state.n_skipped,
            seconds=round(state.seconds, 2),
        )
        shown = {"loss": f"{meter.loss / max(1, meter.n_gold):.3f}", "lr": f"{rate:.2e}", "tok/s": f"{speed:,.0f}"}
        if state.history and (best := state.best_update(self.recipe.valid.metric)) is not None:
            entry = next(e for e in state.history if e["update"] == best)
            shown["best"] = f"{entry[self.recipe.valid.metric]:.2f}"
        self.record.progress(state.update, epoch=f"{state.position.epoch}", **shown)

    def validate(self) -> bool:
        """Measure the model on the validation set, on rank 0; every rank remembers the numbers.

        Returns False, remembering nothing, when somebody wanted to stop meanwhile.
        """
        numbers: dict[str, float] = {}
        beside: dict[str, Any] = {}
        names = ["loss", "perplexity", "accuracy"] + (["bleu", "chrf"] if self.recipe.valid.translate else [])
        if self.ranks.is_main:
            numbers, beside = self.validator.measure(self.model, lambda: not self.wants_stop())
        if self.ranks.any(self.wants_stop()):
            return False
        if self.ranks.is_main:
            self.record.write("valid", self.state.update, **numbers, **beside)
            self.record.say(describe(self.state.update, numbers))
            for example in beside.get("examples", []):
                self.record.say("    " + "\n    ".join(f"{what:9}  {text}" for what, text in example.items()))
        told = self.ranks.tell(*(numbers.get(name, math.nan) for name in names))
        entry = {name: value for name, value in zip(names, told, strict=True) if math.isfinite(value)}
        self.state.history.append({"update": self.state.update, **entry})
        return True


class Meter:
    """Sums over the updates since the last line of the log."""

    def __init__(self) -> None:
        self.loss = self.norm = self.seconds = 0.0
        self.n_gold = self.n_update = 0
        self.clock = time.perf_counter()

    def add(self, loss: float, n_gold: int, norm: float) -> float:
        """Count an update. Returns the seconds since the one before."""
        now = time.perf_counter()
        seconds, self.clock = now - self.clock, now
        self.loss += loss
        self.norm += norm
        self.n_gold += n_gold
        self.n_update += 1
        self.seconds += seconds
        return seconds

    def restart_clock(self) -> None:
        """Leave out the time since the last update: it went into validating or saving."""
        self.clock = time.perf_counter()


def describe(update: int, numbers: dict[str, float]) -> str:
    """One line of validation results for people."""
    shown = {"loss": ".4f", "perplexity": ".3f", "accuracy": ".1%", "bleu": ".2f", "chrf": ".2f"}
    parts = [f"{name} {numbers[name]:{form}}" for name, form in shown.items() if name in numbers]
    return f"update {update:,}: " + ", ".join(parts)
