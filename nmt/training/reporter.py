"""Reports of a run, to the log and to people; `log.py` has files and bar. Nothing here changes training."""

import os

import torch
from tqdm import tqdm

from nmt.data.plan import Plan, Position
from nmt.errors import MachineError
from nmt.models.base import TranslationModel
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.options import Recipe
from nmt.training import budget
from nmt.training.budget import Budget
from nmt.training.engine import Outcome, duration
from nmt.training.log import Record, as_text
from nmt.training.memory import Memory, footprint
from nmt.training.state import TrainState, changes
from nmt.training.validate import FORMATS, Measured, describe

_SLOW = 4  # times slower than the fastest updates before
_SAMPLE = 1_000_000  # pairs, about, of a sample that represents the corpus
_FEW = 0.02  # different translations per different reference, of a model that ignores the source
_EARLY = 1000  # updates in which also a model that learns well may ignore it


def flops_per_token(model: TranslationModel, config: ModelConfig, plan: Plan) -> float:
    """Return the operations (FLOP) of training per target token (Chowdhery et al. 2022, PaLM, appendix B). Each weight
    costs 6 per token, forward and backward: encoder weights per source token, all others per target token, with the
    output layer and without embeddings. Attention costs 6 layers heads (d_k + d_v) per query and key, over whole
    sentences. Padding, recomputed activations and second passes (R-Drop) are not counted."""
    rows = plan.visits.rows(plan.seed, 0)[:: 1 + len(plan.src_len) // _SAMPLE]
    src, trg = (length.astype(float) for length in plan.lengths(rows))
    embeddings = {embedding.weight for embedding in model.embeddings}
    encoder = set(model.get_submodule("encoder").parameters()) - embeddings
    others = set(model.parameters()) - encoder - embeddings | {model.output_weight}
    n_enc, n_dec = (sum(weight.numel() for weight in weights) for weights in (encoder, others))
    n_flop = 6 * (n_enc * src.sum() + n_dec * trg.sum())
    n_query_key = {"encoder": src @ src, "decoder": trg @ trg, "cross": src @ trg}
    for kind, (n_layer, n_head) in config.attention_grids.items():
        width = sum(d or config.d_model // n_head for d in (config.d_k, config.d_v))
        n_flop += 6 * n_layer * n_head * width * n_query_key[kind]
    return float(n_flop / trg.sum())


MAX_BAD = 10  # updates in a row without a finite gradient before training gives up
TITLES = "    time   update  epoch  train loss        lr    tok/s   elapsed      left"


class TrainingReporter:
    """Reporter of the progress of a run. n_failed: how often memory ran out in training, as far as reported."""

    def __init__(
        self, recipe: Recipe, record: Record, budget: Budget, device: torch.device, token_seconds: float
    ) -> None:
        """token_seconds: seconds per target token at the peak of all devices, for `mfu`; 0: unknown."""
        self.recipe, self.record, self.budget, self.device = recipe, record, budget, device
        self.token_seconds = token_seconds
        self.n_failed = 0
        self.pace = 0.0  # seconds per update
        self.fastest, self.has_warned = 0.0, False  # target tokens per second; whether a slowdown was reported
        self.has_warned_of_source = False
        self.loss = 0.0  # last shown

    def updates(self, state: TrainState) -> None:
        """Write a line of the log, and a row for people, about the updates since the previous line."""
        sums = state.since_log
        loss = sums.loss / max(1, sums.n_gold)
        speed = sums.n_gold / max(1e-9, sums.seconds)
        self.pace = sums.seconds / max(1, sums.n_update)
        self.record.write(
            "train",
            state.update,
            epoch=state.position.epoch,
            loss=loss,
            learning_rate=sums.rate,
            gradient_norm=sums.norm / max(1, sums.n_update),
            tokens_per_second=round(speed, 1),
            **({"mfu": round(speed * self.token_seconds, 4)} if self.token_seconds else {}),
            skipped=state.n_skipped,
            seconds=round(state.seconds, 2),
            wall_seconds=round(state.wall_seconds, 2),
            **footprint(self.device),
        )
        self.record.row(
            f"{state.update:8,} {state.position.epoch:6} {loss:11.3f} {sums.rate:9.2e} {speed:8,.0f} "
            f"{clock(state.wall_seconds):>9} {clock(self.seconds_left(state, self.pace)):>9}"
        )
        self.fastest = max(self.fastest, speed)
        spins = self.device.type == "cpu" and os.environ.get("OMP_WAIT_POLICY", "").lower() != "passive"
        if spins and _SLOW * speed < self.fastest and torch.get_num_threads() > 1 and not self.has_warned:
            self.has_warned = True
            self.record.say(
                f"warning: {self.fastest / speed:.0f} times slower than before, probably since other processes use the "
                "cores. Stop this run (Ctrl-C) and start it again with OMP_WAIT_POLICY=passive in the environment: it "
                "continues, and its threads sleep while they wait."
            )

    def progress(self, state: TrainState) -> None:
        """Move the bar: by time if there is a budget, else by updates."""
        done, text, sums = float(state.update), f"update {state.update:,}", state.since_log
        if sums.n_gold:
            self.loss = sums.loss / sums.n_gold
        if self.budget.seconds:
            done, text = state.wall_seconds, f"{clock(state.wall_seconds)} of {clock(self.budget.seconds)}, {text}"
        else:
            pace = self.pace or state.seconds / max(1, state.update)
            text += f" of {self.recipe.train.updates:,}, left {clock(self.seconds_left(state, pace))}"
        metric = self.recipe.valid.metric
        best = state.best_update(metric)
        scores = [FORMATS[metric].format(entry[metric]) for entry in state.history if entry["update"] == best]
        self.record.progress(done, ", best ".join([f"{text}, loss {self.loss:.2f}", *scores]))

    def seconds_left(self, state: TrainState, pace: float) -> float:
        """Return the seconds until the last update or the end of the budget. pace: seconds per update."""
        left = max(0, self.recipe.train.updates - state.update) * pace
        return min(left, max(0.0, self.budget.seconds - state.wall_seconds)) if self.budget.seconds else left

    def resumed(self, state: TrainState, *, had_finished: bool) -> None:
        """Report if the first set was measured under other conditions in the last validation. had_finished: whether the
        run had ended here; then report its new end, too."""
        self.n_failed = state.memory.n_failed
        metric = self.recipe.valid.metric
        if state.history and (changed := changes(state.history[-1], state.conditions, metric)):
            listed = ", ".join(f"{name} {old} before and {new} now" for name, (old, new) in sorted(changed.items()))
            n_other = len(state.history) - len(state.comparable(metric))
            self.record.say(
                f"{metric} is now measured differently from the last validation: {listed}. {n_other:,} earlier "
                "validations no longer count for the best checkpoint, for valid.patience and for the final model."
            )
        if had_finished:
            seconds = self.seconds_left(state, state.wall_seconds / max(1, state.update))
            end = f"about {duration(seconds)} from now"
            if budget.stop_reason(state, self.recipe, self.budget.share(state)):
                end = "already reached, so only the final model is chosen again"
            self.record.say(f"this run had finished; its new end is {end}")

    def memory(self, update: int, memory: Memory) -> None:
        """Report that memory has run out: each time to the log, the first time to people."""
        if memory.n_failed == self.n_failed:
            return
        self.record.write("memory", update, times=memory.n_failed, too_large=memory.too_large)
        if not self.n_failed:
            self.record.say(
                f"memory ran out: from now on batches of {memory.too_large:,} tokens (sentences x longest side) or "
                "more are split in halves, with the same gradient. A smaller batch.max_tokens avoids this."
            )
        self.n_failed = memory.n_failed

    def skipped(self, state: TrainState, position: Position, outcome: Outcome) -> None:
        """Report the first skipped update of a run; the log and the final message count the others. position: place of
        the update in the data. Raises MachineError after MAX_BAD in a row."""
        where = f"update {state.update + 1} (epoch {position.epoch}, update {position.update} in it)"
        if state.n_skipped == 1:
            self.record.say(
                f"{where} was skipped: loss {outcome.loss:.4g}, gradient norm {outcome.norm:.4g}. If one of "
                "them is not finite, the weights stay unchanged. In fp16 a few are normal, until the loss scale is "
                f"found. {MAX_BAD} in a row end the run; log.jsonl counts all."
            )
        if state.n_bad >= MAX_BAD:
            raise MachineError(
                f"{where}: loss {outcome.loss}, gradient norm {outcome.norm}, learning rate {outcome.rate:.2e}: not "
                f"finite {MAX_BAD} times in a row. The weights were not touched; earlier checkpoints are intact. Start "
                "a new run with a lower learning rate, a longer optim.warmup, optim.clip, or in fp32."
            )

    def validation(self, state: TrainState, measured: dict[str, Measured]) -> None:
        """Report all measurements to the log; to people the numbers and one example of the first set, in turn."""
        (first_name, first), *others = measured.items()
        sets = {"sets": dict(others)} if others else {}
        self.record.write("valid", state.update, set=first_name, **first, **sets)
        is_best = state.best_update(self.recipe.valid.metric) == state.update
        for name, numbers in measured.items():
            label = f"valid {name}" if len(measured) > 1 else "valid"
            mark = "  * best" if is_best and name == first_name else ""
            self.record.row(f"{state.update:8,}  {label}  {describe(numbers)}{mark}")
        if examples := first.get("examples"):
            self.record.say(as_text(examples[len(state.history) % len(examples)]))
        is_late = state.update >= max(_EARLY, self.recipe.optim.n_warmup)
        if is_late and not self.has_warned_of_source and first.get("distinct", 1.0) < _FEW:
            self.has_warned_of_source = True
            self.record.say(
                "warning: almost all translations of the validation set are the same text, so the model ignores the "
                "source. If this does not change, check that the sides of the training pairs belong together "
                "(report.html of the data), or start a new run with a lower learning rate, a longer optim.warmup or "
                "model.norm: pre."
            )


clock = tqdm.format_interval  # 04:55, 1:02:24, 51:02:24
