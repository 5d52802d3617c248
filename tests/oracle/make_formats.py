#!/usr/bin/env python3
"""Makes the expected values that kernels/*_test.cc read: tests/oracle/formats_*.

    .venv/bin/python tests/oracle/make_formats.py      (2 minutes; deterministic)

Needs: torch, ml_dtypes, nvidia-modelopt (made with torch 2.15.0, ml_dtypes 0.6.0, nvidia-modelopt
0.48.0rc1), mpmath, numpy. The numbers are committed; tests need no Python.

formats_e4m3.txt, formats_e2m1.txt   every bfloat16 input (as 65,536 bit patterns, in runs of equal
    output): "first_input_bits code", hexadecimal. The code holds from that input to the next line's.
    By ml_dtypes; torch (E4M3) and ModelOpt (E2M1) are checked to agree. "nan": the input is NaN.
formats_cases.txt / .bin   tensors and what comes back after fake quantization, a line each:
    name  format  amax  f32|bf16  rows  head_dim  offset_of_input  offset_of_output   (bytes in .bin)
    Oracles: fp8_e4m3: ModelOpt's fp8_eager. nvfp4[encoding=modelopt]: ModelOpt's dynamic fake
    quantization as restated below. nvfp4 (served): the arithmetic in kernels/formats/nvfp4.h with ml_dtypes'
    casts. nvfp4_tensor: ModelOpt's NVFP4QTensor with double_scale = amax/448.
formats_packed.txt   one block a line: global scale, 16 inputs (float32 bits), 8 code bytes and the
    scale byte of NVFP4QTensor.
formats_kl.txt   "seed  spread  vocab  kl": KL of the logits made by `logits` below, 50 digits mpmath.
"""
import pathlib
import warnings

warnings.filterwarnings("ignore")

import ml_dtypes
import mpmath
import numpy as np
import torch
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
from modelopt.torch.quantization.tensor_quant import fp8_eager

HERE = pathlib.Path(__file__).parent


# ---- element types -------------------------------------------------------------------------------
def every_bf16():
    bits = np.arange(65536, dtype=np.uint32)
    return (bits << 16).view(np.float32)


def e4m3_codes(x):
    clamped = np.clip(x, -448, 448)  # saturation: ml_dtypes alone gives NaN above 464
    codes = clamped.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    by_torch = torch.from_numpy(clamped).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    finite = ~np.isnan(x)
    assert (codes == by_torch)[finite].all()
    assert ((codes & 0x7F) == 0x7F)[~finite].all()
    return codes


def e2m1_codes(x):
    codes = x.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    by_modelopt = NVFP4QTensor._cast_fp4(torch.from_numpy(x.copy())).numpy()
    # ModelOpt has no -0 for the input -0; NaN has no code.
    comparable = ~np.isnan(x) & ~((x == 0) & np.signbit(x))
    assert (codes == by_modelopt)[comparable].all()
    return codes


def write_runs(name, codes, x):
    lines, previous = [], None
    for bits in range(65536):
        code = "nan" if np.isnan(x[bits]) else f"{codes[bits]:02x}"
        if code != previous:
            lines.append(f"{bits:04x} {code}")
        previous = code
    (HERE / name).write_text("\n".join(lines) + "\n")


# ---- tensors -------------------------------------------------------------------------------------
def modelopt_dynamic(x, amax, block=16):
    """ModelOpt's dynamic NVFP4 fake quantization (its Triton kernel needs a GPU): global scale
    amax/(6·448); block scale E4M3(min(bmax/(6g), 448))·g, 1 where below 1e-5; x/scale rounded to
    E2M1 with ties to even. The same restatement, put under ModelOpt 0.48.0rc1's K/V search in place
    of the kernel, is what bitalloc's scores are compared with."""
    pad = (-x.shape[-1]) % block
    xf = torch.nn.functional.pad(x.float(), (0, pad))
    xb = xf.reshape(*xf.shape[:-1], -1, block)
    g = (torch.tensor(amax) / (6.0 * 448.0)).clamp(min=1e-12)
    s = (xb.abs().amax(-1, keepdim=True) / (6.0 * g)).clamp(max=448.0).to(torch.float8_e4m3fn)
    s = s.float() * g
    s = torch.where(s >= 1e-5, s, torch.ones_like(s))
    a = xb.abs() / s
    q = torch.full_like(a, 6.0)
    for bound, value, closed in ((5.0, 4.0, True), (3.5, 3.0, False), (2.5, 2.0, True),
                                 (1.75, 1.5, False), (1.25, 1.0, True), (0.75, 0.5, False),
                                 (0.25, 0.0, True)):
        q = torch.where((a <= bound) if closed else (a < bound), torch.full_like(a, value), q)
    y = torch.copysign(q * s, xb)
    return y.reshape(xf.shape)[..., : x.shape[-1]].to(x.dtype)


