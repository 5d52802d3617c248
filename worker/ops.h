// The operators between the matrix products of a decoder. In float32 on CPUs, outside autograd,
// they are fused loops (cpu_ops.h); elsewhere ATen operators with the roundings of
// transformers 5.24's modules, so that bfloat16 runs agree with it as well.
#pragma once

#include <ATen/core/Tensor.h>

namespace bitalloc {

// Whether the fused loops apply to x: float32, on the CPU, no gradient wanted.
bool fused_loops_apply(const at::Tensor& x);

// x · rsqrt(mean(x²) + eps) in float32, rounded to x's type, times weight [features].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// Rotary embedding of the halves convention: x·cos + rotate_half(x)·sin.
// x: [batch, heads, tokens, head_dim], any strides; cos, sin: [tokens, head_dim].
at::Tensor apply_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// silu(gate) · up of gate_up [..., 2 × features], gate first.
at::Tensor silu_multiply(const at::Tensor& gate_up);

}  // namespace bitalloc
