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
// The first is vLLM's search (nvfp4_kv_cache_kernels.cu, #45187; mse only) in kServed's arithmetic:
// with its own reciprocals and order of additions, 1 block in 3,000 takes the other scale.
// N = 448 is the second's code with 448 for its 256 (TransformerEngine and FlashInfer have both).
// Errors are float32 sums in another order than the package's: blocks whose two errors agree to
// rounding may choose otherwise. Squares of values above 1e19 overflow: such blocks take s6. As in
// the package, values overflow where amax exceeds FLT_MAX/(6N). An amax below 6N/FLT_MAX counts as
// 1. NaN and infinities as in nvfp4.h.
#pragma once

#include "kernels/formats/nvfp4.h"
#include "kernels/formats/parameters.h"
#include "kernels/group.h"

namespace bitalloc {

// s4 where the group's error under it is smaller than under s6, else s6.
template <typename Dialect, typename Group, typename Scalar>
BA_HOST_DEVICE Scalar better_scale(const Dialect& dialect, BlockError rule, const Group& group,
                                   Scalar s6, Scalar s4) {
  const Scalar f6 = dialect.factor(s6);
  const Scalar f4 = dialect.factor(s4);
  const auto difference = [=](auto x, auto s, auto f)
                              BA_INLINE { return dialect.value(dialect.code(x, f), s, f) - x; };
  const auto squared = [=](auto x, auto s, auto f) BA_INLINE {
    const auto d = difference(x, s, f);
    return multiply_rounded(d, d);
  };
  const auto magnitude = [=](auto x, auto s, auto f)
                             BA_INLINE { return magnitude_of(difference(x, s, f)); };
  Scalar error6, error4;
  if (rule == BlockError::kMse) {
    error6 = group.sum(squared, s6, f6);
    error4 = group.sum(squared, s4, f4);
  } else if (rule == BlockError::kMae) {
    error6 = group.sum(magnitude, s6, f6);
    error4 = group.sum(magnitude, s4, f4);
  } else {
    error6 = group.largest(magnitude, s6, f6);
    error4 = group.largest(magnitude, s4, f4);
  }
  return error4 < error6 ? s4 : s6;
}

struct Nvfp4FourOverSixCache {
  float global_scale;
  BlockError rule;
  static constexpr int kGroup = kNvfp4BlockSize;
  static constexpr bool kBatch = true;

  template <typename Group>
  BA_HOST_DEVICE typename Group::Scalar block_scale(const Group& group) const {
    const auto bmax = group.largest();
    const auto s4 = e4m3_round(divide_rounded(bmax, multiply_rounded(4.0f, global_scale)));
    return better_scale(*this, rule, group, nvfp4_block_scale(bmax, global_scale), s4);
  }
  template <typename Scalar>
  BA_HOST_DEVICE Scalar factor(Scalar scale) const {
    return nvfp4_served_reciprocal(scale, global_scale);
  }
  template <typename Float>
  BA_HOST_DEVICE Float code(Float x, Float factor) const {
    return e2m1_round(multiply_rounded(x, factor));
  }
  template <typename Float>
  BA_HOST_DEVICE Float value(Float code, Float scale, Float /*factor*/) const {
    return multiply_rounded(multiply_rounded(code, scale), global_scale);
  }
  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    nvfp4_fake_quantize(*this, group);
  }
};

struct Nvfp4FourOverSixStatic {
  float amax;
  float normaliser;  // N
  BlockError rule;
  static constexpr int kGroup = kNvfp4BlockSize;
  static constexpr bool kBatch = true;

  BA_HOST_DEVICE float encode_scale() const {  // E
    return divide_rounded(multiply_rounded(kE2m1Max, normaliser), amax);
  }

  template <typename Group>
  BA_HOST_DEVICE typename Group::Scalar block_scale(const Group& group) const {
    const auto scaled = multiply_rounded(divide_rounded(group.largest(), kE2m1Max), encode_scale());
    return better_scale(*this, rule, group, e4m3_round(scaled),
                        e4m3_round(multiply_rounded(scaled, 1.5f)));
  }
  template <typename Scalar>
  BA_HOST_DEVICE Scalar factor(Scalar scale) const {
    const float decode = divide_rounded(1.0f, encode_scale());
    const Scalar r = divide_rounded(spread<Scalar>(1.0f), multiply_rounded(scale, decode));
    return scale == 0.0f ? Scalar{} : r;
  }
  template <typename Float>
  BA_HOST_DEVICE Float code(Float x, Float factor) const {
    return e2m1_round(multiply_rounded(x, factor));
  }
  template <typename Float>
  BA_HOST_DEVICE Float value(Float code, Float scale, Float /*factor*/) const {
    const Float scaled = multiply_rounded(multiply_rounded(code, scale), amax);
    return divide_rounded(scaled, multiply_rounded(kE2m1Max, normaliser));
  }
  template <typename Group>
  BA_HOST_DEVICE void fake_quantize(Group& group) const {
    nvfp4_fake_quantize(*this, group);
  }
};

// Of a calibrated tensor.
BA_HOST_DEVICE Nvfp4FourOverSixStatic nvfp4_four_over_six_static(float amax, float normaliser,
                                                                 BlockError rule) {
  constexpr float kLargest = 3.402823466e+38f;
  const bool tiny = amax <= kE2m1Max * normaliser / kLargest;
  return Nvfp4FourOverSixStatic{tiny ? 1.0f : amax, normaliser, rule};
}

}  // namespace bitalloc
