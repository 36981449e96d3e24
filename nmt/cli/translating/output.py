"""Output of nmt-translate: lines in each format, word alignments, and the report when every line has its result."""

import argparse
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch

from nmt.cli.begin import printable
from nmt.cli.translating.files import check_count, name_of, source_name
from nmt.cli.translating.input import Line
from nmt.cli.translating.workers import LineResult, LineTranslator
from nmt.data.lines import write_lines
from nmt.data.text import style_notes, traits_of
from nmt.decoding.evidence import WORDS, attention_note, log_prob_of, lost_note
from nmt.decoding.retry import BETTER, KEPT, MENDED
from nmt.decoding.suspicion import CAP, flags_of
from nmt.decoding.translation import MOST_SHOWN, Scored, Translation, is_in_pieces, is_too_wide
from nmt.decoding.translator import NOWHERE, Translator
from nmt.errors import DataError, NmtError
from nmt.evaluation.alignment import characters_note, trg_lang_of
from nmt.evaluation.attention.drawing import draw
from nmt.evaluation.attention.page import Alignment, panels, sentence_of
from nmt.evaluation.metrics import bleu_tokens, exact_match, form_note, score, tokenised_note, unspaced_note
from nmt.files import replacing
from nmt.progress import Bar
from nmt.recipe.model_options import Attention, ModelConfig
from nmt.run import Run

_LINE_ENDS = str.maketrans("\n\r", "  ")
_COLUMN_ENDS = str.maketrans("\t\n\r", "   ")
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


def output_lines(
    args: argparse.Namespace, line: Line, number: int, result: LineResult, flags: list[str], *, n_best: int
) -> list[str]:
    """Write the result of a line in the format that was asked for: one line, or one for each of the n best.

    flags: what is odd about the line or its translation, by name.
    """
    if args.score:
        return [_scored_line(args, line, number, result.scored, result.evidence)]
    one, evidence = result.answer.translation, result.evidence
    if args.format == "pairs":
        return [_json({**line.beside, "source": line.request.source, "output": one.text, "flags": flags})]
    if args.format == "jsonl":
        tried = {"retry": result.answer.retry} if args.retry_suspect else {}
        return [json_line(line, one, number, evidence, {"flags": flags, **tried})]
    scores = [(each.normalised, each.score) for each in one.hypotheses] or [(0.0, 0.0)]
    found = list(zip(one.texts, scores, strict=True))
    if args.format == "tsv":
        return [
            f"{number}\t{rank}\t{score:.6f}\t{log_prob:.6f}\t{text.translate(_COLUMN_ENDS)}"
            for rank, (text, (score, log_prob)) in enumerate(found, start=1)
        ]
    found = [(text.translate(_LINE_ENDS), both) for text, both in found]
    if args.format == "moses":  # as Moses and Marian count, from 0
        return [
            f"{number - 1} ||| {text.replace('|||', '| | |')} ||| F0= {log_prob:.6f} ||| {score:.6f}"
            for text, (score, log_prob) in found
        ]
    if n_best > 1:
        return [f"{number} ||| {text} ||| {score:.6f}" for text, (score, _) in found]
    return [f"{score:.6f}\t{text}" if args.show_scores else text for text, (score, _) in found[:1]]


def json_line(line: Line, one: Translation, number: int, evidence: dict[str, Any], more: dict[str, Any]) -> str:
    """Write all that is known of a line as JSON. evidence: of the best translation; more: fields after it."""
    scores = {"score": one.score, "log_prob": log_prob_of(one, evidence["token_log_probs"])}
    head = {"id": number, **line.beside, "source": line.request.source, "output": one.text}
    return _json({**head, **scores, **evidence, **more, "n_best": one.n_best})


def _scored_line(args: argparse.Namespace, line: Line, number: int, scored: Scored, evidence: dict[str, Any]) -> str:
    target = line.target or ""
    if args.format == "jsonl":
        head = {"id": number, **line.beside, "source": line.request.source, "output": target}
        return _json({**head, "log_prob": scored.log_prob, **evidence})
    if args.format == "text":
        return f"{scored.log_prob:.6f}"
    return f"{number}\t{scored.log_prob:.6f}\t{len(scored.token_log_probs)}\t{target.translate(_COLUMN_ENDS)}"


