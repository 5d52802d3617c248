// bfloat16: the upper half of a float32. 16 bits a value; the reference format of a cache.
//
//   15 14      7 6      0
//   [s|eeeeeeee|mmmmmmm]     value = (-1)^s · 1.m · 2^(e-127), subnormals and infinities as float32
#pragma once

#include "kernels/group.h"

namespace bitalloc {

struct Bfloat16 {
  uint16_t bits;
};
static_assert(sizeof(Bfloat16) == 2, "bfloat16 is stored in 16 bits");

// The 16 bits of a value, in an unsigned integer as wide as the float. To nearest, ties to even;
// overflow goes to infinity; NaN stays a (quiet) NaN.
template <typename Float>
BA_HOST_DEVICE typename BitsOf<Float>::type bf16_bits(Float value) {
  const auto bits = float_bits(value);
  const auto rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const auto quiet_nan = (bits >> 16) | 0x40u;
  return (bits & kMagnitudeBits) > kInfinityBits ? quiet_nan : rounded;
}

BA_HOST_DEVICE Bfloat16 bf16_encode(float value) {
  return Bfloat16{static_cast<uint16_t>(bf16_bits(value))};
}

BA_HOST_DEVICE float bf16_decode(Bfloat16 value) {
  return float_from_bits(static_cast<uint32_t>(value.bits) << 16);
}

// encode, then decode.
template <typename Float>
BA_HOST_DEVICE Float bf16_round(Float value) {
  return float_from_bits(bf16_bits(value) << 16);
}

// Whatever neighbours it is given: values do not depend on each other.
struct Bf16Rounding {
  static constexpr int kGroup = 16;
  static constexpr bool kBatch = false;

  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    group.map([](auto x) BA_INLINE { return bf16_round(x); });
  }
};

}  // namespace bitalloc
