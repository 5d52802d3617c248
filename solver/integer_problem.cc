#include "solver/integer_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "solver/whole_numbers.h"

namespace bitalloc {
namespace {

constexpr double kRelativeTie = 1e-12;

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

WholeWeights budget_weights(const Problem& problem) {
  WholeWeights result;
  auto weights = exact_weights(problem, &result.unit);
  result.exact = weights.has_value();
  if (!weights) {
    weights = rounded_weights(problem, &result.unit);
  }
  result.values = *std::move(weights);
  return result;
}

void finish(IntegerProblem* problem) {
  shrink_weights(problem);
  problem->efficient.clear();
  problem->max_weight = 0;
  for (const auto& items : problem->all) {
    problem->efficient.push_back(without_dominated(items));
    problem->max_weight += problem->efficient.back().back().weight;
  }
}

IntegerProblem to_integers(const Problem& problem) {
  IntegerProblem result;
  const WholeWeights weights = budget_weights(problem);
  result.unit = weights.unit;
  result.exact_weights = weights.exact;
  long double offset_magnitude = 0;
  for (std::size_t i = 0, k = 0; i < problem.num_sites(); ++i) {
    const double lowest = *std::min_element(problem.score[i].begin(), problem.score[i].end());
    result.total_width += problem.width[i];
    result.score_offset += lowest;
    offset_magnitude += std::fabs(lowest);
    std::vector<Item> items;
    for (std::size_t j = 0; j < problem.bits[i].size(); ++j, ++k) {
      items.push_back({static_cast<int>(j), weights.values[k], problem.score[i][j] - lowest});
    }
    result.all.push_back(std::move(items));
  }
  result.score_noise = static_cast<double>(offset_magnitude * 0x1p-51L);
  finish(&result);
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
