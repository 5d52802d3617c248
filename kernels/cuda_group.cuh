// A group (group.h) over threads of a GPU: warps of 32 that all arrive at every call. Each of the
// `threads` neighbours of a warp that share a group holds some of its elements; the sums form the
// same tree of neighbours as on the CPU.
#pragma once

#include "kernels/group.h"

namespace bitalloc {

// `kPiece` adjoining elements a thread, `kThreads` neighbouring threads a group; all elements are
// there.
template <int kPiece, int kThreads>
class PieceGroup {
 public:
  using Scalar = float;

  __device__ int size() const { return kPiece * kThreads; }

  template <typename F, typename... Scalars>
  __device__ float largest(F f, Scalars... scalars) const {
    uint32_t bits = 0;
    for (int i = 0; i < kPiece; ++i) bits = max(bits, magnitude_bits(f(values[i], scalars...)));
    for (int step = 1; step < kThreads; step *= 2) {
      bits = max(bits, __shfl_xor_sync(0xFFFFFFFFu, bits, step));
    }
    return float_from_bits(bits);
  }
  __device__ float largest() const {
    return largest([](float x) { return x; });
  }

  __device__ float minimum() const { return least(1.0f); }
  __device__ float maximum() const { return -least(-1.0f); }

  template <typename F, typename... Scalars>
  __device__ float sum(F f, Scalars... scalars) const {
    float sums[kPiece];
    for (int i = 0; i < kPiece; ++i) sums[i] = f(values[i], scalars...);
    for (int step = 1; step < kPiece; step *= 2) {
      for (int i = 0; i + step < kPiece; i += 2 * step)
        sums[i] = __fadd_rn(sums[i], sums[i + step]);
    }
    for (int step = 1; step < kThreads; step *= 2) {
      sums[0] = __fadd_rn(sums[0], __shfl_xor_sync(0xFFFFFFFFu, sums[0], step));
    }
    return sums[0];
  }

  template <typename F, typename... Scalars>
  __device__ void map(F f, Scalars... scalars) {
    for (int i = 0; i < kPiece; ++i) values[i] = f(values[i], scalars...);
  }

  float values[kPiece];

 private:
  __device__ float least(float sign) const {
    float least = sign * values[0];
    for (int i = 1; i < kPiece; ++i) least = fminf(least, sign * values[i]);
    for (int step = 1; step < kThreads; step *= 2) {
      least = fminf(least, __shfl_xor_sync(0xFFFFFFFFu, least, step));
    }
    return largest() <= float_from_bits(kInfinityBits) ? least : sign * quiet_nan();
  }
};

// Any size up to kLongestGroup: thread `lane` of a warp holds elements lane, lane + 32, …
class WarpGroup {
 public:
  using Scalar = float;
  static constexpr int kWarp = 32;

  __device__ WarpGroup(int size, int lane) : size_(size), lane_(lane) {}

  __device__ int size() const { return size_; }
  __device__ int first() const { return lane_; }

  template <typename F, typename... Scalars>
  __device__ float largest(F f, Scalars... scalars) const {
    uint32_t bits = 0;
    for (int i = 0; holds(i); ++i) bits = max(bits, magnitude_bits(f(values[i], scalars...)));
    for (int step = 1; step < kWarp; step *= 2) {
      bits = max(bits, __shfl_xor_sync(0xFFFFFFFFu, bits, step));
    }
    return float_from_bits(bits);
  }
  __device__ float largest() const {
    return largest([](float x) { return x; });
  }

  __device__ float minimum() const { return least(1.0f); }
  __device__ float maximum() const { return -least(-1.0f); }

  template <typename F, typename... Scalars>
  __device__ float sum(F f, Scalars... scalars) const {
    const int parts = (size_ + kWarp - 1) / kWarp;
    float sums[kLongestGroup / kWarp];
    for (int i = 0; i < parts; ++i) {
      sums[i] = holds(i) ? f(values[i], scalars...) : 0.0f;
      for (int step = 1; step < kWarp; step *= 2) {
        sums[i] = __fadd_rn(sums[i], __shfl_xor_sync(0xFFFFFFFFu, sums[i], step));
      }
    }
    for (int step = 1; step < parts; step *= 2) {
      for (int i = 0; i + step < parts; i += 2 * step) sums[i] = __fadd_rn(sums[i], sums[i + step]);
    }
    return sums[0];
  }

  template <typename F, typename... Scalars>
  __device__ void map(F f, Scalars... scalars) {
    for (int i = 0; holds(i); ++i) values[i] = f(values[i], scalars...);
  }

  __device__ bool holds(int i) const { return lane_ + i * kWarp < size_; }

  float values[kLongestGroup / kWarp];

 private:
  __device__ float least(float sign) const {
    float least = float_from_bits(kInfinityBits);
    for (int i = 0; holds(i); ++i) least = fminf(least, sign * values[i]);
    for (int step = 1; step < kWarp; step *= 2) {
      least = fminf(least, __shfl_xor_sync(0xFFFFFFFFu, least, step));
    }
    return largest() <= float_from_bits(kInfinityBits) ? least : sign * quiet_nan();
  }

  int size_;
  int lane_;
};

}  // namespace bitalloc
