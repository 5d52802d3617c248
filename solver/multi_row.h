// The exact solve of several rows and clauses (solve_reduced.h says how it fits in).
#pragma once

#include "solver/solve_reduced.h"

namespace bitalloc {

// max_labels is not looked at.
Result<Outcome> solve_rows(const Reduced& reduced, const RowLimits& limits, Want want);

}  // namespace bitalloc