def _json(found: dict[str, Any]) -> str:
    return json.dumps(found, ensure_ascii=False)


class Alignments:
    """File of word alignments, a line each. A context manager: without `finish` nothing is left of it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._file: BinaryIO | None = None
        self._replacing: AbstractContextManager[BinaryIO] | None = None

    def __enter__(self) -> "Alignments":
        return self

    def __exit__(self, *_: object) -> None:
        if self._replacing:
            unfinished = NmtError("not finished")
            with contextlib.suppress(NmtError):
                self._replacing.__exit__(type(unfinished), unfinished, None)

    def add(self, alignment: str) -> None:
        """Write the alignment of a line and its translation."""
        if self._args.alignments:
            self._open().write(alignment.encode("ascii") + b"\n")

    def finish(self) -> None:
        """Give the file its name, now that every line is there."""
        if self._args.alignments:
            self._open()
            assert self._replacing
            found, self._replacing = self._replacing, None
            found.__exit__(None, None, None)

    def _open(self) -> BinaryIO:
        if self._file is None:  # and not before, as what a killed process left in its place is deleted first
            self._replacing = replacing(Path(self._args.alignments))
            self._file = self._replacing.__enter__()
        return self._file


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


def draw_attention(
    args: argparse.Namespace,
    translator: Translator,
    drawn: dict[int, tuple[str, Translation]],
    langs: tuple[str, str],
    n_line: int,
) -> None:
    """Draw --attention. drawn: sources and translations of the lines to draw, by number; n_line: of the input.

    Raises NmtError if a line of --lines is blank or not there, or no line can be drawn.
    """
    source = source_name(args)
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
    for number, (line, one) in sorted(drawn.items()):
        if is_too_wide(one):
            warn(
                f"{source}:{number}: not drawn, as its {len(one.parts):,} pieces have more than {MOST_SHOWN:,} subwords"
            )
            continue
        attns, trg_ids = translator.attention(one), one.hypotheses[0].ids
        title = f"{number}: {line if kind == 'encoder' else one.text}"
        sentences.append(sentence_of(attns, one.src_ids, trg_ids, translator.subwords, title))
    if not sentences:
        raise NmtError(f"{source}: no line that can be drawn: name shorter ones with --lines.")
    draw(
        sentences,
        Path(args.attention),
        kind=kind,
        layers=args.layer,
        heads=args.head,
        langs=langs,
        run=Path(args.run[0]).resolve().name,
    )


# The report.


@dataclass
class Report:
    """Counts of lines, and what references, pictures and alignments need of them. references: the lines of each."""

    args: argparse.Namespace
    references: list[list[str]]
    alignments: Alignments
    n_line: int = 0
    n_cut: int = 0
    split: list[int] = field(default_factory=list)  # numbers of the lines that were translated in pieces
    sources: list[str] = field(default_factory=list)
    blank: set[int] = field(default_factory=set)  # numbers of sources without text
    outputs: list[str] = field(default_factory=list)
    drawn: dict[int, tuple[str, Translation]] = field(default_factory=dict)
    suspicious: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)  # of what was translated once more
    style: Counter[str] = field(default_factory=Counter)  # of the lines: how they are written
    notes: Counter[str] = field(default_factory=Counter)  # what is odd but harmless in the input

    def add(self, line: Line, result: LineResult) -> list[str]:
        """Count a line, and print its warnings. Returns what is odd about it or its translation, by name."""
        self.n_line += 1
        warnings = [*line.odd.values(), attention_note(result.evidence), lost_note(result.lost)]
        if self.args.score:
            warnings.append(result.scored.warning or "")
        for text in filter(None, warnings):
            warn(f"{source_name(self.args)}:{self.n_line}: {text}")
        self.alignments.add(result.evidence.get(WORDS) or "")
        if self.args.score:
            return []
        source, answer = line.request.source, result.answer
        translation = answer.translation
        self.style.update(traits_of(source[:_FAR_ENOUGH]))
        self.suspicious.update(name for name in answer.reasons if name != CAP)  # which has a warning of its own
        if answer.outcome:
            self.outcomes[answer.outcome] += 1
        if is_in_pieces(translation) and "\n" not in source:
            self.split.append(self.n_line)
        self.n_cut += bool(translation.hypotheses) and not translation.hypotheses[0].finished
        if self.references:
            if not source.strip():
                self.blank.add(self.n_line)
            self.sources.append(source)
            self.outputs.append(translation.text)
        if self.args.attention and translation.hypotheses:
            wanted = self.args.lines
            if self.n_line in wanted if wanted else len(self.drawn) < N_PICTURE:
                self.drawn[self.n_line] = source, translation
        return [*line.odd, *flags_of(translation, answer.reasons)]

    def finish(self, lines: LineTranslator) -> None:
        """Print the report, now that every line is there.

        Raises DataError for references of another number of lines, NmtError for what cannot be drawn.
        """
        args, translator, recipe = self.args, lines.translator, lines.recipe
        trg_lang = trg_lang_of(recipe)
        for note in [*self._input_notes(), *style_notes(Run(args.run[0]).src_style(), self.style)]:
            say(note)
        if self.n_cut:
            warn(f"{self.n_cut:,} translations were ended at the limit of decode.max_len_a and decode.max_len_b")
        if self.split:
            limits = translator.limits
            why = (
                "sentence by sentence"
                if limits.every
                else f"in pieces, as they have more than {limits.line:,} subwords"
            )
            which = "" if limits.every else f": {numbers(self.split)}"
            many = f"{len(self.split):,} of {self.n_line:,} lines"
            say(f"note: {many} were translated {why}{which} (--format jsonl flags them)")
        if told := ", ".join(f"{name} {n:,}" for name, n in self.suspicious.most_common() if n):
            say(f"note: translations that look wrong, of {self.n_line:,}: {told} (--format jsonl flags the lines)")
        if n_tried := self.outcomes.total():
            counts = f"{self.outcomes[MENDED]:,} mended, {self.outcomes[BETTER]:,} better but not right"
            kept = f"{self.outcomes[KEPT]:,} as they were"
            say(f"note: {n_tried:,} translations looked wrong and were tried again: {counts}, {kept}")
        aligns = args.alignments or (args.format == "jsonl" and translator.attends)
        if aligns and (units := characters_note(recipe)):
            say(f"note: {units}")
        self.alignments.finish()
        if self.references:
            for name, lines_of_one in zip(args.ref, self.references, strict=True):
                check_count(self.n_line, len(lines_of_one), name, args)
            for name, lines_of_one in zip(args.ref, self.references, strict=True):
                for text in blank_notes(name_of(args, name), lines_of_one, self.blank):
                    warn(text)
            self._print_examples()
            self._print_scores(trg_lang)
        if args.attention:
            draw_attention(args, translator, self.drawn, (recipe.data.src_lang, trg_lang), self.n_line)
            say(f"attention: {args.attention}")

    def _input_notes(self) -> list[str]:
        name, found = source_name(self.args), self.notes
        notes = [f"note: {name} began with a byte order mark, which was removed"] if found["bom"] else []
        if found["inner bom"]:
            notes.append(
                f"note: {found['inner bom']:,} lines of {name} had a byte order mark within, which was removed"
            )
        if keys := [key.removeprefix("key ") for key in found if key.startswith("key ")]:
            notes.append(f"note: keys of {name} that only the answers get: {', '.join(keys[:MOST_NUMBERS])}")
        if found["crlf"]:
            notes.append(f"note: {found['crlf']:,} lines of {name} ended with a carriage return, which was removed")
        return notes

    def _print_examples(self) -> None:
        """Print sources with translation and references, taken at even distances."""
        n = min(self.args.examples, len(self.sources))
        names = (
            ["reference"] if len(self.references) == 1 else [f"reference {i + 1}" for i in range(len(self.references))]
        )
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
