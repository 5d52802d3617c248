#!/usr/bin/env python3
"""Makes the codes that kernels/formats/{fp8,blocks}_test.cc read: what other packages store, not only what comes back.

    .venv/bin/python tests/oracle/make_float_formats.py      (half a minute; deterministic)

Needs what make_catalogue_cases.py needs. The numbers are committed; tests need no Python.

formats_e5m2.txt   every bfloat16 input, as in formats_e4m3.txt. By ml_dtypes behind a clamp to ±57344; torch agrees.
float_blocks.{txt,bin}   packed blocks, a line each:
    oracle  name  format  amax  rows  head_dim  offset_of_input  offset_of_codes  offset_of_scales
    Inputs are float32. Codes of 4 bits are two a byte, the even element low. A scale a block of 16 (NVFP4) or 32 (MX).
    "fouroversix_448" is the package's own code with 448 in the place of its 256. "vllm": a restatement in numpy of
    csrc/libtorch_stable/nvfp4_kv_cache_kernels.cu, whose approximate reciprocals are true ones here.
"""
import math
import pathlib

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import torch
from fouroversix.quantize.pytorch import reference as fouroversix
from fouroversix.utils import DataType, ScaleRule
from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor
from modelopt.torch.quantization.qtensor.mxfp8_tensor import MXFP8QTensor
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize

import make_formats

HERE = pathlib.Path(__file__).parent
INPUTS = ("normal", "std_0.01", "std_0.001", "outlier_channels", "ties", "tiny", "huge", "every_exponent", "zeros",
          "negative_zeros", "constant", "denormal", "near_overflow")
RULES = {"mse": ScaleRule.mse, "mae": ScaleRule.mae, "abs_max": ScaleRule.abs_max}


def e5m2_codes(x):
    clamped = np.clip(x, -57344, 57344)
    codes = clamped.astype(ml_dtypes.float8_e5m2).view(np.uint8)
    by_torch = torch.from_numpy(clamped).to(torch.float8_e5m2).view(torch.uint8).numpy()
    assert (codes == by_torch)[~np.isnan(x)].all()
    assert ((codes & 0x7F) > 0x7C)[np.isnan(x)].all()
    return codes


def special():
    """NaN and infinities among ordinary values, a block of 32 each."""
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(3))
    x[0, 5], x[1, 40], x[2, 0], x[2, 63] = math.nan, math.inf, -math.inf, 3e38
    x[3, 32:] = 0
    x[3, 33] = -math.inf
    return x


