"""Results of lines: the model behind the flags, in this process and in helper processes.

Run as a module it is such a helper.
"""

import argparse
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from nmt.api import load
from nmt.cli.parser import overrides_of
from nmt.decoding.beam import Hypothesis
from nmt.decoding.evidence import Evidence, Fields, Lost, attempt
from nmt.decoding.long_lines import Split
from nmt.decoding.request import Kept, Request
from nmt.decoding.retry import Answer, mend, tries
from nmt.decoding.translation import Scored, Translation
from nmt.decoding.translator import Encoded, Translator
from nmt.errors import MachineError, NmtError
from nmt.processes import Content, Helper, HelperLost, serve
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe
from nmt.run import Run

Item = tuple[Request, str | None]  # a line, and its given translation under --score


@dataclass(frozen=True, slots=True)
class LineResult:
    """Translation of a line, or score of its given translation.

    evidence: tokens, alignment and so on, where they are written. lost: fields of it, or the flags, that could not be
    computed, each with the error.
    """

    found: Answer | Scored
    evidence: Fields = field(default_factory=dict)
    lost: Lost = field(default_factory=dict)

    @property
    def answer(self) -> Answer:
        """The translation."""
        assert isinstance(self.found, Answer)
        return self.found

    @property
    def scored(self) -> Scored:
        """The score of a given translation."""
        assert isinstance(self.found, Scored)
        return self.found

    def as_json(self) -> dict[str, Any]:
        """Describe it in values of JSON, which keep every digit of a number."""
        return {"found": asdict(self.found), "evidence": self.evidence, "lost": self.lost}

    @classmethod
    def of_json(cls, known: dict[str, Any]) -> "LineResult":
        """Make it of what `as_json` gave."""
        found = known["found"]
        if "translation" not in found:
            return cls(**{**known, "found": Scored(**found)})
        return cls(**{**known, "found": Answer(**{**found, "translation": _translation(found["translation"])})})


def _translation(known: dict[str, Any]) -> Translation:
    hypotheses = [Hypothesis(**one) for one in known["hypotheses"]]
    split = Split(**known["split"]) if known["split"] else None
    return Translation(
        **{**known, "hypotheses": hypotheses, "split": split, "parts": [*map(_translation, known["parts"])]}
    )


def recipe_of(args: argparse.Namespace) -> Recipe:
    """Read the recipe of the first run with the options that were given; --mbr counts less than those it stands for.

    Raises RunError for what is no run, and RecipeError for options.
    """
    run = Run(args.run[0])
    if not run.exists:
        run.recipe()  # raises RunError
    given = overrides_of(args)
    short = [] if args.mbr is None else [("decode.samples", str(args.mbr)), ("decode.mbr", "chrf")]
    return read_recipe(run.recipe_file, [one for one in short if one[0] not in dict(given)] + given)


def fingerprints(args: argparse.Namespace) -> list[str]:
    """Identify the weights and vocabularies that `LineTranslator` loads. Raises RunError, as `recipe_of` does."""
    return [Run(run).fingerprint(name) for run in args.run for name in args.checkpoint or [None]]


class Task(NamedTuple):
    """Different lines that the model reads together. encoded: None under --score."""

    items: list[Item]
    encoded: Encoded | None


class LineTranslator:
    """The model behind the flags, which translates lines, or scores given translations of them."""

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
        self._evidence = Evidence(
            self.translator,
            self.recipe,
            Run(args.run[0]).usual_ratios(),
            (args.layer, args.head) if args.with_attention else None,
            fields=args.format == "jsonl",
            words=bool(args.alignments),
        )

    def tasks(self, items: Sequence[Item]) -> list[tuple[list[int], Task]]:
        """Divide different lines into tasks that can be done apart, each with the places of its lines."""
        whole = self.task(items)
        if whole.encoded is None:
            return [(list(range(len(items))), whole)]
        parts = self.translator.divide(whole.encoded)
        return [(places, Task([items[place] for place in places], encoded)) for places, encoded in parts]

    def task(self, items: Sequence[Item]) -> Task:
        """Encode different lines for `results`."""
        is_scored = items[0][1] is not None
        return Task(list(items), None if is_scored else self.translator.encode([request for request, _ in items]))

    def results(self, task: Task) -> list[LineResult]:
        """Translate or score the lines of a task."""
        requests = [request for request, _ in task.items]
        if task.encoded is None:
            targets = [target or "" for _, target in task.items]
            return [LineResult(*one) for one in self._evidence.of_given(requests, targets)]
        unflagged: dict[Request, Lost] = {}

        def why(request: Request, translation: Translation) -> list[str]:
            lost = unflagged.setdefault(request, {})
            return attempt("flags", lost, lambda: self._evidence.reasons(request, translation)) or []

        answers = mend(requests, self.translator.search(task.encoded), self._again, why)
        found = zip(requests, answers, self._evidence.of([one.translation for one in answers]), strict=True)
        return [LineResult(one, its, lost | unflagged[request]) for request, one, (its, lost) in found]


# Several processes that share the lines of a window.


_PATIENCE = 0.2  # seconds after which a helper that was lost is noticed
_WORTHWHILE = 200  # lines for which it pays to start a process, which takes seconds


