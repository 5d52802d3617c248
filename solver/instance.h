// A problem and its constraints as the JSON of `bitalloc solve` (solve_file.h), to log and to
// replay.
//
// Thread-safe.
#pragma once

#include <string>

#include "solver/constraints.h"
#include "solver/problem.h"

namespace bitalloc {

// Numbers with full precision; parse_solve_file() reads it. A budget is in "budgets".
std::string instance_to_json(const Problem& problem, const Constraints& constraints);

}  // namespace bitalloc
