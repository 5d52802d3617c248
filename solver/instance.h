// Constraints out of and into the JSON of `bitalloc solve` (solve_file.h). Sites and candidates are
// counted from 0; all keys are optional; "name" is, too, everywhere:
//   "rows":    [{"name", "coefficient": [[…] a site], "lower", "upper"}…]  (at least one bound)
//   "pins":    [{"name", "site", "candidate"}…]
//   "exclude": [{"name", "site", "candidate"}…]
//   "groups":  [{"name", "sites": […]}…]             (the same candidate index)
//   "pairs":   [{"name", "sites": [a, b], "allowed": [[candidate of a, candidate of b]…]}…]
//   "max_distinct": N with "labels": [[text…] a site]  (at most N labels taken)
//   "max_changes":  N with "deployed": [candidate, or -1 for none, a site]
//
// Thread-safe.
#pragma once

#include <string>

#include "common/json.h"
#include "solver/constraints.h"
#include "solver/problem.h"

namespace bitalloc {

// Numbers with full precision; parse_solve_file() reads it. A budget is in "budgets".
std::string instance_to_json(const Problem& problem, const Constraints& constraints);

// The constraints of a document (an object), valid for `problem`; without a budget of bits.
// kInvalidArgument; `field` names the entry ("rows[0].coefficient[2][1]").
Result<Constraints> constraints_from_json(const Json& document, const Problem& problem);

}  // namespace bitalloc
