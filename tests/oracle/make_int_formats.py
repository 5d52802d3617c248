#!/usr/bin/env python3
"""Makes tests/oracle/{hqq_cases,int_formats}.{txt,bin}: what kernels/hqq_test.cc and
kernels/formats/{int4_token_head,turboquant}_test.cc expect.

    .venv/bin/python tests/oracle/make_int_formats.py      (10 seconds; deterministic)

Needs what make_formats.py needs, and hqq 0.2.8.post1 (requirements.txt beside this file; the numbers are
committed, tests need no Python).

hqq_cases.txt     a line each: name  bits  group  axis  legacy|v2  values  groups  and four offsets into the .bin: of
    the input (float32), the codes (uint8, in the order of the input), scales and zeros (float32, [groups]).
    By hqq's own Quantizer.quantize on a CPU.
int_formats.txt   a line each: format  bits  name  rows  head_dim  and offsets of input, codes (uint8, [rows, head_dim]),
    metadata (uint32: int4_token_head, a scale a row; uint16: turboquant_key, a norm; turboquant_value, scale and
    zero) and dequantized float32 [rows, head_dim]. Restatements of vLLM's Triton kernels in torch, for want of a
    package that runs without a GPU; turboquant_codebook: "rows" 1, the centroids as output.
"""
import functools
import math
import pathlib

import numpy as np
import scipy.linalg
import torch
from hqq.core.optimize import optimize_weights_proximal_legacy, optimize_weights_proximal_v2
from hqq.core.quantize import Quantizer

import make_formats

HERE = pathlib.Path(__file__).parent


class Blob:
    def __init__(self):
        self.bytes, self.offsets, self.lines = bytearray(), {}, []

    def place(self, array):
        data = np.ascontiguousarray(array).tobytes()
        if data not in self.offsets:
            self.bytes.extend(b"\0" * (-len(self.bytes) % 4))
            self.offsets[data] = len(self.bytes)
            self.bytes.extend(data)
        return self.offsets[data]

    def write(self, stem):
        (HERE / f"{stem}.txt").write_text("\n".join(self.lines) + "\n")
        (HERE / f"{stem}.bin").write_bytes(bytes(self.bytes))
        print(stem, len(self.lines), "cases,", len(self.bytes), "bytes")


def hqq_cases():
    blob = Blob()
    generator = torch.Generator().manual_seed(6)
    normal = torch.randn(12, 128, generator=generator)
    outliers = torch.randn(12, 128, generator=generator)
    outliers[:, ::32] *= 20
    flat = torch.randn(12, 128, generator=generator) * 1e-5  # ranges below hqq's threshold
    flat[:4] = 0.25
    flat[4:6] = torch.randn(2, 128, generator=generator)
    solvers = {"legacy": optimize_weights_proximal_legacy, "v2": optimize_weights_proximal_v2}
    for name, x in (("normal", normal), ("outliers", outliers), ("flat", flat)):
        for bits in (1, 2, 3, 4, 8) if name != "flat" else (4,):
            for group in (32, 64, 128):
                for axis in (0, 1):
                    for solver, function in solvers.items():
                        if name == "outliers" and solver == "v2":
                            continue
                        Quantizer.optimize_weights = function
                        codes, meta = Quantizer.quantize(x, nbits=bits, group_size=group, axis=axis, device="cpu",
                                                         bitpack=False)
                        codes = codes.reshape(x.shape).numpy().astype(np.uint8)
                        scale, zero = meta["scale"].reshape(-1).numpy(), meta["zero"].reshape(-1).numpy()
                        blob.lines.append(f"{name} {bits} {group} {axis} {solver} {x.numel()} {len(scale)} "
                                          f"{blob.place(x.numpy())} {blob.place(codes)} {blob.place(scale)} "
                                          f"{blob.place(zero)}")
    blob.write("hqq_cases")


