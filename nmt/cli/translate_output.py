"""Output of nmt-translate: the model, the lines in each format, attention pictures, and the report at the end."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nmt.api import load
from nmt.cli.begin import printable, talk
from nmt.cli.parser import overrides_of
from nmt.cli.translate_input import Line, Reader, read_request, terms_of
from nmt.data.lines import check_line_counts, write_lines
from nmt.data.text import style_notes, traits_of
from nmt.decoding.evidence import Evidence, Fields, Lost, aligns_characters, attempt, log_prob_of, trg_lang_of
from nmt.decoding.request import Request, is_blank
from nmt.decoding.suspicion import BETTER, CAP, KEPT, MENDED, Answer, flags_of, mend, tries
from nmt.decoding.translator import Scored, Translation, Translator
from nmt.errors import NmtError
from nmt.evaluation.attention_page import draw, panels, sentence_of
from nmt.evaluation.metrics import Texts, bleu_tokens, exact_match, reference_notes, score
from nmt.models.int8 import half_is_faster
from nmt.progress import Bar
from nmt.recipe.model_options import Attention
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe
from nmt.run import SRC_STYLE, USUAL_RATIOS, Run

_LINE_ENDS, _COLUMN_ENDS = str.maketrans("\n\r", "  "), str.maketrans("\n\r\t", "   ")
_MOST_LISTED = 10  # keys or line numbers in a message
N_PICTURE = 3  # lines to draw without --lines
_N_STYLE_CHARACTER = 1000  # characters of a line that determine its style
_NOT_SUSPICIOUS = ("blank", "letterless", "split", CAP)  # flags of good translations, or with a message of their own


def say(text: str) -> None:
    """Print a line to stderr, also during a progress bar."""
    with suppress(OSError):  # stderr may be closed
        Bar.write(f"nmt-translate: {printable(text)}", file=sys.stderr)


def warn(text: str) -> None:
    """Print a warning to stderr."""
    say(f"warning: {text}")


@dataclass(frozen=True)
class Record:
    """Result of a line: its lines of the output, and JSON values for the report. Its fields are keys of the journal."""

    lines: list[str]
    text: str = ""  # the translation
    links: str = ""  # the word alignment
    warnings: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)  # of the translation
    outcome: str = ""  # of a second translation


def recipe_of(args: argparse.Namespace) -> Recipe:
    """Read the recipe of the first run with the command-line options. The dotted names take precedence over --mbr.

    Raises RecipeError for options.
    """
    mbr = [] if args.mbr is None else [("decode.samples", args.mbr), ("decode.mbr", "chrf")]
    return read_recipe(args.run[0], [*mbr, *overrides_of(args)])


# Format strings of a hypothesis, except JSON. Moses and Marian count lines from 0, the other formats from 1.
_ROWS = {
    "text": "{text}",
    "n_best": "{number} ||| {text} ||| {score:.6f}",
    "moses": "{index} ||| {text} ||| F0= {log_prob:.6f} ||| {score:.6f}",
    "tsv": "{number}\t{rank}\t{score:.6f}\t{log_prob:.6f}\t{text}",
}
_json = partial(json.dumps, ensure_ascii=False)


class LineTranslator:
    """Model with the options of the command, which translates lines or scores given translations."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Load the model. Raises NmtError for flags that it does not support."""
        self.args, self.recipe = args, recipe_of(args)
        if args.threads:
            torch.set_num_threads(args.threads)
        terms, decode = terms_of(args), self.recipe.decode
        model = load(args.run, checkpoint=args.checkpoint, device=args.device)
        self.translator: Translator = model.translator(decode)
        self.request_of: Reader = partial(
            read_request, args=args, terms=terms, decode=decode, check_tags=self.translator.codec_of
        )
        for run, name in () if args.checkpoint else zip(args.run, model.weights, strict=True):
            if name != Run(run).model_folder.name or Run(run).has_newer_checkpoints():
                say(f"note: {run}: training has not ended; translating with {name}")
        retries = tries(decode) if args.retry_suspect else {}
        self._retries: dict[str, Translator] = {name: model.translator(config) for name, config in retries.items()}
        has_fields = args.format == "jsonl" or bool(args.alignments)
        self._evidence = Evidence(self.translator, self.recipe, model.run.numbers(USUAL_RATIOS), has_fields)
        if model.model.device.type == "cpu" and decode.precision == "bf16" and not half_is_faster():
            say("note: decode.precision bf16 is slower than fp32 on this processor: use fp32")
        attention_flags = [flag for flag in ("attention", "alignments") if getattr(args, flag)]
        if attention_flags and not self.translator.model.attends:
            raise NmtError(f"--{attention_flags[0]}: this model has no attention to the source: leave it out.")
        if args.attention:
            kind, grids = args.attention_of, self.recipe.model.attention_grids
            if kind not in grids:
                raise NmtError(f"--attention-of {kind}: this model has no such attention, only {', '.join(grids)}.")
            panels(torch.empty(*grids[kind], 0, 0), args.layer, args.head)  # refuses layers and heads
        if args.format == "pairs" and not args.score and decode.n_best > 1:
            raise NmtError(f"--format pairs has one output a line, but decode.n_best is {decode.n_best}: set it to 1.")
        for flag in ("terms", "keep"):
            if decode.samples and getattr(args, flag):
                raise NmtError(f"--{flag}: required phrases need beam search: set decode.samples to 0.")
        if args.input_format != "jsonl":
            self.translator.codec_of(Request(""))  # refuses an unknown language before the first line

    def records(self, lines: Sequence[Line], on_progress: Callable[[int], object]) -> list[Record]:
        """Translate or score lines, equal ones only once, and format the results.

        on_progress: called with the number of lines done since the last call.
        """
        unique = list(dict.fromkeys((line.request, line.target) for line in lines))
        requests = [request for request, _ in unique]
        results: Sequence[tuple[Answer | Scored, Fields, Lost]]
        if self.args.score:
            results = self._evidence.of_given(requests, [target or "" for _, target in unique])
            on_progress(len(unique))
        else:
            errors: dict[Request, Lost] = {request: {} for request in requests}

            def reasons(request: Request, translation: Translation) -> list[str]:
                return attempt("flags", errors[request], lambda: self._evidence.reasons(request, translation)) or []

            answers = mend(requests, list(self.translator.translate(requests, on_progress)), self._retries, reasons)
            evidence = self._evidence.of(requests, [answer.translation for answer in answers])
            results = [
                (answer, fields, lost | errors[request])
                for request, answer, (fields, lost) in zip(requests, answers, evidence, strict=True)
            ]
        on_progress(len(lines) - len(unique))
        result_of = dict(zip(unique, results, strict=True))
        return [self.record_of(line, *result_of[line.request, line.target]) for line in lines]

    def record_of(self, line: Line, result: Answer | Scored, evidence: Fields, lost: Lost) -> Record:
        """Format the translation or the score of a line."""
        links = evidence.get("word_alignment") or ""
        warnings = list(line.odd.values())
        if lost:
            names, error = ", ".join(lost), next(iter(lost.values()))
            warnings.append(f"{names} left out after an internal error ({error}); the translation is complete")
        if isinstance(result, Scored):
            warnings += filter(None, [result.warning])
            return Record([self._scored_line(line, result, evidence)], links=links, warnings=warnings)
        flags = flags_of(result.translation, result.reasons)
        lines = self._lines(line, result, evidence, [*line.odd, *flags])
        return Record(lines, result.translation.text, links, warnings, flags, result.outcome or "")

    def _lines(self, line: Line, answer: Answer, evidence: Fields, flags: list[str]) -> list[str]:
        args, translation, number = self.args, answer.translation, line.number
        pair = {**line.beside, "source": line.request.source, "output": translation.text}
        if args.format == "pairs":
            return [_json({**pair, "flags": flags})]
        if args.format == "jsonl":
            retry = {"retry": answer.retry} if args.retry_suspect else {}
            scores = {"score": translation.score, "log_prob": log_prob_of(translation, evidence["token_log_probs"])}
            search_fields = {"flags": flags, **retry, "n_best": translation.n_best}
            return [_json({"id": number, **pair, **scores, **evidence, **search_fields})]
        kind = "n_best" if args.format == "text" and self.translator.config.n_best > 1 else args.format
        scored = [(hypothesis.normalised, hypothesis.score) for hypothesis in translation.hypotheses] or [(0.0, 0.0)]
        rows = []
        for rank, (text, (normalised, log_prob)) in enumerate(zip(translation.texts, scored, strict=True), start=1):
            row_text = text.translate(_COLUMN_ENDS if kind == "tsv" else _LINE_ENDS)
            row_text = row_text.replace("|||", "| | |") if kind == "moses" else row_text
            positions = {"number": number, "index": number - 1, "rank": rank}
            rows.append(_ROWS[kind].format(**positions, score=normalised, log_prob=log_prob, text=row_text))
        return rows

    def _scored_line(self, line: Line, scored: Scored, evidence: Fields) -> str:
        target, output_format = line.target or "", self.args.format
        pair, n_token = {**line.beside, "source": line.request.source, "output": target}, len(scored.token_log_probs)
        if output_format == "pairs":
            has_text = not any(map(is_blank, (line.request.source, target)))
            return _json({**pair, "mean_log_prob": scored.log_prob / n_token if has_text else None})
        if output_format == "jsonl":
            return _json({"id": line.number, **pair, "log_prob": scored.log_prob, **evidence})
        if output_format == "text":
            return f"{scored.log_prob:.6f}"
        return f"{line.number}\t{scored.log_prob:.6f}\t{n_token}\t{target.translate(_COLUMN_ENDS)}"

    def draw_attention(self, drawn: dict[int, Request], n_line: int) -> None:
        """Draw --attention. drawn: requests of the lines to draw, by number. n_line: number of input lines.

        Raises NmtError if a line of --lines is blank or absent, or no line can be drawn.
        """
        args, recipe, translator = self.args, self.recipe, self.translator
        missing = [str(number) for number in args.lines or () if number not in drawn]
        if missing or not drawn:
            flag = f"--lines {','.join(missing)}" if missing else "--attention"
            raise NmtError(
                f"{flag}: cannot be drawn: the input has {n_line:,} lines, and lines that are blank or copied "
                "(decode.copy_letterless) have no attention."
            )
        kind: Attention = args.attention_of
        sentences = []
        requests = list(drawn.values())

        def reasons(request: Request, translation: Translation) -> list[str]:
            return attempt("flags", {}, lambda: self._evidence.reasons(request, translation)) or []

        answers = mend(requests, list(translator.translate(requests)), self._retries, reasons)
        for (number, request), answer in zip(drawn.items(), answers, strict=True):
            line = answer.translation
            texts = line.split.pieces if line.split else [request.source]
            for text, part in zip(texts, line.parts or [line], strict=True):
                if part.hypotheses:
                    title, attns = f"{number}: {text if kind == 'encoder' else part.text}", translator.attention(part)
                    sentences.append(sentence_of(attns, part.src_ids, part.trg_ids, translator.subwords, title))
        langs, run = (recipe.data.src_lang, trg_lang_of(recipe)), Path(args.run[0]).resolve().name
        draw(sentences, Path(args.attention), kind=kind, layers=args.layer, heads=args.head, langs=langs, run=run)
        say(f"attention: {args.attention}")


