"""Validation: loss, perplexity and accuracy by teacher forcing, BLEU and chrF by translating."""

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nmt import checkpoint
from nmt.data.batches import Batch, length_batches, make_batch
from nmt.data.corpus import Corpus, Prepared
from nmt.data.placeholders import held_out_tags
from nmt.data.subwords import PAD, Subwords
from nmt.data.text import split_of
from nmt.decoding.long_lines import Limits, limits_of, usual_len
from nmt.decoding.translator import Translator
from nmt.errors import OutOfMemory, RunError, is_out_of_memory
from nmt.evaluation.metrics import METRICS, Comet, Texts, bleu_tokens, comet_model, score
from nmt.models.base import TranslationModel, evaluating
from nmt.recipe.data_options import ValidationSet
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training.log import Record
from nmt.training.memory import Memory, Work
from nmt.training.precision import Precision
from nmt.training.state import Conditions, TrainState, goodness

N_EXAMPLE = 3
_AT_ONCE = 1 << 23  # logits that are converted to full precision at a time
FORCED = ("loss", "perplexity", "accuracy")
# Options of `decode` that change the translations.
_SEARCH = (
    *("beam", "length_penalty", "alpha", "no_repeat", "split", "max_src_len", "copy_letterless"),
    *("max_len_a", "max_len_b", "min_len_a", "min_len_b"),
)
Measured = tuple[dict[str, float], dict[str, Any]]  # numbers; signatures and examples


class _StopTranslating(Exception):
    """Raised to stop in the middle of translating."""


@contextlib.contextmanager
def eager(model: TranslationModel) -> Iterator[None]:
    """Context manager: run a model eagerly, although its parts are compiled. The compiler would compile each shape of
    validation, and after a few of them it would give up on training, too."""
    is_compiled = any(getattr(module, "_compiled_call_impl", None) for module in model.modules())
    with torch.compiler.set_stance("force_eager") if is_compiled else contextlib.nullcontext():
        yield


def comet_of(recipe: Recipe, device: str = "cpu") -> Comet | None:
    """Load COMET on a device if it is the metric that ranks checkpoints; return None otherwise. Raises Unavailable."""
    if recipe.valid.metric != "comet":
        return None
    return comet_model("valid.comet", recipe.valid.comet, device, recipe.origin)


