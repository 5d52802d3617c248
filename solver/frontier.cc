#include "solver/frontier.h"

#include <optional>

#include "solver/integer_problem.h"
#include "solver/pareto.h"
#include "solver/relaxation.h"

namespace bitalloc {
namespace {

FrontierPoint make_point(const Problem& problem, std::vector<int> choice) {
  const double bits = effective_bits_of(problem, choice);
  const double objective = objective_of(problem, choice);
  return {bits, objective, std::move(choice)};
}

// Points that are better than the one before by more than a tie.
std::vector<ParetoPoint> without_ties(const IntegerProblem& integers,
                                      const std::vector<ParetoPoint>& points) {
  std::vector<ParetoPoint> kept;
  for (const ParetoPoint& point : points) {
    if (kept.empty() || point.score + tie_tolerance(integers, point.score) < kept.back().score) {
      kept.push_back(point);
    }
  }
  return kept;
}

std::optional<Frontier> exact_frontier(const Problem& problem, const IntegerProblem& integers,
                                       const FrontierOptions& options) {
  const auto table =
      ParetoTable::build(integers.efficient, integers.max_weight, nullptr,
                         {.max_points = options.max_sums, .max_suffix_points = options.max_points});
  if (!table) {
    return std::nullopt;
  }
  const auto points = without_ties(integers, table->points());
  if (points.size() > options.max_points) {
    return std::nullopt;
  }
  Frontier frontier;
  for (const ParetoPoint& point : points) {
    const double limit = point.score + tie_tolerance(integers, point.score);
    frontier.points.push_back(
        make_point(problem, table->smallest_choice(integers.all, point.weight, limit)));
  }
  return frontier;
}

Frontier hull_frontier(const Problem& problem, const IntegerProblem& integers) {
  std::vector<int> choice;
  for (const auto& items : integers.efficient) {
    choice.push_back(items.front().candidate);
  }
  Frontier frontier;
  frontier.exact = false;
  frontier.points.push_back(make_point(problem, choice));
  const auto steps = hull_steps(integers.efficient);
  for (std::size_t k = 0; k < steps.size(); ++k) {
    choice[steps[k].site] = integers.efficient[steps[k].site][steps[k].to].candidate;
    // Steps of one slope lie on one edge: only its end is extreme.
    if (k + 1 == steps.size() || steps[k + 1].slope < steps[k].slope) {
      frontier.points.push_back(make_point(problem, choice));
    }
  }
  return frontier;
}

}  // namespace

Result<Frontier> solve_frontier(const Problem& problem, const FrontierOptions& options) {
  BA_RETURN_IF_ERROR(validate(problem));
  const IntegerProblem integers = to_integers(problem);
  if (auto exact = exact_frontier(problem, integers, options)) {
    return *std::move(exact);
  }
  return hull_frontier(problem, integers);
}

}  // namespace bitalloc
