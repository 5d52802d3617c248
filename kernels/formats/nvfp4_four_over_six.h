// NVFP4 with adaptive block scales ("Four over Six", arXiv 2512.02010): the layout of nvfp4.h, 4.5
// bits a value, but a block's largest magnitude may become 4 instead of 6 where that makes the
// block's error smaller.
//
//   s6, s4: the E4M3 scales under which the largest magnitude bmax becomes 6, or 4
//   the block takes s4 where error(s4) < error(s6), else s6; the error is, by `rule`, the sum of
//   squared differences (mse), the sum of their magnitudes (mae), or the largest (abs_max)
//
// Two variants:
// Nvfp4FourOverSixCache, vLLM's cache format `nvfp4_4over6` under a given k_scale g:
//   s6 = E4M3(bmax/(6g)), s4 = E4M3(bmax/(4g)); elements and values as in nvfp4.h, kServed
// Nvfp4FourOverSixStatic, the package fouroversix 1.0.5 (quantize/pytorch/reference.py); N = 256
// leaves room for s4 (N = 448 uses the whole range, where s4 saturates near the tensor's maximum):
//   E = 6N/amax, D = 1/E;  s6 = E4M3((bmax/6)·E), s4 = E4M3(((bmax/6)·E)·1.5)
//   c_i = E2M1(x_i · (1/(D·s))), 0 where s is 0;  y_i = ((E2M1(c_i)·s)·amax)/(6N)
// Errors are float32 sums in another order than the package's: blocks whose two errors agree to
// rounding may choose otherwise. NaN and infinities as in nvfp4.h.
#pragma once

#include "kernels/formats/nvfp4.h"
#include "kernels/formats/parameters.h"
#include "kernels/group.h"

namespace bitalloc {

// Quantizes a group under the better of two scales. Numerics give
//   reciprocal(scale) and value(code, scale), of a Scalar or of elements.
template <typename Numerics, typename Group, typename Scalar>
BA_HOST_DEVICE void quantize_four_over_six(const Numerics& numerics, BlockError rule, Group& group,
                                           Scalar s6, Scalar s4) {
  const Scalar r6 = numerics.reciprocal(s6);
  const Scalar r4 = numerics.reciprocal(s4);
  const auto stored = [=](auto x, auto s, auto r) BA_INLINE {
    return numerics.value(e2m1_round(multiply_rounded(x, r)), s);
  };
  Scalar error6, error4;
  if (rule == BlockError::kMse) {
    const auto squared = [=](auto x, auto s, auto r) BA_INLINE {
      const auto difference = stored(x, s, r) - x;
      return multiply_rounded(difference, difference);
    };
    error6 = group.sum(squared, s6, r6);
    error4 = group.sum(squared, s4, r4);
  } else {
    const auto difference = [=](auto x, auto s, auto r)
                                BA_INLINE { return magnitude_of(stored(x, s, r) - x); };
    if (rule == BlockError::kMae) {
      error6 = group.sum(difference, s6, r6);
      error4 = group.sum(difference, s4, r4);
    } else {
      error6 = group.largest(difference, s6, r6);
      error4 = group.largest(difference, s4, r4);
    }
  }
  const Scalar scale = error4 < error6 ? s4 : s6;
  const Scalar reciprocal = error4 < error6 ? r4 : r6;
  group.map(stored, scale, reciprocal);
}

struct Nvfp4FourOverSixCache {
  float global_scale;
  BlockError rule;
  static constexpr int kGroup = kNvfp4BlockSize;
  static constexpr bool kBatch = true;

  template <typename Scalar>
  BA_HOST_DEVICE Scalar reciprocal(Scalar scale) const {
    return nvfp4_served_reciprocal(scale, global_scale);
  }
  template <typename Float>
  BA_HOST_DEVICE Float value(Float code, Float scale) const {
    return multiply_rounded(multiply_rounded(code, scale), global_scale);
  }

  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    const auto bmax = group.largest();
    const auto s4 = e4m3_round(divide_rounded(bmax, multiply_rounded(4.0f, global_scale)));
    quantize_four_over_six(*this, rule, group, nvfp4_block_scale(bmax, global_scale), s4);
  }
};

struct Nvfp4FourOverSixStatic {
  float amax;
  float normaliser;  // N
  BlockError rule;
  static constexpr int kGroup = kNvfp4BlockSize;
  static constexpr bool kBatch = true;

  template <typename Scalar>
  BA_HOST_DEVICE Scalar reciprocal(Scalar scale) const {
    const float encode = divide_rounded(multiply_rounded(kE2m1Max, normaliser), amax);
    const float decode = divide_rounded(1.0f, encode);
    const Scalar r = divide_rounded(spread<Scalar>(1.0f), multiply_rounded(scale, decode));
    return scale == 0.0f ? Scalar{} : r;
  }
  template <typename Float>
  BA_HOST_DEVICE Float value(Float code, Float scale) const {
    const Float scaled = multiply_rounded(multiply_rounded(code, scale), amax);
    return divide_rounded(scaled, multiply_rounded(kE2m1Max, normaliser));
  }

  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    const float encode = divide_rounded(multiply_rounded(kE2m1Max, normaliser), amax);
    const auto scaled = multiply_rounded(divide_rounded(group.largest(), kE2m1Max), encode);
    quantize_four_over_six(*this, rule, group, e4m3_round(scaled),
                           e4m3_round(multiply_rounded(scaled, 1.5f)));
  }
};

}  // namespace bitalloc
