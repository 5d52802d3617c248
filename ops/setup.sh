#!/usr/bin/env bash
# Makes a fresh Debian 12 or Ubuntu 24.04 machine able to build and run bitalloc, and builds it.
#
#   ops/setup.sh [--no-build] [--fuzz]
#
#   1. Debian packages that are missing (as root, or with sudo)
#   2. .venv with the Python packages of ops/requirements.txt (LibTorch comes from there)
#   3. configures and builds into build/ (preset "release"; CUDA kernels when there is an nvcc)
# With --fuzz also clang and its libFuzzer, which nothing else needs.
#
# Safe to run again: what is there already is left alone, and a run with nothing to do takes
# seconds. Works from any directory.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly root

# One line is one need; "a|b" are alternatives, the first that the distribution has is taken.
readonly packages=(
  g++ ccache ninja-build pkg-config git
  python3 python3-venv
  nlohmann-json3-dev libyaml-cpp-dev libcli11-dev libfmt-dev libspdlog-dev libssl-dev
  libzmq3-dev libhiredis-dev redis-server redis-tools
  "libboost1.83-dev|libboost1.81-dev|libboost-dev"
  coinor-libcbc-dev
  libgloo-dev
  libgtest-dev libgmock-dev
)

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
  say "error: $*"
  exit 1
}

usage() {
  sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

as_root() {
  if [[ $EUID -eq 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "not root and no sudo; ask an administrator to run: $*"
  fi
}

is_installed() {
  [[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
}

# Prints the needs that no installed package meets.
missing_needs() {
  local need name names met
  for need in "${packages[@]}"; do
    met=no
    IFS='|' read -ra names <<<"$need"
    for name in "${names[@]}"; do
      if is_installed "$name"; then
        met=yes
        break
      fi
    done
    [[ $met == yes ]] || printf '%s\n' "$need"
  done
}

# The first of "a|b" that apt can install.
choose_package() {
  local name names
  IFS='|' read -ra names <<<"$1"
  for name in "${names[@]}"; do
    if apt-cache show "$name" >/dev/null 2>&1; then
      printf '%s\n' "$name"
      return
    fi
  done
  fail "apt knows no package for '$1'; bitalloc is set up for Debian 12 and Ubuntu 24.04"
}

# Installs without starting services: bitalloc runs a Redis of its own, never the system's.
install_quietly() {
  local policy=/usr/sbin/policy-rc.d made_policy=no status=0
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
    made_policy=yes
  fi
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "$@" >&2 || status=$?
  [[ $made_policy == no ]] || as_root rm -f "$policy"
  return "$status"
}

install_packages() {
  local needs need chosen=()
  command -v apt-get >/dev/null || fail "no apt-get here; needed: ${packages[*]}"
  mapfile -t needs < <(missing_needs)
  if [[ ${#needs[@]} -eq 0 ]]; then
    return
  fi
  say "refreshing the package lists (apt-get update)"
  as_root apt-get update -q >&2
  for need in "${needs[@]}"; do
    chosen+=("$(choose_package "$need")")
  done
  say "installing Debian packages: ${chosen[*]}"
  install_quietly "${chosen[@]}" || fail "apt-get install failed; see above"
}

# clang, and the sanitizers' and libFuzzer's library of its version, which Debian packs apart.
install_fuzzer() {
  local version runtime
  if ! command -v clang++ >/dev/null; then
    as_root apt-get update -q >&2
    install_quietly clang || fail "apt-get install clang failed; see above"
  fi
  version="$(clang++ -dumpversion)"
  runtime="$(clang++ -print-file-name="libclang_rt.fuzzer-$(uname -m).a")"
  [[ ! -f $runtime ]] || return 0
  say "installing libFuzzer for clang $version"
  as_root apt-get update -q >&2
  install_quietly "libclang-rt-${version%%.*}-dev" || fail "apt-get install failed; see above"
}

# A Python from 3.11 on: what the pinned packages need.
find_python() {
  local candidate
  for candidate in python3 /usr/bin/python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
      2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  fail "no python3 from 3.11 on with venv was found"
}

make_venv() {
  local python stamp=.venv/.bitalloc-requirements wanted
  wanted="$(sha256sum ops/requirements.txt ops/requirements.lock)"
  if [[ -x .venv/bin/python && -f $stamp && "$(<"$stamp")" == "$wanted" ]]; then
    return
  fi
  python="$(find_python)"
  if [[ ! -x .venv/bin/python ]]; then
    say "making .venv with $python"
    "$python" -m venv .venv
  fi
  say "installing the Python packages of ops/requirements.txt into .venv (5 GB, a minute or two)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    -r ops/requirements.txt -c ops/requirements.lock >&2 || fail "pip install failed; see above"
  printf '%s\n' "$wanted" >"$stamp"
}

# As many compilers at once as there are cores, but 2 GB of memory for each.
build_jobs() {
  local cores memory_kb jobs
  cores="$(nproc)"
  memory_kb="$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)"
  jobs=$((memory_kb / 2000000))
  if ((jobs > cores)); then jobs=$cores; fi
  if ((jobs < 1)); then jobs=1; fi
  printf '%s\n' "$jobs"
}

build() {
  if [[ ! -f build/build.ninja ]]; then
    say "configuring build/ (log: build/configure.log)"
    mkdir -p build
    if ! .venv/bin/cmake --preset release >build/configure.log 2>&1; then
      tail -n 30 build/configure.log >&2
      fail "configuring failed"
    fi
    grep -E 'CUDA kernels' build/configure.log >&2 || true
  fi
  if ninja -C build -n 2>/dev/null | grep -q 'no work to do'; then
    return
  fi
  say "building into build/ (the first time takes some minutes)"
  .venv/bin/cmake --build build -j "$(build_jobs)" >&2 || fail "the build failed; see above"
}

main() {
  local want_build=yes want_fuzzer=no
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --no-build) want_build=no ;;
      --fuzz) want_fuzzer=yes ;;
      -h | --help)
        usage
        exit 0
        ;;
      *)
        usage >&2
        exit 2
        ;;
    esac
    shift
  done
  cd "$root"
  mkdir -p .cache
  exec 9>.cache/setup.lock
  flock 9 # two set-ups at once would undo each other's work
  install_packages
  [[ $want_fuzzer == no ]] || install_fuzzer
  make_venv
  [[ $want_build == no ]] || build
  say "ready"
}

main "$@"
