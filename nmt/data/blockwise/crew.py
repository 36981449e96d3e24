"""Several ranks make one prepared folder: rank 0 keeps the plan, and the blocks are worked on by all of them in turns.

The work goes by stages: the sources are hashed and indexed, what all need is told, and then every step over the blocks
is one. For each, rank 0 leaves a part with the tasks of each rank, which name the blocks and hold no text; each rank
reads the text of its blocks where it lies, keeps what it makes of it in a file of its own, and leaves a part with the
answers; rank 0 puts the answers together in the order of the blocks, as it does with those of its own helpers. So what
is written cannot depend on the ranks. How they meet and miss one another is in `sharing/meeting.py`, the parts are in
`sharing/parts.py`.
"""

import contextlib
import hashlib
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import nmt
from nmt.data.blockwise.block_index import ENTRY, BlockReader, Indexed, indexed
from nmt.data.blockwise.block_work import task_of
from nmt.data.blockwise.keep import learn_ratio, longest_read, n_process
from nmt.data.filters.ratio import UsualRatio
from nmt.data.reading.fields import Reading
from nmt.data.reading.sources import Facts, Source, facts_of, survey
from nmt.data.sharing.meeting import Meeting, Seen
from nmt.data.sharing.parts import PartWriter, read_part
from nmt.data.sharing.workers import Helpers, Work
from nmt.errors import DataError, MachineError
from nmt.processes import Content, n_core
from nmt.progress import Bar
from nmt.recipe.data_options import DataConfig
from nmt.recipe.options import Recipe

Tasks = Iterator[Mapping[str, Any]]
Answers = Callable[[Tasks], Iterable[Mapping[str, Any]]]

_SURVEY, _SETUP = "survey", "setup"
_READING = ("decide", "look")  # what begins with the text of a block
_WHAT = {
    _SURVEY: "hashing",
    _SETUP: "the beginning",
    "decide": "looking for duplicates",
    "look": "reading",
    "count": "counting",
    "encode": "encoding",
}
_HEAR = 1.0  # seconds of work between two looks whether the others are still there


