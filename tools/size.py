"""Print the size of the package, its tests, tools and documents: python tools/size.py [--check]

Prints each size with its limit. With --check the exit code is 1 if a size is above its limit.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Counted as kernels, separately from the rest of nmt/: C, Triton, and their wrappers.
KERNELS = ("nmt/kernels",)
CODE = (".py", ".c", ".h", ".cu", ".js", ".css", ".html", ".sh", ".yaml")
TEXTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**/*.md")


def files(*patterns: str) -> set[Path]:
    """Return the files that match patterns, and the code in folders that match."""
    matches = [path for pattern in patterns for path in ROOT.glob(pattern)]
    inside = [path for folder in matches if folder.is_dir() for path in folder.rglob("*") if path.suffix in CODE]
    return {path for path in [*matches, *inside] if path.is_file()}


def n_line(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def main() -> int:
    """Entry point. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="Exit with 1 if a part is above its limit.")
    check = parser.parse_args().check
    kernels = files(*KERNELS)
    package = {path for path in files("nmt") if path.suffix == ".py"} - kernels
    sizes = [
        ("nmt/ without kernels, lines of Python", n_line(package), 23_500),
        ("nmt/ without kernels, Python files", len(package), 130),
        ("kernels, lines of all languages", n_line(kernels), 5_000),
        ("tests/, lines", n_line(files("tests")), 22_500),
        ("tools/, lines", n_line(files("tools")), 3_500),
        (
            "README, docs/, CHANGELOG, CONTRIBUTING, words",
            sum(len(path.read_text("utf-8").split()) for path in files(*TEXTS)),
            18_000,
        ),
    ]
    for name, size, limit in sizes:
        print(f"{name:48}{size:8,} of {limit:7,}{'  over' if size > limit else ''}")
    print(f"Counted as kernels: {', '.join(KERNELS)}")
    return int(check and any(size > limit for _, size, limit in sizes))


if __name__ == "__main__":
    sys.exit(main())
