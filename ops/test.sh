#!/usr/bin/env bash
# Sets up what is missing, builds, and runs every everyday test.
#
#   ops/test.sh [ctest options]        e.g. ops/test.sh -R export, ops/test.sh -L unit
#   ops/test.sh --fuzz [--fuzz-seconds N]    instead: a minute (or N seconds) for every parser
#
# Tests labelled "long" (minutes each) are left out; `ctest --preset release -L long` runs them.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
if [[ ${1:-} == --fuzz ]]; then
  [[ ${2:---fuzz-seconds} == --fuzz-seconds && $# -le 3 ]] || { echo "usage: $0 --fuzz [--fuzz-seconds N]" >&2; exit 2; }
  exec ops/fuzz.sh ${3:+--seconds "$3"}
fi
ops/setup.sh
export TOKENIZERS_PARALLELISM=false
if .venv/bin/ctest --preset release --label-exclude long --no-tests=error "$@"; then
  echo "bitalloc: all tests passed"
else
  echo "bitalloc: tests failed; again with ops/test.sh --rerun-failed" >&2
  exit 1
fi
