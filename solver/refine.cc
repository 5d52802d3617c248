#include "solver/refine.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "solver/neighbours.h"

namespace bitalloc {
namespace {

double total(const Measured& measured) {
  return std::accumulate(measured.sums.begin(), measured.sums.end(), 0.0);
}

class LocalSearch {
 public:
  LocalSearch(const Problem& problem, const Constraints& constraints, const Measure& measure)
      : problem_(problem), constraints_(constraints), measure_(measure) {}

  // The best `count` neighbours of the best that are not measured yet.
  std::vector<std::vector<int>> next(const std::vector<int>& choice, std::size_t count) const {
    std::vector<std::vector<int>> choices;
    for (Neighbour& one : best_neighbours(problem_, constraints_, choice, known_, count)) {
      choices.push_back(std::move(one.choice));
    }
    return choices;
  }

  // Whether one of them is better than the best so far.
  Result<bool> measure_round(const std::vector<std::vector<int>>& choices) {
    const int round = ++found_.rounds;
    BA_ASSIGN_OR_RETURN(auto sums, measure_(choices, round));
    BA_CHECK(sums.size() == choices.size(), "one row of sums a configuration");
    const std::size_t before = found_.best;
    for (std::size_t k = 0; k < choices.size(); ++k) {
      known_.insert(choices[k]);
      found_.measured.push_back({choices[k], round, std::move(sums[k])});
      if (total(found_.measured.back()) < total(best())) {
        found_.best = found_.measured.size() - 1;
      }
    }
    return found_.best != before;
  }

  const Measured& best() const { return found_.measured[found_.best]; }
  Refinement& found() { return found_; }

 private:
  const Problem& problem_;
  const Constraints& constraints_;
  const Measure& measure_;
  std::set<std::vector<int>> known_;
  Refinement found_;
};

// [place] rank from 1, equal values at the mean of their ranks.
std::vector<double> ranks(const std::vector<double>& values) {
  std::vector<double> result;
  for (const double value : values) {
    const auto below =
        std::count_if(values.begin(), values.end(), [&](double other) { return other < value; });
    const auto equal = std::count(values.begin(), values.end(), value);
    result.push_back(static_cast<double>(below) + (static_cast<double>(equal) + 1) / 2);
  }
  return result;
}

struct Moments {  // Σ (x − x̄)², Σ (y − ȳ)², Σ (x − x̄)(y − ȳ)
  double xx = 0;
  double yy = 0;
  double xy = 0;
};

Moments moments(const std::vector<double>& x, const std::vector<double>& y) {
  const auto n = static_cast<double>(x.size());
  const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / n;
  const double mean_y = std::accumulate(y.begin(), y.end(), 0.0) / n;
  Moments sums;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sums.xx += (x[i] - mean_x) * (x[i] - mean_x);
    sums.yy += (y[i] - mean_y) * (y[i] - mean_y);
    sums.xy += (x[i] - mean_x) * (y[i] - mean_y);
  }
  return sums;
}

std::optional<double> median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

Result<Refinement> refine(const Problem& problem, const Constraints& constraints,
                          const std::vector<int>& start, const RefineOptions& options,
                          const Measure& measure) {
  LocalSearch search(problem, constraints, measure);
  Refinement& found = search.found();
  std::vector<std::vector<int>> choices = search.next(start, options.neighbours);
  choices.insert(choices.begin(), start);
  found.end = Refinement::End::kRounds;
  while (!choices.empty()) {
    BA_ASSIGN_OR_RETURN(const bool better, search.measure_round(choices));
    if (!better) {
      const bool only_start = found.measured.size() == 1;
      found.end = only_start ? Refinement::End::kNoneLeft : Refinement::End::kNoneBetter;
      break;
    }
    if (found.rounds == options.rounds) break;
    choices = search.next(search.best().choice, options.neighbours);
    if (choices.empty()) found.end = Refinement::End::kNoneLeft;
  }
  found.exhausted = search.next(search.best().choice, 1).empty();
  return std::move(found);
}

Ratio difference_of(const Measured& a, const Measured& b, const std::vector<double>& tokens) {
  std::vector<double> difference = a.sums;
  for (std::size_t q = 0; q < difference.size(); ++q) difference[q] -= b.sums[q];
  return ratio(difference, tokens);
}

Additivity additivity(const std::vector<double>& predicted, const std::vector<double>& measured) {
  Additivity found;
  std::vector<double> ratios;
  for (std::size_t i = 0; i < predicted.size(); ++i) {
    if (predicted[i] > 0) ratios.push_back(measured[i] / predicted[i]);
  }
  found.ratio_median = median(std::move(ratios));
  if (predicted.size() < 2) return found;
  const Moments of_ranks = moments(ranks(predicted), ranks(measured));
  if (of_ranks.xx > 0 && of_ranks.yy > 0) {
    found.spearman = of_ranks.xy / std::sqrt(of_ranks.xx * of_ranks.yy);
  }
  const Moments of_values = moments(predicted, measured);
  if (of_values.xx > 0) found.slope = of_values.xy / of_values.xx;
  return found;
}

}  // namespace bitalloc
