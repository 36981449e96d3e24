"""What the model does for the lines of a window, with answers as text: to another process, to the disk and back.

JSON keeps every digit of a number, so an answer that comes back is the one that went.
"""

import argparse
import json
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

from nmt.api import load
from nmt.cli.parser import overrides_of
from nmt.decoding.beam import Hypothesis
from nmt.decoding.evidence import Evidence, Fields, Lost, attempt
from nmt.decoding.long_lines import Split
from nmt.decoding.request import Kept, Request
from nmt.decoding.retry import Answer, mend, tries
from nmt.decoding.translation import Scored, Translation
from nmt.decoding.translator import Translator
from nmt.errors import MachineError, NmtError
from nmt.processes import Content, Helper, HelperLost, serve
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe
from nmt.run import Run

# Which lines have to go through the model at all.


Key = tuple[str, ...]  # what an answer follows from: the line, or the line and its given translation

# Bytes of memory for what was answered, as `_cost` estimates them: with one hypothesis a line, several hundred
# thousand lines of the usual length.
BUDGET = 256 << 20
_FIXED, _PER_CHARACTER = 500, 12


class Slot:
    """The place of an answer, which is "" until somebody has it."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer = ""


class Recall:
    """The lines before, as many as `budget` holds: those that have not occurred for longest are forgotten.

    n_hypothesis: kept for each line.
    """

    def __init__(self, n_hypothesis: int = 1, budget: int = BUDGET) -> None:
        self._slots: dict[Key, Slot] = {}
        self._n_hypothesis, self._left = n_hypothesis, budget

    def slots(self, keys: Iterable[Key]) -> tuple[list[Slot], dict[Key, Slot]]:
        """The slot of each line of a window, and the different ones among them that somebody must fill."""
        window: dict[Key, Slot] = {}
        new: dict[Key, Slot] = {}
        found = []
        for key in keys:
            slot = window.get(key)
            if slot is None:
                slot = self._slots.pop(key, None)
                if slot is None:
                    slot = new[key] = Slot()
                    self._left -= self._cost(key)
                window[key] = self._slots[key] = slot
            found.append(slot)
        while self._left < 0:
            forgotten = next(iter(self._slots))
            del self._slots[forgotten]
            self._left += self._cost(forgotten)
        return found, new

    def _cost(self, key: Key) -> int:
        return self._n_hypothesis * (_FIXED + _PER_CHARACTER * sum(map(len, key)))


@dataclass(frozen=True, slots=True)
class Told:
    """Facts about one line. evidence: how its translation came about, where that is written, and else empty.

    lost: what of this, or of the flags, could not be computed, each with the error.
    """

    answer: Answer
    evidence: Fields
    lost: Lost = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToldScore:
    """Facts about a given translation. evidence, lost: as in `Told`."""

    scored: Scored
    evidence: Fields
    lost: Lost = field(default_factory=dict)


def key_of(request: Request) -> Key:
    """What the answer to a request follows from; where a translation is given, that comes behind it."""
    if not request.asks and not request.is_tagged:
        return (request.source,)
    asked: list[object] = [request.prefix, request.required, request.avoided, request.origins]
    if request.is_tagged or request.kept:
        asked += [request.trg_lang, request.tags]
    if request.kept:
        asked.append([(one.text, one.start, one.end, one.opened) for one in request.kept])
    return request.source, json.dumps(asked, ensure_ascii=False)


def request_of(key: Key) -> Request:
    """The request that `key_of` made it of."""
    if len(key) == 1:
        return Request(key[0])
    prefix, required, avoided, origins, *own = json.loads(key[1])
    trg_lang, tags = own[:2] or (None, None)
    parts = own[2] if len(own) > 2 else ()
    return Request(
        key[0],
        prefix,
        tuple(required),
        tuple(avoided),
        tuple(tuple((start, end) for start, end in places) for places in origins),
        trg_lang=trg_lang,
        tags=None if tags is None else tuple(tags),
        kept=tuple(Kept(text, start, end, (before, after)) for text, start, end, (before, after) in parts),
    )


def recipe_of(args: argparse.Namespace) -> Recipe:
    """The recipe of the first run with the options that were given, --mbr written out; those named go before that.

    Raises RunError for what is no run, and RecipeError for options.
    """
    run = Run(args.run[0])
    if not run.exists:
        run.recipe()  # which says so
    given = overrides_of(args)
    short = [] if args.mbr is None else [("decode.samples", str(args.mbr)), ("decode.mbr", "chrf")]
    return read_recipe(run.recipe_file, [one for one in short if one[0] not in dict(given)] + given)


def fingerprints(args: argparse.Namespace) -> list[str]:
    """What stands for the weights and vocabularies that `Answering` loads. Raises RunError, as `recipe_of` does."""
    return [Run(run).fingerprint(name) for run in args.run for name in args.checkpoint or [None]]


class Answering:
    """The model behind the flags, which answers lines, or scores given translations of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.recipe = recipe_of(args)
        model, decode = load(args.run, checkpoint=args.checkpoint, device=args.device), self.recipe.decode
        self.translator: Translator = model.translator(decode)
        # By run whose training has not ended, the checkpoint that was taken; by run whose training goes on, None.
        self.unfinished: dict[str, str | None] = {}
        if not args.checkpoint:
            for run, name in zip(args.run, model.weights, strict=True):
                if name != Run(run).model_folder.name:
                    self.unfinished[run] = name
                elif Run(run).goes_on():
                    self.unfinished[run] = None
        again = tries(decode) if args.retry_suspect else {}
        self._again: dict[str, Translator] = {name: model.translator(one) for name, one in again.items()}
        self._scores = bool(args.score)
        self._evidence = Evidence(
            self.translator,
            self.recipe,
            Run(args.run[0]).usual_ratios(),
            (args.layer, args.head) if args.with_attention else None,
            fields=args.format == "jsonl",
            words=bool(args.alignments),
        )

    def tasks(self, keys: Sequence[Key]) -> list[list[int]]:
        """The places of the lines, those together that share a batch: that much can be done somewhere else."""
        if self._scores:
            return [list(range(len(keys)))]
        return self.translator.shared([request_of(key) for key in keys])

    def answer(self, keys: Sequence[Key]) -> list[str]:
        """The answer to each line, to be read by `answer_of` or `scored_of`."""
        if self._scores:
            sources, targets = [request_of(key[:-1]) for key in keys], [key[-1] for key in keys]
            return [_text(ToldScore(*one)) for one in self._evidence.of_given(sources, targets)]
        requests = [request_of(key) for key in keys]
        unflagged: dict[Request, Lost] = {}

        def why(request: Request, translation: Translation) -> list[str]:
            lost = unflagged.setdefault(request, {})
            return attempt("flags", lost, lambda: self._evidence.reasons(request, translation)) or []

        answers = mend(requests, list(self.translator.translate(requests)), self._again, why)
        found = zip(requests, answers, self._evidence.of([one.translation for one in answers]), strict=True)
        return [_text(Told(one, its, lost | unflagged[request])) for request, one, (its, lost) in found]


