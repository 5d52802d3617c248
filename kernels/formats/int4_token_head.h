// 4-bit integers with one scale and zero point for every token and head: vLLM's
// `int4_per_token_head`. 4 + 32/head_dim bits a value.
//
//   Row of head_dim values: [c1 c0][c3 c2] … [scale: 4 bytes]       element 2i is the low nibble
//   scale, a float32:  [s|e e e e e e e e|m × 19|z z z z]   z: the zero point, in its lowest bits
//   lo, hi: smallest and largest;  s = max((hi − lo)/15, 1e-6),  z = round(−lo/s) in 0 … 15
//   c_i = round(x_i·(1/s) + z) in 0 … 15,  value_i = (c_i − z)·s'     s': s with its last 4 bits 0
//
// round: to nearest, halves upwards. z stays in 0 … 15, so that a row wholly on one side of 0
// saturates far from its values: the engine rotates every row first, by a Hadamard matrix with
// random signs, which centres it. Here the rotation is the caller's (hadamard.h, without signs).
// The engine's kernel may fuse the product and the sum of c_i, which moves ties only. Source: vLLM,
// v1/attention/ops/int4_per_token_head.py.
//
// NaN or an infinite element anywhere makes the row NaN: found, not scored. A range beyond float32
// counts as its largest number.
#pragma once

#include "kernels/formats/fp8_token_head.h"
#include "kernels/formats/int_affine.h"
#include "kernels/group.h"

namespace bitalloc {

constexpr uint32_t kZeroPointBits = 0xF;

struct Int4TokenHeadScale {
  uint32_t bits;
};
static_assert(sizeof(Int4TokenHeadScale) == 4, "32/head_dim bits a value");

// hi − lo, at most float32's largest number; NaN where lo or hi is infinite.
template <typename Scalar>
BA_HOST_DEVICE Scalar finite_range(Scalar lo, Scalar hi) {
  return at_most(hi - lo, 3.402823466e+38f) + ((lo - lo) + (hi - hi));
}

// To the nearest whole number of 0 … levels, halves upwards; NaN stays NaN.
template <typename Float>
BA_HOST_DEVICE Float nearest_level(Float steps, float levels) {
  const Float raised = at_most(at_least(steps, 0.0f), levels) + 0.5f;
  const Float whole = (raised + 8388608.0f) - 8388608.0f;  // 2^23
  return whole > raised ? whole - 1.0f : whole;
}

struct Int4TokenHead {
  static constexpr int kGroup = 0;  // the row
  static constexpr bool kBatch = true;
  static constexpr float kLevels = 15.0f;

  template <typename Scalar>
  BA_HOST_DEVICE static Scalar scale_of(Scalar lo, Scalar hi) {
    return at_least(divide_rounded(finite_range(lo, hi), kLevels), kSmallestTokenHeadScale);
  }
  template <typename Scalar>
  BA_HOST_DEVICE static Scalar stored_scale(Scalar scale) {
    return float_from_bits(float_bits(scale) & ~kZeroPointBits);
  }
  template <typename Float>
  BA_HOST_DEVICE static Float code_of(Float value, Float reciprocal, Float zero) {
    return nearest_level(multiply_rounded(value, reciprocal) + zero, kLevels);
  }
  template <typename Float>
  BA_HOST_DEVICE static Float value_of(Float code, Float scale, Float zero) {
    return multiply_rounded(code - zero, scale);
  }

  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    using Scalar = typename Group::Scalar;
    const Scalar lo = group.minimum();
    const Scalar scale = scale_of(lo, group.maximum());
    const Scalar zero = nearest_level(divide_rounded(-lo, scale), kLevels);
    group.map([](auto x, auto r, auto s, auto z)
                  BA_INLINE { return value_of(code_of(x, r, z), s, z); },
              divide_rounded(spread<Scalar>(1.0f), scale), stored_scale(scale), zero);
  }

  // codes: [size], one a byte (pack_codes of int_affine.h packs them); 0 in a row of NaN.
  BA_HOST_DEVICE Int4TokenHeadScale encode(const float* values, int size, uint8_t* codes) const {
    float copy[kLongestGroup] = {};
    for (int i = 0; i < size; ++i) copy[i] = values[i];
    const ScalarGroup group(copy, size);
    const float scale = scale_of(group.minimum(), group.maximum());
    const float zero = nearest_level(divide_rounded(-group.minimum(), scale), kLevels);
    for (int i = 0; i < size; ++i) {
      const float code = code_of(values[i], divide_rounded(1.0f, scale), zero);
      codes[i] = code == code ? static_cast<uint8_t>(code) : uint8_t{0};
    }
    const uint32_t point = zero == zero ? static_cast<uint32_t>(zero) : 0u;
    return {(float_bits(scale) & ~kZeroPointBits) | point};
  }
  BA_HOST_DEVICE float decode(uint8_t code, Int4TokenHeadScale scale) const {
    return value_of(static_cast<float>(code & kZeroPointBits),
                    float_from_bits(scale.bits & ~kZeroPointBits),
                    static_cast<float>(scale.bits & kZeroPointBits));
  }
};

}  // namespace bitalloc
