#include "solver/whole_numbers.h"

#include <cmath>
#include <numeric>

namespace bitalloc {
namespace {

constexpr std::int64_t kMaxDenominator = 1'000'000;
constexpr double kFractionTolerance = 1e-15;

struct Fraction {
  std::int64_t numerator = 0;
  std::int64_t denominator = 1;
};

// The simplest fraction equal to `value` ≥ 0 up to rounding, by continued fractions.
std::optional<Fraction> to_fraction(double value) {
  if (value >= 0x1p53) {
    return std::nullopt;
  }
  if (value == std::floor(value)) {
    return Fraction{static_cast<std::int64_t>(value), 1};
  }
  long double rest = value;
  std::int64_t p0 = 0, q0 = 1, p1 = 1, q1 = 0;
  for (int step = 0; step < 40; ++step) {
    const long double whole = std::floor(rest);
    if (whole > 0x1p53L) {
      return std::nullopt;
    }
    const long double p = whole * p1 + p0;
    const long double q = whole * q1 + q0;
    if (q > kMaxDenominator || p > 0x1p62L) {
      return std::nullopt;
    }
    p0 = p1, q0 = q1;
    p1 = static_cast<std::int64_t>(p), q1 = static_cast<std::int64_t>(q);
    if (std::fabs(p / q - value) <= kFractionTolerance * value) {
      return Fraction{p1, q1};
    }
    rest = 1 / (rest - whole);
  }
  return std::nullopt;
}

std::optional<WholeWeights> exact_weights(const std::vector<double>& values) {
  auto whole = to_whole(values);
  if (!whole) {
    return std::nullopt;
  }
  long double sum = 0;
  for (const std::int64_t value : whole->values) {
    sum += std::fabs(static_cast<long double>(value));
  }
  if (sum > kMaxUnits) {
    return std::nullopt;
  }
  return WholeWeights{std::move(whole->values), 1.0L / whole->denominator, true};
}

}  // namespace

std::optional<Whole> to_whole(const std::vector<double>& values) {
  Whole whole;
  std::vector<Fraction> fractions;
  fractions.reserve(values.size());
  for (const double value : values) {
    auto fraction = to_fraction(std::fabs(value));
    if (!fraction) {
      return std::nullopt;
    }
    if (value < 0) {
      fraction->numerator = -fraction->numerator;
    }
    fractions.push_back(*fraction);
    if (whole.denominator % fraction->denominator != 0) {
      whole.denominator = std::lcm(whole.denominator, fraction->denominator);
    }
    if (whole.denominator > kMaxDenominator * kMaxDenominator) {
      return std::nullopt;
    }
  }
  whole.values.reserve(values.size());
  for (const Fraction& fraction : fractions) {
    const std::int64_t factor = whole.denominator / fraction.denominator;
    if (std::fabs(static_cast<long double>(fraction.numerator)) * factor > kMaxUnits) {
      return std::nullopt;
    }
    whole.values.push_back(fraction.numerator * factor);
  }
  return whole;
}

WholeWeights to_whole_weights(const std::vector<double>& values) {
  if (auto exact = exact_weights(values)) {
    return *std::move(exact);
  }
  WholeWeights rounded;
  rounded.exact = false;
  long double sum = 0;
  for (const double value : values) {
    sum += std::fabs(static_cast<long double>(value));
  }
  rounded.unit = sum / kMaxUnits;
  for (const double value : values) {
    rounded.values.push_back(
        static_cast<std::int64_t>(std::roundl(static_cast<long double>(value) / rounded.unit)));
  }
  return rounded;
}

}  // namespace bitalloc
