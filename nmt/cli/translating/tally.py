"""What nmt-translate remembers of the lines that go through it, and what it reports when every line has its answer."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nmt.cli.begin import printable
from nmt.cli.translating.answering import Answering, Told, ToldScore
from nmt.cli.translating.files import Alignments, check_references, name_of, source_name
from nmt.cli.translating.requests import Odd
from nmt.data.lines import write_lines
from nmt.data.text import style_notes, traits_of
from nmt.decoding.evidence import WORDS, attention_note, lost_note
from nmt.decoding.long_lines import Limits
from nmt.decoding.retry import BETTER, KEPT, MENDED, Answer
from nmt.decoding.suspicion import CAP, flags_of
from nmt.decoding.translation import MOST_SHOWN, Translation, is_in_pieces, is_too_wide
from nmt.decoding.translator import NOWHERE, Translator
from nmt.errors import DataError, NmtError
from nmt.evaluation.alignment import characters_note, trg_lang_of
from nmt.evaluation.attention.drawing import draw
from nmt.evaluation.attention.page import Alignment, panels, sentence_of
from nmt.evaluation.metrics import Score, bleu_tokens, exact_match, form_note, score, tokenised_note, unspaced_note
from nmt.progress import Bar
from nmt.recipe.decode_options import DecodeConfig
from nmt.recipe.model_options import Attention, ModelConfig
from nmt.run import Run

# What nmt-translate says on stderr.


MOST_NUMBERS = 10  # of lines that are named


def say(text: str) -> None:
    """Print a line, whatever bar is there."""
    Bar.write(f"nmt-translate: {printable(text)}", file=sys.stderr)


def warn(text: str) -> None:
    """Print a warning."""
    say(f"warning: {text}")


def report_scores(outputs: Sequence[str], references: Sequence[Sequence[str]], trg_lang: str, path: str | None) -> None:
    """Print BLEU, chrF and TER with signatures and 95 % intervals, and exact match; as JSON to `path` if given.

    references: one or several of all the lines.
    """
    first, *more = references
    scores = score(outputs, first, more=more, intervals=True, trg_lang=trg_lang)
    exact = exact_match(outputs, first, more=more)
    for found in scores.values():
        _print(found.text)
    _print(f"exact match = {exact:.1f} % of {len(outputs):,} lines")
    for note in (bleu_tokens(trg_lang)[1], *map(tokenised_note, references), *map(form_note, references)):
        if note:
            _print(f"note: {note}")
    if warning := unspaced_note(first, trg_lang):
        _print(f"warning: {warning}")
    if path:
        text = json.dumps(_as_json(scores, exact, len(outputs)), indent=2, ensure_ascii=False)
        write_lines(path, text.split("\n"))


def print_examples(sources: Sequence[str], outputs: Sequence[str], references: Sequence[Sequence[str]], n: int) -> None:
    """Print n sources with translation and references, taken at even distances."""
    n = min(n, len(sources))
    names = ["reference"] if len(references) == 1 else [f"reference {i}" for i in range(1, len(references) + 1)]
    for i in range(n):
        line = i * len(sources) // n
        _print(f"line {line + 1:,}")
        for name, texts in (("source", sources), ("translation", outputs), *zip(names, references, strict=True)):
            _print(f"  {name:<11} {texts[line]}")


def input_notes(found: Counter[str], name: str) -> list[str]:
    """What to say of an input that is odd but harmless. found: as `read_stream` counts it; name: of the input."""
    notes = []
    if found["bom"]:
        notes.append(f"note: {name} began with a byte order mark, which was removed")
    if found["inner bom"]:
        notes.append(f"note: {found['inner bom']:,} lines of {name} had a byte order mark within, which was removed")
    if keys := [key.removeprefix("key ") for key in found if key.startswith("key ")]:
        notes.append(f"note: keys of {name} that only the answers get: {', '.join(keys[:MOST_NUMBERS])}")
    if found["crlf"]:
        notes.append(f"note: {found['crlf']:,} lines of {name} ended with a carriage return, which was removed")
    return notes


def unfinished_notes(taken: Mapping[str, str | None]) -> list[str]:
    """What to say of runs whose training has not ended, or goes on. taken: by run the checkpoint that translates, or
    None where that is the model that was chosen at an end."""
    goes_on = "training goes on since its model was chosen; translating with that, and with others by --checkpoint"
    return [
        f"note: {run}: {f'training has not ended; translating with {name}' if name else goes_on}"
        for run, name in taken.items()
    ]


def small_batches_notes(config: DecodeConfig, device: str, n_line: int | None) -> list[str]:
    """What to say where many lines are translated on a GPU, as few together as suit a CPU. n_line: None if unknown."""
    usual = DecodeConfig()
    if device != "cuda" or (n_line or 0) <= usual.window:
        return []
    more = {"max_tokens": 1_048_576, "window": 10_000}
    flags = [f"--decode.{name} {n}" for name, n in more.items() if getattr(config, name) == getattr(usual, name)]
    return [f"note: a GPU is faster with more lines at once: {' '.join(flags)}"] if flags else []


def suspicious_note(found: Counter[str], n_line: int) -> str:
    """Note on translations that look wrong; "" where none do. found: lines of each reason."""
    told = ", ".join(f"{name} {n:,}" for name, n in found.most_common() if n)
    if not told:
        return ""
    return f"note: translations that look wrong, of {n_line:,}: {told} (--format jsonl flags the lines)"


def retry_note(outcomes: Counter[str]) -> str:
    """What to say of lines that were translated again; "" where none were. outcomes: lines of each."""
    if not outcomes.total():
        return ""
    return (
        f"note: {outcomes.total():,} translations looked wrong and were tried again: {outcomes[MENDED]:,} mended, "
        f"{outcomes[BETTER]:,} better but not right, {outcomes[KEPT]:,} as they were"
    )


def split_note(split: Sequence[int], n_line: int, limits: Limits) -> str:
    """Note on the lines that were translated in pieces. split: their numbers."""
    why = "sentence by sentence" if limits.every else f"in pieces, as they have more than {limits.line:,} subwords"
    which = "" if limits.every else f": {numbers(split)}"
    return f"note: {len(split):,} of {n_line:,} lines were translated {why}{which} (--format jsonl flags them)"


def numbers(lines: Sequence[int]) -> str:
    """Numbers of lines in words: the first ten, then a count of the others."""
    told = ", ".join(f"{number:,}" for number in lines[:MOST_NUMBERS])
    more = len(lines) - MOST_NUMBERS
    return f"lines {told} and {more:,} more" if more > 0 else f"line{'s' * (len(lines) > 1)} {told}"


def blank_notes(name: str, references: Sequence[str], blank: Collection[int]) -> list[str]:
    """Notes on references without text, and on sources without. name: of their file; blank: numbers of such sources.

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


