"""The input of nmt-translate as requests: lines, tab-separated columns or JSON, and files of phrases."""

import argparse
import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from typing import Any, NamedTuple, Protocol

from nmt.cli.parser import overrides_of
from nmt.cli.translating.answering import Key, Pool, Recall, Slot, Task
from nmt.data.lines import LONGEST_LINE, StreamLine, decode_line, read_lines, without_end
from nmt.decoding.request import Request, Sources, Terms, is_blank
from nmt.errors import DataError, NmtError, RecipeError
from nmt.recipe.decode_options import DecodeConfig

_KEYS = ("source", "prefix", "required", "avoided", "trg_lang", "tags")
_NEAR = 0.85  # likeness of keys from which one is taken for a typing error of the other

Reader = Callable[[str, str], Request]
Odd = dict[str, str]  # what is odd about a line that is translated all the same: by flag, what is said of it


def text_of(line: StreamLine, place: str, input_format: str) -> tuple[str, Odd]:
    """The text of a line of the input. Raises DataError for a line of JSON that was cut, as nobody can read that."""
    text, valid = decode_line(line.raw)
    odd = {} if valid else {"invalid_utf8": "invalid UTF-8, read with replacement characters"}
    if line.is_cut and input_format == "jsonl":
        raise DataError(f"{place}: {line.n_byte:,} bytes. A line of JSON may have {LONGEST_LINE:,}: divide its text.")
    if line.is_cut:
        odd["cut"] = f"{line.n_byte:,} bytes, of which the first {len(line.raw):,} are read; are line feeds missing?"
    return text, odd


def request_reader(args: argparse.Namespace) -> Reader:
    """What makes a request of a line and of the name of its place, file:number. Raises NmtError for bad files."""
    read = {"text": _of_text, "wrapped": _of_text, "tsv": _of_columns, "jsonl": _of_json}[args.input_format]
    if not (args.terms or args.avoid or args.keep):
        return read
    required = _terms(args.terms) if args.terms else []
    avoided = _columns(args.avoid, least=1) if args.avoid else []
    terms = Terms(required, avoided, _pattern(args.keep) if args.keep else None)
    return lambda line, place: terms(read(line, place))


def checking(read: Reader, args: argparse.Namespace, decode: DecodeConfig, sources: Sources) -> Reader:
    """Have a reader also raise DataError for what a line cannot ask: a language and tags that the model does not know,
    and what nobody here can bring about.
    """

    def checked(line: str, place: str) -> Request:
        request = read(line, place)
        if not is_blank(request.source):  # which the model never sees
            try:
                sources.codec_of(request)
            except RecipeError as error:
                raise DataError(f"{place}: {error}") from None
        if complaint := _complaint(request, args, decode):
            raise DataError(f"{place}: {complaint}")
        return request

    return checked


def _complaint(request: Request, args: argparse.Namespace, decode: DecodeConfig) -> str | None:
    """Why what a request asks of its translation cannot be had, whatever the line."""
    if args.score and request.asks:
        return "--score translates nothing, so prefix, required and avoided have nothing to do: leave them out."
    if decode.samples and request.requires:
        return "phrases can be required of beam search only: set decode.samples to 0."
    return None


def _of_text(line: str, _place: str) -> Request:
    return Request(line)


def _of_columns(line: str, place: str) -> Request:
    source, *more = line.split("\t")
    if len(more) > 1:
        raise DataError(
            f"{place}: {len(more) + 1} columns, but --input-format tsv has two: the source, and how its translation "
            "begins."
        )
    return _asked(place, source, prefix=more[0] if more else "")


