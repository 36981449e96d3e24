"""nmt-score: scores of existing translations, and the comparison of several systems."""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Any

from nmt.cli.begin import begun, printable, talk, write_stdout
from nmt.cli.parser import Parser, check_count, files_of_pipes, must_be_free, refuse_corpus, run
from nmt.data.lines import count_lines, read_lines, write_lines
from nmt.errors import NmtError
from nmt.evaluation import compare
from nmt.evaluation.metrics import METRICS, Texts, bleu_tokens, comet_model, form_note, tokenised_note, unspaced_note
from nmt.files import is_run, runs_of, write_durably
from nmt.languages import UNTOLD, canonical, language_of
from nmt.progress import Bar
from nmt.recipe.data_options import FilterConfig
from nmt.recipe.options import ValidConfig

_DESCRIPTION = """\
Score translations against references with sacreBLEU: each file HYP (- is standard input), or those by each run HYP of
the lines of --src. Several are compared with the first: differences, significance, and sentences won and lost."""
_EXAMPLES = (
    "nmt-score out.en --ref test.en",
    "nmt-score runs/first runs/second --src test.de --ref test.en --html compared.html",
)
TRANSLATIONS = "translations"  # folder of a run with what it translated for this command
_USUAL = [name for name, metric in METRICS.items() if metric.is_default]
COMET = ValidConfig.model_fields["comet"].default
_NO_LANGUAGES = ("gz", "xz", "zst", "txt", "tok", "out", "ref", "hyp", "src")  # endings


def score(args: argparse.Namespace) -> int:
    """The command behind the flags. Returns the exit code; raises NmtError."""
    begun()  # so that Ctrl-C deletes the copies
    with files_of_pipes(args, "hyp", "ref", "src"):
        return _score(args)


def _score(args: argparse.Namespace) -> int:
    if args.html:
        inputs = [*args.hyp, *args.ref, *([args.src] if args.src else [])]
        must_be_free(Path(args.html), overwrite=args.overwrite, inputs=inputs)
    args.hyp = [str(one) for named in args.hyp for one in runs_of(Path(named))]
    folders = [Path(one) for one in args.hyp if Path(one).is_dir()]
    for folder in folders:
        if not is_run(folder):
            raise NmtError(f"{folder} is a folder, but no run of nmt-train: name a run, or a file of translations.")
        if not args.src:
            raise NmtError(f"{folder}: a run needs the source lines that it is to translate: --src FILE.")
    names = list(dict.fromkeys([*(args.metric or _USUAL), *(["comet"] if args.comet else [])]))
    if args.by_line and (args.html or args.json):
        raise NmtError(f"--by-line writes scores between tabs: leave --{'html' if args.html else 'json'} out.")
    if "comet" in names and not args.src:
        raise NmtError("COMET looks at the source lines, too: --src FILE.")
    if args.device != "auto" and not folders and "comet" not in names:
        raise NmtError(f"--device {args.device} is for runs and COMET, and there is neither: leave it out.")
    src_lang, lang = _languages(args, folders)
    files = [name for name in args.hyp if Path(name) not in folders]
    named = [*args.ref, *([args.src] if args.src else []), *files]
    for name in named:
        refuse_corpus(name)
    counts = {name: count_lines(name) for name in named}
    n_line = counts[args.ref[0]]
    for name, n_own in counts.items():
        check_count(n_own, n_line, args.ref[0], name)
    comet = None
    if "comet" in names:
        from nmt.device import choose_device

        comet = comet_model("--comet", args.comet or COMET, str(choose_device(args.device)))
    sources = [*read_lines(args.src)] if args.src else []
    texts = [read_lines(n) if n in files else translations_of(Path(n), sources, args) for n in args.hyp]
    references = [[*islice(read_lines(name), _LOOKED_AT if args.by_line else None)] for name in args.ref]
    notes = [
        bleu_tokens(lang)[1]
        or f"BLEU counts the words that 13a finds (language: {'not known' if lang == UNTOLD else lang}).",
        *((unspaced_note(one, lang) or "").replace("data.trg_lang", "--lang") for one in references),
        *map(tokenised_note, references),
        *map(form_note, references),
    ]
    for note in filter(None, dict.fromkeys(notes)):
        talk(f"nmt-score: {note}")
    about: dict[str, Any] = {"trg_lang": lang, "comet": comet}
    if args.by_line:
        lines = zip(zip(*texts, strict=True), sources or repeat(""), *map(read_lines, args.ref), strict=False)
        by_line(lines, _names(args.hyp), names, n_line, **about)
        return 0
    hypotheses = [[*lines] for lines in texts]
    languages, wanted = (src_lang, lang), bool(args.html and sources)
    flags = _flags(sources, hypotheses, references[0], languages) if wanted else [[] for _ in hypotheses]
    systems = [compare.System(*one) for one in zip(_names(args.hyp), hypotheses, flags, strict=True)]
    with Bar(desc="scoring", total=compare.n_step(len(systems), len(names)), leave=False) as bar:
        results = compare.compare(systems, references, metrics=names, sources=sources, on_progress=bar.update, **about)
    if args.html:
        title = f"{' · '.join(one.name for one in systems)}: {Path(args.ref[0]).name}"
        write_durably(Path(args.html), compare.page(results, references, sources, lang, title).encode())
        talk(f"nmt-score: written: {args.html}")
    write_stdout(
        json.dumps(compare.as_json(results, lang), ensure_ascii=False, indent=1) + "\n" if args.json else table(results)
    )
    return 0


