#include "solver/multi_pareto.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace bitalloc {
namespace {

// What sums of the sites i, i+1, … must keep for the sites before them to complete them.
struct Filter {
  std::vector<std::int64_t> capacity;  // [rows] less the lightest of the sites before
  long double threshold = 0;           // of score + Σ λ·weight
};

std::vector<Filter> make_filters(const Reduced& reduced, const MultiRelaxation& relaxation,
                                 const std::vector<std::vector<int>>& open, double limit) {
  std::vector<Filter> filters;
  Filter filter{reduced.capacity, limit + 4 * static_cast<long double>(relaxation.rounding)};
  for (std::size_t r = 0; r < reduced.capacity.size(); ++r) {
    filter.threshold += static_cast<long double>(relaxation.multiplier[r]) * reduced.capacity[r];
  }
  for (std::size_t s = 0; s < reduced.sites.size(); ++s) {
    filters.push_back(filter);
    filter.threshold -= relaxation.site_bound[s];
    for (std::size_t r = 0; r < reduced.capacity.size(); ++r) {
      std::int64_t lightest = INT64_MAX;
      for (const int k : open[s]) {
        lightest = std::min(lightest, reduced.sites[s].options[k].weight[r]);
      }
      filter.capacity[r] -= lightest;
    }
  }
  return filters;
}

bool keeps(const Filter& filter, const std::vector<double>& multiplier, const std::int64_t* weight,
           double score) {
  double bound = score;
  for (std::size_t r = 0; r < multiplier.size(); ++r) {
    if (weight[r] > filter.capacity[r]) {
      return false;
    }
    bound += multiplier[r] * static_cast<double>(weight[r]);
  }
  return bound <= filter.threshold;
}

// Of sums that come by growing second weight within growing first weight: whether an earlier one is
// no heavier and scores no more.
class Staircase {
 public:
  bool dominates(std::int64_t weight, double score) {
    auto after = steps_.upper_bound(weight);
    if (after != steps_.begin() && std::prev(after)->second <= score) {
      return true;
    }
    while (after != steps_.end() && after->second >= score) {
      after = steps_.erase(after);
    }
    steps_[weight] = score;
    return false;
  }

 private:
  std::map<std::int64_t, double> steps_;  // weight → score, falling
};

}  // namespace

MultiParetoTable::Layer MultiParetoTable::without_dominated(const Layer& sums, std::size_t rows) {
  std::vector<std::size_t> order(sums.score.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto at = [&](std::size_t k) { return sums.weight.data() + k * rows; };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    for (std::size_t r = 0; r < rows; ++r) {
      if (at(a)[r] != at(b)[r]) {
        return at(a)[r] < at(b)[r];
      }
    }
    return sums.score[a] < sums.score[b];
  });
  Layer kept;
  Staircase staircase;
  for (const std::size_t k : order) {
    const bool same = !kept.score.empty() &&
                      std::equal(at(k), at(k) + rows, kept.weight.end() - static_cast<int>(rows));
    if (same || (rows == 2 && staircase.dominates(at(k)[1], sums.score[k]))) {
      continue;
    }
    kept.weight.insert(kept.weight.end(), at(k), at(k) + rows);
    kept.score.push_back(sums.score[k]);
  }
  return kept;
}

std::optional<MultiParetoTable> MultiParetoTable::build(const Reduced& reduced,
                                                        const MultiRelaxation& relaxation,
                                                        const std::vector<std::vector<int>>& open,
                                                        double limit, const RowLimits& limits) {
  const std::size_t rows = reduced.capacity.size();
  const std::vector<Filter> filters = make_filters(reduced, relaxation, open, limit);
  MultiParetoTable table;
  table.reduced_ = &reduced;
  table.open_ = open;
  table.layers_.push_back({std::vector<std::int64_t>(rows, 0), {0.0}});
  table.suffixes_.resize(reduced.sites.size() + 1);
  table.suffixes_.back() = {0, std::vector<std::int64_t>(rows, 0), 0};
  std::size_t total = 1;
  for (std::size_t s = reduced.sites.size(); s-- > 0;) {
    const Suffix& rest = table.suffixes_[s + 1];
    Suffix& suffix = table.suffixes_[s];
    suffix.weight.assign(rows, 0);
    if (s > 0 && open[s].size() == 1) {
      const Option& option = reduced.sites[s].options[open[s][0]];
      suffix.layer = rest.layer;
      suffix.score = rest.score + option.score;
      for (std::size_t r = 0; r < rows; ++r) {
        suffix.weight[r] = rest.weight[r] + option.weight[r];
      }
      continue;
    }
    const Layer& old = table.layers_.back();
    total += old.score.size() * open[s].size();
    if (total > limits.max_points || limits.stop.stop_requested() ||
        std::chrono::steady_clock::now() > limits.deadline) {
      return std::nullopt;
    }
    Layer sums;
    std::vector<std::int64_t> weight(rows);
    for (const int k : open[s]) {
      const Option& option = reduced.sites[s].options[k];
      for (std::size_t p = 0; p < old.score.size(); ++p) {
        for (std::size_t r = 0; r < rows; ++r) {
          weight[r] = old.weight[p * rows + r] + rest.weight[r] + option.weight[r];
        }
        const double score = old.score[p] + (rest.score + option.score);
        if (keeps(filters[s], relaxation.multiplier, weight.data(), score)) {
          sums.weight.insert(sums.weight.end(), weight.begin(), weight.end());
          sums.score.push_back(score);
        }
      }
    }
    suffix.layer = table.layers_.size();
    table.layers_.push_back(without_dominated(sums, rows));
  }
  return table;
}

std::optional<double> MultiParetoTable::best() const {
  const auto& scores = layers_.back().score;
  if (scores.empty()) {
    return std::nullopt;
  }
  return *std::min_element(scores.begin(), scores.end());
}

bool MultiParetoTable::completes(const Suffix& rest, const std::vector<std::int64_t>& room,
                                 double score) const {
  const std::size_t rows = room.size();
  const Layer& layer = layers_[rest.layer];
  for (std::size_t p = 0; p < layer.score.size(); ++p) {
    bool fits = layer.score[p] + rest.score <= score;
    for (std::size_t r = 0; fits && r < rows; ++r) {
      fits = layer.weight[p * rows + r] + rest.weight[r] <= room[r];
    }
    if (fits) {
      return true;
    }
  }
  return false;
}

std::vector<int> MultiParetoTable::smallest(double score) const {
  const double slack = 8 * score * 0x1p-52;  // as ParetoTable::smallest_choice()
  std::vector<std::int64_t> room = reduced_->capacity;
  std::vector<int> picked;
  for (std::size_t s = 0; s < reduced_->sites.size(); ++s) {
    score += slack;
    bool found = false;
    for (const int k : open_[s]) {
      const Option& option = reduced_->sites[s].options[k];
      std::vector<std::int64_t> left = room;
      for (std::size_t r = 0; r < left.size(); ++r) {
        left[r] -= option.weight[r];
      }
      if (completes(suffixes_[s + 1], left, score - option.score)) {
        picked.push_back(k);
        room = std::move(left);
        score -= option.score;
        found = true;
        break;
      }
    }
    BA_CHECK(found, "no completion in the Pareto table");
  }
  return picked;
}

}  // namespace bitalloc