def served(x, amax, block=16):
    """kernels/formats/nvfp4.h, kServed, in numpy float32 with ml_dtypes' casts."""
    xf = x.float().numpy()
    pad = (-xf.shape[-1]) % block
    xb = np.pad(xf, ((0, 0), (0, pad))).reshape(xf.shape[0], -1, block)
    g = np.float32(amax) / np.float32(448)
    with np.errstate(all="ignore"):
        s = np.minimum(np.abs(xb).max(-1, keepdims=True) / (np.float32(6) * g), np.float32(448))
        s = s.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        r = np.minimum(np.float32(1) / (s * g), np.finfo(np.float32).max).astype(np.float32)
        r = np.where(s == 0, np.float32(0), r)
        y = (xb * r).astype(ml_dtypes.float4_e2m1fn).astype(np.float32) * s * g
    y = torch.from_numpy(y.reshape(xf.shape[0], -1)[:, : xf.shape[1]].copy())
    return y.to(x.dtype)


def nvfp4_tensor(x, amax):
    g = torch.tensor(amax) / 448.0
    q, s, g = NVFP4QTensor.quantize(x.contiguous().float().clone(), 16, None, g)[:3]
    y = q.dequantize(dtype=torch.float32, scale=s, double_scale=g, block_sizes={-1: 16})
    return y.to(x.dtype)


def inputs():
    """name -> float32 [rows, head_dim]"""
    generator = torch.Generator().manual_seed(20260501)
    normal = lambda *shape: torch.randn(*shape, generator=generator)
    channels = normal(8, 64)
    channels[:, ::16] *= 30
    steps = torch.arange(-64, 64).float()
    ties = torch.stack([steps * 0.25 * scale for scale in (1.0, 0.5, 448.0, 2.0**-7, 0.75, 1 / 3)])
    ties[:, ::16] = 6 * torch.tensor([1.0, 0.5, 448.0, 2.0**-7, 0.75, 1 / 3])[:, None]
    exponents = torch.linspace(-126, 127, 64).round()
    return {
        "normal": normal(16, 64), "std_0.1": normal(8, 64) * 0.1, "std_0.01": normal(8, 64) * 0.01,
        "std_0.003": normal(8, 64) * 0.003, "std_0.001": normal(8, 64) * 0.001,
        "outlier_channels": channels, "ties": ties,
        "tiny": normal(8, 64) * 1e-6, "denormal": normal(4, 64) * 1e-41, "huge": normal(8, 64) * 1e4,
        "near_overflow": normal(4, 64).clamp(-3, 3) * 1e38,
        "every_exponent": torch.exp2(exponents).repeat(4, 1) * (1 + torch.rand(4, 64, generator=generator)) / 2,
        "zeros": torch.zeros(2, 64), "negative_zeros": -torch.zeros(2, 64),
        "constant": torch.full((2, 64), 0.7), "one_in_zeros": torch.eye(32),
        "tail_4": normal(8, 20), "shorter_than_a_block": normal(8, 7), "one_channel": normal(8, 1),
        "tail_1": normal(8, 33), "head_dim_80": normal(8, 80),
    }


def cases():
    for name, x32 in inputs().items():
        for storage, x in (("f32", x32), ("bf16", x32.bfloat16())):
            top = float(x.float().abs().max())
            calibrated = [a for a in (top, float(np.float32(top * 0.37))) if 1e-30 < a < 1e38]
            if storage == "bf16":
                calibrated = calibrated[:1]
            yield name, "bf16", 0.0, storage, x, x.bfloat16().to(x.dtype)
            for amax in [448.0] + calibrated:
                policy = "" if amax == 448.0 else "scale=calibrated"
                both = f"[{policy}]" if policy else ""
                modelopt = "[" + ",".join(p for p in ("encoding=modelopt", policy) if p) + "]"
                yield name, "fp8_e4m3" + both, amax, storage, x, fp8_eager(x, torch.tensor(amax))
                yield name, "nvfp4" + both, amax, storage, x, served(x, amax)
                yield name, "nvfp4" + modelopt, amax, storage, x, modelopt_dynamic(x, amax)
                if name in ("normal", "std_0.1", "outlier_channels", "ties", "head_dim_80"):
                    yield name, "nvfp4_tensor", amax, storage, x, nvfp4_tensor(x, amax)


