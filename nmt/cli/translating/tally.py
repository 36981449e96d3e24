"""What nmt-translate remembers of the lines that go through it, and what it reports when every line has its answer."""

import argparse
from collections import Counter
from dataclasses import dataclass, field

from nmt.cli.translating.alignments import Alignments
from nmt.cli.translating.answering import Answering, Told, ToldScore
from nmt.cli.translating.attention import draw_attention
from nmt.cli.translating.files import check_references, name_of, source_name
from nmt.cli.translating.report import (
    blank_notes,
    input_notes,
    print_examples,
    report_scores,
    retry_note,
    say,
    split_note,
    suspicious_note,
    warn,
)
from nmt.cli.translating.requests import Odd
from nmt.data.text.style import style_notes, traits_of
from nmt.decoding.evidence import WORDS, attention_note, lost_note
from nmt.decoding.retry import Answer
from nmt.decoding.suspicion import CAP, flags_of
from nmt.decoding.translation import Translation, is_in_pieces
from nmt.evaluation.alignment import characters_note, trg_lang_of
from nmt.run import Run

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
