#include "solver/integer_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

namespace bitalloc {
namespace {

constexpr std::int64_t kMaxDenominator = 1'000'000;
constexpr double kFractionTolerance = 1e-15;
constexpr long double kMaxUnits = 0x1p60L;
constexpr double kRelativeTie = 1e-12;

struct Fraction {
  std::int64_t numerator = 0;
  std::int64_t denominator = 1;
};

// The simplest fraction equal to `value` up to rounding, by continued fractions.
std::optional<Fraction> to_fraction(double value) {
  if (value >= 0x1p53) {
    return std::nullopt;
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

struct Whole {
  std::vector<std::int64_t> values;  // value · denominator
  std::int64_t denominator = 1;
};

std::optional<Whole> to_whole(const std::vector<double>& values) {
  Whole whole;
  std::vector<Fraction> fractions;
  for (const double value : values) {
    const auto fraction = to_fraction(value);
    if (!fraction) {
      return std::nullopt;
    }
    fractions.push_back(*fraction);
    whole.denominator = std::lcm(whole.denominator, fraction->denominator);
    if (whole.denominator > kMaxDenominator * kMaxDenominator) {
      return std::nullopt;
    }
  }
  for (const Fraction& fraction : fractions) {
    const std::int64_t factor = whole.denominator / fraction.denominator;
    if (static_cast<long double>(fraction.numerator) * factor > kMaxUnits) {
      return std::nullopt;
    }
    whole.values.push_back(fraction.numerator * factor);
  }
  return whole;
}

// width·bits in units of 1 / (denominators), [site·candidate]; nothing when that leaves 60 bits.
std::optional<std::vector<std::int64_t>> exact_weights(const Problem& problem, long double* unit) {
  std::vector<double> flat_bits;
  for (const auto& row : problem.bits) {
    flat_bits.insert(flat_bits.end(), row.begin(), row.end());
  }
  const auto bits = to_whole(flat_bits);
  const auto width = to_whole(problem.width);
  if (!bits || !width) {
    return std::nullopt;
  }
  std::vector<std::int64_t> weights;
  long double heaviest = 0;
  for (std::size_t i = 0, k = 0; i < problem.num_sites(); ++i) {
    long double heaviest_here = 0;
    for (std::size_t j = 0; j < problem.bits[i].size(); ++j, ++k) {
      const long double product = static_cast<long double>(bits->values[k]) * width->values[i];
      heaviest_here = std::max(heaviest_here, product);
      if (heaviest + heaviest_here > kMaxUnits) {
        return std::nullopt;
      }
      weights.push_back(bits->values[k] * width->values[i]);
    }
    heaviest += heaviest_here;
  }
  *unit = 1 / (static_cast<long double>(bits->denominator) * width->denominator);
  return weights;
}

std::vector<std::int64_t> rounded_weights(const Problem& problem, long double* unit) {
  long double heaviest = 0;
  for (std::size_t i = 0; i < problem.num_sites(); ++i) {
    heaviest += problem.width[i] * static_cast<long double>(*std::max_element(
                                       problem.bits[i].begin(), problem.bits[i].end()));
  }
  *unit = heaviest / kMaxUnits;
  std::vector<std::int64_t> weights;
  for (std::size_t i = 0; i < problem.num_sites(); ++i) {
    for (const double bits : problem.bits[i]) {
      weights.push_back(static_cast<std::int64_t>(
          std::roundl(static_cast<long double>(problem.width[i]) * bits / *unit)));
    }
  }
  return weights;
}

std::vector<Item> without_dominated(std::vector<Item> items) {
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    if (a.weight != b.weight) {
      return a.weight < b.weight;
    }
    return a.score != b.score ? a.score < b.score : a.candidate < b.candidate;
  });
  std::vector<Item> kept;
  for (const Item& item : items) {
    if (kept.empty() || item.score < kept.back().score) {
      kept.push_back(item);
    }
  }
  return kept;
}

// Takes every site's lightest weight off and divides by the common divisor of what is left.
void shrink_weights(IntegerProblem* result) {
  std::int64_t divisor = 0;
  long double lightest_sum = 0;
  for (auto& items : result->all) {
    std::int64_t lightest = std::numeric_limits<std::int64_t>::max();
    for (const Item& item : items) {
      lightest = std::min(lightest, item.weight);
    }
    lightest_sum += lightest;
    for (Item& item : items) {
      item.weight -= lightest;
      divisor = std::gcd(divisor, item.weight);
    }
  }
  divisor = std::max<std::int64_t>(divisor, 1);
  for (auto& items : result->all) {
    for (Item& item : items) {
      item.weight /= divisor;
    }
  }
  result->base = lightest_sum * result->unit;
  result->unit *= divisor;
}

}  // namespace

IntegerProblem to_integers(const Problem& problem) {
  IntegerProblem result;
  auto weights = exact_weights(problem, &result.unit);
  result.exact_weights = weights.has_value();
  if (!weights) {
    weights = rounded_weights(problem, &result.unit);
  }
  long double offset_magnitude = 0;
  for (std::size_t i = 0, k = 0; i < problem.num_sites(); ++i) {
    const double lowest = *std::min_element(problem.score[i].begin(), problem.score[i].end());
    result.total_width += problem.width[i];
    result.score_offset += lowest;
    offset_magnitude += std::fabs(lowest);
    std::vector<Item> items;
    for (std::size_t j = 0; j < problem.bits[i].size(); ++j, ++k) {
      items.push_back({static_cast<int>(j), (*weights)[k], problem.score[i][j] - lowest});
    }
    result.all.push_back(std::move(items));
  }
  result.score_noise = static_cast<double>(offset_magnitude * 0x1p-51L);
  shrink_weights(&result);
  for (const auto& items : result.all) {
    result.efficient.push_back(without_dominated(items));
    result.max_weight += result.efficient.back().back().weight;
  }
  return result;
}

std::int64_t capacity_of(const IntegerProblem& problem, double effective_bits) {
  const long double budget = static_cast<long double>(effective_bits) * problem.total_width;
  const long double room = budget + kBudgetTolerance * std::fabs(budget) - problem.base;
  if (room < 0) {
    return -1;
  }
  const long double units = std::floor(room / problem.unit);
  return units >= problem.max_weight ? problem.max_weight : static_cast<std::int64_t>(units);
}

double tie_tolerance(const IntegerProblem& problem, double score) {
  return kRelativeTie * score + problem.score_noise;
}

}  // namespace bitalloc
