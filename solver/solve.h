// The exact solve: the best assignment within a budget of effective bits, or within constraints of
// any kind, with its proof.
//
// Method: one row is solved exactly by single_row.h, several by multi_row.h; CBC decides what
// outgrows them. Every answer is re-evaluated from the caller's numbers, CBC's never taken on
// trust.
//
// Ties: sums of scores within 1e-12 (of the nats above the free optimum, plus the rounding of the
// scores themselves) are the same objective. Among equal ones the assignment of fewest bits wins,
// then the lexicographically smallest choice (first site first, lowest candidate first). The result
// is a function of the problem and the budget alone, whatever CBC found first. (Only where the
// dynamic program outgrows its limits does CBC decide, to 1e-9 of the gap of the relaxation, and
// choose; where the bound already proves an assignment, a sixteenth of the limits is spent on the
// choice among its ties. Constraints that come down to one row keep this rule, over merged sites in the order of
// their first members; several rows leave out "fewest bits", and where one of them alone decides,
// the ties are that row's.)
#pragma once

#include <stop_token>
#include <vector>

#include "common/status.h"
#include "solver/constraints.h"
#include "solver/problem.h"
#include "solver/verdict.h"

namespace bitalloc {

struct SolveOptions {
  // Wall clock; what is not proven by then is returned as such.
  double time_limit_seconds = 10;
  // At most so much of it for CBC to prove again, before solve() returns, what the dynamic program
  // has proven; 0: not at all. reprover.h does that afterwards, off the caller's path.
  double cbc_check_seconds = 0;
  // Sums that the dynamic program may hold (16 bytes each, more with several rows) before CBC alone
  // decides.
  std::size_t max_points = 8'000'000;
  // request_stop() makes solve() return kCancelled soon: for a newer budget.
  std::stop_token stop = {};
};

struct Solution {
  std::vector<int> choice;    // [site] candidate
  double objective = 0;       // Σ score of the choice, from the caller's scores (long double sum)
  double effective_bits = 0;  // of the choice; ≤ budget·(1 + kBudgetTolerance)
  bool proven_optimal = false;
  double lower_bound = 0;  // no assignment within the budget scores less, nats
  // (objective − lower_bound) / max(|objective|, |lower_bound|); 0 when proven.
  double gap = 0;
  double solve_ms = 0;
  CbcVerdict cbc = CbcVerdict::kNotAsked;
};

// Thread-safe. kInvalidArgument: see validate(), or a budget or option that is no number.
// kInfeasible (field "budget"): the message gives the reachable range. kCancelled: see
// SolveOptions::stop.
Result<Solution> solve(const Problem& problem, double effective_bits_budget,
                       const SolveOptions& options = {});

// The same within constraints. kInfeasible: the message and `field` (names, joined by ", ") give a
// smallest set of constraints that conflict, see conflict.h. kResourceExhausted: neither an
// assignment nor a proof that there is none within the time limit.
Result<Solution> solve(const Problem& problem, const Constraints& constraints,
                       const SolveOptions& options = {});

}  // namespace bitalloc
