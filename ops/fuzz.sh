#!/usr/bin/env bash
# Fuzzes every parser of what comes from outside (tests/fuzz), BITALLOC_JOBS (2) at a time.
#
#   ops/fuzz.sh [--seconds N] [TARGET…]      N seconds a target (60); without names: all
#
# Needs clang with libFuzzer and installs it when it is missing. Builds into build-fuzz/ with the
# address and undefined-behaviour sanitizers. What a target finds interesting is kept in
# build-fuzz/found/TARGET for the next run; an input that crashes it, in build-fuzz/crashes/TARGET.
# Ends with 1 when there is a crash, and says how to look at it.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly root
readonly max_input_bytes=65536 memory_mb=2048 one_input_s=10
seconds=60
targets=()

say() { printf 'fuzz: %s\n' "$*" >&2; }

read_arguments() {
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --seconds)
        [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || { say "--seconds needs a whole number"; exit 2; }
        seconds="$2"
        shift
        ;;
      -h | --help)
        sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
      -*)
        say "unknown option $1"
        exit 2
        ;;
      *) targets+=("$1") ;;
    esac
    shift
  done
}

build() {
  if [[ ! -f build-fuzz/build.ninja ]]; then
    mkdir -p build-fuzz
    .venv/bin/cmake --preset fuzz >build-fuzz/configure.log 2>&1 ||
      { tail -n 30 build-fuzz/configure.log >&2; exit 1; }
  fi
  .venv/bin/cmake --build build-fuzz --target fuzz_targets -j "${BITALLOC_JOBS:-$(nproc)}" >&2
}

# Fuzzes one target; the verdict is its exit code.
fuzz() {
  local target="$1" found="build-fuzz/found/$1" crashes="build-fuzz/crashes/$1" options=()
  mkdir -p "$found" "$crashes"
  [[ ! -f tests/fuzz/dictionaries/$target.dict ]] ||
    options+=("-dict=tests/fuzz/dictionaries/$target.dict")
  local seeds=("$found" "tests/fuzz/corpus/$target")
  [[ ! -d tests/fuzz/regressions/$target ]] || seeds+=("tests/fuzz/regressions/$target")
  if "build-fuzz/tests/fuzz_$target" -max_total_time="$seconds" -max_len="$max_input_bytes" \
    -rss_limit_mb="$memory_mb" -timeout="$one_input_s" -artifact_prefix="$crashes/" \
    -print_final_stats=1 "${options[@]}" "${seeds[@]}" >"build-fuzz/$target.log" 2>&1; then
    printf '%-14s %10s inputs, %6s edges, %5s kept, no crash\n' "$target" \
      "$(awk '/number_of_executed_units/ {print $2}' "build-fuzz/$target.log")" \
      "$(awk '$3 == "cov:" {edges = $4} END {print edges}' "build-fuzz/$target.log")" \
      "$(find "$found" -type f | wc -l)"
    return
  fi
  printf '%-14s CRASHED: see build-fuzz/%s.log; again with\n  build-fuzz/tests/fuzz_%s %s\n' "$target" \
    "$target" "$target" "$(find "$crashes" -type f -newer "build-fuzz/tests/fuzz_$target" | head -n 3 | tr '\n' ' ')"
  return 1
}

main() {
  read_arguments "$@"
  cd "$root"
  ops/setup.sh --no-build --fuzz
  build
  if [[ ${#targets[@]} -eq 0 ]]; then
    mapfile -t targets < <(find tests/fuzz/targets -name '*.cc' -printf '%f\n' | sed 's/\.cc$//' | sort)
  fi
  local at_once="${BITALLOC_JOBS:-2}"
  say "${#targets[@]} targets, $seconds s each, $at_once at a time"
  export -f fuzz
  export seconds max_input_bytes memory_mb one_input_s
  if printf '%s\n' "${targets[@]}" | xargs -P "$at_once" -I '{}' bash -c 'fuzz {} || exit 1'; then
    say "no crash"
  else
    say "a target crashed; a fixed input belongs into tests/fuzz/regressions/TARGET"
    exit 1
  fi
}

main "$@"
