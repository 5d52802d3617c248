// For tests: rows, their codes and what they come back as (tests/oracle/int_formats.*), and values
// of every kind.
#pragma once

#include <cmath>
#include <limits>
#include <random>

#include "kernels/oracle_cases.h"

namespace bitalloc {

struct PackedRows {
  std::string format, name;
  int bits = 0, rows = 0, head_dim = 0;
  int64_t input = 0, codes = 0, metadata = 0, output = 0;

  int64_t count() const { return int64_t{rows} * head_dim; }
};

inline std::vector<PackedRows> packed_rows(const std::string& format) {
  std::ifstream file(oracle_path("int_formats.txt"));
  std::vector<PackedRows> found;
  PackedRows c;
  while (file >> c.format >> c.bits >> c.name >> c.rows >> c.head_dim >> c.input >> c.codes >>
         c.metadata >> c.output) {
    if (c.format == format) found.push_back(c);
  }
  return found;
}

template <typename Value>
std::vector<Value> packed_values(int64_t offset, int64_t count) {
  return read_tensor<Value>("int_formats", offset, count);
}

// Normal, of every exponent, constant, of zeros; a few rows hold a special value.
inline std::vector<float> any_row(int size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-149, 127), place(0, size - 1);
  std::vector<float> row(size, seed % 5 == 3 ? normal(random) : 0.0f);
  if (seed % 5 < 3) {
    const int common = exponent(random);
    for (float& x : row) {
      const float bounded = std::clamp(normal(random), -1.9f, 1.9f);
      x = seed % 5 == 0 ? bounded : std::ldexp(bounded, seed % 5 == 1 ? common : exponent(random));
    }
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (seed % 7 == 0) row[place(random)] = std::numeric_limits<float>::quiet_NaN();
  if (seed % 11 == 0) row[place(random)] = seed % 2 == 0 ? kInfinity : -kInfinity;
  return row;
}

inline bool all_finite(const std::vector<float>& row) {
  for (const float x : row) {
    if (!std::isfinite(x)) return false;
  }
  return true;
}

// Equal bit for bit, where all NaN are one.
inline bool same_number(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : float_bits(a) == float_bits(b);
}

}  // namespace bitalloc