def raw(x):
    return x.contiguous().view(torch.int16 if x.dtype == torch.bfloat16 else torch.int32).numpy().tobytes()


class Blob:
    """Tensors or bytes in one file, equal ones once."""

    def __init__(self):
        self.bytes, self.offsets = bytearray(), {}

    def place(self, x):
        data = x if isinstance(x, bytes) else raw(x)
        if data not in self.offsets:
            self.offsets[data] = len(self.bytes)
            self.bytes.extend(data)
        return self.offsets[data]


def write_cases(stem, rows):
    """rows: (columns before the tensors, input, output) -> STEM.txt and STEM.bin"""
    lines, blob = [], Blob()
    for columns, x, y in rows:
        shape = (x.shape[0], x.shape[1], blob.place(x), blob.place(y.to(x.dtype)))
        lines.append(" ".join(str(column) for column in (*columns, *shape)))
    (HERE / f"{stem}.txt").write_text("\n".join(lines) + "\n")
    (HERE / f"{stem}.bin").write_bytes(bytes(blob.bytes))
    return f"{len(lines)} cases, {len(blob.bytes)} bytes"


def write_packed():
    generator = torch.Generator().manual_seed(7)
    lines = []
    for g in (1.0, 0.25):
        x = torch.randn(16, 16, generator=generator)
        q, s, _ = NVFP4QTensor.quantize(x.clone(), 16, None, torch.tensor(g))[:3]
        codes = q._quantized_data.reshape(16, 8).numpy()
        scales = s.reshape(16).view(torch.uint8).numpy()
        for row in range(16):
            values = " ".join(f"{v:08x}" for v in x[row].view(torch.int32).numpy().view(np.uint32))
            lines.append(f"{g} {values} {codes[row].tobytes().hex()} {scales[row]:02x}")
    (HERE / "formats_packed.txt").write_text("\n".join(lines) + "\n")


# ---- KL ------------------------------------------------------------------------------------------
def mix(x):
    """A 32-bit hash (Wellons' lowbias32)."""
    x = x.astype(np.uint32)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x


def uniform(seed, vocab):
    """float32 in [-1, 1), exactly the same in the test."""
    h = mix(np.arange(vocab, dtype=np.uint32) + np.uint32(seed) * np.uint32(0x9E3779B9))
    return (h >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)


def logits(seed, spread, vocab):
    a = uniform(seed, vocab) * np.float32(6)
    a = a * uniform(seed + 1, vocab)
    a[:: max(1, vocab // 8)] += np.float32(11)  # a few likely tokens
    b = a + np.float32(spread) * uniform(seed + 2, vocab) + np.float32(0.375)
    return a, b


def exact_kl(a, b):
    mpmath.mp.dps = 50
    a, b = [mpmath.mpf(float(v)) for v in a], [mpmath.mpf(float(v)) for v in b]
    lse_a = mpmath.log(mpmath.fsum(mpmath.exp(v) for v in a))
    lse_b = mpmath.log(mpmath.fsum(mpmath.exp(v) for v in b))
    return mpmath.fsum(mpmath.exp(x - lse_a) * ((x - lse_a) - (y - lse_b)) for x, y in zip(a, b))


def write_kl():
    lines = []
    for seed, spread, vocab in ((1, 1.35e-4, 151936), (4, 2e-3, 151936), (7, 3e-2, 151936), (10, 0.9, 151936),
                                (13, 12.0, 4099), (16, 60.0, 4099), (19, 1e-4, 49152), (22, 1e-3, 17),
                                (25, 2.0, 5), (28, 1.0, 1)):
        lines.append(f"{seed} {spread!r} {vocab} {mpmath.nstr(exact_kl(*logits(seed, spread, vocab)), 20)}")
        print(lines[-1], flush=True)
    (HERE / "formats_kl.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    x = every_bf16()
    write_runs("formats_e4m3.txt", e4m3_codes(x), x)
    write_runs("formats_e2m1.txt", e2m1_codes(x), x)
    write_cases("formats_cases", (((name, fmt, repr(amax), storage), x, y) for name, fmt, amax, storage, x, y in cases()))
    write_packed()
    write_kl()
