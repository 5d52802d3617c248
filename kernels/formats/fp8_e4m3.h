// FP8 E4M3 ("fn": finite, no infinities), with one float32 scale a tensor. 8 bits a value.
//
//    7 6    3 2   0
//   [s|e e e e|m m m]   e > 0: (-1)^s · 1.m · 2^(e-7)    e = 0: (-1)^s · m · 2^-9
//   0x7E = 448 is the largest; 0x7F and 0xFF are NaN; smallest normal 2^-6, subnormal 2^-9.
//
// Element conversion: to nearest, ties to even, saturating (|v| > 448 and infinities become ±448),
// NaN stays NaN: CUDA's __nv_fp8_e4m3 and torch's cast behind a clamp. (OCP FP8 specification 1.0.)
//
// With a scale, in the order of operations of NVIDIA ModelOpt (tensor_quant.py, `_fp8_eager`):
//   forward = (1/amax)·448,  inverse = 1/forward,  y = E4M3(clip(x·forward, ±448)) · inverse
// (it writes 448/amax, which torch evaluates as a reciprocal and a product: two roundings).
// amax = 448 (the constant policy) makes both exactly 1, which is what an engine does with
// k_scale = 1. For other amax an engine's x/k_scale may differ from x·forward in the last bit
// before the cast: at ties of the E4M3 grid only.
#pragma once

#include "kernels/group.h"

namespace bitalloc {

constexpr float kE4m3Max = 448.0f;
constexpr uint8_t kE4m3Nan = 0x7F;

struct Fp8E4m3 {
  uint8_t bits;
};
static_assert(sizeof(Fp8E4m3) == 1, "8 bits a value");

// The nearest E4M3 value, saturating.
template <typename Float>
BA_HOST_DEVICE Float e4m3_round(Float value) {
  const Float magnitude = at_most(magnitude_of(value), kE4m3Max);
  return with_sign_of(round_magnitude(magnitude, 3, -6), value);
}

BA_HOST_DEVICE Fp8E4m3 e4m3_encode(float value) {
  const uint32_t sign = (float_bits(value) & kSignBit) >> 24;
  const float rounded = magnitude_of(e4m3_round(value));
  if (rounded != rounded) return Fp8E4m3{static_cast<uint8_t>(sign | kE4m3Nan)};
  constexpr float kSmallestNormal = 0.015625f;  // 2^-6
  const uint32_t code = rounded < kSmallestNormal
                            ? static_cast<uint32_t>(rounded * 512.0f)          // m · 2^-9
                            : (float_bits(rounded) >> 20) - ((127 - 7) << 3);  // rebias e, keep m
  return Fp8E4m3{static_cast<uint8_t>(sign | code)};
}

BA_HOST_DEVICE float e4m3_decode(Fp8E4m3 code) {
  const uint32_t magnitude = code.bits & 0x7Fu;
  const float normal = float_from_bits((magnitude + ((127 - 7) << 3)) << 20);
  const float subnormal = static_cast<float>(magnitude) * (1.0f / 512.0f);
  const float nan = float_from_bits(kInfinityBits | 0x400000u);
  const float value = magnitude == kE4m3Nan ? nan : (magnitude < 8 ? subnormal : normal);
  return float_from_bits(float_bits(value) | (static_cast<uint32_t>(code.bits & 0x80u) << 24));
}

// The two factors of a tensor.
struct Fp8Scale {
  float forward;
  float inverse;
};

// amax at or below 448/FLT_MAX would overflow 448/amax: it counts as 1, as in ModelOpt.
BA_HOST_DEVICE Fp8Scale fp8_scale(float amax) {
  constexpr float kLargest = 3.402823466e+38f;
  const float reciprocal = divide_rounded(1.0f, amax <= kE4m3Max / kLargest ? 1.0f : amax);
  const float forward = multiply_rounded(reciprocal, kE4m3Max);
  return Fp8Scale{forward, divide_rounded(1.0f, forward)};
}

template <typename Float>
BA_HOST_DEVICE Float fp8_fake_quantize(Float value, Fp8Scale scale) {
  return multiply_rounded(e4m3_round(multiply_rounded(value, scale.forward)), scale.inverse);
}

// One scale a tensor.
struct Fp8E4m3Rounding {
  Fp8Scale scale;
  static constexpr int kGroup = 16;
  static constexpr bool kBatch = false;

  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    group.map([scale = scale](auto x) BA_INLINE { return fp8_fake_quantize(x, scale); });
  }
};

}  // namespace bitalloc
