#!/usr/bin/env python3
"""Makes tests/oracle/catalogue_cases.{txt,bin}: tensors, and what comes back from formats of the catalogue.

    .venv/bin/python tests/oracle/make_catalogue_cases.py      (1 minute; deterministic)

Needs what make_formats.py needs, and torchao 0.18.0, gfloat 0.5.2, optimum-quanto 0.2.7 and the sources of fouroversix 1.0.5
(requirements.txt beside this file; the numbers are committed, tests need no Python).

A line each:  oracle  name  format  amax  f32|bf16  rows  head_dim  offset_of_input  offset_of_output
`oracle` says who made the output; "restated" is the header's formula in numpy with the casts of torch and
ml_dtypes, for want of a package that runs without a GPU.
"""

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import torch
from fouroversix.quantize.pytorch import reference as fouroversix
from fouroversix.utils import ScaleRule
from optimum.quanto import MaxOptimizer, qint2, qint4, quantize_weight
from torchao.prototype.mx_formats.constants import DTYPE_FP6_E2M3  # noqa: F401  (fails early without torchao)
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx

import make_formats

INPUTS = ("normal", "std_0.01", "std_0.001", "outlier_channels", "ties", "tiny", "huge", "every_exponent",
          "zeros", "constant", "one_in_zeros", "tail_4", "head_dim_80")


def e2m1(x):
    return x.clamp(-6, 6).numpy().astype(ml_dtypes.float4_e2m1fn).astype(np.float32)


def blocks(x, size):
    pad = (-x.shape[-1]) % size
    return torch.nn.functional.pad(x.float(), (0, pad)).reshape(x.shape[0], -1, size)


def rows_of(blocked, x):
    return blocked.reshape(x.shape[0], -1)[:, : x.shape[1]].to(x.dtype)


def e5m2(x, amax):
    forward = (torch.tensor(1.0) / torch.tensor(amax)) * 57344
    scaled = (x.float() * forward).clamp(-57344, 57344).to(torch.float8_e5m2).float()
    return (scaled * (1 / forward)).to(x.dtype)


def fp8_token_head(x):
    scale = (x.float().abs().amax(-1, keepdim=True) / 448).clamp(min=1e-6)
    return ((x.float() * (1 / scale)).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale).to(x.dtype)


def e4m3(x):
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def fast(x, amax):
    """kernels/formats/nvfp4.h, Nvfp4Fast, with true reciprocals."""
    g = torch.tensor(amax) / 448
    inverse = 1 / g
    b = blocks(x, 16)
    s = e4m3(b.abs().amax(-1, keepdim=True) * (torch.tensor(1.0) / 6) * inverse)
    r = torch.where(s == 0, torch.zeros(()), 1 / (s * (1 / inverse)))
    return rows_of(torch.from_numpy(e2m1(b * r)) * s * g, x)


def cache_four_over_six(x, amax, rule):
    """vLLM's nvfp4_4over6: bmax/6 against bmax/4 under one k_scale."""
    g = torch.tensor(amax) / 448
    b = blocks(x, 16)
    bmax = b.abs().amax(-1, keepdim=True)

    def stored(s):
        r = torch.where(s == 0, torch.zeros(()), 1 / (s * g))
        y = torch.from_numpy(e2m1(b * r)) * s * g
        d = y - b
        error = {"mse": (d * d).sum(-1), "mae": d.abs().sum(-1), "abs_max": d.abs().amax(-1)}[rule]
        return y, error.unsqueeze(-1)

    six, error6 = stored(e4m3(bmax / (6 * g)))
    four, error4 = stored(e4m3(bmax / (4 * g)))
    return rows_of(torch.where(error4 < error6, four, six), x)


def static_four_over_six(x, amax, rule):
    """The package's own functions, on rows of blocks."""
    b = blocks(x, 16)
    flat, top = b.reshape(-1, 16), torch.tensor(amax)
    rule = {"mse": ScaleRule.mse, "mae": ScaleRule.mae, "abs_max": ScaleRule.abs_max}[rule]
    six, scales6 = fouroversix.quantize_to_nvfp4(flat, top, scale_rule=rule)
    four, scales4 = fouroversix.quantize_to_nvfp4(flat, top, scale_rule=rule, scale_expansion_factor=1.5)
    codes, scales = fouroversix.select_fouroversix(flat, six, scales6, four, scales4, top, scale_rule=rule)
    codes = fouroversix.fake_quantize_to_e2m1(codes.float())
    codes, scales = codes.reshape(-1, 16), scales.reshape(-1)
    y = codes * scales.float().unsqueeze(1) * top / torch.tensor(6.0 * 256)
    return rows_of(y.reshape(b.shape), x)


def mx(x, element, mode):
    scale, data = to_mx(x.float().contiguous(), element, 32, mode)
    e = scale.view(torch.uint8).float()
    if element == torch.float4_e2m1fn_x2:
        packed = data.view(torch.uint8).reshape(-1)
        codes = torch.stack([packed & 15, packed >> 4], -1).reshape(x.shape[0], -1, 32)
        data = torch.from_numpy(codes.numpy().view(ml_dtypes.float4_e2m1fn).astype(np.float32))
    else:
        data = data.float().reshape(x.shape[0], -1, 32)
    return rows_of(data * torch.exp2(e.reshape(x.shape[0], -1, 1) - 127), x)


