// Several rows: the Lagrangian bound at the multipliers that CLP's relaxation suggests, what it
// fixes, and a first assignment.
//
// Whatever the multipliers, the bound is valid: it is summed here, in long double.
// Pure functions; thread-safe.
#pragma once

#include <optional>
#include <vector>

#include "solver/reduced.h"
#include "solver/single_row.h"

namespace bitalloc {

struct MultiRelaxation {
  std::vector<double> multiplier;  // [rows] λ ≥ 0, nats a unit of weight
  std::vector<double> site_bound;  // [site] min over options (score + Σ λ·weight)
  double lower_bound = 0;          // Σ site_bound − Σ λ·capacity; never below zero
  double rounding = 0;             // what rounding may have moved the bound by
  bool infeasible = false;  // certified: some Σ λ·weight exceeds Σ λ·capacity everywhere
};

Result<MultiRelaxation> relax(const Reduced& reduced, const RowLimits& limits);

// score + Σ λ·weight − the site's bound: what taking an option adds to the bound, at least.
double reduced_cost(const MultiRelaxation& relaxation, std::size_t site, const Option& option);

// [site] indices of the options that an assignment of score ≤ `limit` can contain.
std::vector<std::vector<int>> open_options(const Reduced& reduced,
                                           const MultiRelaxation& relaxation, double limit);

// An assignment within all rows and clauses, [site] option: the bound's own, mended and improved by
// single changes. Nothing when that does not lead to one.
std::optional<std::vector<int>> find_assignment(const Reduced& reduced,
                                                const MultiRelaxation& relaxation);

// Whether picked ([site] option) keeps every row and clause, in whole numbers.
bool fits(const Reduced& reduced, const std::vector<int>& picked);
double score_of(const Reduced& reduced, const std::vector<int>& picked);

}  // namespace bitalloc
