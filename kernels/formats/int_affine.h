// Integers of 2, 3, 4 or 8 bits in groups with a scale and a shift of their own ("affine",
// asymmetric). b + 2·m/group bits a value, m = 16 bits of scale and of shift, 32 in float32.
//
//   Group of G values: [codes: G·b bits, the first in the lowest bits][scale][shift]
//   lo, hi: smallest and largest;  scale = (hi − lo)/(2^b − 1),  shift = −lo
//   c_i = round((x_i + shift)/scale) in 0 … 2^b − 1,  value_i = c_i·scale − shift
//
// The rule of optimum-quanto's MaxOptimizer, which transformers' QuantizedCache uses, and of KIVI
// (quant/new_pack.py), which writes lo for −shift. Both compute in the type of the tensor that they
// are given; `Arithmetic` says which: every operation, and the input, is rounded to it. Groups lie
// along head_dim (quanto axis 0, KIVI's values), or along the tokens of a channel (axis −1, KIVI's
// keys): the caller's rows.
//
// A constant group comes back exactly (the packages divide 0 by 0; quanto's conversion of that NaN
// to an integer happens to do the same). NaN or infinities in a group, or a range beyond the
// arithmetic's largest number, make the group NaN: found, not scored.
#pragma once

#include "kernels/formats/bf16.h"
#include "kernels/formats/parameters.h"
#include "kernels/group.h"

namespace bitalloc {

// The nearest float16, ties to even; beyond 65504 infinity.
template <typename Float>
BA_HOST_DEVICE Float fp16_round(Float value) {
  const Float rounded = round_magnitude(at_most(magnitude_of(value), 131072.0f), 10, -14);
  const Float infinity = spread<Float>(float_from_bits(kInfinityBits));
  return with_sign_of(rounded > 65504.0f ? infinity : rounded, value);
}

template <Arithmetic kArithmetic, typename Float>
BA_HOST_DEVICE Float narrowed(Float value) {
  if constexpr (kArithmetic == Arithmetic::kBf16) {
    return bf16_round(value);
  } else if constexpr (kArithmetic == Arithmetic::kFp16) {
    return fp16_round(value);
  } else {
    return value;
  }
}

template <typename Scalar>
struct AffineScale {
  Scalar scale;
  Scalar shift;
};

template <Arithmetic kArithmetic>
struct IntAffine {
  float levels;                     // 2^b − 1
  static constexpr int kGroup = 0;  // 32, 64, 128 or a row
  static constexpr bool kBatch = true;

  template <typename Scalar>
  BA_HOST_DEVICE AffineScale<Scalar> scale_of(Scalar lo, Scalar hi) const {
    const Scalar low = narrowed<kArithmetic>(lo);
    const Scalar range = narrowed<kArithmetic>(narrowed<kArithmetic>(hi) - low);
    return {narrowed<kArithmetic>(divide_rounded(range, levels)), -low};
  }
  // The code as a float; 0 where the group is constant.
  template <typename Float>
  BA_HOST_DEVICE Float code_of(Float value, Float scale, Float shift) const {
    const Float moved = narrowed<kArithmetic>(narrowed<kArithmetic>(value) + shift);
    const Float steps = narrowed<kArithmetic>(divide_rounded(moved, scale));
    const Float code = at_least(at_most(steps, levels), 0.0f);
    const Float whole = (code + 8388608.0f) - 8388608.0f;  // 2^23: to the nearest whole number
    return scale == 0.0f ? Float{} : whole;
  }
  template <typename Float>
  BA_HOST_DEVICE Float value_of(Float code, Float scale, Float shift) const {
    const Float scaled = narrowed<kArithmetic>(multiply_rounded(code, scale));
    return narrowed<kArithmetic>(scaled - shift);
  }

  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    const auto found = scale_of(group.minimum(), group.maximum());
    group.map([*this](auto x, auto scale, auto shift)
                  BA_INLINE { return value_of(code_of(x, scale, shift), scale, shift); },
              found.scale, found.shift);
  }

  // codes: [size], one a byte. Returns the scale and the shift. A group with NaN or infinities has
  // a NaN for its scale, and codes 0.
  BA_HOST_DEVICE AffineScale<float> encode(const float* values, int size, uint8_t* codes) const {
    float copy[kLongestGroup];
    for (int i = 0; i < size; ++i) copy[i] = values[i];
    const ScalarGroup group(copy, size);
    const AffineScale<float> found = scale_of(group.minimum(), group.maximum());
    for (int i = 0; i < size; ++i) {
      const float code = code_of(values[i], found.scale, found.shift);
      codes[i] = code == code ? static_cast<uint8_t>(code) : uint8_t{0};
    }
    return found;
  }
  BA_HOST_DEVICE float decode(uint8_t code, AffineScale<float> group) const {
    return value_of(static_cast<float>(code), group.scale, group.shift);
  }
};

// Codes of `bits` bits, one a byte, into (size·bits + 7)/8 bytes, the first in the lowest bits.
BA_HOST_DEVICE void pack_codes(const uint8_t* codes, int size, int bits, uint8_t* bytes) {
  for (int i = 0; i < (size * bits + 7) / 8; ++i) bytes[i] = 0;
  for (int i = 0; i < size; ++i) {
    const int at = i * bits;
    const uint32_t shifted = static_cast<uint32_t>(codes[i]) << (at % 8);
    bytes[at / 8] = static_cast<uint8_t>(bytes[at / 8] | (shifted & 0xFF));
    if (at % 8 + bits > 8) bytes[at / 8 + 1] = static_cast<uint8_t>(shifted >> 8);
  }
}

BA_HOST_DEVICE uint8_t unpack_code(const uint8_t* bytes, int index, int bits) {
  const int at = index * bits;
  uint32_t word = bytes[at / 8];
  if (at % 8 + bits > 8) word |= static_cast<uint32_t>(bytes[at / 8 + 1]) << 8;
  return static_cast<uint8_t>((word >> (at % 8)) & ((1u << bits) - 1));
}

}  // namespace bitalloc
