// 8-bit integers with a float32 scale for every token and head: vLLM's `int8_per_token_head`.
// 8 + 32/head_dim bits a value.
//
//   Row of head_dim values: [c0][c1] … [c_{d-1}] [scale: 4 bytes]      two's complement
//   scale = max(amax/127, 1e-6),  c_i = round(x_i/scale) in −127 … 127,  value_i = c_i·scale
//
// NaN or an infinite element anywhere makes the row NaN: found, not scored.
#pragma once

#include "kernels/formats/fp8_token_head.h"
#include "kernels/formats/mx.h"
#include "kernels/group.h"

namespace bitalloc {

constexpr float kInt8Max = 127.0f;

struct Int8TokenHead {
  static constexpr int kGroup = 0;  // the row
  static constexpr bool kBatch = true;

  template <typename Scalar>
  BA_HOST_DEVICE static Scalar scale_of(Scalar amax) {
    return at_least(divide_rounded(amax, kInt8Max), kSmallestTokenHeadScale);
  }
  template <typename Float>
  BA_HOST_DEVICE static Float code_of(Float value, Float scale) {
    const Float steps = divide_rounded(value, scale);
    return with_sign_of(round_whole(at_most(magnitude_of(steps), kInt8Max)), value);
  }

  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    const auto scale = scale_of(group.largest());
    group.map([](auto x, auto s) BA_INLINE { return multiply_rounded(code_of(x, s), s); }, scale);
  }
};

}  // namespace bitalloc
