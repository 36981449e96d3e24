"""How good the model is now: loss, perplexity and accuracy by teacher forcing, BLEU and chrF by translating."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nmt.data.batches import length_batches, make_batch
from nmt.data.corpus import Corpus
from nmt.data.subwords import PAD, Subwords
from nmt.decoding.translator import Translator
from nmt.evaluation.metrics import score
from nmt.models.base import TranslationModel
from nmt.recipe.options import DecodeConfig, ValidConfig
from nmt.training.precision import Precision

N_EXAMPLE = 3


class _Enough(Exception):
    """Somebody wants to stop in the middle of translating."""


class Validator:
    """Measures a model on one corpus, always the same way."""

    def __init__(
        self,
        corpus: Corpus,
        subwords: Subwords,
        config: ValidConfig,
        decode: DecodeConfig,
        precision: Precision,
        trg_lang: str,
    ) -> None:
        self.corpus, self.subwords, self.config = corpus, subwords, config
        self.precision, self.trg_lang = precision, trg_lang
        self.decode = decode.model_copy(update={"beam": config.beam, "n_best": 1, "max_tokens": config.max_tokens})
        src, trg = corpus.texts()
        n = config.max_sentences or len(src)
        self.src, self.trg = src[:n], trg[:n]
        longest = np.maximum(corpus.src_len, corpus.trg_len).astype(np.int64) + 1  # with EOS
        self.batches = length_batches(longest, config.max_tokens)

    def measure(
        self, model: TranslationModel, keep_going: Callable[[], bool] = lambda: True
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """Returns the numbers {loss, perplexity, accuracy, bleu, chrf}, and signatures and examples beside them.

        `keep_going` is asked between batches; when it says no, what has been measured is returned.
        """
        training = model.training
        model.eval()
        try:
            numbers = self._forced(model, keep_going)
            beside: dict[str, Any] = {}
            if self.config.translate and keep_going():
                with contextlib.suppress(_Enough):
                    scores, beside = self._translated(model, keep_going)
                    numbers |= scores
            return numbers, beside
        finally:
            model.train(training)

    @torch.inference_mode()
    def _forced(self, model: TranslationModel, keep_going: Callable[[], bool]) -> dict[str, float]:
        loss, n_right, n_gold = 0.0, 0, 0
        for rows in self.batches:
            if not keep_going():
                break
            batch = make_batch(self.corpus, rows).to(model.device)
            with self.precision.autocast():
                logits = model(batch.src_seq, batch.trg_seq)
            loss_sum, right = _loss_and_hits(logits, batch.gold)
            loss += float(loss_sum)
            n_right += int(right)
            n_gold += batch.n_gold
        mean = loss / max(1, n_gold)
        return {"loss": mean, "perplexity": math.exp(min(mean, 50.0)), "accuracy": n_right / max(1, n_gold)}

    def _translated(
        self, model: TranslationModel, keep_going: Callable[[], bool]
    ) -> tuple[dict[str, float], dict[str, Any]]:
        def ask(_n_done: int) -> None:
            if not keep_going():
                raise _Enough

        translator = Translator(model, self.subwords, self.decode)
        with self.precision.autocast():
            output = [translation.text for translation in translator.translate(self.src, ask)]
        scores = score(output, self.trg, ("bleu", "chrf"), trg_lang=self.trg_lang)
        n_example = min(N_EXAMPLE, len(output))
        picked = [i * len(output) // n_example for i in range(n_example)]
        beside = {f"{name}_signature": found.signature for name, found in scores.items()}
        examples = [{"source": self.src[i], "output": output[i], "reference": self.trg[i]} for i in picked]
        return {name: found.value for name, found in scores.items()}, {**beside, "examples": examples}


def _loss_and_hits(logits: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T, V), (B, T) -> the summed cross-entropy in nats without smoothing, and how often the best class is gold."""
    flat = logits.flatten(0, 1).float()
    loss = nn.functional.cross_entropy(flat, gold.flatten(), ignore_index=PAD, reduction="sum")
    hits = (logits.argmax(-1) == gold) & (gold != PAD)
    return loss, hits.sum()


def describe(update: int, numbers: dict[str, float]) -> str:
    """One line of validation results for people."""
    shown = {"loss": ".4f", "perplexity": ".3f", "accuracy": ".1%", "bleu": ".2f", "chrf": ".2f"}
    parts = [f"{name} {numbers[name]:{form}}" for name, form in shown.items() if name in numbers]
    return f"update {update:,}: " + ", ".join(parts)
