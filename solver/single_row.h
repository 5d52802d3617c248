// The exact solve of one row Σ weight ≤ capacity: linear bound and reduced-cost fixing
// (relaxation.h), dynamic programs in growing windows above the bound (pareto.h), CBC on what is
// left (core.h) where they outgrow their limits, and as a second proof when asked for.
//
// Thread-safe (CBC queues).
#pragma once

#include <chrono>
#include <cstdint>
#include <stop_token>
#include <vector>

#include "common/status.h"
#include "solver/integer_problem.h"
#include "solver/verdict.h"

namespace bitalloc {

struct RowLimits {
  std::chrono::steady_clock::time_point deadline;
  std::stop_token stop = {};
  double cbc_check_seconds = 0;  // for CBC to prove again what is proven; 0: not at all
  std::size_t max_points = 0;    // that the dynamic program may hold
};

struct RowAnswer {
  std::vector<int> choice;  // [site] candidate; ties as solve.h has them
  double lower_bound = 0;   // nats above the sites' lowest scores, as Item::score
  double upper_bound = 0;   // of `choice`
  bool proven = false;
  CbcVerdict cbc = CbcVerdict::kNotAsked;
};

// capacity ≥ 0. The bounds of an answer that is not proven are valid.
Result<RowAnswer> solve_row(const IntegerProblem& integers, std::int64_t capacity,
                            const RowLimits& limits);

}  // namespace bitalloc
