"""Draw the pictures of docs/attention.md: python tools/draw_attention.py [--out docs/attention] [--only NAME ...]

Everything that is shown is measured on the package itself, seeded and on one thread, so that a rerun on the same
machine gives the same bytes. Prints under each picture's name the table of numbers that the page has below it; --check
PAGE demands that it has, numbers with a point in them to within 5 %. What is measured is in attention_numbers.py, how
it looks in attention_pictures.py.
"""

import argparse
import io
import math
import re
import sys
from pathlib import Path

import matplotlib
import torch
from attention_pictures import PICTURES, STYLE
from matplotlib.figure import Figure

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?")


def number(text: str) -> float:
    """1,024.5 -> 1024.5"""
    return float(text.replace(",", ""))


def alike(one: str, other: str) -> bool:
    """Whether two texts are the same but for the last digits of what was measured, which depend on the machine."""
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(a == b or ("." in a + b and math.isclose(number(a), number(b), rel_tol=0.05)) for a, b in pairs)


def missing(table: str, page: str) -> list[str]:
    """The lines of a table that no line of the page is like."""
    lines = page.split("\n")
    return [row for row in table.split("\n") if not any(alike(row, line) for line in lines)]


def lean(svg: str) -> str:
    """A picture in two thirds of its bytes: hundredths of a point are enough, and line breaks are not needed."""
    unnamed = re.sub(r'<!--.*?-->| id="[A-Za-z0-9.]+_\d+"', "", svg)  # of groups, which nothing refers to
    short = re.sub(r"(\d*[1-9]\d*\.\d\d)\d+", r"\1", unnamed)
    return re.sub(r"\s*\n\s*", "\n", short)


def write(figure: Figure, path: Path) -> None:
    """As SVG or PNG, by the suffix. Without date and version the bytes change only where the picture does."""
    if path.suffix == ".png":
        figure.savefig(path)
        return
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    path.write_text(lean(drawn.getvalue()), encoding="utf-8")


def main() -> None:
    """Draw what the command line names, or everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/attention"), help="the folder of the pictures")
    parser.add_argument("--only", nargs="+", choices=sorted(PICTURES), default=list(PICTURES), metavar="NAME")
    parser.add_argument("--format", choices=["svg", "png"], default="svg", help="png is for looking at them")
    parser.add_argument("--check", type=Path, metavar="PAGE", help="fail unless this page has the numbers printed here")
    args = parser.parse_args()
    try:
        page = args.check.read_text(encoding="utf-8") if args.check else None
    except OSError as error:
        sys.exit(f"draw_attention: error: {args.check}: {error.strerror} (expected the page with the numbers)")
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # with more the order of a sum, and so its last digits, would depend on the machine's load
    absent = []
    for name in args.only:
        with matplotlib.rc_context(STYLE):
            figure, table = PICTURES[name]()
            write(figure, args.out / f"{name}.{args.format}")
        print(f"{name}\n\n{table}\n", flush=True)
        if page is not None:
            absent += [f"{name}: {row}" for row in missing(table, page)]
    if absent:
        sys.exit("\n".join([f"draw_attention: error: {args.check} does not have what was measured:", *absent]))


if __name__ == "__main__":
    main()
