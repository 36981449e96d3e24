"""The work of nmt-translate --tune-decoding: which beam and length penalty are best on validation data.

One search for each beam; the length penalties are compared on the hypotheses that it kept (`nmt.decoding.retry`). The
best of them and the run's present setting are then searched with, and what those searches say decides.
"""

import argparse
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sacrebleu.significance import PairedTest, Result

from nmt.api import Model, load
from nmt.cli.begin import write_stdout
from nmt.cli.parser import overrides_of
from nmt.cli.translating.files import files_of_pipes, name_of
from nmt.cli.translating.output import blank_notes, say, warn
from nmt.data.lines import read_lines
from nmt.decoding.retry import SEARCHED_WITH, Setting, rerank, settings_of
from nmt.decoding.translation import Translation
from nmt.errors import DataError, NmtError
from nmt.evaluation.metrics import IN_NFC, bleu_tokens, form_note, metric_of, tokenised_note, unspaced_note
from nmt.progress import Bar
from nmt.recipe.decode_options import OF_SAMPLES, DecodeConfig
from nmt.recipe.reader import OPTIONS, RECORD, read_recipe, store

# Many sets of translations of the same lines.


class ScoreSets:
    """Scores sets of translations against one reference, one metric (bleu or chrf) after the same counts."""

    def __init__(self, references: Sequence[str], name: str, trg_lang: str = "") -> None:
        self._references, self._metric = references, metric_of(name, trg_lang)
        self._counts: list[dict[str, Any]] = [{} for _ in references]

    def score(self, hypotheses: Sequence[str]) -> Any:
        """sacreBLEU's score of one translation for each reference: `.score`, and for BLEU `.sys_len` and `.ref_len`."""
        assert len(hypotheses) == len(self._references)
        new = [n for n, text in enumerate(hypotheses) if text not in self._counts[n]]
        if new:
            # These two steps are what sacreBLEU's own tests of significance are made of.
            texts, references = [hypotheses[n] for n in new], [self._references[n] for n in new]
            for n, counts in zip(new, self._metric._extract_corpus_statistics(texts, [references]), strict=True):
                self._counts[n][hypotheses[n]] = counts
        return self._metric._aggregate_and_compute(
            [counts[text] for counts, text in zip(self._counts, hypotheses, strict=True)]
        )

    @property
    def signature(self) -> str:
        """Signature of sacreBLEU, known once it has scored."""
        return str(self._metric.get_signature().format()) + (IN_NFC if form_note(self._references) else "")


def p_value(
    one: Sequence[str], other: Sequence[str], references: Sequence[str], name: str, trg_lang: str = ""
) -> float:
    """Probability of so large a difference by chance of the lines, by sacreBLEU's paired bootstrap (Koehn 2004)."""
    systems: list[tuple[str, Sequence[str]]] = [("one", list(one)), ("other", list(other))]
    test = PairedTest(systems, {name: metric_of(name, trg_lang)}, [list(references)], test_type="bs")
    (found,) = (results for key, results in test()[1].items() if key != "System")
    result = found[1]  # the first is the one that the others are compared with
    assert isinstance(result, Result) and result.p_value is not None
    return float(result.p_value)


BEAMS = (1, 2, 4, 5, 8, 12)
N_SEARCHED = 3  # settings that look best and are searched with before one is said to be
METRICS = ("bleu", "chrf")
_COLUMNS = ("beam", "penalty", "alpha", "BLEU", "chrF", "ratio", "BLEU*", "chrF*", "mark")

_OWN = {"run", "tune_decoding", "tune_metric", "tune_beams", "store", "checkpoint", "device", "threads", "debug"}
_FOUND = {f"decode.{name}" for name in OPTIONS}
# What may be said where the winner is stored: what changes no translation, and which lines these are.
_NO_MATTER = {"decode.max_tokens", "decode.window", "decode.cuda_graphs"}
_OF_LINES = {"decode.trg_lang", "decode.tags"}
_OF_NO_SEARCH = {f"decode.{name}" for name in (*OF_SAMPLES, "samples", "mbr", "n_best")}


@dataclass
class _Row:
    """A setting and what it makes of the validation data."""

    setting: Setting
    output: list[str]  # chosen among the hypotheses that one search has kept
    scores: dict[str, float]
    ratio: float  # of the lengths of output and reference, in the tokens of BLEU
    searched: list[str] | None = None  # the output of a search with this setting, where there was one
    found: dict[str, float] | None = None  # its scores


