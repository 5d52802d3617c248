// The JSON of `bitalloc solve FILE.json`:
//   {"bits": [[…]], "width": […], "score": [[…]], "budgets": […]}   (see problem.h for the shapes)
// and of its answer, one object a budget:
//   {"budget", "objective", "effective_bits", "choice": […], "proven_optimal", "gap",
//   "lower_bound",
//    "cbc", "solve_ms"}
// Unknown keys are ignored. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "solver/problem.h"
#include "solver/solve.h"

namespace bitalloc {

struct SolveFile {
  Problem problem;
  std::vector<double> budgets;  // effective bits
};

// kInvalidArgument: no JSON, a missing or mistyped key, an invalid problem, no budgets; `field`
// names the entry ("score[3][1]", "budgets[0]").
Result<SolveFile> parse_solve_file(std::string_view text);

// One solution a budget, in order. The first budget that cannot be met fails the whole call
// (kInfeasible, field "budgets[k]"): a list with holes would be taken for answers.
Result<std::vector<Solution>> solve_budgets(const SolveFile& file,
                                            const SolveOptions& options = {});

// solutions: as solve_budgets() gave them.
std::string solutions_to_json(const SolveFile& file, const std::vector<Solution>& solutions);

}  // namespace bitalloc
