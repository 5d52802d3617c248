// FP8 E4M3 with a float32 scale for every token and head. 8 + 32/head_dim bits a value.
//
//   Row of head_dim values: [c0][c1] … [c_{d-1}] [scale: 4 bytes]
//   scale = max(amax/448, 1e-6),  c_i = E4M3(x_i · (1/scale)),  value_i = c_i · scale
//
// What vLLM calls `fp8_per_token_head` (triton_reshape_and_cache_flash.py, since #38378): scales
// are dynamic, nothing is calibrated. It multiplies with the reciprocal, and so do we: dividing
// gives another code for 1 element in 2,000 (bfloat16 inputs). Triton's own 1/scale may be off in
// its last bit; that moves ties of the E4M3 grid only.
// NaN anywhere in the row makes the scale NaN, and so all of it. An infinite element makes the
// scale infinite: values become 0·inf = NaN, so that it is found, not scored.
#pragma once

#include "kernels/formats/fp8_e4m3.h"
#include "kernels/group.h"

namespace bitalloc {

constexpr float kSmallestTokenHeadScale = 1e-6f;

BA_HOST_DEVICE float fp8_token_head_scale(float amax) {
  return at_least(divide_rounded(amax, kE4m3Max), kSmallestTokenHeadScale);
}

// The code of a value, as a value. `reciprocal`: 1/scale.
template <typename Float, typename Factor>
BA_HOST_DEVICE Float fp8_token_head_round(Float value, Factor reciprocal) {
  return e4m3_round(multiply_rounded(value, reciprocal));
}

struct Fp8TokenHead {
  static constexpr int kGroup = 0;  // the row
  static constexpr bool kBatch = false;

  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    const float scale = fp8_token_head_scale(group.largest());
    group.map([](auto x, auto r, auto s)
                  BA_INLINE { return multiply_rounded(fp8_token_head_round(x, r), s); },
              divide_rounded(1.0f, scale), scale);
  }
};

// codes: [size]; returns the scale.
BA_HOST_DEVICE float fp8_token_head_encode(const float* values, int size, Fp8E4m3* codes) {
  uint32_t largest = 0;
  for (int i = 0; i < size; ++i) {
    const uint32_t own = magnitude_bits(values[i]);
    largest = own > largest ? own : largest;
  }
  const float scale = fp8_token_head_scale(float_from_bits(largest));
  const float reciprocal = divide_rounded(1.0f, scale);
  for (int i = 0; i < size; ++i) {
    codes[i] = e4m3_encode(fp8_token_head_round(values[i], reciprocal));
  }
  return scale;
}

BA_HOST_DEVICE float fp8_token_head_decode(Fp8E4m3 code, float scale) {
  return multiply_rounded(e4m3_decode(code), scale);
}

}  // namespace bitalloc