def _as_json(scores: dict[str, Score], exact: float, n_line: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: {
            "name": one.name,
            "score": one.value,
            "low": one.low,
            "high": one.high,
            "signature": one.signature,
            "details": one.details,
        }
        for name, one in scores.items()
    }
    return {**found, "exact_match": exact, "n_line": n_line}


def _print(text: str) -> None:
    print(printable(text), file=sys.stderr)


# What nmt-translate draws of attention, and what it cannot, which is said before the work.


# Flags that need a model whose words look at the source.
_OF_ATTENTION = ("attention", "with_attention", "alignments")


def check_attention(args: argparse.Namespace, model: ModelConfig, *, attends: bool) -> None:
    """Raise NmtError for what is asked of attention and is not there: none, no such kind, no such layer or head."""
    asked = [flag for flag in _OF_ATTENTION if getattr(args, flag)]
    if asked and not attends:
        flag = asked[0].replace("_", "-")
        raise NmtError(f"--{flag}: {NOWHERE}, so there is no attention to show: leave it out.")
    drawn = [_drawn(args)] if args.attention else []
    written: list[Attention] = ["cross"] if args.with_attention else []
    for kind in (*drawn, *written):
        if kind not in model.attention_grids:
            known = ", ".join(model.attention_grids)
            raise NmtError(f"--attention-of {kind}: this model has no such attention, only {known}.")
        panels(Alignment(torch.empty(*model.attention_grids[kind], 0, 0), [], []), args.layer, args.head)


def _drawn(args: argparse.Namespace) -> Attention:
    return args.attention_of or "cross"


def draw_attention(
    args: argparse.Namespace,
    translator: Translator,
    drawn: Mapping[int, tuple[str, Translation]],
    langs: tuple[str, str],
    source: str,
    n_line: int,
    warn: Callable[[str], object],
) -> None:
    """Write --attention. drawn: the lines to draw and their translations, by number; source: the name of the input.

    warn: told of lines that have more attention than can be drawn.
    Raises NmtError if a line of --lines is blank or not there, or no line can be drawn.
    """
    if not n_line:
        raise NmtError(f"{source}: the input is empty: no line to draw the attention of.")
    if missing := [str(number) for number in args.lines or () if number not in drawn]:
        raise NmtError(
            f"--lines {','.join(missing)}: nothing to draw there: the input has {n_line:,} lines, and a blank line has "
            "no attention."
        )
    if not drawn:
        raise NmtError(f"{source}: no line to draw the attention of: all {n_line:,} are blank.")
    kind, sentences = _drawn(args), []
    for number, (line, one) in sorted(drawn.items()):
        if is_too_wide(one):
            warn(
                f"{source}:{number}: not drawn, as its {len(one.parts):,} pieces have more than {MOST_SHOWN:,} subwords"
            )
            continue
        attns, trg_ids = translator.attention(one), one.hypotheses[0].ids
        title = f"{number}: {line if kind == 'encoder' else one.text}"  # what looks
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


