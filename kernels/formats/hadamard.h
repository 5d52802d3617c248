// The normalised Walsh–Hadamard transform H of a row, n a power of two: H·H = 1, so that it is its
// own inverse. Keys rotated by H before they are stored, and queries with them, give the same
// products; a row's outliers spread over all of its channels. (QuaRot, arXiv 2404.00456; here
// without random signs.)
//
// In float32, in one order: butterflies at distance 1, 2, 4, …, then a product with 1/√n; the same
// bits on every machine.
#pragma once

#include <cmath>

#include "kernels/group.h"

namespace bitalloc {

constexpr bool is_hadamard_size(int64_t n) {
  return n > 0 && n <= kLongestGroup && (n & (n - 1)) == 0;
}

// 1/√n in float32.
inline float hadamard_factor(int64_t n) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
}

// The butterfly of elements a and a + step.
BA_HOST_DEVICE void hadamard_butterfly(float* row, int a, int step) {
  const float low = row[a];
  const float high = row[a + step];
  row[a] = low + high;
  row[a + step] = low - high;
}

// row: [n], changed in place.
BA_HOST_DEVICE void hadamard_row(float* row, int n, float factor) {
  for (int step = 1; step < n; step *= 2) {
    for (int begin = 0; begin < n; begin += 2 * step) {
      for (int k = 0; k < step; ++k) hadamard_butterfly(row, begin + k, step);
    }
  }
  for (int i = 0; i < n; ++i) row[i] = multiply_rounded(row[i], factor);
}

}  // namespace bitalloc
