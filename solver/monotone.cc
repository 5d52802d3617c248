#include "solver/monotone.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace bitalloc {
namespace {

constexpr double kSmallestErrorShare = 1e-3;  // of the site's largest standard error

struct Block {
  double sum = 0;  // Σ weight·score
  double weight = 0;
  std::size_t count = 0;

  double mean() const { return sum / weight; }
};

// By growing bits; within equal bits by falling score, so that they are no violation.
std::vector<std::size_t> falling_order(const std::vector<double>& bits,
                                       const std::vector<double>& score) {
  std::vector<std::size_t> order(bits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return bits[a] != bits[b] ? bits[a] < bits[b] : score[a] > score[b];
  });
  return order;
}

std::vector<double> site_weights(const Samples& samples, std::size_t site) {
  std::vector<double> errors;
  for (const auto& sums : samples.sums[site]) {
    errors.push_back(ratio(sums, samples.tokens).standard_error.value_or(0));
  }
  const double largest = *std::max_element(errors.begin(), errors.end());
  if (largest <= 0) {
    return std::vector<double>(errors.size(), 1.0);
  }
  std::vector<double> weights;
  for (const double error : errors) {
    const double share = std::max(error / largest, kSmallestErrorShare);
    weights.push_back(1 / (share * share));
  }
  return weights;
}

}  // namespace

std::vector<Violation> violations(const Problem& problem, const Samples& samples, double errors) {
  std::vector<Violation> found;
  for (std::size_t i = 0; i < problem.num_sites(); ++i) {
    const int count = static_cast<int>(problem.bits[i].size());
    for (int more = 0; more < count; ++more) {
      for (int fewer = 0; fewer < count; ++fewer) {
        if (problem.bits[i][more] <= problem.bits[i][fewer]) {
          continue;
        }
        const Ratio excess = difference_of(samples, i, more, fewer);
        if (excess.standard_error && excess.value > 0 &&
            excess.value > errors * *excess.standard_error) {
          found.push_back({i, more, fewer, excess.value, *excess.standard_error});
        }
      }
    }
  }
  return found;
}

std::vector<double> falling_fit(const std::vector<double>& bits, const std::vector<double>& score,
                                const std::vector<double>& weight) {
  const auto order = falling_order(bits, score);
  std::vector<Block> blocks;
  for (const std::size_t j : order) {
    blocks.push_back({weight[j] * score[j], weight[j], 1});
    while (blocks.size() >= 2 && blocks[blocks.size() - 2].mean() < blocks.back().mean()) {
      const Block last = blocks.back();
      blocks.pop_back();
      blocks.back().sum += last.sum;
      blocks.back().weight += last.weight;
      blocks.back().count += last.count;
    }
  }
  std::vector<double> fit(score.size());
  std::size_t k = 0;
  for (const Block& block : blocks) {
    for (std::size_t n = 0; n < block.count; ++n, ++k) {
      fit[order[k]] = block.count == 1 ? score[order[k]] : block.mean();
    }
  }
  return fit;
}

std::vector<std::vector<double>> fit_weights(const Samples& samples) {
  std::vector<std::vector<double>> weights;
  for (std::size_t i = 0; i < samples.sums.size(); ++i) {
    weights.push_back(site_weights(samples, i));
  }
  return weights;
}

Problem smoothed(Problem problem, const std::vector<std::vector<double>>& weights) {
  for (std::size_t i = 0; i < problem.num_sites(); ++i) {
    problem.score[i] = falling_fit(problem.bits[i], problem.score[i], weights[i]);
  }
  return problem;
}

}  // namespace bitalloc
