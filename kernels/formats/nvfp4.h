// NVFP4: 4-bit floats E2M1 in blocks of 16 along head_dim, an E4M3 scale a block, and one float32
// scale a tensor. 4 + 8/16 = 4.5 bits a value.
//
//    3 2 1  0
//   [s|e e|m]   e > 0: (-1)^s · 1.m · 2^(e-1)   e = 0: (-1)^s · m/2
//   magnitudes of codes 0..7: 0, 0.5, 1, 1.5, 2, 3, 4, 6; no NaN, no infinity
//
//   Nvfp4Block: [c1 c0][c3 c2] … [c15 c14] [scale]     9 bytes; element 2i is the low nibble
//   value_i = E2M1(c_i) · E4M3(scale) · g              g: the tensor's float32 "global" scale
//
// "NVFP4" names several dialects that agree in layout but not in every bit, chosen by `Encoding`.
// Two are here, three in nvfp4_dialects.h (bmax: largest magnitude of the block; E4M3 and E2M1
// round to nearest even, saturating):
//
// kServed, what an engine's store kernel writes with k_scale = g (constant policy 1, else
// amax/448):
//   s = E4M3(bmax / (6·g))            may round to 0: then the whole block is 0. With g = 1 that is
//                                     bmax <= 6·2^-10
//   r = min(1/(s·g), FLT_MAX)
//   c_i = E2M1(x_i·r),  y_i = (E2M1(c_i)·s)·g
//   This is the arithmetic of FlashInfer's software append and, up to the GPU's approximate
//   reciprocals (which can move ties), of vLLM's store kernel.
//
// kModelopt, what ModelOpt's search scores (dynamic fake quantization), g = max(amax/2688, 1e-12):
//   s = E4M3(bmax / (6·g)) · g, and 1 where that is below 1e-5
//   y_i = E2M1(x_i/s)·s
//
// Rows whose length is no multiple of 16 end in a shorter block: as if padded with zeros.
// NaN anywhere in a block makes its scale NaN, and so all of its values: the codes could not say
// it, and it must be found, not scored. (ModelOpt turns it into 6.) Infinities saturate: bmax = inf
// gives s = 448, infinite elements code ±6, finite ones 0 or what remains of them. Definitions: OCP
// MX specification 1.0 (E2M1), NVIDIA's NVFP4; ModelOpt 0.48.0rc1.
#pragma once

#include "kernels/formats/fp8_e4m3.h"
#include "kernels/group.h"

