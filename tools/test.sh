#!/usr/bin/env bash
# Run linters, type checker and tests in .venv: bash tools/test.sh [PYTEST ARGUMENTS]
set -euo pipefail
# shellcheck source=tools/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

prepare_environment test
cd "$ROOT"

say "Layout of the code (ruff format)"
"$BIN/ruff" format --check .

say "Common mistakes (ruff check)"
"$BIN/ruff" check .
"$BIN/ruff" check --preview --select PLW1514 nmt # no text in the locale's encoding

say "Layers (import-linter)"
"$BIN/lint-imports" --no-cache --no-logo

say "Types (mypy)"
"$BIN/mypy"

say "Sizes"
"$BIN/python" tools/size.py --check

say "Documentation (mkdocs: pages, links and anchors)"
SITE=$(mktemp -d)
"$BIN/mkdocs" build --strict --site-dir "$SITE"
rm -r "$SITE"

say "Tests (pytest, two processes)"
# One thread for each process: two processes that use all cores slow each other down. Tests must not use the network.
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
"$BIN/python" -m pytest -q -n 2 --dist loadscope --no-loadscope-reorder "$@"