class Crew:
    """All ranks, as rank 0 has them."""

    def __init__(self, meeting: Meeting, parts: Path) -> None:
        """parts: an empty folder that all ranks see."""
        self._meeting, self._parts, self._number = meeting, parts, 0
        self._ranks = range(meeting.ranks.n_rank)
        self._helpers: Helpers | None = None
        self._load: Callable[[Tasks], Tasks] = iter
        self._n_pair = 0

    def survey(self, sources: Sequence[Source], config: DataConfig) -> tuple[list[Facts], list[Indexed]]:
        """The facts of all texts, and the index of each training source: each source is looked at by one rank."""
        tasks = ({"source": n, "names": _names_of(source)} for n, source in enumerate(sources))
        found = list(self._stage(_SURVEY, tasks, partial(_surveyed, sources, config)))
        inputs = survey(sources, [(answer["src"], answer["trg"]) for answer in found])
        index = [
            Indexed(np.frombuffer(each["blocks"], ENTRY), each["notes"], each["joined"], _ratio(each["usual"]))
            for each, source in zip(found, sources, strict=True)
            if source.split == "train"
        ]
        self._load = partial(_with_text, sources, config)
        self._n_pair = sum(int(each.blocks["n_pair"].sum()) for each in index)
        return inputs, index

    def n_process(self, config: DataConfig, n_pair: int) -> int:
        """How many processes are worth their start on this machine."""
        return _n_process(self._meeting, config, n_pair)

    def with_helpers(self, helpers: Helpers) -> "Crew":
        """Say what works for rank 0 itself; return this crew."""
        self._helpers = helpers
        return self

    def begin(self, setup: Content, make: Callable[[Content, int], Work]) -> None:
        """Say what all tasks share; each rank has a folder of its own for what it makes of blocks."""
        assert self._helpers is not None, "with_helpers comes first"
        tasks = [
            {**setup, "folder": str(_folder_of(self._parts, rank)), "n_pair": self._n_pair} for rank in self._ranks
        ]
        for _ in self._stage(_SETUP, iter(tasks), partial(_begun, self._helpers, make)):
            pass

    def submit(self, name: str, task: Content) -> "Future[dict[str, Any]]":
        """Have a task done that is of no block, on this machine."""
        assert self._helpers is not None, "with_helpers comes first"
        return self._helpers.submit(name, task)

    def each(self, name: str, tasks: Iterable[Content]) -> Iterator[dict[str, Any]]:
        """The answer to each task, in order. Those of a rank are every so many-th."""
        assert self._helpers is not None, "with_helpers comes first"
        return self._stage(name, iter(tasks), _worked_on(self._helpers, name, self._load))

    def _stage(self, name: str, tasks: Tasks, own: Answers) -> Iterator[dict[str, Any]]:
        stage, n_task = {"number": self._number, "name": name, "parts": str(self._parts)}, 0
        self._number += 1
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(PartWriter(_path(stage, "tasks", rank))) for rank in self._ranks]
            for n_task, task in enumerate(tasks, start=1):
                writers[(n_task - 1) % len(writers)].add(task)
        self._meeting.say(stage=stage)
        part = f"its part of {_WHAT[name]}"
        others = self._ranks[1:]

        def is_done(seen: Seen) -> bool:
            return bool(seen.get("done", -1) >= stage["number"])

        with _bar(f"{_WHAT[name]}, rank 0", -(-n_task // len(self._ranks)), " blocks") as bar:
            _do_share(stage, 0, own, lambda: [self._meeting.hear(rank, part) for rank in others], bar)
        with _bar(f"{_WHAT[name]}, waiting", len(others), " ranks") as bar:
            for _ in self._meeting.wait_for(others, part, is_done):
                bar.update()
        answers = [read_part(_path(stage, "answers", rank)) for rank in self._ranks]
        for n in range(n_task):
            yield next(answers[n % len(answers)])
        for rest in answers:
            assert next(rest, None) is None, "as many answers as tasks"


def must_be_same(recipe: Recipe, **flags: Any) -> dict[str, Any]:
    """What has to be the same for all ranks: the recipe but for the number of processes, the flags, and the program."""
    code = hashlib.sha256()
    for path in sorted(Path(nmt.__file__).parent.rglob("*.py")):
        code.update(path.read_bytes())
    libraries = {name: metadata.version(name) for name in ("numpy", "pyarrow", "tokenizers")}
    return {
        "nmt": code.hexdigest()[:16],
        "unicode": unicodedata.unidata_version,
        **libraries,
        **flags,
        **recipe.model_dump(mode="json", exclude={"data": {"workers"}}),
    }


def work_for_rank_0(meeting: Meeting, sources: Sequence[Source], config: DataConfig) -> int:
    """What every other rank does all its life. Returns, when rank 0 has made the folder, the blocks worked on."""
    number, n_block, what = 0, 0, "the next step"
    load, helpers = partial(_with_text, sources, config), list[Helpers]()
    with contextlib.ExitStack() as stack:

        def begun(tasks: Tasks) -> Iterator[dict[str, Any]]:
            for setup in tasks:
                helpers.append(stack.enter_context(Helpers(_n_process(meeting, config, setup["n_pair"]))))
                yield from _begun(helpers[0], task_of, iter([setup]))

        def has_news(seen: Seen) -> bool:
            return "end" in seen or bool("stage" in seen and seen["stage"]["number"] >= number)

        while "end" not in (seen := meeting.wait(0, what, has_news)):
            stage = seen["stage"]
            if not Path(stage["parts"]).is_dir():
                raise DataError(
                    f"{meeting.ranks}: does not see {stage['parts']}, where rank 0 works. All machines need the folder "
                    "of the prepared data, and the text, under the same names."
                )
            own: Answers
            if stage["name"] == _SURVEY:
                own = partial(_surveyed, sources, config)
            elif stage["name"] == _SETUP:
                own = begun
            else:
                own = _worked_on(helpers[0], stage["name"], load)
            try:
                n = _do_share(stage, meeting.ranks.rank, own, lambda: meeting.hear(0, what), None)
            except (OSError, MachineError):
                meeting.ask_why(0, what)  # rank 0 may be over, and its files gone with it
                raise
            n_block += n if stage["name"] == "look" else 0
            meeting.say(done=number)
            number += 1
    return n_block


def _do_share(stage: Mapping[str, Any], rank: int, own: Answers, watch: Callable[[], object], bar: Bar | None) -> int:
    """Answer the tasks of a rank; return how many they are. watch: looks now and then whether the others are there."""
    n, heard = 0, time.monotonic()
    with PartWriter(_path(stage, "answers", rank)) as part:
        for answer in own(read_part(_path(stage, "tasks", rank))):
            part.add(answer)
            n += 1
            if bar is not None:
                bar.update()
            if time.monotonic() - heard > _HEAR:
                watch()
                heard = time.monotonic()
    return n


def _surveyed(sources: Sequence[Source], config: DataConfig, tasks: Tasks) -> Iterator[dict[str, Any]]:
    """The facts of both texts of each source; of training sources what `indexed` tells, too."""
    for task in tasks:
        n = task["source"]
        if n >= len(sources) or _names_of(sources[n]) != task["names"]:
            found = " and ".join(_names_of(sources[n])) if n < len(sources) else "no file"
            raise DataError(
                f"rank 0 found {' and '.join(task['names'])} by the names in the recipe, but here stands {found}. All "
                "machines need the same files."
            )
        source = sources[n]
        ((src, trg),) = facts_of([source])
        answer: dict[str, Any] = {"src": src, "trg": trg}
        if source.split == "train" and src["n_line"] == trg["n_line"]:
            usual = learn_ratio(source, config.filters_of(source.corpus), config, Bar(disable=True))
            found_there = indexed(source, _reading_of(config), usual)
            answer |= {**found_there._asdict(), "blocks": found_there.blocks.tobytes()}
        yield answer


def _begun(helpers: Helpers, make: Callable[[Content, int], Work], tasks: Tasks) -> Iterator[dict[str, Any]]:
    for setup in tasks:
        Path(setup["folder"]).mkdir()
        helpers.begin(setup, make)
        yield {}


def _worked_on(helpers: Helpers, name: str, load: Callable[[Tasks], Tasks]) -> Answers:
    return lambda tasks: helpers.each(name, load(tasks) if name in _READING else tasks)


def _with_text(sources: Sequence[Source], config: DataConfig, tasks: Tasks) -> Tasks:
    training = [source for source in sources if source.split == "train"]
    with BlockReader(training, _reading_of(config)) as reader:
        for task in tasks:
            yield reader.load(task)


def _reading_of(config: DataConfig) -> Reading:
    return Reading(config.bad_utf8, config.bad_records, longest_read(config))


def _names_of(source: Source) -> list[str]:
    return [source.src.name, source.trg.name]


def _ratio(told: Sequence[float] | None) -> UsualRatio | None:
    return UsualRatio(*told) if told else None


def _n_process(meeting: Meeting, config: DataConfig, n_pair: int) -> int:
    ranks = meeting.ranks
    return n_process(config, n_pair // ranks.n_rank, max(1, n_core() // ranks.n_here))


def _path(stage: Mapping[str, Any], what: str, rank: int) -> Path:
    return Path(stage["parts"]) / f"{stage['number']:02d}.{stage['name']}.{what}.{rank}"


def _folder_of(parts: Path, rank: int) -> Path:
    return parts / f"rank-{rank}"


def _bar(what: str, total: int, unit: str) -> Bar:
    return Bar(total=total, desc=what, unit=unit, leave=False, position=0)
