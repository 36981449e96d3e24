"""nmt-score: score existing translations, and compare several systems."""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Any

from nmt.cli.begin import end_startup, printable, talk, write_stdout
from nmt.cli.parser import Parser, files_of_pipes, must_be_free, refuse_corpus, run
from nmt.data.lines import check_line_counts, count_lines, read_lines, write_lines
from nmt.errors import NmtError, RecipeError
from nmt.evaluation import compare
from nmt.evaluation.metrics import METRICS, Texts, bleu_tokens, comet_model, reference_notes
from nmt.files import check_is_run, runs_of, write_durably
from nmt.languages import UNTOLD, canonical, language_of
from nmt.processes import sleep_while_waiting
from nmt.progress import Bar
from nmt.recipe.data_options import FilterConfig
from nmt.recipe.options import ValidConfig

_DESCRIPTION = """\
Score translations against references with sacreBLEU. HYP is a file of translations (- is standard input), or a run,
which translates --src. Several are compared with the first: differences, significance, and sentences won and lost."""
_EXAMPLES = (
    "nmt-score out.en --ref test.en",
    "nmt-score runs/first runs/second --src test.de --ref test.en --html compared.html",
)
TRANSLATIONS = "translations"  # subfolder of a run with its translations for this command
_DEFAULT_METRICS = [name for name, metric in METRICS.items() if metric.is_default]
COMET = ValidConfig.model_fields["comet"].default
_N_BATCH_LINE = 1000  # lines to score at a time
_N_NOTE_LINE = 100_000  # lines of a reference to read for the notes on scores by line
_NOT_LANGUAGES = ("gz", "xz", "zst", "txt", "tok", "out", "ref", "hyp", "src", "trg", "tgt")  # suffixes of file names