def answer_of(text: str) -> Told:
    """The answer to a line that `Answering.answer` wrote."""
    found = json.loads(text)
    answer = found["answer"]
    known = Answer(_translation(answer["translation"]), answer["reasons"], answer["retry"])
    return Told(known, found["evidence"], found.get("lost", {}))


def scored_of(text: str) -> ToldScore:
    """The score of a given translation that `Answering.answer` wrote under --score."""
    found = json.loads(text)
    return ToldScore(Scored(**found["scored"]), found["evidence"], found.get("lost", {}))


def _translation(found: dict[str, Any]) -> Translation:
    hypotheses = [Hypothesis(**one) for one in found["hypotheses"]]
    split = Split(**found["split"]) if found["split"] else None
    parts = [_translation(part) for part in found["parts"]]
    return Translation(**{**found, "hypotheses": hypotheses, "split": split, "parts": parts})


def _text(answer: Told | ToldScore) -> str:
    return json.dumps(answer, default=_parts, ensure_ascii=False, separators=(",", ":"))


def _parts(thing: Any) -> dict[str, Any]:
    assert is_dataclass(thing), thing
    return {field.name: getattr(thing, field.name) for field in fields(thing)}


# Several processes that answer the lines of a window.


_PATIENCE = 0.2  # seconds after which a helper that was lost is noticed
_WORTHWHILE = 200  # lines for which it pays to start a process, which takes seconds


class Task(NamedTuple):
    """Lines that share a batch, and where their answers go."""

    keys: list[Key]
    slots: list[Slot]
    done: "Future[list[str]]"


