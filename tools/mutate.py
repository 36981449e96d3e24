"""Break the package on purpose, one small way at a time, and demand that a test turns red: python tools/mutate.py

Each mutation is applied to a copy of the tree, where the tests named with it are run. Prints one line a mutation, those
that this machine skips all tests of among them; exits with 1 if a test stayed green, if something other than a test
failed, or if a text to replace is not there exactly once. That last part is a test of its own (tests/test_tools.py), so
that the list cannot rot.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import mutations_of_kernels
import mutations_of_models
import mutations_of_search
import mutations_of_training
from mutation import Mutation

ROOT = Path(__file__).parents[1]
COPIED = ("nmt", "tests", "tools", "recipes", "pyproject.toml")
_NONE_COLLECTED = 5  # how pytest ends where there was no test to run
LONGEST = 300  # seconds; a test that hangs has seen the mutation too

PARTS = (mutations_of_kernels, mutations_of_models, mutations_of_search, mutations_of_training)
MUTATIONS = tuple(mutation for part in PARTS for mutation in part.MUTATIONS)


def complaint(mutation: Mutation, root: Path = ROOT) -> str:
    """What is wrong with a mutation as the tree is now; '' if it can be applied."""
    path = root / mutation.file
    if not path.is_file():
        return f"{mutation.name}: there is no {mutation.file}"
    n = path.read_text(encoding="utf-8").count(mutation.old)
    return "" if n == 1 else f"{mutation.name}: {n} times in {mutation.file}, not once: {mutation.old!r}"


def run_tests(tree: Path, arguments: str) -> str:
    """What comes of tests in a tree: GREEN, red, which one that hangs is too, skipped if all are, or another end."""
    files, _, keyword = arguments.partition(" -k ")
    selected = [*files.split(), *(["-k", keyword] if keyword else [])]
    # Bytecode is found again by time and size, which a mutation can leave alone.
    settings = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *selected]
    try:
        done = subprocess.run(
            command, cwd=tree, env={**os.environ, **settings}, capture_output=True, timeout=LONGEST, check=False
        )
    except subprocess.TimeoutExpired:
        return "red"
    if done.returncode == _NONE_COLLECTED and re.search(rb"\b[0-9]+ skipped\b", done.stdout):
        return "skipped"  # the file as a whole
    if done.returncode:
        return "red" if done.returncode == 1 else f"pytest ended with {done.returncode}"
    return "GREEN" if re.search(rb"\b[0-9]+ passed\b", done.stdout) else "skipped"


def main() -> None:
    """Apply every mutation, or those whose names hold a word."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="", help="only the mutations with this in their name")
    word = parser.parse_args().word
    chosen = [mutation for mutation in MUTATIONS if word in mutation.name]
    if not chosen:
        parser.error(f"no mutation has {word!r} in its name")
    if wrong := list(filter(None, map(complaint, chosen))):
        sys.exit("\n".join(wrong))
    n_seen = n_skipped = 0
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        tree = Path(folder)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(ROOT / name, tree / name)
        unbroken: dict[str, str] = {}
        for mutation in chosen:
            path, begin = tree / mutation.file, time.perf_counter()
            if mutation.tests not in unbroken:
                unbroken[mutation.tests] = run_tests(tree, mutation.tests)
            if unbroken[mutation.tests] not in {"GREEN", "skipped"}:
                sys.exit(f"without any mutation pytest {mutation.tests}: {unbroken[mutation.tests]}; it must be green")
            whole = path.read_text(encoding="utf-8")
            path.write_text(whole.replace(mutation.old, mutation.new), encoding="utf-8", newline="\n")
            found = run_tests(tree, mutation.tests)
            path.write_text(whole, encoding="utf-8", newline="\n")
            n_seen, n_skipped = n_seen + (found == "red"), n_skipped + (found == "skipped")
            print(f"{found:7} {time.perf_counter() - begin:6.1f} s  {mutation.name}  [{mutation.tests}]", flush=True)
    told = f", {n_skipped} whose tests this machine skips" if n_skipped else ""
    print(f"{len(chosen)} mutations, {n_seen} seen by a test{told}")
    sys.exit(n_seen + n_skipped < len(chosen))


if __name__ == "__main__":
    main()
