// The JSON of `bitalloc solve FILE.json`:
//   {"bits": [[…]], "width": […], "score": [[…]], "budgets": […]}   (see problem.h for the shapes)
// with constraints beside them (see instance.h for their keys); then "budgets" may be left out.
// And of its answer, one object a budget ("budget" null where there is none):
//   {"budget", "objective", "effective_bits", "choice": […], "proven_optimal", "gap",
//   "lower_bound",
//    "cbc", "solve_ms"}
// Unknown keys are ignored. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "solver/constraints.h"
#include "solver/problem.h"
#include "solver/solve.h"

namespace bitalloc {

struct SolveFile {
  Problem problem;
  std::vector<double> budgets;  // effective bits; empty: only the constraints
  Constraints constraints;      // of every budget
};

// kInvalidArgument: no JSON, a missing or mistyped key, an invalid problem, neither budgets nor
// constraints; `field` names the entry ("score[3][1]", "budgets[0]").
Result<SolveFile> parse_solve_file(std::string_view text);

// The constraints under budgets[k] (under none when there are no budgets).
Constraints constraints_of(const SolveFile& file, std::size_t k);

// One solution a budget, in order (one without budgets). The first budget that cannot be met fails
// the whole call (kInfeasible; field "budgets[k]", or the names of constraints that conflict): a
// list with holes would be taken for answers.
Result<std::vector<Solution>> solve_budgets(const SolveFile& file,
                                            const SolveOptions& options = {});

// solutions: as solve_budgets() gave them.
std::string solutions_to_json(const SolveFile& file, const std::vector<Solution>& solutions);

}  // namespace bitalloc
