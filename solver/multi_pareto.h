// The dynamic program of several rows: sums (weights, score) of every suffix of sites, within a
// window. As pareto.h, with one weight a row; of two rows, dominated sums are dropped, of more only
// those of equal weights.
//
// Immutable once built: safe to share between threads.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "solver/multi_relaxation.h"

namespace bitalloc {

class MultiParetoTable {
 public:
  // Sums that an assignment out of `open` ([site] options, none empty) of score ≤ `limit` contains.
  // Empty when a limit was hit. REQUIRES: no clauses.
  static std::optional<MultiParetoTable> build(const Reduced& reduced,
                                               const MultiRelaxation& relaxation,
                                               const std::vector<std::vector<int>>& open,
                                               double limit, const RowLimits& limits);

  // The lowest score of an assignment; nothing when the window holds none.
  std::optional<double> best() const;

  // The lexicographically smallest assignment ([site] option) of score ≤ `score`.
  // REQUIRES: score ≥ best().
  std::vector<int> smallest(double score) const;

 private:
  struct Layer {
    std::vector<std::int64_t> weight;  // [sums][rows]
    std::vector<double> score;         // [sums]
  };
  // A site of one option shifts the sums of the sites behind it.
  struct Suffix {
    std::size_t layer = 0;
    std::vector<std::int64_t> weight;  // [rows]
    double score = 0;
  };

  bool completes(const Suffix& rest, const std::vector<std::int64_t>& room, double score) const;
  static Layer without_dominated(const Layer& sums, std::size_t rows);

  const Reduced* reduced_ = nullptr;
  std::vector<std::vector<int>> open_;
  std::vector<Layer> layers_;
  std::vector<Suffix> suffixes_;  // [site + 1]
};

}  // namespace bitalloc
