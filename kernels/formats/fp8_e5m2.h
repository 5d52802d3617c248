// FP8 E5M2, with one float32 scale a tensor. 8 bits a value.
//
//    7 6        2 1 0
//   [s|e e e e e|m m]   e > 0: (-1)^s · 1.m · 2^(e-15)    e = 0: (-1)^s · m · 2^-16
//   0x7B = 57344 is the largest that is stored; 0x7C is infinity, 0x7D…0x7F are NaN.
//
// Element conversion: to nearest, ties to even, saturating (|v| > 57344 and infinities become
// ±57344, so that no infinity is ever stored), NaN stays NaN: CUDA's __nv_fp8_e5m2 with satfinite.
// torch and ml_dtypes go to infinity from 61440 on. (OCP FP8 specification 1.0.)
//
// With a scale, the order of operations of fp8_e4m3.h with 57344 in the place of 448; the constant
// policy has scale 1, which is what engines store.
#pragma once

#include "kernels/formats/fp8_e4m3.h"
#include "kernels/group.h"

namespace bitalloc {

constexpr float kE5m2Max = 57344.0f;
constexpr uint8_t kE5m2Nan = 0x7F;

struct Fp8E5m2 {
  uint8_t bits;
};
static_assert(sizeof(Fp8E5m2) == 1, "8 bits a value");

// The nearest E5M2 value, saturating.
template <typename Float>
BA_HOST_DEVICE Float e5m2_round(Float value) {
  const Float magnitude = at_most(magnitude_of(value), kE5m2Max);
  return with_sign_of(round_magnitude(magnitude, 2, -14), value);
}

BA_HOST_DEVICE Fp8E5m2 e5m2_encode(float value) {
  const uint32_t sign = (float_bits(value) & kSignBit) >> 24;
  const float rounded = magnitude_of(e5m2_round(value));
  if (rounded != rounded) return Fp8E5m2{static_cast<uint8_t>(sign | kE5m2Nan)};
  constexpr float kSmallestNormal = 6.103515625e-05f;  // 2^-14
  const uint32_t code = rounded < kSmallestNormal
                            ? static_cast<uint32_t>(rounded * 65536.0f)         // m · 2^-16
                            : (float_bits(rounded) >> 21) - ((127 - 15) << 2);  // rebias e, keep m
  return Fp8E5m2{static_cast<uint8_t>(sign | code)};
}

BA_HOST_DEVICE float e5m2_decode(Fp8E5m2 code) {
  const uint32_t magnitude = code.bits & 0x7Fu;
  const float normal = float_from_bits((magnitude + ((127 - 15) << 2)) << 21);
  const float subnormal = static_cast<float>(magnitude) * (1.0f / 65536.0f);
  const float infinity = float_from_bits(kInfinityBits);
  const float special = magnitude == 0x7C ? infinity : quiet_nan();
  const float value = magnitude >= 0x7C ? special : (magnitude < 4 ? subnormal : normal);
  return float_from_bits(float_bits(value) | (static_cast<uint32_t>(code.bits & 0x80u) << 24));
}

// The factors of a tensor: 1 for amax 57344.
BA_HOST_DEVICE Fp8Scale fp8_e5m2_scale(float amax) {
  constexpr float kLargest = 3.402823466e+38f;
  const float reciprocal = divide_rounded(1.0f, amax <= kE5m2Max / kLargest ? 1.0f : amax);
  const float forward = multiply_rounded(reciprocal, kE5m2Max);
  return Fp8Scale{forward, divide_rounded(1.0f, forward)};
}

struct Fp8E5m2Rounding {
  Fp8Scale scale;
  static constexpr int kGroup = 16;
  static constexpr bool kBatch = false;

  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    group.map([scale = scale](auto x) BA_INLINE {
      return multiply_rounded(e5m2_round(multiply_rounded(x, scale.forward)), scale.inverse);
    });
  }
};

}  // namespace bitalloc
