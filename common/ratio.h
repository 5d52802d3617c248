// A ratio of two sums over sequences, and how sure it is: the one definition of a standard error.
#pragma once

#include <optional>
#include <span>

namespace bitalloc {

struct Ratio {
  double value = 0;  // Σ numerator / Σ denominator; 0 where the denominators sum to 0
  // Of `value` when the sequences are a sample of many; nothing for fewer than two.
  std::optional<double> standard_error;
};

// The ratio estimator with its linearised error, for n sequences of numerators x (nats) and
// denominators t (tokens), R = Σx / Σt:
//   standard_error = √(n/(n − 1) · Σ(x − R·t)²) / Σt
// (Cochran, Sampling Techniques, 3rd ed., 1977, eq. 6.13 without the finite population correction).
// REQUIRES: equally many of both.
Ratio ratio(std::span<const double> numerators, std::span<const double> denominators);

}  // namespace bitalloc