def score(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code; raises NmtError."""
    end_startup()  # Ctrl-C must delete the copies of pipes
    sleep_while_waiting()
    with files_of_pipes(args, "hyp", "ref", "src"):
        return _score(args)


def _score(args: argparse.Namespace) -> int:
    text_files = [*args.ref, *([args.src] if args.src else [])]
    if args.html:
        inputs = filter(os.path.exists, (*args.hyp, *text_files))
        if os.path.exists(args.html) and any(os.path.samefile(args.html, name) for name in inputs):
            raise NmtError(f"{args.html} is also an input: choose another name for the output.")
        must_be_free(Path(args.html), overwrite=args.overwrite)
    args.hyp = [str(path) for name in args.hyp for path in runs_of(Path(name))]
    folders = [Path(name) for name in args.hyp if Path(name).is_dir()]
    for folder in folders:
        check_is_run(folder)
    metrics = list(dict.fromkeys([*(args.metric or _DEFAULT_METRICS), *(["comet"] if args.comet else [])]))
    if args.by_line and (args.html or args.json):
        raise NmtError(f"--by-line prints tab-separated scores only: leave --{'html' if args.html else 'json'} out.")
    if (folders or "comet" in metrics) and not args.src:
        wanted_by = f"the run {folders[0]}" if folders else "COMET"
        raise NmtError(f"{wanted_by} needs the source lines: --src FILE.")
    if args.device != "auto" and not folders and "comet" not in metrics:
        raise NmtError(f"--device {args.device} has no effect without a run or COMET: leave it out.")
    src_lang, lang = _languages(args, folders)
    files = [name for name in args.hyp if Path(name) not in folders]
    text_files += files
    for name in text_files:
        refuse_corpus(name)
    counts = {name: count_lines(name) for name in text_files}
    n_line = counts[args.ref[0]]
    for name, n_file_line in counts.items():
        check_line_counts(n_file_line, n_line, args.ref[0], name)
    comet = None
    if "comet" in metrics:
        from nmt.device import choose_device

        comet = comet_model("--comet", args.comet or COMET, str(choose_device(args.device)))
    sources = [*read_lines(args.src)] if args.src else []
    outputs = [read_lines(hyp) if hyp in files else translations_of(Path(hyp), sources, args) for hyp in args.hyp]
    references = [[*islice(read_lines(name), _N_NOTE_LINE if args.by_line else None)] for name in args.ref]
    notes = [
        bleu_tokens(lang)[1] or f"BLEU tokenizer: 13a (language: {'not known' if lang == UNTOLD else lang}).",
        *reference_notes(references, lang),
    ]
    for note in dict.fromkeys(notes):
        talk(f"nmt-score: {note}")
    if args.by_line:
        lines = zip(zip(*outputs, strict=True), sources or repeat(""), *map(read_lines, args.ref), strict=False)
        by_line(lines, _names(args.hyp), metrics, n_line, trg_lang=lang, comet=comet)
        return 0
    texts = [Texts([*lines], references, sources, lang, comet) for lines in outputs]
    flags = [_flags(each, src_lang) if args.html and sources else [] for each in texts]
    systems = [compare.System(*fields) for fields in zip(_names(args.hyp), texts, flags, strict=True)]
    with Bar(desc="scoring", total=len(systems) * len(metrics), leave=False) as bar:
        results = compare.compare(systems, metrics, bar.update)
    if args.html:
        title = f"{' · '.join(system.name for system in systems)}: {printable(Path(args.ref[0]).name)}"
        write_durably(Path(args.html), compare.page(results, title).encode())
        talk(f"nmt-score: written: {args.html}")
    report = compare.as_json(results)
    write_stdout(json.dumps(report, ensure_ascii=False, indent=1) + "\n" if args.json else table(results))
    return 0


def by_line(
    lines: Iterator[tuple[Any, ...]], systems: Sequence[str], metrics: Sequence[str], n_line: int, **options: Any
) -> None:
    """Write a header and the scores of each line. lines: (hypotheses of the systems, source, *references)."""
    scorers = {name: scorer for name in metrics if (scorer := METRICS[name].sentences)}
    columns = [f"{system}:{name}" if len(systems) > 1 else name for system in systems for name in scorers]
    write_stdout("\t".join(columns) + "\n")
    with Bar(desc="scoring", total=n_line, unit=" lines") as bar:
        while batch := list(islice(lines, _N_BATCH_LINE)):
            hypotheses, sources, *references = zip(*batch, strict=True)
            texts = [Texts(outputs, references, sources, **options) for outputs in zip(*hypotheses, strict=True)]
            rows = zip(*(scorer(text) for text in texts for scorer in scorers.values()), strict=True)
            write_stdout("".join("\t".join(f"{value:.4f}" for value in row) + "\n" for row in rows))
            bar.update(len(batch))


def table(results: Sequence[compare.Result]) -> str:
    """Return a text table: a block for each metric with its signature, and a line for each system."""
    first, *others = results
    if not others:
        return "".join(f"{score.text}\n" for score in first.scores.values())
    text = ""
    for name, base_score in first.scores.items():
        text += f"{base_score.name}|{base_score.signature}\n"
        for result in results:
            score, p = result.scores[name], result.p_values.get(name)
            interval = "" if score.low is None or score.high is None else f"(95 %: {score.low:.1f} … {score.high:.1f})"
            change = "" if result is first else f"{score.value - base_score.value:+.1f}"
            tests = f"bs {p.bootstrap:.4f}  ar {p.randomisation:.4f}" if p else ""
            text += f"  {score.value:5.1f} {interval:24}{change:6} {tests:20}  {result.system.name}\n"
    text += f"Sentences with a higher, equal or lower chrF2 than {first.system.name}\n"
    for result in others:
        won, tied, lost = (f"{n:,} {name}" for name, n in result.wins.items())
        text += f"  {won:>13} {tied:>13} {lost:>13}{'':18}{result.system.name}\n"
    text += f"p-values of the differences from {first.system.name}: by paired bootstrap resampling (bs)\n"
    return f"{text}and approximate randomisation (ar)\n"


def translations_of(folder: Path, sources: Sequence[str], args: argparse.Namespace) -> list[str]:
    """Return the translations of lines by a run, from the file of an earlier call if there is one.

    The file name is a digest of the model, the search options and the lines.
    """
    from nmt.data.placeholders import tag_language
    from nmt.run import Run

    nmt_run = Run(folder)
    recipe = nmt_run.recipe()
    # --lang chooses among several target languages.
    trg_lang = args.lang if any(map(tag_language, recipe.data.known_tags)) else None
    key = [nmt_run.fingerprint(), recipe.decode.model_dump(mode="json"), list(sources), *filter(None, [trg_lang])]
    path = folder / TRANSLATIONS / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.txt"
    if path.is_file() and len(known := list(read_lines(path))) == len(sources):
        talk(f"nmt-score: {folder}: translated before, {path}")
        return known
    from nmt.api import load

    model = load(folder, device=args.device)
    try:
        with Bar(desc=f"translating: {folder.name}", total=len(sources), unit=" lines") as bar:
            lines = [result.text for result in model.translate(sources, on_progress=bar.update, trg_lang=trg_lang)]
    except RecipeError as error:  # of the language, which is --lang here
        raise NmtError(str(error).replace("trg_lang:", "--lang:").replace(" (--trg-lang)", "")) from None
    try:
        path.parent.mkdir(exist_ok=True)
        write_lines(path, lines)
    except OSError as error:  # the run may belong to another user
        talk(f"nmt-score: {path}: cannot be written, so the next comparison translates again: {error.strerror}")
    return lines


def _languages(args: argparse.Namespace, folders: Sequence[Path]) -> tuple[str, str]:
    """Return the languages of both sides, from the first run or the suffixes of file names. --lang takes precedence."""
    if folders:
        from nmt.run import Run

        recipe = Run(folders[0]).recipe()
        src_lang, trg_lang = recipe.data.src_lang, recipe.decode.trg_lang or recipe.data.trg_lang
    else:
        src_lang, trg_lang = (_language_of_file(name) for name in (args.src or "", args.ref[0]))
    return src_lang, canonical(args.lang) if args.lang else trg_lang


def _language_of_file(name: str) -> str:
    for suffix in reversed(Path(name).name.split(".")[1:]):
        if suffix not in _NOT_LANGUAGES and (language := language_of(suffix)).is_known:
            return language.code
    return UNTOLD


def _flags(texts: Texts, src_lang: str) -> list[list[str]]:
    """Return the quality flags of each translation that need no model."""
    from nmt.data.filters import usual_ratio
    from nmt.decoding.suspicion import reasons

    max_ratio, languages = FilterConfig().max_ratio, (src_lang, texts.trg_lang)
    usual = usual_ratio(zip(texts.sources, texts.references[0], strict=True), max_ratio)
    ratio, pairs = usual.median if usual else None, zip(texts.sources, texts.hypotheses, strict=True)
    return [reasons(source, line, max_ratio, ratio, languages) for source, line in pairs]


def _names(paths: Sequence[str]) -> list[str]:
    """Return the names of the systems: the last part of each path, or the whole path if several have this name."""
    names = [printable(Path(os.path.abspath(path)).name) for path in paths]
    pairs = zip(names, paths, strict=True)
    return [name if names.count(name) == 1 else printable(path) for name, path in pairs]


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
    text = "Target language; it selects the tokenizer of BLEU. [default: that of the run or of the file name]"
    add("--lang", metavar="CODE", help=text)
    text = f"Metrics: {', '.join(METRICS)}. [default: {', '.join(_DEFAULT_METRICS)}]"
    add("--metric", nargs="+", choices=METRICS, metavar="NAME", help=text)
    text = "Also score by this COMET model: a name on Hugging Face or the path of a .ckpt. Only weights are loaded; no "
    text += f"code is run. [default of --metric comet: {COMET}]"
    add("--comet", metavar="MODEL", help=text)
    text = "Write a page that compares scores by length and word, and sentence by sentence."
    add("--html", metavar="FILE", help=text)
    add("--overwrite", action="store_true", help="Replace the page if it exists.")
    add("--json", action="store_true", help="Print JSON, with unrounded scores.")
    text = "Print tab-separated scores of each sentence instead, one line each, with effective order for BLEU."
    add("--by-line", action="store_true", help=text)
    add("--device", default="auto", help="For runs and COMET: auto, cpu, cuda, cuda:1. [default: auto]")
    return run(score, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
