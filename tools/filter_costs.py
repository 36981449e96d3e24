"""What each filter of nmt-preprocess would drop: python tools/filter_costs.py SRC TRG [SRC TRG …] [--lines N]

Reads the first N pairs of each corpus and prints, for each filter alone, how many pairs it drops: those that are on by
default with their bounds, then the others with the bounds named here; then what all defaults drop together. Below
the table are the first pairs of each filter and corpus. The languages are those in the names: NAME.de.gz, NAME.de.
Relative names are looked for in the current folder, then in the folder that NMT_DATA names.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from preparing import pairs_of
from tqdm import tqdm

from nmt.data.filters.clean import filters_of, reason_to_drop
from nmt.data.filters.ratio import usual_ratio
from nmt.data.filters.seen import keys_of, kinds_of, repeated
from nmt.data.text.languages import languages_like
from nmt.errors import NmtError
from nmt.recipe.data_options import DataConfig
from nmt.recipe.filter_options import FilterConfig

# Bounds to ask off filters with, and whoever turns them on could begin with.
TRIED: dict[str, Any] = {
    "max_ratio_spread": 6.0,
    "max_other_language": 0.9,
    "drop_duplicates": True,
    "drop_near_duplicates": True,
    "max_translations": 10,
}
OFF: dict[str, Any] = dict.fromkeys(FilterConfig.model_fields, 0) | {
    name: False for name, field in FilterConfig.model_fields.items() if field.annotation is bool
}
WIDTH = 60  # of an example, of each side


class Corpus(NamedTuple):
    """Pairs in memory, and what the filters must know of them."""

    name: str
    languages: tuple[str, str]
    pairs: list[tuple[str | None, str | None]]


def dropped_of(corpus: Corpus, config: FilterConfig) -> list[int]:
    """Numbers of the pairs, from 0, that these filters drop."""
    filters = filters_of(config, DataConfig().max_len, corpus.languages, usual_ratio(corpus.pairs, config))
    dropped = {number for number, pair in enumerate(corpus.pairs) if reason_to_drop(*pair, filters)}
    left = [number for number in range(len(corpus.pairs)) if number not in dropped]
    src, trg = ([corpus.pairs[number][side] or "" for number in left] for side in (0, 1))
    keys = {kind: partial(iter, [of]) for kind, of in keys_of(src, trg, kinds_of([config])).items()}
    for _, numbers in repeated(keys, [config], [len(left)]):
        dropped.update(left[number] for number in numbers.tolist())
    return sorted(dropped)


def configurations() -> Iterator[tuple[str, FilterConfig]]:
    """What a row is called, and the filters that it is about."""
    default = FilterConfig().model_dump()
    yield "always: empty or too long", FilterConfig(**OFF)
    for values in ({k: v for k, v in default.items() if v}, TRIED):
        for name, value in values.items():
            said = name if value is True else f"{name}: {value:g}"
            yield said if name not in TRIED else f"{said} (off)", FilterConfig(**{**OFF, name: value})
        if values is not TRIED:
            yield "all of these: the defaults", FilterConfig()


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE", nargs="+", help="source and target of each corpus, plain or .gz")
    parser.add_argument("--lines", type=int, default=50_000, metavar="N", help="pairs of each corpus (50000)")
    parser.add_argument("--examples", type=int, default=3, metavar="N", help="pairs shown of each filter (3)")
    args = parser.parse_args(argv)
    if len(args.files) % 2:
        parser.error(f"{len(args.files)} files: expected a source and a target for each corpus")
    try:
        corpora = [_read(src, trg, args.lines) for src, trg in zip(args.files[::2], args.files[1::2], strict=True)]
        _print_costs(corpora, args.examples)
    except NmtError as error:
        print(f"filter_costs: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _print_costs(corpora: list[Corpus], n_example: int) -> None:
    rows = list(configurations())
    base = [set(dropped_of(corpus, rows[0][1])) for corpus in corpora]
    print(f"| filter | {' | '.join(corpus.name for corpus in corpora)} |")
    print(f"|---|{'---:|' * len(corpora)}")
    print(f"| pairs | {' | '.join(f'{len(corpus.pairs):,}' for corpus in corpora)} |")
    examples: list[str] = []
    for name, config in tqdm(rows, desc="filters", delay=2):
        cells = []
        for corpus, always in zip(corpora, base, strict=True):
            if config.max_other_language and not _are_known(corpus.languages):
                cells.append("–")
                continue
            found = dropped_of(corpus, config)
            alone = [number for number in found if number not in always] if config != rows[0][1] else found
            counted = found if config == FilterConfig() else alone
            cells.append(f"{len(counted):,}" if counted else "0")
            if config != FilterConfig():
                examples += _shown(name, corpus, counted[:n_example])
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print("\n".join(["", *examples]))


def _shown(name: str, corpus: Corpus, numbers: list[int]) -> Iterator[str]:
    for number in numbers:
        sides = ("(not UTF-8)" if side is None else _cut(side) for side in corpus.pairs[number])
        yield f"{name}, {corpus.name}:{number + 1}: {' ||| '.join(sides)}"


def _cut(text: str) -> str:
    printable = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: WIDTH + 1])
    return printable if len(text) <= WIDTH else f"{printable[:WIDTH]}…"


def _are_known(languages: tuple[str, str]) -> bool:
    try:
        return all(map(languages_like, languages))
    except NmtError:
        return False


def _read(src: str, trg: str, n_line: int) -> Corpus:
    names = [Path(name.removesuffix(".gz")) for name in (src, trg)]
    pairs = pairs_of((src, trg), n_line, bad_utf8="drop")
    languages = names[0].suffix[1:], names[1].suffix[1:]
    return Corpus(f"{names[0].stem} {'-'.join(languages)}", languages, pairs)


if __name__ == "__main__":
    raise SystemExit(main())