class _Scorer:
    """BLEU and chrF of outputs, and which are better."""

    def __init__(self, references: Sequence[str], metric: str, trg_lang: str) -> None:
        self.references, self.metric, self.trg_lang = references, metric, trg_lang
        self._sets = {name: ScoreSets(references, name, trg_lang) for name in METRICS}

    def score(self, output: Sequence[str]) -> tuple[dict[str, float], float]:
        """The scores, and the ratio of lengths."""
        found = {name: each.score(output) for name, each in self._sets.items()}
        bleu = found["bleu"]
        return {name: float(one.score) for name, one in found.items()}, bleu.sys_len / max(1, bleu.ref_len)

    def badness(self, scores: Mapping[str, float], setting: Setting) -> tuple[float, float, int]:
        """The lower, the better: by the metric, then by the other one, then by what costs less."""
        (other,) = set(METRICS) - {self.metric}
        return -scores[self.metric], -scores[other], setting.beam

    def p_value(self, one: Sequence[str], other: Sequence[str]) -> float:
        return p_value(one, other, self.references, self.metric, self.trg_lang)

    @property
    def signature(self) -> str:
        """The signature of the metric, as sacreBLEU writes it."""
        return self._sets[self.metric].signature


def tune(args: argparse.Namespace, usual: Mapping[str, Any]) -> int:
    """The command behind the flag. usual: what the arguments are where nothing is given.

    Returns the exit code; raises NmtError.
    """
    _check_flags(args, usual)
    with files_of_pipes(args):
        src, ref = _read_pairs(args)
    if args.threads:
        torch.set_num_threads(args.threads)
    model = load(args.run, checkpoint=args.checkpoint, device=args.device)
    recipe = read_recipe(model.run.recipe_file, overrides_of(args))
    present = _present(recipe.decode, model.run.recipe_file)
    beams = _beams(args.tune_beams or BEAMS, present, recipe.decode.n_best)
    scorer = _Scorer(ref, args.tune_metric or METRICS[0], recipe.decode.trg_lang or recipe.data.trg_lang)
    # Held from the beginning, so that what forbids to store is known before the work.
    with model.run.lock() if args.store else contextlib.nullcontext():
        with _progress((len(beams) + N_SEARCHED + 1) * len(src)) as bar:
            search = _Search(model, recipe.decode, src, bar)
            rows = [row for beam in beams for row in _of_beam(search, beam, present, scorer)]
            here = next(row for row in rows if row.setting == present)
            tried = _most_promising(rows, scorer)
            for row in [here, *(row for row in tried if row is not here)]:
                row.searched = [one.text for one in search(row.setting)]
                row.found, row.ratio = scorer.score(row.searched)
        # Of equals the present setting: what is as good need not change.
        winner = min([here, *tried], key=lambda row: scorer.badness(row.found or {}, row.setting))
        if winner.found == here.found:
            winner = here
        _print_table(rows, winner, here)
        _tell(winner, here, scorer)
        if args.store and winner is not here:
            evidence = {
                "metric": scorer.metric,
                "signature": scorer.signature,
                "scores_before": here.found,
                "scores": winner.found,
                "n_line": len(src),
                "options": _options_of_lines(args),
            }
            store(model.run.recipe_file, winner.setting.options, evidence)
    say(_what_now(winner, here, model, _options_of_lines(args), stored=args.store))
    return 0


def _check_flags(args: argparse.Namespace, usual: Mapping[str, Any]) -> None:
    options = [name for name, _ in overrides_of(args)]
    if other := next((name for name in options if name in _OF_NO_SEARCH), None):
        raise NmtError(f"--{other} means nothing with --tune-decoding, which is about beam search: leave it out.")
    given = [name for name, value in vars(args).items() if name in usual and value != usual[name] and name not in _OWN]
    if what := next((name for name in options if name in _FOUND), None):
        raise NmtError(f"--{what}: this is what --tune-decoding looks for: leave it out.")
    for name in given:
        if name.rpartition(":")[2] not in options:
            other = name.replace("_", "-")
            raise NmtError(f"--{other} means nothing with --tune-decoding, which prints a table: leave it out.")
    if args.store and (len(args.run) > 1 or args.checkpoint):
        raise NmtError("--store writes into the recipe of one run what is best for its own model: name one run only.")
    if args.store and (what := next((name for name in options if name not in _NO_MATTER | _OF_LINES), None)):
        raise NmtError(
            f"--{what}: --store keeps only what --tune-decoding finds, and the run would use it without this: leave it "
            "out, or leave --store out and give both to nmt-translate."
        )


def _options_of_lines(args: argparse.Namespace) -> dict[str, str]:
    """Options of the validation lines, for the record."""
    return {name.removeprefix("decode."): value for name, value in overrides_of(args) if name in _OF_LINES}


