#include "solver/multi_row.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "solver/cbc.h"
#include "solver/core.h"
#include "solver/multi_pareto.h"
#include "solver/multi_relaxation.h"

namespace bitalloc {
namespace {

using Open = std::vector<std::vector<int>>;  // [site] options still possible

struct Search {
  const Reduced& reduced;
  const RowLimits& limits;
  MultiRelaxation relaxation;
  double lower_bound = 0;
  std::optional<std::vector<int>> picked;  // [site] option; the best known
  double upper_bound = 0;                  // of `picked`, else what no assignment can exceed
  bool proven = false;
  bool infeasible = false;
};

double with_ties(const Search& search, double limit) {
  return limit + 1e-12 * limit + search.reduced.score_noise;
}

bool any_empty(const Open& open) {
  return std::any_of(open.begin(), open.end(), [](const auto& options) { return options.empty(); });
}

void take(std::vector<int> picked, Search* search) {
  search->upper_bound = score_of(search->reduced, picked);
  search->picked = std::move(picked);
}

// One row alone is a relaxation, too: its optimum lifts the bound, and decides when it happens to
// keep the other rows.
Status try_single_rows(Search* search) {
  RowLimits limits = search->limits;
  limits.cbc_check_seconds = 0;
  for (std::size_t row = 0; row < search->reduced.capacity.size(); ++row) {
    const IntegerProblem integers = to_integers(search->reduced, row);
    BA_ASSIGN_OR_RETURN(RowAnswer answer,
                        solve_row(integers, capacity_of(search->reduced, row, integers), limits));
    search->lower_bound = std::max(search->lower_bound, answer.lower_bound);
    if (answer.proven && fits(search->reduced, answer.choice)) {
      take(std::move(answer.choice), search);
      search->proven = true;
      return {};
    }
  }
  return {};
}

// Upper ends of the windows: above the bound by what lets 32, 64, … options beside the best in.
std::vector<double> window_ends(const Search& search) {
  constexpr std::size_t kFirstOptions = 32;
  std::vector<double> costs;
  for (std::size_t s = 0; s < search.reduced.sites.size(); ++s) {
    for (const Option& option : search.reduced.sites[s].options) {
      const double end = search.relaxation.lower_bound + reduced_cost(search.relaxation, s, option);
      if (end > search.lower_bound && end < search.upper_bound) {
        costs.push_back(end);
      }
    }
  }
  std::sort(costs.begin(), costs.end());
  std::vector<double> ends;
  for (std::size_t count = kFirstOptions; count < costs.size(); count *= 2) {
    ends.push_back(costs[count]);
  }
  ends.push_back(search.upper_bound);
  return ends;
}

void run_dynamic_program(Search* search) {
  for (const double target : window_ends(*search)) {
    const double limit = with_ties(*search, target);
    const double window_limit = with_ties(*search, limit);
    const Open open = open_options(search->reduced, search->relaxation, window_limit);
    if (!any_empty(open)) {
      const auto table = MultiParetoTable::build(search->reduced, search->relaxation, open,
                                                 window_limit, search->limits);
      if (!table) {
        return;
      }
      if (const auto best = table->best(); best && *best <= limit) {
        take(table->smallest(with_ties(*search, *best)), search);
        search->lower_bound = std::min(*best, search->upper_bound);
        search->proven = true;
        return;
      }
    }
    search->lower_bound = std::max(search->lower_bound, target);
  }
  // Windows up to what no assignment can exceed held none.
  search->infeasible = !search->picked;
}

struct Core {
  BinaryProgram program;
  std::vector<std::vector<int>> columns;  // [site][open option]
};

// One side of a clause: an option needs one of those that it allows on the other side.
void add_clause(const Core& core, const Open& open, const Clause& clause, bool forward,
                BinaryProgram* program) {
  const int site = forward ? clause.first : clause.second;
  const int other = forward ? clause.second : clause.first;
  for (std::size_t k = 0; k < open[site].size(); ++k) {
    LinearRow row{{core.columns[site][k]}, {1}, -std::numeric_limits<double>::max(), 0};
    bool itself = false;
    for (std::size_t o = 0; o < open[other].size(); ++o) {
      const bool allowed = forward ? clause.allowed[open[site][k]][open[other][o]]
                                   : clause.allowed[open[other][o]][open[site][k]];
      itself = itself || (allowed && core.columns[other][o] == core.columns[site][k]);
      if (allowed) {
        row.columns.push_back(core.columns[other][o]);
        row.coefficients.push_back(-1);
      }
    }
    if (!itself) {
      program->rows.push_back(std::move(row));
    }
  }
}

// The open options as a program: reduced costs and λ·(room left), the gap being kCoreScale.
Core make_core(const Search& search, const Open& open, double gap) {
  const Reduced& reduced = search.reduced;
  const double scale = kCoreScale / gap;
  Core core;
  BinaryProgram& program = core.program;
  const auto add_column = [&](double cost, double upper, bool integral) {
    program.cost.push_back(cost);
    program.upper.push_back(upper);
    program.integral.push_back(integral);
    return static_cast<int>(program.cost.size()) - 1;
  };
  for (std::size_t s = 0; s < open.size(); ++s) {
    LinearRow one{{}, {}, 1, 1};
    core.columns.emplace_back();
    for (const int k : open[s]) {
      const Option& option = reduced.sites[s].options[k];
      const int column = add_column(reduced_cost(search.relaxation, s, option) * scale, 1, true);
      core.columns.back().push_back(column);
      one.columns.push_back(column);
      one.coefficients.push_back(1);
    }
    program.rows.push_back(std::move(one));
  }
  for (std::size_t r = 0; r < reduced.capacity.size(); ++r) {
    constexpr double kLargest = 0x1p20;  // well inside what CBC's feasibility tolerance resolves
    std::int64_t heaviest = 1;
    for (std::size_t s = 0; s < open.size(); ++s) {
      for (const int k : open[s]) {
        heaviest = std::max(heaviest, reduced.sites[s].options[k].weight[r]);
      }
    }
    const double factor =
        static_cast<double>(heaviest) > kLargest ? kLargest / static_cast<double>(heaviest) : 1;
    const double capacity = static_cast<double>(reduced.capacity[r]) * factor;
    LinearRow row{{}, {}, capacity, capacity};
    for (std::size_t s = 0; s < open.size(); ++s) {
      for (std::size_t k = 0; k < open[s].size(); ++k) {
        row.columns.push_back(core.columns[s][k]);
        row.coefficients.push_back(
            static_cast<double>(reduced.sites[s].options[open[s][k]].weight[r]) * factor);
      }
    }
    const double cost = search.relaxation.multiplier[r] / factor * scale;
    row.columns.push_back(add_column(cost, capacity, false));
    row.coefficients.push_back(1);
    program.rows.push_back(std::move(row));
  }
  for (const Clause& clause : reduced.clauses) {
    add_clause(core, open, clause, true, &program);
    add_clause(core, open, clause, false, &program);
  }
  return core;
}

// Values of the columns for an assignment; empty when one of its options is not open.
std::vector<double> to_columns(const Reduced& reduced, const Core& core, const Open& open,
                               const std::vector<int>& picked) {
  std::vector<double> x(core.program.cost.size(), 0.0);
  for (std::size_t s = 0; s < open.size(); ++s) {
    const auto at = std::find(open[s].begin(), open[s].end(), picked[s]);
    if (at == open[s].end()) {
      return {};
    }
    x[core.columns[s][at - open[s].begin()]] = 1;
  }
  // The rows' own columns take what is left of them, in their order.
  const std::size_t rows = reduced.capacity.size();
  for (std::size_t r = 0; r < rows; ++r) {
    const LinearRow& row = core.program.rows[open.size() + r];
    double room = row.upper;
    for (std::size_t k = 0; k + 1 < row.columns.size(); ++k) {
      room -= row.coefficients[k] * x[row.columns[k]];
    }
    x[row.columns.back()] = std::max(0.0, room);
  }
  return x;
}

std::vector<int> from_columns(const Core& core, const Open& open, const std::vector<double>& x) {
  std::vector<int> picked;
  for (std::size_t s = 0; s < open.size(); ++s) {
    std::size_t best = 0;
    for (std::size_t k = 1; k < open[s].size(); ++k) {
      if (x[core.columns[s][k]] > x[core.columns[s][best]]) {
        best = k;
      }
    }
    picked.push_back(open[s][best]);
  }
  return picked;
}

// CBC, again and again while it answers with assignments that are beyond a row by less than its
// tolerance: each such one is cut off.
Result<CbcAnswer> run_certified(const Search& search, const Open& open, const CbcLimits& limits,
                                Core* core, std::optional<std::vector<int>>* picked) {
  constexpr int kMaxCuts = 50;
  for (int cut = 0; cut < kMaxCuts; ++cut) {
    BA_ASSIGN_OR_RETURN(const CbcAnswer answer, run_cbc(core->program, limits));
    if (answer.x.empty()) {
      return answer;
    }
    *picked = from_columns(*core, open, answer.x);
    if (fits(search.reduced, **picked)) {
      return answer;
    }
    LinearRow row{
        {}, {}, -std::numeric_limits<double>::max(), static_cast<double>(open.size()) - 1};
    for (std::size_t s = 0; s < open.size(); ++s) {
      const auto at = std::find(open[s].begin(), open[s].end(), (**picked)[s]);
      row.columns.push_back(core->columns[s][at - open[s].begin()]);
      row.coefficients.push_back(1);
    }
    core->program.rows.push_back(std::move(row));
    picked->reset();
  }
  return CbcAnswer{};
}

// What CBC's answer means; only a better assignment, in whole numbers, ever replaces ours.
CbcVerdict judge(const CbcAnswer& answer, std::optional<std::vector<int>> picked, double resolution,
                 Search* search) {
  const double known = search->upper_bound;
  const bool had_one = search->picked.has_value();
  const bool is_optimal = answer.status == CbcAnswer::Status::kOptimal;
  bool disagreed = false;
  if (picked) {
    const double score = score_of(search->reduced, *picked);
    if (!had_one || score < known - resolution) {
      disagreed = search->proven;
      take(std::move(*picked), search);
    } else {
      disagreed = is_optimal && score > known + resolution;
    }
  } else if (answer.status == CbcAnswer::Status::kInfeasible) {
    disagreed = had_one;
    search->infeasible = !had_one;
  }
  if (disagreed) {
    search->lower_bound = std::min(search->lower_bound, search->relaxation.lower_bound);
    search->proven = search->proven && search->upper_bound == known;
    return CbcVerdict::kDisagreed;
  }
  if (answer.status == CbcAnswer::Status::kStopped) {
    return CbcVerdict::kStopped;
  }
  if (search->picked && !search->proven) {
    search->proven = true;
    search->lower_bound = search->upper_bound;
  }
  return CbcVerdict::kAgreed;
}

Result<CbcVerdict> run_core(Search* search) {
  const auto left = search->limits.deadline - std::chrono::steady_clock::now();
  CbcLimits limits;
  limits.stop = search->limits.stop;
  limits.seconds = std::chrono::duration<double>(left).count();
  if (search->proven) {
    limits.seconds = std::min(limits.seconds, search->limits.cbc_check_seconds);
  }
  if (limits.seconds <= 0) {
    return CbcVerdict::kNotAsked;
  }
  const double limit = with_ties(*search, search->upper_bound);
  const Open open = open_options(search->reduced, search->relaxation, limit);
  BA_CHECK(!any_empty(open) || !search->picked, "the bound excludes a known assignment");
  if (any_empty(open)) {
    search->infeasible = true;
    return CbcVerdict::kNothingLeft;
  }
  const double gap = std::max(
      {limit - search->relaxation.lower_bound, 100 * (limit - search->upper_bound), 1e-100});
  Core core = make_core(*search, open, gap);
  if (search->picked) {
    limits.start = to_columns(search->reduced, core, open, *search->picked);
  }
  std::optional<std::vector<int>> picked;
  BA_ASSIGN_OR_RETURN(const CbcAnswer answer, run_certified(*search, open, limits, &core, &picked));
  const double resolution = 1e-6 * gap / kCoreScale + (limit - search->upper_bound);
  return judge(answer, std::move(picked), resolution, search);
}

// What no assignment's score exceeds.
double highest_score(const Reduced& reduced) {
  double sum = 0;
  for (const ReducedSite& site : reduced.sites) {
    double highest = 0;
    for (const Option& option : site.options) {
      highest = std::max(highest, option.score);
    }
    sum += highest;
  }
  return sum;
}

Outcome to_outcome(Search search, CbcVerdict verdict) {
  Outcome outcome;
  outcome.cbc = verdict;
  outcome.lower_bound = search.lower_bound;
  if (search.picked) {
    outcome.kind = Outcome::Kind::kFound;
    outcome.choice = to_choice(search.reduced, *search.picked);
    outcome.upper_bound = search.upper_bound;
    outcome.proven = search.proven;
  } else if (search.infeasible) {
    outcome.kind = Outcome::Kind::kInfeasible;
  }
  return outcome;
}

}  // namespace

Result<Outcome> solve_rows(const Reduced& reduced, const RowLimits& limits, Want want) {
  BA_ASSIGN_OR_RETURN(MultiRelaxation relaxation, relax(reduced, limits));
  Search search{reduced, limits, std::move(relaxation), 0, std::nullopt, 0, false, false};
  search.infeasible = search.relaxation.infeasible;
  if (search.infeasible) {
    return to_outcome(std::move(search), CbcVerdict::kNotAsked);
  }
  search.lower_bound = search.relaxation.lower_bound;
  search.upper_bound = highest_score(reduced);
  if (auto picked = find_assignment(reduced, search.relaxation)) {
    take(std::move(*picked), &search);
    if (want == Want::kAny) {
      return to_outcome(std::move(search), CbcVerdict::kNotAsked);
    }
  }
  if (reduced.clauses.empty()) {
    if (want == Want::kBest) {
      BA_RETURN_IF_ERROR(try_single_rows(&search));
    }
    if (!search.proven) {
      run_dynamic_program(&search);
    }
  }
  if (search.infeasible) {
    return to_outcome(std::move(search), CbcVerdict::kNotAsked);
  }
  search.proven = search.proven ||
                  (search.picked && search.upper_bound <= with_ties(search, search.lower_bound));
  BA_ASSIGN_OR_RETURN(const CbcVerdict verdict, run_core(&search));
  return to_outcome(std::move(search), verdict);
}

}  // namespace bitalloc
