// Float32 loops of a decoder between its matrix products, one pass over memory each. No torch here:
// the tensor functions in ops.h call these. Single-threaded, thread-safe; a row's result depends on
// nothing but the row.
#pragma once

#include <cstdint>

namespace bitalloc {

// out = x · rsqrt(mean(x²) + eps) · weight, row by row. x: [rows, width], rows `stride` elements
// apart; out: [rows, width], contiguous.
void rms_norm_cpu(const float* x, int64_t rows, int64_t width, int64_t stride, const float* weight,
                  float eps, float* out);

// out = silu(gate) · up. gate_up: [rows, 2 × features], gate first; out: [rows, features].
void silu_multiply_cpu(const float* gate_up, int64_t rows, int64_t features, float* out);

// Heads of one side (q or k) inside the rows of a fused projection.
struct HeadSpan {
  int64_t first = 0;  // column where the side starts
  int64_t heads = 0;
  const float* norm_weight = nullptr;  // [head_dim]: RMSNorm before the rotation; null for none
  float norm_eps = 0.0F;
};

// Normalizes (where asked) and rotates the heads of a side in place: x·cos + rotate_half(x)·sin.
// qkv: [rows, width] contiguous; row r is position r mod tokens; cos, sin: [tokens, head_dim].
void norm_rope_cpu(float* qkv, int64_t rows, int64_t width, int64_t tokens, int64_t head_dim,
                   const HeadSpan& span, const float* cos, const float* sin);

}  // namespace bitalloc