namespace bitalloc {

constexpr int kNvfp4BlockSize = 16;
constexpr float kE2m1Max = 6.0f;

struct Nvfp4Block {
  uint8_t codes[kNvfp4BlockSize / 2];
  Fp8E4m3 scale;
};
static_assert(sizeof(Nvfp4Block) == kNvfp4BlockSize / 2 + 1, "8 · 9 / 16 = 4.5 bits a value");

// The nearest E2M1 magnitude of a magnitude, saturating: boundaries 0.25, 0.75, 1.25, 1.75, 2.5,
// 3.5, 5, where ties go to the even code.
template <typename Float>
BA_HOST_DEVICE Float e2m1_round_magnitude(Float magnitude) {
  return round_magnitude(at_most(magnitude, kE2m1Max), 1, 0);
}

template <typename Float>
BA_HOST_DEVICE Float e2m1_round(Float value) {
  return with_sign_of(e2m1_round_magnitude(magnitude_of(value)), value);
}

// The code of a value, rounding; in the low four bits. A NaN has no code: it gives ±6.
BA_HOST_DEVICE uint8_t e2m1_encode(float value) {
  const uint32_t sign = (float_bits(value) & kSignBit) >> 28;
  const float magnitude = magnitude_of(value);
  const float rounded = magnitude != magnitude ? kE2m1Max : e2m1_round_magnitude(magnitude);
  const uint32_t code = rounded < 1.0f ? static_cast<uint32_t>(rounded * 2.0f)
                                       : (float_bits(rounded) >> 22) - ((127 - 1) << 1);
  return static_cast<uint8_t>(sign | code);
}

BA_HOST_DEVICE float e2m1_decode(uint8_t code) {
  const uint32_t magnitude = code & 7u;
  const float normal = float_from_bits((magnitude + ((127 - 1) << 1)) << 22);
  const float value = magnitude < 2 ? 0.5f * static_cast<float>(magnitude) : normal;
  return float_from_bits(float_bits(value) | (static_cast<uint32_t>(code & 8u) << 28));
}

// kServed: the global scale of a calibrated tensor (amax = 448: 1). An amax that FP8 counts as 1
// counts as 1 here too.
BA_HOST_DEVICE float nvfp4_served_global_scale(float amax) {
  constexpr float kLargest = 3.402823466e+38f;
  return divide_rounded(amax <= kE4m3Max / kLargest ? 1.0f : amax, kE4m3Max);
}

// kModelopt: 1/6 for amax = 448.
BA_HOST_DEVICE float nvfp4_modelopt_global_scale(float amax) {
  return at_least(divide_rounded(amax, kE2m1Max * kE4m3Max), 1e-12f);
}

// The E4M3 scale of a block, as a value. NaN if bmax is NaN.
template <typename Scalar>
BA_HOST_DEVICE Scalar nvfp4_block_scale(Scalar bmax, float global_scale) {
  return e4m3_round(divide_rounded(bmax, multiply_rounded(kE2m1Max, global_scale)));
}

// kServed: what elements are multiplied with before they are rounded to E2M1.
template <typename Scalar>
BA_HOST_DEVICE Scalar nvfp4_served_reciprocal(Scalar scale, float global_scale) {
  constexpr float kLargest = 3.402823466e+38f;
  const Scalar effective = multiply_rounded(scale, global_scale);
  const Scalar r = divide_rounded(spread<Scalar>(1.0f), effective);
  return scale == 0.0f ? Scalar{} : at_most(r, kLargest);
}

// Largest magnitude of `count` values; NaN if there is one.
BA_HOST_DEVICE float block_max(const float* values, int count) {
  uint32_t largest = 0;
  for (int i = 0; i < count; ++i) {
    const uint32_t bits = magnitude_bits(values[i]);
    largest = bits > largest ? bits : largest;
  }
  return float_from_bits(largest);
}

// ---- what all dialects do ----
// A dialect's struct says, of a Scalar of the group or of elements alike,
//   block_scale(group)           the E4M3 scale, as a value; NaN if the group has a NaN
//   factor(scale)                what elements are scaled with
//   code(x, factor)              an element's E2M1 value
//   value(code, scale, factor)   what comes back

template <typename Dialect, typename Group>
BA_HOST_DEVICE void nvfp4_fake_quantize(const Dialect& dialect, Group& group) {
  const auto scale = dialect.block_scale(group);
  group.map([dialect](auto x, auto s, auto f)
                BA_INLINE { return dialect.value(dialect.code(x, f), s, f); },
            scale, dialect.factor(scale));
}

// Packs `count` <= 16 values; the codes behind them are 0.
template <typename Dialect>
BA_HOST_DEVICE Nvfp4Block nvfp4_encode(const Dialect& dialect, const float* values, int count) {
  float copies[kNvfp4BlockSize];
  for (int i = 0; i < count; ++i) copies[i] = values[i];
  const ScalarGroup group(copies, count);
  const float scale = dialect.block_scale(group);
  const float factor = dialect.factor(scale);
  Nvfp4Block block = {};
  block.scale = e4m3_encode(scale);
  for (int i = 0; i < count; ++i) {
    const uint32_t code = e2m1_encode(dialect.code(values[i], factor));
    block.codes[i / 2] = static_cast<uint8_t>(block.codes[i / 2] | (code << (4 * (i % 2))));
  }
  return block;
}

template <typename Dialect>
BA_HOST_DEVICE void nvfp4_decode(const Dialect& dialect, const Nvfp4Block& block, int count,
                                 float* values) {
  const float scale = e4m3_decode(block.scale);
  const float factor = dialect.factor(scale);
  for (int i = 0; i < count; ++i) {
    const auto code = static_cast<uint8_t>((block.codes[i / 2] >> (4 * (i % 2))) & 0xF);
    values[i] = dialect.value(e2m1_decode(code), scale, factor);
  }
}

// ---- kServed and kModelopt ----

// Elements are multiplied with a rounded reciprocal, and come back as (code·s)·g.
struct Nvfp4Multiplying {
  float global_scale;
  static constexpr int kGroup = kNvfp4BlockSize;
  static constexpr bool kBatch = true;

  template <typename Float>
  BA_HOST_DEVICE Float code(Float x, Float factor) const {
    return e2m1_round(multiply_rounded(x, factor));
  }
  template <typename Float>
  BA_HOST_DEVICE Float value(Float code, Float scale, Float /*factor*/) const {
    return multiply_rounded(multiply_rounded(code, scale), global_scale);
  }
};

// Elements are divided by s·g, and come back as code·(s·g).
struct Nvfp4Dividing {
  float global_scale;
  static constexpr int kGroup = kNvfp4BlockSize;
  static constexpr bool kBatch = true;

  template <typename Float>
  BA_HOST_DEVICE Float code(Float x, Float factor) const {
    return e2m1_round(divide_rounded(x, factor));
  }
  template <typename Float>
  BA_HOST_DEVICE Float value(Float code, Float /*scale*/, Float factor) const {
    return multiply_rounded(code, factor);
  }
};

struct Nvfp4Served : Nvfp4Multiplying {
  template <typename Group>
  BA_HOST_DEVICE typename Group::Scalar block_scale(const Group& group) const {
    return nvfp4_block_scale(group.largest(), global_scale);
  }
  template <typename Scalar>
  BA_HOST_DEVICE Scalar factor(Scalar scale) const {
    return nvfp4_served_reciprocal(scale, global_scale);
  }
  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    nvfp4_fake_quantize(*this, group);
  }
};

struct Nvfp4Modelopt : Nvfp4Dividing {
  template <typename Group>
  BA_HOST_DEVICE typename Group::Scalar block_scale(const Group& group) const {
    return nvfp4_block_scale(group.largest(), global_scale);
  }
  template <typename Scalar>
  BA_HOST_DEVICE Scalar factor(Scalar scale) const {
    const Scalar effective = multiply_rounded(scale, global_scale);
    return effective < 1e-5f ? spread<Scalar>(1.0f) : effective;
  }
  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    nvfp4_fake_quantize(*this, group);
  }
};

}  // namespace bitalloc
