#include "solver/solve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "solver/conflict.h"
#include "solver/instance.h"
#include "solver/integer_problem.h"
#include "solver/single_row.h"
#include "solver/solve_reduced.h"

namespace bitalloc {
namespace {

using Clock = std::chrono::steady_clock;

Error out_of_reach(const Problem& problem, double budget) {
  std::vector<int> low;
  std::vector<int> high;
  for (const auto& bits : problem.bits) {
    low.push_back(static_cast<int>(std::min_element(bits.begin(), bits.end()) - bits.begin()));
    high.push_back(static_cast<int>(std::max_element(bits.begin(), bits.end()) - bits.begin()));
  }
  const double lowest = effective_bits_of(problem, low);
  return infeasible(fmt::format("no assignment meets a budget of {} effective bits: the candidates "
                                "reach {} … {} bits",
                                budget, lowest, effective_bits_of(problem, high)),
                    "budget", fmt::format("ask for at least {} bits", lowest));
}

RowLimits to_limits(const SolveOptions& options, Clock::time_point start) {
  const double seconds = std::min(options.time_limit_seconds, 1e6);
  return {
      start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)),
      options.stop, options.cbc_check_seconds, options.max_points};
}

// `lower_bound`: of the objective, in the caller's scores.
Solution to_solution(const Problem& problem, std::vector<int> choice, long double lower_bound,
                     bool proven, CbcVerdict verdict) {
  Solution solution;
  solution.choice = std::move(choice);
  solution.objective = objective_of(problem, solution.choice);
  solution.effective_bits = effective_bits_of(problem, solution.choice);
  solution.cbc = verdict;
  solution.lower_bound = std::min(static_cast<double>(lower_bound), solution.objective);
  solution.proven_optimal = proven;
  if (!proven) {
    const double magnitude =
        std::max(std::fabs(solution.objective), std::fabs(solution.lower_bound));
    solution.gap = magnitude > 0 ? (solution.objective - solution.lower_bound) / magnitude : 0;
  }
  return solution;
}

Status check_options(const SolveOptions& options) {
  if (!(options.time_limit_seconds >= 0)) {
    return invalid_argument("time_limit_seconds must not be negative", "time_limit_seconds");
  }
  if (!(options.cbc_check_seconds >= 0)) {
    return invalid_argument("cbc_check_seconds must not be negative", "cbc_check_seconds");
  }
  return {};
}

// The last look at an answer: who asked for it to end, what CBC said, how long it took.
Result<Solution> finish(const Problem& problem, const Constraints& constraints,
                        const SolveOptions& options, Clock::time_point start, Solution solution) {
  if (options.stop.stop_requested()) {
    return cancelled("the solve was cancelled");
  }
  if (solution.cbc == CbcVerdict::kDisagreed) {
    spdlog::error("solver: CBC and the dynamic program disagree about {}",
                  instance_to_json(problem, constraints));
  }
  solution.solve_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  return solution;
}

Error out_of_reach(const Problem& problem, const Constraints& constraints,
                   const SolveOptions& options) {
  auto conflict = find_conflict(problem, constraints, options);
  if (!conflict.ok()) {
    return std::move(conflict).error();
  }
  if (conflict->names == std::vector<std::string>{"budget"}) {
    return out_of_reach(problem, *constraints.effective_bits);
  }
  return infeasible(
      fmt::format("no assignment meets all constraints: {} in conflict: {}",
                  conflict->smallest ? "these are the fewest" : "these, none to spare, are",
                  conflict->text),
      fmt::format("{}", fmt::join(conflict->names, ", ")), "loosen or drop one of them");
}

}  // namespace

Result<Solution> solve(const Problem& problem, double effective_bits_budget,
                       const SolveOptions& options) {
  const Clock::time_point start = Clock::now();
  Constraints constraints;
  constraints.effective_bits = effective_bits_budget;
  BA_RETURN_IF_ERROR(validate(problem));
  BA_RETURN_IF_ERROR(validate(problem, constraints));
  BA_RETURN_IF_ERROR(check_options(options));
  const IntegerProblem integers = to_integers(problem);
  const std::int64_t capacity = capacity_of(integers, effective_bits_budget);
  if (capacity < 0) {
    return out_of_reach(problem, effective_bits_budget);
  }
  BA_ASSIGN_OR_RETURN(RowAnswer answer, solve_row(integers, capacity, to_limits(options, start)));
  return finish(problem, constraints, options, start,
                to_solution(problem, std::move(answer.choice),
                            answer.lower_bound + integers.score_offset, answer.proven, answer.cbc));
}

Result<Solution> solve(const Problem& problem, const Constraints& constraints,
                       const SolveOptions& options) {
  const Clock::time_point start = Clock::now();
  BA_RETURN_IF_ERROR(validate(problem));
  BA_RETURN_IF_ERROR(validate(problem, constraints));
  BA_RETURN_IF_ERROR(check_options(options));
  const auto reduced = reduce(problem, constraints);
  if (!reduced) {
    return out_of_reach(problem, constraints, options);
  }
  BA_ASSIGN_OR_RETURN(Outcome outcome, solve_reduced(*reduced, to_limits(options, start)));
  if (outcome.kind == Outcome::Kind::kInfeasible) {
    return out_of_reach(problem, constraints, options);
  }
  if (outcome.kind == Outcome::Kind::kUnknown) {
    if (options.stop.stop_requested()) {
      return cancelled("the solve was cancelled");
    }
    return resource_exhausted(
        fmt::format("neither an assignment nor a proof that there is none within {} s",
                    options.time_limit_seconds),
        "", "allow more time, or loosen a constraint");
  }
  const auto broken = violations(problem, constraints, outcome.choice);
  if (!broken.empty()) {
    return internal_error(fmt::format("an answer that breaks {} in {}", fmt::join(broken, ", "),
                                      instance_to_json(problem, constraints)));
  }
  return finish(
      problem, constraints, options, start,
      to_solution(problem, std::move(outcome.choice), outcome.lower_bound + reduced->score_offset,
                  outcome.proven, outcome.cbc));
}

}  // namespace bitalloc