def int4_token_head(x):
    lo, hi = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    s = ((hi - lo) / 15).clamp(min=1e-6)
    away = lambda v: torch.where(v >= 0, torch.trunc(v + 0.5), torch.trunc(v - 0.5)).clamp(0, 15)
    z = away(-lo / s)
    codes = away(x * (1 / s) + z)
    bits = s.view(torch.int32) & -16
    y = (codes - z) * bits.view(torch.float32)
    return codes, (bits | z.int()).numpy().astype(np.uint32), y


@functools.cache
def codebook(d, bits):
    """The Lloyd–Max conditions for N(0, 1/d), as vLLM's centroids.py solves them."""
    n, variance = 2**bits, 1 / d
    high = 3.5 * math.sqrt(variance)
    density = lambda x: np.exp(-x * x / (2 * variance)) / math.sqrt(2 * math.pi * variance)
    c = np.array([-high + 2 * high * (i + 0.5) / n for i in range(n)])
    for _ in range(200):
        edges = np.concatenate([[-3 * high], (c[:-1] + c[1:]) / 2, [3 * high]])
        grid = np.linspace(edges[:-1], edges[1:], 201)
        new = np.trapezoid(grid * density(grid), grid, axis=0) / np.trapezoid(density(grid), grid, axis=0)
        if np.abs(new - c).max() < 1e-10:
            break
        c = new
    return torch.tensor(c, dtype=torch.float32)


def turboquant_key(x, bits):
    d = x.shape[-1]
    h = torch.from_numpy(scipy.linalg.hadamard(d)).float() / math.sqrt(d)
    c = codebook(d, bits)
    norm = x.norm(dim=1, keepdim=True)
    y = (x / (norm + 1e-8)) @ h
    codes = torch.bucketize(y, (c[:-1] + c[1:]) / 2, right=True)
    v = c[codes]
    v = v * (1 / torch.sqrt((v * v).sum(-1, keepdim=True) + 1e-16))
    return codes, norm.half().numpy().view(np.uint16), (norm.half().float() * v) @ h


def turboquant_value(x, bits):
    levels = 2**bits - 1
    lo, hi = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    s = (hi - lo) / levels
    s = torch.where(s > 1e-8, s, torch.tensor(1e-8))
    codes = torch.trunc((x - lo) / s + 0.5).clamp(0, levels)
    meta = torch.cat([s, lo], -1).half()
    return codes, meta.numpy().view(np.uint16), codes * meta[:, :1].float() + meta[:, 1:].float()


def int_cases():
    blob = Blob()
    formats = {("int4_token_head", 4): int4_token_head}
    for bits in (3, 4):
        formats["turboquant_key", bits] = functools.partial(turboquant_key, bits=bits)
        formats["turboquant_value", bits] = functools.partial(turboquant_value, bits=bits)
    named = make_formats.inputs()
    generator = torch.Generator().manual_seed(7)
    named["wide"] = torch.randn(8, 128, generator=generator)
    named["above_zero"] = torch.rand(4, 64, generator=generator) + 3
    for name in ("normal", "std_0.01", "outlier_channels", "huge", "zeros", "constant", "wide", "above_zero", "tail_4",
                 "head_dim_80"):
        x = named[name][:8].float()
        for (fmt, bits), function in formats.items():
            if fmt == "turboquant_key" and x.shape[1] & (x.shape[1] - 1):
                continue
            codes, meta, y = function(x)
            blob.lines.append(f"{fmt} {bits} {name} {x.shape[0]} {x.shape[1]} {blob.place(x.numpy())} "
                              f"{blob.place(codes.numpy().astype(np.uint8))} {blob.place(meta)} "
                              f"{blob.place(y.numpy().astype(np.float32))}")
    for d in (64, 128, 256):
        for bits in (3, 4):
            at = blob.place(codebook(d, bits).numpy())
            blob.lines.append(f"turboquant_codebook {bits} d_{d} 1 {d} {at} {at} {at} {at}")
    blob.write("int_formats")


if __name__ == "__main__":
    torch.set_num_threads(1)
    hqq_cases()
    int_cases()
