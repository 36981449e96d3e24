"""What nmt-translate says on stderr: notes about its input and its answers; scores and examples by references."""

import json
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nmt.cli.printable import printable
from nmt.data.text.lines import write_lines
from nmt.decoding.long_lines import Limits
from nmt.decoding.retry import BETTER, KEPT, MENDED
from nmt.errors import DataError
from nmt.evaluation.metrics import Score, bleu_tokens, exact_match, form_note, score, tokenised_note, unspaced_note
from nmt.progress import Bar
from nmt.recipe.decode_options import DecodeConfig

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
