// Assignments one step from another one: a site takes another candidate, or two sites trade bits.
// What a local search over measured assignments tries next (refine.h).
//
// Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include "solver/constraints.h"
#include "solver/problem.h"

namespace bitalloc {

struct Neighbour {
  std::vector<int> choice;  // [site] candidate
  double change = 0;        // Σ score of it minus that of the assignment it is next to
};

// The `count` neighbours of `choice` ([site] candidate) of least change, in growing order of it
// (ties: the first sites first), that keep every constraint and are not `known`. Next to an
// assignment are
// - moves: one site takes any other candidate;
// - swaps: two sites take other candidates, neither both more nor both fewer width·bits.
// Sites of a group (sites that must agree) are one site here.
// O(options²) of a few additions, options = Σ (candidates − 1): 128 sites × 8 candidates take some
// ten milliseconds. REQUIRES: validate() of problem and constraints is OK, and `choice` fits them.
std::vector<Neighbour> best_neighbours(const Problem& problem, const Constraints& constraints,
                                       const std::vector<int>& choice,
                                       const std::set<std::vector<int>>& known, std::size_t count);

}  // namespace bitalloc
