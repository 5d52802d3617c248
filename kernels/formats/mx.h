// The OCP microscaling formats: blocks of 32 neighbours with one E8M0 scale, a power of two.
//
//   E8M0: [e e e e e e e e] = 2^(e-127), 255 is NaN
//   MXFP4:  16 bytes of E2M1 codes (element 2i in the low nibble), scale   4 + 8/32 = 4.25 bits
//   MXFP8:  32 E4M3 codes, scale                                           8 + 8/32 = 8.25 bits
//   MXINT8: 32 two's complement i, each i/64, scale                        8.25 bits
//   value_i = element_i · 2^(e-127)
//
// How e is found from the block's largest magnitude a (emax: exponent of the largest element: 2 for
// E2M1, 8 for E4M3, 0 for MXINT8):
//   floor  ⌊log2 a⌋ − emax: the OCP specification 1.0, torchao FLOOR. Elements may saturate.
//   ceil   ⌈log2 a⌉ − emax: torchao CEIL
//   even   ⌊log2 of a rounded to the element's mantissa⌋ − emax: torchao EVEN. MXFP8 may saturate.
//          For MXFP4 it is vLLM's rule (a mantissa of 1.75 and above rounds up; vLLM turns blocks
//          below 2^-124 into zeros)
//   rceil  ⌈log2(a / largest element)⌉: torchao RCEIL, ModelOpt, TensorRT-LLM, cuBLAS. Nothing
//          saturates. Exact, as the GPU's conversion is; torchao's and ModelOpt's Python takes a
//          float32 log2, which loses quotients within 2^-22 above a power of two.
// clamped to 2^-127 … 2^127. Elements are x · 2^(127-e), to nearest even, saturating; MXINT8 uses
// −127 … 127 (gfloat also −128, which OCP leaves open). Blocks of exponent 0 are multiples of
// 2^-127 like any other; torchao divides them by 2^-126 (or 1). NaN anywhere makes the scale NaN,
// and so the block. An infinite element saturates; the block's other values are then 0 or coarse.
#pragma once

#include "kernels/formats/fp8_e4m3.h"
#include "kernels/formats/nvfp4.h"
#include "kernels/formats/parameters.h"
#include "kernels/group.h"

namespace bitalloc {

constexpr int kMxBlockSize = 32;
constexpr uint32_t kE8m0Nan = 255;

struct Mxfp4Block {
  uint8_t codes[kMxBlockSize / 2];
  uint8_t scale;
};
static_assert(sizeof(Mxfp4Block) == 17, "8 · 17 / 32 = 4.25 bits a value");
struct Mxfp8Block {
  Fp8E4m3 codes[kMxBlockSize];
  uint8_t scale;
};
static_assert(sizeof(Mxfp8Block) == 33, "8 · 33 / 32 = 8.25 bits a value");
struct Mxint8Block {
  int8_t codes[kMxBlockSize];
  uint8_t scale;
};
static_assert(sizeof(Mxint8Block) == 33, "8 · 33 / 32 = 8.25 bits a value");

// 2^(e-127) of the low eight bits of e, and 1 over it; NaN for 255.
template <typename Scalar>
BA_HOST_DEVICE Scalar e8m0_decode_bits(typename BitsOf<Scalar>::type e) {
  const Scalar normal = float_from_bits(e << 23);
  const Scalar smallest = spread<Scalar>(float_from_bits(0x00400000u));  // 2^-127
  const Scalar value = e == 0u ? smallest : normal;
  return e == kE8m0Nan ? spread<Scalar>(quiet_nan()) : value;
}

template <typename Scalar>
BA_HOST_DEVICE Scalar e8m0_reciprocal_bits(typename BitsOf<Scalar>::type e) {
  const Scalar normal = float_from_bits((254u - e) << 23);
  const Scalar smallest = spread<Scalar>(float_from_bits(0x00400000u));
  const Scalar value = e == 254u ? smallest : normal;
  return e == kE8m0Nan ? spread<Scalar>(quiet_nan()) : value;
}

// The biased exponent e of a block whose largest magnitude is a. emax, mantissa_bits and largest
// are the element type's.
template <typename Scalar>
BA_HOST_DEVICE typename BitsOf<Scalar>::type mx_exponent(BlockExponent rule, Scalar a,
                                                         uint32_t emax, int mantissa_bits,
                                                         float largest) {
  using Bits = typename BitsOf<Scalar>::type;
  Bits bits = float_bits(a);
  if (rule == BlockExponent::kEven) bits += 1u << (23 - mantissa_bits - 1);
  if (rule == BlockExponent::kCeil) bits += 0x7FFFFFu;
  if (rule == BlockExponent::kRceil) {
    bits = float_bits(divide_rounded(a, largest));
    // Below 2^-126 the exponent field is 0, and 2^-127 is not a whole step of it.
    const Bits tiny = bits > 0x00400000u ? Bits{} + 1u : Bits{};
    const Bits usual = (bits + 0x7FFFFFu) >> 23;
    const Bits found = bits < 0x00800000u ? tiny : usual;
    bits = (found + emax) << 23;
  }
  const Bits raised = bits >> 23;
  const Bits lowered = raised > emax ? raised - emax : Bits{};
  const Bits bounded = lowered > 254u ? Bits{} + 254u : lowered;
  return float_bits(a) > kInfinityBits ? Bits{} + kE8m0Nan : bounded;
}

// Whole numbers: to nearest even, for magnitudes below 2^22.
template <typename Float>
BA_HOST_DEVICE Float round_whole(Float value) {
  constexpr float kWhole = 8388608.0f;  // 2^23
  return with_sign_of((magnitude_of(value) + kWhole) - kWhole, value);
}

struct E2m1Element {
  static constexpr uint32_t kEmax = 2;
  static constexpr int kMantissaBits = 1;
  static constexpr float kLargest = kE2m1Max;
  template <typename Float>
  BA_HOST_DEVICE static Float round(Float value) {
    return e2m1_round(value);
  }
};

struct E4m3Element {
  static constexpr uint32_t kEmax = 8;
  static constexpr int kMantissaBits = 3;
  static constexpr float kLargest = kE4m3Max;
  template <typename Float>
  BA_HOST_DEVICE static Float round(Float value) {
    return e4m3_round(value);
  }
};

struct Int8Element {
  static constexpr uint32_t kEmax = 0;
  static constexpr int kMantissaBits = 6;
  static constexpr float kLargest = 127.0f / 64.0f;
  template <typename Float>
  BA_HOST_DEVICE static Float round(Float value) {
    const Float magnitude = at_most(magnitude_of(value), kLargest);
    return with_sign_of(round_whole(magnitude * 64.0f) * (1.0f / 64.0f), value);
  }
};

template <typename Element>
struct Mx {
  BlockExponent exponent;
  static constexpr int kGroup = kMxBlockSize;
  static constexpr bool kBatch = true;