def _read_pairs(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The lines of validation data. Raises DataError unless there are as many of the one as of the other, and some."""
    src_file, ref_file = args.tune_decoding
    src, ref = ([line or "" for line in read_lines(name)] for name in (src_file, ref_file))
    if len(src) != len(ref):
        raise DataError(
            f"{src_file} has {len(src):,} lines but {ref_file} has {len(ref):,}: line n of one must be the translation "
            "of line n of the other."
        )
    if not src:
        raise DataError(f"{src_file}: no lines, so nothing to tune on.")
    for text in blank_notes(
        name_of(args, ref_file), ref, {n for n, line in enumerate(src, start=1) if not line.strip()}
    ):
        warn(text)
    return src, ref


def _present(decode: DecodeConfig, recipe_file: Path) -> Setting:
    """The setting that the run has now."""
    if decode.samples or decode.mbr != "none":
        raise NmtError(
            f"{recipe_file}: decode.samples is {decode.samples} and decode.mbr is {decode.mbr}: this run does not "
            "translate with what beam search finds best, which is what is tuned."
        )
    return Setting(decode.beam, decode.length_penalty, decode.alpha)


def _beams(wanted: Sequence[int], present: Setting, n_best: int) -> list[int]:
    """The beams to search with, the present one among them, and none that is less than the n best to be written."""
    return sorted({beam for beam in wanted if beam >= n_best} | {present.beam})


class _Search:
    """Searches the validation data with a setting."""

    def __init__(self, model: Model, decode: DecodeConfig, src: list[str], bar: Bar) -> None:
        self._model, self._decode, self._src, self._bar = model, decode, src, bar

    def __call__(self, setting: Setting, n_best: int = 1) -> list[Translation]:
        decode = self._decode.model_copy(update={**setting.options, "n_best": n_best})
        self._bar.set_description(f"beam {setting.beam}")
        return list(self._model.translator(decode).translate(self._src, self._bar.update))


def _of_beam(search: _Search, beam: int, present: Setting, scorer: _Scorer) -> Iterator[_Row]:
    """All settings of a beam, by one search."""
    found = search(Setting(beam, *SEARCHED_WITH), n_best=beam)
    for setting in settings_of(beam, present):
        output = rerank(found, setting)
        yield _Row(setting, output, *scorer.score(output))


def _most_promising(rows: Sequence[_Row], scorer: _Scorer) -> list[_Row]:
    """The best settings whose outputs differ."""
    found: list[_Row] = []
    for row in sorted(rows, key=lambda row: scorer.badness(row.scores, row.setting)):
        if all(row.output != other.output for other in found):
            found.append(row)
    return found[:N_SEARCHED]


def _print_table(rows: Sequence[_Row], winner: _Row, here: _Row) -> None:
    write_stdout("\t".join(_COLUMNS) + "\n")
    for row in rows:
        found = "" if row.found is None else "\t".join(f"{row.found[name]:.2f}" for name in METRICS)
        marks = [name for name, one in (("present", here), ("winner", winner)) if row is one]
        scores = [f"{row.scores[name]:.2f}" for name in METRICS]
        columns = [*_shown(row.setting), *scores, f"{row.ratio:.3f}", found or "\t", " ".join(marks)]
        write_stdout("\t".join(columns) + "\n")


def _shown(setting: Setting) -> tuple[str, str, str]:
    penalty, alpha = setting.length_penalty if setting.beam > 1 else "-", f"{setting.alpha:g}"
    return str(setting.beam), penalty, "-" if penalty in ("-", "none") else alpha


def _tell(winner: _Row, here: _Row, scorer: _Scorer) -> None:
    name = {"bleu": "BLEU", "chrf": "chrF"}[scorer.metric]
    for row, what in (here, "present"), (winner, "winner"):
        assert row.found is not None
        searched, reranked = row.found[scorer.metric], row.scores[scorer.metric]
        if what == "present" or row is not here:
            say(
                f"{what}: {_in_words(row.setting)}: {name} {searched:.2f} by a search of its own, {reranked:.2f} among "
                f"the hypotheses of one search; length ratio {row.ratio:.3f}"
            )
    say(f"{name}|{scorer.signature}")
    if winner is not here and winner.searched and here.searched and winner.found and here.found:
        p = scorer.p_value(here.searched, winner.searched)
        difference = winner.found[scorer.metric] - here.found[scorer.metric]
        say(f"difference: {difference:+.2f} {name}, p = {p:.3f} (paired bootstrap on these lines, which chose it too)")
    notes = bleu_tokens(scorer.trg_lang)[1], tokenised_note(scorer.references), form_note(scorer.references)
    for note in (*notes, unspaced_note(scorer.references, scorer.trg_lang)):
        if note:
            say(f"note: {note}")


def _what_now(winner: _Row, here: _Row, model: Model, options: Mapping[str, str], *, stored: bool) -> str:
    if winner is here:
        return "the present setting is the best that was tried" + (": nothing to store" if stored else "")
    if stored:
        record = model.run.recipe_file.with_name(RECORD)
        told = "".join(f"; the lines that decided had decode.{name} {value}" for name, value in options.items())
        return (
            f"stored in {model.run.recipe_file}, so that nmt-translate uses it; {record} says what was there "
            f"before{told}"
        )
    flags = " ".join(f"--decode.{name} {value}" for name, value in winner.setting.options.items())
    return f"to translate with it: {flags}; to make it what the run translates with: --store"


def _in_words(setting: Setting) -> str:
    beam, penalty, alpha = _shown(setting)
    return f"beam {beam}" + ("" if penalty == "-" else f", {penalty}" if alpha == "-" else f", {penalty} {alpha}")


def _progress(n_line: int) -> Bar:
    return Bar(total=n_line, unit=" lines", leave=False)
