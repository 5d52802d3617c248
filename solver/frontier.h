// Every budget at once: the efficient assignments, as a staircase from budget to best objective.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <vector>

#include "common/status.h"
#include "solver/problem.h"

namespace bitalloc {

struct FrontierPoint {
  double effective_bits = 0;
  double objective = 0;  // nats, Σ score of the choice (long double sum)
  std::vector<int>
      choice;  // [site] candidate; the one solve() gives for a budget of effective_bits
};

struct Frontier {
  std::vector<FrontierPoint> points;  // growing bits, falling objective, none dominated
  // true: all efficient assignments (one of each tie, see solve.h). false: there were too many;
  // only the extreme points (the lower convex hull, each of them optimal for its own bits).
  bool exact = true;
};

struct FrontierOptions {
  std::size_t max_sums = 8'000'000;  // that the dynamic program may hold (16 bytes each)
  std::size_t max_points = 20'000;   // of the frontier, and of that of any suffix of the sites
};

// kInvalidArgument: see validate().
Result<Frontier> solve_frontier(const Problem& problem, const FrontierOptions& options = {});

// The knees, as growing indices into the points: where the bits before bought much more than those
// after. In the plane of effective bits and ln(objective), both scaled to [0, 1] over the frontier,
// the point farthest below the chord of its ends (for a falling convex curve the maximum of
// Kneedle's difference curve: Satopaa et al., "Finding a Kneedle in a Haystack", ICDCSW 2011), then
// the same between every two neighbours of ends and knees (Ramer 1972), as long as the distance is
// at least kKneeDistance. Points without a logarithm (objective ≤ 0) are left out. A frontier that
// loses the same factor with every bit is a straight line there and has no knee.
inline constexpr double kKneeDistance = 0.05;  // of the whole range of ln(objective)
std::vector<std::size_t> knees(const Frontier& frontier);

}  // namespace bitalloc
