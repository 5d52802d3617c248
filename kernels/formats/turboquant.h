// vLLM's TurboQuant cache: keys as indices into a codebook for normal numbers, after a rotation;
// values as integers with scale and zero. (Zandieh et al.; vLLM, layers/quantization/turboquant and
// v1/attention/ops/triton_turboquant_{store,decode}.py, which leave out the paper's QJL.)
//
//   Key row:    [indices: ⌈d·b/8⌉ bytes, the first in the lowest bits][norm: float16]   b + 16/d
//   Value row:  [codes: ⌈d·b/8⌉ bytes, alike][scale: float16][zero: float16]            b + 32/d
//                                                                        bits a value, d = head_dim
// Key, b 3 or 4:  y = H·x (hadamard.h, the caller's),  n = ‖x‖
//   c_i = number of midpoints that are at most y_i/(n + 1e-8)
//   y'_i = C[c_i]·r·float16(n),  x' = H·y'      r = 1/√(ΣC[c_i]² + 1e-16) in presets "_nc", else 1
//   C: the Lloyd–Max centroids of N(0, 1/d) (turboquant_codebook); midpoints: of neighbours in C.
// The engine divides by n before it rotates: other codes only where that moves a tie.
// Value, b 3 or 4:  s = max((hi − lo)/(2^b − 1), 1e-8),  c_i = round((x_i − lo)/s), halves upwards
//   value_i = c_i·float16(s) + float16(lo)
// The preset k8v4 keeps keys as fp8_e4m3 with scale 1.
//
// NaN or an infinite element anywhere makes the row NaN: found, not scored. Norms, scales and zeros
// beyond float16 saturate at ±65504, where the engine's become infinite: finite rows stay finite.
// Rows whose squares overflow float32 (norms from 1.8e19) have the codes of a row of zeros.
#pragma once

#include <cmath>

#include "kernels/formats/int4_token_head.h"
#include "kernels/formats/int_affine.h"
#include "kernels/group.h"

namespace bitalloc {

constexpr int kTurboQuantMostLevels = 16;

// 16 bits of fp16_round's result; a NaN is 0x7E00. And back.
BA_HOST_DEVICE uint16_t fp16_encode(float value) {
  const float rounded = fp16_round(value);
  const uint32_t sign = (float_bits(value) & kSignBit) >> 16;
  const float magnitude = magnitude_of(rounded);
  if (magnitude != magnitude) return 0x7E00;
  if (magnitude > 65504.0f) return static_cast<uint16_t>(sign | 0x7C00u);
  const uint32_t code = magnitude < 6.103515625e-05f                          // 2^-14
                            ? static_cast<uint32_t>(magnitude * 16777216.0f)  // m · 2^-24
                            : (float_bits(magnitude) >> 13) - ((127 - 15) << 10);
  return static_cast<uint16_t>(sign | code);
}

BA_HOST_DEVICE float fp16_decode(uint16_t bits) {
  const uint32_t magnitude = bits & 0x7FFFu;
  const float subnormal = static_cast<float>(magnitude) * (1.0f / 16777216.0f);
  const float normal = float_from_bits((magnitude + ((127 - 15) << 10)) << 13);
  const float special = magnitude == 0x7C00 ? float_from_bits(kInfinityBits) : quiet_nan();
  const float value = magnitude >= 0x7C00 ? special : (magnitude < 0x400 ? subnormal : normal);
  return float_from_bits(float_bits(value) | (static_cast<uint32_t>(bits & 0x8000u) << 16));
}

// The nearest float16 of a finite value, saturating; NaN stays NaN.
template <typename Float>
BA_HOST_DEVICE Float fp16_saturated(Float value) {
  return fp16_round(at_most(at_least(value, -65504.0f), 65504.0f));
}

BA_HOST_DEVICE float square_root(float value) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(value);
#else
  return std::sqrt(value);
#endif
}

// A row of keys that the caller has rotated, and rotates back.
struct TurboQuantKey {
  int levels;            // 8 or 16
  bool norm_correction;  // presets "_nc"
  float centroids[kTurboQuantMostLevels];
  float midpoints[kTurboQuantMostLevels];  // [levels − 1]
  static constexpr int kGroup = 0;         // the row
  static constexpr bool kBatch = false;

  template <typename Float>
  BA_HOST_DEVICE Float centroid_of(Float unit) const {
    Float found = spread<Float>(centroids[0]);
    for (int i = 1; i < levels; ++i) {
      const Float bound = spread<Float>(midpoints[i - 1]);
      found = unit >= bound ? spread<Float>(centroids[i]) : found;
    }
    return found;
  }

  // ‖row‖; NaN where an element is NaN or infinite.
  template <typename Group>
  BA_HOST_DEVICE float norm_of(const Group& group) const {
    if (!(group.largest() < float_from_bits(kInfinityBits))) return quiet_nan();
    return square_root(group.sum([](auto x) BA_INLINE { return multiply_rounded(x, x); }));
  }

