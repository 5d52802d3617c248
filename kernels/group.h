// The elements that share a scale, as the numerics of a format see them. A format is written once
// against the concept below and runs on every machine: a plain loop (ScalarGroup, the
// specification), vectors (cpu_group.h), threads of a GPU (cuda_group.cuh). C++17, no torch.
//
// A Group holds `size` neighbours of a row; the last group of a row may be shorter than the
// format's. What is found out about it is a `Scalar`. `f` is a function of one element `x`, a float
// or a vector of them, and of `scalars` of the group, each alike.
//   int size()
//   Scalar largest()               largest magnitude; NaN if there is a NaN
//   Scalar largest(f, scalars…)    the same of f(x, scalars…)
//   Scalar minimum(), maximum()    NaN if there is a NaN
//   Scalar sum(f, scalars…)        Σ f(x, scalars…) in float32, as a tree of pairs of neighbours:
//                                  (0+1)+(2+3), …
//   void map(f, scalars…)          x = f(x, scalars…)
// Every one of them gives the same bits on every machine. Lambdas say BA_INLINE after their
// parameters: `[](auto x, auto scale) BA_INLINE { return x * scale; }`.
//
// Scalar is float, so that numerics may branch on it and capture it. Numerics that do neither (a
// choice is `a < b ? x : y`; scalars go through the parameters of f; map() once, last) may say
//   static constexpr bool kBatch = true;
// and run on many groups at once on a CPU, where Scalar is a vector of one float a group (others
// say false).
#pragma once

#include "kernels/numerics.h"

#if defined(__CUDACC__)
#define BA_INLINE
#else
#define BA_INLINE __attribute__((always_inline))
#endif

namespace bitalloc {

constexpr int kLongestGroup = 1024;

// `value` as a Scalar, or as a vector of them.
template <typename Float>
BA_HOST_DEVICE Float spread(float value) {
  return value - Float{};
}

BA_HOST_DEVICE float quiet_nan() { return float_from_bits(kInfinityBits | 0x400000u); }

class ScalarGroup {
 public:
  using Scalar = float;

  // values: [size], size <= kLongestGroup; changed in place.
  BA_HOST_DEVICE ScalarGroup(float* values, int size) : values_(values), size_(size) {}

  BA_HOST_DEVICE int size() const { return size_; }

  template <typename F, typename... Scalars>
  BA_HOST_DEVICE float largest(F f, Scalars... scalars) const {
    uint32_t bits = 0;
    for (int i = 0; i < size_; ++i) {
      const uint32_t own = magnitude_bits(f(values_[i], scalars...));
      bits = own > bits ? own : bits;
    }
    return float_from_bits(bits);
  }
  BA_HOST_DEVICE float largest() const {
    return largest([](float x) BA_INLINE { return x; });
  }

  BA_HOST_DEVICE float minimum() const {
    float least = values_[0];
    for (int i = 0; i < size_; ++i) least = values_[i] < least ? values_[i] : least;
    return largest() <= float_from_bits(kInfinityBits) ? least : quiet_nan();
  }
  BA_HOST_DEVICE float maximum() const {
    float most = values_[0];
    for (int i = 0; i < size_; ++i) most = values_[i] > most ? values_[i] : most;
    return largest() <= float_from_bits(kInfinityBits) ? most : quiet_nan();
  }

  template <typename F, typename... Scalars>
  BA_HOST_DEVICE float sum(F f, Scalars... scalars) const {
    float sums[kLongestGroup];
    sums[0] = 0.0f;
    for (int i = 0; i < size_; ++i) sums[i] = f(values_[i], scalars...);
    for (int step = 1; step < size_; step *= 2) {
      for (int i = 0; i + step < size_; i += 2 * step) sums[i] += sums[i + step];
    }
    return sums[0];
  }

  template <typename F, typename... Scalars>
  BA_HOST_DEVICE void map(F f, Scalars... scalars) {
    for (int i = 0; i < size_; ++i) values_[i] = f(values_[i], scalars...);
  }

 private:
  float* values_;
  int size_;
};

}  // namespace bitalloc