def n_worker(wanted: str | int, n_thread: int, n_core: int, device: str, n_line: int | None) -> int:
    """How many processes shall answer. wanted: a number, or auto. n_thread: of each. n_line: of the input, if known."""
    if wanted == "auto":
        useful = (n_line or 0) // _WORTHWHILE
        return 1 if device != "cpu" else max(1, min(n_core // n_thread, useful))
    if int(wanted) > 1 and device != "cpu":
        raise NmtError(f"--workers {wanted} is for the CPU, and this is {device}: leave it out, or give --device cpu.")
    return int(wanted)


class Pool:
    """This process and its helpers. A context manager; the helpers are gone when it ends.

    n_worker: 1 for this process alone. loaded: what a helper must have loaded, as `fingerprints` says it.
    """

    def __init__(self, answering: "Answering", args: argparse.Namespace, n_worker: int, loaded: list[str]) -> None:
        self.n_worker, self._answering = n_worker, answering
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._lost: list[NmtError] = []
        self._helpers: list[Helper] = []
        self._threads: list[threading.Thread] = []
        try:
            for _ in range(1, n_worker):  # this process is the first
                self._helpers.append(Helper("nmt.cli.translating.answering"))
        except BaseException:
            self.__exit__()
            raise
        setup = {"args": vars(args), "loaded": loaded}
        for number, helper in enumerate(self._helpers, start=2):
            name = f"worker {number} (process {helper.process.pid})"
            self._threads.append(threading.Thread(target=self._drive, args=(helper, name, setup), daemon=True))
            self._threads[-1].start()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for helper in self._helpers:
            self._tasks.put(None)
            helper.kill()
        for thread in self._threads:
            thread.join()
        for helper in self._helpers:
            helper.close()

    def submit(self, keys: Sequence[Key], slots: Sequence[Slot]) -> list[Task]:
        """Have keys answered; `finish` gives the answers to the slots."""
        tasks = [
            Task([keys[place] for place in places], [slots[place] for place in places], Future())
            for places in self._answering.tasks(keys)
        ]
        for task in tasks:
            self._tasks.put(task)
        return tasks

    def finish(self, tasks: list[Task], on_progress: Callable[[int], object]) -> None:
        """Fill the slots of tasks, and lend a hand meanwhile. Raises MachineError naming a helper that died."""
        for task in tasks:
            while not task.done.done():
                if self._lost:
                    raise self._lost[0]
                try:
                    other = self._tasks.get_nowait()
                except queue.Empty:
                    wait([task.done], timeout=_PATIENCE)
                    continue
                assert other is not None, "only the end stops the helpers"
                other.done.set_result(self._answering.answer(other.keys))
            for slot, answer in zip(task.slots, task.done.result(), strict=True):
                slot.answer = answer
            on_progress(len(task.keys))

    def _drive(self, helper: Helper, name: str, setup: Content) -> None:
        """Give a helper tasks until it is over. A thread does this, which mostly waits."""
        try:
            _ask(helper, name, setup)
        except NmtError as error:
            self._lost.append(error)
            return
        while task := self._tasks.get():
            try:
                task.done.set_result(_ask(helper, name, {"keys": task.keys})["answers"])
            except NmtError as error:
                self._lost.append(error)
                task.done.set_exception(error)
                return
            finally:
                if not task.done.done():  # whatever happened, somebody waits
                    task.done.set_exception(MachineError(f"{name} gave no answer that can be read."))


def _ask(helper: Helper, name: str, task: Content) -> dict[str, Any]:
    """The answer of a helper. Raises an NmtError that names it."""
    try:
        return helper.ask(task)
    except HelperLost as error:
        raise MachineError(
            f"{name} {error}. What was answered is kept where --output names a file; with fewer --workers each has "
            "more memory."
        ) from None
    except NmtError as error:
        named = NmtError(f"{name}: {error}")
        named.exit_code = error.exit_code
        raise named from None


def _answers(setup: dict[str, Any]) -> Callable[[dict[str, Any]], Content]:
    """What a helper does: it loads the model, and then answers lines."""
    answering = _load(argparse.Namespace(**setup["args"]), setup["loaded"])
    return lambda task: {"answers": answering.answer([tuple(key) for key in task["keys"]])}


def _load(args: argparse.Namespace, loaded: list[str]) -> "Answering":
    import torch

    torch.set_num_threads(args.threads or 1)
    answering = Answering(args)
    if fingerprints(args) != loaded:
        raise MachineError("the model changed while it was loaded: is it still being trained? Name a --checkpoint.")
    return answering


if __name__ == "__main__":
    sys.exit(serve(_answers))
