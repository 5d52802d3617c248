#!/usr/bin/env python3
"""What the compiler says of every CUDA kernel: registers, shared memory, spills, and the occupancy they allow.

    ops/bench/cuda_resources.py [--save]      needs nvcc, no GPU; --save writes results/cuda_resources.md

Occupancy is theoretical: thread blocks of 256 (the kernels' own), 64 warps and 65,536 registers a multiprocessor,
registers handed out 256 at a time a warp (CUDA C++ Programming Guide, compute capabilities 8.0, 9.0 and 10.0).
"""
import argparse
import collections
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ("kernels/fake_quant.cu", "kernels/kl.cu")
ARCHITECTURES = (80, 90, 100)
THREADS, WARPS, REGISTERS = 256, 64, 65536


def compiled(source, architecture):
    """{demangled kernel: (registers, shared bytes, spilled bytes)}"""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["nvcc", "-std=c++17", "-O3", f"-arch=sm_{architecture}", "-Xptxas", "-v", "-I", ROOT, "-DBITALLOC_HAVE_CUDA=1",
             "-DFMT_HEADER_ONLY", "-c", ROOT / source, "-o", pathlib.Path(folder) / "out.o"],
            capture_output=True, text=True, check=True)
    kernels, name, spilled = {}, None, 0
    for line in done.stderr.splitlines():
        if found := re.search(r"Compiling entry function '(\S+)'", line):
            name, spilled = found[1], 0
        elif found := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = int(found[1]) + int(found[2])
        elif (found := re.search(r"Used (\d+) registers", line)) and name:
            shared = re.search(r"(\d+) bytes smem", line)
            kernels[name] = (int(found[1]), int(shared[1]) if shared else 0, spilled)
            name = None
    readable = subprocess.run(["c++filt"], input="\n".join(kernels), capture_output=True, text=True, check=True).stdout
    return dict(zip(readable.splitlines(), kernels.values()))


def short(name):
    name = re.sub(r"bitalloc::|\(anonymous namespace\)::|void |\(bool\)[01], ", "", name)
    name = re.sub(r"\((?:[^()]|\([^()]*\))*\)$", "", name)
    return name.replace("(Arithmetic)0", "bf16").replace("(Arithmetic)1", "fp16").replace("(Arithmetic)2", "fp32")


def occupancy(registers):
    per_warp = -(-registers * 32 // 256) * 256
    blocks = min(WARPS * 32 // THREADS, REGISTERS // (per_warp * THREADS // 32))
    return blocks * THREADS / 32 / WARPS


def table():
    rows = collections.defaultdict(dict)
    for source in SOURCES:
        for architecture in ARCHITECTURES:
            for name, numbers in compiled(source, architecture).items():
                rows[short(name)][architecture] = numbers
    lines = ["| kernel | " + " | ".join(f"sm_{a}: registers, shared, spilled, occupancy" for a in ARCHITECTURES) + " |",
             "| --- |" + " --- |" * len(ARCHITECTURES)]
    for name in sorted(rows):
        cells = []
        for architecture in ARCHITECTURES:
            registers, shared, spilled = rows[name][architecture]
            cells.append(f"{registers}, {shared} B, {spilled} B, {occupancy(registers):.0%}")
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true", help="write ops/bench/results/cuda_resources.md")
    text = table()
    print(text)
    if parser.parse_args().save:
        folder = ROOT / "ops/bench/results"
        folder.mkdir(exist_ok=True)
        version = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[-2]
        (folder / "cuda_resources.md").write_text(f"`ops/bench/cuda_resources.py --save`, {version}.\n\n{text}")


if __name__ == "__main__":
    main()