def mxint8(x):
    info = gfloat.formats.format_info_mxint8
    y = torch.stack([torch.from_numpy(gfloat.quantize_block(info, block.double().numpy(), gfloat.compute_scale_amax))
                     for block in blocks(x, 32).reshape(-1, 32)])
    return rows_of(y.reshape(x.shape[0], -1, 32), x)


def quanto(x, bits, group):
    """MaxOptimizer and quantize_weight, groups along head_dim; the tensor's type is the arithmetic's."""
    qtype = {2: qint2, 4: qint4}[bits]
    cache = x.contiguous()[None, None]  # four dimensions, as transformers' caches: matrices get packed otherwise
    scale, shift = MaxOptimizer()(cache, qtype, 0, group)
    return quantize_weight(cache, qtype, 0, scale, shift, group).dequantize()[0, 0]


def affine(x, bits, group):
    """The same for any number of bits, in float32."""
    b = x.float().reshape(-1, group)
    lo, hi = b.amin(-1, keepdim=True), b.amax(-1, keepdim=True)
    scale = (hi - lo) / (2**bits - 1)
    code = torch.where(scale == 0, torch.zeros(()), torch.round((b - lo) / scale)).clamp(0, 2**bits - 1)
    return (code * scale + lo).reshape(x.shape)


def int8_token_head(x):
    scale = (x.float().abs().amax(-1, keepdim=True) / 127).clamp(min=1e-6)
    return (torch.round(x.float() / scale).clamp(-127, 127) * scale).to(x.dtype)


def int_cases(name, x32):
    yield "restated", name, "int8_token_head", 448.0, "f32", x32, int8_token_head(x32)
    for group in (32, 64, 128):
        x = x32.reshape(-1, group) if x32.numel() % group == 0 else None
        if x is None or len(x) < 2:
            continue
        own = "" if group == 64 else f"group={group},"
        for bits in (2, 4):
            yield "quanto", name, f"int{bits}[{own}arithmetic=fp32]", 448.0, "f32", x, quanto(x, bits, group)
            yield ("quanto", name, f"int{bits}[{own[:-1]}]".replace("[]", ""), 448.0, "bf16", x.bfloat16(),
                   quanto(x.bfloat16(), bits, group))
            half = x.half().float()  # float16 values: the fp16 arithmetic reads them as they are
            if torch.isfinite(half).all():
                yield ("quanto", name, f"int{bits}[{own}arithmetic=fp16]", 448.0, "f32", half,
                       quanto(x.half(), bits, group).float())
        for bits in (3, 8):
            yield "restated", name, f"int{bits}[{own}arithmetic=fp32]", 448.0, "f32", x, affine(x, bits, group)


def cases():
    modes = {"floor": ScaleCalculationMode.FLOOR, "ceil": ScaleCalculationMode.CEIL,
             "even": ScaleCalculationMode.EVEN, "rceil": ScaleCalculationMode.RCEIL}
    inputs = make_formats.inputs()
    for name in INPUTS:
        x32 = inputs[name][:8]
        yield from int_cases(name, x32)
        for storage, x in (("f32", x32), ("bf16", x32.bfloat16())):
            top = float(x.float().abs().max())
            yield "torch", name, "fp8_e5m2", 57344.0, storage, x, e5m2(x, 57344.0)
            yield "restated", name, "fp8_e4m3[granularity=token_head]", 448.0, storage, x, fp8_token_head(x)
            yield "restated", name, "nvfp4[encoding=fast]", 448.0, storage, x, fast(x, 448.0)
            yield "restated", name, "nvfp4_4over6", 448.0, storage, x, cache_four_over_six(x, 448.0, "mse")
            if storage == "f32":
                for rule in ("mae", "abs_max"):
                    yield ("restated", name, f"nvfp4_4over6[error={rule}]", 448.0, storage, x,
                           cache_four_over_six(x, 448.0, rule))
            if 1e-30 < top < 1e38:
                yield "torch", name, "fp8_e5m2[scale=calibrated]", top, storage, x, e5m2(x, top)
                if storage == "f32":
                    for rule in ("mse", "mae", "abs_max"):
                        own = "" if rule == "mse" else f"error={rule},"
                        yield ("fouroversix", name, f"nvfp4_4over6[{own}normaliser=256,scale=calibrated]", top,
                               storage, x, static_four_over_six(x, top, rule))
            if x.shape[1] % 16 == 0:
                yield "modelopt", name, "nvfp4[encoding=tensor]", 448.0, storage, x, make_formats.nvfp4_tensor(x, 448.0)
            if x.shape[1] % 32:
                continue
            for mode, how in modes.items():
                own = "" if mode == "rceil" else f"[exponent={mode}]"
                yield "torchao", name, "mxfp4" + own, 448.0, storage, x, mx(x, torch.float4_e2m1fn_x2, how)
                if storage == "f32":
                    yield "torchao", name, "mxfp8" + own, 448.0, storage, x, mx(x, torch.float8_e4m3fn, how)
            if name != "tiny":  # gfloat rounds the scale of denormal blocks otherwise
                yield "gfloat", name, "mxint8[exponent=floor]", 448.0, storage, x, mxint8(x)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(make_formats.write_cases("catalogue_cases", (
        ((oracle, name, fmt, repr(amax), storage), x, y) for oracle, name, fmt, amax, storage, x, y in cases())))
