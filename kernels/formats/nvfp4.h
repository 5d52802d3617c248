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
// "NVFP4" names several dialects that agree in layout but not in every bit. Four are here, chosen
// by `Encoding`, the other two (kTensor, kFast) at their structs (bmax: largest magnitude of the
// block; E4M3 and E2M1 round to nearest even, saturating):
//
// kServed, what an engine's store kernel writes with k_scale = g (constant policy 1, else
// amax/448):
//   s = E4M3(bmax / (6·g))            may round to 0: then the whole block is 0. With g = 1 that is
//                                     bmax <= 6·2^-10
//   r = min(1/(s·g), FLT_MAX)
//   c_i = E2M1(x_i·r),  y_i = (E2M1(c_i)·s)·g
//   This is the arithmetic of FlashInfer's software append and, up to the GPU's approximate
//   reciprocals (which can move ties), of vLLM's store kernel. Where s is at least 2^-9,
//   ModelOpt's NVFP4QTensor with double_scale = g has the same s, and c_i = E2M1(x_i/(s·g)): other
//   codes only where the rounding of r moves x_i·r across a tie. Below, NVFP4QTensor raises s to
//   2^-9, and uses 1 for a block of zeros (whose values are 0 all the same).
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

template <typename Float>
BA_HOST_DEVICE Float nvfp4_served_element(Float value, Float reciprocal, Float scale,
                                          float global_scale) {
  const Float code = e2m1_round(multiply_rounded(value, reciprocal));
  return multiply_rounded(multiply_rounded(code, scale), global_scale);
}

// kModelopt: block scale times global scale, with its floor.
template <typename Scalar>
BA_HOST_DEVICE Scalar nvfp4_modelopt_effective_scale(Scalar bmax, float global_scale) {
  const Scalar scale = multiply_rounded(nvfp4_block_scale(bmax, global_scale), global_scale);
  return scale < 1e-5f ? spread<Scalar>(1.0f) : scale;
}

template <typename Float>
BA_HOST_DEVICE Float nvfp4_modelopt_element(Float value, Float effective_scale) {
  return multiply_rounded(e2m1_round(divide_rounded(value, effective_scale)), effective_scale);
}

struct Nvfp4Served {
  float global_scale;
  static constexpr int kGroup = kNvfp4BlockSize;
  static constexpr bool kBatch = true;

  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    const auto scale = nvfp4_block_scale(group.largest(), global_scale);
    const auto reciprocal = nvfp4_served_reciprocal(scale, global_scale);
    group.map([g = global_scale](auto x, auto r, auto s)
                  BA_INLINE { return nvfp4_served_element(x, r, s, g); },
              reciprocal, scale);
  }
};

struct Nvfp4Modelopt {
  float global_scale;
  static constexpr int kGroup = kNvfp4BlockSize;
  static constexpr bool kBatch = true;

  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    const auto scale = nvfp4_modelopt_effective_scale(group.largest(), global_scale);
    group.map([](auto x, auto s) BA_INLINE { return nvfp4_modelopt_element(x, s); }, scale);
  }
};

// ModelOpt's NVFP4QTensor (and torchao) with global scale g: true division, a scale that is never
// 0.
struct Nvfp4Tensor {
  float global_scale;
  static constexpr int kGroup = kNvfp4BlockSize;
  static constexpr bool kBatch = true;

  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    constexpr float kSmallest = 0.001953125f;  // 2^-9
    const auto bmax = group.largest();
    const auto raw = divide_rounded(bmax, multiply_rounded(kE2m1Max, global_scale));
    using Scalar = typename Group::Scalar;
    const Scalar nonzero = raw == 0.0f ? spread<Scalar>(1.0f) : raw;
    const auto scale = multiply_rounded(e4m3_round(at_least(nonzero, kSmallest)), global_scale);
    group.map([](auto x, auto s) BA_INLINE { return nvfp4_modelopt_element(x, s); }, scale);
  }
};

// About 1/value: a GPU's rcp.approx.ftz; correctly rounded on a CPU.
template <typename Scalar>
BA_HOST_DEVICE Scalar approximate_reciprocal(Scalar value) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
#else
  return divide_rounded(spread<Scalar>(1.0f), value);
#endif
}

// The store kernels of vLLM and, with fast math, of TensorRT-LLM and FlashInfer: s = E4M3((1/g)·
// (bmax·rcp(6))), r = rcp(s·rcp(1/g)). On a GPU with that GPU's approximate reciprocals, so that
// CPU and GPU may differ where those move a tie, in about one code of 10,000.
struct Nvfp4Fast {
  float global_scale;
  static constexpr int kGroup = kNvfp4BlockSize;
  static constexpr bool kBatch = true;

  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    using Scalar = typename Group::Scalar;
    const float inverse = divide_rounded(1.0f, global_scale);
    const Scalar sixth = multiply_rounded(group.largest(), approximate_reciprocal(kE2m1Max));
    const Scalar scale = e4m3_round(multiply_rounded(sixth, inverse));
    const Scalar r =
        approximate_reciprocal(multiply_rounded(scale, approximate_reciprocal(inverse)));
    const Scalar reciprocal = scale == 0.0f ? Scalar{} : at_most(r, 3.402823466e+38f);
    group.map([g = global_scale](auto x, auto p, auto s)
                  BA_INLINE { return nvfp4_served_element(x, p, s, g); },
              reciprocal, scale);
  }
};

// Largest magnitude of `count` values; NaN if there is one.
BA_HOST_DEVICE float block_max(const float* values, int count) {
  uint32_t largest = 0;
  for (int i = 0; i < count; ++i) {
    const uint32_t bits = magnitude_bits(values[i]);
    largest = bits > largest ? bits : largest;
  }
  return float_from_bits(largest);
}

// Packs `count` <= 16 values as the served dialect does; the codes behind them are 0.
BA_HOST_DEVICE Nvfp4Block nvfp4_encode(const float* values, int count, float global_scale) {
  Nvfp4Block block = {};
  const float scale = nvfp4_block_scale(block_max(values, count), global_scale);
  const float reciprocal = nvfp4_served_reciprocal(scale, global_scale);
  block.scale = e4m3_encode(scale);
  for (int i = 0; i < count; ++i) {
    const uint32_t code = e2m1_encode(multiply_rounded(values[i], reciprocal));
    block.codes[i / 2] = static_cast<uint8_t>(block.codes[i / 2] | (code << (4 * (i % 2))));
  }
  return block;
}

BA_HOST_DEVICE void nvfp4_decode(const Nvfp4Block& block, int count, float global_scale,
                                 float* values) {
  const float scale = e4m3_decode(block.scale);
  for (int i = 0; i < count; ++i) {
    const uint8_t code = static_cast<uint8_t>((block.codes[i / 2] >> (4 * (i % 2))) & 0xF);
    values[i] = multiply_rounded(multiply_rounded(e2m1_decode(code), scale), global_scale);
  }
}

}  // namespace bitalloc
