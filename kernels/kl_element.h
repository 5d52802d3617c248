// The elementwise mathematics of KL, for host and device; the derivation is in kernels/kl.h. C++17.
#pragma once

#include "kernels/numerics.h"

namespace bitalloc {

// e^x to 2 units in the last place for -87 <= x <= 88, branch-free; 0 below (float32 leaves its
// normal range there); NaN stays NaN.
//
// x = n·ln 2 + r, and a degree-6 polynomial of e^r, interpolated at the Chebyshev points of
// |r| <= ln(2)/2 (error 5e-9). From -88 downwards n = -127, whose power of two has all bits 0.
template <typename Float>
BA_HOST_DEVICE Float exp_approximate(Float x) {
  const Float bounded = at_least(x, -88.0f);
  constexpr float kRoundToInteger = 12582912.0f;  // 1.5·2^23: the sum's low bits hold the integer
  const Float shifted = bounded * 1.44269504088896341f + kRoundToInteger;
  const Float n = shifted - kRoundToInteger;
  const Float r = bounded - n * 0.693147180559945309f;
  Float series = r * 1.3933641032e-3f + 8.36914849086e-3f;
  series = series * r + 4.1666465006e-2f;
  series = series * r + 1.66665052604e-1f;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  return series * float_from_bits((float_bits(shifted) + 127u) << 23);
}

// e^x - 1 - x for |x| <= 1/2, to 2 units in the last place: x² times a degree-5 polynomial,
// interpolated at the Chebyshev points (error 3e-8).
template <typename Float>
BA_HOST_DEVICE Float exp_minus_1_minus_x_small(Float x) {
  Float series = x * 1.99448744416e-4f + 1.39821860463e-3f;
  series = series * x + 8.33323613352e-3f;
  series = series * x + 4.166579123e-2f;
  series = series * x + 1.66666668017e-1f;
  series = series * x + 0.500000012161f;
  return series * (x * x);
}

// e^x - 1 - x without cancellation: relative error below 3e-6 everywhere (x <= 88).
template <typename Float>
BA_HOST_DEVICE Float exp_minus_1_minus_x(Float x) {
  const Float large = exp_approximate(x) - 1.0f - x;
  return x * x <= 0.25f ? exp_minus_1_minus_x_small(x) : large;
}

// What one vocabulary entry adds to the two sums of a row.
template <typename Float>
struct KlTerms {
  Float excess;  // p·(e^d' - 1 - d')
  Float drift;   // p·(e^d' - 1)
};

// a, b: logits of reference and trial; log_sum_exp_a: of the reference, rounded to float32; shift:
// the difference of both log-sum-exps, b - a. For |d'| <= 1/2 only.
template <typename Float>
BA_HOST_DEVICE KlTerms<Float> kl_terms_small(Float a, Float b, float log_sum_exp_a, float shift) {
  const Float d = (b - a) - shift;
  const Float p = exp_approximate(a - log_sum_exp_a);
  const Float series = exp_minus_1_minus_x_small(d);
  return {p * series, p * (series + d)};
}

// For every d'. Above 1/2, q = p·e^d' comes from b itself: no overflow where p is tiny, and the
// limit q where p is 0.
template <typename Float>
BA_HOST_DEVICE KlTerms<Float> kl_terms(Float a, Float b, float log_sum_exp_a, float log_sum_exp_b,
                                       float shift) {
  const KlTerms<Float> terms = kl_terms_small(a, b, log_sum_exp_a, shift);
  const Float d = (b - a) - shift;
  const Float p = exp_approximate(a - log_sum_exp_a);
  const Float q = exp_approximate(b - log_sum_exp_b);
  const Float large_drift = q - p;
  const Float large_excess = p == 0.0f ? q : large_drift - p * d;
  const auto small = d * d <= 0.25f;
  return {small ? terms.excess : large_excess, small ? terms.drift : large_drift};
}

}  // namespace bitalloc