_AT_ONCE, _LOOKED_AT = 1000, 100_000  # lines: scored together; of references for notes on scores by line


def by_line(
    lines: Iterator[tuple[Any, ...]], systems: Sequence[str], metrics: Sequence[str], n_line: int, **about: Any
) -> None:
    """Write the scores of each line, below a line of names. lines: of the systems, of the source, of each reference."""
    measures = {name: of for name in metrics if (of := METRICS[name].sentences)}
    columns = [f"{one}:{name}" if len(systems) > 1 else name for one in systems for name in measures]
    write_stdout("\t".join(columns) + "\n")
    with Bar(desc="scoring", total=n_line, unit=" lines") as bar:
        while some := list(islice(lines, _AT_ONCE)):
            hypotheses, sources, *references = zip(*some, strict=True)
            texts = [Texts(its, references, sources, **about) for its in zip(*hypotheses, strict=True)]
            rows = zip(*(of(one) for one in texts for of in measures.values()), strict=True)
            write_stdout("".join("\t".join(f"{value:.4f}" for value in row) + "\n" for row in rows))
            bar.update(len(some))


def table(results: Sequence[compare.Result]) -> str:
    """Lines for people: a block for each metric with its signature, and a line for each system."""
    first, *others = results
    if not others:
        return "".join(f"{one.text}\n" for one in first.scores.values())
    text = ""
    for name, of_first in first.scores.items():
        text += f"{of_first.name}|{of_first.signature}\n"
        for result in results:
            found, p = result.scores[name], result.p_values.get(name)
            interval = "" if found.low is None or found.high is None else f"(95 %: {found.low:.1f} … {found.high:.1f})"
            change = "" if result is first else f"{found.value - of_first.value:+.1f}"
            tests = f"bs {_p(p.bootstrap)}  ar {_p(p.randomisation)}" if p else ""
            text += f"  {found.value:5.1f} {interval:24}{change:6} {tests:20}  {printable(result.system.name)}\n"
    base = printable(first.system.name)
    text += f"Sentences with a higher, an equal and a lower chrF2 than those of {base}\n"
    for result in others:
        assert result.wins is not None
        won, tied, lost = (f"{n:,} {name}" for name, n in result.wins._asdict().items())
        text += f"  {won:>13} {tied:>13} {lost:>13}{'':18}{printable(result.system.name)}\n"
    text += "bs, ar: chance of a difference as large between equal systems, by paired bootstrap resampling and by\n"
    return f"{text}approximate randomisation, against {base}\n"


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "<.001"


