"""Output of nmt-translate: lines in each format, word alignments, and the report when every line has its result."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nmt.cli.begin import printable
from nmt.cli.translate_files import check_references, name_of, source_name
from nmt.cli.translate_input import Line, Window
from nmt.cli.translate_model import LineResult, LineTranslator
from nmt.data.lines import write_lines
from nmt.data.text import style_notes, traits_of
from nmt.decoding.evidence import WORDS, Fields, attention_note, log_prob_of, lost_note
from nmt.decoding.request import Request
from nmt.decoding.suspicion import BETTER, CAP, KEPT, MENDED, Answer, flags_of
from nmt.decoding.translation import MOST_SHOWN, Scored, is_in_pieces, is_too_wide
from nmt.decoding.translator import NOWHERE
from nmt.errors import DataError, NmtError
from nmt.evaluation.alignment import characters_note, trg_lang_of
from nmt.evaluation.attention_drawing import draw
from nmt.evaluation.attention_page import Alignment, panels, sentence_of
from nmt.evaluation.metrics import bleu_tokens, exact_match, form_note, score, tokenised_note, unspaced_note
from nmt.progress import Bar
from nmt.recipe.model_options import Attention, ModelConfig
from nmt.run import Run

_LINE_ENDS = str.maketrans("\n\r", "  ")
MOST_NUMBERS = 10  # of lines that are named
N_PICTURE = 3  # lines that are drawn where none are named
_FAR_ENOUGH = 1000  # characters of a line that are looked at for its style


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


# Lines.


@dataclass(frozen=True)
class Record:
    """Result of a line: lines of the output, and what the report needs, in values of JSON."""

    lines: list[str]
    text: str = ""  # the translation
    links: str = ""  # the word alignment
    warnings: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)  # against the translation
    outcome: str = ""  # of what was translated once more
    in_pieces: bool = False
    is_cut: bool = False  # ended at the limit of its length
    is_read: bool = False  # by the model


def records_of(
    args: argparse.Namespace,
    model: LineTranslator,
    window: Window,
    on_progress: Callable[[int], object] | None = None,
) -> list[Record]:
    """Translate or score the lines of a window, and write them in the format that was asked for."""
    results = model.results([(line.request, line.target) for line in window.lines], on_progress)
    n_best = model.translator.config.n_best
    numbered = enumerate(zip(window.lines, results, strict=True), start=window.first)
    return [_record(args, line, number, result, n_best) for number, (line, result) in numbered]


def _record(args: argparse.Namespace, line: Line, number: int, result: LineResult, n_best: int) -> Record:
    warnings = [*line.odd.values(), attention_note(result.evidence), lost_note(result.lost)]
    links = result.evidence.get(WORDS) or ""
    if isinstance(result.found, Scored):
        warnings.append(result.found.warning or "")
        lines = [_scored_line(args, line, number, result.found, result.evidence)]
        return Record(lines, links=links, warnings=list(filter(None, warnings)))
    one, reasons = result.found.translation, result.found.reasons
    flags = [*line.odd, *flags_of(one, reasons)]
    return Record(
        _lines(args, line, number, result.found, result.evidence, flags, n_best),
        one.text,
        links,
        list(filter(None, warnings)),
        [name for name in reasons if name != CAP],  # which has a warning of its own
        result.found.outcome or "",
        is_in_pieces(one) and "\n" not in line.request.source,
        bool(one.hypotheses) and not one.hypotheses[0].finished,
        bool(one.hypotheses),
    )


def _lines(
    args: argparse.Namespace, line: Line, number: int, answer: Answer, evidence: Fields, flags: list[str], n_best: int
) -> list[str]:
    one = answer.translation
    if args.format == "pairs":
        return [_json({**line.beside, "source": line.request.source, "output": one.text, "flags": flags})]
    if args.format == "jsonl":
        tried = {"retry": answer.retry} if args.retry_suspect else {}
        head = {"id": number, **line.beside, "source": line.request.source, "output": one.text}
        scores = {"score": one.score, "log_prob": log_prob_of(one, evidence["token_log_probs"])}
        return [_json({**head, **scores, **evidence, "flags": flags, **tried, "n_best": one.n_best})]
    scored = [(each.normalised, each.score) for each in one.hypotheses] or [(0.0, 0.0)]
    found = [(text.translate(_LINE_ENDS), *scores) for text, scores in zip(one.texts, scored, strict=True)]
    if args.format == "tsv":
        return [
            f"{number}\t{rank}\t{score:.6f}\t{log_prob:.6f}\t{_column(text)}"
            for rank, (text, score, log_prob) in enumerate(found, start=1)
        ]
    if args.format == "moses":  # as Moses and Marian count, from 0
        return [
            f"{number - 1} ||| {text.replace('|||', '| | |')} ||| F0= {log_prob:.6f} ||| {score:.6f}"
            for text, score, log_prob in found
        ]
    if n_best > 1:
        return [f"{number} ||| {text} ||| {score:.6f}" for text, score, _ in found]
    return [f"{score:.6f}\t{text}" if args.show_scores else text for text, score, _ in found[:1]]


def _scored_line(args: argparse.Namespace, line: Line, number: int, scored: Scored, evidence: Fields) -> str:
    target = line.target or ""
    if args.format == "jsonl":
        head = {"id": number, **line.beside, "source": line.request.source, "output": target}
        return _json({**head, "log_prob": scored.log_prob, **evidence})
    if args.format == "text":
        return f"{scored.log_prob:.6f}"
    return f"{number}\t{scored.log_prob:.6f}\t{len(scored.token_log_probs)}\t{_column(target.translate(_LINE_ENDS))}"


def _column(text: str) -> str:
    return text.replace("\t", " ")


def _json(found: dict[str, Any]) -> str:
    return (
        json.dumps(found, ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")
    )  # no half of a surrogate pair


# Attention.


def check_attention(args: argparse.Namespace, model: ModelConfig, *, attends: bool) -> None:
    """Raise NmtError for attention that is asked for and not there: none, no such kind, layer or head."""
    asked = [flag for flag in ("attention", "with_attention", "alignments") if getattr(args, flag)]
    if asked and not attends:
        flag = asked[0].replace("_", "-")
        raise NmtError(f"--{flag}: {NOWHERE}, so there is no attention to show: leave it out.")
    kinds: list[Attention] = [args.attention_of or "cross"] if args.attention else []
    for kind in kinds + ["cross"] * bool(args.with_attention):
        if kind not in model.attention_grids:
            known = ", ".join(model.attention_grids)
            raise NmtError(f"--attention-of {kind}: this model has no such attention, only {known}.")
        panels(Alignment(torch.empty(*model.attention_grids[kind], 0, 0), [], []), args.layer, args.head)


def _draw(args: argparse.Namespace, lines: LineTranslator, drawn: dict[int, Request], n_line: int) -> None:
    """Draw --attention. drawn: the lines to draw, by number; n_line: of the input.

    Raises NmtError if a line of --lines is blank or not there, or no line can be drawn.
    """
    source, translator, recipe = source_name(args), lines.translator, lines.recipe
    if not n_line:
        raise NmtError(f"{source}: the input is empty: no line to draw the attention of.")
    if missing := [str(number) for number in args.lines or () if number not in drawn]:
        raise NmtError(
            f"--lines {','.join(missing)}: nothing to draw there: the input has {n_line:,} lines, and a blank line has "
            "no attention."
        )
    if not drawn:
        raise NmtError(f"{source}: no line to draw the attention of: all {n_line:,} are blank.")
    kind: Attention = args.attention_of or "cross"
    sentences = []
    found = lines.results([(request, None) for request in drawn.values()])
    for (number, request), result in zip(drawn.items(), found, strict=True):
        assert isinstance(result.found, Answer)
        one = result.found.translation
        if is_too_wide(one):
            warn(
                f"{source}:{number}: not drawn, as its {len(one.parts):,} pieces have more than {MOST_SHOWN:,} subwords"
            )
            continue
        title = f"{number}: {request.source if kind == 'encoder' else one.text}"
        attns, trg_ids = translator.attention(one), one.hypotheses[0].ids
        sentences.append(sentence_of(attns, one.src_ids, trg_ids, translator.subwords, title))
    if not sentences:
        raise NmtError(f"{source}: no line that can be drawn: name shorter ones with --lines.")
    langs, run = (recipe.data.src_lang, trg_lang_of(recipe)), Path(args.run[0]).resolve().name
    draw(sentences, Path(args.attention), kind=kind, layers=args.layer, heads=args.head, langs=langs, run=run)


# The report.


@dataclass
class Report:
    """Counts of lines, and what references, pictures and alignments need of them. references: the lines of each."""

    args: argparse.Namespace
    references: list[list[str]]
    n_line: int = 0
    n_cut: int = 0
    split: list[int] = field(default_factory=list)  # numbers of the lines that were translated in pieces
    sources: list[str] = field(default_factory=list)
    blank: set[int] = field(default_factory=set)  # numbers of sources without text
    outputs: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)  # word alignments
    drawn: dict[int, Request] = field(default_factory=dict)
    suspicious: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)  # of what was translated once more
    style: Counter[str] = field(default_factory=Counter)  # of the lines: how they are written
    notes: Counter[str] = field(default_factory=Counter)  # what is odd but harmless in the input

    def add(self, line: Line, record: Record) -> None:
        """Count a line, and print its warnings."""
        self.n_line += 1
        for text in record.warnings:
            warn(f"{source_name(self.args)}:{self.n_line}: {text}")
        if self.args.alignments:
            self.links.append(record.links)
        if self.args.score:
            return
        source = line.request.source
        self.style.update(traits_of(source[:_FAR_ENOUGH]))
        self.suspicious.update(record.reasons)
        if record.outcome:
            self.outcomes[record.outcome] += 1
        if record.in_pieces:
            self.split.append(self.n_line)
        self.n_cut += record.is_cut
        if self.references:
            if not source.strip():
                self.blank.add(self.n_line)
            self.sources.append(source)
            self.outputs.append(record.text)
        if self.args.attention and record.is_read:
            wanted = self.args.lines
            if self.n_line in wanted if wanted else len(self.drawn) < N_PICTURE:
                self.drawn[self.n_line] = line.request

    def finish(self, lines: LineTranslator) -> None:
        """Print the report, now that every line is there, and write what is made of all lines.

        Raises DataError for references of another number of lines, NmtError for what cannot be drawn.
        """
        args, translator, recipe = self.args, lines.translator, lines.recipe
        for note in [*self._input_notes(), *style_notes(Run(args.run[0]).src_style(), self.style)]:
            say(note)
        if self.n_cut:
            warn(f"{self.n_cut:,} translations were ended at the limit of decode.max_len_a and decode.max_len_b")
        if self.split:
            limits = translator.limits
            why = f"in pieces, as they have more than {limits.line:,} subwords: {numbers(self.split)}"
            why = "sentence by sentence" if limits.every else why
            say(f"note: {len(self.split):,} of {self.n_line:,} lines were translated {why} (--format jsonl flags them)")
        if told := ", ".join(f"{name} {n:,}" for name, n in self.suspicious.most_common()):
            say(f"note: suspicious translations, of {self.n_line:,}: {told} (--format jsonl flags the lines)")
        if n_tried := self.outcomes.total():
            counts = f"{self.outcomes[MENDED]:,} mended, {self.outcomes[BETTER]:,} better but not right"
            kept = f"{self.outcomes[KEPT]:,} as they were"
            say(f"note: {n_tried:,} translations looked wrong and were tried again: {counts}, {kept}")
        aligns = args.alignments or (args.format == "jsonl" and translator.attends)
        if aligns and (units := characters_note(recipe)):
            say(f"note: {units}")
        if args.alignments:
            write_lines(args.alignments, self.links)
        if self.references:
            check_references(self.n_line, self.references, args)
            for name, reference in zip(args.ref, self.references, strict=True):
                for text in blank_notes(name_of(args, name), reference, self.blank):
                    warn(text)
            self._print_examples()
            self._print_scores(trg_lang_of(recipe))
        if args.attention:
            _draw(args, lines, self.drawn, self.n_line)
            say(f"attention: {args.attention}")

    def _input_notes(self) -> list[str]:
        name, found = source_name(self.args), self.notes
        keys = [key.removeprefix("key ") for key in found if key.startswith("key ")]
        notes = {
            f"{name} began with a byte order mark, which was removed": found["bom"],
            f"{found['inner bom']:,} lines of {name} had a byte order mark within, which was removed": found[
                "inner bom"
            ],
            f"keys of {name} that only the answers get: {', '.join(keys[:MOST_NUMBERS])}": keys,
            f"{found['crlf']:,} lines of {name} ended with a carriage return, which was removed": found["crlf"],
        }
        return [f"note: {text}" for text, is_so in notes.items() if is_so]

    def _print_examples(self) -> None:
        """Print sources with translation and references, taken at even distances."""
        n = min(self.args.examples, len(self.sources))
        n_ref = len(self.references)
        names = [f"reference {i + 1}" for i in range(n_ref)] if n_ref > 1 else ["reference"]
        columns = ("source", self.sources), ("translation", self.outputs), *zip(names, self.references, strict=True)
        for i in range(n):
            line = i * len(self.sources) // n
            _print(f"line {line + 1:,}")
            for name, texts in columns:
                _print(f"  {name:<11} {texts[line]}")

    def _print_scores(self, trg_lang: str) -> None:
        """Print BLEU, chrF and TER with signatures and 95 % intervals, and exact match; also as JSON to --scores."""
        first, *more = self.references
        scores = score(self.outputs, first, sources=self.sources, more=more, intervals=True, trg_lang=trg_lang)
        exact = exact_match(self.outputs, first, more=more)
        for one in scores.values():
            _print(one.text)
        _print(f"exact match = {exact:.1f} % of {self.n_line:,} lines")
        for note in (bleu_tokens(trg_lang)[1], *map(tokenised_note, self.references), *map(form_note, self.references)):
            if note:
                _print(f"note: {note}")
        if warning := unspaced_note(first, trg_lang):
            _print(f"warning: {warning}")
        if self.args.scores:
            found: dict[str, Any] = {
                name: {"name": one.name, "score": one.value, "low": one.low, "high": one.high}
                | {"signature": one.signature, "details": one.details}
                for name, one in scores.items()
            }
            found |= {"exact_match": exact, "n_line": self.n_line}
            write_lines(self.args.scores, json.dumps(found, indent=2, ensure_ascii=False).split("\n"))


def blank_notes(name: str, references: Sequence[str], blank: set[int]) -> list[str]:
    """Describe references without text, and sources without. name: of their file; blank: numbers of such sources.

    Raises DataError where no line has both.
    """
    missing = [n for n, line in enumerate(references, start=1) if not line.strip() and n not in blank]
    alone = [n for n, line in enumerate(references, start=1) if line.strip() and n in blank]
    if len(references) == len(blank) + len(missing):
        raise DataError(f"{name}: no line has text beside a source that has some, so nothing can be compared.")
    told = (missing, "references are blank where the source is not"), (alone, "have text where the source is blank")
    return [
        f"{name}: {len(found):,} of {len(references):,} {what} ({numbers(found)}): they lower the scores"
        for found, what in told
        if found
    ]


def _print(text: str) -> None:
    print(printable(text), file=sys.stderr)
