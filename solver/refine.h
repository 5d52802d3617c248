// Local search over measured assignments: scores of single sites add up only nearly, so the best
// sum need not be the best assignment. Who measures is the caller's business.
//
// Thread-safe as far as the caller's `measure` is.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "common/ratio.h"
#include "solver/constraints.h"
#include "solver/problem.h"

namespace bitalloc {

// [configuration][sequence]: nats summed over the scored tokens of a sequence, of each of the
// `choices` ([configuration][site]), which are those of `round` (from 1) in one order every time.
using Measure = std::function<Result<std::vector<std::vector<double>>>(
    const std::vector<std::vector<int>>& choices, int round)>;

struct RefineOptions {
  std::size_t neighbours = 8;  // measured a round
  int rounds = 4;              // at most
};

struct Measured {
  std::vector<int> choice;   // [site]
  int round = 1;             // that measured it
  std::vector<double> sums;  // [sequence] nats
};

struct Refinement {
  enum class End {
    kNoneBetter,  // no neighbour of the last round was better
    kNoneLeft,    // the last assignment has no neighbour that was not measured in an earlier round
    kRounds,      // the last round still found a better one
  };
  std::vector<Measured> measured;  // the start first
  std::size_t best = 0;            // index
  int rounds = 0;                  // that measured something
  End end = End::kNoneBetter;
  // Every neighbour of the best within the constraints was measured (neighbours.h says which they
  // are): no move and no swap of two sites helps.
  bool exhausted = false;
};

// From `start`: each round measures the neighbours of least predicted change that no round has
// measured yet, in the first one the start with them, and goes to the best if its sum is lower.
// Errors: those of `measure`. REQUIRES: as best_neighbours().
Result<Refinement> refine(const Problem& problem, const Constraints& constraints,
                          const std::vector<int>& start, const RefineOptions& options,
                          const Measure& measure);

// Nats a token that `a` measured more than `b`, paired by sequence. tokens: [sequence] scored ones.
Ratio difference_of(const Measured& a, const Measured& b, const std::vector<double>& tokens);

// How well predictions say what is measured, one of each a configuration. Nothing where it is not
// defined: fewer than two configurations or no spread; ratios of predictions that are not above 0.
struct Additivity {
  std::optional<double> spearman;      // correlation of ranks, ties at their mean rank
  std::optional<double> slope;         // of the least-squares line of measured over predicted
  std::optional<double> ratio_median;  // of measured / predicted
};
Additivity additivity(const std::vector<double>& predicted, const std::vector<double>& measured);

}  // namespace bitalloc
