#include "solver/samples.h"

namespace bitalloc {
namespace {

void add(const std::vector<double>& sums, double sign, std::vector<double>* total) {
  for (std::size_t q = 0; q < sums.size(); ++q) {
    (*total)[q] += sign * sums[q];
  }
}

}  // namespace

Ratio objective_of(const Samples& samples, const std::vector<int>& choice) {
  std::vector<double> total(samples.tokens.size(), 0.0);
  for (std::size_t i = 0; i < choice.size(); ++i) {
    add(samples.sums[i][choice[i]], 1, &total);
  }
  return ratio(total, samples.tokens);
}

Ratio difference_of(const Samples& samples, std::size_t site, int a, int b) {
  std::vector<double> total = samples.sums[site][a];
  add(samples.sums[site][b], -1, &total);
  return ratio(total, samples.tokens);
}

Ratio difference_of(const Samples& samples, const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<double> total(samples.tokens.size(), 0.0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) {
      continue;  // it would cancel, up to rounding
    }
    add(samples.sums[i][a[i]], 1, &total);
    add(samples.sums[i][b[i]], -1, &total);
  }
  return ratio(total, samples.tokens);
}

}  // namespace bitalloc
