"""What becomes of --output: a journal while the work goes on, then the file, whole and once, and then no journal."""

import argparse
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nmt.cli.translating.answering import fingerprints
from nmt.cli.translating.files import check_outputs, name_of
from nmt.cli.translating.journal import Journal, known
from nmt.cli.translating.parts import Share
from nmt.cli.translating.recall import BUDGET
from nmt.extras import version
from nmt.files import remove_leftovers, replacing, sha256_of
from nmt.recipe.options import Recipe
from nmt.run import Run

OUTPUT = "output"  # the mark of an output that is written and about to get its name

# Flags on which no answer depends. All others are part of what a journal was made with; the runs, their checkpoints
# and the options of decoding are so by what they lead to.
_NO_MATTER = (
    *("run", "checkpoint", "mbr", "input", "output", "overwrite", "ref", "scores", "examples", "show_scores"),
    *("alignments", "attention", "attention_of", "lines"),
    *("threads", "workers", "rank", "ranks", "debug", "pipes"),
)
_OF_ATTENTION = ("layer", "head")  # matter where they are written for each line


def fit_of(args: argparse.Namespace, recipe: Recipe, device: str) -> dict[str, Any]:
    """All that answers depend on, beside the lines, in values that JSON gives back. device: its kind, cpu or cuda."""
    no_matter = _NO_MATTER if args.with_attention else _NO_MATTER + _OF_ATTENTION
    flags = {f"--{name}": value for name, value in vars(args).items() if ":" not in name and name not in no_matter}
    flags |= {"--device": device, "--score": bool(args.score)}
    flags |= {f"--{name}": name_of(args, path) for name in ("terms", "avoid") if (path := getattr(args, name))}
    flags |= {"word alignments": args.format == "jsonl" or bool(args.alignments)}
    decode = {f"decode.{name}": value for name, value in recipe.decode.model_dump(mode="json").items()}
    if device == "cpu":  # where there are none
        del decode["decode.cuda_graphs"]
    about = {"nmt": version(), "model": fingerprints(args), "memory": BUDGET}
    about |= {"data.trg_lang": recipe.data.trg_lang, "data.max_ratio": recipe.data.max_ratio}
    about |= {"usual ratios": Run(args.run[0]).usual_ratios()}
    found: dict[str, Any] = json.loads(json.dumps({**about, **flags, **decode}))
    return found


def is_finishing(args: argparse.Namespace, share: Share) -> bool:
    """Whether an earlier process came so far that files of its end, which it had found free, may be there."""
    return bool(args.output) and any(OUTPUT in _marks(path) for path in share.journals(Path(args.output)))


@contextmanager
def kept(
    args: argparse.Namespace, share: Share, fit: dict[str, Any], say: Callable[[str], object]
) -> Iterator[Journal]:
    """The journal of this process. It says what was there before, and what is there if it comes to no good end."""
    with Journal(share.journal(Path(args.output)), fit, say) as journal:
        if journal.n_line:
            say(f"{journal.path.name} has the answers to {journal.n_line:,} lines: going on from there")
        try:
            yield journal
        except BaseException:
            if journal.n_line and journal.path.exists():
                say(
                    f"{journal.path.name} keeps the answers to {journal.n_line:,} lines; the same command goes on there"
                )
            raise


def check_still_free(args: argparse.Namespace, share: Share) -> None:
    """Raise NmtError if there is a file in the place of an output that no earlier process of this journal put there.

    One that was killed just before it could delete the journal left an output that is whole; it may be replaced.
    """
    output = Path(args.output)
    told = [marks[OUTPUT] for marks in map(_marks, share.journals(output)) if OUTPUT in marks]
    if not told:
        check_outputs(args, finishing=False, worked=True)
    elif not output.is_file() or [output.stat().st_size, sha256_of(output)] not in told:
        check_outputs(args, finishing=False, only=("output",), worked=True)


def write_whole(
    args: argparse.Namespace, share: Share, lines: Iterable[str], journal: Journal, finish: Callable[[], None]
) -> None:
    """Write the output, and delete all journals, whose answers are in it. journal: that of this process.

    finish: reports on it, before it gets its name: so that a restart reports again. What it could not do is raised when
    the output is there.
    """
    for name in filter(None, (args.output, args.scores, args.alignments)):
        remove_leftovers(Path(name))
    digest = hashlib.sha256()
    wrong: Exception | None = None
    with replacing(Path(args.output)) as file:
        for line in lines:
            assert "\n" not in line, "a line feed inside a line would shift every line after it"
            raw = line.encode("utf-8") + b"\n"
            digest.update(raw)
            file.write(raw)
        check_still_free(args, share)  # hours may have passed
        journal.mark(OUTPUT, [file.tell(), digest.hexdigest()])
        try:
            finish()
        except Exception as error:
            wrong = error
    for path in share.journals(Path(args.output)):
        path.unlink(missing_ok=True)
    if wrong is not None:
        raise wrong


def _marks(path: Path) -> dict[str, Any]:
    found = known(path)
    return found.marks if found else {}
