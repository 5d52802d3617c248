#include "solver/pareto.h"

#include <algorithm>
#include <limits>

namespace bitalloc {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kUlp = 0x1p-52;

using Points = std::vector<ParetoPoint>;

// Drops sums beyond the capacity and, with a window, those whose bound is beyond its limit.
struct Filter {
  std::int64_t capacity = 0;
  double multiplier = 0;
  double threshold = kInfinity;  // of score + multiplier · weight
  double limit = kInfinity;      // of score

  bool keeps(std::int64_t weight, double score) const {
    return weight <= capacity && score <= limit &&
           score + multiplier * static_cast<double>(weight) <= threshold;
  }
};

// filters[i] suits sums of the sites i, i+1, …
std::vector<Filter> make_filters(std::size_t sites, std::int64_t capacity,
                                 const ParetoWindow* window) {
  std::vector<Filter> filters(sites, Filter{capacity});
  if (window == nullptr) {
    return filters;
  }
  const Relaxation& relaxation = window->relaxation;
  long double threshold = static_cast<long double>(relaxation.multiplier) * capacity +
                          window->limit + 2 * relaxation.rounding;
  for (std::size_t i = 0; i < sites; ++i) {
    filters[i].multiplier = relaxation.multiplier;
    filters[i].threshold = static_cast<double>(threshold);
    filters[i].limit = window->limit * (1 + 4 * static_cast<double>(sites + 1) * kUlp);
    threshold -= relaxation.site_bound[i];
  }
  return filters;
}

// Keeps, of points by growing weight (then score), those that no earlier one dominates.
void push_if_better(std::int64_t weight, double score, const Filter& filter, double* best,
                    Points* out) {
  if (score < *best) {
    *best = score;
    if (filter.keeps(weight, score)) {
      out->push_back({weight, score});
    }
  }
}

// One cell a unit of weight: for dense sums.
Points merge_dense(const Points& suffix, const std::vector<Item>& items, const Filter& filter,
                   std::int64_t lightest, std::int64_t heaviest) {
  std::vector<double> cell(static_cast<std::size_t>(heaviest - lightest + 1), kInfinity);
  for (const Item& item : items) {
    const std::int64_t shift = item.weight - lightest;
    for (const ParetoPoint& point : suffix) {
      if (point.weight + item.weight > heaviest) {
        break;
      }
      double& best = cell[static_cast<std::size_t>(point.weight + shift)];
      best = std::min(best, point.score + item.score);
    }
  }
  Points out;
  double best = kInfinity;
  for (std::size_t k = 0; k < cell.size(); ++k) {
    push_if_better(lightest + static_cast<std::int64_t>(k), cell[k], filter, &best, &out);
  }
  return out;
}

bool lighter(const ParetoPoint& a, const ParetoPoint& b) {
  return a.weight != b.weight ? a.weight < b.weight : a.score < b.score;
}

// Merges sorted lists, one an item: for sums that are few and far between.
Points merge_sparse(const Points& suffix, const std::vector<Item>& items, const Filter& filter) {
  Points merged;
  for (const Item& item : items) {
    const auto old_size = static_cast<Points::difference_type>(merged.size());
    for (const ParetoPoint& point : suffix) {
      const ParetoPoint sum{point.weight + item.weight, point.score + item.score};
      if (filter.keeps(sum.weight, sum.score)) {
        merged.push_back(sum);
      }
    }
    std::inplace_merge(merged.begin(), merged.begin() + old_size, merged.end(), lighter);
  }
  Points out;
  double best = kInfinity;
  for (const ParetoPoint& point : merged) {
    push_if_better(point.weight, point.score, filter, &best, &out);
  }
  return out;
}

Points merge(const Points& suffix, const std::vector<Item>& items, const Filter& filter) {
  if (suffix.empty() || items.empty()) {
    return {};
  }
  const std::int64_t lightest = suffix.front().weight + items.front().weight;
  const std::int64_t heaviest =
      std::min(filter.capacity, suffix.back().weight + items.back().weight);
  if (heaviest < lightest) {
    return {};
  }
  const auto sums = static_cast<std::int64_t>(suffix.size() * items.size());
  return heaviest - lightest <= 4 * sums ? merge_dense(suffix, items, filter, lightest, heaviest)
                                         : merge_sparse(suffix, items, filter);
}

// Whether a sum of `points` is within both allowances: the heaviest that fits scores lowest.
bool completes(const Points& points, std::int64_t weight, double score) {
  const auto after = std::upper_bound(
      points.begin(), points.end(), weight,
      [](std::int64_t limit, const ParetoPoint& point) { return limit < point.weight; });
  return after != points.begin() && std::prev(after)->score <= score;
}

}  // namespace

std::optional<ParetoTable> ParetoTable::build(const Sites& sites, std::int64_t capacity,
                                              const ParetoWindow* window,
                                              const ParetoLimits& limits) {
  ParetoTable table;
  table.suffixes_.resize(sites.size() + 1);
  table.tables_.push_back({{0, 0.0}});
  const std::vector<Filter> filters = make_filters(sites.size(), capacity, window);
  std::size_t total = 1;
  for (std::size_t i = sites.size(); i-- > 0;) {
    const Suffix& rest = table.suffixes_[i + 1];
    std::vector<Item> items = sites[i];
    for (Item& item : items) {
      item.weight += rest.weight;
      item.score += rest.score;
    }
    // The first site always gets a table, the one that points() shows.
    if (i > 0 && items.size() == 1) {
      table.suffixes_[i] = {rest.table, items[0].weight, items[0].score};
      continue;
    }
    const std::size_t coming = table.tables_.back().size() * items.size();
    if (total + coming > limits.max_points || limits.stop.stop_requested() ||
        std::chrono::steady_clock::now() > limits.deadline) {
      return std::nullopt;
    }
    table.tables_.push_back(merge(table.tables_.back(), items, filters[i]));
    table.suffixes_[i].table = table.tables_.size() - 1;
    total += table.tables_.back().size();
    if (table.tables_.back().size() > limits.max_suffix_points) {
      return std::nullopt;
    }
  }
  return table;
}

std::vector<int> ParetoTable::smallest_choice(const std::vector<std::vector<Item>>& all,
                                              std::int64_t weight, double score) const {
  // Sums taken from the first site on round differently from those of the table: every step allows
  // a little more than the one before, so that the walk cannot lose the point it started from.
  const double slack = 8 * score * kUlp;
  double score_left = score;
  std::vector<int> choice;
  for (std::size_t i = 0; i < all.size(); ++i) {
    score_left += slack;
    const Suffix& rest = suffixes_[i + 1];
    bool found = false;
    for (const Item& item : all[i]) {
      if (completes(tables_[rest.table], weight - item.weight - rest.weight,
                    score_left - item.score - rest.score)) {
        choice.push_back(item.candidate);
        weight -= item.weight;
        score_left -= item.score;
        found = true;
        break;
      }
    }
    BA_CHECK(found, "no completion in the Pareto table");
  }
  return choice;
}

}  // namespace bitalloc