class _Pending(NamedTuple):
    places: list[int]
    task: Task
    done: "Future[list[LineResult]]"


class Window(NamedTuple):
    """Lines in work. places: of each line its place among the different ones."""

    places: list[int]
    pending: list[_Pending]


def n_worker(wanted: str | int, n_thread: int, n_core: int, device: str, n_line: int | None) -> int:
    """Choose the number of processes. wanted: a number, or auto. n_thread: of each. n_line: of the input, if known."""
    if wanted == "auto":
        useful = (n_line or 0) // _WORTHWHILE
        return 1 if device != "cpu" else max(1, min(n_core // n_thread, useful))
    if int(wanted) > 1 and device != "cpu":
        raise NmtError(f"--workers {wanted} is for the CPU, and this is {device}: leave it out, or give --device cpu.")
    return int(wanted)


class WorkerPool:
    """This process and its helpers. A context manager; the helpers are gone when it ends.

    n_worker: 1 for this process alone. loaded: the `fingerprints` of what a helper must have loaded.
    """

    def __init__(self, lines: LineTranslator, args: argparse.Namespace, n_worker: int, loaded: list[str]) -> None:
        self.n_worker, self._lines = n_worker, lines
        self._tasks: queue.SimpleQueue[_Pending | None] = queue.SimpleQueue()
        self._lost: list[NmtError] = []
        self._helpers: list[Helper] = []
        self._threads: list[threading.Thread] = []
        try:
            for _ in range(1, n_worker):  # this process is the first
                self._helpers.append(Helper("nmt.cli.translating.workers"))
        except BaseException:
            self.__exit__()
            raise
        setup = {"args": vars(args), "loaded": loaded}
        for number, helper in enumerate(self._helpers, start=2):
            name = f"worker {number} (process {helper.process.pid})"
            self._threads.append(threading.Thread(target=self._drive, args=(helper, name, setup), daemon=True))
            self._threads[-1].start()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        for helper in self._helpers:
            self._tasks.put(None)
            helper.kill()
        for thread in self._threads:
            thread.join()
        for helper in self._helpers:
            helper.close()

    def submit(self, items: Sequence[Item]) -> Window:
        """Begin with the lines of a window; equal ones are one. `finish` gives the results."""
        place_of = {item: place for place, item in enumerate(dict.fromkeys(items))}
        pending = [_Pending(places, task, Future()) for places, task in self._lines.tasks(list(place_of))]
        for one in pending:
            self._tasks.put(one)
        return Window([place_of[item] for item in items], pending)

    def finish(self, window: Window, on_progress: Callable[[int], object]) -> list[LineResult]:
        """Return the results of a window, and do tasks meanwhile. Raises MachineError naming a helper that died."""
        found: dict[int, LineResult] = {}
        for one in window.pending:
            while not one.done.done():
                if self._lost:
                    raise self._lost[0]
                try:
                    other = self._tasks.get_nowait()
                except queue.Empty:
                    wait([one.done], timeout=_PATIENCE)
                    continue
                assert other is not None, "only the end stops the helpers"
                other.done.set_result(self._lines.results(other.task))
            found.update(zip(one.places, one.done.result(), strict=True))
            on_progress(len(one.places))
        on_progress(len(window.places) - len(found))
        return [found[place] for place in window.places]

    def _drive(self, helper: Helper, name: str, setup: Content) -> None:
        """Give a helper tasks until it is over; in a thread of its own, which mostly waits."""
        try:
            _ask(helper, name, setup)
        except NmtError as error:
            self._lost.append(error)
            return
        while one := self._tasks.get():
            try:
                items = [(asdict(request), target) for request, target in one.task.items]
                results = _ask(helper, name, {"items": items})["results"]
                one.done.set_result(list(map(LineResult.of_json, results)))
            except NmtError as error:
                self._lost.append(error)
                one.done.set_exception(error)
                return
            finally:
                if not one.done.done():  # or `finish` would wait for ever
                    one.done.set_exception(MachineError(f"{name} gave no answer that can be read."))


def _ask(helper: Helper, name: str, task: Content) -> dict[str, Any]:
    """Return the answer of a helper. Raises an NmtError that names it."""
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


def _helper(setup: dict[str, Any]) -> Callable[[dict[str, Any]], Content]:
    """Load the model in a helper, and return the function that does tasks."""
    import torch

    args = argparse.Namespace(**setup["args"])
    torch.set_num_threads(args.threads or 1)
    lines = LineTranslator(args)
    if fingerprints(args) != setup["loaded"]:
        raise MachineError("the model changed while it was loaded: is it still being trained? Name a --checkpoint.")

    def answer(content: dict[str, Any]) -> Content:
        task = lines.task([(_request(known), target) for known, target in content["items"]])
        return {"results": [one.as_json() for one in lines.results(task)]}

    return answer


def _request(known: dict[str, Any]) -> Request:
    origins = tuple(tuple((start, end) for start, end in places) for places in known["origins"])
    kept = tuple(Kept(**{**one, "opened": tuple(one["opened"])}) for one in known["kept"])
    return Request(**{**known, "origins": origins, "items": (), "kept": kept})


if __name__ == "__main__":
    sys.exit(serve(_helper))
