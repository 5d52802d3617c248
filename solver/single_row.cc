#include "solver/single_row.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "solver/core.h"
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
  const RowLimits& limits;
  Relaxation relaxation;
  double lower_bound = 0;   // certified, nats above the sites' lowest scores
  double upper_bound = 0;   // of `choice`, likewise
  std::vector<int> choice;  // [site] candidate
  bool proven = false;  // `choice` is optimal (and the one of the tie rule, if the table held it)
};

double seconds_left(const Search& search) {
  return std::chrono::duration<double>(search.limits.deadline - Clock::now()).count();
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

// Upper ends of the windows to look through: above the bound by what lets 32, 64, 128, … items
// beside the sites' best ones in, and last the score of the assignment at hand.
std::vector<double> window_ends(const Search& search) {
  constexpr std::size_t kFirstItems = 32;
  const double gap = search.upper_bound - search.lower_bound;
  std::vector<double> costs;
  for (std::size_t i = 0; i < search.integers.efficient.size(); ++i) {
    for (const Item& item : search.integers.efficient[i]) {
      const double cost = item.score +
                          search.relaxation.multiplier * static_cast<double>(item.weight) -
                          search.relaxation.site_bound[i];
      if (cost > 0 && cost < gap) {
        costs.push_back(cost);
      }
    }
  }
  std::sort(costs.begin(), costs.end());
  std::vector<double> ends;
  for (std::size_t count = kFirstItems; count < costs.size(); count *= 2) {
    ends.push_back(search.lower_bound + costs[count]);
  }
  ends.push_back(search.upper_bound);
  return ends;
}

// The bound says that nothing better exists; which of its ties is to be taken may still be open.
bool is_optimal(const Search& search) {
  return search.upper_bound <= with_ties(search, search.lower_bound);
}

// Dynamic programs in growing windows above the bound: the first that holds an assignment holds the
// optimum, and an empty one lifts the bound. Gives up (proven stays false) when a limit is hit.
void run_dynamic_program(Search* search) {
  // For the rule of ties alone, no more than this share of the sums.
  const std::size_t share = is_optimal(*search) ? 16 : 1;
  for (const double target : window_ends(*search)) {
    const double limit = with_ties(*search, target);
    const double window_limit = with_ties(*search, limit);  // the ties of an optimum at `limit`
    const Sites sites = fix_by_reduced_cost(search->integers.efficient, search->capacity,
                                            search->relaxation, window_limit);
    if (!any_empty(sites)) {
      const ParetoWindow window{search->relaxation, window_limit};
      const auto table = ParetoTable::build(sites, search->capacity, &window,
                                            {.max_points = search->limits.max_points / share,
                                             .deadline = search->limits.deadline,
                                             .stop = search->limits.stop});
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
Result<CbcVerdict> run_core(Search* search) {
  double seconds = seconds_left(*search);
  if (search->proven) {
    seconds = std::min(seconds, search->limits.cbc_check_seconds);
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
    // One assignment is left that could be as good: the one at hand.
    search->lower_bound = search->proven ? search->lower_bound : search->upper_bound;
    search->proven = true;
    return CbcVerdict::kNothingLeft;
  }
  CbcLimits limits;
  limits.seconds = seconds;
  limits.stop = search->limits.stop;
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

}  // namespace

Result<RowAnswer> solve_row(const IntegerProblem& integers, std::int64_t capacity,
                            const RowLimits& limits) {
  Search search{integers, capacity, limits, relax(integers.efficient, capacity), 0, 0, {}, false};
  search.lower_bound = search.relaxation.lower_bound;
  search.upper_bound = search.relaxation.upper_bound;
  search.choice = to_choice(integers.efficient, search.relaxation.rounded);
  run_dynamic_program(&search);
  search.proven = search.proven || is_optimal(search);
  BA_ASSIGN_OR_RETURN(const CbcVerdict verdict, run_core(&search));
  return RowAnswer{std::move(search.choice), search.lower_bound, search.upper_bound, search.proven,
                   verdict};
}

}  // namespace bitalloc
