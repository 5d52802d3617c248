#!/usr/bin/env python3
"""Speed of every number format on the CPU, beside the Python classes of ModelOpt on the same tensor, in one run.

    .venv/bin/python ops/bench/formats_bench.py [--save] [--build build]

`kernels_bench formats` fake-quantizes 128 MiB of float32 (64 MiB of bfloat16) from and to memory on all cores and says what
share that is of a plain copy; a rival encodes and decodes as many values with as many threads. GB/s count bytes read and
written once, for both. --save writes results/formats.md.
"""
import argparse
import os
import pathlib
import platform
import re
import subprocess
import time
import warnings

warnings.filterwarnings("ignore")

import modelopt
import torch
from modelopt.torch.quantization.qtensor import MXFP4QTensor, NVFP4QTensor
from modelopt.torch.quantization.tensor_quant import fp8_eager

ROOT = pathlib.Path(__file__).resolve().parents[2]
COUNT = 1 << 25  # values, as in kernels_bench
HEAD_DIM = 128


def nvfp4(x):
    q, scale, double = NVFP4QTensor.quantize(x, 16, None, torch.tensor(1.0))[:3]
    q.dequantize(dtype=x.dtype, scale=scale, double_scale=double, block_sizes={-1: 16})


def mxfp4(x):
    q, scale = MXFP4QTensor.quantize(x, 32)
    q.dequantize(dtype=x.dtype, scale=scale, block_sizes={-1: 32})


RIVALS = {"fp8_e4m3": lambda x: fp8_eager(x, torch.tensor(448.0)), "nvfp4": nvfp4, "mxfp4": mxfp4}


def rival_speeds():
    """{(format, type): bytes a second}, the best of three."""
    torch.set_num_threads(os.cpu_count())
    speeds = {}
    for name, run in RIVALS.items():
        for kind, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
            count = COUNT // 8  # they are slow, and their speed does not depend on it
            x = torch.randn(count // HEAD_DIM, HEAD_DIM, generator=torch.Generator().manual_seed(1)).to(dtype)
            best = float("inf")
            with torch.no_grad():
                for _ in range(3):
                    start = time.perf_counter()
                    run(x.clone())
                    best = min(best, time.perf_counter() - start)
            speeds[name, kind] = 2 * count * x.element_size() / best
    return speeds


def our_speeds(build):
    text = subprocess.run([build / "bin/kernels_bench", "formats", "0.2"], capture_output=True, text=True, check=True).stdout
    copy = re.search(r"copy on (\d+) threads ([\d.]+) GB/s", text)
    rows = re.findall(r"^cpu  (\S+) +(float32|bfloat16) +([\d.]+) GB/s +([\d.]+) % of a copy", text, re.M)
    return copy, {(name, kind): (float(speed), float(share)) for name, kind, speed, share in rows}


def processor():
    with open("/proc/cpuinfo") as file:
        found = re.search(r"model name\s*:\s*(.+)", file.read())
    return found[1] if found else platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    arguments = parser.parse_args()
    copy, ours = our_speeds(arguments.build)
    rivals = rival_speeds()
    lines = [f"{processor()}, {copy[1]} threads; a copy moves {copy[2]} GB/s. Rival: ModelOpt {modelopt.__version__}.", "",
             "| format | float32 GB/s (share of a copy) | bfloat16 | times the rival, float32 and bfloat16 |",
             "| --- | --- | --- | --- |"]
    for name in dict.fromkeys(name for name, _ in ours):
        cells = ["{:.1f} ({:.0f} %)".format(*ours[name, kind]) for kind in ("float32", "bfloat16")]
        times = ["{:.0f}×".format(ours[name, kind][0] * 1e9 / rivals[name, kind])
                 for kind in ("float32", "bfloat16") if (name, kind) in rivals]
        lines.append(f"| `{name}` | {cells[0]} | {cells[1]} | {', '.join(times)} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.save:
        (ROOT / "ops/bench/results/formats.md").write_text("`ops/bench/formats_bench.py --save`: " + text)


if __name__ == "__main__":
    main()
