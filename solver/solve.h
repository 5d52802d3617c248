// The exact solve: the best assignment within a budget of effective bits, with its proof.
//
// Method: whole-number weights (integer_problem.h), linear bound and reduced-cost fixing
// (relaxation.h), a windowed dynamic program that finds the optimum exactly (pareto.h), and CBC on
// the core that is left (core.h, cbc.h), whose answer is re-evaluated here and never taken on
// trust.
//
// Ties: sums of scores within 1e-12 (of the nats above the free optimum, plus the rounding of the
// scores themselves) are the same objective. Among equal ones the assignment of fewest bits wins,
// then the lexicographically smallest choice (first site first, lowest candidate first). The result
// is a function of the problem and the budget alone, whatever CBC found first. (Only where the
// dynamic program outgrows its limits does CBC decide, to 1e-9 of the gap of the relaxation, and
// choose.)
#pragma once

#include <vector>

#include "common/status.h"
#include "solver/problem.h"

namespace bitalloc {

struct SolveOptions {
  // Wall clock; what is not proven by then is returned as such.
  double time_limit_seconds = 10;
  // At most so much of it for CBC to prove again what the dynamic program has proven; 0: not at
  // all.
  double cbc_check_seconds = 0.02;
  // Sums that the dynamic program may hold (16 bytes each) before CBC alone decides.
  std::size_t max_points = 8'000'000;
};

// What CBC said about the answer.
enum class CbcVerdict {
  kAgreed,       // optimal, with the same objective
  kNothingLeft,  // not asked: the bound had decided every site
  kStopped,      // ran out of its time before it could say
  kDisagreed,    // claimed something else; logged, and the better certified answer returned
  kNotAsked,     // switched off by the options
};
const char* cbc_verdict_name(CbcVerdict verdict);

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
// kInfeasible (field "budget"): the message gives the reachable range.
Result<Solution> solve(const Problem& problem, double effective_bits_budget,
                       const SolveOptions& options = {});

}  // namespace bitalloc
