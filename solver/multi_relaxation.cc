#include "solver/multi_relaxation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "solver/cbc.h"

namespace bitalloc {
namespace {

double seconds_left(const RowLimits& limits) {
  return std::chrono::duration<double>(limits.deadline - std::chrono::steady_clock::now()).count();
}

std::int64_t heaviest(const Reduced& reduced, std::size_t row) {
  std::int64_t most = 1;
  for (const ReducedSite& site : reduced.sites) {
    for (const Option& option : site.options) {
      most = std::max(most, option.weight[row]);
    }
  }
  return most;
}

struct Relaxed {
  BinaryProgram program;
  std::vector<double> row_scale;  // CLP's weight of one unit
  double cost_scale = 1;
};

// One choice a site, then the rows; `elastic`: scores do not count, exceeding a row does.
Relaxed make_program(const Reduced& reduced, bool elastic) {
  Relaxed relaxed;
  BinaryProgram& program = relaxed.program;
  double highest = 0;
  for (const ReducedSite& site : reduced.sites) {
    for (const Option& option : site.options) {
      highest = std::max(highest, option.score);
    }
  }
  relaxed.cost_scale = highest > 0 ? 1000 / highest : 1;
  std::vector<LinearRow> rows(reduced.capacity.size());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    relaxed.row_scale.push_back(1.0 / static_cast<double>(heaviest(reduced, r)));
    rows[r].lower = -std::numeric_limits<double>::max();
    rows[r].upper = static_cast<double>(reduced.capacity[r]) * relaxed.row_scale[r];
  }
  const auto add_column = [&](double cost, double upper) {
    program.cost.push_back(cost);
    program.upper.push_back(upper);
    program.integral.push_back(false);
    return static_cast<int>(program.cost.size()) - 1;
  };
  for (const ReducedSite& site : reduced.sites) {
    LinearRow one{{}, {}, 1, 1};
    for (const Option& option : site.options) {
      const int column = add_column(elastic ? 0 : option.score * relaxed.cost_scale, 1);
      one.columns.push_back(column);
      one.coefficients.push_back(1);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        if (option.weight[r] != 0) {
          rows[r].columns.push_back(column);
          rows[r].coefficients.push_back(static_cast<double>(option.weight[r]) *
                                         relaxed.row_scale[r]);
        }
      }
    }
    program.rows.push_back(std::move(one));
  }
  for (LinearRow& row : rows) {
    if (elastic) {
      row.columns.push_back(add_column(1, std::numeric_limits<double>::max()));
      row.coefficients.push_back(-1);
    }
    program.rows.push_back(std::move(row));
  }
  return relaxed;
}

// Multipliers of the rows; zeros when CLP has no answer.
std::vector<double> multipliers(const Reduced& reduced, const Relaxed& relaxed,
                                const LpAnswer& answer) {
  std::vector<double> result(reduced.capacity.size(), 0.0);
  if (answer.status != LpAnswer::Status::kOptimal) {
    return result;
  }
  for (std::size_t r = 0; r < result.size(); ++r) {
    const double dual = -answer.row_dual[reduced.sites.size() + r];
    const double multiplier = dual * relaxed.row_scale[r] / relaxed.cost_scale;
    result[r] = std::isfinite(multiplier) ? std::max(0.0, multiplier) : 0;
  }
  return result;
}

double weighed(const std::vector<double>& multiplier, const Option& option) {
  double sum = 0;
  for (std::size_t r = 0; r < multiplier.size(); ++r) {
    sum += multiplier[r] * static_cast<double>(option.weight[r]);
  }
  return sum;
}

// The bound at given multipliers, with the scores or (count_scores false) without.
MultiRelaxation bound_at(const Reduced& reduced, std::vector<double> multiplier,
                         bool count_scores) {
  MultiRelaxation result;
  long double bound = 0;
  long double magnitude = 0;
  for (const ReducedSite& site : reduced.sites) {
    double lowest = std::numeric_limits<double>::infinity();
    for (const Option& option : site.options) {
      lowest = std::min(lowest, (count_scores ? option.score : 0) + weighed(multiplier, option));
    }
    result.site_bound.push_back(lowest);
    bound += lowest;
    magnitude += lowest;
  }
  for (std::size_t r = 0; r < multiplier.size(); ++r) {
    const long double product =
        static_cast<long double>(multiplier[r]) * static_cast<long double>(reduced.capacity[r]);
    bound -= product;
    magnitude += product;
  }
  result.rounding = static_cast<double>(1e-14L * magnitude);
  result.lower_bound = std::max(0.0, static_cast<double>(bound) - result.rounding);
  result.multiplier = std::move(multiplier);
  return result;
}

// How far an assignment is beyond the rows, each in shares of its heaviest weight.
class Excess {
 public:
  explicit Excess(const Reduced& reduced) : room_(reduced.capacity) {
    for (std::size_t r = 0; r < room_.size(); ++r) {
      scale_.push_back(1.0 / static_cast<double>(heaviest(reduced, r)));
    }
  }
  void add(const Option& option, int sign) {
    for (std::size_t r = 0; r < room_.size(); ++r) {
      room_[r] -= sign * option.weight[r];
    }
  }
  double now() const {
    double sum = 0;
    for (std::size_t r = 0; r < room_.size(); ++r) {
      sum += scale_[r] * static_cast<double>(std::max<std::int64_t>(0, -room_[r]));
    }
    return sum;
  }
  double after(const Option& from, const Option& to) const {
    double sum = 0;
    for (std::size_t r = 0; r < room_.size(); ++r) {
      const std::int64_t room = room_[r] + from.weight[r] - to.weight[r];
      sum += scale_[r] * static_cast<double>(std::max<std::int64_t>(0, -room));
    }
    return sum;
  }