class Validator:
    """Measures a model on one corpus, always in the same way. files: the entry of the set in the recipe; None for a
    corpus that was made. limits: as in nmt-translate."""

    def __init__(
        self,
        corpus: Corpus,
        subwords: Subwords,
        recipe: Recipe,
        files: ValidationSet | None,
        precision: Precision,
        limits: Limits,
    ) -> None:
        self.corpus, self.subwords, self.config = corpus, subwords, recipe.valid
        self.precision, self.limits, self.load_comet = precision, limits, partial(comet_of, recipe)
        measure, max_sentences = (files.measure, files.max_sentences) if files else (None, None)
        self.translate = recipe.valid.translate if measure is None else measure == "translate"
        self.src_lang, self.trg_lang = recipe.data.src_lang, (files and files.trg_lang) or recipe.data.trg_lang
        search = {"beam": self.config.beam, "n_best": 1, "max_tokens": self.config.max_tokens}
        self.decode = recipe.decode.for_beam_search().model_copy(update=search)
        src, trg = corpus.texts()
        # If the set has no max_sentences, the loss is measured on all pairs, translations on valid.max_sentences.
        n_translated = (self.config.max_sentences if max_sentences is None else max_sentences) or len(src)
        self.src, self.trg = src[:n_translated], trg[:n_translated]
        lengths = np.maximum(corpus.src_len, corpus.trg_len).astype(np.int64) + 1  # of the longer side, with EOS
        self.batches = length_batches(lengths[: max_sentences or None], self.config.max_tokens)
        self.memory = Memory()
        self.metrics = [name for name, metric in METRICS.items() if metric.always or name == self.config.metric]
        self.names = (*FORCED, *self.metrics) if self.translate else FORCED  # of all numbers

    @property
    def conditions(self) -> Conditions:
        """Settings that the numbers depend on, apart from model and set: only like is compared with like."""
        conditions: Conditions = {"pairs": {"pairs": sum(map(len, self.batches))}}
        if self.translate:
            search = {name: getattr(self.decode, name) for name in _SEARCH}
            tokens = bleu_tokens(self.trg_lang)[0]
            conditions["translations"] = {"sentences": len(self.src), "tokens": tokens, **search}
            if self.config.metric == "comet":
                conditions["translations"]["comet"] = self.config.comet
        return conditions

    def measure(
        self,
        model: TranslationModel,
        keep_going: Callable[[], bool] = lambda: True,
        in_time: Callable[[], bool] = lambda: True,
    ) -> Measured:
        """Return the numbers {loss, perplexity, accuracy, bleu, chrf} that are finite; and signatures and examples.
        keep_going: called between batches. in_time: called only during translation. After the first False the rest is
        left out. When memory runs out, batches are halved, with the same result. Raises OutOfMemory if halving does not
        help, and MachineError if the scores of a search are not finite."""
        try:
            with evaluating(model), eager(model):
                numbers = self._teacher_forced(model, keep_going)
                details: dict[str, Any] = {}
                if self.translate and keep_going():
                    with contextlib.suppress(_StopTranslating):
                        scores, details = self._translated(model, lambda: keep_going() and in_time())
                        numbers |= scores
            return {name: value for name, value in numbers.items() if math.isfinite(value)}, details
        except (OutOfMemory, RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(
                f"memory of {model.device} ran out in validation, even with one pair at a time: make valid.beam, "
                f"{self.config.beam}, or decode.max_len_a smaller, set valid.translate to false, or measure fewer "
                "pairs by the set's max_sentences."
            ) from None

    @torch.inference_mode()
    def _teacher_forced(self, model: TranslationModel, keep_going: Callable[[], bool]) -> dict[str, float]:
        loss, n_right, n_gold = 0.0, 0, 0
        for rows in self.batches:
            if not keep_going():
                break
            pending = [Work(make_batch(*self.corpus.picked(rows)))]
            while pending := self.memory.pieces(pending):
                loss_and_hits = self._forward(model, pending[0].batch)
                if loss_and_hits is None:
                    if pending[0].batch.src_seq.size(0) == 1:
                        raise OutOfMemory("one pair alone")
                    self.memory.ran_out(pending[0])
                    continue
                loss, n_right = loss + loss_and_hits[0], n_right + loss_and_hits[1]
                n_gold += pending.pop(0).batch.n_gold
        mean = loss / max(1, n_gold)
        return {"loss": mean, "perplexity": math.exp(min(mean, 50.0)), "accuracy": n_right / max(1, n_gold)}

    def _forward(self, model: TranslationModel, batch: Batch) -> tuple[float, int] | None:
        """Return the summed loss and the number of hits of a batch; None if the batch does not fit into memory."""
        try:
            batch = batch.to(model.device)
            with self.precision.measuring():
                logits = model(batch.src_seq, batch.trg_seq)
            loss, hits = _loss_and_hits(logits, batch.gold)
            return float(loss), int(hits)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        if model.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def _translated(
        self, model: TranslationModel, keep_going: Callable[[], bool]
    ) -> tuple[dict[str, float], dict[str, Any]]:
        def check_stop(_n_done: int) -> None:
            if not keep_going():
                raise _StopTranslating

        languages = self.src_lang, self.trg_lang
        translator = Translator(model, self.subwords, self.decode, limits=self.limits, languages=languages)
        with self.precision.measuring():
            translations = list(translator.translate(self.src, check_stop))
        output = [translation.text for translation in translations]
        texts = Texts(output, [self.trg], self.src, self.trg_lang, self.load_comet(str(model.device)))
        scores = score(texts, self.metrics)
        n_example = min(N_EXAMPLE, len(output))
        picked = [i * len(output) // n_example for i in range(n_example)]
        details: dict[str, Any] = {f"{name}_signature": result.signature for name, result in scores.items()}
        details["examples"] = [{"source": self.src[i], "output": output[i], "reference": self.trg[i]} for i in picked]
        return {name: result.value for name, result in scores.items()}, details


def _loss_and_hits(logits: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T, V), (B, T) -> the summed cross-entropy in nats without smoothing; the tokens whose best class is gold."""
    loss, hits = torch.zeros((), dtype=torch.float64, device=gold.device), torch.zeros_like(gold[0, 0])
    n_row = max(1, _AT_ONCE // logits.size(-1))
    for z, target in zip(torch.split(logits.flatten(0, 1), n_row), torch.split(gold.flatten(), n_row), strict=True):
        loss += nn.functional.cross_entropy(z.float(), target, ignore_index=PAD, reduction="sum")
        hits += ((z.argmax(-1) == target) & (target != PAD)).sum()
    return loss, hits


class Validation:
    """All validation sets of a recipe, by name. The first one ranks checkpoints; the others are only reported."""

    def __init__(self, recipe: Recipe, data: Prepared, precision: Precision) -> None:
        files_of = {files.name: files for files in recipe.data.valid}  # without corpora that were made
        self.sets: dict[str, Validator] = {}
        tags = held_out_tags(recipe.data)
        limits = limits_of(recipe.decode, max_len=recipe.data.max_len, usual_src_len=usual_len(data.train.src_len))
        for name, corpus in data.valid_sets.items():
            subwords = data.subwords.tagged(tags.get(split_of(name), ()))
            self.sets[name] = Validator(corpus, subwords, recipe, files_of.get(name), precision, limits)
        self.first_name, self.first = next(iter(self.sets.items()))

    @property
    def too_large(self) -> int:
        """Cost of the smallest batch that did not fit into memory; 0: none yet."""
        return min((cost for validator in self.sets.values() if (cost := validator.memory.too_large)), default=0)

    def measure(
        self, model: TranslationModel, keep_going: Callable[[], bool], in_time: Callable[[], bool]
    ) -> dict[str, Measured]:
        """Return the measurements of each set under its name; of sets after the first only while there is time."""
        return {
            name: validator.measure(model, keep_going, in_time)
            for name, validator in self.sets.items()
            if name == self.first_name or in_time()
        }

    def entry(self, measured: dict[str, Measured]) -> dict[str, Any]:
        """Return the entry of the history: numbers and conditions of the first set, numbers of others under "sets"."""
        numbers = {name: measured[name][0] if name in measured else {} for name in self.sets}
        first = {**numbers.pop(self.first_name), "how": self.first.conditions}
        return {**first, "sets": numbers} if numbers else first


def fields_of(measured: dict[str, Measured]) -> dict[str, Any]:
    """Return the fields of a line of the log: measurements of the first set, those of the others under "sets"."""
    (first, (numbers, details)), *others = measured.items()
    sets = {name: {**other_numbers, **other_details} for name, (other_numbers, other_details) in others}
    return {"set": first, **numbers, **details, **({"sets": sets} if sets else {})}


_SHOWN_AS = {"loss": ".4f", "perplexity": ".3f", "accuracy": ".1%"}  # scores of translations: .2f


def score_of(name: str, value: float) -> str:
    """Format a number of a validation for people."""
    return f"{METRICS[name].title if name in METRICS else name} {value:{_SHOWN_AS.get(name, '.2f')}}"


def describe(numbers: dict[str, Any]) -> str:
    """Format validation results as a part of a line for people; the accuracy is only in the log."""
    formats = {"loss": "loss {:.3f}", "perplexity": "ppl {:.2f}"} | {
        name: f"{metric.title} {{:.2f}}" for name, metric in METRICS.items()
    }
    return "  ".join(text.format(numbers[name]) for name, text in formats.items() if name in numbers)


# The end of a run: choice of the final weights.


def choose_final(
    recipe: Recipe,
    run: Run,
    model: TranslationModel,
    state: TrainState,
    validator: Validator,
    record: Record,
    wants_stop: Callable[[], bool] = lambda: False,
    has_time: Callable[[float], bool] = lambda _: True,
) -> str:
    """Measure the candidates on the validation set, write the best as RUN/model, and return its name. Candidates: the
    last and the best checkpoint, the average of the last or best N, and the moving average; of equals the first wins.
    On a stop nothing is written, and the name is ''. has_time: True if so many seconds are left. If not, only numbers
    from training are compared, by the loss if the last checkpoint has no other."""
    metric = recipe.valid.metric
    results: dict[str, dict[str, float]] = {}
    measured = {
        int(entry["update"]): {name: entry[name] for name in validator.names if name in entry}
        for entry in state.comparable(*validator.names)
    }
    # The last may have no scores of translations if the time ran out.
    criterion = metric if metric in measured.get(state.update, {metric}) or has_time(state.measure_seconds) else "loss"
    chosen, chosen_weights = "", dict[str, Tensor]()
    folder_of = _intact_checkpoints(run, record)
    for name, updates, file in _candidates(recipe, state, list(folder_of)):
        newest = max(updates)
        numbers = measured.get(newest, {}) if len(updates) == 1 and file == checkpoint.MODEL else {}
        if criterion not in numbers and results and not has_time(state.measure_seconds):
            record.say(f"{name:>18}  not measured: the time budget is over")
            continue
        folders = [folder_of[update] for update in updates]
        weights = checkpoint.average(folders) if file == checkpoint.MODEL else checkpoint.load_tensors(folders[0], file)
        if criterion in numbers:
            results[name] = numbers
        else:
            checkpoint.load_weights(model, weights, name)
            results[name], _ = validator.measure(model, lambda: not wants_stop(), lambda: has_time(0.0))
        if wants_stop():
            return ""
        record.say(f"{name:>18}  update {newest:,}  {describe(results[name])}")
        if not chosen or goodness(results[name], criterion) > goodness(results[chosen], criterion):
            chosen, chosen_weights = name, weights
    checkpoint.load_weights(model, chosen_weights, chosen)
    # The log first: after a kill between the two the line is written again, and `Record.resume` drops the old one.
    record.write("final", state.update, chosen=chosen, candidates=results)
    run.check_lock()
    checkpoint.save(
        run.model_folder,
        {checkpoint.MODEL: checkpoint.weights_of(model)},
        {"update": state.update, "chosen": chosen, "candidates": results, "ends": _ends(recipe)},
    )
    record.say(f"final model: {chosen}, the best {criterion} on the validation set")
    return chosen


def finished_at(run: Run, recipe: Recipe) -> int | None:
    """Return the update of RUN/model; None if a checkpoint is newer or the recipe now asks for another end."""
    final, ends = final_choice(run), _ends(recipe)
    if final is None or final["update"] < max(run.updates(), default=0):
        return None
    is_same = all(ends.get(name) == value for name, value in final.get("ends", {}).items())
    return int(final["update"]) if is_same else None


def final_choice(run: Run) -> dict[str, Any] | None:
    """Return the state of RUN/model, which records the choice; None if there is no intact one."""
    try:
        return checkpoint.verify(run.model_folder)
    except RunError:
        return None


def _ends(recipe: Recipe) -> dict[str, Any]:
    """Return the options that decide the end of training and the choice of the model."""
    train, valid = recipe.train, recipe.valid
    ends = {"updates": train.updates, "time_budget": train.time_budget, "patience": valid.patience}
    return {**ends, "metric": valid.metric, "average": train.average}


def _intact_checkpoints(run: Run, record: Record) -> dict[int, Path]:
    """Return the checkpoints that verify, by update. A checkpoint damaged on disk must not enter an average."""
    folder_of = {}
    for update in run.updates():
        try:
            checkpoint.verify(run.checkpoint(update))
            folder_of[update] = run.checkpoint(update)
        except (RunError, checkpoint.NewerFormat) as error:
            record.say(f"skipped a damaged checkpoint: {error}")
    if not folder_of:
        raise RunError(f"{run.folder}: no intact checkpoint, so no model can be chosen. See nmt-train --verify.")
    return folder_of


def _candidates(recipe: Recipe, state: TrainState, updates: list[int]) -> list[tuple[str, list[int], str]]:
    """Return name, updates to average, and file of each candidate. updates: of intact checkpoints, oldest first."""
    metric, train, last = recipe.valid.metric, recipe.train, updates[-1]
    candidates = [("last", [last], checkpoint.MODEL)]
    scores = {update: score for update, score in state.scores(metric).items() if update in updates}
    best_first = sorted(scores, key=lambda update: (-scores[update], update))
    if best_first and best_first[0] != last:
        candidates.append(("best", best_first[:1], checkpoint.MODEL))
    averaged = {"none": [], "last": updates[-train.keep_last :], "best": best_first[: train.keep_best]}[train.average]
    if len(averaged) > 1:
        candidates.append((f"average of {train.average} {len(averaged)}", averaged, checkpoint.MODEL))
    if train.ema:
        candidates.append(("moving average", [last], checkpoint.EMA))
    return candidates