def translations_of(folder: Path, sources: Sequence[str], args: argparse.Namespace) -> list[str]:
    """The translations of lines by a run, from the file that remembers them if there is one.

    Its name is a digest of the model, of the options of the search and of the lines.
    """
    from nmt.data.placeholders import told_language
    from nmt.run import Run

    found = Run(folder)
    recipe = found.recipe()
    # Where there are several target languages, --lang chooses.
    trg_lang = args.lang if any(map(told_language, recipe.data.known_tags)) else None
    about = [found.fingerprint(), recipe.decode.model_dump(mode="json"), list(sources), *filter(None, [trg_lang])]
    digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    path = folder / TRANSLATIONS / f"{digest}.txt"
    if path.is_file() and len(known := list(read_lines(path))) == len(sources):
        talk(f"nmt-score: {folder}: translated before, {path}")
        return known
    from nmt.api import load

    model = load(folder, device=args.device)
    with Bar(desc=f"translating: {folder.name}", total=len(sources), unit=" lines") as bar:
        lines = [one.text for one in model.translate(sources, on_progress=bar.update, trg_lang=trg_lang)]
    try:
        path.parent.mkdir(exist_ok=True)
        write_lines(path, lines)
    except OSError as error:  # the run may be somebody else's
        talk(f"nmt-score: {path}: cannot be written, so the next comparison translates again: {error.strerror}")
    return lines


def _languages(args: argparse.Namespace, folders: Sequence[Path]) -> tuple[str, str]:
    """The languages of both sides: those of the first run, or of the endings of names of files; --lang outranks."""
    if folders:
        from nmt.run import Run

        recipe = Run(folders[0]).recipe()
        src_lang, trg_lang = recipe.data.src_lang, recipe.decode.trg_lang or recipe.data.trg_lang
    else:
        src_lang, trg_lang = (_language_of_file(name) for name in (args.src or "", args.ref[0]))
    return src_lang, canonical(args.lang) if args.lang else trg_lang


def _language_of_file(name: str) -> str:
    for ending in reversed(Path(name).name.split(".")[1:]):
        if ending not in _NO_LANGUAGES and (found := language_of(ending)).is_known:
            return found.code
    return UNTOLD


def _flags(
    sources: Sequence[str], texts: Sequence[Sequence[str]], references: Sequence[str], languages: tuple[str, str]
) -> list[list[list[str]]]:
    """Quality flags of each translation of each system: those of nmt-translate that need no model. The usual ratio of
    lengths is that of the references."""
    from nmt.data.filters import usual_ratio
    from nmt.decoding.suspicion import reasons

    filters = FilterConfig()
    usual = usual_ratio(zip(sources, references, strict=True), filters.max_ratio)
    ratio = usual.median if usual else None
    return [
        [reasons(*both, filters.max_ratio, ratio, languages) for both in zip(sources, lines, strict=True)]
        for lines in texts
    ]


def _names(given: Sequence[str]) -> list[str]:
    """Names of the systems: the last part of each path, or all of it where two would be alike, or it is a seed."""
    short = [Path(os.path.abspath(one)).name for one in given]
    return [
        one if short.count(one) == 1 and not one.startswith("seed-") else path
        for one, path in zip(short, given, strict=True)
    ]


def _path(name: str) -> str:
    return "/dev/stdin" if name == "-" else name


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    parser = Parser("nmt-score", description=_DESCRIPTION, examples=_EXAMPLES)
    add = parser.add_argument
    text = "A file of translations, or a run folder, which translates --src."
    add("hyp", metavar="HYP", nargs="+", type=_path, help=text)
    add("--ref", "-r", metavar="FILE", nargs="+", type=_path, required=True, help="References, one file or several.")
    add("--src", "-s", metavar="FILE", type=_path, help="The source lines: for runs, COMET and the page of --html.")
    text = "Target language, which decides the words that BLEU counts. [default: that of the run or of the file name]"
    add("--lang", metavar="CODE", help=text)
    text = f"Of {', '.join(METRICS)}. [default: {', '.join(_USUAL)}]"
    add("--metric", nargs="+", choices=METRICS, metavar="NAME", help=text)
    text = "Also score by this COMET model: a name on Hugging Face or the path of a .ckpt. Its weights are read, no "
    text += f"code is run. [default of --metric comet: {COMET}]"
    add("--comet", metavar="MODEL", help=text)
    text = "Write a page that compares scores by length and word, and sentence by sentence."
    add("--html", metavar="FILE", help=text)
    add("--overwrite", action="store_true", help="Replace the page if it exists.")
    add("--json", action="store_true", help="Print JSON, with unrounded scores.")
    text = "Print the scores of each sentence instead, BLEU by its effective order: a line for each, between tabs."
    add("--by-line", action="store_true", help=text)
    add("--device", default="auto", help="For runs and COMET: auto, cpu, cuda, cuda:1. [default: auto]")
    return run(score, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
