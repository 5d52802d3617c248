// Why no assignment meets all constraints: a set of them that cannot be met together, none of which
// can be left out.
//
// Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "solver/constraints.h"
#include "solver/solve.h"

namespace bitalloc {

struct Conflict {
  std::vector<std::string> names;  // as constraint_names() has them, in its order
  bool smallest = false;           // no set of fewer constraints conflicts, either (all were tried)
  std::string text;                // the constraints in words
};

// REQUIRES: valid arguments that no assignment meets. By deletion (Chinneck and Dravnieks,
// "Locating minimal infeasible constraint sets in linear programs", ORSA Journal on Computing 3(2),
// 1991), then all smaller sets where those are few. What time_limit_seconds leaves undecided stays
// in.
Result<Conflict> find_conflict(const Problem& problem, const Constraints& constraints,
                               const SolveOptions& options = {});

}  // namespace bitalloc