@dataclass
class Report:
    """Counts over all lines, and the texts for scores, pictures and alignments. references: the lines of each."""

    args: argparse.Namespace
    references: list[list[str]]
    n_line: int = 0
    sources: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)  # word alignments
    drawn: dict[int, Request] = field(default_factory=dict)
    flags: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)  # of second translations
    style: Counter[str] = field(default_factory=Counter)  # traits of the source lines
    notes: Counter[str] = field(default_factory=Counter)  # harmless anomalies of the input

    def add(self, line: Line, record: Record) -> None:
        """Count a line, and print its warnings."""
        self.n_line = line.number
        place = f", output line {line.number}" if self.args.input_format == "wrapped" else f":{line.number}"
        for text in record.warnings:
            warn(f"{self.args.input or '<stdin>'}{place}: {text}")
        if self.args.alignments:
            self.links.append(record.links)
        if self.args.score:
            return
        source = line.request.source
        self.style.update(traits_of(source[:_N_STYLE_CHARACTER]))
        self.flags.update(record.flags)
        self.outcomes.update([record.outcome] if record.outcome else ())
        if self.references:
            self.sources.append(source)
            self.outputs.append(record.text)
        is_wanted = line.number in self.args.lines if self.args.lines else len(self.drawn) < N_PICTURE
        if self.args.attention and is_wanted and not {"blank", "letterless"}.intersection(record.flags):
            self.drawn[line.number] = line.request

    def finish(self, model: LineTranslator) -> None:
        """Print the report after the last line, and write scores, alignments and pictures.

        Raises DataError for references with another number of lines, NmtError for attention that cannot be drawn.
        """
        args, translator, recipe = self.args, model.translator, model.recipe
        source = args.input or "<stdin>"
        if self.notes["bom"]:
            say(f"note: {source} began with a byte order mark, which was removed")
        if n_inner := self.notes["inner bom"]:
            say(f"note: {n_inner:,} lines of {source} had a byte order mark inside, which was removed")
        if keys := [key.removeprefix("key ") for key in self.notes if key.startswith("key ")]:
            say(f"note: unknown keys of {source}, copied to the output: {', '.join(keys[:_MOST_LISTED])}")
        if n_crlf := self.notes["crlf"]:
            say(f"note: {n_crlf:,} lines of {source} ended with a carriage return, which was removed")
        for note in style_notes(Run(args.run[0]).numbers(SRC_STYLE), self.style):
            say(note)
        if n_cut := self.flags[CAP]:
            warn(f"{n_cut:,} translations were truncated at the length limit, decode.max_len_a and decode.max_len_b")
        if (n_split := self.flags["split"]) and not translator.limits.every:
            say(f"note: {n_split:,} of {self.n_line:,} lines were translated in pieces (--format jsonl flags them)")
        counts = [f"{name} {n:,}" for name, n in self.flags.most_common() if name not in _NOT_SUSPICIOUS]
        if flags := ", ".join(counts):
            say(f"note: suspicious translations, of {self.n_line:,}: {flags} (--format jsonl flags the lines)")
        if n_retried := self.outcomes.total():
            improved = f"{self.outcomes[MENDED]:,} mended, {self.outcomes[BETTER]:,} better but still suspicious"
            kept = f"{self.outcomes[KEPT]:,} unchanged"
            say(f"note: {n_retried:,} suspicious translations were tried again: {improved}, {kept}")
        aligns = args.alignments or (args.format == "jsonl" and translator.model.attends)
        if aligns and recipe.decode.align_units == "auto" and any(aligns_characters(recipe)):
            say(
                "note: word alignments number the characters of languages written without spaces, white space left out "
                "(--decode.align_units words: parts between spaces)"
            )
        if args.alignments:
            write_lines(args.alignments, self.links)
        if self.references:
            check_line_counts(self.n_line, len(self.references[0]), args.ref[0], args.input)
            for name, reference in zip(args.ref, self.references, strict=True):
                pairs = enumerate(zip(self.sources, reference, strict=True), start=1)
                one_sided = [number for number, (source, line) in pairs if bool(source.strip()) != bool(line.strip())]
                if one_sided:
                    first = ", ".join(map(str, one_sided[:_MOST_LISTED]))
                    where = f"here or in the source, not in both (first: {first})"
                    warn(f"{name}: {len(one_sided):,} lines are blank {where}: they lower the scores")
            self._print_scores(trg_lang_of(recipe))
        if args.attention:
            model.draw_attention(self.drawn, self.n_line)

    def _print_scores(self, trg_lang: str) -> None:
        """Print BLEU, chrF and TER with signatures and 95 % intervals, and exact match; also as JSON to --scores."""
        texts = Texts(self.outputs, self.references, self.sources, trg_lang)
        scores, exact = score(texts, intervals=True), exact_match(texts)
        for metric_score in scores.values():
            talk(metric_score.text)
        talk(f"exact match = {exact:.1f} % of {self.n_line:,} lines")
        for note in filter(None, [bleu_tokens(trg_lang)[1], *reference_notes(self.references, trg_lang)]):
            talk(f"note: {note}")
        if self.args.scores:
            fields: dict[str, Any] = {
                name: {"name": result.name, "score": result.value, "low": result.low, "high": result.high}
                | {"signature": result.signature, "details": result.details}
                for name, result in scores.items()
            }
            fields |= {"exact_match": exact, "n_line": self.n_line}
            write_lines(self.args.scores, json.dumps(fields, indent=2, ensure_ascii=False).split("\n"))
