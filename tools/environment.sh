# shellcheck shell=bash
# Sourced by quickstart.sh and test.sh: make .venv with the package in it, once. Defines prepare_environment and $BIN.
#
#   PYTHON     the interpreter to make .venv with; default: the newest of 3.13, 3.12, 3.11 that is found
#   NMT_TORCH  the pip requirement of torch, installed first; default: what pyproject.toml asks for

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Many container images set it. Without bytecode every process would compile all of torch that it imports, for seconds.
unset PYTHONDONTWRITEBYTECODE

say() { printf '\n== %s\n' "$*"; }

fail() {
  printf '%s: error: %s\n' "$(basename "$0")" "$*" >&2
  exit 2
}

is_new_enough() { "$1" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    is_new_enough "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.11 or newer with the venv module"
    echo "$PYTHON"
    return
  fi
  for candidate in python3.13 python3.12 python3.11 python3 python; do
    if is_new_enough "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  fail "no Python 3.11 or newer found (install one, or name it: PYTHON=/path/to/python3.12 bash $0)"
}

find_bin() {  # the folder of the environment's programs; Windows has its own name for it
  BIN=$ROOT/.venv/bin
  if [ -d "$ROOT/.venv/Scripts" ]; then BIN=$ROOT/.venv/Scripts; fi
}

stamp_of() {  # what the environment was made from: it stays as long as this does
  "$1" - "$ROOT" "${NMT_TORCH:-}" "$2" <<'EOF'
import hashlib, pathlib, sys
root, *rest = sys.argv[1:]
told = [(pathlib.Path(root) / "pyproject.toml").read_bytes(), root.encode(), sys.version.encode()]
print(hashlib.sha256(b"\0".join([*told, *(word.encode() for word in rest)])).hexdigest())
EOF
}

prepare_environment() {  # $1: extras, as in "test"; "" for none
  local extras=$1 python stamp
  find_bin
  # An environment that has the tests' tools is good for everything else too.
  for stamp in "$ROOT"/.venv/installed.*; do
    if [ -e "$stamp" ] && { [ "$stamp" = "$ROOT/.venv/installed.$extras" ] || [ -z "$extras" ]; } &&
      [ "$(cat "$stamp")" = "$(stamp_of "$BIN/python" "${stamp##*.}")" ]; then
      return
    fi
  done
  if ! { [ -x "$BIN/python" ] || [ -x "$BIN/python.exe" ]; } || ! is_new_enough "$BIN/python"; then
    python=$(find_python)
    say "Making .venv with $("$python" --version)"
    "$python" -m venv "$ROOT/.venv" || fail "could not make .venv (on Debian and Ubuntu: apt install python3-venv)"
    find_bin
  fi
  # Python compiles what it imports, once; to compile all that is installed takes longer than to install it.
  local pip=("$BIN/python" -m pip install --quiet --disable-pip-version-check --no-compile)
  rm -f "$ROOT"/.venv/installed.*
  if [ -n "${NMT_TORCH:-}" ]; then
    say "Installing $NMT_TORCH, as NMT_TORCH asks"
    "${pip[@]}" "$NMT_TORCH"
  fi
  say "Installing the package and what it needs into .venv (minutes, the first time)"
  # With the torch asked for as a constraint: nothing that follows may replace it.
  local constraint=()
  if [ -n "${NMT_TORCH:-}" ]; then constraint=("$NMT_TORCH"); fi
  "${pip[@]}" ${constraint[@]+"${constraint[@]}"} -e "$ROOT${extras:+[$extras]}"
  stamp_of "$BIN/python" "$extras" >"$ROOT/.venv/installed.$extras"
}
