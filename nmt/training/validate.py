"""Validation: loss, perplexity and accuracy by teacher forcing, BLEU and chrF by translating."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nmt import checkpoint
from nmt.data.batches import Batch, length_batches, make_batch
from nmt.data.corpus import Prepared
from nmt.data.placeholders import held_out_tags
from nmt.data.subwords import PAD
from nmt.data.text import split_of
from nmt.decoding.long_lines import Limits, limits_of, usual_len
from nmt.decoding.translator import Translator
from nmt.errors import OutOfMemory, RunError, suppress_out_of_memory
from nmt.evaluation.metrics import METRICS, Comet, Texts, bleu_tokens, comet_model, score
from nmt.models.base import TranslationModel, evaluating
from nmt.recipe.data_options import ValidationSet
from nmt.recipe.options import Recipe
from nmt.run import Run
from nmt.training.memory import Memory, Work
from nmt.training.precision import Precision
from nmt.training.state import Conditions

N_EXAMPLE = 3
_AT_ONCE = 1 << 23  # logits that are converted to full precision at a time
FORCED = {"loss": "loss {:.3f}", "perplexity": "ppl {:.2f}", "accuracy": "accuracy {:.1%}"}
FORMATS = {**FORCED, **{name: f"{metric.title} {{:.2f}}" for name, metric in METRICS.items()}}  # of numbers, for people
# Options of `decode` that change the translations.
_SEARCH = (
    *("beam", "length_penalty", "alpha", "no_repeat", "split", "max_src_len", "copy_letterless"),
    *("max_len_a", "max_len_b", "min_len_a", "min_len_b"),
)
Measured = dict[str, Any]  # fields of the log for one set: numbers, signatures, examples, `distinct`
Predicate = Callable[[], bool]


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
    """Measures a model on the validation set of a name, always in the same way. limits: as in nmt-translate."""

    def __init__(self, name: str, recipe: Recipe, data: Prepared, precision: Precision, limits: Limits) -> None:
        self.recipe, self.config, self.precision, self.limits = recipe, recipe.valid, precision, limits
        self.corpus = corpus = data.valid_sets[name]
        self.subwords = data.subwords.tagged(held_out_tags(recipe.data).get(split_of(name), ()))
        # Without data.valid, as with data.valid_size, the recipe has no entry for the set.
        files = next((files for files in recipe.data.valid if files.name == name), ValidationSet.model_construct())
        self.translate = recipe.valid.translate if files.measure is None else files.measure == "translate"
        self.src_lang, self.trg_lang = recipe.data.src_lang, files.trg_lang or recipe.data.trg_lang
        search = {"beam": self.config.beam, "n_best": 1, "max_tokens": self.config.max_tokens}
        self.decode = recipe.decode.for_beam_search().model_copy(update=search)
        src, trg = corpus.texts()
        # If the set has no max_sentences, the loss is measured on all pairs, translations on valid.max_sentences.
        n_translated = (self.config.max_sentences if files.max_sentences is None else files.max_sentences) or len(src)
        self.src, self.trg = src[:n_translated], trg[:n_translated]
        lengths = np.maximum(corpus.src_len, corpus.trg_len).astype(np.int64) + 1  # of the longer side, with EOS
        self.batches = length_batches(lengths[: files.max_sentences or None], self.config.max_tokens)
        self.memory = Memory()
        self.metrics = [name for name, metric in METRICS.items() if metric.always or name == self.config.metric]
        self.names = [*FORCED, *(self.metrics if self.translate else [])]  # of all numbers

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
        self, model: TranslationModel, wants_stop: Predicate = lambda: False, in_time: Predicate = lambda: True
    ) -> Measured:
        """Return the numbers {loss, perplexity, accuracy, bleu, chrf} that are finite, signatures and examples.

        wants_stop: called between batches. in_time: called only during translation. After a stop, or when time is over,
        the rest is left out. When memory runs out, batches are halved, with the same result. Raises OutOfMemory if
        halving does not help, and MachineError if the scores of a search are not finite.
        """
        with suppress_out_of_memory(), evaluating(model), eager(model):
            measured = self._teacher_forced(model, wants_stop)
            if self.translate and not wants_stop():
                with contextlib.suppress(_StopTranslating):
                    measured |= self._translated(model, lambda: wants_stop() or not in_time())
            return {name: value for name, value in measured.items() if name not in self.names or math.isfinite(value)}
        raise OutOfMemory(
            f"memory of {model.device} ran out in validation, even with one pair at a time: make valid.beam, "
            f"{self.config.beam}, or decode.max_len_a smaller, set valid.translate to false, or measure fewer pairs by "
            "the set's max_sentences."
        )

    @torch.inference_mode()
    def _teacher_forced(self, model: TranslationModel, wants_stop: Predicate) -> Measured:
        loss, n_right, n_gold = 0.0, 0, 0
        for rows in self.batches:
            if wants_stop():
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
        with suppress_out_of_memory():
            batch = batch.to(model.device)
            with self.precision.measuring():
                logits = model(batch.src_seq, batch.trg_seq)
            loss, hits = _loss_and_hits(logits, batch.gold)
            return float(loss), int(hits)
        if model.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def _translated(self, model: TranslationModel, is_over: Predicate) -> Measured:
        def check_stop(_n_done: int) -> None:
            if is_over():
                raise _StopTranslating

        languages = self.src_lang, self.trg_lang
        translator = Translator(model, self.subwords, self.decode, limits=self.limits, languages=languages)
        with self.precision.measuring():
            translations = list(translator.translate(self.src, check_stop))
        output = [translation.text for translation in translations]
        texts = Texts(output, [self.trg], self.src, self.trg_lang, comet_of(self.recipe, str(model.device)))
        scores = score(texts, self.metrics)
        n_example = min(N_EXAMPLE, len(output))
        picked = [i * len(output) // n_example for i in range(n_example)]
        measured: Measured = {name: result.value for name, result in scores.items()}
        measured |= {f"{name}_signature": result.signature for name, result in scores.items()}
        measured["examples"] = [{"source": self.src[i], "output": output[i], "reference": self.trg[i]} for i in picked]
        measured["distinct"] = round(len(set(output)) / len(set(self.trg)), 4)
        return measured


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
        limits = limits_of(recipe.decode, max_len=recipe.data.max_len, usual_src_len=usual_len(data.train.src_len))
        self.sets = {name: Validator(name, recipe, data, precision, limits) for name in data.valid_sets}
        self.first_name, self.first = next(iter(self.sets.items()))

    def measure(self, model: TranslationModel, wants_stop: Predicate, in_time: Predicate) -> dict[str, Measured]:
        """Return the measurements of each set under its name; of sets after the first only while there is time."""
        return {
            name: validator.measure(model, wants_stop, in_time)
            for name, validator in self.sets.items()
            if name == self.first_name or in_time()
        }

    @property
    def n_failed(self) -> int:
        """Number of times that memory ran out in validation."""
        return sum(validator.memory.n_failed for validator in self.sets.values())

    def entry(self, measured: dict[str, Measured]) -> dict[str, Any]:
        """Return the entry of the history: numbers and conditions of the first set, numbers of others under "sets"."""
        numbers = {name: numbers_of(measured.get(name, {})) for name in self.sets}
        first = {**numbers.pop(self.first_name), "how": self.first.conditions}
        return {**first, "sets": numbers} if numbers else first


def numbers_of(measured: Measured) -> dict[str, float]:
    """Return the numbers in a measurement or in an entry of the history."""
    return {name: measured[name] for name in FORMATS if name in measured}


def describe(numbers: dict[str, Any]) -> str:
    """Format validation results as a part of a line for people; the accuracy is only in the log."""
    shown = (name for name in FORMATS if name in numbers and name != "accuracy")
    return "  ".join(FORMATS[name].format(numbers[name]) for name in shown)


# The end of a run, which RUN/model records.


def finished_at(run: Run, recipe: Recipe) -> int | None:
    """Return the update of RUN/model; None if a checkpoint is newer or the recipe now asks for another end."""
    final = final_choice(run)
    if final is None or final["update"] < max(run.updates(), default=0):
        return None
    return int(final["update"]) if final.get("ends", {}).items() <= ends_of(recipe).items() else None


def final_choice(run: Run) -> dict[str, Any] | None:
    """Return the state of RUN/model, which records the choice; None if there is no intact one."""
    try:
        return checkpoint.verify(run.model_folder)
    except RunError:
        return None


def ends_of(recipe: Recipe) -> dict[str, Any]:
    """Return the options that decide the end of training and the choice of the model."""
    train, valid = recipe.train, recipe.valid
    ends = {"updates": train.updates, "time_budget": train.time_budget, "patience": valid.patience}
    return {**ends, "metric": valid.metric, "average": train.average}