def _of_json(line: str, place: str) -> Request:
    if not line.strip():
        return Request("")
    try:
        found = json.loads(line, object_pairs_hook=_object)
    except _Twice as error:
        raise DataError(
            f"{place}: an object that has the key {error.args[0]!r} twice: leave one of them out."
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({error}). --input-format jsonl has an object a line.") from None
    if not isinstance(found, dict) or not isinstance(found.get("source"), str):
        raise DataError(f'{place}: expected an object with the text "source", found {_shown(found)}.')
    for key in found.keys() - set(_KEYS):
        if near := get_close_matches(key, _KEYS[1:], 1, _NEAR):
            raise DataError(f"{place}: unknown key {key!r}: did you mean {near[0]}? Else give it another name.")
        del found[key]
    if not isinstance(found.get("prefix", ""), str):
        raise DataError(f"{place}: prefix: expected a text, found {_shown(found['prefix'])}.")
    for key in ("required", "avoided", "tags"):
        if key == "tags" and key not in found:
            continue  # an empty list of them would say that the line has none
        texts = found.get(key, [])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise DataError(f"{place}: {key}: expected a list of texts, found {_shown(texts)}.")
        found[key] = tuple(map(_text, texts))
    if len(set(tags := found.get("tags", ()))) < len(tags):
        raise DataError(f"{place}: tags: one occurs twice, {_shown(list(tags))}. Name each once.")
    if "trg_lang" in found and (not isinstance(found["trg_lang"], str) or not found["trg_lang"]):
        raise DataError(f"{place}: trg_lang: expected the code of a language, found {_shown(found['trg_lang'])}.")
    found["source"] = without_end(_text(found["source"]))
    found["prefix"] = _text(found.get("prefix", ""))
    return _asked(place, **found)


def beside(line: str, args: argparse.Namespace) -> dict[str, Any]:
    """Keys of an object of the input that say nothing to us, with their values: those go on to its answer."""
    if args.input_format != "jsonl" or args.format not in ("jsonl", "pairs") or not line.strip():
        return {}
    return {key: value for key, value in json.loads(line).items() if key not in _KEYS}


class _Twice(Exception):
    """A key that an object has twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict[str, Any]()
    for key, value in pairs:
        if key in found:
            raise _Twice(key)
        found[key] = value
    return found


def _asked(place: str, source: str, **asked: Any) -> Request:
    try:
        return Request(source, **asked)
    except DataError as error:
        raise DataError(f"{place}: {error}") from None


def _text(found: str) -> str:
    """JSON can say halves of characters, which no text has."""
    return found.encode("utf-8", errors="replace").decode("utf-8")


def _terms(path: str) -> list[tuple[str, str]]:
    """The pairs of a file of terms, in which a phrase has one translation."""
    pairs = _columns(path, least=2)
    first: dict[str, int] = {}
    for number, (phrase, translation) in enumerate(pairs, start=1):
        before = first.setdefault(phrase, number)
        if (other := pairs[before - 1][1]) != translation:
            raise DataError(
                f"{path}:{number}: the term {_shown(phrase)} is {_shown(translation)} here, and {_shown(other)} in "
                f"line {before}. Only one of them can be required: take the other out."
            )
    return pairs


def _columns(path: str, least: int) -> list[tuple[str, str]]:
    """Pairs of a file of phrases; where a line has one column and that is enough, the first of the pair is empty."""
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        columns = [column.strip() for column in (line or "").split("\t")]
        if not least <= len(columns) <= 2 or not all(columns):
            wanted = (
                "two columns, a phrase of the source and one of the translation"
                if least == 2
                else ("a phrase, or a phrase of the source and one of the translation")
            )
            raise DataError(f"{path}:{number}: expected {wanted} between tabs, found {_shown(line)}.")
        _asked(f"{path}:{number}", "", avoided=(columns[-1],))  # or it says why that is no phrase
        pairs.append((columns[0] if len(columns) == 2 else "", columns[-1]))
    if not pairs:
        raise DataError(f"{path}: no phrases.")
    return pairs


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise NmtError(f"--keep {text}: no regular expression ({error}).") from None


def _shown(found: object) -> str:
    text = repr(found)
    return text if len(text) <= 60 else text[:57] + "..."


# Which flags of nmt-translate go together.


_USUAL = {"layer": "last", "head": "mean"}
_NEEDS = {"lines": "attention", "attention_of": "attention", "examples": "ref", "scores": "ref"}
_NEEDS |= dict.fromkeys(("tune_metric", "tune_beams", "store"), "tune_decoding")
_NOT_OF_SCORE = ("ref", "attention", "show_scores", "mbr", "retry_suspect", "terms", "avoid", "keep")
# What would change the lines that are written, or the work, if anything was translated. Other options of a search may
# be given with --score, as those that the translations were found with.
_OPTIONS_NOT_OF_SCORE = ("decode.n_best",)


def check_flags(args: argparse.Namespace) -> None:
    """Raise NmtError for the first flag that needs another, or has no place beside one."""
    for of_some in (_of_what_needs_others, _of_score, _of_format):
        for complaint in of_some(args):
            raise NmtError(complaint)


def fill_in(args: argparse.Namespace) -> None:
    """Have --layer and --head say what is usual where they were not given."""
    for flag, usual in _USUAL.items():
        if getattr(args, flag) is None:
            setattr(args, flag, usual)


def check_format(args: argparse.Namespace, decode: DecodeConfig) -> None:
    """Raise NmtError if --format cannot hold what was asked for, or the search cannot be asked for it."""
    if args.format == "pairs" and decode.n_best > 1:
        raise NmtError(
            f"--format pairs has the best translation of each line, but decode.n_best is {decode.n_best}: set it to 1. "
            "For several translations of a line draw samples, in a file for each of several --decode.seed."
        )
    for flag in ("terms", "keep"):
        if decode.samples and getattr(args, flag):
            raise NmtError(f"--{flag}: phrases can be required of beam search only: set decode.samples to 0.")


def _of_what_needs_others(args: argparse.Namespace) -> Iterator[str]:
    for flag in _USUAL:
        if getattr(args, flag) is not None and not (args.attention or args.with_attention):
            yield f"--{flag} needs --attention or --with-attention."
    for flag, needed in _NEEDS.items():
        if getattr(args, flag) and not getattr(args, needed):
            yield f"--{flag} needs --{needed}.".replace("_", "-")


def _of_score(args: argparse.Namespace) -> Iterator[str]:
    if not args.score:
        return
    given = [flag.replace("_", "-") for flag in _NOT_OF_SCORE if getattr(args, flag)]
    given += [name for name, _ in overrides_of(args) if name in _OPTIONS_NOT_OF_SCORE]
    for name in given:
        yield f"--score translates nothing, so --{name} has nothing to do: leave it out."
    if args.format in ("pairs", "moses"):
        yield f"--score translates nothing, and --format {args.format} is for what was translated: name another."
    if args.input_format in ("tsv", "wrapped"):
        yield f"--score translates nothing, so --input-format {args.input_format} has nothing to do: leave it out."


def _of_format(args: argparse.Namespace) -> Iterator[str]:
    if args.show_scores and args.format != "text":
        has = "has no place for scores" if args.format == "pairs" else "has the scores anyway"
        yield f"--show-scores: --format {args.format} {has}: leave it out."
    if args.with_attention and args.format != "jsonl":
        yield f"--with-attention: --format {args.format} has no place for it: add --format jsonl."


# The way of a window of lines.


class Line(NamedTuple):
    """A line of the input: its text, what is odd about it, and what stands beside it for its answer."""

    text: str
    odd: Odd
    beside: dict[str, Any]


class Window(NamedTuple):
    """Some lines of the input."""

    lines: list[Line]
    keys: list[Key]

    @property
    def digest(self) -> str:
        """What stands for these lines in a journal."""
        return hashlib.sha256("".join(f"{part}\n" for key in self.keys for part in key).encode("utf-8")).hexdigest()


class Solved(NamedTuple):
    """A window and the answer to each line. In the share of a rank, what another rank answers is ""."""

    window: Window
    answers: list[str]


class Record(Protocol):
    """Answers of earlier processes, in the order of the windows; and those of this one for later ones."""

    def take(self, digest: str) -> list[str] | None:
        """The answers to the new lines of the next window, None if it has to be answered now."""

    def add(self, digest: str, n_line: int, answers: list[str]) -> None:
        """Keep the answers to the new lines of the next window."""


class _Waiting(NamedTuple):
    window: Window
    slots: list[Slot]
    new: dict[Key, Slot]
    tasks: list[Task] | None  # None: answered before


def solve(
    windows: Iterable[Window],
    pool: Pool,
    recall: Recall,
    record: Record | None,
    *,
    ahead: int = 0,
    mine: Callable[[int], bool] = lambda number: True,
    on_progress: Callable[[int], object],
    on_live: Callable[[], object] = lambda: None,
) -> Iterator[Solved]:
    """Answer windows, in order.

    ahead: windows that are read and handed out while the first of them is not done, so that nobody has to wait.
    mine: whether the window of a number, from 0, is to be answered here. on_progress: told the lines that were
    answered. on_live: called before the first window that no earlier process answered.
    """
    waiting: deque[_Waiting] = deque()
    is_live = False

    def done() -> Solved:
        window, slots, new, tasks = waiting.popleft()
        if tasks is not None:
            pool.finish(tasks, on_progress)
            on_progress(len(slots) - len(new))
            if record:
                record.add(window.digest, len(slots), [slot.answer for slot in new.values()])
        return Solved(window, [slot.answer for slot in slots])

    for number, window in enumerate(windows):
        slots, new = recall.slots(window.keys)
        if not mine(number):
            continue
        told = record.take(window.digest) if record else None
        if told is None:
            if not is_live:
                is_live = True
                on_live()
            waiting.append(_Waiting(window, slots, new, pool.submit(list(new), list(new.values()))))
        else:
            for slot, answer in zip(new.values(), told, strict=True):
                slot.answer = answer
            waiting.append(_Waiting(window, slots, new, None))
        while len(waiting) > ahead:
            yield done()
    while waiting:
        yield done()
    if record:
        record.take("")  # if there is more, it was of another input
