// The linear relaxation of a one-budget problem, its bound, and the variables that the bound fixes.
//
// The dual has one multiplier λ (nats a unit of weight); L(λ) = Σ min_j (score + λ·weight) −
// λ·capacity bounds every assignment from below. The best λ is exact here, not searched: it is the
// slope at which the sites' lower convex hulls, walked steepest first, use the capacity up (Sinha
// and Zoltners, "The multiple-choice knapsack problem", Operations Research 27(3), 1979).
//
// Pure functions; thread-safe. Scores are nats above the sites' lowest (integer_problem.h).
#pragma once

#include <cstdint>
#include <vector>

#include "solver/integer_problem.h"

namespace bitalloc {

using Sites = std::vector<std::vector<Item>>;  // [site][efficient candidate], growing weight

struct HullStep {
  int site = 0;
  int from = 0;  // index into the site's items
  int to = 0;
  std::int64_t weight = 0;
  double slope = 0;  // nats gained a unit of weight
};

// The edges of all sites' lower convex hulls, steepest first (then by site): walking them gives the
// extreme points of the frontier one after the other.
std::vector<HullStep> hull_steps(const Sites& sites);

struct Relaxation {
  double multiplier = 0;           // λ, nats a unit of weight
  double lower_bound = 0;          // L(λ), nats; never below zero
  std::vector<double> site_bound;  // [site] min_j (score + λ·weight)
  std::vector<int> rounded;  // [site] index into its items: a feasible assignment near the bound
  double upper_bound = 0;    // its score
  double rounding = 0;       // what rounding may have moved any of these bounds by
};

// capacity ≥ 0, every site non-empty with its first item of weight 0.
Relaxation relax(const Sites& sites, std::int64_t capacity);

// The items that an assignment of score ≤ `limit` can contain (reduced-cost fixing). A site left
// without items proves that there is none.
Sites fix_by_reduced_cost(const Sites& sites, std::int64_t capacity, const Relaxation& relaxation,
                          double limit);

}  // namespace bitalloc
