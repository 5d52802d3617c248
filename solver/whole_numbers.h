// Doubles as whole numbers of a common unit, so that sums and comparisons of weights are exact.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace bitalloc {

inline constexpr long double kMaxUnits = 0x1p60L;

struct Whole {
  std::vector<std::int64_t> values;  // value · denominator
  std::int64_t denominator = 1;
};

// Every value as a fraction of a denominator up to 10^6 (to 1e-15 relative: decimals count as what
// they were written for). Nothing when one is not, or when a product leaves 60 bits. Finite values.
std::optional<Whole> to_whole(const std::vector<double>& values);

struct WholeWeights {
  std::vector<std::int64_t> values;  // in units; Σ |values| ≤ 2^60 or so
  long double unit = 1;
  bool exact = true;  // false: rounded to 2^-60 of Σ |values|
};

WholeWeights to_whole_weights(const std::vector<double>& values);

}  // namespace bitalloc