_FAR_ENOUGH = 1000  # characters of a line that are looked at
N_PICTURE = 3  # lines that are drawn where none are named


@dataclass
class Tally:
    """Counts of lines, and what references, pictures and alignments need of them. references: the lines of each."""

    args: argparse.Namespace
    references: list[list[str]]
    alignments: Alignments
    n_read: int = 0
    n_answered: int = 0
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

    def add(self, line: str, odd: Odd, told: Told) -> list[str]:
        """Count a line that was translated. Returns what is odd about it, as is known of its bytes, and about its
        translation, by name.
        """
        self.n_answered += 1
        self._warn(attention_note(told.evidence))
        self._warn(lost_note(told.lost))
        self.style.update(traits_of(line[:_FAR_ENOUGH]))
        flags = self._flags(odd, told.answer)
        self._remember(line, told.answer.translation)
        self.alignments.add(told.evidence.get(WORDS) or "")
        return flags

    def add_score(self, told: ToldScore) -> None:
        """Count a line whose given translation was scored."""
        self.n_answered += 1
        self._warn(told.scored.warning)
        self._warn(attention_note(told.evidence))
        self._warn(lost_note(told.lost))
        self.alignments.add(told.evidence.get(WORDS) or "")

    def _warn(self, text: str | None) -> None:
        """Say what the user should know of this line, if there is anything."""
        if text:
            warn(f"{source_name(self.args)}:{self.n_answered}: {text}")

    def _flags(self, odd: Odd, answer: Answer) -> list[str]:
        self.suspicious.update(name for name in answer.reasons if name != CAP)  # of that one there is a warning
        if answer.outcome:
            self.outcomes[answer.outcome] += 1
        return [*odd, *flags_of(answer.translation, answer.reasons)]

    def _remember(self, line: str, translation: Translation) -> None:
        """Keep what the end of the command needs of a line."""
        if is_in_pieces(translation) and "\n" not in line:
            self.split.append(self.n_answered)
        self.n_cut += bool(translation.hypotheses) and not translation.hypotheses[0].finished
        if self.references:
            if not line.strip():
                self.blank.add(self.n_answered)
            self.sources.append(line if self.args.examples else "")
            self.outputs.append(translation.text)
        if self.args.attention and translation.hypotheses:
            wanted = self.args.lines
            if self.n_answered in wanted if wanted else len(self.drawn) < N_PICTURE:
                self.drawn[self.n_answered] = line, translation

    def finish(self, answering: Answering) -> None:
        """Report, now that every line has its answer.

        Raises DataError for references of another number of lines, NmtError for what cannot be drawn.
        """
        assert self.n_answered == self.n_read, (self.n_answered, self.n_read)
        args, translator, data = self.args, answering.translator, answering.recipe.data
        trg_lang = trg_lang_of(answering.recipe)
        written = style_notes(Run(args.run[0]).src_style(), self.style)
        for note in [*input_notes(self.notes, source_name(args)), *written]:
            say(note)
        if self.n_cut:
            warn(f"{self.n_cut:,} translations were ended at the limit of decode.max_len_a and decode.max_len_b")
        if self.split:
            say(split_note(self.split, self.n_answered, translator.limits))
        if note := suspicious_note(self.suspicious, self.n_answered):
            say(note)
        if note := retry_note(self.outcomes):
            say(note)
        aligns = args.alignments or (args.format == "jsonl" and translator.attends)
        if aligns and (units := characters_note(answering.recipe)):
            say(f"note: {units}")
        self.alignments.finish()
        if self.references:
            check_references(self.n_answered, self.references, args)
            for name, lines in zip(args.ref, self.references, strict=True):
                for text in blank_notes(name_of(args, name), lines, self.blank):
                    warn(text)
            print_examples(self.sources, self.outputs, self.references, args.examples)
            report_scores(self.outputs, self.references, trg_lang, args.scores)
        if args.attention:
            langs = data.src_lang, trg_lang
            draw_attention(args, translator, self.drawn, langs, source_name(args), self.n_read, warn)
            say(f"attention: {args.attention}")
