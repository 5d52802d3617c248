#include "solver/solve.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "solver/core.h"
#include "solver/integer_problem.h"
#include "solver/pareto.h"
#include "solver/relaxation.h"

namespace bitalloc {
namespace {

using Clock = std::chrono::steady_clock;

// A gap that costs can be divided by without overflow (scores are below 1e200).
constexpr double kSmallestGap = 1e-100;

// One solve under way: the problem in integers, and what is known about its optimum.
struct Search {
  const IntegerProblem& integers;
  std::int64_t capacity;
  Relaxation relaxation;
  Clock::time_point deadline;
  double lower_bound = 0;   // certified, nats above the sites' lowest scores
  double upper_bound = 0;   // of `choice`, likewise
  std::vector<int> choice;  // [site] candidate
  bool proven = false;  // `choice` is optimal (and the one of the tie rule, if the table held it)
};

double seconds_left(const Search& search) {
  return std::chrono::duration<double>(search.deadline - Clock::now()).count();
}

double score_of(const IntegerProblem& integers, const std::vector<int>& choice) {
  long double sum = 0;
  for (std::size_t i = 0; i < choice.size(); ++i) {
    sum += integers.all[i][choice[i]].score;
  }
  return static_cast<double>(sum);
}

std::vector<int> to_choice(const Sites& sites, const std::vector<int>& picked) {
  std::vector<int> choice;
  for (std::size_t i = 0; i < sites.size(); ++i) {
    choice.push_back(sites[i][picked[i]].candidate);
  }
  return choice;
}

// `limit` widened by what counts as a tie with it.
double with_ties(const Search& search, double limit) {
  return limit + tie_tolerance(search.integers, limit);
}

bool any_empty(const Sites& sites) {
  return std::any_of(sites.begin(), sites.end(), [](const auto& items) { return items.empty(); });
}

// The optimum by the tie rule, out of a table that holds everything up to its ties.
void take_best(const ParetoTable& table, Search* search) {
  const auto& points = table.points();
  const double best = points.back().score;
  const double limit = with_ties(*search, best);
  const auto lightest = std::find_if(points.begin(), points.end(),
                                     [&](const ParetoPoint& p) { return p.score <= limit; });
  search->choice = table.smallest_choice(search->integers.all, lightest->weight, limit);
  search->lower_bound = best;
  search->upper_bound = score_of(search->integers, search->choice);
  search->proven = true;
}

// Dynamic programs in growing windows above the bound: the first that holds an assignment holds the
// optimum, and an empty one lifts the bound. Gives up (proven stays false) when a limit is hit.
void run_dynamic_program(const SolveOptions& options, Search* search) {
  const double width = search->upper_bound - search->lower_bound;
  const double bottom = search->lower_bound;
  for (const double share : {1.0 / 32, 1.0 / 8, 1.0 / 2, 1.0}) {
    const double target = share == 1.0 ? search->upper_bound : bottom + share * width;
    const double limit = with_ties(*search, target);
    const double window_limit = with_ties(*search, limit);  // the ties of an optimum at `limit`
    const Sites sites = fix_by_reduced_cost(search->integers.efficient, search->capacity,
                                            search->relaxation, window_limit);
    if (!any_empty(sites)) {
      const ParetoWindow window{search->relaxation, window_limit};
      const auto table =
          ParetoTable::build(sites, search->capacity, &window,
                             {.max_points = options.max_points, .deadline = search->deadline});
      if (!table) {
        return;
      }
      if (!table->points().empty() && table->points().back().score <= limit) {
        take_best(*table, search);
        return;
      }
    }
    search->lower_bound = target;
  }
}

// The answer as indices into the core's items, where all of its candidates are there.
std::optional<std::vector<int>> to_picked(const Sites& sites, const std::vector<int>& choice) {
  std::vector<int> picked;
  for (std::size_t i = 0; i < sites.size(); ++i) {
    const auto item = std::find_if(sites[i].begin(), sites[i].end(), [&](const Item& candidate) {
      return candidate.candidate == choice[i];
    });
    if (item == sites[i].end()) {
      return std::nullopt;
    }
    picked.push_back(static_cast<int>(item - sites[i].begin()));
  }
  return picked;
}

// What CBC's answer means. Only a better assignment, re-evaluated here, ever replaces ours.
CbcVerdict judge(const CbcAnswer& answer, const std::optional<std::vector<int>>& choice,
                 double resolution, Search* search) {
  if (choice) {
    const double score = score_of(search->integers, *choice);
    if (score < search->upper_bound - resolution) {
      const bool contradicts = search->proven;
      if (contradicts) {
        spdlog::error("solver: CBC found {} nats where the dynamic program had proven {}", score,
                      search->upper_bound);
        search->lower_bound = search->relaxation.lower_bound;
        search->proven = false;
      }
      search->choice = *choice;
      search->upper_bound = score;
      if (contradicts) {
        return CbcVerdict::kDisagreed;
      }
    } else if (answer.status == CbcAnswer::Status::kOptimal &&
               score > search->upper_bound + resolution) {
      spdlog::warn("solver: CBC calls {} nats optimal, {} is attained", score, search->upper_bound);
      return CbcVerdict::kDisagreed;
    }
  }
  if (answer.status == CbcAnswer::Status::kStopped) {
    return CbcVerdict::kStopped;
  }
  if (!choice) {
    spdlog::warn("solver: CBC found no assignment where one of {} nats is known",
                 search->upper_bound);
    return CbcVerdict::kDisagreed;
  }
  if (!search->proven) {
    search->proven = true;
    search->lower_bound = search->upper_bound;
  }
  return CbcVerdict::kAgreed;
}

// CBC on the core: a second proof where the dynamic program has one, else the only one.
Result<CbcVerdict> run_core(const SolveOptions& options, Search* search) {
  double seconds = seconds_left(*search);
  if (search->proven) {
    seconds = std::min(seconds, options.cbc_check_seconds);
  }
  if (seconds <= 0) {
    return CbcVerdict::kNotAsked;
  }
  const double limit = with_ties(*search, search->upper_bound);
  const Sites sites =
      fix_by_reduced_cost(search->integers.efficient, search->capacity, search->relaxation, limit);
  BA_CHECK(!any_empty(sites), "the bound excludes a known assignment");
  const double gap = std::max(
      {limit - search->relaxation.lower_bound, 100 * (limit - search->upper_bound), kSmallestGap});
  const Core core = make_core(sites, search->capacity, search->relaxation, gap);
  if (core.program.cost.empty()) {
    return CbcVerdict::kNothingLeft;
  }
  CbcLimits limits;
  limits.seconds = seconds;
  if (const auto picked = to_picked(sites, search->choice)) {
    limits.start = to_columns(core, sites, search->capacity, *picked);
  }
  BA_ASSIGN_OR_RETURN(const CbcAnswer answer, run_cbc(core.program, limits));
  std::optional<std::vector<int>> choice;
  if (!answer.x.empty()) {
    if (const auto picked = from_columns(core, sites, search->capacity, answer.x)) {
      choice = to_choice(sites, *picked);
    }
  }
  return judge(answer, choice, 1e-6 * gap / kCoreScale + (limit - search->upper_bound), search);
}

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

Solution to_solution(const Problem& problem, const Search& search, CbcVerdict verdict) {
  Solution solution;
  solution.choice = search.choice;
  solution.objective = objective_of(problem, search.choice);
  solution.effective_bits = effective_bits_of(problem, search.choice);
  solution.cbc = verdict;
  const double bound = static_cast<double>(search.lower_bound + search.integers.score_offset);
  solution.lower_bound = std::min(bound, solution.objective);
  solution.proven_optimal = search.proven;
  if (!search.proven) {
    const double magnitude =
        std::max(std::fabs(solution.objective), std::fabs(solution.lower_bound));
    solution.gap = magnitude > 0 ? (solution.objective - solution.lower_bound) / magnitude : 0;
  }
  return solution;
}

Status check_arguments(const Problem& problem, double budget, const SolveOptions& options) {
  BA_RETURN_IF_ERROR(validate(problem));
  if (!std::isfinite(budget)) {
    return invalid_argument(fmt::format("budget is {}: it must be a finite number of bits", budget),
                            "budget");
  }
  if (!(options.time_limit_seconds >= 0)) {
    return invalid_argument("time_limit_seconds must not be negative", "time_limit_seconds");
  }
  if (!(options.cbc_check_seconds >= 0)) {
    return invalid_argument("cbc_check_seconds must not be negative", "cbc_check_seconds");
  }
  return {};
}

}  // namespace

const char* cbc_verdict_name(CbcVerdict verdict) {
  switch (verdict) {
    case CbcVerdict::kAgreed:
      return "agreed";
    case CbcVerdict::kNothingLeft:
      return "nothing_left";
    case CbcVerdict::kStopped:
      return "stopped";
    case CbcVerdict::kDisagreed:
      return "disagreed";
    case CbcVerdict::kNotAsked:
      return "not_asked";
  }
  return "unknown";
}

Result<Solution> solve(const Problem& problem, double effective_bits_budget,
                       const SolveOptions& options) {
  const Clock::time_point start = Clock::now();
  BA_RETURN_IF_ERROR(check_arguments(problem, effective_bits_budget, options));
  const IntegerProblem integers = to_integers(problem);
  const std::int64_t capacity = capacity_of(integers, effective_bits_budget);
  if (capacity < 0) {
    return out_of_reach(problem, effective_bits_budget);
  }
  Search search{integers, capacity, relax(integers.efficient, capacity), {}, 0, 0, {}, false};
  const double seconds = std::min(options.time_limit_seconds, 1e6);
  search.deadline =
      start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  search.lower_bound = search.relaxation.lower_bound;
  search.upper_bound = search.relaxation.upper_bound;
  search.choice = to_choice(integers.efficient, search.relaxation.rounded);
  run_dynamic_program(options, &search);
  BA_ASSIGN_OR_RETURN(const CbcVerdict verdict, run_core(options, &search));
  Solution solution = to_solution(problem, search, verdict);
  solution.solve_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  return solution;
}

}  // namespace bitalloc
