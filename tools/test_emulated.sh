#!/usr/bin/env bash
# Tests of the kernels as they are compiled for processors with AMX, with AVX-512 and its instructions for bf16, and with
# AVX-512 alone, on an x86-64 processor that need have none of them: their instructions are worked out in C. Minutes.
# bash tools/test_emulated.sh [PYTEST ARGUMENTS]
set -euo pipefail
# shellcheck source=tools/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

[ "$(uname -m)" = x86_64 ] || fail "this machine is $(uname -m): the kernels of x86-64 cannot be compiled on it"
prepare_environment test
cd "$ROOT"

# A cache of its own: what was compiled may depend on another version of the instructions.
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
export XDG_CACHE_HOME=$cache OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1

tests=("$@")
if [ $# = 0 ]; then
  tests=(tests/kernels tests/models/test_int8.py tests/training/test_own_kernels.py
    tests/decoding/search/test_search_in_kernels.py)
fi

emulate() {  # $1: what the processor is said to have; the rest: what a compiler for it defines
  say "Kernels for $1"
  # From the current folder, whose own name may have a space in it, where CC would be parted.
  CC="gcc -Wno-psabi -Itools/emulated ${*:2}" "$BIN/python" -m pytest -q -n 2 "${tests[@]}"
}

emulate "AVX-512 and AMX" -D__AVX512F__ -D__AVX512BW__ -D__AVX512BF16__ -D__AMX_BF16__
emulate "AVX-512 and its bf16" -D__AVX512F__ -D__AVX512BW__ -D__AVX512BF16__ -U__AMX_BF16__
emulate "AVX-512" -D__AVX512F__ -D__AVX512BW__ -U__AVX512BF16__ -U__AMX_BF16__