  // The factor of every centroid of a row with that norm.
  template <typename Group>
  BA_HOST_DEVICE float factor_of(const Group& group, float norm) const {
    const float stored = fp16_saturated(norm);
    if (!norm_correction) return stored;
    const float squares = group.sum(
        [*this](auto x, auto divisor) BA_INLINE {
          const auto c = centroid_of(divide_rounded(x, divisor));
          return multiply_rounded(c, c);
        },
        norm + 1e-8f);
    return multiply_rounded(divide_rounded(1.0f, square_root(squares + 1e-16f)), stored);
  }

  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    const float norm = norm_of(group);
    group.map(
        [*this](auto x, auto divisor, auto factor)
            BA_INLINE { return multiply_rounded(centroid_of(divide_rounded(x, divisor)), factor); },
        norm + 1e-8f, factor_of(group, norm));
  }

  // codes: [size], one a byte. Returns the norm as float16.
  BA_HOST_DEVICE uint16_t encode(const float* values, int size, uint8_t* codes) const {
    float copy[kLongestGroup] = {};
    for (int i = 0; i < size; ++i) copy[i] = values[i];
    const float norm = norm_of(ScalarGroup(copy, size));
    for (int i = 0; i < size; ++i) {
      const float unit = divide_rounded(values[i], norm + 1e-8f);
      codes[i] = 0;
      for (int k = 1; k < levels; ++k) {
        codes[i] = static_cast<uint8_t>(codes[i] + (unit >= midpoints[k - 1] ? 1 : 0));
      }
    }
    return fp16_encode(fp16_saturated(norm));
  }

  // codes: [size], each counted modulo the levels. values: [size], still rotated.
  BA_HOST_DEVICE void decode(const uint8_t* codes, int size, uint16_t norm, float* values) const {
    for (int i = 0; i < size; ++i) values[i] = centroids[codes[i] & (levels - 1)];
    float factor = fp16_decode(norm);
    if (norm_correction) {
      const float squares = ScalarGroup(values, size).sum([](float c) BA_INLINE { return c * c; });
      factor = multiply_rounded(divide_rounded(1.0f, square_root(squares + 1e-16f)), factor);
    }
    for (int i = 0; i < size; ++i) values[i] = multiply_rounded(values[i], factor);
  }
};

struct TurboQuantValueScale {
  uint16_t scale;
  uint16_t zero;
};
static_assert(sizeof(TurboQuantValueScale) == 4, "32/head_dim bits a value");

struct TurboQuantValue {
  float levels;                     // 7 or 15
  static constexpr int kGroup = 0;  // the row
  static constexpr bool kBatch = true;

  template <typename Scalar>
  BA_HOST_DEVICE Scalar scale_of(Scalar lo, Scalar hi) const {
    return at_least(divide_rounded(finite_range(lo, hi), levels), 1e-8f);
  }
  template <typename Float>
  BA_HOST_DEVICE Float code_of(Float value, Float scale, Float lo) const {
    return nearest_level(divide_rounded(value - lo, scale), levels);
  }
  template <typename Float>
  BA_HOST_DEVICE static Float value_of(Float code, Float scale, Float zero) {
    return multiply_rounded(code, scale) + zero;
  }

  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    const auto lo = group.minimum();
    const auto scale = scale_of(lo, group.maximum());
    group.map([*this](auto x, auto s, auto least, auto stored, auto zero)
                  BA_INLINE { return value_of(code_of(x, s, least), stored, zero); },
              scale, lo, fp16_saturated(scale), fp16_saturated(lo));
  }

  // codes: [size], one a byte; 0 in a row of NaN.
  BA_HOST_DEVICE TurboQuantValueScale encode(const float* values, int size, uint8_t* codes) const {
    float copy[kLongestGroup] = {};
    for (int i = 0; i < size; ++i) copy[i] = values[i];
    const ScalarGroup group(copy, size);
    const float lo = group.minimum();
    const float scale = scale_of(lo, group.maximum());
    for (int i = 0; i < size; ++i) {
      const float code = code_of(values[i], scale, lo);
      codes[i] = code == code ? static_cast<uint8_t>(code) : uint8_t{0};
    }
    return {fp16_encode(fp16_saturated(scale)), fp16_encode(fp16_saturated(lo))};
  }
  BA_HOST_DEVICE float decode(uint8_t code, TurboQuantValueScale row) const {
    return value_of(static_cast<float>(code), fp16_decode(row.scale), fp16_decode(row.zero));
  }
};

// The codebook for rows of head_dim values, as vLLM computes it: at most 200 Lloyd–Max steps from
// an even grid, integrals by 200 trapezoids, in double. bits: 3 or 4.
TurboQuantKey turboquant_key(int head_dim, int bits, bool norm_correction);

}  // namespace bitalloc