def u8(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


# ---- packages: (codes, scales) as bytes ----------------------------------------------------------
def modelopt_nvfp4(x, g):
    q, scales = NVFP4QTensor.quantize(x.clone(), 16, None, g)[:2]
    return u8(q._quantized_data), u8(scales)


def torchao_nvfp4(x, g):
    scales, codes = nvfp4_quantize(x.contiguous(), 16, g)
    return u8(codes), u8(scales)


def torchao_mx(x, element, mode):
    scales, codes = to_mx(x.contiguous(), element, 32, mode)
    return u8(codes), u8(scales)


def modelopt_mxfp4(x):
    q, scales = MXFP4QTensor.quantize(x.contiguous().clone(), 32)
    return u8(q._quantized_data), u8(scales)


def modelopt_mxfp8(x):
    q, scales = MXFP8QTensor.quantize(x.contiguous().clone())
    return u8(q._quantized_data), u8(scales)


def gfloat_mxint8(x):
    info = gfloat.formats.format_info_mxint8
    codes, scales = bytearray(), bytearray()
    for block in x.double().reshape(-1, 32).numpy():
        scale = gfloat.compute_scale_amax(info.etype.emax, block)
        encoded = list(gfloat.encode_block(info, scale, block / scale))
        scales.append(int(encoded[0]))
        codes.extend(int(code) for code in encoded[1:])
    return bytes(codes), bytes(scales)


def packed_e2m1(values):
    codes = values.numpy().astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return (codes[..., 0::2] | codes[..., 1::2] << 4).tobytes()


def four_over_six(x, amax, rule, normaliser):
    """`normaliser` in the place of the package's 256."""
    own, maximum = fouroversix.E4M3_MAX_FOUROVERSIX, type(DataType.nvfp4.scale_type).get_maximum_value
    fouroversix.E4M3_MAX_FOUROVERSIX = normaliser
    type(DataType.nvfp4.scale_type).get_maximum_value = lambda self, rule: normaliser
    try:
        codes, scales, _ = fouroversix.quantize_to_fp4(x, torch.tensor(amax), scale_rule=rule,
                                                       use_blackwell_scale_layout=False)
    finally:
        fouroversix.E4M3_MAX_FOUROVERSIX = own
        type(DataType.nvfp4.scale_type).get_maximum_value = maximum
    return u8(codes), u8(scales)


# ---- restated: no package runs these without a GPU -----------------------------------------------
def e4m3(x):
    return x.clamp(-448, 448).to(torch.float8_e4m3fn)


def stored(blocks, scales, r):
    """(codes, scales) of blocks [n, 16] under scales [n, 1] and what elements are multiplied with."""
    codes = torch.nan_to_num(blocks * torch.where(scales.float() == 0, torch.zeros(()), r)).clamp(-6, 6)
    return packed_e2m1(codes), u8(scales)


def exact(x, g):
    """Transformer Engine with fast math off: (bmax/6)·(1/g), 1/(s·(1/(1/g)))."""
    blocks, encode = x.reshape(-1, 16), 1 / g
    s = e4m3(blocks.abs().amax(-1, keepdim=True) / 6 * encode)
    return stored(blocks, s, 1 / (s.float() * (1 / encode)))


def vllm_scale(bmax, inverse, reciprocal):
    s = e4m3(inverse * (bmax * reciprocal))
    return s, torch.where(s.float() == 0, torch.zeros(()), 1 / (s.float() * (1 / inverse)))


def vllm(x, g):
    blocks = x.reshape(-1, 16)
    s, r = vllm_scale(blocks.abs().amax(-1, keepdim=True), 1 / g, torch.tensor(1.0) / 6)
    return stored(blocks, s, r)


def vllm_error(blocks, r):
    """Σ (code/r − x)², two neighbours fused as nvcc does, then in their order."""
    codes = torch.from_numpy((blocks * r).clamp(-6, 6).numpy().astype(ml_dtypes.float4_e2m1fn).astype(np.float32))
    d = codes * torch.where(r == 0, torch.zeros(()), 1 / r) - blocks
    pairs = (d[:, 0::2].double() ** 2 + (d[:, 1::2] * d[:, 1::2]).double()).float()
    total = torch.zeros(len(blocks))
    for pair in pairs.T:
        total = total + pair
    return total.unsqueeze(-1)


def vllm_four_over_six(x, g):
    blocks = x.reshape(-1, 16)
    bmax = blocks.abs().amax(-1, keepdim=True)
    s6, r6 = vllm_scale(bmax, 1 / g, torch.tensor(1.0) / 6)
    s4, r4 = vllm_scale(bmax, 1 / g, torch.tensor(0.25))
    four = vllm_error(blocks, r4) < vllm_error(blocks, r6)
    s = torch.where(four, s4.float(), s6.float()).to(torch.float8_e4m3fn)
    return stored(blocks, s, torch.where(four, r4, r6))


# ---- files ---------------------------------------------------------------------------------------
def nvfp4_cases(name, x):
    top = float(x.abs().max())
    for amax in [448.0] + ([top] if 1e-30 < top < 1e38 else []):
        g = torch.tensor(amax) / 448
        policy = "" if amax == 448.0 else "scale=calibrated"
        of = lambda *parameters: "[" + ",".join(p for p in parameters + (policy,) if p) + "]"
        yield "modelopt", "nvfp4" + of("encoding=tensor"), amax, modelopt_nvfp4(x, g)
        if name == "special":  # the others do not say what NaN becomes
            continue
        yield "torchao", "nvfp4" + of("encoding=tensor"), amax, torchao_nvfp4(x, g)
        yield "restated", "nvfp4" + of("encoding=exact"), amax, exact(x, g)
        yield "vllm", "nvfp4" + of("encoding=fast"), amax, vllm(x, g)
        yield "vllm", ("nvfp4_4over6" + of()).replace("[]", ""), amax, vllm_four_over_six(x, g)
        if amax == 448.0 or top > 1e30:
            continue
        for rule, value in RULES.items():
            error = "" if rule == "mse" else f"error={rule}"
            yield "fouroversix", "nvfp4_4over6" + of(error, "normaliser=256"), amax, four_over_six(x, amax, value, 256)
            yield ("fouroversix_448", "nvfp4_4over6" + of(error, "normaliser=448"), amax,
                   four_over_six(x, amax, value, 448))


def mx_cases(name, x):
    modes = {"floor": ScaleCalculationMode.FLOOR, "ceil": ScaleCalculationMode.CEIL,
             "even": ScaleCalculationMode.EVEN, "rceil": ScaleCalculationMode.RCEIL}
    for mode, how in modes.items():
        own = "" if mode == "rceil" else f"[exponent={mode}]"
        yield "torchao", "mxfp4" + own, 448.0, torchao_mx(x, torch.float4_e2m1fn_x2, how)
        yield "torchao", "mxfp8" + own, 448.0, torchao_mx(x, torch.float8_e4m3fn, how)
    if name == "special":
        return
    yield "modelopt", "mxfp4", 448.0, modelopt_mxfp4(x)
    yield "modelopt", "mxfp8", 448.0, modelopt_mxfp8(x)
    yield "gfloat", "mxint8[exponent=floor]", 448.0, gfloat_mxint8(x)


def write_blocks():
    inputs = {name: make_formats.inputs()[name][:8] for name in INPUTS} | {"special": special()}
    lines, blob = [], make_formats.Blob()
    for name, x in inputs.items():
        for oracle, fmt, amax, (codes, scales) in (*nvfp4_cases(name, x), *mx_cases(name, x)):
            lines.append(f"{oracle} {name} {fmt} {amax!r} {x.shape[0]} {x.shape[1]} "
                         f"{blob.place(x)} {blob.place(codes)} {blob.place(scales)}")
    (HERE / "float_blocks.txt").write_text("\n".join(lines) + "\n")
    (HERE / "float_blocks.bin").write_bytes(bytes(blob.bytes))
    print(len(lines), "cases,", len(blob.bytes), "bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    x = make_formats.every_bf16()
    make_formats.write_runs("formats_e5m2.txt", e5m2_codes(x), x)
    write_blocks()
