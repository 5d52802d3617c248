// Exact dynamic program over sites: the non-dominated (weight, score) sums of every suffix of them.
//
// frontier(i) holds the sums that sites i, i+1, … can reach, by growing weight and falling score,
// each non-dominated. Merging from the last site to the first and keeping every suffix lets a walk
// from the first site pick the lexicographically smallest assignment of any (weight, score)
// allowance without back-pointers. A window drops sums that cannot be part of an assignment within
// its limit.
//
// Immutable once built: safe to share between threads.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <vector>

#include "solver/relaxation.h"

namespace bitalloc {

struct ParetoPoint {
  std::int64_t weight = 0;
  double score = 0;
};

struct ParetoLimits {
  std::size_t max_points = 8'000'000;        // of all suffixes together (16 bytes each)
  std::size_t max_suffix_points = SIZE_MAX;  // of any one suffix
  // Both looked at between sites: a table may be late by the merge of one site.
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  std::stop_token stop = {};
};

// What may be dropped: sums that no assignment of weight ≤ capacity and score ≤ limit contains.
struct ParetoWindow {
  const Relaxation& relaxation;  // of the same sites and capacity
  double limit = 0;
};

class ParetoTable {
 public:
  // Empty when a limit was hit. `window` null: everything within `capacity` is kept.
  static std::optional<ParetoTable> build(const Sites& sites, std::int64_t capacity,
                                          const ParetoWindow* window, const ParetoLimits& limits);

  // All sites' sums; empty when the window holds no assignment.
  const std::vector<ParetoPoint>& points() const { return tables_.back(); }

  // The lexicographically smallest choice (candidates, by site) over `all` candidates with weight ≤
  // `weight` and score ≤ `score`. REQUIRES: some point of points() is within both.
  std::vector<int> smallest_choice(const std::vector<std::vector<Item>>& all, std::int64_t weight,
                                   double score) const;

 private:
  // A site of one item shifts the sums of the sites behind it; only others get a table.
  struct Suffix {
    std::size_t table = 0;
    std::int64_t weight = 0;
    double score = 0;
  };
  std::vector<std::vector<ParetoPoint>> tables_;
  std::vector<Suffix> suffixes_;  // [site + 1]; the last is the empty sum
};

}  // namespace bitalloc