 private:
  std::vector<std::int64_t> room_;
  std::vector<double> scale_;
};

// The change that mends most for its cost while rows are exceeded, or that gains most afterwards.
struct Move {
  int site = -1;
  int option = 0;
};

Move best_move(const Reduced& reduced, const MultiRelaxation& relaxation, const Excess& excess,
               const std::vector<int>& picked) {
  const double now = excess.now();
  Move best;
  double best_value = 0;
  for (std::size_t s = 0; s < reduced.sites.size(); ++s) {
    const auto& options = reduced.sites[s].options;
    const Option& from = options[picked[s]];
    for (std::size_t k = 0; k < options.size(); ++k) {
      if (static_cast<int>(k) == picked[s] || (now == 0 && options[k].score >= from.score)) {
        continue;
      }
      const double after = excess.after(from, options[k]);
      if (now == 0 ? after > 0 : after >= now) {
        continue;
      }
      const double cost = std::max(
          0.0, reduced_cost(relaxation, s, options[k]) - reduced_cost(relaxation, s, from));
      const double value = now == 0 ? from.score - options[k].score
                                    : (now - after) / (cost + 1e-12 * relaxation.site_bound[s] +
                                                       std::numeric_limits<double>::min());
      if (value > best_value) {
        best_value = value;
        best = {static_cast<int>(s), static_cast<int>(k)};
      }
    }
  }
  return best;
}

}  // namespace

Result<MultiRelaxation> relax(const Reduced& reduced, const RowLimits& limits) {
  CbcLimits lp_limits;
  lp_limits.stop = limits.stop;
  lp_limits.seconds = std::max(0.0, seconds_left(limits));
  const Relaxed relaxed = make_program(reduced, false);
  BA_ASSIGN_OR_RETURN(const LpAnswer answer, run_lp(relaxed.program, lp_limits));
  if (answer.status == LpAnswer::Status::kInfeasible) {
    Relaxed elastic = make_program(reduced, true);
    elastic.cost_scale = 1;
    BA_ASSIGN_OR_RETURN(const LpAnswer phase, run_lp(elastic.program, lp_limits));
    const auto certificate = bound_at(reduced, multipliers(reduced, elastic, phase), false);
    if (certificate.lower_bound > certificate.rounding) {
      MultiRelaxation result = bound_at(reduced, std::vector(reduced.capacity.size(), 0.0), true);
      result.infeasible = true;
      return result;
    }
  }
  return bound_at(reduced, multipliers(reduced, relaxed, answer), true);
}

double reduced_cost(const MultiRelaxation& relaxation, std::size_t site, const Option& option) {
  return std::max(
      0.0, option.score + weighed(relaxation.multiplier, option) - relaxation.site_bound[site]);
}

std::vector<std::vector<int>> open_options(const Reduced& reduced,
                                           const MultiRelaxation& relaxation, double limit) {
  const double allowance = limit - relaxation.lower_bound + 2 * relaxation.rounding;
  std::vector<std::vector<int>> open(reduced.sites.size());
  for (std::size_t s = 0; s < reduced.sites.size(); ++s) {
    const auto& options = reduced.sites[s].options;
    for (std::size_t k = 0; k < options.size(); ++k) {
      if (options[k].score <= limit && reduced_cost(relaxation, s, options[k]) <= allowance) {
        open[s].push_back(static_cast<int>(k));
      }
    }
  }
  return open;
}

bool fits(const Reduced& reduced, const std::vector<int>& picked) {
  for (std::size_t r = 0; r < reduced.capacity.size(); ++r) {
    std::int64_t weight = 0;
    for (std::size_t s = 0; s < picked.size(); ++s) {
      weight += reduced.sites[s].options[picked[s]].weight[r];
    }
    if (weight > reduced.capacity[r]) {
      return false;
    }
  }
  return std::all_of(reduced.clauses.begin(), reduced.clauses.end(), [&](const Clause& clause) {
    return clause.allowed[picked[clause.first]][picked[clause.second]];
  });
}

double score_of(const Reduced& reduced, const std::vector<int>& picked) {
  long double sum = 0;
  for (std::size_t s = 0; s < picked.size(); ++s) {
    sum += reduced.sites[s].options[picked[s]].score;
  }
  return static_cast<double>(sum);
}

std::optional<std::vector<int>> find_assignment(const Reduced& reduced,
                                                const MultiRelaxation& relaxation) {
  std::vector<int> picked;
  Excess excess(reduced);
  for (std::size_t s = 0; s < reduced.sites.size(); ++s) {
    const auto& options = reduced.sites[s].options;
    const auto cheaper = [&](const Option& a, const Option& b) {
      return reduced_cost(relaxation, s, a) < reduced_cost(relaxation, s, b);
    };
    const auto best = std::min_element(options.begin(), options.end(), cheaper);
    picked.push_back(static_cast<int>(best - options.begin()));
    excess.add(*best, 1);
  }
  for (std::size_t step = 0; step < 4 * reduced.sites.size(); ++step) {
    const Move move = best_move(reduced, relaxation, excess, picked);
    if (move.site < 0) {
      break;
    }
    const auto& options = reduced.sites[move.site].options;
    excess.add(options[picked[move.site]], -1);
    excess.add(options[move.option], 1);
    picked[move.site] = move.option;
  }
  if (!fits(reduced, picked)) {
    return std::nullopt;
  }
  return picked;
}

}  // namespace bitalloc
