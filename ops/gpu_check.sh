#!/usr/bin/env bash
# Builds the CUDA kernels and runs their tests and bench on this machine's GPU.
#
#   ops/gpu_check.sh [--worker] [BUILD_DIR]        (default build-gpu)
#
# Needs a C++ compiler, cmake >= 3.25 and nvcc 12.8 or newer. With Python's torch >= 2.11 (and the
# NCCL of its wheel) the tensor functions are built and tested too. Needs none of the libraries of
# the rest; --worker builds that as well and runs every test with the label `gpu`, that of tensor
# parallelism over NCCL included (its scores on two shards want two GPUs).
# Without a GPU it builds, says so, and ends with 0.
set -euo pipefail
cd "$(dirname "$0")/.."

worker=OFF
build=build-gpu
for argument in "$@"; do
  case "$argument" in
    --worker) worker=ON ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) build="$argument" ;;
  esac
done

say() { printf 'gpu_check: %s\n' "$*"; }
fail() { say "$*" >&2; exit 1; }

# Prints the first of its arguments that is an executable, by path or by name.
first_executable() {
  local candidate
  for candidate in "$@"; do
    if command -v "$candidate" >/dev/null 2>&1; then command -v "$candidate"; return; fi
  done
}

# "SITE_PACKAGES VERSION" of the first Python with torch.
find_torch() {
  local python
  for python in .venv/bin/python "${VIRTUAL_ENV:-/nonexistent}/bin/python" python3 python; do
    "$python" - 2>/dev/null <<'PYTHON' && return
import importlib.metadata, importlib.util, pathlib
print(pathlib.Path(importlib.util.find_spec("torch").origin).parent.parent,
      importlib.metadata.version("torch"))
PYTHON
  done
  return 0
}

cmake=$(first_executable .venv/bin/cmake cmake /usr/local/bin/cmake)
[ -n "$cmake" ] || fail "cmake not found: python3 -m pip install cmake"
read -r site torch_version <<<"$(find_torch) " || true
nvcc=$(first_executable "${CUDACXX:-}" nvcc /usr/local/cuda/bin/nvcc /usr/local/cuda-*/bin/nvcc \
  "${site:-/nonexistent}"/nvidia/cu1*/bin/nvcc)
[ -n "$nvcc" ] || fail "nvcc not found: install a CUDA toolkit, or set CUDACXX"
say "cmake $("$cmake" --version | head -1 | cut -d' ' -f3), $("$nvcc" --version | grep release)"

options=(-DCMAKE_BUILD_TYPE=Release -DBITALLOC_CUDA=ON -DCMAKE_CUDA_COMPILER="$nvcc")
torch_minor=$(cut -d. -f2 <<<"${torch_version:-0.0}")
if [ "${torch_version%%.*}" = 2 ] && [ "$torch_minor" -ge 11 ] &&
  [ -e "$site/torch/lib/libtorch_cuda.so" ] && [ -e "$site/nvidia/nccl/lib/libnccl.so.2" ]; then
  say "torch $torch_version in $site"
  options+=(-DBITALLOC_WORKER=ON -DBITALLOC_SITE_PACKAGES="$site")
else
  [ "$worker" = OFF ] || fail "--worker needs torch >= 2.11 with CUDA and its NCCL wheel"
  say "no torch >= 2.11 with CUDA and its NCCL wheel: the tensor functions are left out"
  options+=(-DBITALLOC_WORKER=OFF)
fi
if [ "$worker" = OFF ]; then
  options+=(-DBITALLOC_GPU_CHECK=ON)
else
  options+=(-DBITALLOC_GPU_CHECK=OFF)
fi

gpu="" # only to compile for this one architecture instead of all
if command -v nvidia-smi >/dev/null 2>&1; then
  gpu=$(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>/dev/null | head -1) || gpu=""
fi
if [ -n "$gpu" ]; then
  say "GPU: $gpu"
  options+=(-DCMAKE_CUDA_ARCHITECTURES="$(sed 's/.*, *//; s/\.//' <<<"$gpu")")
fi
[ -z "$(first_executable ninja)" ] || options+=(-G Ninja)

mkdir -p "$build"
"$cmake" -S . -B "$build" "${options[@]}" >"$build/configure.log" 2>&1 ||
  { tail -20 "$build/configure.log"; fail "configuring failed; $build/configure.log has it all"; }
"$cmake" --build "$build" --parallel "$(nproc)"

# The test itself knows best whether there is a device: it ends with 77 where there is none.
status=0
"$build/tests/kernels_cuda_test" || status=$?
if [ "$status" = 77 ]; then
  say "built, nothing run: no GPU"
  exit 0
fi
"$(dirname "$cmake")/ctest" --test-dir "$build" -L gpu -E '^(kernels_cuda|worker_nccl)_test$' \
  --output-on-failure || status=$?
if [ -x "$build/tests/worker_nccl_test" ]; then # run here: ctest does not say why it is skipped
  nccl=0
  "$build/tests/worker_nccl_test" || nccl=$?
  [ "$nccl" = 0 ] || [ "$nccl" = 77 ] || status=$nccl
else
  say "NCCL not tested: give --worker"
fi
"$build/bin/kernels_bench" || status=$?
[ "$status" = 0 ] && say "all passed" || say "FAILED"
exit "$status"