  template <typename Scalar>
  BA_HOST_DEVICE typename BitsOf<Scalar>::type scale_of(Scalar largest) const {
    return mx_exponent(exponent, largest, Element::kEmax, Element::kMantissaBits,
                       Element::kLargest);
  }

  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    using Scalar = typename Group::Scalar;
    const auto e = scale_of(group.largest());
    group.map(
        [](auto x, auto reciprocal, auto scale) BA_INLINE {
          return multiply_rounded(Element::round(multiply_rounded(x, reciprocal)), scale);
        },
        e8m0_reciprocal_bits<Scalar>(e), e8m0_decode_bits<Scalar>(e));
  }
};
using Mxfp4 = Mx<E2m1Element>;
using Mxfp8 = Mx<E4m3Element>;
using Mxint8 = Mx<Int8Element>;

// Packs `count` <= 32 values; the codes behind them are 0.
BA_HOST_DEVICE Mxfp4Block mxfp4_encode(const Mxfp4& format, const float* values, int count) {
  Mxfp4Block block = {};
  const uint32_t e = format.scale_of(block_max(values, count));
  block.scale = static_cast<uint8_t>(e);
  for (int i = 0; i < count; ++i) {
    const uint32_t code = e2m1_encode(multiply_rounded(values[i], e8m0_reciprocal_bits<float>(e)));
    block.codes[i / 2] = static_cast<uint8_t>(block.codes[i / 2] | (code << (4 * (i % 2))));
  }
  return block;
}

BA_HOST_DEVICE void mxfp4_decode(const Mxfp4Block& block, int count, float* values) {
  for (int i = 0; i < count; ++i) {
    const uint8_t code = static_cast<uint8_t>((block.codes[i / 2] >> (4 * (i % 2))) & 0xF);
    values[i] = multiply_rounded(e2m1_decode(code), e8m0_decode_bits<float>(block.scale));
  }
}

BA_HOST_DEVICE Mxfp8Block mxfp8_encode(const Mxfp8& format, const float* values, int count) {
  Mxfp8Block block = {};
  const uint32_t e = format.scale_of(block_max(values, count));
  block.scale = static_cast<uint8_t>(e);
  for (int i = 0; i < count; ++i) {
    block.codes[i] = e4m3_encode(multiply_rounded(values[i], e8m0_reciprocal_bits<float>(e)));
  }
  return block;
}

BA_HOST_DEVICE void mxfp8_decode(const Mxfp8Block& block, int count, float* values) {
  for (int i = 0; i < count; ++i) {
    values[i] = multiply_rounded(e4m3_decode(block.codes[i]), e8m0_decode_bits<float>(block.scale));
  }
}

BA_HOST_DEVICE Mxint8Block mxint8_encode(const Mxint8& format, const float* values, int count) {
  Mxint8Block block = {};
  const uint32_t e = format.scale_of(block_max(values, count));
  block.scale = static_cast<uint8_t>(e);
  if (e == kE8m0Nan) return block;
  for (int i = 0; i < count; ++i) {
    const float element =
        Int8Element::round(multiply_rounded(values[i], e8m0_reciprocal_bits<float>(e)));
    block.codes[i] = static_cast<int8_t>(static_cast<int>(element * 64.0f));
  }
  return block;
}

BA_HOST_DEVICE void mxint8_decode(const Mxint8Block& block, int count, float* values) {
  for (int i = 0; i < count; ++i) {
    const float element = static_cast<float>(block.codes[i]) * (1.0f / 64.0f);
    values[i] = multiply_rounded(element, e8m0_decode_bits<float>(block.scale));
  }
}

}  // namespace bitalloc
