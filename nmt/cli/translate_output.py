"""Results of nmt-translate: the model behind the flags, lines in each format, and the report at the end."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nmt.api import load
from nmt.cli.begin import printable, talk
from nmt.cli.parser import check_count, overrides_of
from nmt.cli.translate_input import Line, request_reader, terms_of
from nmt.data.lines import write_lines
from nmt.data.text import style_notes, traits_of
from nmt.decoding.evidence import WORDS, Evidence, Fields, Lost, attempt, log_prob_of, lost_note
from nmt.decoding.request import Request, is_blank
from nmt.decoding.suspicion import BETTER, CAP, KEPT, MENDED, Answer, flags_of, mend, tries
from nmt.decoding.translation import Scored, Translation
from nmt.decoding.translator import NOWHERE, Translator
from nmt.device import choose_device
from nmt.errors import DataError, NmtError
from nmt.evaluation.alignment import characters_note, trg_lang_of
from nmt.evaluation.attention_page import draw, panels, sentence_of
from nmt.evaluation.metrics import Texts, bleu_tokens, exact_match, form_note, score, tokenised_note, unspaced_note
from nmt.models.int8 import half_is_faster
from nmt.progress import Bar
from nmt.recipe.model_options import Attention, ModelConfig
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe
from nmt.run import Run

_LINE_ENDS, _COLUMN_ENDS = str.maketrans("\n\r", "  "), str.maketrans("\n\r\t", "   ")
MOST_NUMBERS = 10  # of lines that are named
N_PICTURE = 3  # lines that are drawn where none are named
_FAR_ENOUGH = 1000  # characters of a line that are looked at for its style
_NO_REASON = ("blank", "letterless", "split", CAP)  # flags that are no doubt about a translation, or told by themselves


def say(text: str) -> None:
    """Print a line to stderr, whatever bar is there."""
    Bar.write(f"nmt-translate: {printable(text)}", file=sys.stderr)


def warn(text: str) -> None:
    """Print a warning to stderr."""
    say(f"warning: {text}")


def numbers(lines: Sequence[int]) -> str:
    """Name lines by their numbers: the first ten, then a count of the others."""
    told = ", ".join(f"{number:,}" for number in lines[:MOST_NUMBERS])
    more = len(lines) - MOST_NUMBERS
    return f"lines {told} and {more:,} more" if more > 0 else f"line{'s' * (len(lines) > 1)} {told}"


# The model.


@dataclass(frozen=True)
class Record:
    """Result of a line: lines of the output, and what the report needs, in values of JSON."""

    lines: list[str]
    text: str = ""  # the translation
    links: str = ""  # the word alignment
    warnings: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)  # of the translation
    outcome: str = ""  # of what was translated once more


def recipe_of(args: argparse.Namespace) -> Recipe:
    """Read the recipe of the first run with the options that were given; --mbr counts less than those it stands for.

    Raises RecipeError for options.
    """
    short = [] if args.mbr is None else [("decode.samples", args.mbr), ("decode.mbr", "chrf")]
    given = overrides_of(args)
    return read_recipe(args.run[0], [one for one in short if one[0] not in dict(given)] + given)


class LineTranslator:
    """The model behind the flags, which translates lines, or scores given translations of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Load the model. Raises NmtError for flags that do not go with it."""
        device, self.args, self.recipe = choose_device(args.device), args, recipe_of(args)
        if args.threads:
            torch.set_num_threads(args.threads)
        terms, decode = terms_of(args), self.recipe.decode
        model = load(args.run, checkpoint=args.checkpoint, device=args.device)
        self.translator: Translator = model.translator(decode)
        self.request_of = request_reader(args, terms, decode, self.translator.sources)
        for run, name in () if args.checkpoint else zip(args.run, model.weights, strict=True):
            if name != Run(run).model_folder.name:
                say(f"note: {run}: training has not ended; translating with {name}")
            elif Run(run).has_newer_checkpoints():
                say(
                    f"note: {run}: training goes on since its model was chosen; translating with that, and with others "
                    "by --checkpoint"
                )
        again = tries(decode) if args.retry_suspect else {}
        self._again: dict[str, Translator] = {name: model.translator(one) for name, one in again.items()}
        fields, words, ratios = args.format == "jsonl", bool(args.alignments), Run(args.run[0]).usual_ratios()
        self._evidence = Evidence(self.translator, self.recipe, ratios, fields=fields, words=words)
        if device.type == "cpu" and decode.precision == "bf16" and not half_is_faster():
            say("note: decode.precision bf16 is slower than fp32 on this processor: take fp32")
        check_attention(args, self.recipe.model, attends=self.translator.model.attends)
        if args.format == "pairs" and not args.score and decode.n_best > 1:
            raise NmtError(
                f"--format pairs has the best translation of each line, but decode.n_best is {decode.n_best}: set it "
                "to 1. For several translations of a line draw samples, in a file for each of several --decode.seed."
            )
        for flag in ("terms", "keep"):
            if decode.samples and getattr(args, flag):
                raise NmtError(f"--{flag}: phrases can be required of beam search only: set decode.samples to 0.")
        if args.input_format != "jsonl":
            self.translator.sources.codec_of(Request(""))

    def records(self, lines: Sequence[Line], on_progress: Callable[[int], object]) -> list[Record]:
        """Translate or score lines, equal ones once, and write them in the format that was asked for.

        on_progress: called with the number of lines done since the last call.
        """
        different = list(dict.fromkeys((line.request, line.target) for line in lines))
        requests = [request for request, _ in different]
        results: Sequence[tuple[Answer | Scored, Fields, Lost]]
        if self.args.score:
            results = self._evidence.of_given(requests, [target or "" for _, target in different])
            on_progress(len(different))
        else:
            unflagged: dict[Request, Lost] = {}
            answers = self.answers(requests, unflagged, on_progress)
            told = self._evidence.of(requests, [answer.translation for answer in answers])
            results = [
                (answer, fields, lost | unflagged[request])
                for request, answer, (fields, lost) in zip(requests, answers, told, strict=True)
            ]
        on_progress(len(lines) - len(different))
        of_line, n_best = dict(zip(different, results, strict=True)), self.translator.config.n_best
        return [record_of(self.args, line, *of_line[line.request, line.target], n_best) for line in lines]

    def answers(
        self,
        requests: Sequence[Request],
        unflagged: dict[Request, Lost],
        on_progress: Callable[[int], object] | None = None,
    ) -> list[Answer]:
        """Translate lines, and again what looks wrong under --retry-suspect. unflagged: gets errors in their flags."""

        def why(request: Request, translation: Translation) -> list[str]:
            lost = unflagged.setdefault(request, {})
            return attempt("flags", lost, lambda: self._evidence.reasons(request, translation)) or []

        return mend(requests, list(self.translator.translate(requests, on_progress)), self._again, why)


# Lines.

# A hypothesis in the formats that are no JSON. Moses and Marian count lines from 0, others from 1.
_ROWS = {
    "text": "{text}",
    "n_best": "{number} ||| {text} ||| {score:.6f}",
    "moses": "{index} ||| {text} ||| F0= {log_prob:.6f} ||| {score:.6f}",
    "tsv": "{number}\t{rank}\t{score:.6f}\t{log_prob:.6f}\t{text}",
}


def record_of(
    args: argparse.Namespace, line: Line, found: Answer | Scored, evidence: Fields, lost: Lost, n_best: int
) -> Record:
    """Write the translation or the score of a line in the format that was asked for."""
    warning = found.warning if isinstance(found, Scored) else None
    warnings = list(filter(None, [*line.odd.values(), lost_note(lost), warning]))
    links = evidence.get(WORDS) or ""
    if isinstance(found, Scored):
        return Record([_scored_line(args, line, found, evidence)], links=links, warnings=warnings)
    flags = flags_of(found.translation, found.reasons)
    lines = _lines(args, line, found, evidence, [*line.odd, *flags], n_best)
    return Record(lines, found.translation.text, links, warnings, flags, found.outcome or "")


def _lines(
    args: argparse.Namespace, line: Line, answer: Answer, evidence: Fields, flags: list[str], n_best: int
) -> list[str]:
    one, number = answer.translation, line.number
    both = {**line.beside, "source": line.request.source, "output": one.text}
    if args.format == "pairs":
        return [_json({**both, "flags": flags})]
    if args.format == "jsonl":
        tried = {"retry": answer.retry} if args.retry_suspect else {}
        scores = {"score": one.score, "log_prob": log_prob_of(one, evidence["token_log_probs"])}
        return [_json({"id": number, **both, **scores, **evidence, "flags": flags, **tried, "n_best": one.n_best})]
    kind, rows = "n_best" if args.format == "text" and n_best > 1 else args.format, []
    scored = [(each.normalised, each.score) for each in one.hypotheses] or [(0.0, 0.0)]
    for rank, (text, (normalised, log_prob)) in enumerate(zip(one.texts, scored, strict=True), start=1):
        shown = text.translate(_COLUMN_ENDS if kind == "tsv" else _LINE_ENDS)
        shown = shown.replace("|||", "| | |") if kind == "moses" else shown
        places = {"number": number, "index": number - 1, "rank": rank}
        rows.append(_ROWS[kind].format(**places, score=normalised, log_prob=log_prob, text=shown))
    return rows[:n_best]


def _scored_line(args: argparse.Namespace, line: Line, scored: Scored, evidence: Fields) -> str:
    target = line.target or ""
    both, n_token = {**line.beside, "source": line.request.source, "output": target}, len(scored.token_log_probs)
    if args.format == "pairs":
        has_text = not any(map(is_blank, (line.request.source, target)))
        return _json({**both, "mean_log_prob": scored.log_prob / n_token if has_text else None})
    if args.format == "jsonl":
        return _json({"id": line.number, **both, "log_prob": scored.log_prob, **evidence})
    if args.format == "text":
        return f"{scored.log_prob:.6f}"
    return f"{line.number}\t{scored.log_prob:.6f}\t{n_token}\t{target.translate(_COLUMN_ENDS)}"


def _json(found: dict[str, Any]) -> str:
    text = json.dumps(found, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode("utf-8")  # no half of a surrogate pair


# Attention.


# Subwords on both sides together of a line in pieces whose attention, which grows by the square, is put together.
MOST_SHOWN = 2048


def check_attention(args: argparse.Namespace, model: ModelConfig, *, attends: bool) -> None:
    """Raise NmtError for attention that is asked for and not there: none, no such kind, layer or head."""
    asked = [flag for flag in ("attention", "alignments") if getattr(args, flag)]
    if asked and not attends:
        raise NmtError(f"--{asked[0]}: {NOWHERE}, so there is no attention to show: leave it out.")
    if args.attention:
        kind: Attention = args.attention_of
        if kind not in model.attention_grids:
            known = ", ".join(model.attention_grids)
            raise NmtError(f"--attention-of {kind}: this model has no such attention, only {known}.")
        panels(torch.empty(*model.attention_grids[kind], 0, 0), args.layer, args.head)


def _draw(args: argparse.Namespace, lines: LineTranslator, drawn: dict[int, Request], n_line: int) -> None:
    """Draw --attention. drawn: the lines to draw, by number; n_line: of the input.

    Raises NmtError if a line of --lines is blank or not there, or no line can be drawn.
    """
    source, translator, recipe = args.input or "<stdin>", lines.translator, lines.recipe
    if missing := [str(number) for number in args.lines or () if number not in drawn]:
        raise NmtError(
            f"--lines {','.join(missing)}: nothing to draw there: the input has {n_line:,} lines, and a blank line has "
            "no attention."
        )
    kind: Attention = args.attention_of
    sentences = []
    for (number, request), answer in zip(drawn.items(), lines.answers(list(drawn.values()), {}), strict=True):
        one = answer.translation
        if one.parts and len(one.src_ids) + len(one.trg_ids) > MOST_SHOWN:
            warn(
                f"{source}:{number}: not drawn, as its {len(one.parts):,} pieces have more than {MOST_SHOWN:,} subwords"
            )
            continue
        title = f"{number}: {request.source if kind == 'encoder' else one.text}"
        attns, trg_ids = translator.attention(one), one.hypotheses[0].ids
        sentences.append(sentence_of(attns, one.src_ids, trg_ids, translator.subwords, title))
    if not sentences:
        raise NmtError(f"{source}: of its {n_line:,} lines none can be drawn: all are empty, blank or too long.")
    langs, run = (recipe.data.src_lang, trg_lang_of(recipe)), Path(args.run[0]).resolve().name
    draw(sentences, Path(args.attention), kind=kind, layers=args.layer, heads=args.head, langs=langs, run=run)
    say(f"attention: {args.attention}")


# The report.


@dataclass
class Report:
    """Counts of lines, and what references, pictures and alignments need of them. references: the lines of each."""

    args: argparse.Namespace
    references: list[list[str]]
    n_line: int = 0
    split: list[int] = field(default_factory=list)  # numbers of the lines that were translated in pieces
    sources: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)  # word alignments
    drawn: dict[int, Request] = field(default_factory=dict)
    flags: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)  # of what was translated once more
    style: Counter[str] = field(default_factory=Counter)  # of the lines: how they are written
    notes: Counter[str] = field(default_factory=Counter)  # what is odd but harmless in the input

    def add(self, line: Line, record: Record) -> None:
        """Count a line, and print its warnings."""
        self.n_line = line.number
        for text in record.warnings:
            warn(f"{self.args.input or '<stdin>'}:{line.number}: {text}")
        if self.args.alignments:
            self.links.append(record.links)
        if self.args.score:
            return
        source = line.request.source
        self.style.update(traits_of(source[:_FAR_ENOUGH]))
        self.flags.update(record.flags)
        self.outcomes.update([record.outcome] if record.outcome else ())
        if "split" in record.flags and "\n" not in source:
            self.split.append(line.number)
        if self.references:
            self.sources.append(source)
            self.outputs.append(record.text)
        if self.args.attention and not {"blank", "letterless"}.intersection(record.flags):
            wanted = self.args.lines
            if line.number in wanted if wanted else len(self.drawn) < N_PICTURE:
                self.drawn[line.number] = line.request

    def finish(self, lines: LineTranslator) -> None:
        """Print the report, now that every line is there, and write what is made of all lines.

        Raises DataError for references of another number of lines, NmtError for what cannot be drawn.
        """
        args, translator, recipe = self.args, lines.translator, lines.recipe
        for note in [*self._input_notes(), *style_notes(Run(args.run[0]).src_style(), self.style)]:
            say(note)
        if n_cut := self.flags[CAP]:
            warn(f"{n_cut:,} translations were ended at the limit of decode.max_len_a and decode.max_len_b")
        if self.split:
            limits = translator.limits
            why = f"in pieces, as they have more than {limits.line:,} subwords: {numbers(self.split)}"
            why = "sentence by sentence" if limits.every else why
            say(f"note: {len(self.split):,} of {self.n_line:,} lines were translated {why} (--format jsonl flags them)")
        if told := ", ".join(f"{name} {n:,}" for name, n in self.flags.most_common() if name not in _NO_REASON):
            say(f"note: suspicious translations, of {self.n_line:,}: {told} (--format jsonl flags the lines)")
        if n_tried := self.outcomes.total():
            counts = f"{self.outcomes[MENDED]:,} mended, {self.outcomes[BETTER]:,} better but not right"
            kept = f"{self.outcomes[KEPT]:,} as they were"
            say(f"note: {n_tried:,} translations looked wrong and were tried again: {counts}, {kept}")
        aligns = args.alignments or (args.format == "jsonl" and translator.model.attends)
        if aligns and (units := characters_note(recipe)):
            say(f"note: {units}")
        if args.alignments:
            write_lines(args.alignments, self.links)
        if self.references:
            check_count(self.n_line, len(self.references[0]), args.ref[0], args.input)
            for name, reference in zip(args.ref, self.references, strict=True):
                for text in blank_notes(name, reference, self.sources):
                    warn(text)
            self._print_scores(trg_lang_of(recipe))
        if args.attention:
            _draw(args, lines, self.drawn, self.n_line)

    def _input_notes(self) -> list[str]:
        name, found = self.args.input or "<stdin>", self.notes
        keys = [key.removeprefix("key ") for key in found if key.startswith("key ")]
        within, ended = found["inner bom"], found["crlf"]
        notes = (
            (found["bom"], f"{name} began with a byte order mark, which was removed"),
            (within, f"{within:,} lines of {name} had a byte order mark within, which was removed"),
            (keys, f"keys of {name} that only the answers get: {', '.join(keys[:MOST_NUMBERS])}"),
            (ended, f"{ended:,} lines of {name} ended with a carriage return, which was removed"),
        )
        return [f"note: {text}" for is_so, text in notes if is_so]

    def _print_scores(self, trg_lang: str) -> None:
        """Print BLEU, chrF and TER with signatures and 95 % intervals, and exact match; also as JSON to --scores."""
        first, texts = self.references[0], Texts(self.outputs, self.references, self.sources, trg_lang)
        scores = score(texts, intervals=True)
        exact = exact_match(texts)
        for one in scores.values():
            talk(one.text)
        talk(f"exact match = {exact:.1f} % of {self.n_line:,} lines")
        for note in (bleu_tokens(trg_lang)[1], *map(tokenised_note, self.references), *map(form_note, self.references)):
            if note:
                talk(f"note: {note}")
        if warning := unspaced_note(first, trg_lang):
            talk(f"warning: {warning}")
        if self.args.scores:
            found: dict[str, Any] = {
                name: {"name": one.name, "score": one.value, "low": one.low, "high": one.high}
                | {"signature": one.signature, "details": one.details}
                for name, one in scores.items()
            }
            found |= {"exact_match": exact, "n_line": self.n_line}
            write_lines(self.args.scores, json.dumps(found, indent=2, ensure_ascii=False).split("\n"))


def blank_notes(name: str, references: Sequence[str], sources: Sequence[str]) -> list[str]:
    """Describe references without text, and sources without. name: of their file.

    Raises DataError where no line has both.
    """
    there = [(bool(source.strip()), bool(line.strip())) for source, line in zip(sources, references, strict=True)]
    if (True, True) not in there:
        raise DataError(f"{name}: no line has text beside a source that has some, so nothing can be compared.")
    notes = []
    for odd, what in {
        (True, False): "references are blank where the source is not",
        (False, True): "have text where the source is blank",
    }.items():
        if found := [number for number, one in enumerate(there, start=1) if one == odd]:
            notes.append(f"{name}: {len(found):,} of {len(there):,} {what} ({numbers(found)}): they lower the scores")
    return notes
