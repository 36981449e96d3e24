# shellcheck shell=bash
# Sourced by quickstart.sh and test.sh. Defines prepare_environment, which creates .venv with the package once, and $BIN.
#
#   PYTHON     interpreter that creates .venv; default: the newest of 3.13, 3.12, 3.11 that is found
#   NMT_TORCH  pip requirement of torch, installed first; default: that of pyproject.toml

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Many container images set this. Without bytecode, each process would spend seconds to compile the torch modules it imports.
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

find_bin() {  # set BIN to the environment's folder of programs, which has another name on Windows
  BIN=$ROOT/.venv/bin
  if [ -d "$ROOT/.venv/Scripts" ]; then BIN=$ROOT/.venv/Scripts; fi
}

stamp_of() {  # hash of all that the environment was created from; a new hash means that it is outdated
  "$1" - "$ROOT" "${NMT_TORCH:-}" "$2" <<'EOF'
import hashlib, pathlib, sys
root, *rest = sys.argv[1:]
inputs = [(pathlib.Path(root) / "pyproject.toml").read_bytes(), root.encode(), sys.version.encode()]
print(hashlib.sha256(b"\0".join([*inputs, *(word.encode() for word in rest)])).hexdigest())
EOF
}

prepare_environment() {  # $1: extras, as in "test"; "" for none
  local extras=$1 python stamp
  find_bin
  # An environment with the extras of the tests also serves without them.
  for stamp in "$ROOT"/.venv/installed.*; do
    if [ -e "$stamp" ] && { [ "$stamp" = "$ROOT/.venv/installed.$extras" ] || [ -z "$extras" ]; } &&
      [ "$(cat "$stamp")" = "$(stamp_of "$BIN/python" "${stamp##*.}")" ]; then
      return
    fi
  done
  if ! { [ -x "$BIN/python" ] || [ -x "$BIN/python.exe" ]; } || ! is_new_enough "$BIN/python"; then
    python=$(find_python)
    say "Creating .venv with $("$python" --version)"
    "$python" -m venv "$ROOT/.venv" || fail "could not create .venv (on Debian and Ubuntu: apt install python3-venv)"
    find_bin
  fi
  # No bytecode now: Python compiles modules when they are first imported; compiling all takes longer than installing.
  local pip=("$BIN/python" -m pip install --quiet --disable-pip-version-check --no-compile)
  rm -f "$ROOT"/.venv/installed.*
  if [ -n "${NMT_TORCH:-}" ]; then
    say "Installing $NMT_TORCH (NMT_TORCH)"
    "${pip[@]}" "$NMT_TORCH"
  fi
  say "Installing the package and its dependencies into .venv (takes minutes the first time)"
  # NMT_TORCH is also a constraint, so that no dependency replaces this torch.
  local constraint=()
  if [ -n "${NMT_TORCH:-}" ]; then constraint=("$NMT_TORCH"); fi
  "${pip[@]}" ${constraint[@]+"${constraint[@]}"} -e "$ROOT${extras:+[$extras]}"
  stamp_of "$BIN/python" "$extras" >"$ROOT/.venv/installed.$extras"
}
